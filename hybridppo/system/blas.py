"""Which kernels NumPy multiplies matrices with, and the better choice where its library knows the processor too little.

OpenBLAS, which comes with NumPy, chooses kernels by the processor's model. Of a newer one by AMD it may take those of
before AVX-512, which are half as fast. What a processor can do is in its flags, so the choice here follows from these
alone: the same on every start. It is made by a variable that OpenBLAS reads when NumPy is loaded.
"""

import os
import platform
import sys
from pathlib import Path

VARIABLE = "OPENBLAS_CORETYPE"
"""What OpenBLAS reads; set by the user, it is left alone."""
AVX_512 = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
"""What OpenBLAS's kernels of this name need."""
KERNELS_OF_AVX_512 = "SkylakeX"
HAVE_AVX_512 = frozenset({"SkylakeX", "Cooperlake", "Sapphirerapids"})
"""Kernels that use it."""
BEFORE_AVX_512 = frozenset({"Haswell", "Zen"})
"""Kernels that every processor has that has AVX-512."""


def choose_kernels() -> None:
    """Let NumPy take the better kernels, here and in processes that are started from here.

    To be called before NumPy is loaded, and without effect after: what is loaded stays, and what a child process loads
    must be the same, for its bits to be.
    """
    if VARIABLE in os.environ or "numpy" in sys.modules:
        return
    chosen = kernels_for(_processor())
    if chosen is not None:
        os.environ[VARIABLE] = chosen


def kernels_for(processor: str) -> str | None:
    """The kernels to ask for; None where OpenBLAS's own choice is left alone.

    It is on Intel's processors, which it knows, and wherever nothing is known.

    Args:
        processor: the text of `/proc/cpuinfo`, or "".
    """
    # The first processor stands for all.
    pairs = (line.partition(":") for line in processor.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in pairs}
    is_amd = said.get("vendor_id") == "AuthenticAMD"
    return KERNELS_OF_AVX_512 if is_amd and set(said.get("flags", "").split()) >= AVX_512 else None


def kernels_taken() -> str:
    """The names of the kernels that are loaded, as OpenBLAS has them; "" where there are none that it names."""
    from threadpoolctl import threadpool_info

    names = {library.get("architecture") for library in threadpool_info() if library["internal_api"] == "openblas"}
    return ", ".join(sorted(filter(None, names)))


def has_both(taken: str, others: str) -> bool:
    """Whether a processor for which kernels were taken is known to have what others need; else they may end it."""
    return taken in HAVE_AVX_512 and others in BEFORE_AVX_512


def advice() -> str:
    """What to do where this process has loaded kernels below what the processor can; "" where it has not."""
    return advice_for(kernels_taken(), _processor(), os.environ.get(VARIABLE))


def advice_for(taken: str, processor: str, asked_for: str | None) -> str:
    """As `advice`, of the kernels taken, the text of `/proc/cpuinfo` and what was asked for."""
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
