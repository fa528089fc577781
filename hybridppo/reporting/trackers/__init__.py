"""Trackers, such as TensorBoard and Weights & Biases.

A file for each, listed in `registry.py`; their packages are imported when they are used. `tracking.py` decides when
rows are sent, and what happens if that fails. Begin with `base.py`.
"""
