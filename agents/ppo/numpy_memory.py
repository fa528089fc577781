"""The gradient of PPO's loss for a minGRU, written out by hand in NumPy: equal to autograd's up to rounding."""

from dataclasses import replace
from typing import Any, cast

import numpy as np

from hybridppo.agents.ppo.by_autograd import Backend, Optimized
from hybridppo.agents.ppo.by_numpy import Passes, array_of, clipped, has_known_networks, stacked, views_of
from hybridppo.agents.ppo.sequences import SequenceBatch
from hybridppo.networks.recurrent import RecurrentNetwork
from hybridppo.spaces.arrays import Array


class NumpyMemory(Backend):
    """Forward and backward passes of both minGRUs in NumPy, and `Passes` for the networks behind them."""

    written_in = "agents/ppo/numpy_memory.py"

    def __init__(self, agent: Optimized) -> None:
        super().__init__(agent)
        self._flat_gradient = array_of(agent.parameters.gradient)
        self._passes = Passes(_AfterMemory(agent), self._flat_gradient)
        cells, gradient_of = _cells(agent), views_of(agent, self._flat_gradient)
        weights, biases = [cell.weight_input for cell in cells], [cell.bias for cell in cells]
        self._weight, self._bias = stacked(array_of, weights), stacked(array_of, biases)
        self._weight_gradient, self._bias_gradient = stacked(gradient_of, weights), stacked(gradient_of, biases)

    @staticmethod
    def supports(agent: Optimized) -> bool:
        """Whether loss, distribution and networks are known."""
        networks: tuple[Any, Any] = agent.actor_network, agent.critic_network
        return (
            agent.config.recurrent == "mingru"
            and agent.config.precision == "fp32"
            and all(network.features is None and not network.mask_size for network in networks)
            and not agent.has_own_loss
            and agent.distribution.gradient() is not None
            and has_known_networks(_AfterMemory(agent))
        )

    def gradient(self, minibatch: SequenceBatch, clip_range: Any) -> Array:
        """Forward, the loss's gradient by hand, backward."""
        length, number = minibatch.starts.shape
        size = self._weight.shape[1] // 2
        inputs = array_of(minibatch.rows.observations).reshape(length * number, -1)
        gates = np.matmul(inputs, self._weight.swapaxes(1, 2))  # [2, L * S, 2 * H]
        gates += self._bias[:, None]
        # Time comes first in all that follows, [L, 2, S, H]: a step is then one piece of memory.
        update, new = _in_time(gates[..., :size], length), _in_time(gates[..., size:], length)
        update = np.tanh(np.float32(0.5) * update)  # sigmoid(x) = (1 + tanh(x / 2)) / 2
        update *= np.float32(0.5)
        update += np.float32(0.5)
        fades = np.float32(1.0) - update
        keep = fades * ~minibatch.starts[:, None, :, None]
        # h[t] = keep[t] * h[t - 1] + update[t] * new[t]
        states = np.empty((length + 1, *update.shape[1:]), np.float32)
        states[0] = array_of(minibatch.actor_states), array_of(minibatch.critic_states)
        np.multiply(update, new, out=states[1:])
        _accumulate(keep, states[:-1], states[1:])

        places = np.flatnonzero(minibatch.valid)
        flat = (2, length * number, size)
        rows = minibatch.rows.map(lambda column: array_of(column).reshape(flat[1], *column.shape[2:])[places])
        rows.observations = states[1:].swapaxes(0, 1).reshape(flat)[:, places]
        of_hidden = np.empty_like(rows.observations)
        sums = self._passes.block(rows, clip_range, len(places), of_hidden)

        of_rows = np.zeros(flat, np.float32)
        of_rows[:, places] = of_hidden
        of_states = np.ascontiguousarray(_in_time(of_rows, length))
        _accumulate(keep[:0:-1], of_states[:0:-1], of_states[-2::-1])
        # d h / d update = new - h[t - 1];  d sigmoid(x) / dx = sigmoid(x) * (1 - sigmoid(x))
        states[:-1] *= ~minibatch.starts[:, None, :, None]
        of_states *= update
        of_gates = np.empty_like(gates)
        _in_time(of_gates[..., size:], length)[...] = of_states
        of_states *= fades
        np.multiply(of_states, new - states[:-1], out=_in_time(of_gates[..., :size], length))
        np.matmul(of_gates.swapaxes(1, 2), inputs, out=self._weight_gradient)
        np.matmul(np.ones(flat[1], np.float32), of_gates, out=self._bias_gradient)
        return np.array(sums, np.float32) / len(places)

    def clip(self) -> float:
        """As `Backend.clip`."""
        return clipped(self._flat_gradient, self._agent.current.max_grad_norm)


def _in_time(numbers: Array, length: int) -> Array:
    """A view `[L, 2, S, H]` of `[2, L * S, H]`."""
    return numbers.reshape(2, length, -1, numbers.shape[-1]).swapaxes(0, 1)


def _accumulate(keep: Array, before: Array, after: Array) -> None:
    """`after[t] += keep[t] * before[t]`, one after the other: a step's `after` may be the next one's `before`."""
    kept = np.empty(after.shape[1:], np.float32)
    for keep_now, before_now, after_now in zip(keep, before, after, strict=True):
        np.multiply(keep_now, before_now, out=kept)
        after_now += kept


def _cells(agent: Optimized) -> list[Any]:
    return [cast(RecurrentNetwork, network).cell for network in (agent.actor_network, agent.critic_network)]


class _AfterMemory:
    """An agent whose networks are those behind its memories."""

    def __init__(self, agent: Optimized) -> None:
        self._agent, self.config = agent, replace(agent.config, recurrent=None)
        self.actor_network = cast(RecurrentNetwork, agent.actor_network).network
        self.critic_network = cast(RecurrentNetwork, agent.critic_network).network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)
