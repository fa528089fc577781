"""Forward and backward passes of multilayer perceptrons that are compiled; Python never calls these functions.

Rows of numbers have one stride for all layers and are padded with 0, so products consist of whole tiles. The result of
a row depends on that row only, and sums over rows are computed in their order: the bits do not depend on how many rows
are passed at once.
"""

import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np

from hybridppo.compiled.sources import Texts

NARROW = 8
"""Columns of the narrowest tile; widths are rounded up to multiples of it."""
MOST_ROWS = 8
"""Rows of the highest tile."""
MOST_INNER = 128
"""Terms that are summed at once, so that this part of a tile's columns fits into the cache closest to a core."""


def rows_of_a_tile() -> int:
    """Rows of a tile, by the processor's registers."""
    raise NotImplementedError


def columns_of_a_tile() -> int:
    """Columns of a tile, by the processor's registers."""
    raise NotImplementedError


def wide_tile(left: Any, i: int, right: Any, j: int, out: Any, k: int, end: int, start: Any, stride: int) -> None:
    """`out[i, j] = start[i * stride + j] + left[i, k:end] @ right[k:end, j]` for a tile: `intrinsics.py`."""
    raise NotImplementedError


def narrow_tile(left: Any, i: int, right: Any, j: int, out: Any, k: int, end: int, start: Any, stride: int) -> None:
    """As `wide_tile`, for `NARROW` columns."""
    raise NotImplementedError


def tell_number(numbers: Any, index: int, value: int) -> None:
    """`numbers[index] = value`, visible to others after all earlier writes."""
    raise NotImplementedError


def number_told(numbers: Any, index: int) -> int:
    """`numbers[index]` as another thread has written it."""
    raise NotImplementedError


def give_way() -> None:
    """Yield this core for a moment."""
    raise NotImplementedError


GIVEN = (wide_tile, narrow_tile, rows_of_a_tile, columns_of_a_tile, tell_number, number_told, give_way)
"""The functions that `text_of_intrinsics` writes before a module's functions."""


DEFINITIONS = """

f, i, b, d, u = numba.float32, numba.int64, numba.boolean, numba.float64, numba.none
group = lambda *types: numba.types.Tuple(types)
wide_tile, narrow_tile = tile({rows}, {lanes}, 2), tile({rows}, 8, 1)
rows_of_a_tile = numba.njit(lambda: {rows})
columns_of_a_tile = numba.njit(lambda: {lanes} * 2)
"""


def tiles_for(features: Mapping[str, bool]) -> tuple[int, int]:
    """The rows of a tile, and the numbers of a vector; a tile is two vectors wide. The bits do not depend on them.

    With AVX-512, registers are twice as wide, and there are twice as many.
    """
    return (8, 16) if features.get("avx512f", False) else (4, 8)


def text_of_intrinsics() -> str:
    """The functions that this file only declares, for this processor, and Numba's types by short names."""
    import llvmlite.binding

    rows, lanes = tiles_for(llvmlite.binding.get_host_cpu_features())
    intrinsics = (resources.files("hybridppo.compiled") / "intrinsics.py").read_text(encoding="utf-8")
    return intrinsics + DEFINITIONS.format(rows=rows, lanes=lanes)


def up_to_whole(size: int) -> int:
    """A width rounded up to whole tiles."""
    return (size + NARROW - 1) // NARROW * NARROW


def multiply_all(
    left: Any, right: Any, out: Any, num_rows: int, num_inner: int, num_columns: int, start: Any, stride: int
) -> None:
    """`out = start + left @ right`, for whole tiles of rows and columns; every row has the same start with stride 0."""
    add_products(left, right, out, num_rows, 0, min(num_inner, MOST_INNER), num_columns, start, stride)
    for k in range(MOST_INNER, num_inner, MOST_INNER):  # sums continue in place
        add_products(left, right, out, num_rows, k, min(num_inner, k + MOST_INNER), num_columns, out, out.shape[1])


def add_products(
    left: Any, right: Any, out: Any, num_rows: int, k: int, end: int, num_columns: int, start: Any, stride: int
) -> None:
    """`out = start + left[:, k:end] @ right[k:end]`."""
    wide = num_columns // columns_of_a_tile() * columns_of_a_tile()
    for j in range(0, wide, columns_of_a_tile()):
        for i in range(0, num_rows, rows_of_a_tile()):
            wide_tile(left, i, right, j, out, k, end, start, stride)
    for j in range(wide, num_columns, NARROW):
        for i in range(0, num_rows, rows_of_a_tile()):
            narrow_tile(left, i, right, j, out, k, end, start, stride)


def pack(values: Any, sizes: Any, offsets: Any, up: Any, down: Any, biases: Any) -> None:
    """Lay out the parameters of a perceptron for `forward` and `backward`.

    Args:
        values: `[P]`, all parameters.
        sizes: `[L + 1]`, the sizes of the layers.
        offsets: `[L, 2]`, where weights and biases begin.
        up: `[L, *, *]`, written: weights by inputs.
        down: `[L, *, *]`, written: weights by outputs.
        biases: `[L, 1, *]`, written.
    """
    for layer in range(len(sizes) - 1):
        weight, bias = matrices(values, sizes, offsets, layer)
        for o in range(len(weight)):
            biases[layer, 0, o] = bias[o]
            for k in range(weight.shape[1]):
                up[layer, k, o] = weight[o, k]
                down[layer, o, k] = weight[o, k]


def matrices(values: Any, sizes: Any, offsets: Any, layer: int) -> tuple[Any, Any]:
    """The weight `[outputs, inputs]` and the bias of a layer as views of all parameters; arguments as of `pack`."""
    inputs, outputs, weight, bias = sizes[layer], sizes[layer + 1], offsets[layer, 0], offsets[layer, 1]
    return values[weight : weight + inputs * outputs].reshape(outputs, inputs), values[bias : bias + outputs]


def forward(sizes: Any, up: Any, biases: Any, blocks: Any, num_rows: int, is_tanh: bool) -> None:
    """Write the outputs of every layer into `blocks[layer + 1]`, for the inputs in `blocks[0]`."""
    num_layers = len(sizes) - 1
    for layer in range(num_layers):
        width = up_to_whole(sizes[layer + 1])
        out = blocks[layer + 1]
        multiply_all(blocks[layer], up[layer], out, num_rows, sizes[layer], width, biases[layer], 0)
        if layer < num_layers - 1:
            activate(out, num_rows, width, is_tanh)


def activate(rows: Any, num_rows: int, width: int, is_tanh: bool) -> None:
    """Apply tanh or ReLU to the first rows, in place."""
    for row in range(num_rows):
        if is_tanh:
            tanh_all(rows[row], width)
        else:
            relu_all(rows[row], width)


def backward(
    sizes: Any, down: Any, blocks: Any, deltas: Any, weights: Any, biases: Any, nothing: Any, num_rows: int,
    is_tanh: bool,
) -> None:  # fmt: skip
    """Add the gradients of weights and biases, given that of the outputs in `deltas[(L - 1) % 2]`.

    Args:
        sizes: `[L + 1]`.
        down: as written by `pack`.
        blocks: as written by `forward`.
        deltas: `[2, rows, *]`; used in turns.
        weights: `[L, *, *]`, added to.
        biases: `[L, 1, *]`, added to.
        nothing: `[1, *]` zeros.
        num_rows: rows of the block.
        is_tanh: whether hidden layers have tanh (else ReLU).
    """
    for layer in range(len(sizes) - 2, -1, -1):
        inputs, outputs = up_to_whole(sizes[layer]), up_to_whole(sizes[layer + 1])
        here, below, seen, gradient = deltas[layer % 2], deltas[(layer + 1) % 2], blocks[layer], weights[layer]
        multiply_all(here.T, seen, gradient, outputs, num_rows, inputs, gradient, gradient.shape[1])
        for row in range(num_rows):
            for o in range(outputs):
                biases[layer, 0, o] += here[row, o]
        if layer > 0:
            multiply_all(here, down[layer], below, num_rows, sizes[layer + 1], inputs, nothing, 0)
            for row in range(num_rows):
                if is_tanh:
                    through_tanh(below[row], seen[row], inputs)
                else:
                    through_relu(below[row], seen[row], inputs)


def write_gradient(gradient: Any, sizes: Any, offsets: Any, weights: Any, biases: Any) -> None:
    """Copy the result of `backward` into the gradient `[P]`, at the parameters of the perceptron."""
    for layer in range(len(sizes) - 1):
        weight, bias = matrices(gradient, sizes, offsets, layer)
        for o in range(len(weight)):
            bias[o] = biases[layer, 0, o]
            for k in range(weight.shape[1]):
                weight[o, k] = weights[layer, o, k]


def through_tanh(gradient: Any, activation: Any, num: int) -> None:
    """Multiply by the derivative of tanh, in place."""
    for o in range(num):
        gradient[o] *= np.float32(1.0) - activation[o] * activation[o]


def through_relu(gradient: Any, activation: Any, num: int) -> None:
    """Multiply by the derivative of ReLU, in place."""
    for o in range(num):
        gradient[o] *= np.float32(activation[o] > np.float32(0.0))


def relu_all(values: Any, num: int) -> None:
    """The larger of each and 0, in place."""
    for o in range(num):
        values[o] = max(values[o], np.float32(0.0))


def tanh_all(values: Any, num: int) -> None:
    """The hyperbolic tangent, in place, within 3e-7.

    A quotient of polynomials, as in Eigen (`generic_fast_tanh_float`), which a processor computes for several numbers
    at once. Beyond +-7.9 it is 1 in float32.
    """
    for o in range(num):
        x = min(max(values[o], np.float32(-7.90531110763549805)), np.float32(7.90531110763549805))
        square = x * x
        above = np.float32(-2.76076847742355e-16)
        above = above * square + np.float32(2.00018790482477e-13)
        above = above * square + np.float32(-8.60467152213735e-11)
        above = above * square + np.float32(5.12229709037114e-08)
        above = above * square + np.float32(1.48572235717979e-05)
        above = above * square + np.float32(6.37261928875436e-04)
        above = above * square + np.float32(4.89352455891786e-03)
        below = np.float32(1.19825839466702e-06)
        below = below * square + np.float32(1.18534705686654e-04)
        below = below * square + np.float32(2.26843463243900e-03)
        below = below * square + np.float32(4.89352518554385e-03)
        values[o] = x * above / below


def adam(
    values: Any, gradient: Any, exp_avg: Any, exp_avg_sq: Any, scale: Any, rate: float, beta_1: float, beta_2: float,
    eps: float, step: float,
) -> None:  # fmt: skip
    """Make the `step`th step of parameters `[N]` along their gradient, which is scaled in place.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
    """
    keep, decay = np.float32(1.0 - beta_1), np.float32(beta_2)
    add, small = np.float32(1.0 - beta_2), np.float32(eps)
    stride = np.float32(rate / (1.0 - beta_1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - beta_2**step))
    for k in range(len(values)):
        slope = gradient[k] * scale
        first = exp_avg[k] + keep * (slope - exp_avg[k])
        second = decay * exp_avg_sq[k] + add * slope * slope
        gradient[k], exp_avg[k], exp_avg_sq[k] = slope, first, second
        values[k] -= stride * first / (math.sqrt(second) * root + small)


CONTRACTED: Texts = dict.fromkeys((tanh_all, relu_all, through_tanh, through_relu), "contracted")
"""Decorators of functions that may round a product and a sum at once: in networks, never in an environment."""
