"""Environments of Brax and MuJoCo Playground, whose arrays are tensors: steps, ends, states, and a training."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stop_after import interrupt_at_call

import hybridppo

pytest.importorskip("brax")

from brax.envs.base import Env, State
from jax import numpy as jnp
from jax import random
from ppo_settings import ppo_config

from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.tensors import Brax, Playground

pytestmark = pytest.mark.extras

CONFIG = ppo_config(num_envs=8, num_steps=8, num_minibatches=2, hidden_sizes=(8,))


class Counting(Env):
    """Starts at a number from 0 to 1 and counts up by 1; it ends if an action is larger than `limit`."""

    def __init__(self, limit: float = 9.0, is_dict: bool = False) -> None:
        self._limit, self._is_dict = limit, is_dict

    def reset(self, rng: Any) -> State:
        place, zero = random.uniform(rng, (1,)), jnp.zeros(())
        return State(place, self._seen(place), zero, zero, {"cost": zero}, {"key": rng})

    def step(self, state: State, action: Any) -> State:
        place = state.pipeline_state + 1.0
        done = jnp.where(action[0] > self._limit, 1.0, 0.0)
        of_step = {"reward": place[0], "metrics": {"cost": 2.0 * place[0]}}
        return state.replace(pipeline_state=place, obs=self._seen(place), done=done, **of_step)

    def _seen(self, place: Any) -> Any:
        return {"state": place, "privileged_state": place + 100.0} if self._is_dict else place

    @property
    def observation_size(self) -> Any:
        return {"state": (1,), "privileged_state": (1,)} if self._is_dict else 1

    @property
    def action_size(self) -> int:
        return 1

    @property
    def backend(self) -> str:
        return "none"


@pytest.mark.parametrize("is_dict", [False, True])
def test_steps_and_ends_are_those_of_the_environment(is_dict: bool) -> None:
    env = Brax(Counting(0.5, is_dict), 4, episode_length=3)
    starts, _ = env.reset(seed=1)
    starts = starts.clone()
    assert len(starts.unique()) == 4
    ends = torch.tensor([[-1.0], [-1.0], [1.0], [-1.0]])
    for step in range(1, 7):
        actions = ends if step == 5 else -torch.ones(4, 1)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        age = torch.tensor([step if step <= 3 else step - 3] * 4)
        if step == 6:
            age[2] = 1
        assert torch.equal(infos["final_obs"], starts + age[:, None])
        assert torch.equal(rewards, (starts + age[:, None])[:, 0])
        assert torch.equal(infos["cost"], 2.0 * rewards)
        assert terminated.tolist() == [False, False, step == 5, False]
        assert truncated.tolist() == [step == 3 or (step == 6 and i != 2) for i in range(4)]
        ended = (terminated | truncated)[:, None]
        assert torch.equal(observations, torch.where(ended, starts, infos["final_obs"]))
    assert hybridppo.check_env(lambda: Brax(Counting(0.5, is_dict), 4, episode_length=3), steps=200).is_usable


def test_observations_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="no 'pixels': they have state, privileged_state"):
        Brax(Counting(is_dict=True), 4, key="pixels")


def test_a_run_is_resumed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(Brax, Counting(0.9), 8, episode_length=5)
    options: dict[str, Any] = {"total_steps": 4 * 64, "seed": 0, "config": CONFIG, "progress": False}
    expected = hybridppo.train(make, run_dir=tmp_path / "expected", **options)
    interrupt_at_call(monkeypatch, DiagonalGaussian, "sample", 21)
    assert hybridppo.train(make, run_dir=tmp_path / "run", on_interrupt="return", **options).interrupted
    result = hybridppo.resume(tmp_path / "run", env=make, progress=False)
    for name, tensor in expected.agent.state()[0].items():
        assert torch.equal(result.agent.state()[0][name], tensor), name


class Spending(hybridppo.PPO):
    def rewards(self, rollout: Any) -> torch.Tensor:
        assert torch.equal(rollout.infos["cost"], 2.0 * rollout.rewards)
        return rollout.rewards - rollout.infos["cost"]


def test_metrics_of_a_state_are_infos() -> None:
    make = partial(Brax, Counting(0.9), 8, episode_length=5)
    options: dict[str, Any] = {"step_infos": ("cost",), "info_metrics": ("c*t",), "agent": Spending}
    result = hybridppo.train(make, total_steps=64, seed=0, config=CONFIG, progress=False, **options)
    assert 2.0 < result.metrics["info/cost"] < 12.0


@pytest.mark.slow
def test_a_pendulum_of_brax_is_learned_to_be_held() -> None:
    env = Brax("inverted_pendulum", 64, episode_length=200, backend="positional")
    config = ppo_config(num_envs=64, num_steps=32, learning_rate=1e-3, gamma=0.97, normalize_observations=True)
    result = hybridppo.train(env, total_steps=100_000, seed=0, config=config, progress=False)
    assert result.metrics["episode_return_mean"] > 190.0


def test_playground_is_trained_in() -> None:
    pytest.importorskip("mujoco_playground")
    env = Playground("CartpoleBalance", 8, episode_length=20)
    result = hybridppo.train(env, total_steps=6 * 64, seed=0, config=CONFIG, progress=False)
    assert result.metrics["episode_length_mean"] == 20.0
    assert result.metrics["episodes"] == 16
