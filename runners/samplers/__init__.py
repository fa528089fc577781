"""Samplers in this process: environments, an actor, and the rollouts that they make.

`base.py` is the base of all samplers, and `in_process.py` steps environments for `num_steps` or for whole episodes;
`stepping.py` is the inner loop. `on_tensors.py` samples environments of tensors, and `on_device.py` compiled ones on a
GPU. Samplers with worker processes are in `workers/`. Begin with `base.py`.
"""
