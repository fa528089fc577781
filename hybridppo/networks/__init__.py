"""Networks, their parameters, the Adam optimizer, and precision.

Here: multilayer perceptrons, convolutions, the additions of actors, and the one buffer of all parameters. The NumPy
forms of networks are in `numpy_forms/`. Not here: losses (`agents/`) and devices (`placements/`). Begin with `mlp.py`
and `parameters.py`.
"""
