"""NumPy's kernels for matrix products, and a better choice for processors that OpenBLAS does not know.

OpenBLAS, which comes with NumPy, chooses kernels by the processor's model. On newer AMD processors it may choose
kernels without AVX-512, which are half as fast. The choice here follows from the processor's flags alone, so it is the
same on every start. It sets a variable that OpenBLAS reads when NumPy is loaded.
"""

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

VARIABLE = "OPENBLAS_CORETYPE"
"""The variable that OpenBLAS reads; a user's value is not changed."""
AVX_512 = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""Processor flags that OpenBLAS's kernels of this name need."""
KERNELS_OF_AVX_512 = "SkylakeX"
HAVE_AVX_512 = frozenset({"SkylakeX", "Cooperlake", "Sapphirerapids"})
"""Kernels that use AVX-512."""
BEFORE_AVX_512 = frozenset({"Haswell", "Zen"})
"""Kernels that run on every processor with AVX-512."""


def choose_kernels() -> None:
    """Let NumPy use the better kernels, in this process and in its child processes.

    Call it before NumPy is loaded; later it has no effect, because child processes must use the same kernels for the
    same bits.
    """
    if VARIABLE in os.environ or "numpy" in sys.modules:
        return
    chosen = kernels_for(_processor())
    if chosen is not None:
        os.environ[VARIABLE] = chosen


def kernels_for(processor: str) -> str | None:
    """The kernels to ask for; None to keep OpenBLAS's choice.

    The choice is kept on Intel's processors, which OpenBLAS knows, and on unknown ones.

    Args:
        processor: the text of `/proc/cpuinfo`, or "".
    """
    # all processors are assumed to equal the first
    pairs = (line.partition(":") for line in processor.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in pairs}
    is_amd = said.get("vendor_id") == "AuthenticAMD"
    return KERNELS_OF_AVX_512 if is_amd and set(said.get("flags", "").split()) >= AVX_512 else None


@cache
def libraries() -> "ThreadpoolController":
    """The loaded libraries with their own threads; cached, because finding them takes longer than setting threads."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def kernels_taken() -> str:
    """OpenBLAS's name of the loaded kernels; "" if it has none."""
    names = {each.get("architecture") for each in libraries().info() if each["internal_api"] == "openblas"}
    return ", ".join(sorted(filter(None, names)))


def has_both(taken: str, others: str) -> bool:
    """Whether a processor that runs the kernels `taken` can also run `others`, which might crash the process if not."""
    return taken in HAVE_AVX_512 and others in BEFORE_AVX_512


def advice() -> str:
    """Advice if this process has loaded slower kernels than the processor can run; else ""."""
    return advice_for(kernels_taken(), _processor(), os.environ.get(VARIABLE))


def advice_for(taken: str, processor: str, asked_for: str | None) -> str:
    """`advice` for the kernels taken, the text of `/proc/cpuinfo`, and the user's choice."""
    better = kernels_for(processor)
    if better is None or not taken or set(taken.split(", ")) & HAVE_AVX_512:
        return ""
    if asked_for is not None and asked_for.lower() == taken.lower():
        return f"{VARIABLE}={asked_for} holds it below what the processor can: {better}"
    return f"the processor can do more: set {VARIABLE}={better} before NumPy is loaded, as the command line does"


def _processor() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
