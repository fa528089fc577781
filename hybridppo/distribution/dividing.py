"""What several processes cannot have, if each steps a share of the environments."""

import logging
from dataclasses import replace

import gymnasium as gym
from gymnasium.vector import VectorEnv

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto
from hybridppo.environments.making import is_tensor_env, with_arguments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.registration import source_of
from hybridppo.errors import ConfigurationError
from hybridppo.placements.base import Placement
from hybridppo.runs.options import RunOptions

_TENSORS = "environments of tensors ({}) step themselves and cannot be divided among {}: use distribution='local'"
_OF_ONE_PROCESS = {"episodes_per_rollout": None, "compiled_updates": False}
"""Fields of the configuration that several learners cannot have otherwise."""
logger = logging.getLogger(__name__)


def as_copies(source: EnvSource, options: EnvironmentOptions, whom: str, *, tells: bool = True) -> EnvironmentOptions:
    """The options with which environments are stepped as copies: their own vectorised form is seeded as a whole.

    Args:
        source: of the environments.
        options: as they were given.
        whom: among whom they are divided, for messages.
        tells: whether to say that copies take the place of a vectorised form.

    Raises:
        ConfigurationError: if a function makes vectors.
    """
    if options.vectorization == "compiled":  # environments that are seeded by their number
        return options
    source = source_of(source)
    if isinstance(source, str):
        has_own = source in gym.registry and gym.spec(source).vector_entry_point is not None
        if has_own and options.vectorization == "auto" and tells:
            logger.info("%s: its own vectorised form cannot be divided among %s, copies are stepped", source, whom)
    elif is_tensor_env(source):
        raise ConfigurationError(_TENSORS.format(type(source).__name__, whom))
    elif callable(source):
        made = with_arguments(source, 1, options)()
        if callable(getattr(made, "close", None)):  # not all of several agents have it
            made.close()
        if is_tensor_env(made):
            raise ConfigurationError(_TENSORS.format(type(made).__name__, whom))
        if isinstance(made, VectorEnv):
            raise ConfigurationError(
                f"the function made a {type(made).__name__}, which is seeded as a whole and cannot be divided among "
                f"{whom}: let it make one environment, or use distribution='local'"
            )
    return replace(options, vectorization="sync")


def require_divisible(config: AnyConfig, run: RunOptions, learners: int, whom: str) -> PPOConfig:
    """Refuse what learners cannot divide.

    Args:
        config: the agent's.
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
    """The placement that was asked for.

    Raises:
        ConfigurationError: if it uses another device, or overlaps.
    """
    if isinstance(meant, Auto):
        return meant
    devices = {meant.sampling_device.type, meant.learning_device.type}
    if devices != {"cpu"} or meant.max_lag:
        raise ConfigurationError(
            f"learners sample and learn by turns on CPUs, got {meant}: use placement='cpu', or distribution='local'"
        )
    return meant
