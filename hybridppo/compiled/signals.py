"""How threads see what others have written: the text of modules in which threads wait for each other.

Never imported: `meeting.py` gives this text, so that Numba keeps what comes of both. What a thread has written before
it tells a number is there for whoever has seen that number: C11's release and acquire, without which the compiler and
the processor are free to have it otherwise.
"""

import os
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def place_of(target: Any, builder: Any, kind: Any, numbers: Any, index: Any) -> Any:
    """Where a number of an array is."""
    return builder.gep(target.make_array(kind)(target, builder, numbers).data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def tell_number(context: Any, numbers: Any, index: Any, value: Any) -> Any:
    """Write a number of an array of int64, after all that is written before."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], place_of(target, builder, signature.args[0], *arguments[:2]), "release", 8)
        return target.get_dummy_value()

    return types.none(types.Array(types.int64, 1, "C"), types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def number_told(context: Any, numbers: Any, index: Any) -> Any:
    """A number of an array of int64 as another thread has written it."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(place_of(target, builder, signature.args[0], *arguments), "acquire", 8)

    return types.int64(types.Array(types.int64, 1, "C"), types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def give_way(context: Any) -> Any:
    """Let another thread have this core for a moment, if one wants it; nothing on Windows."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return target.get_dummy_value()

    return types.none(), generate
