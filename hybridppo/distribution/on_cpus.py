"""What learners on CPUs cannot have, each with a share of the environments."""

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError
from hybridppo.placements.base import Placement
from hybridppo.runs.options import RunOptions

_OF_ONE_PROCESS = {"episodes_per_rollout": None, "compiled_updates": False}
"""Fields of the configuration that several learners cannot have otherwise."""


def require_divisible(
    config: AnyConfig, options: EnvironmentOptions, run: RunOptions, learners: int, whom: str
) -> PPOConfig:
    """Refuse what learners cannot divide.

    Args:
        config: the agent's.
        options: of the environments.
        run: of the run.
        learners: how many.
        whom: how they are called in messages.

    Raises:
        ConfigurationError: with the option, and what to do.
    """
    if not isinstance(config, PPOConfig):
        raise ConfigurationError(
            f"several learners share the gradients of PPO only, got {type(config).__name__}: use distribution='local'"
        )
    for name, one_process in _OF_ONE_PROCESS.items():
        if (value := getattr(config, name)) != one_process:
            raise ConfigurationError(f"{name}={value!r} cannot be had {whom}: use distribution='local'")
    if config.num_envs % learners:
        raise ConfigurationError(f"num_envs must be a multiple of the {learners} learners, got {config.num_envs}")
    if run.num_workers:
        raise ConfigurationError(
            f"num_workers={run.num_workers} cannot be had {whom}, which step their environments themselves: "
            "leave it out, or take more learners"
        )
    return config


def placement_on_cpus(meant: Placement | Auto) -> Placement | Auto:
    """As it is meant.

    Raises:
        ConfigurationError: for one that uses another device, or overlaps.
    """
    if isinstance(meant, Auto):
        return meant
    devices = {meant.sampling_device.type, meant.learning_device.type}
    if devices != {"cpu"} or meant.max_lag:
        raise ConfigurationError(
            f"learners sample and learn by turns on CPUs, got {meant}: use placement='cpu', or distribution='local'"
        )
    return meant
