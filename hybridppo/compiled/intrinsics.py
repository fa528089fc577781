"""What Numba's language lacks: a tile of a matrix product in the processor's registers, and memory order of threads.

Never imported: `perceptrons.py` writes this text before a module's functions, so that Numba keeps the compiled result.
"""

import os
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def tile(rows: int, lanes: int, vectors: int) -> Callable[..., None]:
    """The product for a tile of `rows` rows and `vectors` vectors of `lanes` numbers.

    Each number is one sum in order, with product and sum rounded at once if the processor can. Its bits depend on
    neither the size of the tile nor its neighbours.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_tile(
        context: Any, left: Any, i: Any, right: Any, j: Any, out: Any, k: Any, end: Any, start: Any, stride: Any
    ) -> Any:
        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, i, right, j, out, first, end, start, stride = arguments
            kinds, number, vector = signature.args, i.type, ir.VectorType(ir.FloatType(), lanes)
            nothing, fused = ir.Constant(vector, ir.Undefined), ("contract",)

            def array(kind: Any, value: Any) -> Callable[[Any, Any], Any]:
                """A function that gives the address of a number of a matrix."""
                made = target.make_array(kind)(target, builder, value)
                shape, strides = (cgutils.unpack_tuple(builder, each) for each in (made.shape, made.strides))
                return lambda row, column: cgutils.get_item_pointer2(
                    target, builder, made.data, shape, strides, kind.layout, [row, column]
                )

            def vector_at(place: Any, v: int) -> Any:
                return builder.bitcast(builder.gep(place, [ir.Constant(number, v * lanes)]), vector.as_pointer())

            def loaded(place: Any, v: int) -> Any:
                found = builder.load(vector_at(place, v))
                found.align = 4
                return found

            in_left, in_right, in_out = array(kinds[0], left), array(kinds[2], right), array(kinds[4], out)
            start_data = target.make_array(kinds[7])(target, builder, start).data
            places = [(row, v) for row in range(rows) for v in range(vectors)]
            numbers = [builder.add(i, ir.Constant(number, row)) for row in range(rows)]
            sums = {}
            for row, v in places:
                place = builder.gep(start_data, [builder.add(builder.mul(numbers[row], stride), j)])
                sums[row, v] = cgutils.alloca_once_value(builder, loaded(place, v))
            with cgutils.for_range(builder, builder.sub(end, first), intp=number) as loop:
                k = builder.add(loop.index, first)
                rights = [loaded(in_right(k, j), v) for v in range(vectors)]
                for row in range(rows):
                    value = builder.load(in_left(numbers[row], k))
                    factor = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
                    same = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                    factor = builder.shuffle_vector(factor, nothing, same)
                    for v in range(vectors):
                        product = builder.fmul(factor, rights[v], flags=fused)
                        total = builder.fadd(product, builder.load(sums[row, v]), flags=fused)
                        builder.store(total, sums[row, v])
            for row, v in places:
                stored = builder.store(builder.load(sums[row, v]), vector_at(in_out(numbers[row], j), v))
                stored.align = 4
            return target.get_dummy_value()

        return types.void(left, i, right, j, out, k, end, start, stride), generate

    return multiply_tile


def place_of(target: Any, builder: Any, kind: Any, numbers: Any, index: Any) -> Any:
    """The address of a number of an array."""
    return builder.gep(target.make_array(kind)(target, builder, numbers).data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def tell_number(context: Any, numbers: Any, index: Any, value: Any) -> Any:
    """Write a number of an int64 array, after all earlier writes.

    All writes of a thread before it writes a number are visible to a thread that has read the number: C11's release and
    acquire. Without it, compiler and processor may reorder them.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], place_of(target, builder, signature.args[0], *arguments[:2]), "release", 8)
        return target.get_dummy_value()

    return types.none(types.Array(types.int64, 1, "C"), types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def number_told(context: Any, numbers: Any, index: Any) -> Any:
    """Read a number of an int64 array as another thread has written it."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(place_of(target, builder, signature.args[0], *arguments), "acquire", 8)

    return types.int64(types.Array(types.int64, 1, "C"), types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def give_way(context: Any) -> Any:
    """Yield this core if another thread waits for it; does nothing on Windows."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return target.get_dummy_value()

    return types.none(), generate
