"""Actors in NumPy, equal to torch's to rounding; and their description apart from their parameters.

A network's twin describes it, so that worker processes, and all placements that sample on the CPU, can make it in
NumPy: for small networks most of torch's time is overhead. Workers use this file without torch.

The outputs for an observation do not depend on the number of observations: a multilayer perceptron's products round
alike (`NumpyActor`), each image passes through the convolutions by itself, and cells have products of `CHUNK` rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice, pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hybridppo.distributions.state_dependent import VARIANCE_EPSILON
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart

NumpyActivation = Literal["tanh", "relu"]

CHUNK = 8
FORBIDDEN = -1e8
"""The logit of a masked action: its probability and its gradient are 0."""


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
        self, parameters: Sequence[Array], activation: NumpyActivation, mask_size: int = 0, before: Sequence[Any] = ()
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


class NumpyRecurrentActor(ArrayActor):
    """A recurrent actor: a cell and an actor of its output. A call advances the state.

    Args:
        cell: parameters of the cell, in torch's order; copied.
        network: the actor that takes the cell's output.
        mask_size: how many of the last inputs of the cell are a mask, which the network takes, too.
        before: functions that make the inputs of the cell from rows, one after the other.
    """

    num_arrays: ClassVar[int]
    """Number of the parameters of the cell."""
    num_states: ClassVar[int]
    """The length of the state, in multiples of the cell's output."""
    num_sigmoids: ClassVar[int]
    """How many of the four products of a step are gates."""

    def __init__(
        self,
        cell: Sequence[Array],
        network: NumpyActor,
        mask_size: int,
        before: Sequence[Callable[[Array], Array]] = (),
    ) -> None:
        self._network, self._mask_size, self._before = network, mask_size, before
        self._size, self._num_inputs = cell[1].shape[1], cell[0].shape[1]
        self._weight = self._joined(*cell)
        # sigmoid(x) = (1 + tanh(x / 2)) / 2, so the weights of gates are halved, which is exact.
        self._weight[:, : self.num_sigmoids * self._size] *= 0.5
        self._allocate(0)

    def _joined(self, *parameters: Array) -> Array:
        """`[inputs + H + 1, 4 * H]`: the weights of inputs, last output and 1 for all four products."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Compute the next state from the products."""
        raise NotImplementedError

    @property
    def state(self) -> Array:
        """`[N, state_size]`, a copy."""
        return np.concatenate([part[: self._num_rows] for part in self._states], axis=1)

    @state.setter
    def state(self, state: Array) -> None:
        if len(state) != self._num_rows:
            self._allocate(len(state))
        for part, own in zip(self._states, np.split(state, self.num_states, axis=1), strict=True):
            part[: len(state)] = own

    def forget(self, envs: Array) -> None:
        """Set the state of some environments, `[N]` bool, to zero."""
        for part in self._states:
            part[: self._num_rows][envs] = 0.0

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        for step in self._before:
            observations = step(observations)
        num_rows = len(observations)
        if num_rows != self._num_rows:
            self._allocate(num_rows)
        self._inputs[:num_rows] = observations
        np.matmul(self._chunks, self._weight, out=self._products)
        self._advance()
        hidden = self._states[0][:num_rows]
        if not self._mask_size:
            return self._network(hidden)
        self._remembered[:, : self._size] = hidden
        self._remembered[:, self._size :] = observations[:, -self._mask_size :]
        return self._network(self._remembered)

    def _allocate(self, num_rows: int) -> None:
        """Allocate arrays for `num_rows` observations, with a state of zeros."""
        self._num_rows, size = num_rows, self._size
        num_chunks = max(1, -(-num_rows // CHUNK))
        # Inputs, the cell's last output, and ones for the bias.
        rows = np.zeros((num_chunks * CHUNK, len(self._weight)), np.float32)
        rows[:, -1] = 1.0
        self._inputs = rows[:, : self._num_inputs]
        others = [np.zeros((len(rows), size), np.float32) for _ in range(self.num_states)]
        self._states, self._scratch = [rows[:, self._num_inputs : -1], *others[1:]], others[0]
        self._chunks = rows.reshape(num_chunks, CHUNK, -1)
        self._products = np.empty((num_chunks, CHUNK, 4 * size), np.float32)
        gates = self._products.reshape(len(rows), -1)
        self._gates, self._parts = gates, [gates[:, i : i + size] for i in range(0, 4 * size, size)]
        self._sigmoids = gates[:, : self.num_sigmoids * size]
        self._remembered = np.empty((num_rows, size + self._mask_size), np.float32)


class NumpyLSTM(NumpyRecurrentActor):
    """Its cell is that of `networks.recurrent.LSTM`."""

    num_arrays, num_states, num_sigmoids = 3, 2, 3

    def _joined(self, *parameters: Array) -> Array:
        weight_input, weight_state, bias = parameters
        return np.concatenate((weight_input, weight_state, bias[:, None]), axis=1).T.copy()

    def _advance(self) -> None:
        hidden, cell = self._states
        np.tanh(self._gates, out=self._gates)  # one tanh computes all gates
        self._sigmoids *= 0.5
        self._sigmoids += 0.5
        let_in, keep, let_out, new = self._parts
        cell *= keep
        np.multiply(let_in, new, out=self._scratch)
        cell += self._scratch
        np.tanh(cell, out=self._scratch)
        np.multiply(let_out, self._scratch, out=hidden)


class NumpyGRU(NumpyRecurrentActor):
    """Its cell is that of `networks.recurrent.GRU`; the last gate has separate products of inputs and last output."""

    num_arrays, num_states, num_sigmoids = 4, 1, 2

    def _joined(self, *parameters: Array) -> Array:
        weight_input, weight_state, bias, bias_state = parameters
        size, num_inputs = self._size, self._num_inputs
        weight = np.zeros((num_inputs + size + 1, 4 * size), np.float32)
        weight[:num_inputs, : 3 * size], weight[-1, : 3 * size] = weight_input.T, bias
        weight[num_inputs:-1, : 2 * size] = weight_state[: 2 * size].T
        weight[num_inputs:-1, 3 * size :] = weight_state[2 * size :].T
        weight[-1, 3 * size :] = bias_state
        return weight

    def _advance(self) -> None:
        (hidden,) = self._states
        reset, update, new, new_of_state = self._parts
        np.tanh(self._sigmoids, out=self._sigmoids)
        self._sigmoids *= 0.5
        self._sigmoids += 0.5
        new_of_state *= reset
        new += new_of_state
        np.tanh(new, out=new)
        hidden -= new
        hidden *= update
        hidden += new


CELLS: dict[str, type[NumpyRecurrentActor]] = {"lstm": NumpyLSTM, "gru": NumpyGRU}


class NumpyExploringActor(ArrayActor):
    """Means and log standard deviations, and the perturbation by a noise matrix.

    The outputs for an observation do not depend on the number of observations: each sum over features is of one row, in
    an order that follows from the number of features alone.

    Args:
        actor: gives the means and the features.
        log_std: log standard deviations of the entries of a matrix, `[d, L]`; copied.
    """

    def __init__(self, actor: NumpyActor, log_std: Array) -> None:
        self._actor = actor
        self._scale: Array = np.exp(log_std)
        self._variance: Array = self._scale * self._scale
        self._matrices: Array | None = None
        self.perturbation: Array = np.zeros((0, len(log_std)), np.float32)
        """The noise that the last call added, `[N, d]`; reused by the next call."""
        self._outputs = np.zeros((0, 2 * len(log_std)), np.float32)

    def explore(self, noise: Array) -> None:
        """Use standard normal noise `[N, d * L]` for the next calls."""
        self._matrices = noise.reshape(len(noise), *self._scale.shape) * self._scale

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, 2 * d]`; the result is reused by the next call."""
        means = self._actor(observations)
        num_rows, size = means.shape
        if len(self._outputs) != num_rows:
            self._outputs = np.empty((num_rows, 2 * size), np.float32)
            self._products = np.empty((num_rows, *self._scale.shape), np.float32)
            self.perturbation = np.zeros((num_rows, size), np.float32)
        features = self._actor.features[:, None, :]
        products, log_std = self._products, self._outputs[:, size:]
        self._outputs[:, :size] = means
        # [N, 1, L] and [d, L] -> [N, d, L] -> [N, d]
        np.multiply(features * features, self._variance, out=products)
        log_std[:] = np.float32(0.5) * np.log(products.sum(-1) + np.float32(VARIANCE_EPSILON))
        if self._matrices is not None and len(self._matrices) == num_rows:
            np.multiply(features, self._matrices, out=products)
            np.add.reduce(products, axis=-1, out=self.perturbation)
        return self._outputs


Agents = Sequence[Sequence[int]]
Layouts = Sequence[RowLayout] | None
"""For each policy, the layout of its rows, if policies take other rows; else None."""


class NumpyPoliciesActor(ArrayActor):
    """`networks.actors.PoliciesActor` in NumPy: the actors of several policies as one.

    Args:
        actors: the actor of each policy.
        agents: for each policy, which of the `A` agents of an environment are its own.
        layouts: as for `PoliciesActor`.
        state_sizes: for each policy, the numbers in the state of its actor; 0 without a memory.
    """

    def __init__(
        self, actors: Sequence[Any], agents: Agents, layouts: Layouts = None, state_sizes: Sequence[int] = ()
    ) -> None:
        self.actors, self.agents, self._layouts = actors, agents, layouts
        self._num_agents = sum(map(len, agents))
        parts = zip(actors, agents, state_sizes, strict=False)
        self._remembering = [(actor, own, size) for actor, own, size in parts if size]
        self._state_size, self._num_envs = max(state_sizes, default=0), 0

    @property
    def state(self) -> Array:
        """`[N, state_size]`, a copy; the state of each policy comes first in its rows, and then zeros."""
        state = np.zeros((self._num_envs, self._num_agents, self._state_size), np.float32)
        for actor, own, size in self._remembering:
            state[:, own, :size] = actor.state.reshape(-1, len(own), size)
        return state.reshape(-1, self._state_size)

    @state.setter
    def state(self, state: Array) -> None:
        apart = state.reshape(-1, self._num_agents, self._state_size)
        self._num_envs = len(apart)
        for actor, own, size in self._remembering:
            actor.state = apart[:, own, :size].reshape(-1, size)

    def forget(self, envs: Array) -> None:
        """Set the state of some rows, `[N]` bool, to zero."""
        apart = envs.reshape(-1, self._num_agents)
        for actor, own, _ in self._remembering:
            actor.forget(apart[:, own].ravel())

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; row `i` belongs to agent `i % A`."""
        rows = observations.reshape(-1, self._num_agents, *observations.shape[1:])
        found: list[Array] = []
        for number, (actor, own) in enumerate(zip(self.actors, self.agents, strict=True)):
            taken = rows[:, own].reshape(-1, *observations.shape[1:])
            found.append(actor(taken if self._layouts is None else self._layouts[number].own(taken)).copy())
        outputs = np.zeros((len(rows), self._num_agents, max(part.shape[-1] for part in found)), np.float32)
        for own, part in zip(self.agents, found, strict=True):
            outputs[:, own, : part.shape[-1]] = part.reshape(len(rows), len(own), -1)
        return outputs.reshape(len(observations), -1)


@dataclass(frozen=True)
class NumpyTwin:
    """Describes the actor that parameters belong to."""

    activation: NumpyActivation
    """Activation of every hidden layer."""
    mask_size: int = 0
    """Length of the mask, the last numbers of a row."""
    encoded: EncodedTwin | None = None
    """What precedes the hidden layers: convolutions, or separate layers of the parts of a row; else None."""
    columns: Any = field(default_factory=lambda: slice(None), compare=False)
    """The numbers of a row that the hidden layers see, as an index; None if they see something else."""
    cell: Literal["lstm", "gru"] | None = None
    """The kind of the recurrent cell, if the actor has one; else None."""
    cell_size: int = 0
    """Length of the output of the cell."""
    normalizes: RowLayout | None = None
    """Layout of a row, if rows are normalised first; else None."""
    explores: bool = False
    """Whether exploration depends on the state: the first parameter then belongs to the noise."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """The actor, from its arrays in the order of `networks.actors.arrays_of`."""
        own, before = list(parameters), list[Callable[[Array], Array]]()
        if self.normalizes is not None:
            *own, mean, variance = parameters
            before.append(NumpyNormalizer(self.normalizes, mean, variance))
        # The log standard deviations of a Gaussian actor are first; behind a cell, `NumpyActor` finds them.
        free = [own.pop(0)] if self.cell is None and len(own) % 2 else []
        rest = iter(own)
        if self.encoded is not None:
            before.append(NumpyEncoder(self.encoded, rest, self.activation))
        actor: ArrayActor
        if self.cell is not None:
            make = CELLS[self.cell]
            cell = list(islice(rest, make.num_arrays))
            actor = make(cell, NumpyActor(list(rest), self.activation, self.mask_size), self.mask_size, before)
        elif self.explores:
            actor = NumpyExploringActor(NumpyActor(list(rest), self.activation, before=before), free[0])
        else:
            actor = NumpyActor([*free, *rest], self.activation, self.mask_size, before)
        actor.parameters, actor.version = parameters, version
        return actor

    @property
    def state_size(self) -> int:
        """Numbers in the state of the cell; 0 without one."""
        return 0 if self.cell is None else CELLS[self.cell].num_states * self.cell_size


@dataclass(frozen=True)
class PoliciesTwin:
    """Describes the actors of several policies, which act as one."""

    twins: tuple[NumpyTwin, ...]
    num_arrays: tuple[int, ...]
    """Number of parameter arrays of each actor."""
    agents: Agents
    layouts: Layouts = None

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """Like `NumpyTwin.actor`."""
        ends = list(accumulate(self.num_arrays))
        parts = [parameters[end - count : end] for end, count in zip(ends, self.num_arrays, strict=True)]
        actors = [twin.actor(part) for twin, part in zip(self.twins, parts, strict=True)]
        state_sizes = [twin.state_size for twin in self.twins]
        actor = NumpyPoliciesActor(actors, self.agents, self.layouts, state_sizes)
        actor.parameters, actor.version = parameters, version
        return actor


def twin_within(module: Any) -> NumpyTwin | None:
    """The twin of a part of a network; None if it has none."""
    make: Callable[[], NumpyTwin | None] = getattr(module, "numpy_twin", lambda: None)
    return make()
