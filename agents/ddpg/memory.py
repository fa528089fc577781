"""Estimates the memory that a configuration of DDPG or TD3 needs."""

from itertools import pairwise
from typing import Any

import gymnasium as gym

from hybridppo.agents.common.memory import host_memory, readable
from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.distributions.deterministic import deterministic_actions
from hybridppo.errors import OutOfMemoryError
from hybridppo.spaces.observations import ObservationEncoder

_FLOAT = 4


def buffer_bytes(config: DDPGConfig, observation: int, action: int) -> int:
    """Bytes of the replay buffer, for observations and actions of so many numbers."""
    # observation and next observation, action, reward; two flags with them, and one on the host
    return config.buffer_size * (_FLOAT * (2 * observation + action + 1) + 3)


def memory_needs(config: DDPGConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, int]:
    """Estimated bytes by purpose, with the fields to lower; spaces are those of one environment."""
    observation = ObservationEncoder(observation_space).size
    action = deterministic_actions(action_space, std=0.0).size

    def weights(inputs: int, outputs: int) -> int:
        sizes = (inputs, *config.hidden_sizes, outputs)
        return sum((a + 1) * b for a, b in pairwise(sizes))

    parameters = weights(observation, action) + config.num_critics * weights(observation + action, 1)
    activations = (1 + config.num_critics) * sum(config.hidden_sizes)
    return {
        # values, gradients, both of Adam's moments, target networks
        "the networks (hidden_sizes)": 5 * _FLOAT * parameters,
        "the replay buffer (buffer_size)": buffer_bytes(config, observation, action),
        # forward and backward
        "a minibatch (batch_size)": config.batch_size * _FLOAT * (3 * observation + 4 * activations),
    }


def require_memory(config: DDPGConfig, observation: int, action: int, num_envs: int) -> None:
    """Refuse a replay buffer larger than the machine's free memory: systems promise memory that they do not have.

    Args:
        config: of the agent.
        observation: numbers of an observation.
        action: numbers of an action.
        num_envs: environments of this buffer.

    Raises:
        OutOfMemoryError: with the free memory, and the size that would fit.
    """
    needed, free = buffer_bytes(config, observation, action) * num_envs // config.num_envs, host_memory()
    if free is not None and needed > free:
        fits = config.buffer_size * free // needed
        raise OutOfMemoryError(
            f"a replay buffer of {config.buffer_size} transitions takes {readable(needed)}, and the machine has "
            f"{readable(free)} free: lower buffer_size (--buffer-size), to {fits} at most"
        )
