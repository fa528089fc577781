"""Environments by the name of their package, as far as this needs no package."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from toy_environments import ScriptedEnv

import hybridppo
from hybridppo import ConfigurationError, EnvError
from hybridppo.environments.making import make_environments
from hybridppo.environments.packages import (
    ATARI,
    ENV_POOL,
    OTHERS,
    OneOfVector,
    make_env,
    package_of,
    to_send,
    truths_as_pixels,
    without_mission,
)
from hybridppo.spaces.observations import ObservationEncoder

SMALL = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
IDS = {
    "ALE/Pong-v5": "atari",
    "envpool/CartPole-v1": "envpool",
    "MinAtar/Breakout-v1": "minatar",
    "MiniGrid-Empty-5x5-v0": "minigrid",
    "BabyAI-GoToObj-v0": "minigrid",
}


@pytest.mark.parametrize("env_id", IDS)
def test_where_a_package_is_missing_the_error_names_the_extra(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = package_of(env_id)
    assert package is not None
    monkeypatch.setitem(sys.modules, package.module, None)  # as if it were not installed
    for registered in [name for name in gym.registry if name.startswith(package.prefixes)]:
        monkeypatch.delitem(gym.registry, registered)
    words = f"environment '{env_id}' needs {package.module}, which cannot .*install '\\.\\[{IDS[env_id]}\\]'"
    with pytest.raises(EnvError, match=words):
        hybridppo.train(env_id, total_steps=64, config=SMALL, progress=False)
    report = hybridppo.check_env(env_id)
    assert not report.is_usable
    assert f"install '.[{IDS[env_id]}]'" in str(report)


def test_no_package_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys; from hybridppo.environments import making, packages\n"
        "making.make_environments('CartPole-v1', 1); print([each.module for each in packages.PACKAGES "
        "if each.module in sys.modules] + [name for name in ('pettingzoo', 'torch') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("env", ["CartPole-v1", partial(gym.make, "CartPole-v1")])
def test_only_atari_games_have_lives(env: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"episodic_life=True .*Atari games"):
        make_environments(env, 2, episodic_life=True)


@pytest.mark.parametrize("option", ["clip_rewards", "episodic_life"])
@pytest.mark.parametrize("value", ["yes", 1])
def test_what_is_no_truth_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} must be True.* got {value!r}"):
        make_environments("CartPole-v1", 2, **{option: value})


@pytest.fixture
def own_id() -> Iterator[str]:
    """A user's environment whose name looks like those of a package."""
    gym.register("MiniGrid-Mine-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=50)
    yield "MiniGrid-Mine-v0"
    del gym.registry["MiniGrid-Mine-v0"]


def test_an_environment_of_the_script_is_sent_to_workers_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Mine", ScriptedEnv, raising=False)
    monkeypatch.setitem(gym.registry, "Mine-v0", gym.envs.registration.EnvSpec("Mine-v0", "__main__:Mine"))
    assert to_send("Mine-v0").entry_point is ScriptedEnv


def test_what_is_only_named_like_a_package_s_is_left_as_it_is(own_id: str) -> None:
    assert isinstance(to_send("CartPole-v1"), gym.envs.registration.EnvSpec)
    assert isinstance(to_send(own_id), gym.envs.registration.EnvSpec)
    assert make_env(own_id).observation_space == gym.make("CartPole-v1").observation_space
    options: dict[str, Any] = {"total_steps": 64, "seed": 0, "placement": "cpu", "config": SMALL, "progress": False}
    values = [hybridppo.train(own_id, num_workers=workers, **options).agent.parameters.values for workers in (0, 2)]
    assert values[0].equal(values[1])


class Tenfold(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return 10.0 * reward


@pytest.mark.parametrize(("num_workers", "episodes"), [(0, None), (2, None), (0, 3)])
def test_clipped_rewards_are_learned_from_and_returns_are_not_clipped(num_workers: int, episodes: int | None) -> None:
    def make() -> Any:
        return Tenfold(gym.make("CartPole-v1"))

    by_episodes = ppo_config(num_envs=1, episodes_per_rollout=episodes, num_epochs=1, hidden_sizes=(8,))
    config = SMALL if episodes is None else by_episodes
    options: dict[str, Any] = {"total_steps": 300, "seed": 0, "placement": "cpu", "config": config, "progress": False}
    clipped = hybridppo.train(make, clip_rewards=True, num_workers=num_workers, evaluation_episodes=2, **options)
    plain = hybridppo.train("CartPole-v1", vectorization="sync", **options)
    scaled = hybridppo.train(make, **options)
    # CartPole's rewards are 1: clipped, ten times as much is as much.
    values = [result.agent.parameters.values.detach() for result in (clipped, plain, scaled)]
    assert np.array_equal(*values[:2])
    assert not np.array_equal(values[0], values[2])
    assert clipped.metrics["episode_return_mean"] == pytest.approx(10 * plain.metrics["episode_return_mean"])
    assert clipped.evaluation is not None
    assert clipped.evaluation.returns == tuple(10.0 * length for length in clipped.evaluation.lengths)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_of_one_is_the_environment_in_it(mode: AutoresetMode) -> None:
    script = ((3, "truncated"), (5, "terminated"))
    env = OneOfVector(SyncVectorEnv([lambda: ScriptedEnv(script)], autoreset_mode=mode), mode)
    plain = ScriptedEnv(script)
    assert env.observation_space == plain.observation_space
    for episode in range(3):
        seed = 3 if episode == 0 else None
        np.testing.assert_array_equal(env.reset(seed=seed)[0], plain.reset(seed=seed)[0])
        has_ended = False
        while not has_ended:
            (seen, *others, _), (expected, *of_plain, _) = env.step(1), plain.step(1)
            np.testing.assert_array_equal(seen, expected)
            assert others == of_plain
            has_ended = others[1] or others[2]


class Counting(ScriptedEnv):
    """Every second step's info has its number."""

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return *result, {"number": self._step} if self._step % 2 else {}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_of_one_gives_the_infos_of_the_environment_in_it(mode: AutoresetMode) -> None:
    env = OneOfVector(SyncVectorEnv([lambda: Counting(((3, "truncated"),))], autoreset_mode=mode), mode)
    for _ in range(2):
        env.reset()
        assert [env.step(1)[4] for _ in range(3)] == [{"number": 1}, {}, {"number": 3}]


class Truths(gym.Env[Any, Any]):
    observation_space = Box(0, 1, (4, 4, 3), np.bool_)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 2, (4, 4, 3)).astype(np.bool_), {}

    def step(self, action: Any) -> Any:
        return self.np_random.integers(0, 2, (4, 4, 3)).astype(np.bool_), 1.0, False, True, {}


def test_truths_become_dark_and_bright_pixels() -> None:
    env = truths_as_pixels(Truths())
    pixels, truths = env.reset(seed=1)[0], Truths().reset(seed=1)[0]
    assert env.observation_space == Box(0, 255, (4, 4, 3), np.uint8)
    assert env.observation_space.contains(pixels)
    np.testing.assert_array_equal(pixels == 255, truths)
    np.testing.assert_array_equal(pixels == 0, ~truths)
    # And so they do for who acts on what the environment itself gives.
    np.testing.assert_array_equal(ObservationEncoder(env.observation_space)(truths[None])[0], pixels)


class Mission(gym.Env[Any, Any]):
    observation_space = Dict(image=Box(0, 255, (7, 7, 3), np.uint8), direction=Discrete(4), mission=Text(9))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"image": np.zeros((7, 7, 3), np.uint8), "direction": 1, "mission": "go"}, {}


def test_missions_are_left_out() -> None:
    env = without_mission(Mission())
    assert list(env.observation_space.spaces) == ["direction", "image"]
    assert env.observation_space.contains(env.reset()[0])
    assert env.observation_space["image"].dtype == np.float32  # codes of cells, which are no brightness


def test_a_function_of_pettingzoo_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)  # as if it were not installed
    with pytest.raises(EnvError, match=r"cannot be imported: ModuleNotFoundError: .*pip install '\.\[pettingzoo\]'"):
        make_environments("pettingzoo:env", 1)


def test_make_env_takes_ids_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"make_env takes an environment's id, got .*Mission.*call a function"):
        make_env(Mission)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"imports must name modules, .* got \['my_envs'\]"):
        make_env("CartPole-v1", imports=["my_envs"])  # type: ignore[arg-type]


def test_ids_that_gymnasium_knows_are_made_by_it() -> None:
    env = make_env("CartPole-v1")
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert package_of("CartPole-v1") is OTHERS
    assert package_of(f"{ATARI}Pong-v5") is not package_of(f"{ENV_POOL}Pong-v5")


def test_a_name_that_a_module_lacks_is_an_error_that_names_the_module() -> None:
    with pytest.raises(EnvError, match="'math:Nope' cannot be made: math has no function 'Nope', and registers no"):
        make_environments("math:Nope", 1)
