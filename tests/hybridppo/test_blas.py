import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridppo._blas import KEEP_VARIABLE, KERNEL_VARIABLE, WIDE_KERNELS, child_environment, is_misjudged

WIDE = "fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl"


def described(tmp_path: Path, *, vendor: str = "AuthenticAMD", family: str = "26", flags: str = WIDE) -> Path:
    path = tmp_path / "cpuinfo"
    processor = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: {flags}\n"
    path.write_text(f"{processor}\n{processor}")
    return path


def test_wide_kernels_are_for_new_amd_processors_that_have_them(tmp_path: Path) -> None:
    assert is_misjudged(described(tmp_path))
    assert not is_misjudged(described(tmp_path, vendor="GenuineIntel", family="6"))  # found by OpenBLAS itself
    assert not is_misjudged(described(tmp_path, family="25"))  # Zen 4: likewise
    assert not is_misjudged(described(tmp_path, flags="fpu avx2"))  # switched off, as a virtual machine may
    assert not is_misjudged(tmp_path / "missing")  # not Linux
    (tmp_path / "other").write_text("Processor : ARMv8\n")
    assert not is_misjudged(tmp_path / "other")


CHOOSE = f"""
import os, sys
from pathlib import Path
import hybridppo
from hybridppo._blas import choose_kernels
assert "numpy" not in sys.modules
os.environ.pop({KERNEL_VARIABLE!r}, None) if sys.argv[2] == "forget" else None
if sys.argv[3] == "late": import numpy
choose_kernels(Path(sys.argv[1]))
print(os.environ.get({KERNEL_VARIABLE!r}))
"""


def chosen(cpuinfo: Path, *, forget: str = "forget", when: str = "early", **environment: str) -> str:
    base = {name: value for name, value in os.environ.items() if name not in (KERNEL_VARIABLE, KEEP_VARIABLE)}
    command = [sys.executable, "-c", CHOOSE, str(cpuinfo), forget, when]
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_kernels_are_chosen_before_numpy_is_loaded_and_only_where_nobody_has(tmp_path: Path) -> None:
    cpuinfo = described(tmp_path)
    assert chosen(cpuinfo) == WIDE_KERNELS
    assert chosen(cpuinfo, when="late") == "None"
    assert chosen(cpuinfo, forget="keep", **{KERNEL_VARIABLE: "Haswell"}) == "Haswell"
    assert chosen(cpuinfo, **{KEEP_VARIABLE: "1"}) == "None"


def test_children_round_as_their_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNEL_VARIABLE, raising=False)
    assert child_environment()[KEEP_VARIABLE] == "1"
    assert KERNEL_VARIABLE not in child_environment()
    monkeypatch.setenv(KERNEL_VARIABLE, "Haswell")
    assert child_environment()[KERNEL_VARIABLE] == "Haswell"
