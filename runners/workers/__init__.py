"""Sampling in worker processes, which write straight into a rollout in shared memory.

`sampler.py` is the trainer's side, `process.py` a worker's own. Begin with `sampler.py`.
"""
