"""Rollouts: their columns, episodes and advantages.

Here: the rollout that samplers write and agents learn from (`rollout.py`), the replay buffer (`replay.py`), the memory
of recurrent actors (`memory.py`) and advantages. Not here: samplers (`runners/`) and agents (`agents/`). Begin with
`rollout.py`.
"""
