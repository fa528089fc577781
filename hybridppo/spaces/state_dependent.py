"""Exploration that depends on the state: a matrix of noise, kept for many steps, through the actor's last hidden layer.

Source: Raffin, Kober and Stulp, "Smooth Exploration for Robotic Reinforcement Learning", 2021 (gSDE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.base import Distribution
from hybridppo.spaces.gaussian import DiagonalGaussian

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]

VARIANCE_EPSILON = 1e-6
"""Added to the variance of an action, as in stable-baselines3: it is none where the last hidden layer is all zeros."""


@dataclass(frozen=True)
class ExplorationLayout:
    """How large a matrix of noise is, and for how long it is kept."""

    num_features: int
    """`L`, the width of the actor's last hidden layer."""
    sample_freq: int
    """Steps of a rollout that a matrix is kept for; -1 for the whole rollout."""


class StateDependentGaussian:
    """Normals around a mean, whose deviations depend on the state: what is added is `features @ matrix`.

    The entries of a matrix `[L, d]` are independent normals of deviation `exp(log_std[l, i])`, so that given the
    features, action `i` is a normal of variance `sum over l of features[l]^2 * exp(2 * log_std[l, i]) + 1e-6`. Its
    outputs are means and the logarithms of these deviations, `[..., 2 * d]`: log-probability, entropy and bounds are
    those of the plain form. (Within a matrix's steps, the noise of one step and the next is the same function of the
    state; the log-probability is that of each step by itself, as published.)

    A row of noise is a matrix for each environment, and is drawn for `sample_freq` steps at once. An actor scales and
    applies it (`explore`, `perturbation`), for only that knows features and `log_std`.

    Args:
        normal: the plain form, clipped or squashed.
        layout: of a matrix.
    """

    mask_size = free_size = 0

    def __init__(self, normal: DiagonalGaussian, layout: ExplorationLayout) -> None:
        self.normal, self.sample_freq = normal, layout.sample_freq
        self.size = normal.size
        self.output_size, self.noise_size = normal.output_size, layout.num_features * normal.size
        self.action_shape, self.action_dtype = normal.action_shape, normal.action_dtype

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normals, a matrix `[d, L]` each, flat: `[*shape, d * L]`."""
        return generator.standard_normal((*shape, self.noise_size), dtype=np.float32)

    def noise_row(self, step: int) -> int:
        """Of which row of noise a step of a rollout is."""
        return step // self.sample_freq if self.sample_freq > 0 else 0

    def sample(self, outputs: Array, noise: Array) -> Array:
        """`mean + perturbation`, where the noise is what an actor has made of a matrix, `[..., d]`."""
        actions: Array = outputs[..., : self.size] + noise
        return actions

    def mode(self, outputs: Array) -> Array:
        """The mean."""
        return self.normal.mode(outputs)

    def to_env(self, actions: Array) -> Array:
        """As the plain form."""
        return self.normal.to_env(actions)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """As the plain form."""
        return self.normal.log_prob(outputs, actions)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """As the plain form."""
        return self.normal.log_prob_and_entropy(outputs, actions)


def noise_row(distribution: Distribution, step: int) -> int:
    """Of which row of a rollout's noise a step is: of its own, but where one is kept for many."""
    return distribution.noise_row(step) if isinstance(distribution, StateDependentGaussian) else step


def noise_rows(distribution: Distribution, num_steps: int) -> int:
    """How many rows of noise so many steps take."""
    return noise_row(distribution, num_steps - 1) + 1 if num_steps else 0


class Exploration:
    """Hands an actor its noise when that is due, in the steps of one rollout.

    An actor that explores has `explore`, which takes noise for its next calls, `[N, d * L]`, and `perturbation`,
    `[N, d]`, what that has added in the last one.

    Args:
        distribution: of the actions.
        noise: of the rollout, `[rows, N, d * L]`.
    """

    def __init__(self, distribution: StateDependentGaussian, noise: Array) -> None:
        self._distribution, self._noise = distribution, noise
        self._row = -1

    def before(self, step: int, actor: Any) -> None:
        """Before it acts in a step."""
        row = self._distribution.noise_row(step)
        if row != self._row:
            actor.explore(self._noise[row])
            self._row = row

    def of(self, actor: Any) -> Array:
        """What it has added in its last call."""
        perturbation: Array = actor.perturbation
        return perturbation


def exploration_of(distribution: Distribution, noise: Array) -> Exploration | None:
    """What hands out the noise of a rollout; None where each step has its own row of it."""
    return Exploration(distribution, noise) if isinstance(distribution, StateDependentGaussian) else None


class Drawing:
    """Actions at random in one step after the other, with noise that is drawn when it is due.

    Args:
        distribution: of the actions.
        generator: of the noise.
        num_envs: `N`.
    """

    def __init__(self, distribution: Distribution, generator: np.random.Generator, num_envs: int) -> None:
        self._distribution, self._generator, self._shape = distribution, generator, (num_envs,)
        self._step, self._row = 0, -1

    def actions(self, actor: Any, observations: Array) -> Array:
        """For the next observations, `[N, *row]`."""
        distribution, row = self._distribution, noise_row(self._distribution, self._step)
        self._step += 1
        if not isinstance(distribution, StateDependentGaussian):
            return distribution.sample(actor(observations), distribution.draw_noise(self._generator, self._shape))
        if row != self._row:
            actor.explore(distribution.draw_noise(self._generator, self._shape))
            self._row = row
        outputs = actor(observations)
        return distribution.sample(outputs, actor.perturbation)
