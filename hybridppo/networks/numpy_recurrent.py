"""Recurrent actors in NumPy: the same arithmetic as `networks.recurrent` to rounding, without torch."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from hybridppo.networks.numpy_mlp import CHUNK, ArrayActor, NumpyActor
from hybridppo.spaces.arrays import Array


class CellTwin(NamedTuple):
    """The kind and the size of a cell."""

    kind: Literal["lstm", "gru", "mingru"]
    size: int

    @property
    def state_size(self) -> int:
        """Numbers in the state."""
        return 2 * self.size if self.kind == "lstm" else self.size


class NumpyRecurrentActor(ArrayActor):
    """A recurrent actor: a cell and an actor of its output. A call advances the state.

    The outputs for an observation do not depend on the number of observations, because products are always of `CHUNK`
    rows.

    Args:
        form: kind and size of the cell.
        cell: its parameters, in torch's order; copied.
        network: the actor that takes the cell's output.
        mask_size: how many of the cell's inputs are a mask, which the network takes, too.
        features: computes the inputs of the cell from rows; None if rows are the inputs.
        mask_end: index after the last input of the mask; None if the mask is last.
    """

    def __init__(
        self,
        form: CellTwin,
        cell: Sequence[Array],
        network: NumpyActor,
        mask_size: int,
        features: Callable[[Array], Array] | None = None,
        mask_end: int | None = None,
    ) -> None:
        self._is_lstm, self._size, self._network, self._mask_size = form.kind == "lstm", form.size, network, mask_size
        self._features = features
        self._num_inputs = cell[0].shape[1]
        end = self._num_inputs if mask_end is None else mask_end
        self._mask = slice(end - mask_size, end)
        make_weight, advance = CELLS[form.kind]
        self._weight, self._advance = make_weight(cell, form.size), advance
        self._allocate(0)

    @property
    def state(self) -> Array:
        """`[N, state_size]`, a copy."""
        parts = (self._hidden, self._cell) if self._is_lstm else (self._hidden,)
        return np.concatenate([part[: self._num_rows] for part in parts], axis=1)

    @state.setter
    def state(self, state: Array) -> None:
        if len(state) != self._num_rows:
            self._allocate(len(state))
        self._hidden[: len(state)] = state[:, : self._size]
        if self._is_lstm:
            self._cell[: len(state)] = state[:, self._size :]

    def forget(self, envs: Array) -> None:
        """Set the state of some environments, `[N]` bool, to zero."""
        self._hidden[: self._num_rows][envs] = 0.0
        self._cell[: self._num_rows][envs] = 0.0

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        if self._features is not None:
            observations = self._features(observations)
        num_rows = len(observations)
        if num_rows != self._num_rows:
            self._allocate(num_rows)
        self._inputs[:num_rows] = observations
        np.matmul(self._chunks, self._weight, out=self._products)
        self._advance(self)
        if not self._mask_size:
            return self._network(self._hidden[:num_rows])
        self._remembered[:, : self._size] = self._hidden[:num_rows]
        self._remembered[:, self._size :] = observations[:, self._mask]
        return self._network(self._remembered)

    def advance_lstm(self) -> None:
        """Compute the next state from the products."""
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, and the weights are halved: one tanh computes all gates.
        gates, scratch = self._gates, self._scratch
        np.tanh(gates, out=gates)
        self._sigmoids *= 0.5
        self._sigmoids += 0.5
        let_in, keep, let_out, new = self._parts
        self._cell *= keep
        np.multiply(let_in, new, out=scratch)
        self._cell += scratch
        np.tanh(self._cell, out=scratch)
        np.multiply(let_out, scratch, out=self._hidden)

    def advance_gru(self) -> None:
        """As `advance_lstm`."""
        reset, update, new, new_of_state = self._parts
        np.tanh(self._sigmoids, out=self._sigmoids)
        self._sigmoids *= 0.5
        self._sigmoids += 0.5
        new_of_state *= reset
        new += new_of_state
        np.tanh(new, out=new)
        self._hidden -= new
        self._hidden *= update
        self._hidden += new

    def advance_mingru(self) -> None:
        """As `advance_lstm`."""
        update, new = self._parts
        np.tanh(update, out=update)
        update *= 0.5
        update += 0.5
        new -= self._hidden
        new *= update
        self._hidden += new

    def _allocate(self, num_rows: int) -> None:
        """Allocate arrays for `num_rows` observations, with a state of zeros."""
        self._num_rows, size = num_rows, self._size
        num_chunks = max(1, -(-num_rows // CHUNK))
        # Inputs, the cell's last output, and ones for the bias.
        rows = np.zeros((num_chunks * CHUNK, len(self._weight)), np.float32)
        rows[:, -1] = 1.0
        self._inputs, self._hidden = rows[:, : self._num_inputs], rows[:, self._num_inputs : -1]
        self._chunks = rows.reshape(num_chunks, CHUNK, -1)
        self._products = np.empty((num_chunks, CHUNK, self._weight.shape[1]), np.float32)
        self._gates = self._products.reshape(num_chunks * CHUNK, -1)
        self._sigmoids = self._gates[:, : (3 if self._is_lstm else 2) * size]
        self._parts = [self._gates[:, i : i + size] for i in range(0, self._gates.shape[1], size)]
        self._cell = np.zeros((num_chunks * CHUNK, size), np.float32)
        self._scratch = np.empty_like(self._cell)
        self._remembered = np.empty((num_rows, size + self._mask_size), np.float32)


def _lstm_weight(parameters: Sequence[Array], size: int) -> Array:
    """`[inputs + H + 1, 4 * H]`: the weights of inputs, last output and 1 for all gates."""
    weight_input, weight_state, bias = parameters
    weight = np.concatenate((weight_input, weight_state, bias[:, None]), axis=1).T.copy()
    weight[:, : 3 * size] *= 0.5  # exact
    return weight


def _gru_weight(parameters: Sequence[Array], size: int) -> Array:
    """As `_lstm_weight`, with separate columns for the inputs and for the last output in the last gate."""
    weight_input, weight_state, bias, bias_state = parameters
    num_inputs = weight_input.shape[1]
    weight = np.zeros((num_inputs + size + 1, 4 * size), np.float32)
    weight[:num_inputs, : 3 * size], weight[-1, : 3 * size] = weight_input.T, bias
    weight[num_inputs:-1, : 2 * size] = weight_state[: 2 * size].T
    weight[num_inputs:-1, 3 * size :] = weight_state[2 * size :].T
    weight[-1, 3 * size :] = bias_state
    weight[:, : 2 * size] *= 0.5
    return weight


def _mingru_weight(parameters: Sequence[Array], size: int) -> Array:
    """As `_lstm_weight`, for the update gate and the new value, which do not depend on the last output."""
    weight_input, bias = parameters
    num_inputs = weight_input.shape[1]
    weight = np.zeros((num_inputs + size + 1, 2 * size), np.float32)
    weight[:num_inputs], weight[-1] = weight_input.T, bias
    weight[:, :size] *= 0.5
    return weight


CELLS: dict[str, tuple[Callable[[Sequence[Array], int], Array], Callable[[NumpyRecurrentActor], None]]] = {
    "lstm": (_lstm_weight, NumpyRecurrentActor.advance_lstm),
    "gru": (_gru_weight, NumpyRecurrentActor.advance_gru),
    "mingru": (_mingru_weight, NumpyRecurrentActor.advance_mingru),
}
"""For each kind of cell, functions that make its weights from its parameters and that make a step."""
