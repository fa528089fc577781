"""Normalisation, convolutions, layers of parts and recurrent cells in NumPy, as torch to rounding, but without torch.

As for `NumpyActor`, the outputs for an observation do not depend on the number of observations: each image passes
through the convolutions by itself, and the products of cells are always of `CHUNK` rows.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hybridppo.networks.numpy_mlp import CHUNK, ArrayActor, NumpyActivation, NumpyActor
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart

LIMIT = 10.0
"""Normalised numbers are clipped to +- this."""
_HIGHEST, _LOWEST = np.array(LIMIT, np.float32), np.array(-LIMIT, np.float32)
# As arrays, because NumPy would convert a number in each step.
EPSILON = 1e-8
"""Added to a variance, because it may be 0."""


class NumpyNormalizer:
    """Normalises rows, as `ObservationNormalizer`. The moments are copied.

    Args:
        layout: the layout of a row.
        mean: mean of each number of a row.
        variance: variance of each number of a row.
    """

    def __init__(self, layout: RowLayout, mean: Array, variance: Array) -> None:
        self._layout = layout
        times = layout.num_numbers // len(mean)  # if rows are stacks of frames, all frames are normalised alike
        self._mean = np.tile(mean, times)
        self._scale: Array = np.tile(np.float32(1.0) / np.sqrt(variance + np.float32(EPSILON)), times)
        self._rows = np.empty((0, *layout.shape), layout.dtype)

    @property
    def moments(self) -> Array:
        """`[2, *row]`: what is subtracted from the numbers of an observation, and the factor afterwards."""
        return np.stack((self._mean, self._scale)).astype(np.float32, copy=False)

    def __call__(self, observations: Array) -> Array:
        """Normalised rows `[N, *row]`; the result is reused by the next call."""
        if len(observations) != len(self._rows):
            self._rows = np.empty(observations.shape, observations.dtype)
            self._numbers = self._layout.numbers(self._rows)
        if self._layout.images:
            self._rows[:] = observations
        numbers = self._numbers
        np.subtract(self._layout.numbers(observations), self._mean, out=numbers)
        np.multiply(numbers, self._scale, out=numbers)
        np.minimum(numbers, _HIGHEST, out=numbers)
        np.maximum(numbers, _LOWEST, out=numbers)
        return self._rows


class EncodedTwin(NamedTuple):
    """Describes the layers before an MLP: convolutions of images, and separate layers of the parts of a row."""

    layout: RowLayout
    """Layout of a row."""
    parts: tuple[tuple[RowPart, int], ...]
    """The parts that are seen, each with its number of layers."""
    end: int
    """Index after the last of a row's numbers that belong to a part."""

    @property
    def is_plain(self) -> bool:
        """Whether parts are only chosen: no images, and no layers of their own."""
        return not self.layout.images and not any(num_layers for _, num_layers in self.parts)

    @property
    def mask_end(self) -> int | None:
        """Index after the mask in the output; None if the mask is last."""
        return self.end if self.end == self.layout.num_numbers else None


class NumpyEncoder:
    """Encodes each part of a row by itself: the features of all parts, followed by the rest of the row (a mask).

    Args:
        twin: describes the parts.
        arrays: of the convolutions, image by image, then of the layers, part by part; takes and copies what it needs.
        activation: activation of every layer.
    """

    def __init__(self, twin: EncodedTwin, arrays: Iterator[Array], activation: NumpyActivation) -> None:
        self._layout = layout = twin.layout
        seen = sorted(number for part, _ in twin.parts for number in range(part.images.start, part.images.stop))
        self._images = {
            number: (image, place, _convolutions(image, arrays))
            for number, (image, place) in enumerate(zip(layout.images, layout.image_slices, strict=True))
            if number in seen
        }
        self._parts: list[tuple[RowPart, NumpyActor | None]] = []
        for part, num_layers in twin.parts:
            encoder = None
            if num_layers:  # a NumpyActor whose last layer is not used
                own = list(islice(arrays, 2 * num_layers))
                head = np.zeros((1, len(own[-1])), np.float32), np.zeros(1, np.float32)
                encoder = NumpyActor([*own, *head], activation)
            self._parts.append((part, encoder))
        self._rest = slice(twin.end, layout.num_numbers)
        is_one = twin.is_plain and len(twin.parts) == 1 and twin.end == layout.num_numbers
        self.numbers = twin.parts[0][0].numbers if is_one else None
        """The numbers of a row that it returns, if it does nothing else; else None."""

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, features]`."""
        numbers = self._layout.numbers(observations)
        features = {number: self._features(number, observations) for number in self._images}
        joined: list[Array] = []
        for part, encoder in self._parts:
            images = [features[number] for number in range(part.images.start, part.images.stop)]
            seen = np.concatenate((numbers[:, part.numbers], *images), axis=1)
            if encoder is not None:
                encoder(seen)
                seen = encoder.features
            joined.append(seen)
        return np.concatenate((*joined, numbers[:, self._rest]), axis=1)

    def _features(self, number: int, observations: Array) -> Array:
        """The output of the convolutions of one image, `[N, features]`."""
        image, place, layers = self._images[number]
        pixels = observations if self._layout.is_one_image else observations[:, place].reshape(-1, *image.shape)
        if image.channels_first:
            # As bytes, since a transposed view becomes floats at a third of the speed.
            pixels = np.stack([*pixels.swapaxes(0, 1)], -1)
        features = np.empty((len(pixels), image.num_features), np.float32)
        for values, out in zip(pixels, features, strict=True):
            for layer in layers:
                values = layer(values)
            out[:] = values.ravel()
        return features


def _convolutions(image: ImageLayout, arrays: Iterator[Array]) -> "list[_Convolution]":
    """The convolutions of an image, from weights `[filters, channels, kernel, kernel]` and biases `[filters]`."""
    sizes = zip(pairwise(image.sizes), image.convolutions, strict=True)
    layers = [_Convolution(*size, stride, next(arrays), next(arrays)) for size, (_, _, stride) in sizes]
    layers[0].weight /= np.float32(255.0)  # scale the weights instead of the bytes
    return layers


class _Convolution:
    """One convolution with ReLU, for an image of `size` (height, width, channels).

    It is a product: each patch is copied to a row, which is multiplied with all filters at once. The patches of one
    image stay in the cache.
    """

    def __init__(
        self, size: tuple[int, int, int], next_size: tuple[int, int, int], stride: int, weight: Array, bias: Array
    ) -> None:
        filters, channels, kernel, _ = weight.shape
        height, width, _ = next_size
        # [filters, channels, kernel, kernel] -> [kernel * kernel * channels, filters]
        self.weight = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, filters))
        self._bias = bias.copy()
        self._image = np.empty(size, np.float32)
        windows = sliding_window_view(self._image, (kernel, kernel), axis=(0, 1))[::stride, ::stride]
        # [height, width, channels, kernel, kernel] -> [height, width, kernel, kernel, channels]
        self._windows = windows.transpose(0, 1, 3, 4, 2)
        self._patches = np.empty(self._windows.shape, np.float32)
        self._rows = self._patches.reshape(height * width, kernel * kernel * channels)
        self._out = np.empty(next_size, np.float32)
        self._products = self._out.reshape(height * width, filters)

    def __call__(self, image: Array) -> Array:
        """`[height, width, channels] -> [height, width, filters]`; the result is reused by the next call."""
        self._image[:] = image
        self._patches[:] = self._windows
        np.dot(self._rows, self.weight, out=self._products)
        self._products += self._bias
        np.maximum(self._products, 0.0, out=self._products)
        return self._out


class CellTwin(NamedTuple):
    """The kind and the size of a cell."""

    kind: Literal["lstm", "gru"]
    size: int

    @property
    def num_arrays(self) -> int:
        """Number of its parameter arrays."""
        return 3 if self.kind == "lstm" else 4

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
        mask_end: index after the last input of the mask; None if the mask is last.
        before: functions that make the inputs of the cell from rows, one after the other.
    """

    def __init__(
        self,
        form: CellTwin,
        cell: Sequence[Array],
        network: NumpyActor,
        mask_size: int,
        mask_end: int | None = None,
        before: Sequence[Callable[[Array], Array]] = (),
    ) -> None:
        self._is_lstm, self._size, self._network, self._mask_size = form.kind == "lstm", form.size, network, mask_size
        self._before = before
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
        for step in self._before:
            observations = step(observations)
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


CELLS: dict[str, tuple[Callable[[Sequence[Array], int], Array], Callable[[NumpyRecurrentActor], None]]] = {
    "lstm": (_lstm_weight, NumpyRecurrentActor.advance_lstm),
    "gru": (_gru_weight, NumpyRecurrentActor.advance_gru),
}
"""For each kind of cell, functions that make its weights from its parameters and that make a step."""
