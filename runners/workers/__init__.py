"""Sampling in worker processes.

`pool.py` starts workers, waits for their answers and finds those that are lost; `losses.py` replaces them. Workers are
processes of this machine (`local.py`) or actors of Ray's.

`workers.py` is the trainer's side of sampling, which the samplers `sampler.py` and `lagging.py` use. `processes.py` has
workers on this machine, which write straight into a rollout in shared memory; `process.py` is one of them. `share.py`
is what a worker does with its environments, on any machine. Begin with `sampler.py`.
"""
