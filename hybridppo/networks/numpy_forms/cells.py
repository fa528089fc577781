"""Recurrent cells in NumPy, forward and backward through time, for the optimizer steps.

Each stands for `n` cells of equal size at once (the actor's and the critic's), which see the same inputs. What of a
step's work does not depend on the state is done for all steps together; the loops over time hold the rest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HALF = np.float32(0.5)


class LSTMCells:
    """`n` cells, see `networks.recurrent.LSTM`.

    Args:
        parameters: `[n, 4 * H, I]`, `[n, 4 * H, H]` and `[n, 4 * H]`, views of the parameters.
    """

    num_parameters = 3

    def __init__(self, parameters: Sequence[Array]) -> None:
        self._weight_input, self._weight_state, self._bias = parameters
        self._num, gates, self.size = self._weight_state.shape
        assert gates == 4 * self.size
        self.state_size = 2 * self.size

    def forward(self, inputs: Array, states: Array, starts: Array) -> Array:
        """Outputs `[n, L, S, H]`; what `backward` and `after` need is kept until the next call.

        Args:
            inputs: `[L, S, I]`.
            states: `[n, S, 2 * H]`, before the first step.
            starts: `[L, S]` bool: nothing from before is remembered.
        """
        length, num, size = *inputs.shape[:2], self.size
        self._inputs, self._keeps = inputs, _keeps(starts)
        sigmoids = slice(3 * size)
        gates, weight = _halved(_projected(inputs, self._weight_input, self._bias), self._weight_state, sigmoids)
        shape = (self._num, length, num, size)
        self._before, self._cells_before, self._cells = (np.empty(shape, np.float32) for _ in range(3))
        outputs, self._squashed = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self._gates = gates
        product = np.empty((self._num, num, 4 * size), np.float32)
        scratch = np.empty((self._num, num, size), np.float32)
        hidden, cell = states[..., :size], states[..., size:]
        for t, keep in enumerate(self._keeps):
            if keep is not None:
                hidden, cell = hidden * keep, cell * keep
            self._before[:, t], self._cells_before[:, t] = hidden, cell
            now = gates[:, t]
            np.matmul(hidden, weight, out=product)
            now += product
            np.tanh(now, out=now)
            three = now[..., sigmoids]
            three *= HALF
            three += HALF
            let_in, keeps, let_out, new = (now[..., i * size : (i + 1) * size] for i in range(4))
            after, squashed, out = self._cells[:, t], self._squashed[:, t], outputs[:, t]
            np.multiply(keeps, cell, out=after)
            np.multiply(let_in, new, out=scratch)
            after += scratch
            np.tanh(after, out=squashed)
            np.multiply(let_out, squashed, out=out)
            hidden, cell = out, after
        self._outputs = outputs
        return outputs

    def after(self) -> Array:
        """The states after each step of the last `forward`, `[n, L, S, 2 * H]`."""
        return np.concatenate((self._outputs, self._cells), axis=-1)

    def backward(self, gradients: Array, parameter_gradients: Sequence[Array]) -> None:
        """Fill the gradients of the parameters from those of the outputs, `[n, L, S, H]`."""
        size = self.size
        let_in, keeps, let_out, new = (self._gates[..., i * size : (i + 1) * size] for i in range(4))
        # What each gate's gradient is of that of the cell, and of that of the output.
        factors = np.empty_like(self._gates)
        np.multiply(new * let_in, 1.0 - let_in, out=factors[..., :size])
        np.multiply(self._cells_before * keeps, 1.0 - keeps, out=factors[..., size : 2 * size])
        np.multiply(self._squashed * let_out, 1.0 - let_out, out=factors[..., 2 * size : 3 * size])
        np.multiply(let_in, 1.0 - new * new, out=factors[..., 3 * size :])
        of_output = let_out * (1.0 - self._squashed * self._squashed)
        of_gates, weight = factors, self._weight_state
        length = gradients.shape[1]
        from_hidden = np.zeros_like(gradients[:, 0])
        from_cell = np.zeros_like(from_hidden)
        for t in reversed(range(length)):
            from_hidden += gradients[:, t]
            from_cell += from_hidden * of_output[:, t]
            now = of_gates[:, t]
            now[..., : 2 * size].reshape(*now.shape[:-1], 2, size)[...] *= from_cell[..., None, :]
            now[..., 2 * size : 3 * size] *= from_hidden
            now[..., 3 * size :] *= from_cell
            if t == 0:
                break
            np.matmul(now, weight, out=from_hidden)
            from_cell *= keeps[:, t]
            if (keep := self._keeps[t]) is not None:
                from_hidden *= keep
                from_cell *= keep
        _fill(parameter_gradients[:3], of_gates, of_gates, self._inputs, self._before)


class GRUCells:
    """`n` cells, see `networks.recurrent.GRU`.

    Args:
        parameters: `[n, 3 * H, I]`, `[n, 3 * H, H]`, `[n, 3 * H]` and `[n, H]`, views of the parameters.
    """

    num_parameters = 4

    def __init__(self, parameters: Sequence[Array]) -> None:
        self._weight_input, self._weight_state, self._bias, self._bias_state = parameters
        self._num, gates, self.size = self._weight_state.shape
        assert gates == 3 * self.size
        self.state_size = self.size

    def forward(self, inputs: Array, states: Array, starts: Array) -> Array:
        """As `LSTMCells.forward`, with states `[n, S, H]`."""
        length, num, size = *inputs.shape[:2], self.size
        self._inputs, self._keeps = inputs, _keeps(starts)
        two = slice(2 * size)
        gates, weight = _halved(_projected(inputs, self._weight_input, self._bias), self._weight_state, two)
        shape = (self._num, length, num, size)
        self._before, outputs, self._new_of_state = (np.empty(shape, np.float32) for _ in range(3))
        self._gates = gates
        product = np.empty((self._num, num, 3 * size), np.float32)
        bias = self._bias_state[:, None]
        hidden = states
        for t, keep in enumerate(self._keeps):
            if keep is not None:
                hidden = hidden * keep
            self._before[:, t] = hidden
            now, of_state, out = gates[:, t], self._new_of_state[:, t], outputs[:, t]
            np.matmul(hidden, weight, out=product)
            sigmoids = now[..., two]
            sigmoids += product[..., two]
            np.tanh(sigmoids, out=sigmoids)
            sigmoids *= HALF
            sigmoids += HALF
            np.add(product[..., 2 * size :], bias, out=of_state)
            new = now[..., 2 * size :]
            new += now[..., :size] * of_state
            np.tanh(new, out=new)
            np.subtract(hidden, new, out=out)
            out *= now[..., size : 2 * size]
            out += new
            hidden = out
        self._outputs = outputs
        return outputs

    def after(self) -> Array:
        """The states after each step of the last `forward`, `[n, L, S, H]`."""
        return self._outputs

    def backward(self, gradients: Array, parameter_gradients: Sequence[Array]) -> None:
        """As `LSTMCells.backward`."""
        size = self.size
        reset, update, new = (self._gates[..., i * size : (i + 1) * size] for i in range(3))
        # What each gate's gradient is of that of the output: reset, update, and the two parts of the new one.
        of_new = (1.0 - update) * (1.0 - new * new)
        through_reset = of_new * self._new_of_state * reset * (1.0 - reset)
        of_update = (self._before - new) * update * (1.0 - update)
        factors = np.concatenate((through_reset, of_update, of_new * reset), axis=-1)
        weight, length = self._weight_state, gradients.shape[1]
        from_hidden = np.zeros_like(gradients[:, 0])
        for t in reversed(range(length)):
            from_hidden += gradients[:, t]
            now = factors[:, t]
            gates = now.reshape(*now.shape[:-1], 3, size)
            gates *= from_hidden[..., None, :]
            of_new[:, t] *= from_hidden
            if t == 0:
                break
            from_hidden *= update[:, t]
            from_hidden += np.matmul(now, weight)
            if (keep := self._keeps[t]) is not None:
                from_hidden *= keep
        of_inputs = np.concatenate((factors[..., : 2 * size], of_new), axis=-1)
        _fill(parameter_gradients[:3], of_inputs, factors, self._inputs, self._before)
        np.sum(factors[..., 2 * size :], axis=(1, 2), out=parameter_gradients[3])


def _halved(projected: Array, weight: Array, sigmoids: slice) -> tuple[Array, Array]:
    """What is before the sigmoids by half, in place, and the weight for it `[n, H, gates]`, a copy.

    sigmoid(x) = (1 + tanh(x / 2)) / 2: one tanh then is all gates'.
    """
    projected[..., sigmoids] *= HALF
    weight = weight.copy()
    weight[:, sigmoids] *= HALF
    return projected, weight.swapaxes(-1, -2)


CELLS: dict[str, type[LSTMCells] | type[GRUCells]] = {"lstm": LSTMCells, "gru": GRUCells}


def _keeps(starts: Array) -> list[Array | None]:
    """For each step `[S, 1]` of 0 where nothing is remembered, else 1; None where all is."""
    return [(~row).astype(np.float32)[:, None] if row.any() else None for row in starts]


def _projected(inputs: Array, weight: Array, bias: Array) -> Array:
    """`[L, S, I]` and `[n, gates, I]` to `[n, L, S, gates]`: what of the gates does not depend on the state."""
    length, num = inputs.shape[:2]
    projected: Array = np.matmul(inputs.reshape(length * num, -1), weight.swapaxes(-1, -2))
    projected += bias[:, None]
    return projected.reshape(len(weight), length, num, -1)


def _fill(
    parameter_gradients: Sequence[Array], of_inputs: Array, of_state: Array, inputs: Array, before: Array
) -> None:
    """The gradients of both weights and of the bias, over all steps at once."""
    num = len(of_inputs)
    flat = of_inputs.reshape(num, -1, of_inputs.shape[-1]).swapaxes(-1, -2)
    np.matmul(flat, inputs.reshape(-1, inputs.shape[-1]), out=parameter_gradients[0])
    flat_of_state = of_state.reshape(num, -1, of_state.shape[-1]).swapaxes(-1, -2)
    np.matmul(flat_of_state, before.reshape(num, -1, before.shape[-1]), out=parameter_gradients[1])
    np.sum(flat, axis=-1, out=parameter_gradients[2])
