"""An environment that fails, at any time and place, costs at most the present rollout."""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from run_files import lines_of
from selection import only_by_default
from tagging import tag
from tensor_environments import Broken

import hybridppo
from hybridppo import TD3, EnvError, GPUOnly, Mirrored, MultiLearner, TD3Config, TrainingError
from hybridppo.agents.ppo.loss import ppo_loss
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.runners import process_group, processes
from hybridppo.runners.filling import Stepper
from hybridppo.runners.sampler import Sampler

SIZES: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)}
CONFIG = ppo_config(**SIZES)
BATCH = CONFIG.batch_size


class Failing(gym.Env[Any, Any]):
    """Episodes of five steps; the method `fails_in` fails after this many steps of its life, `close` at once."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, fails_in: str = "", after: int = 40, action_space: gym.Space[Any] | None = None) -> None:
        self.action_space = Discrete(2) if action_space is None else action_space
        self.fails_in, self.after, self.steps = fails_in, after, 0

    def _look(self, where: str) -> None:
        if self.fails_in == where and (self.steps >= self.after or where == "close"):
            raise ValueError(f"the motor is stuck in {where}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._look("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self._look("step")
        return np.zeros(2, np.float32), 1.0, self.steps % 5 == 0, False, {}

    def close(self) -> None:
        self._look("close")


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "in this process": dict,
    "in workers": lambda: {"num_workers": 2},
    "hybrid": lambda: {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "overlapping, in a worker": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 1},
    "overlapping, in a thread": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
    "lagging, in workers": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=3), "num_workers": 2},
    "whole episodes": lambda: {
        "config": ppo_config(num_envs=1, episodes_per_rollout=4, num_epochs=1, hidden_sizes=(8,))
    },
}


def train(fails_in: str = "", after: int = 40, **options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": 10 * BATCH, "seed": 3, "placement": "cpu", "config": CONFIG} | options
    return hybridppo.train(
        arguments.pop("env", lambda: Failing(fails_in, after)), progress=False, checkpoint_seconds=1e6, **arguments
    )


def last_iteration(run_dir: Path) -> int:
    """The number of the newest checkpoint, which is that of the last line of metrics."""
    iteration = load_latest(run_dir / "checkpoints")[1].state["runner"]["iteration"]
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["iteration"] == iteration
    return int(iteration)


@pytest.mark.parametrize(
    ("way", "fails_in"),
    only_by_default(
        [f"{way}, {fails_in}" for way, fails_in in zip(WAYS, cycle(("step", "reset")))],
        product(WAYS, ("step", "reset")),
    ),
)
def test_what_was_learned_is_saved_and_the_error_says_how_to_go_on(way: str, fails_in: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    after = 100 if way.startswith("lagging") else 40  # later than workers are ahead of the first update
    with pytest.raises(EnvError, match=f"the motor is stuck in {fails_in}") as caught:
        train(fails_in, after, run_dir=path, **WAYS[way]())
    assert f"the training up to here is saved: go on with `hybridppo resume {path}`" in str(caught.value)
    saved = last_iteration(path)
    assert saved >= 1
    result = hybridppo.resume(path, env=Failing, progress=False)
    assert result.metrics["env_steps"] >= 10 * BATCH
    iterations = [line["iteration"] for line in lines_of(path)]
    assert iterations == list(range(1, len(iterations) + 1))


class Dying(Failing):
    """Ends its process instead, if `LIVES` is not set."""

    def _look(self, where: str) -> None:
        if self.fails_in == where and self.steps >= self.after and "LIVES" not in os.environ:
            os._exit(3)


@pytest.mark.parametrize("way", ["in workers", "overlapping, in a worker", "lagging, in workers"])
def test_the_death_of_a_worker_costs_no_more(way: str, tmp_path: Path) -> None:
    path, after = tmp_path / "run", 100 if way.startswith("lagging") else 40
    with pytest.raises(EnvError, match=r"worker \d .* has died: exit code 3") as caught:
        train(env=lambda: Dying("step", after), run_dir=path, **WAYS[way]())
    assert f"go on with `hybridppo resume {path}`, with new episodes, so not to the bits" in str(caught.value)
    assert last_iteration(path) >= 1
    result = hybridppo.resume(path, env=Failing, progress=False)
    assert result.metrics["env_steps"] >= 10 * BATCH


class Saving(hybridppo.Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        run.save()


def test_a_checkpoint_of_the_last_iteration_stays_exact_after_the_death_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with pytest.raises(EnvError, match=r"has died.*hybridppo resume .*run`$"):
        train(env=lambda: Dying("step"), run_dir=path, num_workers=2, callbacks=[Saving()])
    state = load_latest(path / "checkpoints")[1].state
    assert state["runner"]["iteration"] == 2
    monkeypatch.setenv("LIVES", "1")
    resumed = hybridppo.resume(path, env=lambda: Dying("step"), progress=False)
    assert torch.equal(resumed.agent.parameters.values, train(env=lambda: Dying("step")).agent.parameters.values)


class Held(Failing):
    """Steps on from the middle of the third rollout when that is paused, and then fails unless `is_repaired` is set."""

    is_within, paused, is_repaired = threading.Event(), threading.Event(), threading.Event()

    def _look(self, where: str) -> None:
        if where == "step" and self.steps == 42:
            self.is_within.set()
            assert self.paused.wait(60.0)
        if not self.is_repaired.is_set():
            super()._look(where)


def test_a_checkpoint_of_the_last_iteration_stays_exact_if_the_rollout_ahead_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Sampler.pause

    def noted(sampler: Sampler) -> None:
        if sampler.counts.env_steps == 2 * BATCH:
            assert Held.is_within.wait(60.0)
            sampler._stop[0] = 1
            Held.paused.set()
        pause(sampler)

    monkeypatch.setattr(Sampler, "pause", noted)
    path, options = tmp_path / "run", WAYS["overlapping, in a thread"]()
    with pytest.raises(EnvError, match=r"the motor is stuck(.|\n)*hybridppo resume .*run`$"):
        train(env=lambda: Held("step", 46), run_dir=path, callbacks=[Saving()], **options)
    assert load_latest(path / "checkpoints")[1].state["sampler"]["under_way"]["filled"] > 0
    Held.is_repaired.set()
    resumed = hybridppo.resume(path, env=lambda: Held("step", 46), progress=False)
    whole = train(env=lambda: Held("step", 46), **options)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)


@pytest.mark.parametrize("placement", ["cpu", "overlap"])
def test_an_agent_that_learns_from_replay_is_saved_likewise(placement: str, tmp_path: Path) -> None:
    path, space = tmp_path / "run", Box(-1.0, 1.0, (1,), np.float32)
    options: dict[str, Any] = {
        "placement": "cpu" if placement == "cpu" else Mirrored("cpu", "cpu", max_lag=1),
        "config": TD3Config(num_envs=1, hidden_sizes=(8,), learning_starts=10, steps_per_iteration=16),
        "total_steps": 100,
    }
    with pytest.raises(EnvError, match="hybridppo resume"):
        train(env=lambda: Failing("step", 40, space), run_dir=path, **options)
    state = load_latest(path / "checkpoints")[1].state
    assert state["runner"]["iteration"] == 2
    assert state["sampler"]["env_steps"] >= 38
    result = hybridppo.resume(path, env=lambda: Failing(action_space=space), progress=False)
    assert result.metrics["env_steps"] >= 100


def test_environments_of_tensors_likewise(tmp_path: Path) -> None:
    calls: list[int] = []

    def stuck(results: list[Any]) -> Any:
        calls.append(1)
        if len(calls) > 40:
            raise ValueError("the motor is stuck")
        return tuple(results)

    path = tmp_path / "run"
    with pytest.raises(EnvError, match=r"the motor is stuck(.|\n)*hybridppo resume"):
        train(env=lambda: Broken(2, stuck), run_dir=path)
    assert last_iteration(path) == 2
    hybridppo.resume(path, env=lambda: Broken(2, tuple), total_steps=4 * BATCH, progress=False)


@pytest.mark.parametrize("rank", [0, 1])
def test_any_of_several_learners_likewise(rank: int, tmp_path: Path) -> None:
    path = tmp_path / "run"

    here = os.getpid()
    with pytest.raises(hybridppo.HybridPPOError, match="the motor is stuck in step") as caught:
        train(
            env=lambda: Failing("step" if (os.getpid() == here) == (rank == 0) else ""), run_dir=path,
            distributed=MultiLearner(2),
        )  # fmt: skip
    assert "hybridppo resume" in str(caught.value)
    assert last_iteration(path) >= 1
    hybridppo.resume(path, env=Failing, distributed="local", total_steps=6 * BATCH, progress=False)


@pytest.mark.parametrize("where", only_by_default(("update",), ("step", "update")))
def test_the_death_of_a_learner_likewise(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "SECONDS_TO_EXPLAIN", 0.5)
    path, here, calls = tmp_path / "run", os.getpid(), [0]

    def dying(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3 and where == "update" and os.getpid() != here:
            os._exit(3)
        return ppo_loss(*arguments)

    def make() -> Failing:
        return Failing() if os.getpid() == here or where == "update" else Dying("step")

    config = ppo_config(**SIZES | {"num_minibatches": 1}, recurrent="gru")  # whose critic has a state for each column
    with pytest.raises(hybridppo.DistributedError, match=r"hybridppo resume .* new episodes, so not to the bits"):
        train(env=make, loss=dying, run_dir=path, config=config, distributed=MultiLearner(2))
    assert last_iteration(path) == 2
    result = hybridppo.resume(path, env=Failing, loss=ppo_loss, progress=False)
    assert [line["env_steps"] for line in lines_of(path)] == list(range(BATCH, 11 * BATCH, BATCH))
    assert result.metrics["iteration"] == 10


@pytest.mark.parametrize("rank", only_by_default(("1",), (0, 1)))
def test_any_of_several_learners_with_their_own_shards_likewise(rank: int, tmp_path: Path) -> None:
    path, here, calls = tmp_path / "run", os.getpid(), [0]

    def stuck(results: list[Any]) -> Any:
        calls[0] += 1
        if calls[0] > 40 and (os.getpid() == here) == (rank == 0):
            raise ValueError("the motor is stuck")
        return tuple(results)

    def make(num_envs: int, device: str = "cpu") -> Broken:
        return Broken(num_envs, stuck, device)

    with pytest.raises(hybridppo.HybridPPOError, match=r"the motor is stuck(.|\n)*hybridppo resume"):
        train(env=make, run_dir=path, distributed=GPUOnly(2), vectorization="auto")
    assert last_iteration(path) == 2
    result = hybridppo.resume(
        path, env=lambda num_envs, device="cpu": TorchCartPole(num_envs, device), total_steps=4 * BATCH, progress=False
    )
    assert result.metrics["iteration"] == 4


@pytest.mark.extras
@pytest.mark.slow
def test_several_policies_likewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, calls = Stepper.fill, []

    def failing(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise EnvError("the motor is stuck")
        return fill(self, *arguments)

    monkeypatch.setattr(Stepper, "fill", failing)
    path, options = tmp_path / "run", {"total_steps": 4 * BATCH, "seed": 0, "placement": "cpu", "progress": False}
    configs = {"tagger": CONFIG, "runner": CONFIG}
    with pytest.raises(EnvError, match=r"the motor is stuck; .*hybridppo resume"):
        hybridppo.train(tag(), config=configs, run_dir=path, **options)
    assert last_iteration(path) == 2
    monkeypatch.undo()
    result = hybridppo.resume(path, env=tag(), progress=False)
    assert result.metrics["iteration"] == 4


@pytest.mark.parametrize(
    "options",
    [
        {"evaluate_every": 3 * BATCH, "evaluate_async": False},
        {"evaluate_every": 3 * BATCH, "evaluate_async": True},
        {"evaluation_episodes": 2, "total_steps": 4 * BATCH},
    ],
    ids=["in between", "beside", "after"],
)
def test_an_environment_that_fails_in_an_evaluation_costs_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    made: list[int] = []
    here = os.getpid()

    def make() -> gym.Env[Any, Any]:
        made.append(1)  # the first is made to see what it is
        return Failing("step", 3) if len(made) > 1 + CONFIG.num_envs or os.getpid() != here else Failing()

    path = tmp_path / "run"
    with pytest.raises(EnvError, match="the motor is stuck in step") as caught:
        train(env=make, run_dir=path, episodes_per_evaluation=2, **options)
    assert f"hybridppo resume {path}" in str(caught.value)
    assert last_iteration(path) >= 3
    hybridppo.resume(path, env=Failing, progress=False)


class Asks(hybridppo.Callback):
    """Waits for the rollout that is sampled ahead, and ignores its error if told so."""

    def __init__(self, *ignored: type[Exception]) -> None:
        self._ignored = ignored

    def on_iteration(self, run: Any, metrics: Any) -> None:
        with contextlib.suppress(*self._ignored):
            run.environments.call("close")


WAITING: dict[str, dict[str, Any]] = {
    "evaluation": {"evaluate_every": 1, "episodes_per_evaluation": 1, "evaluate_async": False},
    "call": {"callbacks": [Asks()]},
}


@pytest.mark.parametrize("who", WAITING)
@pytest.mark.parametrize("way", ["overlapping, in a worker", "overlapping, in a thread", "lagging, in workers"])
def test_whoever_waits_for_a_rollout_that_fails_it_is_an_error_of_the_environment(
    way: str, who: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    after = 100 if way.startswith("lagging") else 40
    with pytest.raises(hybridppo.HybridPPOError, match=r"the motor is stuck in step(.|\n)*hybridppo resume"):
        train("step", after, run_dir=path, **WAYS[way](), **WAITING[who])
    assert last_iteration(path) >= 2
    state = load_latest(path / "checkpoints")[1].state["sampler"]
    if "states" in state["environments"]:  # of the best agent, saved before the rollout had come to the failure
        assert who == "evaluation"
    else:
        assert "they had failed" in state["environments"]["not_saved"]
        assert state["under_way"] is None
    hybridppo.resume(path, env=Failing, progress=False)


def test_an_error_of_a_rollout_that_a_callback_ignores_ends_the_training() -> None:
    with pytest.raises(EnvError, match="the motor is stuck in step"):
        train("step", callbacks=[Asks(EnvError)], **WAYS["overlapping, in a thread"]())


def test_an_update_that_fails_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(TrainingError) as caught:
        train(config=ppo_config(**SIZES, learning_rate=1e30), run_dir=path)
    assert load_latest(path / "checkpoints")[1].state["runner"]["iteration"] == 0
    assert "hybridppo resume" not in str(caught.value)


class Undescribed(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise IndexError("no text")


class NoException(BaseException):
    """As asyncio.CancelledError is."""


ODD: list[type[BaseException]] = [Undescribed, GeneratorExit, NoException, SystemExit]


class Odd(Failing):
    """Raises an odd error once in the process, and is as usual from then on."""

    def __init__(self, error: type[BaseException], there: list[int]) -> None:
        super().__init__("step")
        self.error, self.there = error, there

    def _look(self, where: str) -> None:
        if where == self.fails_in and self.steps == self.after and self.there:
            self.there.clear()
            raise self.error


@pytest.mark.parametrize("error", ODD)
def test_any_error_of_an_environment_has_a_message_or_restarts_it(error: type[BaseException], tmp_path: Path) -> None:
    path, there = tmp_path / "run", [1]
    with pytest.raises(EnvError, match=rf"failed in step .*: {error.__name__}: (.|\n)*hybridppo resume"):
        train(env=lambda: Odd(error, there), run_dir=path)
    assert last_iteration(path) == 2
    there.append(1)
    assert train(env=lambda: Odd(error, there), on_env_error="restart").metrics["env_restarts"] == 1


class Interrupting(hybridppo.Callback):
    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def on_rollout(self, run: Any) -> None:
        if run.iteration == 2:
            raise self._error


@pytest.mark.parametrize("error", ODD)
def test_any_error_of_a_callback_is_rescued(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "run"
    kept = SystemExit if error is SystemExit else hybridppo.CallbackError
    with pytest.raises(kept):
        train(run_dir=path, callbacks=[Interrupting(error)])
    assert last_iteration(path) == 2


class FailingLoss:
    """PPO's loss, which fails in a minibatch, once."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self._error, self._calls = error, 0

    def __call__(self, *arguments: Any) -> Any:
        self._calls += 1
        if self._calls == 6 and self._error is not None:
            raise self._error
        return ppo_loss(*arguments)


@pytest.mark.parametrize(
    ("error", "way"),
    [(Undescribed, "in this process"), (NoException, "overlapping, in a thread"), (MemoryError, "in this process")],
)
def test_a_loss_that_fails_costs_nothing(error: type[BaseException], way: str, tmp_path: Path) -> None:
    path, options = tmp_path / "run", WAYS[way]()
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        train(run_dir=path, loss=FailingLoss(error), **options)
    assert caught.type in (error, hybridppo.OutOfMemoryError)
    assert last_iteration(path) == 2
    resumed = hybridppo.resume(path, env=Failing, loss=FailingLoss(None), progress=False)
    whole = train(loss=FailingLoss(None), **options)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)


class FailingTD3(TD3):
    """Its actor's loss fails in a step that follows one of the critics, once."""

    calls: ClassVar[list[int]] = []
    fails_at: ClassVar[int] = 0

    def actor_loss(self, minibatch: Any) -> Any:
        self.calls.append(1)
        if len(self.calls) == self.fails_at:
            raise Undescribed
        return super().actor_loss(minibatch)


@pytest.mark.parametrize("gradient_steps", [1, None])
def test_a_loss_of_td3_that_fails_costs_nothing(
    gradient_steps: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, env = tmp_path / "run", partial(Failing, action_space=Box(-1.0, 1.0, (1,), np.float32))
    config = TD3Config(num_envs=1, hidden_sizes=(8,), batch_size=4, learning_starts=8, steps_per_iteration=16,
                       train_frequency=1 if gradient_steps else 2, gradient_steps=gradient_steps)  # fmt: skip
    options: dict[str, Any] = {"agent": FailingTD3, "config": config, "total_steps": 64}
    whole = train(env=env, **options)
    monkeypatch.setattr(FailingTD3, "fails_at", len(FailingTD3.calls) + 12)
    with pytest.raises(Undescribed):
        train(env=env, run_dir=path, **options)
    assert load_latest(path / "checkpoints")[1].state["sampler"]["env_steps"] >= 28
    resumed = hybridppo.resume(path, env=env, agent=FailingTD3, progress=False)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)


class Simulator(Failing):
    """Replaces the handler of Ctrl-C."""

    def __init__(self, after: int = 10**6) -> None:
        super().__init__("step", after)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _look(self, where: str) -> None:
        if where == self.fails_in and self.steps == self.after:
            raise KeyboardInterrupt  # as the handler does


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ctrl_c_in_a_step_after_an_environment_replaced_the_handler_is_rescued(
    num_workers: int, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    with pytest.raises(hybridppo.TrainingInterrupted, match="go on with"):
        train(env=lambda: Simulator(40), run_dir=path, num_workers=num_workers)
    assert last_iteration(path) == 2
    hybridppo.resume(path, env=Failing, progress=False)


class PressesCtrlC(hybridppo.Callback):
    def on_rollout(self, run: Any) -> None:
        if run.iteration == 2:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_a_request_again_from_the_next_iteration_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGINT)
    result = train(
        env=Simulator, run_dir=tmp_path / "run", callbacks=[PressesCtrlC()], on_interrupt="return"
    )  # fmt: skip
    assert result.interrupted
    assert signal.getsignal(signal.SIGINT) is before
    assert caplog.text.count("the handler of SIGINT was replaced") == 1
    assert "in the middle of a step" not in caplog.text
    resumed = hybridppo.resume(tmp_path / "run", env=Simulator, progress=False)
    assert torch.equal(resumed.agent.parameters.values, train().agent.parameters.values)


def test_without_a_run_directory_nothing_is_said_to_be_saved() -> None:
    with pytest.raises(EnvError, match="the motor is stuck") as caught:
        train("step")
    assert "saved" not in str(caught.value)


# Closing


@pytest.mark.parametrize("vectorization", ["sync", "auto"])
@pytest.mark.parametrize("way", ["in this process", "overlapping, in a thread", "whole episodes"])
def test_an_environment_that_cannot_be_closed_costs_no_result(
    way: str, vectorization: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    options = WAYS[way]() | {"total_steps": 4 * BATCH, "evaluation_episodes": 1, "vectorization": vectorization}
    with caplog.at_level(logging.WARNING):
        result = train("close", run_dir=path, **options)
    assert result.saved
    assert result.evaluation is not None
    assert (path / "result.json").exists()
    records = [record for record in caplog.records if "could not be closed" in record.getMessage()]
    assert any("environment 0" in record.getMessage() for record in records)
    assert all(record.exc_info is not None and "stuck in close" in str(record.exc_info[1]) for record in records)


def test_a_probe_that_cannot_be_closed_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_CLOSE", 0.2)
    here, ends = os.getpid(), list[bool]()

    class Hanging(Failing):
        def close(self) -> None:
            while os.getpid() == here and not ends:
                time.sleep(0.01)

    try:
        assert train(env=lambda: Hanging(), num_workers=2).metrics["iteration"] == 10
    finally:
        ends.append(True)
    assert "made in this process for its spaces, hangs for 0.2 s: the training goes on" in caplog.text


def test_an_environment_that_cannot_be_closed_in_a_worker_costs_no_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train("close", total_steps=4 * BATCH, num_workers=2, run_dir=tmp_path / "run")
    assert result.saved
    assert (tmp_path / "run" / "result.json").exists()
