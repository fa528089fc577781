"""Loggers: all values arrive, once and in order; and no error of a logger ends a training."""

import csv
import importlib.util
import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
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
from hybridppo.reporting.loggers import LOGGERS, Logger, Wandb, flat_config, grouped, logger_names, name_of

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(4,))
BATCH = CONFIG.batch_size
ALL = [BATCH * (i + 1) for i in range(6)]


def train(iterations: int = 6, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "progress": False, "vectorization": "sync"} | options
    return hybridppo.train("CartPole-v1", total_steps=iterations * BATCH, **options)


class Memory(Logger):
    """Keeps what it is given, unless it is out of order."""

    name = "memory"

    def __init__(self, fails_in: str = "") -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.opened: list[str | None] = []
        self.runs: list[TrainingRun] = []
        self.fails_in = fails_in
        self.closed = 0

    def _look(self, where: str) -> None:
        if self.fails_in == where:
            raise ConnectionError("no network")

    def open(self, run: TrainingRun, before: str | None) -> str | None:
        self._look("open")
        self.runs.append(run)
        self.opened.append(before)
        return before or f"number {len(self.opened)}"

    def log(self, env_steps: int, values: dict[str, float]) -> None:
        self._look("log")
        self.rows.append((env_steps, values))

    def close(self) -> None:
        self._look("close")
        self.closed += 1

    @property
    def steps(self) -> list[int]:
        return [steps for steps, values in self.rows if "policy_loss" in values]

    @property
    def evaluated(self) -> list[int]:
        return [steps for steps, values in self.rows if "evaluation_return_mean" in values]


def test_every_row_arrives_with_what_there_is_to_know_of_the_run(tmp_path: Path) -> None:
    logger = Memory()
    train(loggers=[logger], run_dir=tmp_path / "run", evaluate_every=2 * BATCH, episodes_per_evaluation=2)
    assert logger.steps == ALL
    assert logger.closed == 1
    (run,) = logger.runs
    assert name_of(run) == "run"
    flat = flat_config(run)
    assert flat["config.learning_rate"] == CONFIG.learning_rate
    assert flat["env_id"] == "CartPole-v1"
    assert flat["run_dir"] == str(tmp_path / "run")
    evaluations = {steps: values for steps, values in logger.rows if "evaluation_return_mean" in values}
    lines = lines_of(tmp_path / "run", "evaluations.jsonl")
    assert {line["env_steps"]: line["evaluation_return_mean"] for line in lines} == {
        steps: values["evaluation_return_mean"] for steps, values in evaluations.items()
    }
    assert not any("policy_loss" in values for values in evaluations.values())
    last = dict(logger.rows)[ALL[0]]
    assert last["policy_loss"] == json.loads((tmp_path / "run" / "metrics.jsonl").open().readline())["policy_loss"]


def test_an_evaluation_of_several_policies_is_sent_once() -> None:
    logger = Memory()
    options: dict[str, Any] = {
        "placement": "cpu",
        "progress": False,
        "evaluate_every": BATCH,
        "episodes_per_evaluation": 1,
    }
    policies = {"stays": CONFIG, "leaves": CONFIG}
    hybridppo.train(ToyAgents, total_steps=2 * BATCH, config=policies, loggers=logger, **options)
    evaluated = [values for _, values in logger.rows if "stays/evaluation_return_mean" in values]
    assert len(evaluated) == 2
    assert all("evaluation_return_mean" in values for values in evaluated)


@pytest.mark.parametrize("has_directory", [True, False])
def test_the_evaluation_after_the_training_comes_last(has_directory: bool, tmp_path: Path) -> None:
    logger, run_dir = Memory(), tmp_path / "run" if has_directory else None
    often = {"evaluate_every": BATCH, "episodes_per_evaluation": 2, "evaluate_async": False}
    result = train(loggers=logger, run_dir=run_dir, evaluation_episodes=3, **often)
    assert result.evaluation is not None
    steps, values = logger.rows[-1]
    assert (steps, values["evaluation_return_mean"]) == (ALL[-1], result.evaluation.return_mean)
    assert len(logger.evaluated) == len(ALL) + 1
    assert [steps for steps, _ in logger.rows] == sorted(steps for steps, _ in logger.rows)
    if run_dir is not None:  # a finished run is evaluated once more, and has nothing else to send
        resumed = Memory()
        hybridppo.resume(run_dir, loggers=resumed, progress=False)
        assert [values["evaluation_return_mean"] for _, values in resumed.rows] == [result.evaluation.return_mean]


def test_without_a_run_directory_a_run_is_named_after_environment_and_seed() -> None:
    logger = Memory()
    train(loggers=logger)
    assert name_of(logger.runs[0]) == "CartPole-v1-seed3"
    assert logger.steps == ALL


@pytest.mark.parametrize(
    ("fails_in", "consequence"),
    [
        ("open", "this training is not logged by it"),
        ("log", "the training continues, and the files in the run directory have all"),
        ("close", "its last values may be lost"),
    ],
)
def test_a_logger_that_fails_never_ends_a_training(
    fails_in: str, consequence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = Memory(fails_in)
    with caplog.at_level(logging.WARNING):
        assert train(loggers=logger, run_dir=tmp_path / "run").metrics["iteration"] == 6
    failures = [message for message in caplog.messages if "the logger memory FAILED" in message]
    assert failures == [f"the logger memory FAILED: ConnectionError: no network; {consequence}"]
    assert logger.steps == (ALL if fails_in == "close" else [])
    assert logger.closed == (fails_in == "log")


def test_a_resumed_run_goes_on_with_the_same_run_and_sends_nothing_twice(tmp_path: Path) -> None:
    first, second = Memory(), Memory()
    train(4, loggers=first, run_dir=tmp_path / "run", evaluate_every=2 * BATCH, episodes_per_evaluation=1)
    hybridppo.resume(tmp_path / "run", total_steps=6 * BATCH, loggers=second, progress=False)
    assert second.opened == ["number 1"]
    assert first.steps + second.steps == ALL
    assert first.evaluated + second.evaluated == ALL[1::2]


def test_an_interrupted_run_has_sent_all(tmp_path: Path) -> None:
    logger = Memory()
    train(loggers=logger, run_dir=tmp_path / "run", on_iteration=interrupt_at(3), on_interrupt="return")
    assert logger.steps == ALL[:3]
    again = Memory()
    hybridppo.resume(tmp_path / "run", loggers=again, progress=False)
    assert again.steps == ALL[3:]


def test_the_iteration_in_which_a_callback_fails_is_logged(tmp_path: Path) -> None:
    def fail(metrics: Any) -> None:
        if metrics["iteration"] == 2:
            raise ValueError("a callback")

    logger = Memory()
    with pytest.raises(ValueError, match="a callback"):
        train(loggers=logger, on_iteration=fail, run_dir=tmp_path / "run")
    assert logger.steps == ALL[:2]
    assert logger.closed == 1


def test_the_same_bits_with_and_without() -> None:
    with_it, without = train(loggers=Memory()).agent, train().agent
    assert (with_it.parameters.values == without.parameters.values).all()


# Names


def test_names_are_read_and_wrong_ones_refused() -> None:
    assert logger_names("") == []
    assert logger_names("tensorboard, wandb,tensorboard") == ["tensorboard", "wandb"]
    with pytest.raises(ConfigurationError, match=r"track must name some of tensorboard, .*did you mean wandb\?"):
        train(track="wanb")
    with pytest.raises(ConfigurationError, match=r"loggers must be functions of the metrics, .*Logger, got 3"):
        train(loggers=[3])
    with pytest.raises(ConfigurationError, match="each logger needs a name of its own"):
        train(loggers=[Memory(), Memory()])


@pytest.mark.parametrize("name", LOGGERS)
def test_a_package_that_is_missing_is_named_before_anything_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridppo.reporting.loggers.is_installed", lambda name: False)
    with pytest.raises(ConfigurationError, match=re.escape(f"needs a package: {pip_install(name)}")):
        train(track=name, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_its_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # wandb keeps its runs in a folder named wandb, and Python imports a folder that is in the working directory.
    monkeypatch.setitem(LOGGERS, "nosuchlogger", Memory)
    (tmp_path / "nosuchlogger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("nosuchlogger") is not None
    with pytest.raises(ConfigurationError, match="logging with nosuchlogger needs a package"):
        train(track="nosuchlogger")
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(hybridppo.__file__).parent.rglob("*.py")}
    assert [name for name, text in texts.items() if "find_spec(" in text] == ["errors.py"]


class Named(Memory):
    """Replaces a named logger."""

    name = "tensorboard"
    made: ClassVar[list["Named"]] = []

    def __init__(self) -> None:
        super().__init__()
        Named.made.append(self)


def test_names_are_remembered_beside_what_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.reporting.loggers.is_installed", lambda name: True)
    monkeypatch.setitem(LOGGERS, "tensorboard", Named)
    monkeypatch.setattr(Named, "made", [])
    train(2, track="tensorboard", loggers=Memory(), run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["track"] == "tensorboard"
    again = Memory()
    hybridppo.resume(tmp_path / "run", total_steps=3 * BATCH, loggers=again, progress=False)
    assert [logger.steps for logger in (*Named.made, again)] == [ALL[:2], ALL[2:3], ALL[2:3]]
    hybridppo.resume(tmp_path / "run", total_steps=4 * BATCH, track="", progress=False)
    hybridppo.resume(tmp_path / "run", total_steps=5 * BATCH, progress=False)
    assert len(Named.made) == 2


def test_what_writes_into_the_run_directory_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.reporting.loggers.is_installed", lambda name: True)
    with pytest.raises(ConfigurationError, match="writes into the run directory: name one"):
        train(track="tensorboard")


def test_no_package_is_imported_before_it_is_used() -> None:
    # A copy of a process that has imported what trainings import, and no more, sees it as well as another would.
    code = """
import sys, hybridppo
hybridppo.train, hybridppo.resume
from hybridppo.reporting.loggers import LOGGERS
print([name for name in LOGGERS if name in sys.modules and name != "csv"])
"""
    assert run_python("-c", code, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("policy_loss", "train/policy_loss"),
        ("my_extra_loss", "train/my_extra_loss"),
        ("episode_return_mean", "rollout/episode_return_mean"),
        ("seconds_sampling", "time/seconds_sampling"),
        ("steps_per_second", "time/steps_per_second"),
        ("evaluation_return_mean", "eval/return_mean"),
        ("evaluation_info/angle", "eval/info/angle"),
        ("info/angle", "info/angle"),
        ("tagger/policy_loss", "tagger/policy_loss"),
    ],
)
def test_metrics_come_in_groups(name: str, expected: str) -> None:
    assert grouped(name) == expected


def test_ones_own_logger_may_have_groups() -> None:
    class Grouped(Memory):
        groups = True

    plain, in_groups = Memory(), Grouped()
    train(1, loggers=plain)
    train(1, loggers=in_groups)
    assert [*map(grouped, plain.rows[0][1])] == [*in_groups.rows[0][1]]
    assert {name.partition("/")[0] for name in in_groups.rows[0][1]} == {"rollout", "train", "time"}


def table_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_has_the_lines_of_metrics(tmp_path: Path) -> None:
    """Also with columns that come later, after a resume, and if the file was deleted."""
    run = tmp_path / "run"
    extra = ExtraInTheThird()
    train(4, track="csv", run_dir=run, callbacks=extra, evaluate_every=2 * BATCH, episodes_per_evaluation=1)
    (run / "metrics.csv").unlink()
    hybridppo.resume(run, total_steps=6 * BATCH, progress=False, callbacks=extra)
    rows, lines = table_of(run), lines_of(run)
    assert len(rows) == len(lines) == 6
    assert [row["extra"] for row in rows] == ["", "", "3.0", "", "", ""]
    for row, line in zip(rows, lines, strict=True):
        found = {name: float(text) for name, text in row.items() if text}
        assert found == {name: value for name, value in line.items() if value is not None}


class ExtraInTheThird(hybridppo.Callback):
    def on_metrics(self, run: Any, metrics: Any) -> dict[str, float]:
        return {"extra": 3.0} if run.iteration == 3 else {}


def test_projects_names_and_tags_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    methods = dict.fromkeys(("define_metric", "log", "finish"), lambda *arguments, **options: None)
    run = SimpleNamespace(id="1", disabled=False, **methods)
    package: Any = SimpleNamespace(Settings=dict, init=lambda **options: given.update(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", package)
    names = ("project", "entity", "name", "tags")
    options = {"track_project": "poles", "track_entity": "we", "track_name": "first", "track_tags": "ppo, cart"}
    train(1, loggers=Wandb(), **options)
    assert [given[name] for name in names] == ["poles", "we", "first", ["ppo", "cart"]]
    train(1, loggers=Wandb("mine", tags=["own"]), track_project="poles")  # what Python says goes before
    assert [given[name] for name in names] == ["mine", None, "CartPole-v1-seed3", ["own"]]
    with pytest.raises(ConfigurationError, match="track_name must be text, got 3"):
        train(1, track_name=3)
