"""The choice of OpenBLAS's kernels, on simulated processors."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo.system import threads

OLD = "fpu sse2 avx avx2 fma"
NEW = f"{OLD} avx512f avx512dq avx512cd avx512bw avx512vl avx512_bf16"


def processor(vendor: str, flags: str, model: str = "a processor") -> str:
    of_one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: {model}\nflags\t\t: {flags}\nbugs\t\t:\n"
    return of_one + "\n" + of_one.replace(": 0", ": 1")


PROCESSORS = {
    "Zen 5": (processor("AuthenticAMD", NEW, "AMD EPYC 9755 128-Core Processor"), "SkylakeX"),
    "Zen 4": (processor("AuthenticAMD", NEW, "AMD Ryzen 9 7950X"), "SkylakeX"),
    "Zen 3": (processor("AuthenticAMD", OLD, "AMD EPYC 7763"), None),
    "a part of AVX-512": (processor("AuthenticAMD", f"{OLD} avx512f avx512dq"), None),
    "Sapphire Rapids": (processor("GenuineIntel", NEW, "Intel(R) Xeon(R) Platinum 8480+"), None),
    "ARM": ("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n", None),
    "unknown": ("", None),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_choice_follows_from_the_flags(name: str) -> None:
    text, expected = PROCESSORS[name]
    assert threads.kernels_for(text) == expected


def test_who_has_chosen_is_left_alone_and_what_is_loaded_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_processor", lambda: PROCESSORS["Zen 5"][0])
    monkeypatch.setattr(os, "environ", {})
    threads.choose_kernels()  # NumPy is loaded already
    assert threads.VARIABLE not in os.environ
    monkeypatch.delitem(sys.modules, "numpy")
    threads.choose_kernels()
    assert os.environ[threads.VARIABLE] == "SkylakeX"
    os.environ[threads.VARIABLE] = "Haswell"
    threads.choose_kernels()
    assert os.environ[threads.VARIABLE] == "Haswell"


NAMES_KERNELS = sys.platform == "linux" and platform.machine() == "x86_64" and threads.kernels_taken() != ""


@pytest.mark.skipif(not NAMES_KERNELS, reason="NumPy's library is not one that lets itself be told")
def test_the_command_line_chooses_before_numpy_is_loaded() -> None:
    """With kernels for any processor, and without torch, which takes long to load and comes after the choice."""
    code = """
import os, sys
from hybridppo import __main__
from hybridppo.system import threads
threads.kernels_for = lambda processor: "Nehalem"
sys.argv, sys.modules["torch"] = ["hybridppo", "--help"], None
try:
    __main__.main()
except ImportError:
    import numpy
    print("has taken", threads.kernels_taken())
"""
    environment = {name: value for name, value in os.environ.items() if name != threads.VARIABLE}
    root = Path(hybridppo.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(root)}, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    assert "has taken Nehalem" in done.stdout


def test_a_run_that_goes_on_with_other_kernels_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = ppo_config(num_envs=2, num_steps=8, num_minibatches=1, hidden_sizes=(8,))
    monkeypatch.setattr("hybridppo.settings.kernels_taken", lambda: "Haswell")
    monkeypatch.setattr("hybridppo.training.kernels_taken", lambda: "Haswell")
    options: dict[str, Any] = {"progress": False}
    hybridppo.train(
        "CartPole-v1", total_steps=16, seed=0, config=config, placement="cpu", run_dir=tmp_path / "run", **options
    )
    hybridppo.resume(tmp_path / "run", total_steps=32, **options)
    assert "kernels" not in caplog.text
    monkeypatch.setattr("hybridppo.training.kernels_taken", lambda: "SkylakeX")
    hybridppo.resume(tmp_path / "run", total_steps=48, **options)
    assert "begun with NumPy's kernels for Haswell, and goes on with those for SkylakeX" in caplog.text
