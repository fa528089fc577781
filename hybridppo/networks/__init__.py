"""Networks, their parameters, the Adam optimizer, and precision.

Here: multilayer perceptrons, convolutions, encoders, recurrent cells, the additions of actors, running normalisation,
and the one buffer of all parameters. `making.py` puts a network together. A network returns its NumPy twin, which acts
without torch (`numpy_actors.py`). Not here: losses (`agents/`) and devices (`placements/`). Begin with `actors.py` and
`parameters.py`.
"""
