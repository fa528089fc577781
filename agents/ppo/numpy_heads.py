"""The last layers of an actor, with what follows from its distribution, written out by hand in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import PackedBatch
from hybridppo.networks.numpy_forms.actor import FORBIDDEN

Array = NDArray[Any]


class CategoricalHead:
    """Last layer and softmax of an actor with discrete actions. Logits are kept transposed, `[A, B]`: reductions over
    few actions are far faster along the first axis.
    """  # noqa: D205

    def __init__(self, layer: nn.Linear, has_mask: bool) -> None:
        self._weight, self._bias = array_of(layer.weight), array_of(layer.bias)[:, None]
        self._weight_gradient = array_of(gradient_of(layer.weight))
        self._bias_gradient = array_of(gradient_of(layer.bias))
        self._has_mask = has_mask
        self._choices = np.arange(len(self._weight))[:, None]

    def forward(self, last: Array, rows: "PackedBatch") -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        logits = np.dot(self._weight, last.T)
        logits += self._bias
        if self._has_mask:
            logits[rows.observations.T[-len(logits) :] == 0.0] = FORBIDDEN
        logits -= np.maximum.reduce(logits)
        exponentials = np.exp(logits)
        totals = np.add.reduce(exponentials)
        self._log_probs = logits - np.log(totals)
        self._probs = exponentials / totals
        self._chosen = self._choices == rows.actions
        self._entropy = -np.add.reduce(self._probs * self._log_probs)
        return np.add.reduce(self._chosen * self._log_probs), self._entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, last: Array, out: Array) -> None:
        """Fill the layer's gradients, and that of `last` into `out`."""
        # d log p[a] / d logit[k] = [k = a] - p[k];  d H / d logit[k] = -p[k] * (log p[k] + H)
        d_logits = d_log_prob * (self._chosen - self._probs)
        if d_entropy:
            d_logits -= d_entropy * self._probs * (self._log_probs + self._entropy)
        np.dot(d_logits, last, out=self._weight_gradient)
        np.add.reduce(d_logits, axis=1, out=self._bias_gradient)
        np.dot(d_logits.T, self._weight, out=out)


class GaussianHead:
    """Last layer and log standard deviations of an actor with continuous actions, kept transposed likewise."""

    def __init__(self, layer: nn.Linear, log_std: Tensor) -> None:
        self._weight, self._bias = array_of(layer.weight), array_of(layer.bias)[:, None]
        self._weight_gradient = array_of(gradient_of(layer.weight))
        self._bias_gradient = array_of(gradient_of(layer.bias))
        self._log_std, self._log_std_gradient = array_of(log_std)[:, None], array_of(gradient_of(log_std))
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * len(self._log_std))

    def forward(self, last: Array, rows: "PackedBatch") -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        mean = np.dot(self._weight, last.T)
        mean += self._bias
        self._precision = np.exp(-self._log_std)
        self._noise = (rows.actions.T - mean) * self._precision
        log_scale = self._log_std.sum()
        log_prob = -0.5 * (self._noise * self._noise).sum(0) - (log_scale + self._constant)
        entropy = np.full(len(last), log_scale + self._constant + 0.5 * len(self._log_std), np.float32)
        return log_prob, entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, last: Array, out: Array) -> None:
        """Fill the layer's gradients, and that of `last` into `out`."""
        # d log p / d mean = noise / std;  d log p / d log_std = noise^2 - 1;  d H / d log_std = 1
        weighted = d_log_prob * self._noise
        d_mean = weighted * self._precision
        self._log_std_gradient[:] = (weighted * self._noise - d_log_prob).sum(1) + d_entropy * len(last)
        np.dot(d_mean, last, out=self._weight_gradient)
        np.add.reduce(d_mean, axis=1, out=self._bias_gradient)
        np.dot(d_mean.T, self._weight, out=out)


def gradient_of(parameter: Tensor) -> Tensor:
    """A parameter's gradient."""
    assert parameter.grad is not None  # a view of the flat gradient, made with it and never dropped
    return parameter.grad


def array_of(tensor: Tensor) -> Array:
    """The tensor's own memory."""
    array: Array = tensor.detach().numpy()
    return array
