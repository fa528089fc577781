"""Agents, a folder each; their common parts are in `common/`, their names in `registry.py`.

Begin with `ppo/`.
"""

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO

__all__ = ["PPO", "PPOConfig"]
