"""The size of the tiles of matrix products, and the text with which a module has such tiles (`tiles.py`)."""

from collections.abc import Mapping
from pathlib import Path

DEFINITIONS = """
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


def text_of_tiles() -> str:
    """The functions that `perceptrons.py` only declares, for this processor; the module must import Numba."""
    rows, lanes = tiles_of_this_machine()
    tiles = Path(__file__).with_name("tiles.py").read_text(encoding="utf-8")
    return tiles + DEFINITIONS.format(rows=rows, lanes=lanes)
