"""The CPU threads of a training."""

from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo.system import threads
from hybridppo.system.threads import blas_threads, cpu_cores, libraries


def of_numpy() -> set[int]:
    return {each["num_threads"] for each in libraries().info() if each["user_api"] == "blas"}


def test_trainings_side_by_side_end_in_any_order() -> None:
    """Each is in its own thread; the number of NumPy's threads is the process's."""
    with libraries().limit(limits=2, user_api="blas"):
        before = of_numpy()
        one, other = blas_threads(1), blas_threads(1)
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert of_numpy() <= {1}, "the other goes on with one thread"
        other.__exit__(None, None, None)
        assert of_numpy() == before


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(threads, "CPU_MAX", limit)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: range(64), raising=False)
    assert cpu_cores() == 64
    for text, cores in {"max 100000": 64, "150000 100000": 2, "200000 100000": 2, "5000 100000": 1}.items():
        limit.write_text(text)
        assert cpu_cores() == cores


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
