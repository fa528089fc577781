"""The findings of `hybridppo doctor`, and its conclusions."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hybridppo
from hybridppo.commands.main import main
from hybridppo.placements.placement import Mirrored
from hybridppo.tools import doctor


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["doctor", *map(str, arguments)])
    return int(exited.value.code or 0)


def found(name: str, monkeypatch: pytest.MonkeyPatch, env_id: str = "CartPole-v1") -> doctor.Check:
    """The outcome of one check."""
    all_checks = doctor.checks
    monkeypatch.setattr(doctor, "checks", lambda *arguments: {name: all_checks(*arguments)[name]})
    (check,) = hybridppo.diagnose(env_id, seconds=0.01).checks
    return check


def test_everything_works_on_this_machine_and_the_file_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "doctor.json"
    assert run("--seconds", 0.01, "--json", path) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(path.read_text())
    assert report["is_well"]
    assert report["machine"]["torch"] == torch.__version__
    assert report["machine"]["packages"].keys() == set(doctor.EXTRAS)
    names = {check["name"] for check in report["checks"] if check["passed"]}
    assert names >= {"devices", "threads", "environment", "files", "speed of placements", "same result: workers"}
    assert names >= {"same result: migrate on the CPU", "same result: hybrid on the CPU"}
    assert all(f"passed: {name} (" in out for name in names)
    assert out.startswith("not checked: matplotlib ")
    assert out.splitlines()[-1] == f"All {len(report['checks'])} checks passed."
    assert re.search(r"fastest: cpu; cpu [\d,]+ steps/s, overlap [\d,]+ steps/s", out)
    assert re.search(r"CartPole-v1: [\d,]+ steps/s of one environment", out)
    blas = report["machine"]["BLAS"]
    assert any(library["internal_api"] in ("openblas", "mkl", "accelerate", "blis") for library in blas)


def test_what_fails_is_said_and_the_exit_code_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> str:
        doctor.require(False, "it is broken")
        return ""

    monkeypatch.setattr(doctor, "checks", lambda *arguments: {"broken": failing, "whole": lambda: "fine"})
    assert run("--json", tmp_path / "doctor.json") == 1
    out = capsys.readouterr().out
    assert "failed: broken" in out
    assert "it is broken (doctor.py:" in out
    assert "passed: whole" in out
    assert "Some checks failed" in out
    assert json.loads((tmp_path / "doctor.json").read_text())["is_well"] is False


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
def test_a_gpu_that_torch_cannot_use_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    check = found("devices", monkeypatch)
    assert not check.passed
    assert "built without CUDA: install" in check.detail


def test_a_library_that_keeps_its_threads_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = {"internal_api": "openblas", "user_api": "blas", "version": "1", "num_threads": 7}
    monkeypatch.setattr(doctor, "threadpool_info", lambda: [stubborn])
    check = found("threads", monkeypatch)
    assert not check.passed
    assert "openblas was set to 1 thread and has 7" in check.detail


@pytest.mark.parametrize(
    ("name", "passed"), [("hybrid on the CPU", False), ("migrate on the CPU", True), ("workers", False)]
)
def test_a_training_that_ends_elsewhere_is_a_failure(name: str, passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    train = doctor.train

    def elsewhere(env: Any, *, placement: Any, num_workers: int, **options: Any) -> Any:
        seed = int(isinstance(placement, Mirrored) or num_workers > 0)
        return train(env, placement=placement, **{**options, "seed": seed})

    monkeypatch.setattr(doctor, "train", elsewhere)
    assert found(f"same result: {name}", monkeypatch).passed is passed


def test_an_environment_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    check = found("environment", monkeypatch, "Nowhere-v0")
    assert not check.passed
    assert "Nowhere" in check.detail


def test_seconds_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seconds", 0) == 2
    assert "hybridppo: error: --seconds must be positive" in capsys.readouterr().err
