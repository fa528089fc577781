"""The gradient steps of PPO written out by hand in NumPy, for MLPs on a CPU: equal to `AutogradSteps` up to rounding.

For small networks most of torch's time is overhead; for large ones, this form keeps a minibatch's activations in the
cache closest to a core.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.gradient_steps import STATISTICS, Batch
from hybridppo.distributions import Categorical, DiagonalGaussian
from hybridppo.interruption import Stopped
from hybridppo.networks import GaussianActor, is_on_cpu, linears, numpy_form
from hybridppo.numpy_mlp import FORBIDDEN, HiddenLayers
from hybridppo.precision import matmul
from hybridppo.threads import one_torch_thread

if TYPE_CHECKING:
    from hybridppo.agents.ppo import PPO

Array = NDArray[Any]


class NumpySteps:
    """Forward and backward passes in NumPy, actor and critic in one.

    Views the parameters' memory as it is when made: make another after parameters have moved.
    """

    def __init__(self, agent: "PPO") -> None:
        self._agent, self._optimizer, self._config = agent, agent.optimizer, agent.config
        actor, critic = agent.actor, agent.critic
        form = numpy_form(actor)
        assert form is not None
        *actor_layers, actor_head = linears(actor)
        *critic_layers, critic_head = linears(critic)
        weights = [layer.weight for layer in actor_layers], [layer.weight for layer in critic_layers]
        biases = [layer.bias for layer in actor_layers], [layer.bias for layer in critic_layers]
        self._hidden = HiddenLayers(
            _stacked(*weights),
            [bias[:, None] for bias in _stacked(*biases)],
            form.activation,
            matmul(agent.config.precision),
        )
        self._hidden_gradients = (
            _stacked(*([_gradient(weight) for weight in side] for side in weights)),
            [bias[:, None] for bias in _stacked(*([_gradient(bias) for bias in side] for side in biases))],
        )
        self._critic_hidden = HiddenLayers(
            [_array(layer.weight)[None] for layer in critic_layers],
            [_array(layer.bias)[None, None] for layer in critic_layers],
            form.activation,
        )
        self._head: _CategoricalHead | _GaussianHead
        if isinstance(agent.distribution, DiagonalGaussian):
            assert isinstance(actor, GaussianActor)
            self._head = _GaussianHead(actor_head, actor.log_std)
        else:
            self._head = _CategoricalHead(actor_head, form.has_mask)
        self._value_weight, self._value_bias = _array(critic_head.weight)[0], _array(critic_head.bias)
        self._value_weight_gradient = _array(_gradient(critic_head.weight))[0]
        self._value_bias_gradient = _array(_gradient(critic_head.bias))
        self._gradient = _array(agent.parameters.gradient)
        # Rows that pass forward and backward while they lie in the cache closest to a core: activations of a megabyte.
        widest = max(layer.weight.shape[0] for layer in actor_layers)
        self._block_size = max(32, 2**20 // (4 * 2 * widest))
        self._packed: _Packed | None = None

    @staticmethod
    def supports(agent: "PPO") -> bool:
        """Whether networks and distribution are such as this form knows: MLPs of equal hidden layers, on the CPU."""
        actor, critic = agent.actor, agent.critic
        forms = numpy_form(actor), numpy_form(critic)
        return (
            forms[0] is not None
            and forms[1] is not None
            and forms[0].image is forms[1].image is None
            and forms[0].activation == forms[1].activation
            and is_on_cpu(actor)
            and isinstance(agent.distribution, (Categorical, DiagonalGaussian))
            and [layer.weight.shape for layer in linears(actor)[:-1]]
            == [layer.weight.shape for layer in linears(critic)[:-1]]
        )

    def threads(self) -> AbstractContextManager[None]:
        """NumPy's; torch, which has the optimizer and the advantages, keeps to one."""
        return one_torch_thread()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        rows = _array(observations)
        values = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), self._block_size):
            block = slice(start, start + self._block_size)
            last = self._critic_hidden.forward(rows[block])[-1][0]
            np.dot(last, self._value_weight, out=values[block])
        values += self._value_bias
        return torch.from_numpy(values)

    def epoch(self, batch: Batch, order: Array, sizes: Sequence[int], clip_range: float) -> Tensor:
        """Two gathers for the pass; minibatches are views."""
        if self._packed is None or self._packed.batch is not batch:
            self._packed = _Packed.of(batch)
        shuffled = self._packed.gather(order)
        statistics = np.empty((len(sizes), len(STATISTICS)), np.float32)
        start = 0
        for row, size in zip(statistics, sizes, strict=True):
            if self._agent.should_stop():
                raise Stopped
            self._step(shuffled.rows(start, start + size), clip_range, out=row)
            start += size
        return torch.from_numpy(statistics)

    def _step(self, minibatch: "_Packed", clip_range: float, out: Array) -> None:
        """Forward, the loss's gradient by hand, backward, clipping, step; `STATISTICS` into `out`."""
        config, size = self._config, len(minibatch.returns)
        if config.normalize_advantage:
            _normalize(minibatch.advantages)
        if size <= self._block_size:
            out[:-1] = self._block(minibatch, clip_range, size)
        else:
            gradient = np.zeros_like(self._gradient)
            out[:] = 0.0
            for start in range(0, size, self._block_size):
                out[:-1] += self._block(minibatch.rows(start, start + self._block_size), clip_range, size)
                gradient += self._gradient
            self._gradient[:] = gradient
        norm = math.sqrt(np.dot(self._gradient, self._gradient))
        if norm + 1e-6 > config.max_grad_norm:
            self._gradient *= np.float32(config.max_grad_norm / (norm + 1e-6))
        self._optimizer.step()
        out /= size
        out[-1] = norm

    def _block(self, rows: "_Packed", clip_range: float, size: int) -> tuple[np.float32, ...]:
        """The gradient over some rows of a minibatch of `size`, and the sums of the statistics over them."""
        config, advantages = self._config, rows.advantages
        activations = self._hidden.forward(rows.observations)
        actor_last, critic_last = activations[-1]

        log_prob, entropy = self._head.forward(actor_last, rows)
        log_ratio = log_prob - rows.log_probs
        ratio = np.exp(log_ratio)
        surrogate = ratio * advantages
        clipped_ratio = _clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
        clipped_surrogate = clipped_ratio * advantages
        # d policy_loss / d log_prob = -ratio * advantage / B, where clipping has not taken the gradient away
        d_log_prob = surrogate * (surrogate <= clipped_surrogate)
        d_log_prob *= np.float32(-1.0 / size)

        values = np.dot(critic_last, self._value_weight)
        values += self._value_bias
        value_errors, d_values = self._value_errors(values, rows.returns, rows.values)

        d_last = self._hidden.gradient_buffer(len(values))
        # The entropy enters with -entropy_coef * mean.
        self._head.backward(d_log_prob, np.float32(-config.entropy_coef / size), actor_last, out=d_last[0])
        d_values *= np.float32(config.value_coef / size)
        np.multiply(d_values[:, None], self._value_weight, out=d_last[1])
        np.dot(d_values, critic_last, out=self._value_weight_gradient)
        self._value_bias_gradient[0] = np.add.reduce(d_values)
        self._hidden.backward(rows.observations, activations, *self._hidden_gradients)
        return (
            -np.add.reduce(np.minimum(surrogate, clipped_surrogate)),
            np.float32(0.5) * np.add.reduce(value_errors),
            np.add.reduce(entropy),
            np.add.reduce(np.expm1(log_ratio) - log_ratio),
            np.float32(np.count_nonzero(ratio != clipped_ratio)),
        )

    def _value_errors(self, values: Array, returns: Array, old_values: Array) -> tuple[Array, Array]:
        """Squared errors, clipped where configured, and half their derivatives, both `[B]`."""
        errors = values - returns
        squared = errors * errors
        limit = self._config.clip_range_vf
        if limit is None:
            return squared, errors
        moved = values - old_values
        clipped_errors = old_values + _clip(moved, -limit, limit) - returns
        clipped_squared = clipped_errors * clipped_errors
        # No gradient passes where the limit holds the value back and the error there is the worse. (Within the limits
        # the two errors are equal, but not to the last bit.)
        passes = (np.abs(moved) <= limit) | (squared >= clipped_squared)
        return np.maximum(squared, clipped_squared), errors * passes


class _Packed:
    """A batch in two arrays and its actions, so that a shuffle is few gathers.

    Args:
        observations: `[B, obs]`.
        actions: `[B, *action]`.
        columns: `[4, B]`: log-probabilities, values, advantages, returns.
        batch: what was packed, if it was a whole batch.
    """

    def __init__(self, observations: Array, actions: Array, columns: Array, batch: Batch | None = None) -> None:
        self.observations, self.actions, self.batch = observations, actions, batch
        self._columns = columns
        self.log_probs, self.values, self.advantages, self.returns = columns

    @classmethod
    def of(cls, batch: Batch) -> "_Packed":
        """A whole batch."""
        columns = (batch.log_probs, batch.values, batch.advantages, batch.returns)
        packed = np.stack([column.numpy() for column in columns])
        return cls(batch.observations.numpy(), batch.actions.numpy(), packed, batch)

    def gather(self, order: Array) -> "_Packed":
        """The rows at `[M]` indices, copied."""
        observations, actions = self.observations.take(order, axis=0), self.actions.take(order, axis=0)
        return _Packed(observations, actions, self._columns.take(order, axis=1))

    def rows(self, start: int, end: int) -> "_Packed":
        """Neighbouring rows, as views."""
        return _Packed(self.observations[start:end], self.actions[start:end], self._columns[:, start:end])


class _CategoricalHead:
    """Last layer and softmax of an actor with discrete actions. Logits are kept transposed, `[A, B]`: reductions over
    few actions are far faster along the first axis.
    """  # noqa: D205

    def __init__(self, layer: nn.Linear, has_mask: bool) -> None:
        self._weight, self._bias = _array(layer.weight), _array(layer.bias)[:, None]
        self._weight_gradient = _array(_gradient(layer.weight))
        self._bias_gradient = _array(_gradient(layer.bias))
        self._has_mask = has_mask
        self._choices = np.arange(len(self._weight))[:, None]

    def forward(self, last: Array, rows: "_Packed") -> tuple[Array, Array]:
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


class _GaussianHead:
    """Last layer and log standard deviations of an actor with continuous actions, kept transposed likewise."""

    def __init__(self, layer: nn.Linear, log_std: Tensor) -> None:
        self._weight, self._bias = _array(layer.weight), _array(layer.bias)[:, None]
        self._weight_gradient = _array(_gradient(layer.weight))
        self._bias_gradient = _array(_gradient(layer.bias))
        self._log_std, self._log_std_gradient = _array(log_std)[:, None], _array(_gradient(log_std))
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * len(self._log_std))

    def forward(self, last: Array, rows: "_Packed") -> tuple[Array, Array]:
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


def _clip(values: Array, low: float, high: float) -> Array:
    """`np.clip` without its checks, which cost more than its work at these sizes."""
    clipped: Array = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return clipped


def _normalize(advantages: Array) -> None:
    """To mean 0 and deviation 1, in place."""
    size = len(advantages)
    advantages -= np.add.reduce(advantages) / np.float32(size)
    if size > 1:
        deviation = math.sqrt(np.dot(advantages, advantages) / (size - 1))
        advantages /= np.float32(deviation + 1e-8)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None  # a view of the flat gradient, made with it and never dropped
    return parameter.grad


def _array(tensor: Tensor) -> Array:
    """The tensor's own memory."""
    array: Array = tensor.detach().numpy()
    return array


def _stacked(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Array]:
    """Pairs of equal shape, `[2, *shape]` each, without a copy: both lie in one buffer, some distance apart."""
    arrays = []
    for a, b in zip(first, second, strict=True):
        array, distance = _array(a), b.data_ptr() - a.data_ptr()
        arrays.append(as_strided(array, (2, *array.shape), (distance, *array.strides)))
    return arrays
