"""Evaluation while a training goes on: in between two iterations, or beside it in a process of its own.

`during.py` says when an evaluation is due, and whom its result is told. Not here: how episodes are run, which is
`runners/evaluation.py`. Begin with `during.py`.
"""
