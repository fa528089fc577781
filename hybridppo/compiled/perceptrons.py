"""Forward and backward passes of multilayer perceptrons that are compiled; Python never calls these functions.

Rows of numbers have one stride for all layers and are padded with 0, so products consist of whole tiles. The result of
a row depends on that row only, and sums over rows are computed in their order: the bits do not depend on how many rows
are passed at once.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridppo.compiled.sources import Texts

NARROW = 8
"""Columns of the narrowest tile; widths are rounded up to multiples of it."""
MOST_ROWS = 8
"""Rows of the highest tile."""
TURNED = 16
"""Columns of a matrix that are transposed at once, so that their cache lines are used completely."""
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


def middle_tile(left: Any, i: int, right: Any, j: int, out: Any, k: int, end: int, start: Any, stride: int) -> None:
    """As `wide_tile`, for half of its columns."""
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


GIVEN = (
    *(wide_tile, middle_tile, narrow_tile, rows_of_a_tile, columns_of_a_tile),
    *(tell_number, number_told, give_way),
)
"""The functions that `text_of_intrinsics` writes before a module's functions."""


DEFINITIONS = """

f, i, b, d, u = numba.float32, numba.int64, numba.boolean, numba.float64, numba.none
group = lambda *types: numba.types.Tuple(types)
wide_tile, middle_tile, narrow_tile = tile({rows}, {lanes}, 2), tile({rows}, {lanes}, 1), tile({rows}, 8, 1)
rows_of_a_tile = numba.njit(lambda: {rows})
columns_of_a_tile = numba.njit(lambda: {lanes} * 2)
"""


def tiles_for(features: Mapping[str, bool]) -> tuple[int, int]:
    """The rows of a tile, and the numbers of a vector; a tile is two vectors wide. The bits do not depend on them.

    With AVX-512, registers are twice as wide, and there are twice as many.
    """
    return (8, 16) if features.get("avx512f", False) else (4, 8)


def tiles_of_this_machine() -> tuple[int, int]:
    """The result of `tiles_for` for this processor."""
    import llvmlite.binding

    return tiles_for(llvmlite.binding.get_host_cpu_features())


def text_of_intrinsics() -> str:
    """The functions that this file only declares, for this processor, and Numba's types by short names."""
    rows, lanes = tiles_of_this_machine()
    intrinsics = Path(__file__).with_name("intrinsics.py").read_text(encoding="utf-8")
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
    j = 0
    while j + columns_of_a_tile() <= num_columns:
        for i in range(0, num_rows, rows_of_a_tile()):
            wide_tile(left, i, right, j, out, k, end, start, stride)
        j += columns_of_a_tile()
    if j + columns_of_a_tile() // 2 <= num_columns:
        for i in range(0, num_rows, rows_of_a_tile()):
            middle_tile(left, i, right, j, out, k, end, start, stride)
        j += columns_of_a_tile() // 2
    while j < num_columns:
        for i in range(0, num_rows, rows_of_a_tile()):
            narrow_tile(left, i, right, j, out, k, end, start, stride)
        j += NARROW


def pack(values: Any, sizes: Any, offsets: Any, up: Any, down: Any, biases: Any) -> None:
    """Lay out the parameters of a perceptron for `forward` and `backward`.

    Args:
        values: `[P]`, all parameters.
        sizes: `[L + 1]`, the sizes of the layers.
        offsets: `[L, 2]`, where weights and biases begin.
        up: `[L, *, *]`, written: weights by inputs.
        down: `[L, *, *]`, written: weights by outputs, unless they can be used in place.
        biases: `[L, 1, *]`, written.
    """
    for layer in range(len(sizes) - 1):
        pack_up(values, sizes, offsets, layer, up, biases)
        pack_down(values, sizes, offsets, layer, down)


def pack_up(values: Any, sizes: Any, offsets: Any, layer: int, up: Any, biases: Any) -> None:
    """Lay out a layer for `forward`."""
    weight, bias = matrices(values, sizes, offsets, layer)
    for o in range(len(weight)):
        biases[layer, 0, o] = bias[o]
    whole = len(weight) // TURNED * TURNED
    for first in range(0, whole, TURNED):
        for k in range(weight.shape[1]):
            for o in range(TURNED):
                up[layer, k, first + o] = weight[first + o, k]
    for k in range(weight.shape[1]):
        for o in range(whole, len(weight)):
            up[layer, k, o] = weight[o, k]


def pack_down(values: Any, sizes: Any, offsets: Any, layer: int, down: Any) -> None:
    """Lay out a layer for `backward`, unless its weights can be used in place."""
    weight, _ = matrices(values, sizes, offsets, layer)
    if layer > 0 and not is_whole(weight):
        for o in range(len(weight)):
            for k in range(weight.shape[1]):
                down[layer, o, k] = weight[o, k]


def is_whole(weight: Any) -> bool:
    """Whether the rows of a layer are whole tiles."""
    return bool(weight.shape[1] % NARROW == 0)


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
        multiply_all(blocks[layer], up[layer], out, up_to_whole(num_rows), sizes[layer], width, biases[layer], 0)
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
    values: Any,
    sizes: Any,
    offsets: Any,
    down: Any,
    blocks: Any,
    deltas: Any,
    weights: Any,
    biases: Any,
    nothing: Any,
    num_rows: int,
    is_first: bool,
    is_tanh: bool,
) -> None:
    """Add the gradients of weights and biases, given that of the outputs in `deltas[(L - 1) % 2]`.

    Args:
        values: `[P]`, all parameters.
        sizes: `[L + 1]`.
        offsets: `[L, 2]`, where weights and biases begin.
        down: as written by `pack`.
        blocks: as written by `forward`.
        deltas: `[2, rows, *]`; used in turns.
        weights: `[L, *, *]`, added to.
        biases: `[L, 1, *]`, added to.
        nothing: `[1, *]` zeros.
        num_rows: rows of the block.
        is_first: whether to overwrite instead of adding.
        is_tanh: whether hidden layers have tanh (else ReLU).
    """
    for above in range(len(sizes) - 1):
        layer = len(sizes) - 2 - above
        inputs, outputs = up_to_whole(sizes[layer]), up_to_whole(sizes[layer + 1])
        here, seen = deltas[layer % 2], blocks[layer]
        gradient = weights[layer]
        if is_first:
            biases[layer] = np.float32(0.0)
            multiply_all(here.T, seen, gradient, outputs, num_rows, inputs, nothing, 0)
        else:
            multiply_all(here.T, seen, gradient, outputs, num_rows, inputs, gradient, gradient.shape[1])
        add_rows(here, num_rows, outputs, biases[layer, 0])
        if layer > 0:
            pass_down(values, sizes, offsets, layer, down, blocks, deltas, nothing, num_rows, is_tanh)


def pass_down(
    values: Any, sizes: Any, offsets: Any, layer: int, down: Any, blocks: Any, deltas: Any, nothing: Any,
    num_rows: int, is_tanh: bool,
) -> None:  # fmt: skip
    """The gradient of the layer below before its activation, `deltas[(layer + 1) % 2]`; arguments as of `backward`."""
    here, below, seen, inputs = deltas[layer % 2], deltas[(layer + 1) % 2], blocks[layer], up_to_whole(sizes[layer])
    weight, _ = matrices(values, sizes, offsets, layer)
    right = weight if is_whole(weight) else down[layer]
    multiply_all(here, right, below, up_to_whole(num_rows), sizes[layer + 1], inputs, nothing, 0)
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


def add_rows(rows: Any, num_rows: int, width: int, out: Any) -> None:
    """Add rows to `out`, in their order."""
    for row in range(num_rows):
        for o in range(width):
            out[o] += rows[row, o]


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
