"""Sampling in worker processes.

`pool.py` starts workers, waits for their answers and finds those that are lost; `losses.py` replaces them. Workers are
processes of this machine (`local.py`) or Ray actors.

`workers.py` is the trainer's side of sampling, which the samplers `sampler.py` and `lagging.py` use. `processes.py` has
workers on this machine, which write directly into a rollout in shared memory; `process.py` is the program of such a
worker. `share.py` steps a worker's environments, on any machine. Begin with `sampler.py`.
"""
