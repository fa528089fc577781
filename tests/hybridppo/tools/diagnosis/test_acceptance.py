"""The acceptance's own logic, where there is no GPU: on the CPU, and on a pretended accelerator."""

import importlib.util
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stand_in import TwinLauncher
from fake_accelerator import Machine, pretended_accelerator

from hybridppo import ConfigurationError
from hybridppo.compiled import cuda_building
from hybridppo.tools.diagnosis.acceptance import on_device, results, running
from hybridppo.tools.diagnosis.acceptance import report as reports
from hybridppo.tools.diagnosis.acceptance.__main__ import main
from hybridppo.tools.diagnosis.acceptance.case import Bench, Case, NotPossibleHere, Outcome, attempt, require
from hybridppo.tools.diagnosis.acceptance.catalogue import catalogue
from hybridppo.tools.diagnosis.acceptance.running import Stage, in_a_process, in_this_process, run, run_stage

ROOT = Path(__file__).parents[4]
needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


def statuses(report: reports.Report) -> dict[str, str]:
    return {outcome["name"]: outcome["status"] for outcome in report["outcomes"]}


def run_here(folder: Path, only: str = "", device: str = "cpu", **options: Any) -> dict[str, str]:
    arguments = {"attempting": in_this_process, "say": lambda line: None, **options}
    return statuses(run(folder, device=device, only=only, **arguments))


# Cases


@pytest.mark.parametrize(
    "only",
    [
        "result/hybrid/discrete",
        "resume/hybrid/eager",
        "stop/eager",
        "target_kl/eager",
        "checkpoint",
        "divergence",
        "kind/squashed/hybrid",
        "kind/memory, ragged/hybrid",
        "off policy/td3/hybrid",
        "learners/gather",
        "evaluated/hybrid",
    ],
)
def test_cases_pass_on_the_cpu_where_they_can(only: str, tmp_path: Path) -> None:
    found = run_here(tmp_path, only)
    assert found
    assert {name: status for name, status in found.items() if status != "passed"} == dict.fromkeys(
        (name for name in found if name.endswith("recorded")), "not possible here"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue())
def test_no_case_fails_on_the_cpu(name: str) -> None:
    outcome = in_this_process(catalogue()[name], "cpu")
    assert outcome.status != "failed", outcome.detail


@needs_no_cuda
def test_without_a_gpu_nothing_is_said_of_one() -> None:
    names = ("result/hybrid/discrete/eager", "cuda:1/single/eager", "waits/eager", "auto/recorded")
    outcomes = [in_this_process(catalogue()[name], "cuda") for name in names]
    assert {outcome.status for outcome in outcomes} == {"not possible here"}
    assert all("sees no CUDA device" in outcome.detail for outcome in outcomes)


@pytest.fixture
def machine(second_device: str) -> Iterator[Machine]:
    with pretended_accelerator() as machine:
        yield machine


@pytest.mark.parametrize("name", ["result/hybrid/discrete/recorded", "target_kl/recorded"])
def test_cases_of_a_gpu_pass_on_a_pretended_one(name: str, machine: Machine) -> None:
    outcome = in_this_process(catalogue()[name], str(machine.device))
    assert outcome.status == "passed", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "waits/eager",
        "waits/recorded",
        "waits/target_kl",
        "waits/squashed",
        "waits/memory, ragged",
        "round trip",
        "stop/recorded",
        "resume/hybrid/recorded",
        "kind/pool/hybrid/recorded",
        "kind/squashed/hybrid/recorded",
        "off policy/waits",
        "off policy/td3/hybrid",
        "tensors/waits",
        "tensors/memory",
        "learners/one",
    ],
)
def test_more_cases_of_a_gpu_pass_on_a_pretended_one(name: str, machine: Machine) -> None:
    test_cases_of_a_gpu_pass_on_a_pretended_one(name, machine)


@pytest.fixture
def _kernels(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setitem(cuda_building.LAUNCHERS, machine.device.type, TwinLauncher)


@pytest.mark.slow
@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("name", ["compiled/steps/CartPole-v1", "compiled/training/CartPole-v1", "compiled/waits"])
def test_cases_of_kernels_pass_on_a_pretended_device(name: str, machine: Machine) -> None:
    test_cases_of_a_gpu_pass_on_a_pretended_one(name, machine)


@pytest.mark.slow
@pytest.mark.usefixtures("_kernels")
def test_kernels_that_step_something_else_are_found(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = on_device.RowsOnDevice
    monkeypatch.setattr(on_device, "RowsOnDevice", lambda *a, **options: rows(*a, **{**options, "env_seed": 6}))
    outcome = in_this_process(catalogue()["compiled/steps/CartPole-v1"], str(machine.device))
    assert outcome.status == "failed"
    assert "Not equal to tolerance" in outcome.detail or "not equal" in outcome.detail


def test_without_kernels_compiled_environments_are_not_possible() -> None:
    outcome = in_this_process(catalogue()["compiled/waits"], "cpu")
    assert (outcome.status, "stands in for one" in outcome.detail) == ("not possible here", True)


@pytest.mark.parametrize("name", ["result/hybrid/discrete/eager", "result/single/discrete/eager"])
def test_a_device_that_learns_something_else_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "on_the_cpu", lambda name: results.Mirrored("cpu", "cpu", publish_every=2, max_lag=0,
                                                                             force_copy=True))  # fmt: skip
    outcome = in_this_process(catalogue()[name], "cpu")
    assert outcome.status == "failed"
    assert "of the way from the CPU's end (allowed: 0.005)" in outcome.detail


# What becomes of a case


def outcome_of(function: Any, tmp_path: Path) -> Outcome:
    return attempt(Case("a case", "what it is", function), Bench("cpu", tmp_path))


def test_a_warning_fails_a_case(tmp_path: Path) -> None:
    def warn(bench: Bench) -> str:
        warnings.warn("the AccumulateGrad node's stream does not match", UserWarning, stacklevel=1)
        return "fine"

    outcome = outcome_of(warn, tmp_path)
    assert outcome.status == "failed"
    assert outcome.detail.startswith("UserWarning: the AccumulateGrad node's stream does not match (test_acceptance.py")


def test_an_error_is_told_with_its_place(tmp_path: Path) -> None:
    outcome = outcome_of(lambda bench: str(require(False, "parameters differ")), tmp_path)
    assert outcome.detail.startswith("DisagreementError: parameters differ (case.py:")


def test_what_is_not_possible_says_why(tmp_path: Path) -> None:
    def refuse(bench: Bench) -> str:
        raise NotPossibleHere("there is one device")

    assert outcome_of(refuse, tmp_path).status == "not possible here"
    assert outcome_of(refuse, tmp_path).detail == "there is one device"


# A run of cases


class Attempts:
    """Outcomes as told, and how often each case was tried."""

    def __init__(self, **told: str) -> None:
        self.told, self.tried = told, []

    def __call__(self, case: Case, device: str) -> Outcome:
        self.tried.append(case.name)
        if self.told[case.name] == "break off":
            raise KeyboardInterrupt
        return Outcome(case.name, case.what, self.told[case.name], "a | b", 1.25)  # type: ignore[arg-type]


CASES = [Case(name, f"what {name} is", lambda bench: "") for name in ("one", "two", "three")]


def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    first = Attempts(one="passed", two="failed", three="break off")
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path, cases=CASES, attempting=first)
    second = Attempts(two="passed", three="not possible here")
    found = run_here(tmp_path, cases=CASES, attempting=second)
    assert second.tried == ["two", "three"]
    assert found == {"one": "passed", "two": "passed", "three": "not possible here"}
    third = Attempts()
    assert run_here(tmp_path, cases=CASES, attempting=third) == found
    assert third.tried == []


def test_cases_run_at_once_but_for_those_that_go_by_a_stopwatch(tmp_path: Path) -> None:
    meet, running_now, seen_alone = threading.Barrier(2, timeout=30.0), [], []
    cases = [Case("alone", "", lambda bench: "", alone=True), *CASES[:2], Case("three", "", lambda bench: "")]

    def attempting(case: Case, device: str) -> Outcome:
        running_now.append(case.name)
        if case.alone:
            seen_alone.append(list(running_now))
        elif case.name != "three":
            meet.wait()  # is broken where one waits for the other's end
        running_now.remove(case.name)
        return Outcome(case.name, case.what, "passed", "")

    found = run_here(tmp_path, cases=cases, attempting=attempting, jobs=2)
    assert found == dict.fromkeys(("alone", "one", "two", "three"), "passed")
    assert [*found] == ["alone", "one", "two", "three"]  # in the order of the catalogue
    assert seen_alone == [["alone"]]
    assert {name for name, case in catalogue().items() if case.alone} == {"auto/recorded", "auto/eager"}


def test_a_stop_ends_what_has_yet_to_begin(tmp_path: Path) -> None:
    tried = []

    def attempting(case: Case, device: str) -> Outcome:
        tried.append(case.name)
        if case.name == "one":
            raise KeyboardInterrupt
        time.sleep(0.2)  # all of them would take 20 s, within which the stop is seen
        return Outcome(case.name, case.what, "passed", "")

    cases = [CASES[0], *(Case(str(number), "", lambda bench: "") for number in range(100))]
    with pytest.raises(KeyboardInterrupt):
        run_here(tmp_path, cases=cases, attempting=attempting, jobs=2)
    assert len(tried) < len(cases)


def test_the_report_has_a_line_a_case(tmp_path: Path) -> None:
    run_here(tmp_path, cases=CASES, attempting=Attempts(one="passed", two="failed", three="not possible here"))
    text = (tmp_path / reports.MARKDOWN_NAME).read_text()
    assert "1 passed, 1 failed, 1 not possible here" in text
    assert "| one | what one is | passed | 1.2 | a \\| b |" in text
    assert "- `two`: a | b" in text
    assert f"- torch: {torch.__version__}" in text
    saved = json.loads((tmp_path / reports.JSON_NAME).read_text())
    assert [outcome["name"] for outcome in saved["outcomes"]] == ["one", "two", "three"]


def test_a_report_of_another_machine_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(tmp_path, cases=CASES[:1], attempting=Attempts(one="passed"))
    monkeypatch.setattr(running, "machine", lambda: {"torch": "9.9"})
    with pytest.raises(ConfigurationError, match=r"another machine, version or device \(torch differ\).*--output"):
        run_here(tmp_path, cases=CASES)


def test_a_case_has_a_process_of_its_own() -> None:
    outcome = in_a_process(catalogue()["beyond the last"], "cpu")
    assert outcome.status == "passed", outcome.detail
    assert "was asked for" in outcome.detail


def test_a_process_that_dies_or_hangs_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("no such case", "", lambda bench: "")
    monkeypatch.setattr(running, "MODULE", ("-c", "import sys; sys.exit('an illegal address')"))
    assert in_a_process(case, "cpu").detail == "its process ended with 1: an illegal address"
    monkeypatch.setattr(running, "MODULE", ("-c", "import time; time.sleep(60)"))
    assert in_a_process(case, "cpu", seconds=0.5).detail == "not over after 0 s"


def test_stages_keep_what_they_wrote(tmp_path: Path) -> None:
    def stage(code: str, **options: Any) -> Outcome:
        command = (sys.executable, "-S", "-c", code)
        return run_stage(Stage("a/stage", "what", command, ROOT, needs_gpu=False, **options), tmp_path)

    good = stage("print('one'); print('12 passed')")
    assert (good.status, good.detail) == ("passed", "12 passed")
    bad = stage("print('3 failed'); raise SystemExit(1)")
    assert (bad.status, bad.detail) == ("failed", "ended with 1: see a-stage.log")
    assert (tmp_path / "a-stage.log").read_text() == "3 failed\n"
    assert stage("import time; time.sleep(60)", seconds=0.3).detail == "not over after 0 s: see a-stage.log"


@needs_no_cuda
def test_stages_that_need_a_gpu_are_not_possible_without(tmp_path: Path) -> None:
    outcome = run_stage(Stage("a stage", "what", ("false",), ROOT), tmp_path)
    assert outcome.status == "not possible here"


# The command line


def test_the_command_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "in_a_process", in_this_process)
    assert main(["--device", "cpu", "--only", "beyond", "--output", str(tmp_path)]) == 0
    assert "1 passed, 0 failed, 0 not possible here\nreport: " in capsys.readouterr().out
    assert main(["--list"]) == 0
    assert "result/hybrid/discrete/recorded: hybrid, an MLP" in capsys.readouterr().out


def test_a_failure_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {"bad": Case("bad", "", lambda bench: str(require(False, "bad")))}
    monkeypatch.setattr(running, "catalogue", lambda: fails)
    monkeypatch.setattr(running, "in_a_process", in_this_process)
    assert main(["--device", "cpu", "--output", str(tmp_path)]) == 1


def test_the_script_adds_tests_and_measurements() -> None:
    spec = importlib.util.spec_from_file_location("gpu_acceptance", ROOT / "scripts" / "gpu_acceptance.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    names = partial(map, lambda stage: stage.name)
    tests, measured = names(script.stages(measurements=True)[:2]), names(script.stages(measurements=True)[2:])
    assert [*tests] == ["tests/gpu", "tests/default"]
    assert {"measured/placements", "measured/crossing", "measured/auto", "measured/compare_placements"} <= {*measured}
    assert [*names(script.stages(measurements=False))] == ["tests/gpu", "tests/default"]
    makefile = (ROOT / "Makefile").read_text()
    assert "scripts/gpu_acceptance.py" in makefile
    recipe = makefile.partition("\nbench-gpu:")[2].partition("\n\n")[0]
    for path, (_, *options) in script.MEASUREMENTS.items():
        assert (ROOT / path).exists()
        assert " ".join(["$(BIN)/python", path, *options]) + "\n" in recipe + "\n"
