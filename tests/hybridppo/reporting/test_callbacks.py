"""Callbacks: called for everything, in order; free to stop; an error in one is named, and loses nothing."""

import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from stop_after import interrupt_at

import hybridppo
from hybridppo import Callback, CallbackError, ConfigurationError, TrainingInterrupted
from hybridppo.reporting.callbacks import require_callbacks
from hybridppo.run_directory.checkpoints import folders, load_latest
from hybridppo.run_directory.files import finite, read_lines

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size
WAYS: dict[str, dict[str, Any]] = {
    "cpu": {"placement": "cpu"},
    "workers": {"placement": "cpu", "num_workers": 2},
    "overlap": {"placement": "overlap"},
}


def train(iterations: int = 4, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "progress": False, "vectorization": "sync"} | options
    if options["placement"] == "overlap":
        options["placement"] = hybridppo.Mirrored("cpu", "cpu", max_lag=1)
    return hybridppo.train("CartPole-v1", total_steps=iterations * BATCH, **options)


class Recorder(Callback):
    """Notes its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.seen: list[Any] = []

    def on_start(self, run: Any) -> None:
        self.told.append(f"start {run.iteration}")

    def on_iteration(self, run: Any, metrics: Any) -> None:
        assert run.iteration == metrics["iteration"]
        assert run.env_steps == metrics["env_steps"]
        self.told.append(f"iteration {run.iteration}")
        self.seen.append(metrics)

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        self.told.append(f"evaluation of {evaluation['iteration']}")

    def on_checkpoint(self, run: Any, path: Path) -> None:
        assert (path / "state.json").exists()
        self.told.append(f"checkpoint {int(path.name)}")

    def on_end(self, run: Any) -> None:
        self.told.append("end")


class Failing(Callback):
    """Raises in one of its methods; in one that is called in each iteration, in the third."""

    def __init__(self, hook: str, error: BaseException | None = None) -> None:
        self._error = error if error is not None else ZeroDivisionError("no luck")
        setattr(self, hook, self._fail)

    def _fail(self, run: Any, *arguments: Any) -> None:
        if run.iteration in (0, 3) or arguments == ():
            raise self._error


def parameters(agent: Any) -> torch.Tensor:
    return agent.parameters.values.detach().clone()


def test_everything_is_told_in_order(tmp_path: Path) -> None:
    recorder = Recorder()
    train(2, callbacks=recorder, run_dir=tmp_path / "run", evaluate_every=BATCH, episodes_per_evaluation=1)
    assert recorder.told == [
        "start 0", "checkpoint 0", f"checkpoint {BATCH}", "evaluation of 1", "iteration 1",
        f"checkpoint {2 * BATCH}", "evaluation of 2", "iteration 2", "end",
    ]  # fmt: skip


class Saving(Recorder):
    """Also records the methods of a rollout, of the finish and of an error; saves in the first of two iterations."""

    def on_rollout(self, run: Any) -> None:
        self.told.append("rollout")

    def on_iteration(self, run: Any, metrics: Any) -> None:
        super().on_iteration(run, metrics)
        if run.iteration == 1:
            run.save()

    def on_finish(self, run: Any) -> None:
        self.told.append("finish")

    def on_error(self, run: Any, error: BaseException) -> None:
        self.told.append(f"error {error}")


def test_a_callback_may_save(tmp_path: Path) -> None:
    recorder = Saving()
    train(2, callbacks=recorder, run_dir=tmp_path / "run", checkpoint_seconds=1e6)
    assert recorder.told == [
        "start 0", "checkpoint 0", "rollout", "iteration 1", f"checkpoint {BATCH}", "rollout", "iteration 2", "finish",
        f"checkpoint {2 * BATCH}", "end",
    ]  # fmt: skip
    train(2, callbacks=Saving())  # without a run directory, there is nothing to save


def test_an_error_between_updates_is_told() -> None:
    recorder = Saving()
    with pytest.raises(ZeroDivisionError):
        train(2, callbacks=recorder, on_iteration=lambda metrics: 1 // 0)
    assert recorder.told[-2:] == ["error integer division or modulo by zero", "end"]


def test_an_error_in_on_error_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Worse(Callback):
        def on_error(self, run: Any, error: BaseException) -> None:
            raise ValueError("and that, too")

    with pytest.raises(ZeroDivisionError) as caught:
        train(2, callbacks=Worse(), run_dir=tmp_path / "run", on_iteration=lambda metrics: 1 // 0)
    assert "is saved: go on with" in caught.value.__notes__[0]
    assert "Worse failed in on_error, after iteration 1" in caplog.text
    assert hybridppo.load(tmp_path / "run").version == 1


def test_the_evaluation_after_training_is_told_too() -> None:
    recorder = Recorder()
    train(2, callbacks=[recorder], evaluation_episodes=1)
    assert recorder.told[-2:] == ["evaluation of 2", "end"]


def test_a_resumed_run_is_told_where_it_goes_on(tmp_path: Path) -> None:
    train(2, run_dir=tmp_path / "run")
    recorder = Recorder()
    hybridppo.resume(tmp_path / "run", total_steps=3 * BATCH, callbacks=[recorder], progress=False)
    assert recorder.told == ["start 2", "iteration 3", f"checkpoint {3 * BATCH}", "end"]


def test_what_is_told_is_on_the_disk(tmp_path: Path) -> None:
    lines: list[int] = []

    class Counting(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            assert run.agent.version == run.iteration
            assert run.config["seed"] == 3
            lines.append(len((run.run_dir / "metrics.jsonl").read_text().splitlines()))

    train(callbacks=[Counting()], run_dir=tmp_path / "run")
    assert lines == [1, 2, 3, 4]


class Stopping(Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == 2:
            run.stop("enough")
            run.stop("and again")


@pytest.mark.parametrize("way", WAYS)
def test_a_callback_may_end_the_training(way: str, tmp_path: Path) -> None:
    result = train(4, callbacks=[Stopping()], run_dir=tmp_path / "run", evaluation_episodes=1, **WAYS[way])
    assert result.stopped_by == "enough"
    assert result.metrics["iteration"] == 2
    assert not result.interrupted
    assert result.saved
    assert result.evaluation is not None
    assert (tmp_path / "run" / "result.json").exists()
    resumed = hybridppo.resume(tmp_path / "run", progress=False)
    whole = train(4, **WAYS[way])
    assert torch.equal(parameters(resumed.agent), parameters(whole.agent))
    assert resumed.stopped_by is None


def test_a_callback_adds_metrics_of_its_own(tmp_path: Path) -> None:
    class Doubled(Callback):
        def on_metrics(self, run: Any, metrics: Any) -> Any:
            return {"mine/twice": np.float32(2 * metrics["iteration"]), "mine/tensor": torch.tensor(0.5)}

    class Tracked(hybridppo.Logger):
        name, rows = "tracked", ()

        def log(self, env_steps: int, values: dict[str, float]) -> None:
            self.rows = (*self.rows, values["mine/twice"])

    recorder, tracker, path = Recorder(), Tracked(), tmp_path / "run"
    train(2, callbacks=[recorder, Doubled()], run_dir=path, loggers=tracker)
    result = hybridppo.resume(path, total_steps=3 * BATCH, callbacks=[Doubled()], progress=False)
    assert result.metrics["mine/twice"] == 6.0
    assert [line["mine/twice"] for line in read_lines(path / "metrics.jsonl")] == [2.0, 4.0, 6.0]
    assert [seen["mine/tensor"] for seen in recorder.seen] == [0.5, 0.5]
    assert tracker.rows == (2.0, 4.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"entropy": 1.0}, r"metrics need names of their own, and 'entropy' is not"),
        ({"mine": "much"}, "the metric 'mine' must be a number, got 'much'"),
        ({"mine": None}, "the metric 'mine' must be a number, got None"),
        ({3: 1.0}, r"metrics need names of their own, and 3 is not"),
        (7.0, "it must return a dict of numbers by name, or None, and returned 7.0"),
    ],
)
def test_metrics_of_a_callback_that_are_none_are_refused(given: Any, words: str, tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_metrics(self, run: Any, metrics: Any) -> Any:
            return given

    with pytest.raises(CallbackError, match=f"Wrong.* failed in on_metrics, after iteration 1: .*{words}"):
        train(2, callbacks=[Wrong()], run_dir=tmp_path / "run")
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 1
    assert hybridppo.load(tmp_path / "run").version == 1


FAILURES = [("on_iteration", way) for way in WAYS] + [("on_evaluation", "overlap"), ("on_checkpoint", "cpu")]


@pytest.mark.parametrize(("hook", "way"), FAILURES)
def test_an_error_is_named_and_loses_nothing(hook: str, way: str, tmp_path: Path) -> None:
    path, recorder = tmp_path / "run", Recorder()
    options = {"evaluate_every": BATCH, "episodes_per_evaluation": 1, **WAYS[way]}

    class Late(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            if hook == "on_iteration" and run.iteration == 3:
                raise ZeroDivisionError("no luck")

        def on_evaluation(self, run: Any, evaluation: Any) -> None:
            if hook == "on_evaluation" and run.iteration == 3:
                raise ZeroDivisionError("no luck")

        def on_checkpoint(self, run: Any, path: Path) -> None:
            if hook == "on_checkpoint" and run.iteration == 3:
                raise ZeroDivisionError("no luck")

    message = rf"the callback .*Late failed in {hook}, after iteration 3: ZeroDivisionError: no luck; the training up"
    with pytest.raises(CallbackError, match=message) as caught:
        train(4, callbacks=[Late(), recorder], run_dir=path, checkpoint_seconds=1e6, **options)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert load_latest(path / "checkpoints")[1].state["runner"]["iteration"] == 3
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 3
    assert recorder.told[-1] == "end"
    resumed = hybridppo.resume(path, progress=False)
    assert torch.equal(parameters(resumed.agent), parameters(train(4, **WAYS[way]).agent))


@pytest.mark.parametrize("way", ["on_iteration", "callbacks"])
def test_a_callback_that_ends_the_program_leaves_a_checkpoint(way: str, tmp_path: Path) -> None:
    path = tmp_path / "run"

    def leave(metrics: Any) -> None:
        if metrics["iteration"] == 3:
            raise SystemExit(7)

    class Leaving(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            leave(metrics)

    given: dict[str, Any] = {"on_iteration": leave} if way == "on_iteration" else {"callbacks": Leaving()}
    with pytest.raises(SystemExit) as caught:
        train(4, run_dir=path, checkpoint_seconds=1e6, **given)
    assert caught.value.code == 7
    assert load_latest(path / "checkpoints")[1].state["runner"]["iteration"] == 3
    assert torch.equal(parameters(hybridppo.resume(path, progress=False).agent), parameters(train(4).agent))


def test_an_error_at_the_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="Failing failed in on_start, after iteration 0"):
        train(callbacks=[Failing("on_start")], run_dir=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_an_error_at_the_end_is_warned_of_and_the_result_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    result = train(callbacks=[Failing("on_end"), recorder], run_dir=tmp_path / "run")
    assert result.metrics["iteration"] == 4
    assert recorder.told[-1] == "end"
    (record,) = [each for each in caplog.records if "Failing failed in on_end, after iteration 4" in each.getMessage()]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


def test_what_ended_the_training_is_not_hidden_by_an_error_at_the_end() -> None:
    def fail(metrics: Any) -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        train(on_iteration=fail, callbacks=[Failing("on_end")])


class Wild(Callback):
    """Draws from every global generator, and acts with the agent."""

    def on_iteration(self, run: Any, metrics: Any) -> None:
        import random

        import numpy as np

        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - on purpose
        random.seed(0)
        torch.rand(7), np.random.rand(7), random.random()  # noqa: NPY002 - likewise
        run.agent.act(np.zeros(4, np.float32), deterministic=False)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_callback_does_changes_no_bit(way: str) -> None:
    with_it, without = train(callbacks=[Wild()], **WAYS[way]), train(**WAYS[way])
    assert torch.equal(parameters(with_it.agent), parameters(without.agent))
    timeless = [name for name in without.metrics if "second" not in name]
    assert [finite(with_it.metrics[n]) for n in timeless] == [finite(without.metrics[n]) for n in timeless]


def test_what_a_callback_does_to_its_arguments_reaches_no_other() -> None:
    """Such as `wandb.log(metrics, step=metrics.pop("env_steps"))`."""

    class Emptying(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            metrics.clear()

        def on_evaluation(self, run: Any, evaluation: Any) -> None:
            evaluation.clear()

    recorder = Recorder()
    result = train(
        callbacks=[Emptying(), recorder], loggers=dict.clear, on_iteration=dict.clear,
        evaluate_every=BATCH, episodes_per_evaluation=1,
    )  # fmt: skip
    assert recorder.seen[-1] == result.metrics
    assert recorder.told.count("evaluation of 4") == 1


@pytest.mark.parametrize("wrong", [[print], [Callback], 3])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"hybridppo.Callback, got"):
        train(callbacks=wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"loggers": 3},
            "loggers must be functions of the metrics, as print is, or objects of subclasses of Logger, got 3",
        ),
        (
            {"loggers": [print, "print"]},
            "loggers must be functions of the metrics, as print is, or objects of subclasses of Logger, got 'print'",
        ),
        ({"on_iteration": "print"}, "on_iteration must be a function of the metrics, got 'print'"),
    ],
    ids=str,
)
def test_what_is_no_function_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        train(**options)


def test_methods_that_are_never_called_are_named(caplog: pytest.LogCaptureFixture) -> None:
    class Watching(Callback):
        def _on_step(self) -> bool:  # as in stable-baselines3
            return False

        def on_end(self, run: Any) -> None:
            """Called."""

    require_callbacks([Watching(), Callback()])
    said = "no training calls on_step of Watching: the methods of a callback are on_start, on_rollout, on_metrics"
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True]


def test_a_logger_may_be_given_alone(tmp_path: Path) -> None:
    told: list[int] = []

    def count(metrics: Any) -> None:
        told.append(metrics["iteration"])

    train(1, loggers=count, run_dir=tmp_path / "run")
    hybridppo.resume(tmp_path / "run", total_steps=2 * BATCH, loggers=count, progress=False)
    assert told == [1, 2]


def test_loggers_are_told_after_on_iteration_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    def broken(metrics: Any) -> None:
        raise OSError("far away")

    told: list[str] = []
    result = train(
        on_iteration=lambda metrics: told.append("on_iteration"),
        loggers=[broken, lambda metrics: told.append("logger")],
    )
    assert result.metrics["iteration"] == 4
    assert told == ["on_iteration", "logger"] * 4
    assert sum("FAILED" in message for message in caplog.messages) == 1


# A target


def test_a_target_ends_the_training_by_the_return_of_training() -> None:
    config = ppo_config(num_envs=8, num_steps=64, hidden_sizes=(8,))
    result = train(400, config=config, target_return=10.0)
    assert result.stopped_by is not None
    assert "has reached the target of 10" in result.stopped_by
    assert 100 <= result.metrics["episodes"] < 200  # the first mean over 100 episodes is beyond it


@pytest.mark.parametrize("way", WAYS)
def test_a_target_ends_the_training_by_evaluation_where_there_is_one(way: str) -> None:
    options = {"evaluate_every": 2 * BATCH, "episodes_per_evaluation": 2, **WAYS[way]}
    result = train(20, target_return=1.0, **options)
    # Beside the training, a result is told when the next is due: what ends when depends on no stopwatch.
    assert result.metrics["iteration"] == (4 if way == "overlap" else 2)
    assert train(6, target_return=1000.0, **options).stopped_by is None


def test_an_evaluation_after_training_ends_nothing_any_more() -> None:
    """It reaches the target, but the training had reached its goal."""
    result = train(2, target_return=1.0, evaluation_episodes=1)
    assert result.evaluation is not None
    assert result.evaluation.return_mean > 1.0
    assert result.stopped_by is None


def test_a_target_is_an_option_of_the_run(tmp_path: Path) -> None:
    options = {"evaluate_every": BATCH, "episodes_per_evaluation": 1, "run_dir": tmp_path / "run"}
    train(2, target_return=1e5, **options)
    result = hybridppo.resume(tmp_path / "run", total_steps=20 * BATCH, target_return=1.0, progress=False)
    assert result.metrics["iteration"] == 3


# Ctrl-C


def test_ctrl_c_saves_and_then_is_what_it_is_everywhere(tmp_path: Path) -> None:
    path, recorder = tmp_path / "run", Recorder()
    with pytest.raises(KeyboardInterrupt) as caught:
        train(run_dir=path, on_iteration=interrupt_at(2, signal.SIGINT), checkpoint_seconds=1e6, callbacks=[recorder])
    assert isinstance(caught.value, TrainingInterrupted)
    assert f"hybridppo.resume('{path}')" in str(caught.value)
    result = caught.value.result
    assert result.interrupted
    assert result.saved
    assert result.metrics["iteration"] == 2
    assert recorder.told[-1] == "end"
    assert len(folders(path / "checkpoints")) == 2
    with pytest.raises(TrainingInterrupted):
        hybridppo.resume(path, progress=False, on_iteration=interrupt_at(3, signal.SIGINT))
    assert hybridppo.resume(path, progress=False).metrics["iteration"] == 4


def test_nothing_is_said_to_be_saved_that_is_not() -> None:
    with pytest.raises(TrainingInterrupted, match="nothing was saved") as caught:
        train(on_iteration=interrupt_at(1))
    assert not caught.value.result.saved
    assert not train(1).saved


def test_who_wants_the_result_of_an_interrupted_training_gets_it() -> None:
    assert train(on_iteration=interrupt_at(1), on_interrupt="return").interrupted
    with pytest.raises(ConfigurationError, match="on_interrupt must be raise or return, got 'stop'"):
        train(on_interrupt="stop")


def test_a_second_ctrl_c_in_a_callback_stops_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Twice(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt) as caught:
        train(callbacks=[Twice()], run_dir=tmp_path / "run")
    assert not isinstance(caught.value, TrainingInterrupted)
    assert len(folders(tmp_path / "run" / "checkpoints")) == 1  # the first: nothing was saved any more
    assert signal.getsignal(signal.SIGINT) is handler
