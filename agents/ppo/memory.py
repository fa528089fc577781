"""What a configuration takes of a device's memory, for the message when there is none left."""

import math
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym

from hybridppo.agents.common.memory import explaining, host_memory, readable
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.errors import OutOfMemoryError
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.observations import ObservationEncoder

_FLOAT = 4


def memory_needs(
    config: PPOConfig, encode: ObservationEncoder, outputs: int, *, columns_per_env: int = 1
) -> dict[str, int]:
    """Bytes by what needs them, roughly, each named with the fields to lower.

    Args:
        config: the sizes.
        encode: of the observations.
        outputs: numbers that the actor gives.
        columns_per_env: agents of an environment that the policy acts for.
    """
    images, observation = encode.layout.images, encode.size * encode.dtype.itemsize
    widths = (encode.layout.num_features, *config.hidden_sizes)
    hidden = sum(a * b + b for a, b in zip(widths, config.hidden_sizes, strict=False))
    activations = sum(config.hidden_sizes)
    if config.recurrent is not None:  # gates, what they are made of, and the states
        activations += 10 * config.recurrent_size
    at_once = activations  # the critic's for a rollout, all rows at once
    for image in images:
        channels = [size[2] for size in image.sizes]
        layers = zip(channels, image.convolutions, strict=False)
        hidden += sum(filters * (before * kernel**2 + 1) for before, (filters, kernel, _) in layers)
        activations += sum(math.prod(size) for size in image.sizes)
        at_once = 0  # as many rows as in a minibatch
    kept = columns_per_env * config.batch_size * (observation + _FLOAT * (3 * outputs + 4 + at_once))
    pooled = "" if config.pool_size == 1 else " * pool_size"
    parameters = 2 * hidden + (widths[-1] + 1) * (outputs + 1)
    return {
        # values, gradients, and both of Adam's moments
        "the networks (hidden_sizes)": 4 * _FLOAT * parameters,
        # observations; outputs, noise, actions; activations
        f"{'rollouts' if pooled else 'a rollout'} (num_envs * num_steps{pooled})": config.pool_size * kept,
        # of both networks, forward and backward
        f"a minibatch (num_envs * num_steps{pooled} / num_minibatches)": config.pool_size
        * columns_per_env
        * config.minibatch_size
        * (observation + 4 * _FLOAT * activations),
    }


def explaining_memory(
    config: PPOConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> AbstractContextManager[None]:
    """Within it, the want of memory is an error that says what needs it and which field to lower.

    Raises:
        OutOfMemoryError: instead of torch's and NumPy's own.
    """

    def needs() -> dict[str, int]:
        outputs = distribution_for(action_space).output_size
        return memory_needs(config, ObservationEncoder(observation_space), outputs)

    return explaining(needs)


def require_memory(
    config: PPOConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, columns_per_env: int
) -> None:
    """Refuse a configuration whose rollouts and minibatches do not fit into what memory is free, before anything begins.

    Args:
        config: the sizes.
        observation_space: of one agent.
        action_space: of one agent.
        columns_per_env: agents of an environment that the policy acts for.

    Raises:
        OutOfMemoryError: with what is needed, what is free, and the fields to lower.
    """
    outputs = distribution_for(action_space).output_size
    needs = memory_needs(
        config, ObservationEncoder(observation_space), outputs, columns_per_env=columns_per_env
    )
    free, needed = host_memory(), sum(needs.values())
    if free is not None and needed > free:
        sizes = ", ".join(f"{what} {readable(size)}" for what, size in needs.items())
        raise OutOfMemoryError(
            f"this training needs about {readable(needed)} of memory, and {readable(free)} are free: with "
            f"{columns_per_env} agents in each environment, {sizes}. Lower num_envs or num_steps first"
        )
