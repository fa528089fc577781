"""Trackers, such as TensorBoard and Weights & Biases.

Each tracker has a file, and `registry.py` lists them; the package of a tracker is imported when it is used.
`tracking.py` decides when rows are sent, and handles failures. Begin with `base.py`.
"""
