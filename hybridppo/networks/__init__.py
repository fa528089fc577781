"""Networks, and what trains and evaluates them: parameters, Adam, precision, threads.

Here: multilayer perceptrons, convolutions, what an actor adds to them, the one buffer that all parameters lie in.
Their forms in NumPy are in `numpy_forms/`. Not here: losses (`agents/`), and devices (`placements/`). Begin with
`mlp.py` and `parameters.py`.
"""
