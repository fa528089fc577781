"""Evaluation during training: between two iterations, or beside the training in another process.

`during.py` decides when an evaluation is due, and reports its result. `making.py` chooses an evaluator:
`in_between.py` or `beside.py`. `runners/evaluation.py` runs the episodes. Begin with `during.py`.
"""
