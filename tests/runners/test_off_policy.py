"""The loop with a replay buffer: turns and iterations, publishes and lag, its files, and damage to them."""

import json
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from processes import run_python, start_python
from selection import only_by_default
from stop_after import StopAfter
from toy_environments import IdentityBox

import hybridppo
from hybridppo import Auto, CheckpointError, DDPGConfig, EnvError, Mirrored, SingleDevice, TD3Config
from hybridppo.environments import state
from hybridppo.run_directory.checkpoints import folders, load_latest
from hybridppo.run_directory.replay_rows import ReplayRows
from hybridppo.runners import runner
from hybridppo.runners.runner import Runner
from hybridppo.runners.training_data import OffPolicyData

CONFIG = DDPGConfig(
    num_envs=2, train_frequency=5, gradient_steps=2, batch_size=8, buffer_size=100, learning_starts=20,
    steps_per_iteration=50, hidden_sizes=(8,),
)  # fmt: skip


def train(config: Any = CONFIG, **options: Any) -> tuple[Any, list[Any]]:
    history: list[Any] = []
    arguments = {"total_steps": 200, "seed": 1, "placement": "cpu", "env": IdentityBox, **options}
    result = hybridppo.train(config=config, progress=False, on_iteration=history.append, **arguments)
    return result, history


# Turns and iterations


def test_iterations_are_of_so_many_steps_and_updates_begin_after_the_first() -> None:
    result, history = train()
    assert [m["env_steps"] for m in history] == [50, 100, 150, 200]
    # Turns of 10 steps: of the first five, the second to the fifth learn, two optimizer steps each.
    assert [m["gradient_steps"] for m in history] == [8, 18, 28, 38]
    assert result.agent.version == 19
    assert [m["replay_size"] for m in history] == [50, 100, 100, 100]
    assert [m["iteration"] for m in history] == [1, 2, 3, 4]


def test_until_learning_starts_nothing_is_learned() -> None:
    _, history = train(replace(CONFIG, learning_starts=100))
    assert np.isnan(history[0]["value_loss"])
    assert history[0]["gradient_steps"] == 0
    assert history[-1]["gradient_steps"] == 22


def test_sample_first_then_update_is_the_same_loop_with_large_turns() -> None:
    config = replace(CONFIG, train_frequency=25, gradient_steps=None)
    _, history = train(config)
    assert [m["gradient_steps"] for m in history] == [50, 100, 150, 200]
    assert [m["env_steps"] for m in history] == [50, 100, 150, 200]


def test_a_training_ends_with_its_steps_and_the_last_iteration_may_be_short() -> None:
    _, history = train(total_steps=120)
    assert [m["env_steps"] for m in history] == [50, 100, 120]
    _, history = train(total_steps=120, placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=0)
    assert [m["env_steps"] for m in history] == [50, 100, 120]


def test_a_training_may_end_with_its_episodes() -> None:
    result, _ = train(total_steps=10_000, total_episodes=5)
    assert 5 <= result.metrics["episodes"] <= 7


@pytest.mark.parametrize(("publish_every", "publishes", "lag"), [(1, 18, 0), (3, 6, 2), (10, 1, 9)])
def test_publishes_are_as_many_as_asked_for(publish_every: int, publishes: int, lag: int) -> None:
    placement = Mirrored("cpu", "cpu", force_copy=True, publish_every=publish_every)
    result, history = train(placement=placement)
    # Before each of the 20 turns but the two that nothing was learned before, 18 versions are newer; and the first.
    assert history[-1]["publishes"] == publishes + 1
    assert max(m["policy_lag"] for m in history) == lag
    size = sum(parameter.nbytes for parameter in result.agent.actor.parameters())
    assert history[-1]["bytes_copied"] == (publishes + 1) * size


def test_overlap_is_one_update_behind_and_says_what_it_did_meanwhile() -> None:
    _, history = train(placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=0)
    assert [m["policy_lag"] for m in history] == [1, 1, 1, 1]
    assert all(m["seconds_overlapped"] >= 0 for m in history)


# Where the replay buffer lies


@pytest.mark.parametrize("buffer_on", ["learner", "host"])
def test_what_crosses_is_the_rollout_or_the_minibatches(buffer_on: Any, second_device: str) -> None:
    config = replace(CONFIG, buffer_on=buffer_on)
    result, history = train(config, placement=Mirrored("cpu", second_device), total_steps=50)
    actor = sum(parameter.nbytes for parameter in result.agent.actor.parameters())
    # Observations and the last, actions, log-probabilities, rewards, two ends, a row's number of 8; and final ones.
    rollouts = 5 * (6 * 2 * 4 + 5 * 2 * (4 + 4 + 4 + 1 + 1 + 8)) + 6 * (4 + 8)  # 25 steps, of 8 an episode
    batches = 4 * 2 * 8 * 4 * (1 + 1 + 1 + 1 + 1 + 1)
    crossed = history[-1]["bytes_copied"] - history[-1]["publishes"] * actor
    assert crossed == (rollouts if buffer_on == "learner" else batches)
    assert history[-1]["publishes"] == 4


# Files


def replay_of(run_dir: Path) -> dict[str, Any]:
    replay: dict[str, Any] = load_latest(run_dir / "checkpoints")[1].state["runner"]["replay"]
    return replay


def test_a_checkpoint_appends_what_is_new_and_rewrites_nothing(tmp_path: Path) -> None:
    seen: list[dict[str, bytes]] = []
    run_dir = tmp_path / "run"

    def look(metrics: Any) -> None:
        seen.append({path.name: path.read_bytes() for path in sorted(run_dir.glob("replay/*"))})

    hybridppo.train(
        IdentityBox, total_steps=400, seed=1, placement="cpu", config=replace(CONFIG, buffer_size=10_000),
        run_dir=run_dir, checkpoint_seconds=0.0, progress=False, on_iteration=look,
    )  # fmt: skip
    sizes = [sum(map(len, files.values())) for files in seen]
    assert sizes == sorted(set(sizes))  # larger each time
    for before, after in pairwise(seen):
        assert all(after[name].startswith(data) for name, data in before.items())
    assert replay_of(run_dir)["total"] == 200
    assert sum(piece["rows"] for piece in replay_of(run_dir)["pieces"]) == 200


def test_files_of_rows_that_no_checkpoint_needs_go(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir=run_dir, total_steps=1_000, checkpoint_seconds=0.0, keep_checkpoints=2)
    rows = replay_of(run_dir)
    assert rows["total"] == 500
    files = sorted(path.stem for path in run_dir.glob("replay/*"))
    # A buffer of 50 rows, the checkpoint before at 475, and a file for each checkpoint.
    assert 475 - 50 - 25 <= int(files[0]) <= 475 - 50
    assert files == sorted(f"{piece['first']:012d}" for piece in rows["pieces"])[-len(files) :]
    # The checkpoint before the last goes on as well.
    path, _ = load_latest(run_dir / "checkpoints")
    (path / "state.json").write_text("{}")
    assert hybridppo.resume(run_dir, env=IdentityBox, progress=False).metrics["env_steps"] == 1_000


def run_with_two_checkpoints(run_dir: Path) -> None:
    """The older one needs none of the rows of the newer."""
    config = replace(CONFIG, buffer_size=10_000)
    train(config, run_dir=run_dir, total_steps=100)
    hybridppo.resume(run_dir, env=IdentityBox, total_steps=200, progress=False)
    assert [int(path.name) for path in folders(run_dir / "checkpoints")] == [0, 100, 200]


@pytest.mark.parametrize("damage", ["altered", "truncated"])
def test_damaged_rows_are_told_of_and_an_older_checkpoint_is_taken(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_with_two_checkpoints(tmp_path / "run")
    expected = load_latest(tmp_path / "run" / "checkpoints")[1]
    path = max((tmp_path / "run").glob("replay/*"))
    assert path.name == "000000000050.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-10] if damage == "truncated" else data[:300] + b"\xff" + data[301:])
    result = hybridppo.resume(tmp_path / "run", env=IdentityBox, progress=False)
    assert f"{path} is truncated or altered" in caplog.text
    assert "going on from the next best" in caplog.text
    assert result.metrics["env_steps"] == 200
    found = load_latest(tmp_path / "run" / "checkpoints")[1]
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())
    assert hybridppo.load(tmp_path / "run").version == result.agent.version  # which needs no rows


def test_rows_that_every_checkpoint_needs_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    run_with_two_checkpoints(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "000000000000" / "state.json").write_text("{}")
    path = min((tmp_path / "run").glob("replay/*"))
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=f"{path.name} is truncated or altered"):
        hybridppo.resume(tmp_path / "run", env=IdentityBox, progress=False)
    assert hybridppo.load(tmp_path / "run").version > 0


FULL_DISK = """
import resource, sys, hybridppo
from hybridppo import TD3Config
from toy_environments import IdentityBox
def on_iteration(metrics):
    if metrics["iteration"] == 3:
        sys.dont_write_bytecode = True  # it would be truncated, and stay
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    if metrics["iteration"] == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
result = hybridppo.train(
    IdentityBox, total_steps=int(sys.argv[2]), seed=1, placement="cpu", run_dir=sys.argv[1], checkpoint_seconds=0.0,
    config=TD3Config(
        hidden_sizes=(4,), batch_size=4, buffer_size=60, learning_starts=10, steps_per_iteration=40, train_frequency=4,
        gradient_steps=1,
    ),
    progress=False, on_iteration=on_iteration,
)
print(result.saved)
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
@pytest.mark.parametrize(("total_steps", "is_saved"), only_by_default(("400, True",), [(200, False), (400, True)]))
def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path, total_steps: int, is_saved: bool) -> None:
    # By the time that there is room again, more steps were made than the buffer holds.
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = run_python("-c", FULL_DISK, tmp_path / "run", total_steps, env=paths, check=True)
    assert process.stdout.strip() == str(is_saved)
    assert process.stderr.count("FAILED") >= 1
    assert "the checkpoints before it are kept" in process.stderr
    saved = load_latest(tmp_path / "run" / "checkpoints")[1]
    assert saved.state["runner"]["iteration"] == (10 if is_saved else 2)
    train(TD3Config(**saved_config(tmp_path)), run_dir=tmp_path / "expected", total_steps=480, env=IdentityBox)
    hybridppo.resume(tmp_path / "run", env=IdentityBox, total_steps=480, progress=False)
    found, expected = (load_latest(tmp_path / name / "checkpoints")[1] for name in ("run", "expected"))
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())


def saved_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "run" / "config.json").read_text())["config"]
    return config


KILLED = """
import sys, hybridppo
from hybridppo import DDPGConfig
from toy_environments import IdentityBox
config = DDPGConfig(
    hidden_sizes=(4,), batch_size=4, buffer_size=200, learning_starts=10, steps_per_iteration=20, train_frequency=4,
    gradient_steps=1,
)
hybridppo.train(
    IdentityBox, total_steps=10**9, seed=1, placement="cpu", run_dir=sys.argv[1], checkpoint_seconds=0.0, config=config,
    progress=False,
)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
def test_a_killed_run_goes_on_as_one_that_never_was(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = start_python(tmp_path / "killed.py", tmp_path / "run", env=paths)
    try:
        watched = psutil.Process(process.pid)
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 16:
            assert watched.is_running()
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = load_latest(tmp_path / "run" / "checkpoints")[1].state["sampler"]["env_steps"]
    assert done >= 300  # more than the buffer holds
    with next((tmp_path / "run" / "replay").glob("*")).open("ab") as file:
        file.write(b"as if it had been writing")
    total = done + 100
    hybridppo.resume(tmp_path / "run", env=IdentityBox, total_steps=total, progress=False)
    train(DDPGConfig(**saved_config(tmp_path)), run_dir=tmp_path / "expected", total_steps=total, env=IdentityBox)
    found, expected = (load_latest(tmp_path / name / "checkpoints")[1] for name in ("run", "expected"))
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in found.tensors.items())
    assert found.state["agent"] == expected.state["agent"]


# Faults of environments


class Fails(IdentityBox):
    """Raises in every 37th step of its life."""

    def __init__(self) -> None:
        super().__init__(length=8)
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps % 37 == 0:
            raise ValueError("the motor is stuck")
        return super().step(action)


@pytest.mark.parametrize(
    ("train_frequency", "num_workers"), only_by_default(("1, 0", "5, 2"), [(1, 0), (1, 2), (5, 0), (5, 2)])
)
def test_environments_are_restarted_and_nothing_reaches_across(train_frequency: int, num_workers: int) -> None:
    config = replace(CONFIG, train_frequency=train_frequency, gradient_steps=1, n_steps=4, buffer_size=1_000)
    result, history = train(
        config, env=Fails, on_env_error="restart", num_workers=num_workers, total_steps=240, vectorization="sync"
    )
    assert history[-1]["env_restarts"] >= 5
    assert result.metrics["env_steps"] >= 240
    assert np.isfinite(result.metrics["value_loss"])


def test_an_environment_that_fails_is_named() -> None:
    with pytest.raises(EnvError, match=r"environment \d \(seed \d+\) failed in step .*the motor is stuck"):
        train(env=Fails, total_steps=400)


class Sudden(OffPolicyData):
    """Reports for each rollout that an environment was restarted before it."""

    restarts = 0

    def _next(self, is_last: Any) -> Any:
        self.restarts += 1
        return super()._next(is_last)[0], self.restarts


def test_restarts_between_rollouts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # As when a worker process is lost between two, or a rollout is lost entirely: no row tells of it.
    begins: list[list[bool]] = []
    for kind in (OffPolicyData, Sudden):
        monkeypatch.setattr(runner, "OffPolicyData", kind)
        monkeypatch.setattr(Runner, "_completed", watch(begins))
        train(total_steps=50)
    expected = [i % 8 == 0 for i in range(25)]  # episodes of 8 steps, turns of 5
    assert begins == [expected, [i % 8 == 0 or i % 5 == 0 for i in range(25)]]


COMPLETED = Runner._completed


def watch(begins: list[list[bool]]) -> Any:
    def completed(runner: Any, *arguments: Any) -> Any:
        begins.append(runner.data.replay.rows(0, runner.data.replay.total)["begins"][:, 0].tolist())
        return COMPLETED(runner, *arguments)

    return completed


class Secretive(IdentityBox):
    """Its state cannot be saved: a Python generator is not plain data."""

    def reset(self, **options: Any) -> Any:
        self.secret = (i for i in range(3))
        return super().reset(**options)


def test_where_environments_start_anew_nothing_reaches_across(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LONGEST", 0.0)  # no episode is replayed
    config = replace(CONFIG, buffer_size=1_000, n_steps=3)
    train(config, env=Secretive, run_dir=tmp_path / "run", total_steps=60)  # 30 steps each: in a fourth episode of 8
    with caplog.at_level(logging.INFO):
        hybridppo.resume(tmp_path / "run", env=Secretive, total_steps=120, progress=False)
    assert "new episodes" in caplog.text
    saved = ReplayRows(tmp_path / "run" / "replay")
    saved.pieces = replay_of(tmp_path / "run")["pieces"]
    rows = {first + i: begins for first, piece in saved.read() for i, begins in enumerate(piece["begins"].tolist())}
    assert [row for row, begins in rows.items() if all(begins)] == [0, 8, 16, 24, 30, 38, 46, 54]


def test_a_trace_can_be_written(tmp_path: Path) -> None:
    train(total_steps=350, run_dir=tmp_path / "run", profile=True)
    trace = json.loads((tmp_path / "run" / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"iteration", "sampling: finish", "learning"} <= names


# Placement auto


def test_without_a_choice_auto_says_so_and_trains(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        result, _ = train(placement="auto")
    assert "placement auto: cpu; not measured (all: a run of" in caplog.text
    other, _ = train(placement="cpu")
    assert torch.equal(result.agent.parameters.values, other.agent.parameters.values)


def test_auto_with_lag_writes_down_what_it_tried(tmp_path: Path) -> None:
    config = replace(CONFIG, learning_starts=20, steps_per_iteration=500)
    options: dict[str, Any] = {"total_steps": 11_000, "callbacks": [StopAfter(1)]}  # what is short is not measured
    train(config, placement=Auto(max_lag=1), run_dir=tmp_path / "run", **options)
    table = json.loads((tmp_path / "run" / "placements.json").read_text())
    labels = {row["label"] for row in table["trials"]}
    assert {"cpu", table["chosen"]} <= labels
    # Which candidates are worth a trial depends on how fast the first ones were.
    assert {label.partition(",")[0] for label in labels} <= {"cpu", "overlap"}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["agent"] == "ddpg"


# The command line


def test_the_command_line_takes_the_flags_of_the_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hybridppo.commands.main import main

    flags = ["--hidden-sizes", "8", "--batch-size", "8", "--learning-starts", "20", "--policy-delay", "3"]
    flags += ["--steps-per-iteration", "40", "--total-steps", "80", "--placement", "cpu", "--no-progress"]
    with pytest.raises(SystemExit) as ended:
        main(["train", "Pendulum-v1", "--agent", "td3", *flags, "--run-dir", str(tmp_path / "run")])
    assert ended.value.code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["agent"], config["config"]["policy_delay"]) == ("td3", 3)
    for arguments, code in (
        (["resume", str(tmp_path / "run"), "--total-steps", "120", "--no-progress"], 0),
        (["evaluate", str(tmp_path / "run"), "--episodes", "2", "--no-progress"], 0),
        (["train", "CartPole-v1", "--agent=ddpg", "--placement", "cpu"], 1),
        (["train", "Pendulum-v1", "--agent", "sac"], 2),
        (["train", "Pendulum-v1", "--agent"], 2),
        (["train", "Pendulum-v1", "--agent", "ddpg", "--policy-delay", "3"], 2),
        (["train", "Pendulum-v1", "--agent", "td3", "--tau", "2"], 2),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code, arguments
    said = capsys.readouterr()
    assert "a deterministic actor (DDPG, TD3) needs a Box" in said.err
    assert "tau must be above 0 and at most 1, got 2.0" in said.err


def test_a_function_of_an_environment_needs_no_agent_flag() -> None:
    result, _ = train(TD3Config(hidden_sizes=(4,), learning_starts=10, batch_size=4, steps_per_iteration=50))
    assert isinstance(result.agent, hybridppo.TD3)
    assert SingleDevice("cpu").settings() == {"name": "cpu", "device": "cpu"}
