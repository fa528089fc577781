"""Multilayer perceptrons in NumPy: the same arithmetic as `networks.MLP` to rounding, without torch's dispatcher.

For small networks on a CPU, most of torch's time is overhead, and its tanh is slow on some machines. Workers use this
file without torch.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hybridppo.spaces.arrays import Array

NumpyActivation = Literal["tanh", "relu"]

CHUNK = 8
FORBIDDEN = -1e8
"""The logit of a forbidden action: its probability and its gradient are 0."""


class ArrayActor:
    """An actor for a sampler: host arrays in, host arrays out. `NumpyTwin.actor` sets both attributes."""

    parameters: Sequence[Array] = ()
    """All parameter arrays, in the order of `networks.actors.arrays_of`."""
    version = 0
    """Version of the parameters."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        raise NotImplementedError


class NumpyActor(ArrayActor):
    """An MLP with its own copy of the parameters, since a rollout does not change them.

    Each weight has its bias as a last column, and each layer's input a last row of ones: one product instead of a
    product and a sum.

    The outputs for an observation do not depend on the number of observations. A BLAS may round differently for other
    shapes of a product, so observations pass as columns in chunks of `CHUNK`; if this machine's BLAS is found to round
    alike, all pass in one product.

    Args:
        parameters: weights `[outputs, inputs]` and biases `[outputs]` in turn, first layer to last, in torch's order;
            before them the log standard deviations `[d]` of a Gaussian actor.
        activation: activation of every hidden layer.
        mask_size: how many of the last inputs are a mask of the first outputs.
        before: functions that make the inputs from rows, one after the other.
    """

    def __init__(
        self,
        parameters: Sequence[Array],
        activation: NumpyActivation,
        mask_size: int = 0,
        before: Sequence[Any] = (),
    ) -> None:
        self.own, self.activation, self.before = parameters, activation, before
        """Its own parameters, without those of what is before it."""
        is_gaussian = len(parameters) % 2 == 1
        self._log_std = parameters[0] if is_gaussian else None
        weights, biases = parameters[is_gaussian::2], parameters[is_gaussian + 1 :: 2]
        # [outputs, inputs] and [outputs] -> [inputs + 1, outputs]
        layers = [_with_bias(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        # Used as [outputs, inputs + 1] without a copy: OpenBLAS then rounds products of any width alike.
        self._layers, self._head = [layer.T for layer in layers[:-1]], layers[-1]
        self._multiply: Callable[..., Array] = np.matmul
        self._activate = np.tanh if activation == "tanh" else _relu
        self.has_mask, self._mask_size = mask_size > 0, mask_size
        """Whether the inputs have a mask."""
        self._num_rows = -1

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        for step in self.before:
            observations = step(observations)
        if len(observations) != self._num_rows:
            self._allocate(len(observations))
        self._observations[...] = observations
        for layer, inputs, outputs in self._hidden:
            self._multiply(layer, inputs, out=outputs)
            self._activate(outputs, out=outputs)
        self._multiply(self._last, self._head, out=self._products)
        if self.has_mask:
            self._means[:, : self._mask_size][observations[:, -self._mask_size :] == 0.0] = FORBIDDEN
        if self._log_std is None:
            return self._means
        self._outputs[:, : self._means.shape[1]] = self._means
        return self._outputs

    @property
    def features(self) -> Array:
        """The last hidden layer's outputs of the last call, `[N, L]`."""
        last = self._last.reshape(-1, self._last.shape[-1])
        return last[: self._num_rows, :-1]

    def _allocate(self, num_rows: int) -> None:
        """Allocate arrays for `num_rows` observations, in the widest products that give the same bits."""
        num_columns = -(-num_rows // CHUNK) * CHUNK
        sizes = (*(layer.shape[1] - 1 for layer in self._layers), len(self._head) - 1, self._head.shape[1])
        self._lay_out(num_rows, num_columns if _rounds_alike(sizes, num_columns) else CHUNK)

    def _lay_out(self, num_rows: int, width: int) -> None:
        """Lay out products of `width` columns: layers take `[chunks, inputs + 1, width]`, with a last row of ones."""
        self._num_rows = num_rows
        num_chunks = -(-num_rows // width)
        # For a single chunk, np.dot has less overhead.
        leading, self._multiply = ((), np.dot) if num_chunks == 1 else ((num_chunks,), np.matmul)
        sizes = [layer.shape[1] for layer in self._layers] + [len(self._head)]
        inputs = [np.ones((*leading, size, width), np.float32) for size in sizes]
        outputs = [following[..., :-1, :] for following in inputs[1:]]
        self._hidden = list(zip(self._layers, inputs[:-1], outputs, strict=True))
        self._last = inputs[-1].swapaxes(-1, -2)
        self._products = np.empty((*leading, width, self._head.shape[1]), np.float32)
        self._means = self._products.reshape(num_chunks * width, -1)[:num_rows]
        # Written row by row, with room for whole chunks; the first layer sees columns.
        rows = np.zeros((num_chunks * width, sizes[0]), np.float32)
        rows[:, -1] = 1.0
        self._observations = rows[:num_rows, :-1]
        first = rows.reshape(*leading, width, sizes[0]).swapaxes(-1, -2)
        self._hidden[0] = (self._layers[0], first, outputs[0])
        if self._log_std is not None:
            self._outputs = np.empty((num_rows, self._head.shape[1] + len(self._log_std)), np.float32)
            self._outputs[:, self._head.shape[1] :] = self._log_std


def _with_bias(weight: Array, bias: Array) -> Array:
    """`[inputs + 1, outputs]`, the bias below the transposed weight."""
    layer = np.empty((weight.shape[1] + 1, len(weight)), np.float32)
    layer[:-1], layer[-1] = weight.T, bias
    return layer


@cache
def _rounds_alike(sizes: tuple[int, ...], num_columns: int) -> bool:
    """Whether an MLP of these sizes gives the same bits for `num_columns` observations at once as for `CHUNK`.

    This depends on the BLAS and on shapes, not on values, so it is tried with random values, once for each shape.
    """
    if num_columns == CHUNK:
        return True
    generator = np.random.default_rng(0)

    def random(*shape: int) -> Array:
        return generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5)

    actor = NumpyActor([random(*shape) for i, o in pairwise(sizes) for shape in ((o, i), (o,))], "tanh")
    for _ in range(8):
        observations = random(num_columns, sizes[0])
        actor._lay_out(num_columns, CHUNK)
        in_chunks = actor(observations).copy()
        actor._lay_out(num_columns, num_columns)
        if not np.array_equal(actor(observations), in_chunks):
            return False
    return True


def _relu(inputs: Array, out: Array) -> None:
    np.maximum(inputs, 0.0, out=out)
