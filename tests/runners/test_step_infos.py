"""Numbers of infos as columns of rollouts: of each step, and the same wherever the environments are."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from toy_agents import Matching, TakingTurns

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored, TD3Config
from hybridppo.agents.ppo.loss import Loss, LossInputs
from hybridppo.tensors import TorchCartPole

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))


class Spending(gym.Env[Any, Any]):
    """Episodes of 5 steps, terminated and truncated by turns; the cost and the reward are the number of the step."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space: Any = Discrete(2)

    def __init__(self, name: str = "cost", value: Any = None, at: int = 3) -> None:
        self._name, self._value, self._at = name, value, at
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps, self._episodes = 0, self._episodes + 1
        return np.zeros(1, np.float32), {"at the start": 1.0}

    def step(self, action: Any) -> Any:
        self._steps += 1
        ends, is_odd = self._steps == 5, self._episodes % 2 == 1
        given = self._value if self._value is not None and self._steps == self._at else float(self._steps)
        info = {self._name: given, "other": 0.5}
        return np.zeros(1, np.float32), float(self._steps), ends and is_odd, ends and not is_odd, info


class Looking(PPO):
    """Keeps the costs of its rollouts, and compares those of minibatches with the rewards, which are the same."""

    def prepared(self, rollout: Any, *arguments: Any, **options: Any) -> Any:
        steps = rollout.are_steps
        paid = torch.where(steps, rollout.rewards, 0.0)
        self.costs = [*vars(self).get("costs", ()), rollout.infos["cost"].clone()]
        assert torch.equal(rollout.columns()["cost"], paid)
        assert rollout.infos["cost"].dtype == torch.float32
        return super().prepared(rollout, *arguments, **options).with_columns(paid=paid)

    def loss(self, inputs: LossInputs, clip_range: Any) -> Loss:
        assert torch.equal(inputs.columns["cost"], inputs.columns["paid"])
        found = super().loss(inputs, clip_range)
        return replace(found, extra={"cost": inputs.columns["cost"].mean()})


def train(env: Any = Spending, **options: Any) -> Any:
    arguments: dict[str, Any] = {"config": CONFIG, "seed": 0, "placement": "cpu", "step_infos": ("cost",)}
    arguments |= {"total_steps": 3 * 64, "agent": Looking, **options}
    return hybridppo.train(env, progress=False, **arguments)


def costs(env: Any = Spending, **options: Any) -> Any:
    """The costs of all rollouts, `[T, N]`."""
    return torch.cat(train(env, **options).agent.costs)


def vector(mode: AutoresetMode) -> Any:
    return SyncVectorEnv([Spending] * 4, autoreset_mode=mode)


BY_HAND = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0] * 10)[:48, None].expand(48, 4)
WAYS: dict[str, dict[str, Any]] = {
    "here": {},
    "workers": {"num_workers": 2},
    "shards": {"distributed": "multi:1:2"},
    "overlap in workers": {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 2},
    "a vector": {"env": partial(vector, AutoresetMode.SAME_STEP)},
    "a vector that is reset": {"env": partial(vector, AutoresetMode.DISABLED)},
    "other metrics, too": {"info_metrics": ("o*",)},
}


WAYS_OF_RAY = [pytest.param(way, marks=pytest.mark.extras) for way in ("coarse:2", "central:2")]


@pytest.mark.parametrize("way", [*WAYS, *WAYS_OF_RAY])
def test_wherever_environments_are(way: str) -> None:
    options = WAYS.get(way, {"distributed": way})
    if way == "central:2":  # learners are other processes
        assert train(**options).metrics["cost"] == pytest.approx(3.0, abs=0.1)
        return
    found = costs(**options)
    if way == "shards":  # each is prepared by itself
        found = found.view(3, 2, 16, 2).transpose(1, 2).reshape(48, 4)
    assert torch.equal(found, BY_HAND)


def test_rows_of_resets_have_zeros() -> None:
    found = costs(partial(vector, AutoresetMode.NEXT_STEP))
    assert torch.equal(found[:48, 0], torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.0] * 8))


@pytest.mark.parametrize(
    "options",
    [
        {"config": replace(CONFIG, recurrent="lstm", sequence_length=4)},
        {"config": replace(CONFIG, pool_size=3)},
        {"config": ppo_config(num_envs=1, episodes_per_rollout=3, num_epochs=1, num_minibatches=2)},
        {"placement": Mirrored("cpu", "cpu", max_lag=3), "num_workers": 2},
        {"config": replace(CONFIG, normalize_observations=True), "total_steps": 64 * 4, "evaluate_every": 64},
    ],
    ids=["with memory", "a pool", "whole episodes", "far ahead", "evaluations beside"],
)
def test_columns_stay_with_their_steps(options: dict[str, Any]) -> None:
    metrics = train(**options).metrics
    assert 1.0 < metrics["cost"] < 5.0


class Failing(Spending):
    """Fails once in the middle of an episode."""

    steps = 0

    def step(self, action: Any) -> Any:
        Failing.steps += 1
        if Failing.steps == 50:
            raise RuntimeError("the market is closed")
        return super().step(action)


def test_episodes_that_a_restart_has_broken_off_have_zeros() -> None:
    """`Looking` compares all rows: those before the failure in its episode are not steps."""
    Failing.steps = 0
    found = costs(Failing, on_env_error="restart", total_steps=64)
    assert (found == 0.0).sum() == 3


class Paying(Matching):
    """The cost of each agent is its reward and the number of the step."""

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, *ends, infos = super().step(actions)
        paid = {agent: reward + self._steps for agent, reward in rewards.items()}
        return observations, paid, *ends, {agent: {**infos.get(agent, {}), "cost": paid[agent]} for agent in paid}


SEVERAL: dict[str, dict[str, Any]] = {
    "at once": {"env": Paying},
    "in turns": {"env": lambda: TakingTurns(Paying())},
    "in turns, with memory": {"env": lambda: TakingTurns(Paying()), "config": replace(CONFIG, recurrent="gru")},
    "self-play": {"env": partial(Paying, 2), "self_play": hybridppo.SelfPlay()},
    "self-play in turns": {"env": lambda: TakingTurns(Paying(2)), "self_play": hybridppo.SelfPlay()},
}


@pytest.mark.parametrize("way", SEVERAL)
def test_each_agent_has_its_own(way: str) -> None:
    """`Looking` compares them with the rewards; absent agents have zeros."""
    assert costs(**SEVERAL[way]).max() >= 8.0


class Batched(TorchCartPole):
    """The cost is the reward; in the last step of an episode, the infos may be those of the next one."""

    is_final: ClassVar[bool] = False
    fault: ClassVar[Any] = None

    def step(self, actions: Any) -> Any:
        observations, _, terminated, truncated, infos = super().step(actions)
        cost = torch.rand(self.num_envs)
        if self.fault is not None:
            return observations, cost, terminated, truncated, {**infos, **self.fault}
        ended = terminated | truncated
        more = {"cost": cost.where(~ended, -1.0), "final_info": {"cost": cost}} if self.is_final else {"cost": cost}
        return observations, cost, terminated, truncated, {**infos, **more}


@pytest.mark.parametrize("is_final", [False, True])
def test_batched_environments_keep_theirs_on_the_device(is_final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batched, "is_final", is_final)
    assert costs(partial(Batched, episode_length=7)).shape == (48, 4)


FAULTS: dict[str, tuple[Any, str]] = {
    "missing": (partial(Spending, "price"), r"environment 0 .* failed in step 1 .*info has no 'cost', .*other, price;"),
    "no number": (partial(Spending, value="dear"), r"in step 3 .*info\['cost'\] must be a finite number .*'dear'"),
    "infinite": (partial(Spending, value=1e39), r"in step 3 .*info\['cost'\] must be a finite number .*1e\+39"),
    "in a vector": (
        lambda: SyncVectorEnv([Spending, partial(Spending, value=np.nan)] * 2),
        r"in step 3, .*info\['cost'\] must be a finite number .*nan",
    ),
    "missing in a vector": (
        lambda: SyncVectorEnv([*[Spending] * 3, partial(Spending, "price")]),
        r"in step 1, .*environment 3: its info has no 'cost', .* it has other, price;",
    ),
    "in turns": (lambda: TakingTurns(Matching()), "agent gets after its turn has no 'cost'"),
    "of an agent": (Matching, r"agent 'player 0': its info has no 'cost', .*: it has no entries;"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_number_is_an_error_that_names_it(fault: str) -> None:
    env, message = FAULTS[fault]
    with pytest.raises(EnvError, match=message):
        train(env)


@pytest.mark.parametrize("fault", ["missing", "of an agent"])
def test_a_restart_cannot_bring_an_entry(fault: str) -> None:
    with pytest.raises(EnvError, match=r"^environment 0 .*has no 'cost'"):  # and not after "4 failures in a row"
        train(FAULTS[fault][0], on_env_error="restart")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "infos? has no 'cost', .*it has final_obs"),
        ({"cost": torch.zeros(3)}, r"infos\['cost'\]"),
        ({"cost": torch.tensor([0.0, np.nan, 0.0, 0.0])}, r"the info\['cost'\] of environment 1: .* is nan"),
    ],
)
def test_a_bad_number_of_batched_environments_too(given: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batched, "fault", given)
    with pytest.raises(EnvError, match=message):
        train(Batched)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_infos": "cost"}, "step_infos must be a tuple of names of entries in infos, got 'cost'"),
        ({"step_infos": ("rewards",)}, "step_infos: 'rewards' cannot name a column of rollouts"),
        ({"step_infos": ("advantages",)}, "step_infos: 'advantages' cannot name a column"),
        ({"step_infos": ("a.b",)}, "step_infos: 'a.b' cannot name a column"),
        ({"config": TD3Config(), "agent": None}, "step_infos=.* does not work with agents with a replay buffer"),
        ({"vectorization": "compiled"}, "step_infos=.* does not work with vectorization='compiled'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(**options)


def test_a_resumed_run_goes_on_with_them(tmp_path: Path) -> None:
    whole = train(total_steps=3 * 64)
    train(total_steps=64, run_dir=tmp_path / "run")
    resumed = hybridppo.resume(tmp_path / "run", agent=Looking, env=Spending, total_steps=3 * 64, progress=False)
    assert torch.equal(whole.agent.parameters.values, resumed.agent.parameters.values)
