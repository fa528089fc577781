"""Estimates the memory that a configuration needs, for errors."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch

from hybridppo.agents.common.memory import host_memory, readable
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.distributions.of_space import distribution_for
from hybridppo.errors import OutOfMemoryError
from hybridppo.networks.convolutions import CONVOLUTIONS
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import ImageLayout

_FLOAT = 4


def memory_needs(
    config: PPOConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, num_agents: int = 1
) -> dict[str, int]:
    """Estimated bytes by purpose, with the fields to lower.

    Args:
        config: the settings.
        observation_space: space of one environment, or of an agent.
        action_space: space of one environment, or of an agent.
        num_agents: agents of an environment that have this policy.
    """
    encode, outputs = ObservationEncoder(observation_space), distribution_for(action_space).output_size
    images, observation = encode.layout.images, encode.size * encode.dtype.itemsize
    convolutions = [_of_convolutions(config, image) for image in images]
    widths = (encode.layout.num_numbers + sum(given for _, _, given in convolutions), *config.hidden_sizes)
    hidden = sum(a * b + b for a, b in zip(widths, config.hidden_sizes, strict=False))
    activations = sum(config.hidden_sizes)
    if config.recurrent is not None:  # gates, their terms, and the states
        activations += 10 * config.recurrent_size
    at_once = activations  # the critic's for a whole rollout at once
    for parameters, outputs_of_layers, _ in convolutions:
        hidden += parameters
        activations += outputs_of_layers
        at_once = 0  # parts as large as a minibatch
    stored = observation if encode.frames is None else observation // encode.frames.num_frames
    kept = num_agents * config.batch_size * (stored + _FLOAT * (3 * outputs + 4 + at_once))
    if config.use_sde:  # a matrix for each row of noise
        rows = 1 if config.sde_sample_freq == -1 else -(-config.num_steps // config.sde_sample_freq)
        kept += num_agents * config.num_envs * rows * _FLOAT * config.hidden_sizes[-1] * (outputs // 2)
    pooled = "" if config.pool_size == 1 else " * pool_size"
    parameters = 2 * hidden + (widths[-1] + 1) * (outputs + 1)
    return {
        # values, gradients, and both of Adam's moments
        "the networks (hidden_sizes)": 4 * _FLOAT * parameters,
        # observations; outputs, noise, actions; activations
        f"{'rollouts' if pooled else 'a rollout'} (num_envs * num_steps{pooled})": config.pool_size * kept,
        # both networks, forward and backward
        f"a minibatch (num_envs * num_steps{pooled} / num_minibatches)": config.pool_size
        * num_agents
        * config.minibatch_size
        * (observation + 4 * _FLOAT * activations),
    }


def _of_convolutions(config: PPOConfig, image: ImageLayout) -> tuple[int, int, int]:
    """The size of an image's convolutions: parameters, activations of a row, and features."""
    module, num_features = CONVOLUTIONS[config.convolutions](image, torch.Generator())
    sizes = [image.channels * image.height * image.width]
    for layer in module.modules():
        if not list(layer.children()) and not isinstance(layer, torch.nn.ReLU):  # keeps nothing of its own
            layer.register_forward_hook(lambda _, __, given: sizes.append(given.numel()))
    module.to_empty(device="meta")  # without memory
    module(torch.empty(1, image.channels, image.height, image.width, device="meta"))
    return sum(parameter.numel() for parameter in module.parameters()), sum(sizes), num_features


def require_memory(
    policies: Sequence[tuple[PPOConfig, int, gym.Space[Any], gym.Space[Any]]], *, learns_on_host: bool = True
) -> None:
    """Refuse a training of many agents whose rollouts and minibatches do not fit into the free memory.

    Args:
        policies: for each policy, the configuration, the number of its agents in an environment, their observation
            space and their action space.
        learns_on_host: whether minibatches are in the same memory.

    Raises:
        OutOfMemoryError: with the memory that is needed, that is free, and the fields to lower.
    """
    needs: dict[str, int] = {}
    for config, num_agents, observation_space, action_space in policies:
        for what, size in memory_needs(config, observation_space, action_space, num_agents=num_agents).items():
            if learns_on_host or not what.startswith("a minibatch"):
                needs[what] = needs.get(what, 0) + size
    free, needed = host_memory(), sum(needs.values())
    if free is not None and needed > free:
        sizes = ", ".join(f"{what} {readable(size)}" for what, size in needs.items())
        num_agents = sum(count for _, count, _, _ in policies)
        raise OutOfMemoryError(
            f"this training needs about {readable(needed)} of memory, and {readable(free)} are free: with {num_agents} "
            f"agents in each environment, {sizes}. Lower num_envs or num_steps first"
        )
