"""Actions of a deterministic actor: squashed by tanh, with exploration noise. Workers use this file without torch."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.distributions.gaussian import BoxDistribution, center_and_half_width
from hybridppo.errors import EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import can_be_scaled_to

if TYPE_CHECKING:
    from torch import Tensor


class DeterministicActions(BoxDistribution):
    """`tanh` of an actor's outputs, for `Box` spaces with finite bounds: actions from -1 to 1, scaled to the bounds.

    A row of noise is `[d + 1]`. Its last number multiplies the action before the noise is added: with 1, the noise is
    added to the action; with 0, as during warm-up, the noise is the action. Sums are clipped to -1 and 1.

    Args:
        low: lower bounds of the space.
        high: upper bounds of the space.
        dtype: type of the space.
        std: standard deviation of Gaussian noise.
    """

    constants = ("low", "high", "center", "half_width")

    def __init__(self, low: Array, high: Array, dtype: Any = np.float32, *, std: float = 0.0) -> None:
        super().__init__(low, high, dtype)
        self.output_size, self.noise_size, self.std = self.size, self.size + 1, std
        self.center, self.half_width = center_and_half_width(low, high)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Gaussian noise for the actor's actions, `[*shape, d + 1]`."""
        noise = np.ones((*shape, self.noise_size), np.float32)
        noise[..., :-1] = generator.standard_normal((*shape, self.size), dtype=np.float32)
        noise[..., :-1] *= np.float32(self.std)
        return noise

    def sample(self, outputs: Array, noise: Array) -> Array:
        """`tanh(outputs)` plus noise, clipped to -1 and 1."""
        actions = np.tanh(outputs)
        actions *= noise[..., -1:]
        actions += noise[..., :-1]
        bounded: Array = np.clip(actions, np.float32(-1.0), np.float32(1.0), out=actions)
        return bounded

    def mode(self, outputs: Array) -> Array:
        """The actor's actions without noise."""
        actions: Array = np.tanh(outputs)
        return actions

    def _scaled(self, actions: Any) -> Any:
        return self.center + self.half_width * actions

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Zeros: no agent learns from the density of these actions."""
        return outputs.new_zeros(outputs.shape[:-1])

    def entropy(self, outputs: Tensor) -> Tensor:
        """Zeros."""
        return outputs.new_zeros(outputs.shape[:-1])

    def on(self, device: Any) -> Self:  # noqa: D102 - as in the base
        raise EnvError(f"actions of a {type(self).__name__} cannot be drawn on tensors: train PPO (PPOConfig)")


class GaussianExploration(DeterministicActions):
    """Exploration of a sampler: uniform actions during warm-up, then the actor's actions with noise drawn at each step.

    It counts the steps it has drawn noise for, so that a resumed run draws the same noise.

    Args:
        actions: the actions to explore.
        warmup: steps with uniform actions, of all environments together.
    """

    def __init__(self, actions: DeterministicActions, warmup: int) -> None:
        super().__init__(actions.low, actions.high, actions.dtype, std=actions.std)
        self.actions, self.output_size = actions, actions.output_size  # an agent of one's own may have other actions
        self.drawn = 0
        """Steps that noise was drawn for, of all environments together."""
        self._warmup: float = warmup

    def share(self, count: int) -> GaussianExploration:
        """The exploration of one of so many equal shares of the environments."""
        if count == 1:
            return self
        found = copy.copy(self)
        found._warmup, found.drawn = self._warmup / count, self.drawn // count
        return found

    def sample(self, outputs: Array, noise: Array) -> Array:  # noqa: D102 - as for the actions
        return self.actions.sample(outputs, noise)

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """The next block of `[T, N]` steps, `[T, N, d + 1]`."""
        num_steps, num_envs = shape
        noise = super().draw_noise(generator, shape)
        num_uniform = min(num_steps, max(0, math.ceil((self._warmup - self.drawn) / num_envs)))
        if num_uniform:
            uniform = generator.random((num_uniform, num_envs, self.size), dtype=np.float32)
            noise[:num_uniform, :, :-1] = 2 * uniform - 1
            noise[:num_uniform, :, -1] = 0.0
        self.drawn += num_steps * num_envs
        return noise

    def state(self) -> dict[str, Any]:
        """The state for `load_state`, as JSON."""
        return {"drawn": self.drawn}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            ValueError: if the state is invalid.
        """
        drawn = state["drawn"]
        if type(drawn) is not int or drawn < 0:
            raise ValueError(f"exploration has drawn {drawn!r} steps, which is no whole number")
        self.drawn = drawn


def deterministic_actions(space: gym.Space[Any], *, std: float) -> DeterministicActions:
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
    return DeterministicActions(space.low, space.high, space.dtype, std=std)
