"""Sampling in worker processes.

`workers.py` is the trainer's side: it asks a `transport.py` for workers, and replaces those that are lost. The samplers
`sampler.py` and `lagging.py` use it. `processes.py` has workers on this machine, which write straight into a rollout
in shared memory; `process.py` is one of them. `share.py` is what a worker does with its environments, on any machine.
Begin with `sampler.py`.
"""
