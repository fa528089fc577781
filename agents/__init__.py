"""What learns: a folder for each agent, what they share in `common/`, and their names in `registry.py`.

Begin with `ppo/`.
"""

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO

__all__ = ["PPO", "PPOConfig"]
