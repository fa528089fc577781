"""Suites: which runs they make, parallel runs that are stopped and resumed, and the final table."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

import hybridppo
from hybridppo import ConfigurationError, HybridPPOError, PPOConfig
from hybridppo.commands.main import main
from hybridppo.run_directory.files import read_lines, wait_until_free
from hybridppo.tools import benchmark
from hybridppo.tools.benchmark import SUITES, cases_of, table
from hybridppo.tools.hyperparameters import tuned_entry
from hybridppo.tools.jobs import Job, Run, stop_all, train_missing

processes = pytest.mark.extras
"""Each starts several processes, which takes long beside other tests."""

ROOT = Path(__file__).parents[3]
SMALL = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


def asked(folder: Path, steps: int = 64, env_id: str = "CartPole-v1") -> Run:
    return Run(folder, env_id, steps, 3, SMALL, {"placement": "cpu", "evaluation_episodes": 1})


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_has_tuned_settings_of_its_environments(name: str) -> None:
    found = cases_of(name)
    assert [case.name for case in found] == list(SUITES[name])
    for case in found:
        entry = tuned_entry(case.name)
        assert (case.total_steps, case.config) == (entry.total_steps, entry.config)


def test_defaults_need_steps() -> None:
    with pytest.raises(ConfigurationError, match="say total_steps"):
        cases_of("CartPole-v1", "defaults")
    (case,) = cases_of("Taxi-v3", "defaults", 1000)
    assert (case.total_steps, case.config) == (1000, PPOConfig())


def test_what_is_no_suite_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no tuned hyperparameters for atari.*classic, box2d, mujoco"):
        cases_of("atari")
    with pytest.raises(ConfigurationError, match="ids with commas"):
        cases_of(" , ")


def test_a_picture_that_is_not_drawn_is_not_promised(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "train_missing", lambda *arguments, **options: None)
    monkeypatch.setattr(benchmark, "_row", lambda case, runs: case)
    monkeypatch.setattr(benchmark, "table", lambda rows: "")
    monkeypatch.setattr("hybridppo.tools.plot.is_installed", lambda name: False)
    with pytest.raises(SystemExit) as exited:
        main(["benchmark", "CartPole-v1", "--seeds", "1", "--output", str(tmp_path / "out")])
    assert exited.value.code == 0
    assert "no picture: pictures need matplotlib: pip install" in caplog.text
    assert capsys.readouterr().out == f"\nfiles: {tmp_path / 'out'}\n"


@processes
def test_a_benchmark_ends_in_a_table_and_goes_on_where_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "PPOConfig", lambda: SMALL)
    options: dict[str, Any] = {"output": tmp_path / "out", "jobs": 2, "settings": "defaults", "total_steps": 64}
    (row,) = hybridppo.run_benchmark("CartPole-v1", seeds=2, **options)
    assert "\r" not in capfd.readouterr().err  # lines, and no bar, because there is no terminal
    assert len(row.returns) == 2
    assert row.low <= row.middle <= row.high
    assert table([row]) in (tmp_path / "out" / "benchmark.md").read_text()
    assert json.loads((tmp_path / "out" / "benchmark.json").read_text())[0]["returns"] == row.returns
    # A run in a process is the run that Python makes.
    same = hybridppo.train("CartPole-v1", total_steps=64, seed=1, placement="cpu", config=SMALL, progress=False,
                           evaluation_episodes=20)  # fmt: skip
    assert same.evaluation is not None
    assert same.evaluation.return_mean == row.returns[1]
    # Another seed trains that seed alone; other settings are refused.
    results = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("runs/*/*/result.json")}
    (again,) = hybridppo.run_benchmark("CartPole-v1", seeds=2, **options)
    assert again.returns == row.returns
    assert {file: file.stat().st_mtime_ns for file in results} == results
    with pytest.raises(ConfigurationError, match="was begun with total_steps"):
        hybridppo.run_benchmark("CartPole-v1", seeds=2, **{**options, "total_steps": 96})


@processes
def test_a_run_that_is_stopped_goes_on(tmp_path: Path) -> None:
    run = asked(tmp_path / "run", steps=10_000_000)
    running = Job(run.train, tmp_path / "run.log")
    try:
        wait_until(lambda: running.ended() or read_lines(tmp_path / "run" / "metrics.jsonl"))
        assert not running.ended()
    finally:
        stop_all([running])
    assert run.result() is None
    before = len(read_lines(tmp_path / "run" / "metrics.jsonl"))
    more, file = asked(tmp_path / "run", steps=32 * before + 64), tmp_path / "run" / "config.json"
    with pytest.raises(ConfigurationError, match="was begun with total_steps 10000000, not"):
        train_missing([more], jobs=1, progress=False)
    file.write_text(file.read_text().replace("10000000", str(more.total_steps)))
    train_missing([more], jobs=1, progress=False)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) > before
    assert [line["iteration"] for line in lines] == list(range(1, len(lines) + 1))
    assert more.result() is not None


@processes
def test_a_run_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(HybridPPOError, match=r"run failed: .*NoSuch.*run\.log"):
        train_missing([asked(tmp_path / "run", env_id="NoSuch-v0")], jobs=1, progress=False)


@processes
@pytest.mark.skipif(sys.platform == "win32", reason="kill is of POSIX")
def test_whoever_is_killed_leaves_no_run_behind(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from hybridppo import PPOConfig
from hybridppo.tools.jobs import Run, train_missing
config = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
run = Run(Path({str(tmp_path / "run")!r}), "CartPole-v1", 10_000_000, 3, config, {{"placement": "cpu"}})
train_missing([run], jobs=1, progress=False)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        wait_until(lambda: read_lines(tmp_path / "run" / "metrics.jsonl"), parent)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: "interrupted" in (tmp_path / "run.log").read_text())
    wait_until_free(tmp_path / "run", 60.0)  # it is being saved
    hybridppo.resume(tmp_path / "run", total_steps=1, progress=False)  # a lock of nobody's, and a whole checkpoint
