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
            left_type, _, right_type, _, out_type, _, _, start_type, _ = signature.args
            left, i, right, j, out, first_inner, end, start, stride = arguments
            number = i.type
            vector = ir.VectorType(ir.FloatType(), lanes)
            nothing = ir.Constant(vector, ir.Undefined)
            fused = ("contract",)

            def array(kind: Any, value: Any) -> tuple[Any, list[Any]]:
                """The memory of an array, and its strides in numbers."""
                if kind.layout not in ("C", "F"):
                    raise TypeError(f"tiles are of arrays that lie in one piece, not of {kind}")
                made = target.make_array(kind)(target, builder, value)
                one = ir.Constant(number, 1)
                strides = [
                    builder.sdiv(each, ir.Constant(number, 4)) for each in cgutils.unpack_tuple(builder, made.strides)
                ]
                return made.data, [strides[0], one] if kind.layout == "C" else [one, strides[1]]

            def at(memory: Any, *terms: Any) -> Any:
                offset = terms[0]
                for term in terms[1:]:
                    offset = builder.add(offset, term)
                return builder.gep(memory, [offset])

            def nth(first: Any, n: int) -> Any:
                return builder.add(first, ir.Constant(number, n))

            def vector_at(memory: Any, offset: int) -> Any:
                return builder.bitcast(builder.gep(memory, [ir.Constant(number, offset)]), vector.as_pointer())

            left_data, (left_row, left_column) = array(left_type, left)
            right_data, (right_row, _) = array(right_type, right)
            out_data, (out_row, _) = array(out_type, out)
            start_data, _ = array(start_type, start)
            sums = []
            for row in range(rows):
                memory = at(start_data, builder.mul(nth(i, row), stride), j)
                for v in range(vectors):
                    first = builder.load(vector_at(memory, v * lanes))
                    first.align = 4
                    sums.append(cgutils.alloca_once_value(builder, first))
                    builder.store(first, sums[-1])
            with cgutils.for_range(builder, builder.sub(end, first_inner), intp=number) as loop:
                k = builder.add(loop.index, first_inner)
                memory = at(right_data, builder.mul(k, right_row), j)
                rights = []
                for v in range(vectors):
                    rights.append(builder.load(vector_at(memory, v * lanes)))
                    rights[-1].align = 4
                for row in range(rows):
                    memory = at(left_data, builder.mul(nth(i, row), left_row), builder.mul(k, left_column))
                    factor = builder.insert_element(nothing, builder.load(memory), ir.Constant(ir.IntType(32), 0))
                    same = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                    factor = builder.shuffle_vector(factor, nothing, same)
                    for v in range(vectors):
                        total = sums[row * vectors + v]
                        product = builder.fmul(factor, rights[v], flags=fused)
                        builder.store(builder.fadd(product, builder.load(total), flags=fused), total)
            for row in range(rows):
                memory = at(out_data, builder.mul(nth(i, row), out_row), j)
                for v in range(vectors):
                    stored = builder.store(builder.load(sums[row * vectors + v]), vector_at(memory, v * lanes))
                    stored.align = 4
            return target.get_dummy_value()

        return types.void(left, i, right, j, out, k, end, start, stride), generate

    return multiply_tile  # type: ignore[no-any-return]


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
