"""What `hybridppo doctor` finds, and what it makes of it."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hybridppo
from hybridppo.commands.doctor import Doctor
from hybridppo.commands.main import main
from hybridppo.placements.mirrored import Mirrored
from hybridppo.tools.diagnosis import doctor
from hybridppo.tools.diagnosis.acceptance import __main__ as acceptance
from hybridppo.tools.diagnosis.acceptance.case import Bench, Case, require

QUICK, THOROUGH = ("--env", "--seconds", "--json"), ("--output", "--device", "--only")
"""Flags of the two forms, without those that take no value."""


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


def test_thorough_is_the_acceptance_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--thorough", "--list") == 0
    assert "result/hybrid/discrete" in capsys.readouterr().out
    assert run("--thorough", "--list", "--only", "stop") == 0
    assert "result/hybrid/discrete" not in capsys.readouterr().out
    given: list[list[str]] = []
    monkeypatch.setattr(acceptance, "main", lambda arguments: given.append(arguments) or 1)
    assert run("--thorough", "--device", "cpu", "--only", "stop", "--output", tmp_path) == 1
    assert given == [["--output", str(tmp_path), "--device", "cpu", "--only", "stop"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seconds", 0), "--seconds must be positive"),
        *((("--thorough", flag, 3), f"{flag} cannot be had with --thorough") for flag in QUICK),
        *(((flag, "cpu"), f"{flag} is of --thorough") for flag in THOROUGH),
        (("--list",), "--list is of --thorough"),
    ],
    ids=str,
)
def test_options_that_would_do_nothing_are_refused(
    arguments: tuple[object, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing may run")

    monkeypatch.setattr("hybridppo.tools.diagnosis.doctor.diagnose", fail)
    monkeypatch.setattr(acceptance, "main", fail)
    assert run(*arguments) == 2
    assert f"hybridppo: error: {said}" in capsys.readouterr().err


def test_every_option_of_the_doctor_is_of_one_of_its_forms() -> None:
    """A further option is refused, too, in the form that it is not of."""
    names = {f"--{each.name}" for each in dataclasses.fields(Doctor)} - {"--thorough", "--debug"}
    assert names == {*QUICK, *THOROUGH, "--list"}
