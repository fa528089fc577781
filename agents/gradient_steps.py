"""One gradient step of PPO on a minibatch: the plain form by autograd, and the same by hand for MLPs on a CPU.

Both fill `parameters.values.grad` with the gradient of

    policy_loss - entropy_coef * mean(entropy) + value_coef * value_loss

scale it down to `max_grad_norm`, step the optimizer, and return `STATISTICS`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.distributions import Categorical, DiagonalGaussian
from hybridppo.losses import approx_kl, clip_fraction, clipped_value_loss, normalize, policy_loss, value_loss
from hybridppo.networks import GaussianActor, is_on_cpu, is_plain_mlp, linears, numpy_activation
from hybridppo.numpy_mlp import HiddenLayers

if TYPE_CHECKING:
    from hybridppo.agents.ppo import PPO

Array = NDArray[Any]

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
"""What a step measures, in order; `grad_norm` is that before it was scaled down."""


@dataclass(frozen=True)
class Batch:
    """The steps of a rollout, flattened to `[B, ...]`, with what PPO adds to them."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    def split(self, sizes: list[int]) -> "Iterator[Batch]":
        """The batch cut into parts of these sizes, as views."""
        columns = (getattr(self, field.name).split(sizes) for field in fields(self))
        return (Batch(*parts) for parts in zip(*columns, strict=True))

    def gather(self, rows: Tensor) -> "Batch":
        """The rows at `[M]` indices, copied."""
        return Batch(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))


class GradientStep(Protocol):
    """What PPO asks of either form."""

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values `[B]` of observations `[B, obs]`, without a gradient."""
        ...

    def __call__(self, batch: Batch, clip_range: float) -> Tensor:
        """Step once; `STATISTICS` as a tensor on the agent's device."""
        ...


class AutogradStep:
    """The plain form, for any networks on any device, and the reference for others."""

    def __init__(self, agent: "PPO") -> None:
        self._actor, self._critic, self._distribution = agent.actor, agent.critic, agent.distribution
        self._parameters, self._optimizer, self._config = agent.parameters, agent.optimizer, agent.config

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        values: Tensor = self._critic(observations).squeeze(-1)
        return values

    def __call__(self, batch: Batch, clip_range: float) -> Tensor:
        """Loss, gradient, clipping, step."""
        config = self._config
        outputs = self._actor(batch.observations)
        log_prob, entropy = self._distribution.log_prob_and_entropy(outputs, batch.actions)
        log_ratio = log_prob - batch.log_probs
        advantages = normalize(batch.advantages) if config.normalize_advantage else batch.advantages
        policy = policy_loss(log_ratio=log_ratio, advantages=advantages, clip_range=clip_range)
        values = self._critic(batch.observations).squeeze(-1)
        if config.clip_range_vf is None:
            value = value_loss(values=values, returns=batch.returns)
        else:
            value = clipped_value_loss(
                values=values, returns=batch.returns, old_values=batch.values, clip_range=config.clip_range_vf
            )
        mean_entropy = entropy.mean()
        loss = policy - config.entropy_coef * mean_entropy + config.value_coef * value

        gradient = self._parameters.gradient
        gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = gradient.norm()
        gradient.mul_((config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        with torch.no_grad():
            kl, clipped = approx_kl(log_ratio), clip_fraction(log_ratio, clip_range)
            return torch.stack((policy, value, mean_entropy, kl, clipped, norm))


class NumpyStep:
    """The same by hand: forward and backward passes in NumPy, actor and critic in one where their shapes agree.

    Equal to `AutogradStep` up to rounding. Views the parameters' memory as it is when made: make another after
    parameters have moved.
    """

    def __init__(self, agent: "PPO") -> None:
        self._optimizer, self._config = agent.optimizer, agent.config
        actor, critic = agent.actor, agent.critic
        *actor_layers, actor_head = linears(actor)
        *critic_layers, critic_head = linears(critic)
        weights = [layer.weight for layer in actor_layers], [layer.weight for layer in critic_layers]
        biases = [layer.bias for layer in actor_layers], [layer.bias for layer in critic_layers]
        self._hidden = HiddenLayers(
            _stacked(*weights), [bias[:, None] for bias in _stacked(*biases)], numpy_activation(actor)
        )
        self._hidden_gradients = (
            _stacked(*([_gradient(weight) for weight in side] for side in weights)),
            [bias[:, None] for bias in _stacked(*([_gradient(bias) for bias in side] for side in biases))],
        )
        self._critic_hidden = HiddenLayers(
            [_array(layer.weight)[None] for layer in critic_layers],
            [_array(layer.bias)[None, None] for layer in critic_layers],
            numpy_activation(critic),
        )
        self._head: _CategoricalHead | _GaussianHead
        if isinstance(agent.distribution, DiagonalGaussian):
            assert isinstance(actor, GaussianActor)
            self._head = _GaussianHead(actor_head, actor.log_std)
        else:
            self._head = _CategoricalHead(actor_head)
        self._value_weight, self._value_bias = _array(critic_head.weight)[0], _array(critic_head.bias)
        self._value_weight_gradient = _array(_gradient(critic_head.weight))[0]
        self._value_bias_gradient = _array(_gradient(critic_head.bias))
        self._gradient = _array(agent.parameters.gradient)
        # Rows that pass forward and backward while they lie in the cache closest to a core: activations of a megabyte.
        widest = max(layer.weight.shape[0] for layer in actor_layers)
        self._block_size = max(32, 2**20 // (4 * 2 * widest))

    @staticmethod
    def supports(agent: "PPO") -> bool:
        """Whether networks and distribution are such as this form knows: MLPs of equal hidden layers, on the CPU."""
        actor, critic = agent.actor, agent.critic
        return (
            is_plain_mlp(actor)
            and is_plain_mlp(critic)
            and is_on_cpu(actor)
            and isinstance(agent.distribution, (Categorical, DiagonalGaussian))
            and numpy_activation(actor) == numpy_activation(critic)
            and [layer.weight.shape for layer in linears(actor)[:-1]]
            == [layer.weight.shape for layer in linears(critic)[:-1]]
        )

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        last = self._critic_hidden.forward(_array(observations))[-1][0]
        return torch.from_numpy(last @ self._value_weight + self._value_bias)

    def __call__(self, batch: Batch, clip_range: float) -> Tensor:
        """Forward, the loss's gradient by hand, backward, clipping, step."""
        config, size = self._config, len(batch.returns)
        if config.normalize_advantage:
            batch = replace(batch, advantages=torch.from_numpy(_normalize(batch.advantages.numpy())))
        if size <= self._block_size:
            sums: Array = np.array(self._block(batch, clip_range, size))
        else:
            sums, gradient = np.zeros(len(STATISTICS) - 1), np.zeros_like(self._gradient)
            starts = range(0, size, self._block_size)
            for block in batch.split([min(self._block_size, size - start) for start in starts]):
                sums += self._block(block, clip_range, size)
                gradient += self._gradient
            self._gradient[:] = gradient

        norm = float(np.sqrt(np.dot(self._gradient, self._gradient)))
        if norm + 1e-6 > config.max_grad_norm:
            self._gradient *= np.float32(config.max_grad_norm / (norm + 1e-6))
        self._optimizer.step()
        return torch.tensor((*(sums / size), norm), dtype=torch.float32)

    def _block(self, batch: Batch, clip_range: float, size: int) -> tuple[np.float32, ...]:
        """The gradient over some rows of a minibatch of `size`, and the sums of the statistics over them."""
        observations, advantages = batch.observations.numpy(), batch.advantages.numpy()
        config = self._config
        activations = self._hidden.forward(observations)
        actor_last, critic_last = activations[-1]

        log_prob, entropy = self._head.forward(actor_last, batch.actions.numpy())
        log_ratio = log_prob - batch.log_probs.numpy()
        ratio = np.exp(log_ratio)
        surrogate = ratio * advantages
        clipped_surrogate = _clip(ratio, 1.0 - clip_range, 1.0 + clip_range) * advantages
        # d policy_loss / d log_prob = -ratio * advantage / B, where clipping has not taken the gradient away
        d_log_prob = np.where(surrogate <= clipped_surrogate, surrogate, 0.0) * np.float32(-1.0 / size)

        values = critic_last @ self._value_weight + self._value_bias
        value_errors, d_values = self._value_errors(values, batch.returns.numpy(), batch.values.numpy())

        d_last = self._hidden.gradient_buffer(len(values))
        # The entropy enters with -entropy_coef * mean.
        self._head.backward(d_log_prob, np.float32(-config.entropy_coef / size), actor_last, out=d_last[0])
        d_values *= np.float32(config.value_coef / size)
        np.multiply(d_values[:, None], self._value_weight, out=d_last[1])
        np.matmul(d_values, critic_last, out=self._value_weight_gradient)
        self._value_bias_gradient[0] = np.add.reduce(d_values)
        self._hidden.backward(observations, activations, *self._hidden_gradients)
        return (
            -np.add.reduce(np.minimum(surrogate, clipped_surrogate)),
            np.float32(0.5) * np.add.reduce(value_errors),
            np.add.reduce(entropy),
            np.add.reduce(np.expm1(log_ratio) - log_ratio),
            np.float32(np.count_nonzero(np.abs(ratio - 1.0) > clip_range)),
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
        return np.maximum(squared, clipped_squared), np.where(passes, errors, 0.0)


class _CategoricalHead:
    """Last layer and softmax of an actor with discrete actions. Logits are kept transposed, `[A, B]`: reductions over
    few actions are far faster along the first axis.
    """  # noqa: D205

    def __init__(self, layer: nn.Linear) -> None:
        self._weight, self._bias = _array(layer.weight), _array(layer.bias)[:, None]
        self._weight_gradient = _array(_gradient(layer.weight))
        self._bias_gradient = _array(_gradient(layer.bias))
        self._choices = np.arange(len(self._weight))[:, None]

    def forward(self, last: Array, actions: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        logits = self._weight @ last.T
        logits += self._bias
        logits -= np.maximum.reduce(logits)
        exponentials = np.exp(logits)
        totals = np.add.reduce(exponentials)
        self._log_probs = logits - np.log(totals)
        self._probs = exponentials / totals
        self._chosen = self._choices == actions
        self._entropy = -np.add.reduce(self._probs * self._log_probs)
        return np.add.reduce(self._chosen * self._log_probs), self._entropy

    def backward(self, d_log_prob: Array, d_entropy: np.float32, last: Array, out: Array) -> None:
        """Fill the layer's gradients, and that of `last` into `out`."""
        # d log p[a] / d logit[k] = [k = a] - p[k];  d H / d logit[k] = -p[k] * (log p[k] + H)
        d_logits = d_log_prob * (self._chosen - self._probs)
        if d_entropy:
            d_logits -= d_entropy * self._probs * (self._log_probs + self._entropy)
        np.matmul(d_logits, last, out=self._weight_gradient)
        np.sum(d_logits, axis=1, out=self._bias_gradient)
        np.matmul(d_logits.T, self._weight, out=out)


class _GaussianHead:
    """Last layer and log standard deviations of an actor with continuous actions, kept transposed likewise."""

    def __init__(self, layer: nn.Linear, log_std: Tensor) -> None:
        self._weight, self._bias = _array(layer.weight), _array(layer.bias)[:, None]
        self._weight_gradient = _array(_gradient(layer.weight))
        self._bias_gradient = _array(_gradient(layer.bias))
        self._log_std, self._log_std_gradient = _array(log_std)[:, None], _array(_gradient(log_std))
        self._constant = np.float32(0.5 * np.log(2.0 * np.pi) * len(self._log_std))

    def forward(self, last: Array, actions: Array) -> tuple[Array, Array]:
        """Log-probabilities and entropies, `[B]`."""
        mean = self._weight @ last.T
        mean += self._bias
        self._precision = np.exp(-self._log_std)
        self._noise = (actions.T - mean) * self._precision
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
        np.matmul(d_mean, last, out=self._weight_gradient)
        np.sum(d_mean, axis=1, out=self._bias_gradient)
        np.matmul(d_mean.T, self._weight, out=out)


def _clip(values: Array, low: float, high: float) -> Array:
    """`np.clip` without its checks, which cost more than its work at these sizes."""
    clipped: Array = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return clipped


def _normalize(advantages: Array) -> Array:
    if len(advantages) == 1:
        return np.zeros_like(advantages)
    centred = advantages - np.float32(np.add.reduce(advantages) / len(advantages))
    deviation = np.sqrt(np.dot(centred, centred) / (len(centred) - 1))
    normalized: Array = centred / np.float32(deviation + 1e-8)
    return normalized


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
