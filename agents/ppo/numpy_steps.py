"""The optimizer steps of PPO written out by hand in NumPy, for MLPs on a CPU: equal to `AutogradSteps` up to rounding.

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

from hybridppo.agents.ppo.batch import PackedBatch
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_exploring_head import head_for, is_known
from hybridppo.agents.ppo.numpy_heads import array_of, gradient_of, has_gradient
from hybridppo.agents.ppo.optimizer_steps import STATISTICS
from hybridppo.interruption import Stopped
from hybridppo.networks.forms import is_on_cpu, linears, numpy_form
from hybridppo.networks.numpy_forms.hidden_layers import HiddenLayers
from hybridppo.networks.precision import matmul
from hybridppo.networks.threads import one_torch_thread
from hybridppo.networks.trunks import shared_trunk_of

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


Array = NDArray[Any]


class NumpySteps:
    """Forward and backward passes in NumPy, actor and critic in one.

    Views the parameters' memory as it is when made: make another after parameters have moved.
    """

    written_in: str | None = "agents/ppo/numpy_steps.py"

    def __init__(self, agent: "PPO") -> None:
        self._agent, self._optimizer, self._config = agent, agent.optimizer, agent.config
        actor, critic = self._layers_of(agent)
        form = numpy_form(agent.actor_network)
        assert form is not None
        *actor_layers, actor_head = linears(actor)
        *critic_layers, critic_head = linears(critic)
        weights = [layer.weight for layer in actor_layers], [layer.weight for layer in critic_layers]
        biases = [layer.bias for layer in actor_layers], [layer.bias for layer in critic_layers]
        self._hidden = HiddenLayers(
            stacked(*weights),
            [bias[:, None] for bias in stacked(*biases)],
            form.activation,
            matmul(agent.config.precision),
        )
        self._hidden_gradients = (
            stacked(*([gradient_of(weight) for weight in side] for side in weights)),
            [bias[:, None] for bias in stacked(*([gradient_of(bias) for bias in side] for side in biases))],
        )
        self._critic_hidden = HiddenLayers(
            [array_of(layer.weight)[None] for layer in critic_layers],
            [array_of(layer.bias)[None, None] for layer in critic_layers],
            form.activation,
        )
        self._head = head_for(actor, actor_head, agent.distribution, form.mask_size)
        self._value_weight, self._value_bias = array_of(critic_head.weight)[0], array_of(critic_head.bias)
        self._value_weight_gradient = array_of(gradient_of(critic_head.weight))[0]
        self._value_bias_gradient = array_of(gradient_of(critic_head.bias))
        self._gradient = array_of(agent.parameters.gradient)
        # Rows that pass forward and backward while they lie in the cache closest to a core: activations of a megabyte.
        widest = max(layer.weight.shape[0] for layer in actor_layers)
        self._block_size = max(32, 2**20 // (4 * 2 * widest))
        self._packed: PackedBatch | None = None

    @staticmethod
    def _layers_of(agent: "PPO") -> tuple[nn.Module, nn.Module]:
        """Actor and critic, whose layers these are."""
        return agent.actor_network, agent.critic_network

    @staticmethod
    def supports(agent: "PPO") -> bool:
        """Whether this form knows loss, distribution and networks: MLPs of equal hidden layers, on the CPU."""
        return knows(agent, agent.actor_network, agent.critic_network)

    def threads(self) -> AbstractContextManager[None]:
        """NumPy's; torch, which has the optimizer and the advantages, keeps to one."""
        return one_torch_thread()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        rows = array_of(observations)
        values = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), self._block_size):
            block = slice(start, start + self._block_size)
            last = self._critic_hidden.forward(rows[block])[-1][0]
            np.dot(last, self._value_weight, out=values[block])
        values += self._value_bias
        return torch.from_numpy(values)

    @torch.no_grad()
    def log_probs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """As `AutogradSteps.log_probs`: once or twice an update, where torch is as quick."""
        return self._agent.distribution.log_prob_and_entropy(self._agent.actor_network(observations), actions)[0]

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """Two gathers for the epoch; minibatches are views."""
        if self._packed is None or self._packed.batch is not batch:
            self._packed = batch.packed()
        shuffled = self._packed.gather(np.asarray(order))
        statistics = np.empty((len(sizes), len(STATISTICS)), np.float32)
        start = 0
        for row, size in zip(statistics, sizes, strict=True):
            if self._agent.should_stop():
                raise Stopped
            self._step(shuffled.rows(start, start + size), clip_range, out=row)
            start += size
        return torch.from_numpy(statistics)

    def _step(self, minibatch: Any, clip_range: float, out: Array) -> None:
        """Gradient, clipping, step; `STATISTICS` into `out`."""
        self._fill_gradient(minibatch, clip_range, out)
        out[-1] = self._descend()

    def descend(self) -> Tensor:
        """As `AutogradSteps.descend`."""
        return torch.tensor([self._descend()], dtype=torch.float32)

    def _descend(self) -> float:
        limit = self._config.max_grad_norm
        norm = math.sqrt(np.dot(self._gradient, self._gradient))
        if norm + 1e-6 > limit:
            self._gradient *= np.float32(limit / (norm + 1e-6))
        self._optimizer.step()
        return norm

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """Fill the parameters' gradient over a minibatch; `STATISTICS` but the last."""
        statistics = np.zeros(len(STATISTICS), np.float32)
        self._fill_gradient(batch.made().packed(), clip_range, statistics)
        return torch.from_numpy(statistics[:-1])

    def _fill_gradient(self, minibatch: Any, clip_range: float, out: Array) -> None:
        """Forward, the loss's gradient by hand, backward; `STATISTICS` but the last into `out`."""
        size = len(minibatch.returns)
        minibatch.weigh_advantages(self._config.normalize_advantage)
        if size <= self._block_size:
            out[:-1] = self._block(minibatch, clip_range, size)
        else:
            gradient = np.zeros_like(self._gradient)
            out[:] = 0.0
            for start in range(0, size, self._block_size):
                out[:-1] += self._block(minibatch.rows(start, start + self._block_size), clip_range, size)
                gradient += self._gradient
            self._gradient[:] = gradient
        out /= size

    def _block(self, rows: "PackedBatch", clip_range: float, size: int) -> tuple[np.float32, ...]:
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


def knows(agent: "PPO", actor: nn.Module, critic: nn.Module) -> bool:
    """Whether loss, distribution and these layers are known: MLPs of equal hidden layers, on the CPU."""
    forms = numpy_form(actor), numpy_form(critic)
    return (
        not agent.has_own_loss
        and shared_trunk_of(actor) is None
        and forms[0] is not None
        and forms[1] is not None
        and forms[0].layout is forms[1].layout is None
        and forms[0].activation == forms[1].activation
        and is_on_cpu(actor)
        and (has_gradient(agent.distribution) or is_known(agent.distribution))
        and [layer.weight.shape for layer in linears(actor)[:-1]]
        == [layer.weight.shape for layer in linears(critic)[:-1]]
    )


def _clip(values: Array, low: Any, high: Any) -> Array:
    """`np.clip` without its checks, which cost more than its work at these sizes."""
    clipped: Array = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return clipped


def stacked(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Array]:
    """Pairs of equal shape, `[2, *shape]` each, without a copy: both lie in one buffer, some distance apart."""
    arrays = []
    for a, b in zip(first, second, strict=True):
        array, distance = array_of(a), b.data_ptr() - a.data_ptr()
        arrays.append(as_strided(array, (2, *array.shape), (distance, *array.strides)))
    return arrays
