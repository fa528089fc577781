"""State-dependent exploration: a noise matrix, kept for many steps, multiplies the actor's last hidden layer.

Source: Raffin, Kober and Stulp, "Smooth Exploration for Robotic Reinforcement Learning", 2021 (gSDE).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

VARIANCE_EPSILON = 1e-6
"""Added to the variance of an action, as in stable-baselines3, because the last hidden layer may be all zeros."""


@dataclass(frozen=True)
class ExplorationLayout:
    """The size of a noise matrix, and how long it is kept."""

    num_features: int
    """`L`, the width of the actor's last hidden layer."""
    sample_freq: int
    """Steps for which a matrix is kept; -1 for the whole rollout."""


class StateDependentGaussian:
    """Normal distributions whose deviations depend on the state: the action is the mean plus `features @ matrix`.

    The entries of a matrix `[L, d]` are independent normals with standard deviation `exp(log_std[l, i])`. Given the
    features, action `i` is therefore normal with variance `sum over l of features[l]^2 * exp(2 * log_std[l, i]) +
    1e-6`. Outputs are means and the logarithms of these deviations, `[..., 2 * d]`. Log-probability, entropy and bounds
    are those of the plain distribution `normal`. While a matrix is kept, the noise of its steps is one function of the
    state; the log-probability treats each step by itself, as published.

    A row of noise is a matrix for each environment, drawn for `sample_freq` steps at once. The actor scales and applies
    it (`explore`, `perturbation`), since only the actor knows features and `log_std`.

    Args:
        normal: the plain distribution, clipped or squashed.
        layout: the layout of a matrix.
    """

    mask_size = free_size = 0

    def __init__(self, normal: DiagonalGaussian, layout: ExplorationLayout) -> None:
        self.normal, self.sample_freq = normal, layout.sample_freq
        self.size = normal.size
        self.output_size, self.noise_size = normal.output_size, layout.num_features * normal.size
        self.action_shape, self.action_dtype = normal.action_shape, normal.action_dtype

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normal noise, each a flat matrix `[d, L]`: `[*shape, d * L]`."""
        return generator.standard_normal((*shape, self.noise_size), dtype=np.float32)

    def noise_row(self, step: int) -> int:
        """The row of noise that a step of a rollout uses."""
        return step // self.sample_freq if self.sample_freq > 0 else 0

    def sample(self, outputs: Array, noise: Array) -> Array:
        """`mean + perturbation`; the noise is the actor's perturbation, `[..., d]`."""
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
    """The row of a rollout's noise that a step uses: its own row, unless a matrix is kept for many steps."""
    return distribution.noise_row(step) if isinstance(distribution, StateDependentGaussian) else step


def noise_rows(distribution: Distribution, num_steps: int) -> int:
    """Number of rows of noise for `num_steps` steps."""
    return noise_row(distribution, num_steps - 1) + 1 if num_steps else 0


class Exploration:
    """Gives an actor its noise when it is due, step by step.

    An actor that explores has a method `explore`, which takes the noise of its next calls, `[N, d * L]`, and an
    attribute `perturbation`, `[N, d]`, the noise added in its last call.

    Args:
        distribution: the action distribution.
        noise: the noise of a row, `[N, d * L]`, by its number.
    """

    def __init__(self, distribution: StateDependentGaussian, noise: Callable[[int], Array]) -> None:
        self._distribution, self._noise = distribution, noise
        self._row = -1

    def before(self, step: int, actor: Any) -> None:
        """Called before the actor acts in a step."""
        row = self._distribution.noise_row(step)
        if row != self._row:
            actor.explore(self._noise(row))
            self._row = row

    def of(self, actor: Any) -> Array:
        """The noise that the actor added in its last call."""
        perturbation: Array = actor.perturbation
        return perturbation


def exploration_of(distribution: Distribution, noise: Callable[[int], Array]) -> Exploration | None:
    """The object that gives the actor its noise; None if each step has its own row of noise."""
    return Exploration(distribution, noise) if isinstance(distribution, StateDependentGaussian) else None


class Drawing:
    """Draws random actions step by step, with noise drawn when it is due.

    Args:
        distribution: the action distribution.
        generator: draws the noise.
        num_envs: `N`.
    """

    def __init__(self, distribution: Distribution, generator: np.random.Generator, num_envs: int) -> None:
        self._distribution, self._generator, self._shape = distribution, generator, (num_envs,)
        self._exploration, self._step = exploration_of(distribution, self._draw), 0

    def actions(self, actor: Any, observations: Array) -> Array:
        """Actions for the next observations, `[N, *row]`."""
        if self._exploration is None:
            return self._distribution.sample(actor(observations), self._draw(self._step))
        self._exploration.before(self._step, actor)
        self._step += 1
        outputs = actor(observations)
        return self._distribution.sample(outputs, self._exploration.of(actor))

    def _draw(self, row: int) -> Array:
        return self._distribution.draw_noise(self._generator, self._shape)
