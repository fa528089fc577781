"""Modules of compiled updates: their text, and threads to run them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from hybridppo.compiled import perceptrons
from hybridppo.compiled.modules import has_numba, is_kept_of, load
from hybridppo.compiled.perceptrons import adam, text_of_tiles
from hybridppo.compiled.sources import Gathering, Texts
from hybridppo.errors import ConfigurationError, HybridPPOError, pip_install

LINE = 16
"""Distance between the numbers of two threads, which puts them into separate cache lines."""
GONE = 2 * LINE
NUM_SIGNALS = 3 * LINE
LOOKS = 2**12
"""Number of checks, within some microseconds, before a waiting thread yields its core."""


def tell_number(numbers: Any, index: int, value: int) -> None:
    """`numbers[index] = value`, visible to others after all earlier writes: `signals.py`."""
    raise NotImplementedError


def number_told(numbers: Any, index: int) -> int:
    """`numbers[index]` as another thread has written it."""
    raise NotImplementedError


def give_way() -> None:
    """Yield this core for a moment."""
    raise NotImplementedError


SIGNALS = (tell_number, number_told, give_way)
"""The functions of `text_of_signals`."""


def meeting_place() -> tuple[Any, Any]:
    """Numbers in which two threads wait for each other, and numbers that they exchange."""
    return np.zeros(NUM_SIGNALS, np.int64), np.zeros((2, 2))


def text_of_signals() -> str:
    """The text of the functions that this file only declares."""
    return Path(__file__).with_name("signals.py").read_text(encoding="utf-8")


def meet(signals: Any, mine: int, count: int) -> bool:
    """Wait until the other of two threads is here for the `count`th time, too; False if it failed.

    Args:
        signals: `[NUM_SIGNALS]` of int64, zeros at first; at `GONE`, whether a thread has failed.
        mine: 0 or 1, the number of this thread.
        count: 1, 2, and so on.
    """
    tell_number(signals, LINE * mine, count)
    looks = 0
    while number_told(signals, LINE * (1 - mine)) < count:
        if number_told(signals, GONE) != 0:
            return False
        looks += 1
        if looks % LOOKS == 0:
            give_way()
    return True


HEADER = '''"""Written by hybridppo, and made anew whenever it is missing."""
# numba {version}, numpy {numpy}
import math

import numba
import numpy as np

{given}

compiled = numba.njit(error_model="numpy")
contracted = numba.njit(error_model="numpy", fastmath={{"contract"}})
inlined = numba.njit(error_model="numpy", fastmath={{"contract"}}, forceinline=True)
summed = numba.njit(error_model="numpy", fastmath={{"contract", "reassoc"}})
f, i, b, d, u = numba.float32, numba.int64, numba.boolean, numba.float64, numba.none
group = lambda *types: numba.types.Tuple(types)
{types}

'''
GIVEN = (*perceptrons.GIVEN, *SIGNALS)
"""Functions that a module defines before its loops."""
CONTRACTED: Texts = {**perceptrons.CONTRACTED, adam: "contracted"}
"""Decorators of functions that may round a product and a sum at once, in any update."""


class UpdateModule:
    """The module of an agent's loops, compiled when it is first loaded.

    Args:
        name: name of the module.
        loops: the functions that Python calls with their signatures, in which `f`, `i`, `b`, `d`, `u` and `types` stand
            for Numba's types.
        types: lines that name types.
        decorators: decorators of other functions: `contracted` if a product and a sum may be rounded at once, `inlined`
            if a function is also compiled into its callers, or `summed` if numbers may be added in another order, which
            is the same on one machine.
    """

    def __init__(self, name: str, loops: Texts, *, types: str, decorators: Texts | None = None) -> None:
        self._name, self._types = name, types
        self._loops = {loop.__name__: loop for loop in loops}
        self._decorators = {**CONTRACTED, **(decorators or {})}
        for loop, signature in loops.items():
            self._decorators[loop] = f'numba.njit({signature}, cache=True, nogil=True, error_model="numpy")'

    def load(self) -> ModuleType:
        """Load the module.

        Raises:
            ConfigurationError: if Numba is missing, or cannot compile it.
        """
        if not has_numba():
            raise ConfigurationError(
                f"compiled_updates=True needs Numba, which is not installed: {pip_install('compiled')}, or leave it out"
            )
        return load(self._name, self._text(), tuple(self._loops), _explained)

    def is_kept(self) -> bool:
        """Whether this machine has compiled the loops before, so that they are only loaded."""
        return is_kept_of(self._name, self._text(), tuple(self._loops))

    def _text(self) -> str:
        import numba

        given, versions = text_of_tiles() + text_of_signals(), {"version": numba.__version__, "numpy": np.__version__}
        return HEADER.format(given=given, types=self._types, **versions) + self._text_of_loops

    @cached_property
    def _text_of_loops(self) -> str:  # takes a tenth of a second, and is needed whenever parameters have moved
        return Gathering("the update", given=GIVEN, decorators=self._decorators).sources(self._loops).text


class SideBySide:
    """Threads for parts of some work, created if there are several parts."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._room = 1

    def make_room(self, count: int) -> None:
        """Create threads for so many parts."""
        if count > self._room:
            self._room = count
            self._pool = ThreadPoolExecutor(count - 1, thread_name_prefix="hybridppo-update")

    def run(self, work: Callable[[int], None], count: int, signals: Any = None) -> None:
        """Run the first of `count` parts in this thread, the others in theirs.

        Args:
            work: takes the number of a part.
            count: number of parts.
            signals: numbers by which parts wait for each other (`meet`). If a part fails, they are set so that no other
                part waits for it.
        """

        def part(number: int) -> None:
            try:
                work(number)
            except BaseException:
                if signals is not None:
                    signals[GONE] = 1
                raise

        others = [cast(ThreadPoolExecutor, self._pool).submit(part, number) for number in range(1, count)]
        try:
            part(0)
        finally:
            wait(others)  # no thread may write afterwards
        for other in others:
            other.result()


def _explained(path: Path, error: Exception) -> HybridPPOError:
    return ConfigurationError(
        f"compiled_updates=True: Numba cannot compile the update, which it should ({path}): "
        f"{type(error).__name__}: {str(error).strip()[:500]}. Leave compiled_updates out, and report this with Numba's "
        "version"
    )
