"""Agents that share a policy: where it is sampled changes nothing, runs resume exactly, and the optimum is learned.

To add a kind, add a line to `AGENT_KINDS` of `toy_agents.py`.
"""

import contextlib
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
from everywhere import WAYS, assert_goes_on_exactly, assert_same_everywhere
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from toy_agents import AGENT_KINDS, FaultyAgents, Matching

import hybridppo
from hybridppo import CheckpointError, ConfigurationError, EnvError, Mirrored, SingleDevice
from hybridppo.environments.making import make_environments

SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))
STEPS = 3 * 140
"""Rollouts of about 140 steps: of their 192 rows, those of absent agents are not steps."""

VARIANTS = [
    pytest.param(name, masks, id=f"{name}, masked" if masks else name)
    for name in AGENT_KINDS
    for masks in (False, True)
]
every_kind = pytest.mark.parametrize(("name", "masks"), VARIANTS)
some_kinds = pytest.mark.parametrize(
    ("name", "masks"), only_by_default(("vectors, masked", "images and choices"), VARIANTS, pytest.mark.slow)
)


def source_of(name: str, masks: bool) -> Any:
    return partial(AGENT_KINDS[name], masks=True) if masks else AGENT_KINDS[name]


def train(name: str = "discrete", masks: bool = False, **options: Any) -> hybridppo.TrainResult:
    arguments = {"env": source_of(name, masks), "placement": SingleDevice("cpu"), "seed": 0, "config": SMALL}
    return hybridppo.train(**{"total_steps": STEPS, **arguments, **options}, action_masks=masks, progress=False)


@some_kinds
def test_who_samples_and_where_changes_nothing(name: str, masks: bool) -> None:
    expected = train(name, masks)
    assert not torch.equal(values_of(train(name, masks, seed=1)), values_of(expected))
    ways = {**WAYS, "three workers": {"num_workers": 3}, "auto": {"placement": "auto"}}
    assert_same_everywhere(partial(train, name, masks), expected, ways)


def test_overlapped_it_is_what_its_seed_says() -> None:
    overlap = Mirrored("cpu", "cpu", max_lag=1)
    expected = values_of(train(placement=overlap))
    for workers in (0, 1, 2):
        assert torch.equal(values_of(train(placement=overlap, num_workers=workers)), expected)


@some_kinds
def test_stopped_and_resumed_it_goes_on_exactly(name: str, masks: bool, tmp_path: Path) -> None:
    expected, run = train(name, masks), tmp_path / "run"
    assert_same_everywhere(partial(train, name, masks), expected, {}, run=run)
    assert_goes_on_exactly(run, expected, env=source_of(name, masks), num_workers=2)


class Interrupting(Matching):
    """Asks its process to stop, once, in the middle of a rollout, when some agents have left."""

    has_asked = False

    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if self._episodes == 4 and self._steps == 7 and not Interrupting.has_asked:
            Interrupting.has_asked = True
            os.kill(os.getpid(), signal.SIGINT)
        return result


def test_stopped_within_a_rollout_it_goes_on_at_that_very_row(tmp_path: Path) -> None:
    config = replace(SMALL, num_steps=40)
    Interrupting.has_asked = True
    expected = train(env=Interrupting, config=config, total_steps=1000)
    Interrupting.has_asked = False
    run = tmp_path / "run"
    assert train(env=Interrupting, config=config, total_steps=1000, run_dir=run, on_interrupt="return").interrupted
    state = max((run / "checkpoints").iterdir()) / "state.json"
    assert '"under_way": {' in state.read_text()
    again = hybridppo.resume(run, env=Interrupting, progress=False)
    assert torch.equal(values_of(again), values_of(expected))


def test_with_other_agents_it_is_not_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run_dir=run)
    with pytest.raises(CheckpointError, match="the environment is not the one that was trained in"):
        hybridppo.resume(run, env=AGENT_KINDS["vectors"], total_steps=2 * STEPS, progress=False)


@pytest.mark.parametrize(
    ("name", "masks"),
    only_by_default(("discrete, masked", "vectors", "images", "images and choices, masked"), VARIANTS),
)
def test_an_agent_acts_in_it_once_loaded(name: str, masks: bool, tmp_path: Path) -> None:
    result = train(name, masks, run_dir=tmp_path / "run", evaluation_episodes=4)
    assert result.evaluation is not None
    assert set(result.evaluation.agents) == {"player 0", "player 1", "player 2"}
    env = source_of(name, masks)()
    for agent, reached in zip(result.evaluation.agents, result.evaluation.returns, strict=True):
        assert reached <= env.best(agent)
    policy = hybridppo.load(tmp_path / "run")
    observations, infos = env.reset(seed=3)
    for _ in range(6):
        actions = {
            agent: policy.act(observation, action_mask=infos[agent].get("action_mask"))
            for agent, observation in observations.items()
        }
        observations, _, _, _, infos = env.step(actions)
    again = hybridppo.evaluate(tmp_path / "run", episodes=4, env=source_of(name, masks), progress=False)
    assert len(again.returns) == len(again.agents)


class OneCartPole:
    """CartPole, as a parallel environment of one agent."""

    def __init__(self) -> None:
        self.env = gym.make("CartPole-v1", max_episode_steps=30)
        self.possible_agents = self.agents = ["cart"]

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observation, info = self.env.reset(seed=seed)
        return {"cart": observation}, {"cart": info}

    def step(self, actions: dict[str, Any]) -> Any:
        return tuple({"cart": part} for part in self.env.step(actions["cart"]))


def test_of_one_agent_it_is_what_the_environment_alone_is() -> None:
    """Bit by bit: truncated and terminated ends, and all that follows from them."""
    alone = train(env=lambda: gym.make("CartPole-v1", max_episode_steps=30), total_steps=2000)
    assert torch.equal(values_of(train(env=OneCartPole, total_steps=2000)), values_of(alone))


def test_a_restarted_run_is_the_same_in_workers() -> None:
    def fails_at_times(env: FaultyAgents, result: Any) -> Any:
        if len(result) == 5 and env.steps % 37 == 0 and env.seed is not None and env.seed % 2:
            raise ValueError("the motor is stuck")
        return result

    results = [
        train(env=partial(FaultyAgents, fails_at_times), on_env_error="restart", num_workers=workers)
        for workers in (0, 2)
    ]
    assert results[0].metrics["env_restarts"] == results[1].metrics["env_restarts"] > 0
    assert torch.equal(values_of(results[0]), values_of(results[1]))


def dies_once(path: Path, env: FaultyAgents, result: Any) -> Any:
    if len(result) == 5 and env.steps == 21 and env.seed is not None and env.seed % 2:
        with contextlib.suppress(FileExistsError):  # made in one go: two workers may come here at once
            path.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return result


def test_a_worker_that_dies_takes_its_environments_episodes_with_it(tmp_path: Path) -> None:
    make = partial(FaultyAgents, partial(dies_once, tmp_path / "died"))
    with pytest.raises(EnvError, match=r"worker [01] \(environments [02] to [13]\).* SIGKILL"):
        train(env=make, num_workers=2)
    (tmp_path / "died").unlink()
    result = train(env=make, num_workers=2, on_env_error="restart")
    assert result.metrics["env_restarts"] == 2  # both environments of the worker
    assert result.metrics["env_steps"] >= STEPS


@pytest.mark.slow
@every_kind
def test_its_optimum_is_learned(name: str, masks: bool) -> None:
    config = ppo_config(
        num_envs=8, num_steps=32, num_minibatches=4, learning_rate=3e-3, gamma=0.0, gae_lambda=0.0,
        entropy_coef=0.001, clip_range_vf=None,
    )  # fmt: skip
    result = train(name, masks, config=config, total_steps=60_000, evaluation_episodes=16)
    assert result.evaluation is not None
    pairs = zip(result.evaluation.agents, result.evaluation.returns, strict=True)
    assert np.mean([reached / Matching().best(agent) for agent, reached in pairs]) > 0.9


def test_columns_are_environments_times_agents() -> None:
    environments = make_environments(Matching, 4)
    assert environments.num_envs == 12
    assert environments.num_agents == 3


class Pushing:
    """Pushes to the left, and makes a call at one of its steps."""

    version = 0
    ask_at: tuple[int, Any] = (0, None)

    def __init__(self) -> None:
        self._step = 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        at, function = self.ask_at
        self._step += at > 0
        if at and self._step == at:
            function()
        return np.tile(np.array([9.0, 0.0], np.float32), (len(observations), 1))


def test_agents_with_a_replay_buffer_say_that_they_learn_from_one() -> None:
    class Steering(Matching):
        def action_space(self, agent: str) -> Any:
            return gym.spaces.Box(-1.0, 1.0, (1,))

    with pytest.raises(ConfigurationError, match="learns from environments of one agent, and these have"):
        hybridppo.train(Steering, total_steps=100, config=hybridppo.TD3Config(), placement="cpu", progress=False)


def test_agents_with_a_memory_are_evaluated_where_their_environment_is_restarted() -> None:
    """Each agent's memory has a row of its own, even if there are more agents than environments."""
    fails: list[bool] = []

    def fault(env: FaultyAgents, found: Any) -> Any:
        if env.steps == 4 and fails and fails.pop(0):
            raise RuntimeError("a fault")
        return found

    def make() -> FaultyAgents:
        return FaultyAgents(fault)

    config = replace(SMALL, num_envs=2, num_minibatches=1, recurrent="lstm", recurrent_size=4)
    agent = hybridppo.train(make, total_steps=64, seed=0, config=config, placement="cpu", progress=False).agent
    fails += [False, True]  # the second of both environments
    found = hybridppo.evaluate_agent(agent, make, episodes=4, on_env_error="restart", progress=False)
    assert fails == []
    assert found.lengths == (10,) * 8
