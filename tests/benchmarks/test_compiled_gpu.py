"""The benchmark of compiled environments on a GPU, on a stand-in for one: what is measured, and what is left out."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import compiled_gpu  # noqa: E402
import machine  # noqa: E402
import second_device as second  # noqa: E402
from cuda_stand_in import TwinLauncher  # noqa: E402

from hybridppo.compiled import cuda_building  # noqa: E402
from hybridppo.system.accelerator import Accelerator  # noqa: E402


@pytest.mark.slow
def test_every_size_is_measured_beside_numpy(
    second_device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cuda_building.LAUNCHERS, second.NAME, TwinLauncher)
    monkeypatch.setattr("tag.SECONDS_OF_A_TURN", 0.01)
    kept: dict[str, Any] = {}
    monkeypatch.setattr(machine, "save", lambda name, payload, folder: kept.update({name: payload}))
    options = ["--agents", "1,5", "--num-envs", "2,4", "--rounds", "1", "--cores", "1", "--device", second_device]
    compiled_gpu.main(options)
    sizes = kept["compiled_gpu"]["sizes"]
    assert [(size["agents"], size["num_envs"]) for size in sizes] == [(1, 2), (1, 4), (5, 2), (5, 4)]
    assert [sorted(size["steps_per_second"]) for size in sizes[1:3]] == [
        ["environments", "with actor"], ["environments", "numpy", "with actor"],
    ]  # fmt: skip
    table = capsys.readouterr().out
    assert "| 5 | 4 | numpy | " in table
    monkeypatch.setattr(Accelerator, "memory_free", lambda self: 1000)
    compiled_gpu.main([*options, "--no-file"])
    assert "5 agents in 4 environments: left out: sampling on" in capsys.readouterr().out


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if compiled_gpu.torch.cuda.is_available():
        pytest.skip("there is one")
    compiled_gpu.main(["--agents", "1", "--num-envs", "2", "--cores", "1"])
    assert capsys.readouterr().out.startswith("left out: device 'cuda:0' was asked for")
