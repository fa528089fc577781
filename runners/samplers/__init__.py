"""Samplers in this process: environments, an actor, and the rollouts that they make.

`base.py` is the base of all samplers. `in_process.py` steps environments for `num_steps`, and `episodes.py` for whole
episodes; `stepping.py` is the inner loop. With `device_base.py`, rollouts stay on a device: `on_tensors.py` samples
environments of tensors, and `on_device.py` compiled ones. Samplers with worker processes are in `workers/`. Begin with
`base.py`.
"""
