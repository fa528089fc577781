"""State-dependent exploration: a noise matrix, kept for many steps, multiplies the actor's last hidden layer.

Source: Raffin, Kober and Stulp, "Smooth Exploration for Robotic Reinforcement Learning", 2021 (gSDE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Self

from hybridppo.distributions.base import Backward, Distribution
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.errors import EnvError
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


class StateDependentGaussian(Distribution):
    """Normal distributions whose deviations depend on the state: the action is the mean plus `features @ matrix`.

    The entries of a matrix `[L, d]` are independent normals with standard deviation `exp(log_std[l, i])`. Given the
    features, action `i` is therefore normal with variance `sum over l of features[l]^2 * exp(2 * log_std[l, i]) +
    1e-6`. Outputs are means and the logarithms of these deviations, `[..., 2 * d]`. Log-probability, entropy and bounds
    are those of the plain distribution `normal`. While a matrix is kept, the noise of its steps is one function of the
    state; the log-probability treats each step by itself, as published.

    A row of noise is a matrix for each environment, drawn for `sample_freq` steps at once. The actor scales and applies
    it, since only the actor knows features and `log_std`: its method `explore` takes the noise of its next calls,
    `[N, d * L]`, and its attribute `perturbation`, `[N, d]`, is the noise added in its last call.

    Args:
        normal: the plain distribution, clipped or squashed.
        layout: the layout of a matrix.
    """

    explores = True

    def __init__(self, normal: DiagonalGaussian, layout: ExplorationLayout) -> None:
        self.normal, self.sample_freq = normal, layout.sample_freq
        self.size = normal.size
        self.output_size, self.noise_size = normal.output_size, layout.num_features * normal.size
        self.action_shape, self.action_dtype = normal.action_shape, normal.action_dtype

    def noise_row(self, step: int) -> int:
        """The row of the matrix of a step."""
        return step // self.sample_freq if self.sample_freq > 0 else 0

    def sample(self, outputs: Any, noise: Any) -> Any:
        """`mean + perturbation`; the noise is the actor's perturbation, `[..., d]`."""
        return outputs[..., : self.size] + noise

    def mode(self, outputs: Any) -> Any:  # noqa: D102 - as of the plain form
        return self.normal.mode(outputs)

    def to_env(self, actions: Any) -> Any:  # noqa: D102
        return self.normal.to_env(actions)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        return self.normal.log_prob_and_entropy(outputs, actions)

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:  # noqa: D102
        return self.normal.kl(old_outputs, new_outputs)

    @property
    def has_gradient(self) -> bool:  # type: ignore[override]
        """False for squashed actions."""
        return type(self.normal) is DiagonalGaussian

    def gradient(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array, Backward]:
        """As in the base; the last layer's input learns through the means only."""
        constant, half = np.float32(0.5 * np.log(2.0 * np.pi) * self.size), np.float32(0.5 * self.size)
        squares, entries = last * last, np.exp(np.float32(2.0) * free)
        variance = np.dot(entries, squares.T)  # [d, B]
        variance += np.float32(VARIANCE_EPSILON)
        precision = np.float32(1.0) / np.sqrt(variance)
        noise = (actions - outputs) * precision
        log_scale = np.float32(0.5) * np.log(variance).sum(0)
        log_prob = np.float32(-0.5) * (noise * noise).sum(0) - log_scale - constant

        def backward(d_log_prob: Array, d_entropy: Any, d_free: Array) -> Array:
            # d log p / d mean = noise / std;  d log p / d log std = noise^2 - 1;  d H / d log std = 1
            weighted = d_log_prob * noise
            # log std = log(variance) / 2, and d variance / d log_std[i, l] = 2 * last[l]^2 * exp(2 * log_std[i, l])
            d_log_std = weighted * noise - d_log_prob + d_entropy
            np.dot(d_log_std / variance, squares, out=d_free)
            d_free *= entries
            return weighted * precision

        return log_prob, log_scale + (constant + half), backward

    def on(self, device: Any) -> Self:  # noqa: D102 - as in the base
        raise EnvError("actions of a StateDependentGaussian cannot be drawn on tensors: leave use_sde out")
