"""PPO's configuration in tests: that of the benchmarks, which uses every part of the loss."""

from benchmarks.settings import cleanrl as ppo_config

__all__ = ["ppo_config"]
