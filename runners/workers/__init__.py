"""Sampling in worker processes.

`sampler.py` is the trainer's side, which asks a `transport.py` for workers; `processes.py` has them on this machine,
where they write straight into a rollout in shared memory, and `process.py` is one of these. What a worker does with its
environments, wherever it is, is in `share.py`. Begin with `sampler.py`.
"""
