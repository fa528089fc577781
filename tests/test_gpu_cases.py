"""The promises for a GPU, case by case: on one, and as far as possible on the CPU and on a simulated accelerator."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stand_in import TwinLauncher
from fake_accelerator import Machine, pretended_accelerator
from gpu_cases import case as cases
from gpu_cases import on_device
from gpu_cases.case import Bench, Case, NotPossibleHere, Outcome, attempt, require
from gpu_cases.catalogue import catalogue
from selection import only_by_default

from hybridppo.compiled import cuda_building

needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


def run(name: str, device: str, folder: Path) -> Outcome:
    return attempt(catalogue()[name], Bench(device, folder))


# Cases


BY_DEFAULT = (
    "result/hybrid/discrete", "resume/hybrid/eager", "checkpoint", "divergence", "kind/memory, ragged/hybrid",
    "off policy/td3/hybrid", "learners/gather", "policies/unlike/hybrid",
)  # fmt: skip
OTHERS = ("stop/eager", "target_kl/eager", "kind/squashed/hybrid", "evaluated/hybrid")


@pytest.mark.parametrize("only", only_by_default(BY_DEFAULT, (*BY_DEFAULT, *OTHERS)))
def test_cases_pass_on_the_cpu_if_they_can(only: str, tmp_path: Path) -> None:
    names = [name for name in catalogue() if only in name]
    assert names
    for name in names:
        outcome = run(name, "cpu", tmp_path / name.replace("/", "-"))
        expected = "not possible here" if name.endswith("recorded") else "passed"
        assert outcome.status == expected, f"{name}: {outcome.detail}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", catalogue())
def test_case_on_the_gpu(name: str, tmp_path: Path) -> None:
    outcome = run(name, "cuda", tmp_path)
    if outcome.status == "not possible here":
        pytest.skip(outcome.detail)
    assert outcome.status == "passed", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", catalogue())
def test_no_case_fails_on_the_cpu(name: str, tmp_path: Path) -> None:
    outcome = run(name, "cpu", tmp_path)
    assert outcome.status != "failed", outcome.detail


@needs_no_cuda
def test_without_a_gpu_nothing_is_said_of_one(tmp_path: Path) -> None:
    names = ("result/hybrid/discrete/eager", "cuda:1/single/eager", "waits/eager", "auto/recorded")
    outcomes = [run(name, "cuda", tmp_path) for name in names]
    assert {outcome.status for outcome in outcomes} == {"not possible here"}
    assert all("sees no CUDA device" in outcome.detail for outcome in outcomes)


@pytest.fixture
def machine(second_device: str) -> Iterator[Machine]:
    with pretended_accelerator() as machine:
        yield machine


@pytest.mark.parametrize("name", ["result/hybrid/discrete/recorded", "target_kl/recorded", "recorded by itself"])
def test_cases_of_a_gpu_pass_on_a_pretended_one(name: str, machine: Machine, tmp_path: Path) -> None:
    outcome = run(name, str(machine.device), tmp_path)
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
        "policies/unlike/hybrid/eager",
        "policies/one remembers/single/eager",
        "policies/critics see all/overlap on one device/eager",
    ],
)
def test_more_cases_of_a_gpu_pass_on_a_pretended_one(name: str, machine: Machine, tmp_path: Path) -> None:
    test_cases_of_a_gpu_pass_on_a_pretended_one(name, machine, tmp_path)


@pytest.fixture
def _kernels(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    monkeypatch.setitem(cuda_building.LAUNCHERS, machine.device.type, TwinLauncher)


@pytest.mark.slow
@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("name", ["compiled/steps/CartPole-v1", "compiled/training/CartPole-v1", "compiled/waits"])
def test_cases_of_kernels_pass_on_a_pretended_device(name: str, machine: Machine, tmp_path: Path) -> None:
    test_cases_of_a_gpu_pass_on_a_pretended_one(name, machine, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_kernels")
def test_kernels_that_step_something_else_are_found(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sampler = on_device.DeviceSampler

    def of_another_seed(environments: Any, plan: Any, record: Any) -> Any:
        return sampler(environments, replace(plan, env_seed=6), record)

    monkeypatch.setattr(on_device, "DeviceSampler", of_another_seed)
    outcome = run("compiled/steps/CartPole-v1", str(machine.device), tmp_path)
    assert outcome.status == "failed"
    assert "Not equal to tolerance" in outcome.detail or "not equal" in outcome.detail


def test_without_kernels_compiled_environments_are_not_possible(tmp_path: Path) -> None:
    outcome = run("compiled/waits", "cpu", tmp_path)
    assert (outcome.status, "stands in for one" in outcome.detail) == ("not possible here", True)


@pytest.mark.parametrize("name", ["result/hybrid/discrete/eager", "result/single/discrete/eager"])
def test_a_device_that_learns_something_else_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lagging = cases.Mirrored("cpu", "cpu", publish_every=2, max_lag=0, force_copy=True)
    monkeypatch.setattr(cases, "on_the_cpu", lambda name: lagging)
    outcome = run(name, "cpu", tmp_path)
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
    assert outcome.detail.startswith("UserWarning: the AccumulateGrad node's stream does not match (test_gpu_cases.py")


def test_an_error_is_told_with_its_place(tmp_path: Path) -> None:
    outcome = outcome_of(lambda bench: str(require(False, "parameters differ")), tmp_path)
    assert outcome.detail.startswith("DisagreementError: parameters differ (case.py:")


def test_what_is_not_possible_says_why(tmp_path: Path) -> None:
    def refuse(bench: Bench) -> str:
        raise NotPossibleHere("there is one device")

    assert outcome_of(refuse, tmp_path).status == "not possible here"
    assert outcome_of(refuse, tmp_path).detail == "there is one device"
