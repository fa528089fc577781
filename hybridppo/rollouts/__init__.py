"""Rollouts: their arrays, the tensors that agents learn from, episodes and advantages.

Here: the arrays that samplers write (`buffer.py`; `on_device.py` if they stay on a device), the rollout made from them
(`rollout.py`), the replay buffer (`replay.py`), episode statistics and advantages. Not here: samplers (`runners/`) and
agents (`agents/`). Begin with `rollout.py`.
"""
