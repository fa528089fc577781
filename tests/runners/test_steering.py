"""Environments whose methods and attributes a callback uses: wherever they are, between rollouts, and in new ones."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import assert_goes_on_exactly
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from processes import wait_until
from same_bits import values_of
from toy_agents import Matching, TakingTurns

import hybridppo
from hybridppo import Callback, CallbackError, Mirrored, TD3Config
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.run_directory import checkpoints
from hybridppo.runners.sampler import Sampler

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size


class Graded(gym.Env[Any, Any]):
    """Rewards are `gain` times 1, plus the difficulty; an observation is the difficulty, so that it can be seen."""

    observation_space = Box(-100.0, 100.0, (1,), np.float32)
    action_space: Any = Discrete(2)

    def __init__(self, fails: bool = False) -> None:
        self.difficulty, self.gain, self._fails, self._life = 0.0, 1.0, fails, 0

    def get_gain(self) -> float:
        return self.gain

    def set_difficulty(self, difficulty: float) -> float:
        self.difficulty = difficulty
        return difficulty + 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.array([self.difficulty], np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps, self._life = self._steps + 1, self._life + 1
        if self._fails and self._life == 40:
            raise RuntimeError("the motor is stuck")
        seen = np.array([self.difficulty], np.float32)
        return seen, self.gain + self.difficulty, False, self._steps == 8, {}


class Pulled(Graded):
    """The same environment with a number as its action."""

    action_space = Box(-1.0, 1.0, (1,))


class Harder(Callback):
    """A curriculum: the difficulty rises by 1 after each iteration, and the gain is 2 from the second on."""

    def __init__(self) -> None:
        self.answers: list[list[Any]] = []
        self.returns: list[float] = []

    def on_iteration(self, run: Any, metrics: Any) -> None:
        self.returns.append(metrics["episode_return_mean"])
        self.answers.append(run.environments.call("set_difficulty", float(run.iteration)))
        if run.iteration == 2:
            run.environments.set("gain", 2.0)


def train(env: Any = Graded, iterations: int = 5, **options: Any) -> tuple[hybridppo.TrainResult, Harder]:
    harder = Harder()
    arguments: dict[str, Any] = {"config": CONFIG, "seed": 0, "placement": "cpu", "progress": False}
    callbacks = [harder, *options.pop("callbacks", ())]
    result = hybridppo.train(env, total_steps=iterations * BATCH, callbacks=callbacks, **{**arguments, **options})
    return result, harder


def test_what_is_called_and_set_holds_from_the_next_rollout_on() -> None:
    _, harder = train()
    assert harder.answers == [[i + 0.5] * 4 for i in range(1, 6)]
    # Two episodes of 8 steps in each of 4 environments an iteration, and means over all so far.
    each = [8.0, 16.0, 8.0 * 4, 8.0 * 5, 8.0 * 6]
    assert harder.returns == pytest.approx([sum(each[: i + 1]) / (i + 1) for i in range(5)])


WAYS: dict[str, dict[str, Any]] = {
    "mirrored": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "workers": {"num_workers": 2},
    "wrapped": {"env": lambda: gym.wrappers.TimeLimit(Graded(), 1000)},
}


@pytest.mark.parametrize("way", WAYS)
def test_wherever_they_are(way: str) -> None:
    (expected, by_hand), (found, harder) = train(), train(**WAYS[way])
    assert torch.equal(values_of(found), values_of(expected))
    assert (harder.answers, harder.returns) == (by_hand.answers, by_hand.returns)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_overlapped_it_is_done_when_the_rollout_under_way_has_ended(num_workers: int) -> None:
    expected = train(placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=0)
    found = train(placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=num_workers)
    assert torch.equal(values_of(found[0]), values_of(expected[0]))
    assert found[1].returns == expected[1].returns
    assert found[1].returns[:3] == pytest.approx([8.0, 8.0, (8.0 + 8.0 + 16.0) / 3])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_goes_on_exactly(num_workers: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    expected, _ = train(run_dir=run, checkpoint_seconds=0)
    assert_goes_on_exactly(run, expected, env=Graded, callbacks=[Harder()], num_workers=num_workers)


class StopsWithin(Graded):
    """Asks its process to stop, once, within a rollout of the fourth iteration."""

    has_asked = False

    def step(self, action: Any) -> Any:
        if self.difficulty == 3.0 and self._steps == 5 and not StopsWithin.has_asked:
            StopsWithin.has_asked = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def test_a_run_that_was_broken_off_within_a_rollout_goes_on_exactly(tmp_path: Path) -> None:
    StopsWithin.has_asked = True
    expected, _ = train(StopsWithin)
    StopsWithin.has_asked = False
    run = tmp_path / "run"
    assert train(StopsWithin, run_dir=run, on_interrupt="return")[0].interrupted
    again = hybridppo.resume(run, env=StopsWithin, callbacks=[Harder()], progress=False)
    assert torch.equal(values_of(again), values_of(expected))


class Waiting(Graded):
    """Its third rollout waits for a file, which comes with the signal that breaks the rollout off."""

    file: Path

    def step(self, action: Any) -> Any:
        end = time.monotonic() + 60
        while self._life >= 32 and not self.file.exists():
            self.file.with_name("waits").touch()
            assert time.monotonic() < end
            time.sleep(0.001)
        return super().step(action)


class StopsAndSets(Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == 2:
            wait_until(Waiting.file.with_name("waits").exists)
            os.kill(os.getpid(), signal.SIGINT)
            Waiting.file.touch()
            run.environments.set("gain", 2.0)


LAGS = {"placement": Mirrored("cpu", "cpu", max_lag=2), "num_workers": 1}


@pytest.mark.parametrize(("others", "has_steps"), [(LAGS, True), (LAGS, False), ({"distributed": "multi:1:2"}, True)])
def test_what_waits_for_a_rollout_is_done_at_once_if_the_resumed_run_drops_it(
    others: dict[str, Any], has_steps: bool, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    Waiting.file = tmp_path / "signalled"
    result = hybridppo.train(
        Waiting, config=CONFIG, total_steps=5 * BATCH, seed=0, placement=Mirrored("cpu", "cpu", max_lag=1),
        num_workers=0, run_dir=run, callbacks=StopsAndSets(), on_interrupt="return", progress=False,
    )  # fmt: skip
    assert result.interrupted
    folder = checkpoints.folders(run / "checkpoints")[-1]
    saved = checkpoints.load(folder)
    assert saved.state["sampler"]["steering_due"] == [["set", "gain", [2.0]]]
    if not has_steps:  # the signal came before its first one
        saved.state["sampler"]["under_way"]["filled"] = 0
        shutil.rmtree(folder)
        checkpoints.save(folder, saved.tensors, saved.state)
    gains: list[Any] = []
    looks = Does(lambda environments: gains.extend(environments.call("get_gain")))
    again = hybridppo.resume(run, env=Waiting, callbacks=[looks], progress=False, **others)
    assert gains == [2.0] * 4
    assert again.metrics["episode_return_mean"] > 10.0


class PausedFirst(Graded):
    """The rollout that is sampled during the first update does not end before a checkpoint has paused it."""

    is_paused = threading.Event()

    def step(self, action: Any) -> Any:
        assert self._life < 16 or self.is_paused.wait(60)
        return super().step(action)


class CallsAtCheckpoints(Callback):
    def __init__(self) -> None:
        self.answers: list[list[Any]] = []

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.answers.append(run.environments.call("set_difficulty", 1.0))


def test_a_rollout_that_a_checkpoint_has_paused_ends_before_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Sampler.pause

    def pausing(self: Sampler) -> None:
        if self.is_under_way and not self.is_paused:
            self._stop[0] = 1
            PausedFirst.is_paused.set()
        pause(self)

    monkeypatch.setattr(Sampler, "pause", pausing)
    calls = CallsAtCheckpoints()
    hybridppo.train(
        PausedFirst, config=CONFIG, total_steps=3 * BATCH, seed=0, placement=Mirrored("cpu", "cpu", max_lag=1),
        num_workers=0, run_dir=tmp_path / "run", checkpoint_seconds=0, callbacks=[calls], progress=False,
    )  # fmt: skip
    assert calls.answers == [[1.5] * 4] * len(calls.answers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_an_environment_that_is_restarted_it_is_done_again(num_workers: int) -> None:
    result, harder = train(partial(Graded, fails=True), on_env_error="restart", num_workers=num_workers)
    assert result.metrics["env_restarts"] > 0
    assert harder.answers[-1] == [len(harder.answers) + 0.5] * 4  # lost rows are sampled in one iteration more
    # A new environment begins with a difficulty of 0, and is set to that of its iteration before it acts.
    assert harder.returns[-1] > 20.0


def test_agents_and_whole_episodes_and_off_policy_and_tensors_are_steered() -> None:
    told: list[Any] = []

    class Tells(Callback):
        def __init__(self, do: Callable[[Any], Any]) -> None:
            self._do = do

        def on_iteration(self, run: Any, metrics: Any) -> None:
            told.append(self._do(run.environments))

    quiet: dict[str, Any] = {"total_steps": 64, "seed": 0, "progress": False}
    small = ppo_config(num_envs=2, num_steps=32, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    for make in (Matching, lambda: TakingTurns(Matching())):
        hybridppo.train(
            make, config=small, placement="cpu", callbacks=[Tells(lambda e: e.call("observation_space", "player 0"))],
            **quiet,
        )  # fmt: skip
        assert told.pop() == [Discrete(4)] * 2
    config = ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train(
        Graded, config=config, placement="cpu", callbacks=[Tells(lambda e: e.call("set_difficulty", 1.0))], **quiet
    )
    assert told.pop() == [1.5]
    hybridppo.train(
        Pulled, config=TD3Config(learning_starts=8, hidden_sizes=(8,), steps_per_iteration=32), placement="cpu",
        callbacks=[Tells(lambda e: e.call("set_difficulty", 2.0))], **quiet,
    )  # fmt: skip
    assert told.pop() == [2.5]
    hybridppo.train(
        TorchCartPole(4), config=CONFIG, placement="cpu", callbacks=[Tells(lambda e: e.set("num_envs", 4))],
        **quiet,
    )  # fmt: skip
    assert told.pop() is None


class Does(Callback):
    """Calls or sets something at the start."""

    def __init__(self, do: Callable[[Any], Any]) -> None:
        self._do = do

    def on_start(self, run: Any) -> None:
        self._do(run.environments)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda e: e.call("set_gravity", 1.0), r"call\('set_gravity'\): Graded has no method 'set_gravity'"),
        (lambda e: e.call("gain"), r"Graded has no method 'gain'"),
        (lambda e: e.set("gravity", 1.0), r"environments.set\('gravity'\): Graded has no attribute 'gravity'"),
        (lambda e: e.set("gain", np.ones(1)), "take what JSON can hold, .*, and for 'gain' got"),
        (lambda e: e.call("set_difficulty", object()), "pass numbers, text, lists or dicts"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named(do: Any, message: str, num_workers: int) -> None:
    with pytest.raises(CallbackError, match=message):
        train(callbacks=[Does(do)], num_workers=num_workers)


class CallsWhatFails(Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == 2:
            run.environments.call("set_difficulty", "hard")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_method_that_fails_costs_no_environment(num_workers: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(CallbackError, match=r"CallsWhatFails failed in on_iteration(.|\n)*TypeError(.|\n)*is saved"):
        train(callbacks=[CallsWhatFails()], num_workers=num_workers, run_dir=run)
    state = checkpoints.load(checkpoints.folders(run / "checkpoints")[-1]).state
    assert state["runner"]["iteration"] == 2
    assert "states" in state["sampler"]["environments"]


class Stubborn(Graded):
    """Its first process dies, and its difficulty cannot be set in another."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def set_difficulty(self, difficulty: float) -> float:
        if self._file.exists():
            raise RuntimeError("it cannot be set any more")
        return super().set_difficulty(difficulty)

    def step(self, action: Any) -> Any:
        if self._life == 20 and not self._file.exists():
            self._file.touch()
            os._exit(1)
        return super().step(action)


def test_what_cannot_be_done_again_in_another_worker_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(hybridppo.EnvError, match="it cannot be set any more"):
        train(partial(Stubborn, tmp_path / "dead"), num_workers=1, on_env_error="restart")


def test_numbers_of_numpy_arrive_as_those_of_python() -> None:
    answers: list[Any] = []

    class Clips(Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            run.environments.set("gain", np.clip(2.5, 0.0, 2.0))
            answers.extend(run.environments.call("set_difficulty", np.float32(0.5)))

    result, _ = train(iterations=2, callbacks=[Clips()])
    assert answers == [1.0] * 8
    assert {type(answer) for answer in answers} == {float}
    assert result.metrics["episode_return_mean"] == (8 * 1.0 + 8 * 2.5) / 2


def test_a_vectorised_form_cannot_be_reached() -> None:
    with pytest.raises(CallbackError, match=r"cannot reach .*let the library step copies of one"):
        train("CartPole-v1", callbacks=[Does(lambda e: e.set("gravity", 9.0))])
    _, harder = train(vectorization="sync")
    assert len(harder.answers) == 5


@pytest.mark.extras
def test_environments_of_several_learners_are_reached_in_their_order_and_a_run_goes_on_with_others(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    expected, by_hand = train(distributed="multi:1:2")
    found, harder = train(distributed="multi:2:2", run_dir=run, checkpoint_seconds=0)
    assert torch.equal(values_of(found), values_of(expected))
    assert (harder.answers, harder.returns) == (by_hand.answers, by_hand.returns)
    assert_goes_on_exactly(run, expected, env=Graded, distributed="multi:1:2", callbacks=[Harder()])


@pytest.mark.extras
def test_a_method_that_is_missing_ends_the_training_of_several_learners_in_one_error() -> None:
    with pytest.raises(CallbackError, match="has no method 'fly'"):
        train(distributed="multi:2:2", callbacks=[Does(lambda environments: environments.call("fly"))])
