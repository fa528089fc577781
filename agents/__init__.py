"""Agents, a folder each; the files here are what they share, and `registry.py` has their names.

Begin with `ppo/`.
"""

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO

__all__ = ["PPO", "PPOConfig"]
