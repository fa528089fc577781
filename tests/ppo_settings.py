"""PPO's configuration in tests: that of the benchmarks, under which every part of the loss is at work."""

from benchmarks.settings import cleanrl as ppo_config

__all__ = ["ppo_config"]
