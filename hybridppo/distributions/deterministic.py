"""Actions of a deterministic actor: squashed by tanh, with exploration noise. Workers use this file without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.distributions.base import Distribution, namespace_of
from hybridppo.distributions.gaussian import BoxDistribution, center_and_half_width
from hybridppo.errors import EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import can_be_scaled_to
from hybridppo.system.validation import whole

if TYPE_CHECKING:
    from torch import Tensor


class Exploration(Distribution):
    """Actions of an off-policy agent: the noise may depend on how many steps it was drawn for, as in a warm-up."""

    size: int = 0
    """Random numbers that a target takes, and numbers of an action that critics see."""
    warmup: float = 0
    """Steps of the warm-up, of all environments together; 0 for `act`."""
    drawn = 0
    """Steps that noise was drawn for, of all environments together. It is saved, so that a resumed run draws the same
    noise."""

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        return {"drawn": self.drawn}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            ValueError: if the state is invalid.
        """
        self.drawn = whole(state, "drawn")


class DeterministicActions(Exploration, BoxDistribution):
    """`tanh` of an actor's outputs, for `Box` spaces with finite bounds: actions from -1 to 1, scaled to the bounds.

    A row of noise is `[d + 1]`. Its last number multiplies the action before the noise is added: with 1, the noise is
    added to the action; with 0, as during warm-up, the noise is the action. Sums are clipped to -1 and 1.

    Args:
        low: lower bounds of the space.
        high: upper bounds of the space.
        dtype: type of the space.
        std: standard deviation of Gaussian noise.
        warmup: steps with uniform actions, of all environments together.
    """

    def __init__(
        self, low: Array, high: Array, dtype: Any = np.float32, *, std: float = 0.0, warmup: float = 0
    ) -> None:
        super().__init__(low, high, dtype)
        self.output_size, self.noise_size, self.std, self.warmup = self.size, self.size + 1, std, warmup
        self.center, self.half_width = center_and_half_width(low, high)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """The noise of the next steps, `[*shape, d + 1]`; during warm-up, of `[T, N]` of them."""
        noise = np.ones((*shape, self.noise_size), np.float32)
        noise[..., :-1] = generator.standard_normal((*shape, self.size), dtype=np.float32)
        noise[..., :-1] *= np.float32(self.std)
        if self.warmup > self.drawn:
            num_uniform = min(shape[0], math.ceil((self.warmup - self.drawn) / shape[1]))
            uniform = generator.random((num_uniform, shape[1], self.size), dtype=np.float32)
            noise[:num_uniform, :, :-1] = 2 * uniform - 1
            noise[:num_uniform, :, -1] = 0.0
        self.drawn += math.prod(shape)
        return noise

    def sample(self, outputs: Array, noise: Array) -> Array:
        """`tanh(outputs)` plus noise, clipped to -1 and 1."""
        actions = np.tanh(outputs)
        actions *= noise[..., -1:]
        actions += noise[..., :-1]
        return np.clip(actions, np.float32(-1.0), np.float32(1.0), out=actions)

    def mode(self, outputs: Array) -> Array:
        """The actor's actions without noise."""
        return namespace_of(outputs).tanh(outputs)

    def _scaled(self, actions: Any) -> Any:
        return self.center + self.half_width * actions

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros: no agent learns from the density of these actions."""
        return outputs.new_zeros(outputs.shape[:-1]), outputs.new_zeros(outputs.shape[:-1])

    def on(self, device: Any) -> Self:  # noqa: D102 - as in the base
        raise EnvError(f"actions of a {type(self).__name__} cannot be drawn on tensors: train PPO (PPOConfig)")


def deterministic_actions(space: gym.Space[Any], *, std: float, warmup: float = 0) -> DeterministicActions:
    """The actions of a deterministic actor in `space`.

    Raises:
        EnvError: if the space is not a `Box` of floating-point numbers with finite bounds.
    """
    wanted = "a deterministic actor (DDPG, TD3) needs a Box of floating-point numbers"
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise EnvError(f"the action space {space} is not supported: {wanted}. Use PPO for other spaces")
    if not can_be_scaled_to(space.low, space.high):
        raise EnvError(
            f"the action space {space} is not supported: {wanted} between finite bounds, which float32 can hold: "
            "its actions are scaled to them. Use gymnasium.wrappers.RescaleAction, or PPO"
        )
    return DeterministicActions(space.low, space.high, space.dtype, std=std, warmup=warmup)
