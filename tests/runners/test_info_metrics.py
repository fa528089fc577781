"""Metrics from environments' infos: by hand, and the same wherever the environments are."""

import logging
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from toy_agents import Matching, TakingTurns

import hybridppo
from hybridppo import ConfigurationError, EnvError, Mirrored, TD3Config
from hybridppo.tensors import TorchCartPole

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))


class Trading(gym.Env[Any, Any]):
    """Episodes of 5 steps; `profit` is the number of the step, and only the last step has `won`."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space: Any = Discrete(2)

    def __init__(self, profit: Any = None, fails: bool = False) -> None:
        self._profit, self._fails, self._life = profit, fails, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {"profit": 1000.0}

    def step(self, action: Any) -> Any:
        self._steps, self._life = self._steps + 1, self._life + 1
        if self._fails and self._life == 8:
            raise RuntimeError("the market is closed")
        ends = self._steps == 5
        info: dict[str, Any] = {"profit": float(self._steps) if self._profit is None else self._profit}
        return np.zeros(1, np.float32), 1.0, ends, False, {**info, "won": True} if ends else info


class Steered(Trading):
    """The same environment with a number as its action."""

    action_space = Box(-1.0, 1.0, (1,))


def train(env: Any = Trading, **options: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    arguments: dict[str, Any] = {"config": CONFIG, "seed": 0, "placement": "cpu", "info_metrics": ("profit", "won")}
    arguments |= {"total_steps": 3 * 64, **options}
    hybridppo.train(env, progress=False, on_iteration=lambda metrics: seen.append(dict(metrics)), **arguments)
    return seen


def told(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "info/" in name}


def test_they_are_means_of_steps_and_of_the_last_of_each_episode() -> None:
    """16 steps hold three episodes of five and the first step of a fourth; the next hold its other four, and so on."""
    profits = [1.0, 2.0, 3.0, 4.0, 5.0] * 10
    for iteration, metrics in enumerate(train()):
        own = profits[16 * iteration : 16 * (iteration + 1)]
        assert told(metrics) == {
            "info/profit": pytest.approx(np.mean(own)), "info/won": 1.0,
            "episode_info/profit": 5.0, "episode_info/won": 1.0,
        }  # fmt: skip


def vector(mode: AutoresetMode) -> Any:
    return SyncVectorEnv([Trading] * 4, autoreset_mode=mode)


WAYS: dict[str, dict[str, Any]] = {
    "workers": {"num_workers": 2},
    "shards": {"distributed": "multi:1:2"},
    "shards in workers": {"distributed": "multi:1:2", "num_workers": 2},
    "mirrored": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "overlap": {"placement": Mirrored("cpu", "cpu", max_lag=1)},
    "overlap in workers": {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 2},
    "a vector": {"env": partial(vector, AutoresetMode.SAME_STEP)},
    "a vector that is reset": {"env": partial(vector, AutoresetMode.DISABLED)},
}


SEVERAL_LEARNERS = pytest.param({"distributed": "multi:2:2"}, marks=pytest.mark.extras, id="several learners")


@pytest.mark.parametrize(
    "options", [*(pytest.param(options, id=way) for way, options in WAYS.items()), SEVERAL_LEARNERS]
)
def test_wherever_environments_are(options: dict[str, Any]) -> None:
    expected, found = train(), train(**options)
    assert [told(metrics) for metrics in found] == [told(metrics) for metrics in expected]


class Interrupting(Trading):
    """Asks its process to stop, once, in the middle of the second rollout."""

    steps = 0

    def step(self, action: Any) -> Any:
        Interrupting.steps += 1
        if Interrupting.steps == 64 + 30:
            os.kill(os.getpid(), signal.SIGINT)  # also from a thread
        return super().step(action)


STOPPED = {way: WAYS[way] for way in ("shards", "mirrored", "overlap")}
STOPPED["TD3"] = {
    "env": Steered,
    "config": TD3Config(num_envs=4, steps_per_iteration=64, learning_starts=32, hidden_sizes=(4,), batch_size=8),
}


@pytest.mark.parametrize("way", STOPPED)
def test_a_stopped_run_goes_on_with_those_of_its_unfinished_rollout(way: str, tmp_path: Path) -> None:
    options = {**STOPPED[way], "num_workers": 0}
    expected, found = train(**options), list[dict[str, Any]]()
    env = type("Env", (Interrupting, options.pop("env", Trading)), {})
    Interrupting.steps = 0
    seen = train(env, run_dir=tmp_path / "run", on_interrupt="return", **options)
    hybridppo.resume(tmp_path / "run", env=env, progress=False, on_iteration=lambda each: found.append(dict(each)))
    assert [told(metrics) for metrics in [*seen, *found]] == [told(metrics) for metrics in expected]
    assert len(seen) < len(expected)


class Opening(Trading):
    """Only the first step of an episode has `opened`."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "opened": 1.0} if self._steps == 1 else info


@pytest.mark.parametrize(
    ("env", "num_workers"),
    [
        (Opening, 0),
        (Opening, 2),
        (partial(SyncVectorEnv, [Opening] * 4, autoreset_mode=AutoresetMode.NEXT_STEP), 0),
    ],
    ids=["here", "in workers", "a vector"],
)
def test_a_resumed_run_has_those_of_its_unfinished_episodes(env: Any, num_workers: int, tmp_path: Path) -> None:
    config, found = replace(CONFIG, num_steps=17), list[dict[str, Any]]()  # the next row of a vector is then a reset
    options: dict[str, Any] = {"config": config, "info_metrics": ("profit", "opened"), "num_workers": num_workers}
    expected = train(env, total_steps=3 * 68, **options)
    seen = train(env, total_steps=68, run_dir=tmp_path / "run", **options)
    on_iteration = lambda each: found.append(dict(each))  # noqa: E731
    hybridppo.resume(tmp_path / "run", env=env, total_steps=3 * 68, progress=False, on_iteration=on_iteration)
    assert [told(metrics) for metrics in [*seen, *found]] == [told(metrics) for metrics in expected]


def test_rows_of_resets_have_no_info_of_a_step() -> None:
    metrics = train(partial(vector, AutoresetMode.NEXT_STEP))[0]
    assert metrics["info/profit"] == pytest.approx(np.mean([*range(1, 6), *range(1, 6), *range(1, 5)]))
    assert metrics["episode_info/profit"] == 5.0
    assert metrics["episode_info/won"] == 1.0


class Telling(Matching):
    """Each agent's info has the number of the step."""

    def step(self, actions: dict[str, Any]) -> Any:
        *result, infos = super().step(actions)
        return *result, {agent: {**infos.get(agent, {}), "profit": self._steps} for agent in actions}


def test_agents_tell_each_by_itself() -> None:
    small = ppo_config(num_envs=1, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    metrics = train(Telling, config=small, info_metrics=("profit",), total_steps=30)[0]
    # Agents stay for 8, 7 and 6 steps; in the second episode the last is not there.
    steps = [*range(1, 9), *range(1, 8), *range(1, 7), *range(1, 9), *range(1, 8)]
    assert metrics["info/profit"] == pytest.approx(np.mean(steps))
    assert metrics["episode_info/profit"] == pytest.approx(np.mean([8, 7, 6, 8, 7]))
    in_turns = replace(small, num_steps=len(steps))
    found = train(lambda: TakingTurns(Telling()), config=in_turns, info_metrics=("profit",), total_steps=len(steps))
    assert told(found[0]) == told(metrics)


class Game(Trading):
    """Two players take turns; the last info does not say who is next."""

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation, {**info, "current_player": 0}

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info if self._steps == 5 else {**info, "current_player": self._steps % 2}


def test_the_last_info_of_a_game_is_of_both_players() -> None:
    config = replace(CONFIG, num_envs=1, num_steps=10)
    (metrics,) = train(lambda: hybridppo.TwoPlayers(Game()), config=config, total_steps=10)
    assert told(metrics) == {
        "info/profit": pytest.approx(np.mean([1, 2, 3, 4, 5, 5])), "info/won": 1.0,
        "episode_info/profit": 5.0, "episode_info/won": 1.0,
    }  # fmt: skip


SELVES: dict[str, dict[str, Any]] = {
    "at once": {"env": partial(Telling, 2)},
    "in turns": {"env": lambda: TakingTurns(Telling(2))},
    "two policies": {"env": partial(Telling, 2), "config": dict.fromkeys(("first", "second"), CONFIG)},
}


@pytest.mark.parametrize("name", SELVES)
def test_in_self_play_the_learner_tells_its_own(name: str) -> None:
    """It stays for 8 or for 7 steps, depending on its number."""
    policies = {"player 0": "first", "player 1": "second"}
    policy_of = policies.__getitem__ if "config" in SELVES[name] else None
    options = {"self_play": hybridppo.SelfPlay(), "info_metrics": ("profit",), "policy_of": policy_of, **SELVES[name]}
    metrics = train(**options, total_steps=64)[0]
    assert 3.0 < metrics["info/profit"] < 5.0
    assert 7.0 < metrics["episode_info/profit"] < 8.0


@pytest.mark.parametrize("max_lag", [0, 1])
def test_rollouts_of_whole_episodes_have_them(max_lag: int) -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    metrics = train(config=config, placement=hybridppo.Mirrored("cpu", "cpu", max_lag=max_lag), total_steps=40)
    assert [(each["info/profit"], each["episode_info/profit"]) for each in metrics] == [(3.0, 5.0)] * 4


def test_off_policy_agents_tell_them_too() -> None:
    config = TD3Config(learning_starts=8, hidden_sizes=(8,), steps_per_iteration=20)
    for metrics in train(Steered, config=config, total_steps=40):  # four episodes in 20 turns of a step
        assert told(metrics) == {
            "info/profit": 3.0, "info/won": 1.0, "episode_info/profit": 5.0, "episode_info/won": 1.0
        }  # fmt: skip


def test_episodes_that_were_broken_off_do_not_count() -> None:
    metrics = train(partial(Trading, fails=True), on_env_error="restart")
    assert all(told(each)["episode_info/profit"] == 5.0 for each in metrics if "episode_info/profit" in each)


class Logging(TorchCartPole):
    """Logs the number of the step, as Isaac Lab does, and half of it too."""

    under: str = "log"

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        self.number = getattr(self, "number", 0) + 1
        halves, others = torch.full((self.num_envs,), self.number / 2.0), {"name": "x", "names": np.array(["x"])}
        logged = {"number": torch.tensor(self.number), "one": 1.0, "unknown": np.nan, **others}
        return *result, {**infos, self.under: logged, "half": halves}


@pytest.mark.parametrize("asked", [("number", "half"), ("h*f",), ()])
@pytest.mark.parametrize("under", ["log", "episode"])
def test_tensors_log_them(asked: tuple[str, ...], under: str) -> None:
    """What they log is there unless it is not finite; their other entries are there if they are named."""
    found = train(type("Logs", (Logging,), {"under": under}), info_metrics=asked, total_steps=2 * 64)
    expected = {"info/number": [8.5, 24.5], "info/one": [1.0, 1.0]} | ({"info/half": [4.25, 12.25]} if asked else {})
    assert [told(metrics) for metrics in found] == [{name: each[i] for name, each in expected.items()} for i in (0, 1)]


def test_what_is_named_must_be_finite() -> None:
    with pytest.raises(EnvError, match=r"infos\['unknown'\] must be finite numbers \(info_metrics\), and are not"):
        train(Logging, info_metrics=("unk*",))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"env": partial(vector, AutoresetMode.SAME_STEP)}])
def test_a_pattern_stands_for_all_that_match_it(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    expected = [told(metrics) for metrics in train()]
    assert [told(metrics) for metrics in train(**options, info_metrics=("p?ofit", "w*", "x*"))] == expected
    told_of = [record.message for record in caplog.records if "info_metrics" in record.message]
    assert told_of == ["info_metrics: no step of the first iteration has x* in its info"]


@pytest.mark.parametrize("beside", [False, True])
def test_evaluations_have_them_too(beside: bool) -> None:
    metrics = train(evaluate_every=64, evaluation_episodes=3, evaluate_async=beside)
    of_evaluations = {name: value for name, value in metrics[-1].items() if name.startswith("evaluation_")}
    assert of_evaluations["evaluation_info/profit"] == pytest.approx(3.0)
    assert of_evaluations["evaluation_episode_info/profit"] == 5.0


def test_the_evaluation_after_the_training_has_them_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"config": CONFIG, "placement": "cpu", "seed": 0, "info_metrics": ("profit",)}
    run = tmp_path / "run"
    result = hybridppo.train(
        Trading, total_steps=64, evaluation_episodes=3, run_dir=run, progress=False, **options
    )  # fmt: skip
    expected = {"info/profit": 3.0, "episode_info/profit": 5.0}
    assert result.evaluation is not None
    assert result.evaluation.infos == expected
    assert hybridppo.evaluate(run, env=Trading, episodes=3, progress=False).infos == expected


class Uneven(Trading):
    """Episodes of 5 steps in every other environment, and of 50 in the others."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._length = 50 if seed % 2 else 5
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(1, np.float32), 1.0, self._steps == self._length, False, {"length": float(self._length)}


class UnevenBatch(TorchCartPole):
    """Its second environment has episodes of 50 steps, the others of 1."""

    def step(self, actions: Any) -> Any:
        observations, rewards, *_ = super().step(actions)
        self.number = getattr(self, "number", 0) + 1
        lengths = torch.ones(self.num_envs)
        lengths[1] = 50
        ended = self.number % lengths == 0
        return observations, rewards, ended, torch.zeros_like(ended), {"length": lengths}


def test_an_evaluation_of_batched_environments_counts_the_infos_of_its_episodes_alone() -> None:
    agent = hybridppo.PPO(TorchCartPole.single_observation_space, TorchCartPole.single_action_space, CONFIG)
    for _ in range(2):
        options: dict[str, Any] = {"episodes": 2, "info_metrics": ("length",), "progress": False}
        found = hybridppo.evaluate_agent(agent, UnevenBatch(2), **options)
        assert found.infos == {"info/length": pytest.approx((1 + 50 * 50) / 51)}


@pytest.mark.parametrize("mode", [None, *AutoresetMode], ids=str)
def test_an_evaluation_counts_the_infos_of_its_episodes_alone(mode: AutoresetMode | None) -> None:
    """An environment that has ended its episodes is stepped on until all have: its short ones would count more."""
    agent = hybridppo.PPO(Uneven.observation_space, Uneven.action_space, CONFIG)
    env: Any = Uneven if mode is None else lambda: SyncVectorEnv([Uneven] * 4, autoreset_mode=mode)
    found = hybridppo.evaluate_agent(agent, env, episodes=2, info_metrics=("length",), progress=False)
    assert sorted(found.returns) == [5.0, 50.0]
    assert found.infos["episode_info/length"] == found.return_mean
    assert found.infos["info/length"] == pytest.approx((5 * 5.0 + 50 * 50.0) / 55)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_name_that_is_never_there_is_said_once(num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        metrics = train(info_metrics=("profit", "loss", "cost"), num_workers=num_workers)
    assert [r.message for r in caplog.records if "info_metrics" in r.message] == [
        "info_metrics: no step of the first iteration has loss, cost in its info"
    ]
    assert set(told(metrics[-1])) == {"info/profit", "episode_info/profit"}


def test_a_name_that_one_shard_has_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    holder: list[Any] = []

    class Holding(Trading):
        def step(self, action: Any) -> Any:
            holder.extend([self] * (not holder))
            *result, info = super().step(action)
            return *result, info if holder == [self] else {}

    with caplog.at_level(logging.WARNING):
        (metrics,) = train(Holding, distributed="multi:1:2", info_metrics=("profit", "loss"), total_steps=64)
    assert [r.message for r in caplog.records if "info_metrics" in r.message] == [
        "info_metrics: no step of the first iteration has loss in its info"
    ]
    assert metrics["info/profit"] == pytest.approx(np.mean([*range(1, 6)] * 3 + [1]))


@pytest.mark.parametrize("value", [float("nan"), "much", np.ones(3)])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(EnvError, match=r"its info\['profit'\] must be a finite number \(info_metrics\), and is"):
        train(partial(Trading, value))


class Mute(Telling):
    """Its infos have texts."""

    def step(self, actions: Any) -> Any:
        *result, _ = super().step(actions)
        return *result, {agent: {"profit": "much"} for agent in self.possible_agents}


class LoggingText(TorchCartPole):
    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        return *result, {**infos, "profit": ["much"]}


@pytest.mark.parametrize(
    ("env", "where"),
    [
        (Mute, "environment 0 .* failed in step 1 of its episode.* action .*"),
        (lambda: TakingTurns(Mute()), "environment 0 .* failed in step 3 of its episode.* action .*"),
        (lambda num_envs: SyncVectorEnv([partial(Trading, "much")] * num_envs), "environments 0 to .* in step 1"),
        (lambda num_envs: LoggingText(num_envs), "batched environments, LoggingText .* in step 1"),
    ],
    ids=["agents", "turns", "vector", "tensors"],
)
def test_what_is_no_number_is_an_error_of_the_environment(env: Any, where: str) -> None:
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    with pytest.raises(EnvError, match=where + r".*infos?\['profit'\] must be"):
        train(env, config=config, info_metrics=("profit",))


class WholeInfos(SyncVectorEnv):
    """A vector of one's own, with one number for all environments."""

    def step(self, actions: Any) -> Any:
        *result, _ = super().step(actions)
        return *result, {"profit": 3.0}


def test_a_number_of_a_vector_is_that_of_each_environment() -> None:
    metrics = train(lambda num_envs: WholeInfos([Trading] * num_envs), info_metrics=("profit",))
    assert told(metrics[-1]) == {"info/profit": 3.0, "episode_info/profit": 3.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "CartPole-v1", "vectorization": "compiled"}, "does not work with vectorization='compiled'"),
        ({"info_metrics": "profit"}, "info_metrics must be a tuple of names of entries in infos, got 'profit'"),
        ({"info_metrics": ("",)}, "info_metrics must be a tuple of names"),
    ],
)  # fmt: skip
def test_where_they_cannot_be_had_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(**options)
