"""What a configuration takes of a device's memory, for the message when there is none left."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import torch

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.errors import OutOfMemoryError
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.observations import ObservationEncoder

_FLOAT = 4

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "Storage size calculation")
"""What torch writes where it raises a bare RuntimeError for want of memory: CPU, Windows, CUDA and its libraries."""


def memory_needs(config: PPOConfig, encode: ObservationEncoder, outputs: int) -> dict[str, int]:
    """Bytes by what needs them, roughly, each named with the fields to lower.

    Args:
        config: the sizes.
        encode: of the observations.
        outputs: numbers that the actor gives.
    """
    images, observation = encode.layout.images, encode.size * encode.dtype.itemsize
    widths = (encode.layout.num_features, *config.hidden_sizes)
    hidden = sum(a * b + b for a, b in zip(widths, config.hidden_sizes, strict=False))
    activations = sum(config.hidden_sizes)
    at_once = activations  # the critic's for a rollout, all rows at once
    for image in images:
        channels = [size[2] for size in image.sizes]
        layers = zip(channels, image.convolutions, strict=False)
        hidden += sum(filters * (before * kernel**2 + 1) for before, (filters, kernel, _) in layers)
        activations += sum(math.prod(size) for size in image.sizes)
        at_once = 0  # as many rows as in a minibatch
    parameters = 2 * hidden + (widths[-1] + 1) * (outputs + 1)
    return {
        # values, gradients, and both of Adam's moments
        "the networks (hidden_sizes)": 4 * _FLOAT * parameters,
        # observations; outputs, noise, actions; activations
        "a rollout (num_envs * num_steps)": config.batch_size * (observation + _FLOAT * (3 * outputs + 4 + at_once)),
        # of both networks, forward and backward
        "a minibatch (num_envs * num_steps / num_minibatches)": config.minibatch_size
        * (observation + 4 * _FLOAT * activations),
    }


@contextlib.contextmanager
def explaining_memory(
    config: PPOConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> Iterator[None]:
    """Within it, the want of memory is an error that says what needs it and which field to lower.

    Raises:
        OutOfMemoryError: instead of torch's and NumPy's own.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_ours = isinstance(error, OutOfMemoryError)
        if is_ours or not (
            isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in str(error) for sign in _SIGNS)
        ):
            raise
        outputs = distribution_for(action_space).output_size
        needs = memory_needs(config, ObservationEncoder(observation_space), outputs)
        largest = max(needs, key=needs.__getitem__)
        sizes = ", ".join(f"{what} {_readable(size)}" for what, size in needs.items())
        said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OutOfMemoryError(
            f"out of memory: {said}. What the configuration needs, roughly: {sizes}. Lower first what "
            f"{largest} comes from"
        ) from error


def _readable(size: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}"
