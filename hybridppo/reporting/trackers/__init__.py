"""Trackers: where people look at their trainings, as TensorBoard and Weights & Biases are.

A file for each, listed in `registry.py`; none of their packages is imported before it is used. Not here: when rows are
sent, and what happens where that fails, which is `tracking.py`'s, for all of them alike. Begin with `base.py`.
"""
