"""What learns: PPO."""

from hybridppo.agents.ppo import PPO
from hybridppo.agents.ppo_config import PPOConfig

__all__ = ["PPO", "PPOConfig"]
