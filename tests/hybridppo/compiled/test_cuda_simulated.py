"""Every kernel on Numba's simulator of CUDA, step by step against the CPU's compiled loops."""

import json
import os
from pathlib import Path

import pytest
from processes import run_python
from selection import only_by_default

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

TESTS = Path(__file__).parents[2]
SEEN = {
    # What must have come to pass, so that it was compared.
    "CartPole-v1": ("terminated",),
    "Acrobot-v1": ("truncated",),
    "MountainCar-v0": ("truncated",),
    "MountainCarContinuous-v0": ("truncated",),
    "Pendulum-v1": ("truncated",),
    "Catch": ("terminated", "truncated"),
    "Choices": ("terminated", "truncated"),
    "Hunt": ("terminated", "truncated", "absent"),
    "Hunt with its state": ("terminated", "truncated", "absent"),
    "Numbers": ("terminated", "truncated"),
    "Tag": ("terminated", "absent"),
    "TagOnGrid": ("terminated",),
    "in place": ("terminated", "absent"),
}
ROUNDED = {"Tag"}
"""Environments whose float32 cosine differs between Numba and NumPy, which the simulator uses; all others agree."""


@pytest.mark.parametrize("name", only_by_default(("CartPole-v1",), SEEN, pytest.mark.slow))
def test_kernels_do_what_the_cpus_loops_do(name: str) -> None:
    path = os.pathsep.join([str(TESTS / "helpers"), str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    done = run_python(TESTS / "helpers" / "simulated_cuda.py", name, env=variables, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert all(seen[flag] > 0 for flag in SEEN[name]), seen
    assert seen["compared"] > 40
    assert seen["equal"] == seen["compared"] or name in ROUNDED
