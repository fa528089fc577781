"""The findings of `hybridppo doctor`, and its conclusions."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hybridppo
from hybridppo.commands.main import main
from hybridppo.placements.mirrored import Mirrored
from hybridppo.tools import doctor
from hybridppo.tools.case import Bench, Case, require


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["doctor", *map(str, arguments)])
    return int(exited.value.code or 0)


def failing(bench: Bench) -> str:
    require(False, "it is broken")
    return ""


def found(name: str, **options: Any) -> Any:
    """The outcome of one check."""
    figures: dict[str, Any] = {}
    cases = [case for case in doctor.checks("CartPole-v1", 0.01, figures) if case.name == name]
    diagnosis = hybridppo.diagnose(cases=cases, **options)
    (outcome,) = diagnosis.outcomes
    return outcome


def test_everything_works_on_this_machine_and_the_file_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "doctor.json"
    assert run("--seconds", 0.01, "--json", path) == 0
    out = capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["is_well"]
    assert report["machine"]["torch"] == torch.__version__
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    always = {"devices", "threads", "environment", "same result: migrate on the CPU", "same result: hybrid on the CPU"}
    always |= {"same result: overlap", "same result: workers", "files", "speed of placements"}
    assert {name for name, status in statuses.items() if status == "passed"} >= always
    if not torch.cuda.is_available():
        assert statuses["graphs"] == statuses["same result: hybrid"] == "not possible here"
    assert all(f"{status}: {name} (" in out for name, status in statuses.items())
    figures = report["figures"]
    assert {row["label"] for row in figures["placements"]} >= {"cpu", "overlap"}
    assert figures["environment"]["steps_per_second"] > 0
    assert any(library["internal_api"] in ("openblas", "mkl", "accelerate", "blis") for library in figures["blas"])


def test_what_fails_is_said_and_the_exit_code_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, whole = Case("broken", "", failing), Case("whole", "", lambda bench: "fine")
    monkeypatch.setattr(doctor, "checks", lambda *arguments: [broken, whole])
    assert run("--json", tmp_path / "doctor.json") == 1
    out = capsys.readouterr().out
    assert "failed: broken" in out
    assert "it is broken" in out
    assert "passed: whole" in out
    assert "something does not work" in out
    assert json.loads((tmp_path / "doctor.json").read_text())["is_well"] is False


def test_checks_are_left_out_when_time_is_over() -> None:
    diagnosis = hybridppo.diagnose(cases=[Case("late", "", failing)], most_seconds=-1.0)
    assert [outcome.status for outcome in diagnosis.outcomes] == ["not possible here"]
    assert "left out" in diagnosis.outcomes[0].detail
    assert diagnosis.is_well


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
def test_a_gpu_that_torch_cannot_use_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    outcome = found("devices")
    assert outcome.status == "failed"
    assert "built without CUDA: install" in outcome.detail


def test_a_library_that_keeps_its_threads_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = {"internal_api": "openblas", "user_api": "blas", "version": "1", "num_threads": 7}
    monkeypatch.setattr(doctor, "threadpool_info", lambda: [stubborn])
    outcome = found("threads")
    assert outcome.status == "failed"
    assert "openblas was told 1 thread and has 7" in outcome.detail


def test_a_placement_that_ends_elsewhere_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Bench.train

    def elsewhere(self: Bench, placement: Any, *arguments: Any, **options: Any) -> Any:
        return train(self, placement, *arguments, seed=int(isinstance(placement, Mirrored)), **options)

    monkeypatch.setattr(Bench, "train", elsewhere)
    assert found("same result: hybrid on the CPU").status == "failed"
    assert found("same result: migrate on the CPU").status == "passed"


def test_workers_that_step_otherwise_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: Bench, placement: Any, *, num_workers: int = 0, **options: Any) -> Any:
        agent = hybridppo.PPO(*spaces(), seed=num_workers)
        return SimpleNamespace(agent=agent), []

    monkeypatch.setattr(Bench, "train", train)
    assert found("same result: workers").status == "failed"


def spaces() -> tuple[Any, Any]:
    from gymnasium.spaces import Box, Discrete

    return Box(-1.0, 1.0, (3,)), Discrete(2)


def test_an_environment_that_is_not_there_is_a_failure() -> None:
    (case,) = [case for case in doctor.checks("Nowhere-v0", 0.01, {}) if case.name == "environment"]
    (outcome,) = hybridppo.diagnose(cases=[case]).outcomes
    assert outcome.status == "failed"
    assert "Nowhere" in outcome.detail


def test_thorough_compares_every_placement_precision_and_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "checks", lambda *arguments: [])
    assert run("--thorough") == 0
    out = capsys.readouterr().out
    assert "same result: overlap, recorded, cuda:1 (" in out
    assert "same result: hybrid, eager, bf16 (" in out
    if not torch.cuda.is_available():
        assert out.count("not possible here: ") == out.count("needs a CUDA device") == 24


def test_seconds_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seconds", 0) == 2
    assert "hybridppo: error: --seconds must be positive" in capsys.readouterr().err
