"""Rollouts: their columns, the replay buffer, and advantages.

Here: the rollout that samplers write and agents learn from (`rollout.py`), the replay buffer (`replay.py`) and
advantages. Not here: samplers (`runners/`) and agents (`agents/`). Begin with `rollout.py`.
"""
