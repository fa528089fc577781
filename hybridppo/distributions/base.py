"""The interface of an action distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor


class Distribution(Protocol):
    """The action distribution of an action space, as samplers and agents use it.

    An actor's outputs `[..., output_size]` are its network's outputs, `[..., output_size - free_size]`, followed by
    parameters that depend on no observation. The first `mask_size` outputs are logits, which a mask may forbid.
    """

    output_size: int
    """Size of an actor's output for one observation."""
    free_size: int
    """Number of outputs, the last ones, that depend on no observation: they are parameters of the actor."""
    mask_size: int
    """Number of outputs, the first ones, that are logits: the length of a mask."""
    noise_size: int
    """Random numbers that one action takes."""
    action_shape: tuple[int, ...]
    action_dtype: Any

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for a block of actions, `[*shape, noise_size]`."""

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Random actions `[..., *action_shape]` for `outputs` and noise of the same leading shape."""

    def mode(self, outputs: Array) -> Array:
        """The most probable actions."""

    def to_env(self, actions: Array) -> Any:
        """The actions `[N, *action_shape]` in the form that `step` of a vector environment takes."""

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The actions' log-probabilities `[...]`."""

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The result of `log_prob`, to the last bit, and the entropies in nats `[...]`."""
