"""What a configuration takes of a device's memory, for the message when there is none left."""

import contextlib
from collections.abc import Iterator

import torch

from hybridppo.agents.ppo_config import PPOConfig
from hybridppo.errors import OutOfMemoryError

_FLOAT = 4
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "Storage size calculation")
"""What torch writes where it raises a bare RuntimeError for want of memory: CPU, Windows, CUDA and its libraries."""


def memory_needs(config: PPOConfig, inputs: int, outputs: int) -> dict[str, int]:
    """Bytes by what needs them, roughly, each named with the fields to lower.

    Args:
        config: the sizes.
        inputs: numbers in an observation.
        outputs: numbers that the actor gives.
    """
    widths = (inputs, *config.hidden_sizes)
    hidden = sum(a * b + b for a, b in zip(widths, config.hidden_sizes, strict=False))
    parameters = 2 * hidden + (widths[-1] + 1) * (outputs + 1)
    activations = sum(config.hidden_sizes)
    return {
        # values, gradients, and both of Adam's moments
        "the networks (hidden_sizes)": 4 * _FLOAT * parameters,
        # observations, outputs, noise, actions; then the critic's activations, all rows at once
        "a rollout (num_envs * num_steps)": _FLOAT * config.batch_size * (inputs + 3 * outputs + 4 + activations),
        # of both networks, forward and backward
        "a minibatch (num_envs * num_steps / num_minibatches)": _FLOAT
        * config.minibatch_size
        * (inputs + 4 * activations),
    }


@contextlib.contextmanager
def explaining_memory(config: PPOConfig, inputs: int, outputs: int) -> Iterator[None]:
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
        needs = memory_needs(config, inputs, outputs)
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
