"""Memory order between threads: the text of functions for modules in which threads wait for each other.

Never imported: `update_modules.py` returns this text, so that Numba keeps the compiled result. All writes of a thread
before it writes a number are visible to a thread that has read the number: C11's release and acquire. Without it,
compiler and processor may reorder them.
"""

import os
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def place_of(target: Any, builder: Any, kind: Any, numbers: Any, index: Any) -> Any:
    """The address of a number of an array."""
    return builder.gep(target.make_array(kind)(target, builder, numbers).data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def tell_number(context: Any, numbers: Any, index: Any, value: Any) -> Any:
    """Write a number of an int64 array, after all earlier writes."""

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
