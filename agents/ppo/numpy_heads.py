"""The last layer of an actor and the gradient of its distribution, written out by hand in NumPy.

Each distribution has a class here with its log-probabilities and entropies (`forward`) and their gradients
(`backward`). Arrays are transposed, `[outputs, B]`: reductions over few outputs are far faster along the first axis.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical, MultiCategorical
from hybridppo.distributions.gaussian import DiagonalGaussian, SquashedGaussian, log_slope, quadrature
from hybridppo.distributions.joint import JointDistribution
from hybridppo.distributions.state_dependent import VARIANCE_EPSILON, StateDependentGaussian
from hybridppo.networks.actors import GaussianActor, StateDependentActor
from hybridppo.networks.numpy_forms.actor import FORBIDDEN
from hybridppo.spaces.arrays import Array


class Gradient(Protocol):
    """The gradient of a distribution."""

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies `[B]`.

        Args:
            outputs: the network's outputs, `[n, B]`; may be overwritten.
            free: the outputs that do not depend on observations, `[d, 1]`; with state-dependent noise, `[d, L]`.
            actions: `[B]`, or `[*action, B]`.
            last: the input of the last layer, `[B, L]`.
        """

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of `outputs`, `[n, B]`; that of `free` is written into `d_free`, of its shape."""


class ActorHead:
    """The last layer of an actor, the outputs that do not depend on observations, and the distribution.

    Args:
        actor: the actor.
        layer: its last layer.
        distribution: distribution of the actions.
        mask_size: how many of the last numbers of a row are a mask of the first outputs.
        gradient_of: returns the array for the gradient of a parameter.
    """

    def __init__(
        self,
        actor: nn.Module,
        layer: nn.Linear,
        distribution: Distribution,
        mask_size: int,
        gradient_of: Callable[[Tensor], Array],
    ) -> None:
        self._weight, self._bias = array_of(layer.weight), array_of(layer.bias)[:, None]
        self._weight_gradient = gradient_of(layer.weight)
        self._bias_gradient = gradient_of(layer.bias)
        self._free, self._free_gradient = np.zeros((0, 1), np.float32), np.zeros(0, np.float32)
        if isinstance(actor, (GaussianActor, StateDependentActor)):
            log_std = array_of(actor.log_std)
            self._free = log_std[:, None] if log_std.ndim == 1 else log_std
            self._free_gradient = gradient_of(actor.log_std)
        self._mask_size = mask_size
        self._gradient: Gradient = GRADIENTS[type(distribution)](distribution)

    def forward(self, last: Array, rows: Any) -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        outputs = np.dot(self._weight, last.T)
        outputs += self._bias
        if self._mask_size:
            outputs[: self._mask_size][rows.observations.T[-self._mask_size :] == 0.0] = FORBIDDEN
        return self._gradient.forward(outputs, self._free, rows.actions.T, last)

    def backward(self, d_log_prob: Array, d_entropy: np.float32, last: Array, out: Array) -> None:
        """Fill the gradients of the layer, and write that of `last` into `out`."""
        d_outputs = self._gradient.backward(d_log_prob, d_entropy, self._free_gradient)
        np.dot(d_outputs, last, out=self._weight_gradient)
        np.add.reduce(d_outputs, axis=1, out=self._bias_gradient)
        np.dot(d_outputs.T, self._weight, out=out)


class CategoricalGradient:
    """Gradient of a softmax."""

    def __init__(self, distribution: Categorical) -> None:
        self._choices = np.arange(distribution.output_size)[:, None]

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies."""
        outputs -= np.maximum.reduce(outputs)
        exponentials = np.exp(outputs)
        totals = np.add.reduce(exponentials)
        self._log_probs = outputs - np.log(totals)
        self._probs = exponentials / totals
        self._chosen = self._choices == actions
        self._entropy = -np.add.reduce(self._probs * self._log_probs)
        return np.add.reduce(self._chosen * self._log_probs), self._entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of the logits."""
        # d log p[a] / d logit[k] = [k = a] - p[k];  d H / d logit[k] = -p[k] * (log p[k] + H)
        d_logits: Array = d_log_prob * (self._chosen - self._probs)
        if d_entropy:
            d_logits -= d_entropy * self._probs * (self._log_probs + self._entropy)
        return d_logits


class MultiCategoricalGradient:
    """Gradient of several choices: consecutive choices of equal size are softmaxes along one axis."""

    def __init__(self, distribution: MultiCategorical) -> None:
        self._runs = distribution.runs
        self._size = distribution.output_size

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies, summed over the choices."""
        self._kept: list[tuple[Array, Array, Array, Array]] = []
        log_prob, entropy = np.zeros(outputs.shape[1], np.float32), np.zeros(outputs.shape[1], np.float32)
        for count, n, logits, chosen in self._runs:
            # [count * n, B] -> [n, count, B]
            table = outputs[logits].reshape(count, n, -1).swapaxes(0, 1)
            table = table - np.maximum.reduce(table)
            exponentials = np.exp(table)
            totals = np.add.reduce(exponentials)
            log_probs, probs = table - np.log(totals), exponentials / totals
            picked = np.arange(n)[:, None, None] == actions[chosen]
            entropies = -np.add.reduce(probs * log_probs)
            self._kept.append((log_probs, probs, picked, entropies))
            log_prob += np.add.reduce(picked * log_probs).sum(0)
            entropy += entropies.sum(0)
        return log_prob, entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of the logits, as for a single choice."""
        d_logits = np.empty((self._size, len(d_log_prob)), np.float32)
        for (count, n, logits, _), (log_probs, probs, picked, entropies) in zip(self._runs, self._kept, strict=True):
            d_table = d_log_prob * (picked - probs)
            if d_entropy:
                d_table -= d_entropy * probs * (log_probs + entropies)
            d_logits[logits] = d_table.swapaxes(0, 1).reshape(count * n, -1)
        return d_logits


class GaussianGradient:
    """Gradient of independent normals, whose deviations do not depend on observations."""

    def __init__(self, distribution: DiagonalGaussian) -> None:
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * distribution.size)

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies."""
        self._precision = np.exp(-free)
        self._noise = (actions - outputs) * self._precision
        log_scale = free.sum()
        log_prob = -0.5 * (self._noise * self._noise).sum(0) - (log_scale + self._constant)
        entropy = np.full(outputs.shape[1], log_scale + self._constant + 0.5 * len(free), np.float32)
        return log_prob, entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of the means and of the log standard deviations."""
        # d log p / d mean = noise / std;  d log p / d log_std = noise^2 - 1;  d H / d log_std = 1
        weighted = d_log_prob * self._noise
        d_mean: Array = weighted * self._precision
        d_free[:] = (weighted * self._noise - d_log_prob).sum(1) + d_entropy * weighted.shape[1]
        return d_mean


class StateDependentGradient:
    """Gradient of normals whose variances are linear in the squares of the last layer's input."""

    def __init__(self, distribution: StateDependentGaussian) -> None:
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * distribution.size)
        self._half = np.float32(0.5 * distribution.size)

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies."""
        self._squares = last * last
        self._entries = np.exp(np.float32(2.0) * free)
        self._variance = np.dot(self._entries, self._squares.T)  # [d, B]
        self._variance += np.float32(VARIANCE_EPSILON)
        self._precision = np.float32(1.0) / np.sqrt(self._variance)
        self._noise = (actions - outputs) * self._precision
        log_scale = np.float32(0.5) * np.log(self._variance).sum(0)
        log_prob = np.float32(-0.5) * (self._noise * self._noise).sum(0) - log_scale - self._constant
        return log_prob, log_scale + (self._constant + self._half)

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of the means and of `log_std`; the last layer's input learns through the means only."""
        # d log p / d mean = noise / std;  d log p / d log std = noise^2 - 1;  d H / d log std = 1
        weighted = d_log_prob * self._noise
        # log std = log(variance) / 2, and d variance / d log_std[i, l] = 2 * last[l]^2 * exp(2 * log_std[i, l])
        d_log_std = weighted * self._noise - d_log_prob + d_entropy
        np.dot(d_log_std / self._variance, self._squares, out=d_free)
        d_free *= self._entries
        d_mean: Array = weighted * self._precision
        return d_mean


class SquashedGradient:
    """Gradient of squashed normals. The log-probability changes by a constant, the entropy by a mean."""

    def __init__(self, distribution: SquashedGaussian) -> None:
        self._normal = GaussianGradient(distribution)
        self._constant = np.float32(distribution.log_half_widths)

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies."""
        log_prob, entropy = self._normal.forward(outputs, free, actions, last)
        points, self._weights = quadrature()
        # [d, B] -> [d, B, nodes]
        self._offsets = np.exp(free)[..., None] * points
        self._numbers = outputs[..., None] + self._offsets
        log_prob = log_prob - log_slope(actions).sum(0) - self._constant
        entropy = entropy + (log_slope(self._numbers) * self._weights).sum((0, 2)) + self._constant
        return log_prob, entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradient of the means and of the log standard deviations."""
        d_mean = self._normal.backward(d_log_prob, d_entropy, d_free)
        if d_entropy:
            # d log(1 - tanh(u)^2) / d u = -2 tanh(u), where u = mean + exp(log_std) * point
            slopes = d_entropy * np.float32(-2.0) * np.tanh(self._numbers) * self._weights
            d_mean = d_mean + slopes.sum(2)
            d_free += (slopes * self._offsets).sum((1, 2))
        return d_mean


class JointGradient:
    """Gradient of independent parts, each with its own outputs."""

    def __init__(self, distribution: JointDistribution) -> None:
        self._factors = distribution.factors
        parts = [factor.distribution for factor in self._factors]
        self._gradients: list[Gradient] = [GRADIENTS[type(part)](part) for part in parts]
        self._num_network = distribution.output_size - distribution.free_size

    def forward(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies, summed over the parts."""
        log_prob, entropy = np.zeros(outputs.shape[1], np.float32), np.zeros(outputs.shape[1], np.float32)
        for factor, gradient in zip(self._factors, self._gradients, strict=True):
            own = actions[factor.actions] if factor.distribution.action_shape else actions[factor.actions][0]
            own_free = free[self._free(factor.free)]
            own_log_prob, own_entropy = gradient.forward(outputs[factor.outputs], own_free, own, last)
            log_prob += own_log_prob
            entropy += own_entropy
        return log_prob, entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, d_free: Array) -> Array:
        """The gradients of all parts."""
        d_outputs = np.empty((self._num_network, len(d_log_prob)), np.float32)
        for factor, gradient in zip(self._factors, self._gradients, strict=True):
            d_own = gradient.backward(d_log_prob, d_entropy, d_free[self._free(factor.free)])
            d_outputs[factor.outputs] = d_own
        return d_outputs

    def _free(self, part: slice) -> slice:
        """The place of a part among the outputs that do not depend on observations."""
        return slice(part.start - self._num_network, part.stop - self._num_network)


GRADIENTS: dict[type, Any] = {
    Categorical: CategoricalGradient,
    MultiCategorical: MultiCategoricalGradient,
    DiagonalGaussian: GaussianGradient,
    SquashedGaussian: SquashedGradient,
    StateDependentGaussian: StateDependentGradient,
    JointDistribution: JointGradient,
}
"""Autograd is used for distributions that are not here."""


def has_gradient(distribution: Distribution) -> bool:
    """Whether the gradients of a distribution and of all its parts are here."""
    if isinstance(distribution, JointDistribution):
        return all(has_gradient(factor.distribution) for factor in distribution.factors)
    if isinstance(distribution, StateDependentGaussian):
        return type(distribution.normal) is DiagonalGaussian
    return type(distribution) in GRADIENTS


def array_of(tensor: Tensor) -> Array:
    """The memory of a tensor as an array."""
    array: Array = tensor.detach().numpy()
    return array
