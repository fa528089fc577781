"""Evaluation during training: between two iterations, or beside the training in another process.

`during.py` decides when an evaluation is due, and reports its result. Not here: running episodes, which is
`runners/evaluation.py`. Begin with `during.py`.
"""
