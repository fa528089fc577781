"""Agents that act one after the other: where they are sampled changes nothing, and runs resume exactly."""

import signal
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from stop_after import interrupt_at_call
from toy_agents import FaultyAgents, Matching, TakingTurns, Unlike, noughts_and_crosses

import hybridppo
from hybridppo import Mirrored, MultiLearner, SingleDevice
from hybridppo.distributions.categorical import Categorical
from hybridppo.rollouts.advantages import gae

SMALL = ppo_config(num_envs=4, num_steps=24, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))
STEPS = 4 * 24 * 4


def plain() -> Any:
    return TakingTurns(Matching())


def masked() -> Any:
    return TakingTurns(Matching(masks=True), within=True)


def kinds() -> Any:
    return TakingTurns(Unlike())


def faulty() -> Any:
    return TakingTurns(FaultyAgents(_fails_at_times))


def _fails_at_times(env: FaultyAgents, result: Any) -> Any:
    if len(result) == 5 and env.steps % 17 == 0 and env.seed is not None and env.seed % 2:
        raise ValueError("the motor is stuck")
    return result


POLICIES = {"config": {"sign": SMALL, "pointer": SMALL}}
SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "masked": (masked, {"action_masks": True}),
    "a policy for each kind": (kinds, POLICIES),
    "normalised rewards": (plain, {"config": replace(SMALL, normalize_rewards=True)}),
    "a memory": (plain, {"config": replace(SMALL, recurrent="lstm", sequence_length=4)}),
    "a memory that restarts": (
        faulty,
        {"config": replace(SMALL, recurrent="gru", sequence_length=4), "on_env_error": "restart"},
    ),
    "policies with and without a memory": (
        kinds,
        {"config": {"sign": replace(SMALL, recurrent="gru", sequence_length=4), "pointer": SMALL}},
    ),
    "restarted": (faulty, {"on_env_error": "restart"}),
    "two players": (noughts_and_crosses, {"action_masks": True}),
}
"""To add a source, add a line."""
WITH_ALL = (
    "plain",
    "masked",
    "normalised rewards",
    "a memory that restarts",
    "policies with and without a memory",
    "two players",
)
"""Sources that together have everything that the others have."""


def train(name: str = "plain", **options: Any) -> hybridppo.TrainResult:
    env, own = SOURCES[name]
    arguments: dict[str, Any] = {"placement": SingleDevice("cpu"), "seed": 0, "config": SMALL, "total_steps": STEPS}
    return hybridppo.train(env, **{**arguments, **own, **options}, progress=False)


@cache
def expected_of(name: str) -> hybridppo.TrainResult:
    """A training's result, which is shared and only read."""
    return train(name)


@pytest.mark.parametrize("name", only_by_default(WITH_ALL, SOURCES))
def test_who_samples_and_where_changes_nothing(name: str) -> None:
    expected = expected_of(name)
    assert expected.metrics["env_steps"] == STEPS or "restart" in name
    ways = {**WAYS, "auto": {"placement": "auto"}}
    if name != "plain":
        ways = {WITH_WORKERS: WAYS[WITH_WORKERS]}
    assert_same_everywhere(partial(train, name), expected, ways)


def test_another_seed_gives_another_result() -> None:
    assert not torch.equal(values_of(train(seed=1)), values_of(expected_of("plain")))


def test_overlapped_it_is_what_its_seed_says() -> None:
    overlap = Mirrored("cpu", "cpu", max_lag=1)
    expected = values_of(train(placement=overlap))
    for workers in (0, 2):
        assert torch.equal(values_of(train(placement=overlap, num_workers=workers)), expected)


def test_two_learners_are_one_with_as_many_shards() -> None:
    expected = values_of(train(distributed=MultiLearner(learners=1, shards=2)))
    assert torch.equal(values_of(train(distributed=MultiLearner(learners=2, shards=2))), expected)


class Varied(Matching):
    """Episodes differ in length, and so do the rollouts of two shards."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random, self._episodes = np.random.default_rng(seed), 0
        self._length = int(self.np_random.integers(4, 12))
        return super().reset()


@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_shards_whose_rollouts_differ_in_length_learn_and_go_on_exactly(recurrent: Any, tmp_path: Path) -> None:
    shapes: list[tuple[int, int]] = []

    def advantages(stop_at: int, **arguments: Any) -> torch.Tensor:
        shapes.append(tuple(arguments["rewards"].shape))
        if len(shapes) == stop_at:
            signal.raise_signal(signal.SIGINT)
        return gae(**arguments)

    config = ppo_config(
        num_envs=2, num_steps=25, num_epochs=2, num_minibatches=1, hidden_sizes=(8,), recurrent=recurrent
    )
    options: dict[str, Any] = {"config": config, "distributed": "multi:1:2", "placement": "cpu", "seed": 0}
    options |= {"total_steps": 6 * 50, "progress": False}

    def env() -> Any:
        return TakingTurns(Varied())

    expected = hybridppo.train(env, advantages=partial(advantages, -1), **options)
    differs = next(i for i in range(0, len(shapes), 2) if shapes[i] != shapes[i + 1])
    shapes.clear()
    run = tmp_path / "run"
    stopped = hybridppo.train(
        env, advantages=partial(advantages, differs + 2), run_dir=run, on_interrupt="return", **options
    )
    assert stopped.interrupted
    again = hybridppo.resume(run, env=env, advantages=partial(advantages, -1), progress=False)
    if recurrent is None:
        assert torch.equal(values_of(again), values_of(expected))
    else:  # sequences are saved with equal lengths, and sums over their rows may round differently
        torch.testing.assert_close(values_of(again), values_of(expected))


def test_several_learners_cannot_keep_a_pool_of_rollouts_by_turns() -> None:
    with pytest.raises(hybridppo.ConfigurationError, match="pool_size above 1 does not work"):
        train(distributed=MultiLearner(learners=1, shards=2), config=replace(SMALL, pool_size=2))


@pytest.mark.parametrize(
    "name",
    only_by_default(
        [name for name in WITH_ALL if "restart" not in name], [name for name in SOURCES if "restart" not in name]
    ),
)
def test_stopped_and_resumed_it_goes_on_exactly(name: str, tmp_path: Path) -> None:
    expected, run = expected_of(name), tmp_path / "run"
    assert_same_everywhere(partial(train, name), expected, {}, run=run)
    assert_goes_on_exactly(run, expected, env=SOURCES[name][0], num_workers=2)


def test_a_resume_with_a_larger_lag_begins_new_episodes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupt_at_call(monkeypatch, Categorical, "sample", SMALL.num_steps + 7)
    assert train(run_dir=tmp_path / "run", on_interrupt="return").interrupted
    lag = Mirrored("cpu", "cpu", max_lag=2)
    with caplog.at_level("INFO"):
        result = hybridppo.resume(tmp_path / "run", env=plain, placement=lag, num_workers=2, progress=False)
    assert "a rollout was under way on the host, not in parts of workers" in caplog.text
    assert not result.interrupted


def test_it_is_evaluated_and_acts_once_loaded(tmp_path: Path) -> None:
    result = train("masked", run_dir=tmp_path / "run", evaluation_episodes=4, evaluate_every=200)
    assert result.evaluation is not None
    assert {*result.evaluation.agents} == {"player 0", "player 1", "player 2"}
    agent = hybridppo.load(tmp_path / "run")
    env = masked()
    env.reset(3)
    seen = env.last()[0]
    assert seen["action_mask"][agent.act(seen["observation"], action_mask=seen["action_mask"])]
    again = hybridppo.evaluate(tmp_path / "run", episodes=4, env=masked, progress=False)
    assert len(again.returns) == len(again.agents)


def test_a_mask_that_is_not_obeyed_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    train("masked", total_steps=96)
    assert "obeys it" not in caplog.text
    with pytest.raises(hybridppo.EnvError, match="may not do"):
        train("masked", action_masks=False)
    assert "have an action_mask, and action_masks is False" in caplog.text


@pytest.mark.parametrize("name", ["plain", "masked"])
def test_it_can_be_checked(name: str) -> None:
    report = hybridppo.check_env(SOURCES[name][0], steps=60)
    assert report.is_usable, str(report)
    assert ("'action_mask'" in str(report)) == (name == "masked")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "masked"])
def test_its_optimum_is_learned(name: str) -> None:
    config = ppo_config(
        num_envs=8, num_steps=96, num_minibatches=4, learning_rate=3e-3, gamma=0.0, gae_lambda=0.0,
        entropy_coef=0.001, clip_range_vf=None,
    )  # fmt: skip
    result = train(name, config=config, total_steps=60_000, evaluation_episodes=16)
    assert result.evaluation is not None
    pairs = zip(result.evaluation.agents, result.evaluation.returns, strict=True)
    assert np.mean([reached / Matching().best(agent) for agent, reached in pairs]) > 0.9


def test_what_is_given_as_one_function_is_what_it_is_given_as(tmp_path: Path) -> None:
    """A function with arguments of its own, for `env_kwargs`."""

    def made(length: int = 3) -> Any:
        return TakingTurns(Matching(length=length))

    found = hybridppo.train(
        partial(made), env_kwargs={"length": 5}, total_steps=STEPS, config=SMALL, placement="cpu", progress=False
    )
    assert 3.0 < found.metrics["episode_length_mean"] <= 15.0
