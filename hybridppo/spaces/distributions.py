"""Action distributions: everything that follows from the kind of an environment's action space.

An actor maps observations `[..., obs]` to the distribution's parameters, its `outputs` `[..., output_size]`.
Choosing actions happens on the host in NumPy, once per environment step, where the overhead of a torch
operation would cost more than its work; probabilities and entropies are batched torch operations.
No `torch.distributions` object is made: at these sizes it costs more than the network.

The noise that makes actions random is drawn for a whole rollout at once and handed in, so that an action
depends on nothing but the outputs and its own slice of the noise: not on the device, nor on who samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import EnvError

if TYPE_CHECKING:
    from torch import Tensor


Array = NDArray[Any]

_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(Protocol):
    """What a sampler and an agent need to know of an action space."""

    output_size: int
    """How many numbers the actor gives per observation."""
    noise_size: int
    """How many random numbers an action takes."""
    action_shape: tuple[int, ...]
    action_dtype: Any

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for a block of actions, `[*shape, noise_size]`."""
        ...

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Random actions `[..., *action_shape]` for `outputs` and noise of the same leading shape."""
        ...

    def mode(self, outputs: Array) -> Array:
        """The most probable actions."""
        ...

    def to_env(self, actions: Array) -> Array:
        """What `step` of the environment takes for these actions `[N, *action_shape]`."""
        ...

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The actions' log-probabilities, and the distributions' entropies in nats, both `[...]`."""
        ...


class Categorical:
    """`n` choices numbered from `start`, for `Discrete` spaces. Outputs are logits `[..., n]`."""

    action_shape: tuple[int, ...] = ()
    action_dtype = np.int64

    def __init__(self, n: int, start: int = 0) -> None:
        self.output_size = self.noise_size = n
        self.start = start

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard Gumbel noise, `[*shape, n]`."""
        exponential = generator.standard_exponential((*shape, self.output_size), dtype=np.float32)
        # An exact zero would be an infinite Gumbel: not wrong, but its logarithm would warn.
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Gumbel-max: `argmax(logits + gumbel)` is distributed as `softmax(logits)`."""
        actions: Array = (outputs + noise).argmax(-1)
        return actions

    def mode(self, outputs: Array) -> Array:
        """The largest logit."""
        actions: Array = outputs.argmax(-1)
        return actions

    def to_env(self, actions: Array) -> Array:
        """Count from the space's own first number."""
        return actions + self.start if self.start else actions

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`log p[a]` and `-sum_a p[a] log p[a]`."""
        log_probs = outputs.log_softmax(-1)
        log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return log_prob, -(log_probs.exp() * log_probs).sum(-1)


class DiagonalGaussian:
    """Independent normals, for `Box` spaces. Outputs are means and log standard deviations `[..., 2 * d]`.

    The environment gets actions clipped to the bounds of its space (nothing is ever scaled by them, so
    they may be infinite); probabilities belong to the actions as drawn, as in CleanRL and
    stable-baselines3.
    """

    action_dtype = np.float32

    def __init__(self, low: Array, high: Array, dtype: Any = np.float32) -> None:
        self.shape = low.shape
        self.size = int(np.prod(low.shape))
        self.action_shape: tuple[int, ...] = (self.size,)
        self.output_size, self.noise_size = 2 * self.size, self.size
        self.low, self.high, self.dtype = low, high, dtype

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normal noise, `[*shape, d]`."""
        return generator.standard_normal((*shape, self.size), dtype=np.float32)

    def sample(self, outputs: Array, noise: Array) -> Array:
        """`mean + exp(log_std) * noise`."""
        actions: Array = outputs[..., : self.size] + np.exp(outputs[..., self.size :]) * noise
        return actions

    def mode(self, outputs: Array) -> Array:
        """The mean."""
        return outputs[..., : self.size]

    def to_env(self, actions: Array) -> Array:
        """Clip to the space's bounds and give back its shape and type."""
        shaped = actions.reshape(actions.shape[:-1] + self.shape)
        return np.clip(shaped, self.low, self.high).astype(self.dtype, copy=False)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the `d` independent dimensions."""
        mean, log_std = outputs[..., : self.size], outputs[..., self.size :]
        noise = (actions - mean) * (-log_std).exp()
        # log p = -noise^2 / 2 - log std - log sqrt(2 pi), summed over dimensions
        log_scale = log_std.sum(-1)
        log_prob = -0.5 * noise.square().sum(-1) - log_scale - self.size * _LOG_SQRT_TWO_PI
        # H = 1/2 + log sqrt(2 pi) + log std, likewise
        return log_prob, log_scale + self.size * (0.5 + _LOG_SQRT_TWO_PI)


def distribution_for(space: gym.Space[Any]) -> Categorical | DiagonalGaussian:
    """The distribution of actions in `space`.

    Raises:
        EnvError: for a space that is neither `Discrete` nor a floating-point `Box`.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return DiagonalGaussian(space.low, space.high, space.dtype)
    raise EnvError(f"the action space {space} is not supported: use Discrete, or a Box of floating-point numbers")
