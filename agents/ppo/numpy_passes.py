"""Forward and backward over some rows in NumPy, actor and critic in one: the loss's gradient by hand."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import PackedBatch
from hybridppo.agents.ppo.numpy_exploring_head import head_for
from hybridppo.agents.ppo.numpy_heads import array_of
from hybridppo.networks.forms import linears, numpy_form
from hybridppo.networks.numpy_forms.hidden_layers import HiddenLayers
from hybridppo.networks.precision import matmul

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


Array = NDArray[Any]


class Passes:
    """Networks with memory of their own for what passes through them, and a gradient to fill.

    Several of one agent may work at the same time. Each views the parameters' memory as it is when made.

    Args:
        agent: whose networks and loss they are.
        actor: its layers.
        critic: likewise.
        gradient: `[P]`, of all parameters; filled by `block`.
    """

    def __init__(self, agent: "PPO", actor: nn.Module, critic: nn.Module, gradient: Array) -> None:
        self._config, self.gradient = agent.config, gradient
        gradient_of = gradients_in(gradient, agent)
        form = numpy_form(agent.actor_network)
        assert form is not None
        *actor_layers, actor_head = linears(actor)
        *critic_layers, critic_head = linears(critic)
        weights = [layer.weight for layer in actor_layers], [layer.weight for layer in critic_layers]
        biases = [layer.bias for layer in actor_layers], [layer.bias for layer in critic_layers]
        product = matmul(agent.config.precision)
        all_weights, all_biases = stacked(array_of, *weights), [bias[:, None] for bias in stacked(array_of, *biases)]
        self._hidden = HiddenLayers(all_weights, all_biases, form.activation, product)
        self._actor_hidden = HiddenLayers(
            [weight[:1] for weight in all_weights], [bias[:1] for bias in all_biases], form.activation, product
        )
        self._hidden_gradients = (
            stacked(gradient_of, *weights),
            [bias[:, None] for bias in stacked(gradient_of, *biases)],
        )
        self._critic_hidden = HiddenLayers(
            [array_of(layer.weight)[None] for layer in critic_layers],
            [array_of(layer.bias)[None, None] for layer in critic_layers],
            form.activation,
        )
        self._head = head_for(actor, actor_head, agent.distribution, form.mask_size, gradient_of)
        self._value_weight, self._value_bias = array_of(critic_head.weight)[0], array_of(critic_head.bias)
        self._value_weight_gradient = gradient_of(critic_head.weight)[0]
        self._value_bias_gradient = gradient_of(critic_head.bias)

    def values(self, rows: Array, out: Array) -> None:
        """The critic's values `[B]` of rows `[B, obs]`, into `out`."""
        last = self._critic_hidden.forward(rows)[-1][0]
        np.dot(last, self._value_weight, out=out)
        out += self._value_bias

    def log_probs(self, rows: "PackedBatch") -> Array:
        """Of the actions of some rows, `[B]`, as `block` computes them."""
        return self._head.forward(self._actor_hidden.forward(rows.observations)[-1][0], rows)[0]

    def block(self, rows: "PackedBatch", clip_range: float, size: int) -> tuple[np.float32, ...]:
        """The gradient over some rows of a minibatch of `size`, and the sums of the statistics over them."""
        config, advantages = self._config, rows.advantages
        activations = self._hidden.forward(rows.observations)
        actor_last, critic_last = activations[-1]

        log_prob, entropy = self._head.forward(actor_last, rows)
        log_ratio = log_prob - rows.log_probs
        ratio = np.exp(log_ratio)
        surrogate = ratio * advantages
        limit = rows.clip_range(clip_range)
        clipped_ratio = _clip(ratio, 1.0 - limit, 1.0 + limit)
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
        self._hidden.backward(rows.observations, activations, *self._hidden_gradients, rows.input_gradients)
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


def _clip(values: Array, low: Any, high: Any) -> Array:
    """`np.clip` without its checks, which cost more than its work at these sizes."""
    clipped: Array = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return clipped


def gradients_in(gradient: Array, agent: "PPO") -> Callable[[Tensor], Array]:
    """Of a parameter, its part of a gradient `[P]` that lies as the agent's parameters do."""
    first = agent.parameters.values.data_ptr()

    def part_of(parameter: Tensor) -> Array:
        start = (parameter.data_ptr() - first) // parameter.element_size()
        return gradient[start : start + parameter.numel()].reshape(parameter.shape)

    return part_of


def stacked(array_for: Callable[[Tensor], Array], first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Array]:
    """Arrays for pairs of equal shape, `[2, *shape]` each, without a copy: both lie in one buffer, some way apart."""
    arrays = []
    for a, b in zip(first, second, strict=True):
        array = array_for(a)
        distance = array_for(b).ctypes.data - array.ctypes.data
        arrays.append(as_strided(array, (2, *array.shape), (distance, *array.strides)))
    return arrays
