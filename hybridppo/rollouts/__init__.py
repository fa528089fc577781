"""Rollouts: their arrays, the tensors that agents learn from, episodes and advantages.

Here: the arrays that samplers write (`buffer.py`), the rollout made of them (`rollout.py`), episode statistics and
advantages. Not here: who fills a rollout (`runners/`), and who learns from it (`agents/`). Begin with `rollout.py`.
"""
