"""Trackers: all rows arrive, once and in order, whatever fails meanwhile; and a training never waits for one."""

import json
import logging
import re
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ppo_settings import ppo_config
from processes import run_python
from run_files import lines_of
from stop_after import interrupt_at
from toy_combined import ToyAgents

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.errors import pip_install
from hybridppo.reporting.callbacks import TrainingRun
from hybridppo.reporting.trackers import tracking
from hybridppo.reporting.trackers.base import TrackedRun, Tracker
from hybridppo.reporting.trackers.registry import TRACKERS, names_of_trackers

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(4,))
BATCH = CONFIG.batch_size


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_SENDS", 0.001)
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_ATTEMPTS", 0.001)


def train(iterations: int = 6, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "progress": False, "vectorization": "sync"} | options
    return hybridppo.train("CartPole-v1", total_steps=iterations * BATCH, **options)


class Memory(Tracker):
    """Keeps what it is given, unless it is out of order."""

    name = "memory"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.opened: list[str | None] = []
        self.runs: list[TrackedRun] = []
        self.is_down = threading.Event()
        self.has_failed = threading.Event()
        self.has_logged = threading.Event()
        self.closed = 0

    def _look(self) -> None:
        if self.is_down.is_set():
            self.has_failed.set()
            raise ConnectionError("no network")

    def open(self, run: TrackedRun, before: str | None) -> str | None:
        self._look()
        self.runs.append(run)
        self.opened.append(before)
        return before or f"number {len(self.opened)}"

    def log(self, rows: Any) -> None:
        self._look()
        self.rows += rows
        self.has_logged.set()

    def close(self) -> None:
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [steps for steps, values in self.rows if "policy_loss" in values]


ALL = [BATCH * (i + 1) for i in range(6)]


def test_every_row_arrives_with_what_there_is_to_know_of_the_run(tmp_path: Path) -> None:
    tracker = Memory()
    train(track=[tracker], run_dir=tmp_path / "run", evaluate_every=2 * BATCH, evaluate_episodes=2)
    assert tracker.steps == ALL
    assert tracker.closed == 1
    (run,) = tracker.runs
    assert run.name == "run"
    flat = run.flat_config()
    assert flat["config.learning_rate"] == CONFIG.learning_rate
    assert flat["env_id"] == "CartPole-v1"
    assert flat["run_dir"] == str(tmp_path / "run")
    evaluations = {steps: values for steps, values in tracker.rows if "evaluation_return_mean" in values}
    lines = lines_of(tmp_path / "run", "evaluations.jsonl")
    assert {line["env_steps"]: line["evaluation_return_mean"] for line in lines} == {
        steps: values["evaluation_return_mean"] for steps, values in evaluations.items()
    }
    assert not any("policy_loss" in values for values in evaluations.values())
    last = dict(tracker.rows)[ALL[0]]
    assert last["policy_loss"] == json.loads((tmp_path / "run" / "metrics.jsonl").open().readline())["policy_loss"]


def test_an_evaluation_of_several_policies_is_sent_once() -> None:
    tracker = Memory()
    options: dict[str, Any] = {"placement": "cpu", "progress": False, "evaluate_every": BATCH, "evaluate_episodes": 1}
    policies = {"stays": CONFIG, "leaves": CONFIG}
    hybridppo.train(ToyAgents, total_steps=2 * BATCH, config=policies, track=tracker, **options)
    evaluated = [values for _, values in tracker.rows if "stays/evaluation_return_mean" in values]
    assert len(evaluated) == 2
    assert all("evaluation_return_mean" in values for values in evaluated)


@pytest.mark.parametrize("has_directory", [True, False])
def test_the_evaluation_after_the_training_comes_last(has_directory: bool, tmp_path: Path) -> None:
    tracker, run_dir = Memory(), tmp_path / "run" if has_directory else None
    often = {"evaluate_every": BATCH, "evaluate_episodes": 2, "evaluate_beside": False}
    result = train(track=tracker, run_dir=run_dir, evaluation_episodes=3, **often)
    assert result.evaluation is not None
    steps, values = tracker.rows[-1]
    assert (steps, values["evaluation_return_mean"]) == (ALL[-1], result.evaluation.return_mean)
    assert sum("evaluation_return_mean" in values for _, values in tracker.rows) == len(ALL) + 1
    assert [steps for steps, _ in tracker.rows] == sorted(steps for steps, _ in tracker.rows)
    if run_dir is not None:  # a finished run is evaluated once more, and has nothing else to send
        resumed = Memory()
        hybridppo.resume(run_dir, track=resumed, progress=False)
        assert [values["evaluation_return_mean"] for _, values in resumed.rows] == [result.evaluation.return_mean]


def test_without_a_run_directory_a_run_is_named_after_environment_and_seed() -> None:
    tracker = Memory()
    train(track=tracker)
    assert tracker.runs[0].name == "CartPole-v1-seed3"
    assert tracker.steps == ALL


@pytest.mark.parametrize("down", ["from the start", "in the midst"])
@pytest.mark.parametrize("has_directory", [True, False])
def test_an_outage_is_caught_up(
    down: str, has_directory: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Memory()
    if down == "from the start":
        tracker.is_down.set()

    def break_and_mend(metrics: Any) -> None:
        if metrics["iteration"] == 2 and down == "in the midst":
            assert tracker.has_logged.wait(30)
            tracker.is_down.set()
        if metrics["iteration"] == 5:
            assert tracker.has_failed.wait(30)
            tracker.is_down.clear()

    directory = {"run_dir": tmp_path / "run"} if has_directory else {}
    result = train(track=tracker, on_iteration=break_and_mend, **directory)
    assert result.metrics["iteration"] == 6
    assert tracker.steps == ALL
    assert sum("the tracker memory FAILED: ConnectionError: no network" in m for m in caplog.messages) == 1
    assert sum("the tracker memory works again" in message for message in caplog.messages) == 1


def test_what_was_never_sent_is_sent_by_the_run_that_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    down, up = Memory(), Memory()
    down.is_down.set()
    with caplog.at_level(logging.WARNING):
        train(4, track=down, run_dir=tmp_path / "run", evaluate_every=2 * BATCH, evaluate_episodes=1)
    assert (
        f"the tracker memory did not get all rows: ConnectionError: no network; `hybridppo resume {tmp_path / 'run'}`"
        in (caplog.text)
    )
    hybridppo.resume(tmp_path / "run", total_steps=6 * BATCH, track=up, progress=False)
    assert up.steps == ALL
    assert [steps for steps, values in up.rows if "evaluation_return_mean" in values] == ALL[1::2]


def test_a_resumed_run_goes_on_with_the_same_run_and_sends_nothing_twice(tmp_path: Path) -> None:
    first, second = Memory(), Memory()
    train(4, track=first, run_dir=tmp_path / "run", evaluate_every=2 * BATCH, evaluate_episodes=1)
    hybridppo.resume(tmp_path / "run", total_steps=6 * BATCH, track=second, progress=False)
    assert second.opened == ["number 1"]
    assert first.steps + second.steps == ALL
    evaluated = [steps for steps, values in first.rows + second.rows if "evaluation_return_mean" in values]
    assert evaluated == ALL[1::2]


def test_an_interrupted_run_has_sent_all(tmp_path: Path) -> None:
    tracker = Memory()
    train(track=tracker, run_dir=tmp_path / "run", on_iteration=interrupt_at(3), on_interrupt="return")
    assert tracker.steps == ALL[:3]
    again = Memory()
    hybridppo.resume(tmp_path / "run", track=again, progress=False)
    assert again.steps == ALL[3:]


def test_what_memory_has_no_room_for_comes_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "MOST_IN_MEMORY", 2)
    tracker = Memory()
    tracker.is_down.set()

    def mend(metrics: Any) -> None:
        if metrics["iteration"] == 5:
            assert tracker.has_failed.wait(30)
            tracker.is_down.clear()

    train(track=tracker, on_iteration=mend, run_dir=tmp_path / "run")
    assert tracker.steps == ALL


def test_without_files_what_there_is_no_room_for_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "MOST_IN_MEMORY", 2)
    tracker = Memory()
    tracker.is_down.set()

    def mend(metrics: Any) -> None:
        if metrics["iteration"] == 6:
            assert tracker.has_failed.wait(30)
            monkeypatch.setattr(tracking, "SECONDS_BETWEEN_ATTEMPTS", 60.0)

    def come_back(metrics: Any) -> None:
        if metrics["iteration"] == 6:
            tracker.is_down.clear()

    train(track=tracker, on_iteration=mend, callbacks=[], loggers=[come_back])
    assert tracker.steps[-1] == ALL[-1]
    assert len(tracker.steps) < 6
    assert "for which there was no room" in caplog.text


def test_a_tracker_that_hangs_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "SECONDS_AT_THE_END", 0.1)
    goes_on = threading.Event()

    class Hanging(Tracker):
        name = "hanging"

        def log(self, rows: Any) -> None:
            goes_on.wait(60)

    try:
        assert train(track=Hanging()).metrics["iteration"] == 6
    finally:
        goes_on.set()
    assert "the tracker hanging is not done after 0.1 s" in caplog.text


def test_a_training_that_ends_and_starts_once_more_sends_what_comes_after(tmp_path: Path) -> None:
    """As one does that has lost a learner, and goes on with others."""
    tracker = Memory()
    tracked, run = tracking.Tracking(tracker), TrainingRun(train().agent, {}, run_dir=tmp_path)
    for iteration in range(6):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": iteration + 1, "env_steps": ALL[iteration], "policy_loss": 0.0}) + "\n")
        run.iteration = iteration
        tracked.on_start(run)
        tracked.on_end(run)
    assert tracker.steps == ALL
    assert tracker.opened == [None, *["number 1"] * 5]
    assert tracker.closed == 6


def test_no_thread_is_left() -> None:
    train(track=Memory())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hybridppo-memory")]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"run": 3, "metrics": 1, "evaluations": 1}', '{"metrics": "many"}'])
def test_a_state_that_cannot_be_read_begins_anew_aloud(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(2, track=Memory(), run_dir=tmp_path / "run")
    (tmp_path / "run" / "trackers" / "memory.json").write_text(text)
    tracker = Memory()
    hybridppo.resume(tmp_path / "run", total_steps=6 * BATCH, track=tracker, progress=False)
    assert tracker.opened == [None]
    assert tracker.steps == ALL
    assert "the tracker begins anew" in caplog.text


def test_a_state_that_cannot_be_written_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def in_the_way(metrics: Any) -> None:
        if metrics["iteration"] == 1:
            (tmp_path / "run" / "trackers").write_text("a file where the folder should be")

    class Waiting(Memory):
        def open(self, run: TrackedRun, before: str | None) -> str | None:
            assert begun.wait(30)
            return super().open(run, before)

    begun = threading.Event()
    tracker = Waiting()
    train(track=tracker, run_dir=tmp_path / "run", on_iteration=in_the_way, loggers=[lambda metrics: begun.set()])
    assert tracker.steps == ALL
    assert sum("memory.json FAILED" in message for message in caplog.messages) == 1


def test_the_same_bits_with_and_without() -> None:
    with_it, without = train(track=Memory()).agent, train().agent
    assert (with_it.parameters.values == without.parameters.values).all()


# Names


def test_names_are_read_and_wrong_ones_refused() -> None:
    assert names_of_trackers("") == []
    assert names_of_trackers("tensorboard, wandb,tensorboard") == ["tensorboard", "wandb"]
    with pytest.raises(ConfigurationError, match=r"track must name some of tensorboard, .*did you mean wandb\?"):
        train(track="wanb")
    with pytest.raises(ConfigurationError, match="track must be names, or objects of subclasses of Tracker, got 3"):
        train(track=[3])
    with pytest.raises(ConfigurationError, match="each tracker needs a name of its own"):
        train(track=[Memory(), Memory()])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named_before_anything_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *arguments: None)
    with pytest.raises(ConfigurationError, match=re.escape(f"needs a package: {pip_install(name)}")):
        train(track=name, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Named(Memory):
    """Replaces a named tracker."""

    made: ClassVar[list["Named"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.name = "tensorboard"
        Named.made.append(self)


def test_names_are_remembered_beside_what_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.runs.observers.tracker_of", lambda name: Named())
    monkeypatch.setattr(Named, "made", [])
    train(2, track=["tensorboard", Memory()], run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["track"] == "tensorboard"
    again = Memory()
    hybridppo.resume(tmp_path / "run", total_steps=3 * BATCH, track=again, progress=False)
    assert [tracker.steps for tracker in (*Named.made, again)] == [ALL[:2], ALL[2:3], ALL[2:3]]
    hybridppo.resume(tmp_path / "run", total_steps=4 * BATCH, track="", progress=False)
    hybridppo.resume(tmp_path / "run", total_steps=5 * BATCH, progress=False)
    assert len(Named.made) == 2


def test_what_writes_into_the_run_directory_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *arguments: object())
    with pytest.raises(ConfigurationError, match="writes into the run directory: name one"):
        train(track="tensorboard")


def test_names_are_remembered_and_no_package_is_imported_before_it_is_used() -> None:
    # A copy of a process that has imported what trainings import, and no more, sees it as well as another would.
    code = """
import sys, hybridppo
from hybridppo.training import resume, train
from hybridppo.reporting.trackers.registry import TRACKERS
from hybridppo.reporting.trackers import mlflow, tensorboard, trackio, wandb
print([name for name in TRACKERS if name in sys.modules])
"""
    assert run_python("-c", code, check=True).stdout == "[]\n"
