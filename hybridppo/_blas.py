"""The BLAS that NumPy brings, told what processor it runs on where it does not know by itself.

OpenBLAS chooses its kernels when NumPy loads it, by the processor's family. Up to 0.3.31 it does not know AMD's
family 26 (Zen 5) and falls back to kernels of half the width: matrix products of float32 then take nearly twice as long
(OpenBLAS issue 6029). The choice can be made for it by a variable of the environment, before NumPy is loaded.
"""

import os
import sys
from pathlib import Path

KERNEL_VARIABLE = "OPENBLAS_CORETYPE"
"""OpenBLAS's own: which processor's kernels to take."""
KEEP_VARIABLE = "HYBRIDPPO_KEEP_BLAS"
"""Set to leave the choice to OpenBLAS."""
WIDE_KERNELS = "SkylakeX"
"""OpenBLAS's name for its kernels of 512 bits, whoever made the processor."""


def choose_kernels(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Name the right kernels, where OpenBLAS would not find them and nobody has chosen.

    Child processes inherit the choice. Nothing happens once NumPy is loaded, or on other systems than Linux.
    """
    if "numpy" in sys.modules or KERNEL_VARIABLE in os.environ or KEEP_VARIABLE in os.environ:
        return
    if is_misjudged(cpuinfo):
        os.environ[KERNEL_VARIABLE] = WIDE_KERNELS


def is_misjudged(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether OpenBLAS takes kernels too narrow for the processor, as Linux describes it."""
    try:
        with cpuinfo.open() as file:
            description = file.read(4096)  # enough for the first processor
    except OSError:  # another system
        return False
    lines = [line.partition(":") for line in description.split("\n\n")[0].splitlines()]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= set(facts.get("flags", "").split())
    family = facts.get("cpu family", "")
    return wide and facts.get("vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) >= 26


def child_environment() -> dict[str, str]:
    """This process's environment for one that must round as it does: kernels as chosen here, or not chosen."""
    chosen = KERNEL_VARIABLE in os.environ
    return dict(os.environ) if chosen else {**os.environ, KEEP_VARIABLE: "1"}
