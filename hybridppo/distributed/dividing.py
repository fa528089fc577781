"""Checks that environments and agents can be divided among processes."""

import logging
from dataclasses import replace

import gymnasium as gym
from gymnasium.vector import VectorEnv

from hybridppo.agents.ppo.loss import has_state
from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.making import is_tensor_env, with_arguments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.registration import source_of
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import agents_of
from hybridppo.networks.modes import require_same_everywhere

_TENSORS = "environments of tensors ({}) step themselves and cannot be divided among {}: use distributed='local'"
logger = logging.getLogger(__name__)


def as_copies(source: EnvSource, options: EnvironmentOptions, whom: str) -> EnvironmentOptions:
    """The options that step copies of an environment, because its own vectorised form is seeded as a whole.

    Args:
        source: makes the environments.
        options: the options of the user.
        whom: the processes that share the environments, for messages.

    Raises:
        ConfigurationError: if a function makes vectors.
    """
    if options.vectorization == "compiled":  # each environment has a seed of its own
        return options
    source = source_of(source)
    if isinstance(source, str):
        has_own = source in gym.registry and gym.spec(source).vector_entry_point is not None
        if has_own and options.vectorization == "auto":
            logger.info("%s: its own vectorised form cannot be divided among %s, copies are stepped", source, whom)
    elif is_tensor_env(source):
        raise ConfigurationError(_TENSORS.format(type(source).__name__, whom))
    elif callable(source):
        made = with_arguments(source, 1, options)()
        if callable(getattr(made, "close", None)):  # PettingZoo's may lack it
            made.close()
        if is_tensor_env(made):
            raise ConfigurationError(_TENSORS.format(type(made).__name__, whom))
        if isinstance(made, VectorEnv):
            raise ConfigurationError(
                f"the function made a {type(made).__name__}, which is seeded as a whole and cannot be divided among "
                f"{whom}: let it make one environment, or use distributed='local'"
            )
    return replace(options, vectorization="sync")


def require_shareable(agent: AnyAgent) -> None:
    """Refuse an agent that several learners cannot update together.

    Raises:
        ConfigurationError: with the remedy.
    """
    for each in agents_of(agent):
        require_same_everywhere(*each.modules)
    if has_state(agent.own.get("loss")):
        raise ConfigurationError(
            "a loss with a state (state_dict) cannot be shared by several learners, which each see other rows: use "
            "distributed='local'"
        )
