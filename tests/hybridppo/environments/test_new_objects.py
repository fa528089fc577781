"""A function that makes environments may not return one twice, neither the object nor in a new wrapper."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from ppo_settings import ppo_config
from toy_agents import Matching
from toy_environments import FaultyEnv, IdentityDiscrete

import hybridppo
from hybridppo import EnvError
from hybridppo.environments.making import make_environments

SMALL = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
TWICE = "returned the same .* object twice: let every call make a new one"


def train(env: Any, **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 32, "seed": 0, "placement": "cpu", "progress": False, "config": SMALL} | options
    return hybridppo.train(env, **options)


def vector_of(*envs: gym.Env[Any, Any]) -> SyncVectorEnv:
    return SyncVectorEnv([partial(lambda env: env, env) for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)


def once_in(made: Any) -> Callable[[], Any]:
    return lambda: made


class OnlyFirst:
    """Returns new environments up to some call, and then the last of them again and again."""

    def __init__(self, make: Callable[[], Any], calls: int) -> None:
        self._make, self._calls, self._last = make, calls, None

    def __call__(self) -> Any:
        self._calls -= 1
        if self._calls >= 0:
            self._last = self._make()
        return self._last


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "in a new wrapper"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"action_masks": True}, {"frame_stack": 2}], ids=str)
def test_one_environment_for_all_is_refused(wrapped: bool, options: dict[str, Any]) -> None:
    made = FaultyEnv(lambda env, result: result)
    with pytest.raises(EnvError, match=TWICE):
        train((lambda: TimeLimit(made, 5)) if wrapped else (lambda: made), **options)


def test_one_environment_of_several_agents_is_refused() -> None:
    made = Matching()
    with pytest.raises(EnvError, match=TWICE):
        train(lambda: made)


def test_a_registered_environment_that_is_always_the_same_is_refused() -> None:
    made = IdentityDiscrete()
    gym.register("AlwaysTheSame-v0", lambda: made)
    try:
        with pytest.raises(EnvError, match=TWICE):
            train("AlwaysTheSame-v0")
    finally:
        del gym.registry["AlwaysTheSame-v0"]


def test_a_vector_of_one_environment_is_refused() -> None:
    made = IdentityDiscrete()
    with pytest.raises(EnvError, match=TWICE):
        train(lambda: vector_of(made, made))


@pytest.mark.parametrize(
    "make",
    [
        lambda: vector_of(IdentityDiscrete(), IdentityDiscrete()),
        lambda: hybridppo.tensors.TorchCartPole(2),
    ],
    ids=["vector", "tensors"],
)
@pytest.mark.parametrize("options", [{"evaluate_every": 16}, {"evaluation_episodes": 2}], ids=str)
def test_an_evaluation_has_environments_of_its_own(make: Callable[[], Any], options: dict[str, Any]) -> None:
    train(make, **options)
    with pytest.raises(EnvError, match=TWICE):
        train(once_in(make()), **options)


def test_an_evaluation_of_an_agent_steps_no_environment_of_its_training() -> None:
    make = OnlyFirst(IdentityDiscrete, 2)
    agent = train(make).agent
    with pytest.raises(EnvError, match=TWICE):
        hybridppo.evaluate_agent(agent, make, episodes=2, progress=False)


def test_another_object_in_its_place_after_a_fault() -> None:
    def fail(env: FaultyEnv, result: Any) -> Any:
        if env.episode_steps == 3:
            raise ValueError("it fails")
        return result

    make = OnlyFirst(partial(FaultyEnv, fail), 2)
    with pytest.raises(EnvError, match=TWICE) as raised:
        train(make, on_env_error="restart")
    assert "failures in a row" not in str(raised.value)


class SameInWorkers:
    """Returns a new environment in each call; in processes other than the one that made this, always the same."""

    def __init__(self) -> None:
        self._home, self._made = os.getpid(), IdentityDiscrete()

    def __call__(self) -> Any:
        return IdentityDiscrete() if os.getpid() == self._home else self._made


def test_within_a_worker_process_all_are_new() -> None:
    config = ppo_config(num_envs=4, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    with pytest.raises(EnvError, match=TWICE):
        train(SameInWorkers(), config=config, num_workers=2)


def test_an_evaluation_beside_has_new_ones() -> None:
    with pytest.raises(EnvError, match=TWICE):
        train(SameInWorkers(), evaluate_every=16, evaluate_async=True)


def test_a_check_steps_new_ones() -> None:
    made = IdentityDiscrete()
    assert any("object twice" in str(finding) for finding in hybridppo.check_env(lambda: made, steps=50).findings)


def test_a_run_is_played_in_a_new_one(tmp_path: Path) -> None:
    class Shown(IdentityDiscrete):
        render_mode = "human"

    make = OnlyFirst(Shown, 2)
    train(make, run_dir=tmp_path / "run")
    with pytest.raises(EnvError, match=TWICE):
        hybridppo.play(tmp_path / "run", window=True, env=make)


def test_what_is_forgotten_may_have_the_same_place_in_memory() -> None:
    for _ in range(20):
        make_environments(IdentityDiscrete, 2).close()


def test_one_environment_is_enough_where_one_is_stepped() -> None:
    made = IdentityDiscrete()
    config = ppo_config(num_envs=1, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    train(lambda: made, config=config)
    with pytest.raises(EnvError, match=TWICE):
        train(lambda: made, config=config)


def test_a_function_may_take_what_the_library_makes_of_an_id(tmp_path: Path) -> None:
    def make() -> Any:
        return hybridppo.make_env("CartPole-v1")

    train(make, run_dir=tmp_path / "run", evaluation_episodes=1)
    assert hybridppo.check_env(make, steps=50).is_usable
