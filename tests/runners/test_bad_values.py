"""An environment's values are checked against its spaces at every step, not only at the first."""

import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from toy_agents import FromOneToTwo, TakingTurns, Unlike
from toy_environments import FaultyEnv

import hybridppo
from hybridppo import EnvError
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.system.seeds import seed_of

SMALL = ppo_config(num_envs=3, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
EPISODES = ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
SPACE = Dict(camera=Box(0, 255, (3, 3, 1), np.uint8), room=Discrete(25), speed=Tuple((Box(-1.0, 1.0, (2,)),)))
WAYS: dict[str, dict[str, Any]] = {
    "in turn": {},
    "workers": {"num_workers": 2},
    "whole episodes": {"config": EPISODES},
}
SECOND_SEED = seed_of(0, "environments") + 1
"""Seed of the reset of environment 1 in a training with seed 0, or of its second episode."""
every_way = pytest.mark.parametrize("way", WAYS)


def train(env: Any, **options: Any) -> hybridppo.TrainResult:
    return hybridppo.train(
        env, **{"total_steps": 100, "seed": 0, "placement": "cpu", "progress": False, "config": SMALL} | options
    )


def good(**changes: Any) -> dict[str, Any]:
    speed = (np.array([0.5, -0.5], np.float32),)
    return {"camera": np.zeros((3, 3, 1), np.uint8), "room": 3, "speed": speed, **changes}


def make(step: int, observation: Any, usual: Any = None, space: gym.Space = SPACE) -> FaultyEnv:
    """All is well except for the observation of one step, in one environment's episodes or in one of many."""

    def fault(env: FaultyEnv, result: Any) -> Any:
        return (observation, *result[1:]) if env.seed == SECOND_SEED and env.episode_steps == step else result

    return FaultyEnv(fault, observation_space=space, good=good() if usual is None else usual)


@pytest.mark.parametrize(
    ("way", "room"),
    [("in turn", 1_000_000), ("in turn", -1), ("workers", -1), ("whole episodes", 25)],
)
def test_a_choice_that_there_is_not(way: str, room: int) -> None:
    words = rf"environment [01] .*step 7.* its observation is {room}, which is not one of its space, Discrete\(25\)"
    with pytest.raises(EnvError, match=words):
        train(partial(make, 7, room, usual=3, space=Discrete(25)), **WAYS[way])
    words = rf"environment [01] .*step 7.* its observation\['room'\] is {room}, which is not one of its space"
    with pytest.raises(EnvError, match=words):
        train(partial(make, 7, good(room=room)), **WAYS[way])


@every_way
def test_a_number_that_is_not_finite_is_named_by_key(way: str) -> None:
    bad = good(speed=(np.array([0.5, np.nan], np.float32),))
    with pytest.raises(EnvError, match=r"environment [01].*\['speed'\]\[0\]\[1\] is nan"):
        train(partial(make, 7, bad), **WAYS[way])


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_that_the_user_made(mode: AutoresetMode) -> None:
    def vector(observation: Any) -> SyncVectorEnv:
        return SyncVectorEnv([partial(make, 7, observation)] * 3, autoreset_mode=mode)

    for bad, words in (
        (
            good(room=30),
            r"step 7: environment 1 of the vector: its observation\['room'\] is 30, which is not one of its space",
        ),
        (
            good(speed=(np.array([np.inf, 0.0]),)),
            r"step 7: the observation of environment 1: .*\['speed'\]\[0\]\[0\] is",
        ),
    ):
        with pytest.raises(EnvError, match=words):
            train(partial(vector, bad))


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (good(camera=np.zeros((3, 4, 1), np.uint8)), r"its observation\['camera'\] is of shape \(3, 4, 1\)"),
        ({"room": 3}, r"its observation has the parts \['room'\], and its space \['camera', 'room', 'speed'\]"),
        (3, "its observation must be a dict"),
        (None, "its observation must be a dict"),
    ],
)
@pytest.mark.parametrize("step", [1, 7])
def test_what_is_not_of_its_space(observation: Any, words: str, step: int) -> None:
    with pytest.raises(EnvError, match=words):
        train(partial(make, step, observation))


@pytest.mark.parametrize(
    "bad", [good(room=30), good(speed=(np.array([np.nan, 0.0]),)), 3], ids=["room", "nan", "no dict"]
)
def test_restarted_it_goes_on(bad: Any) -> None:
    result = train(partial(make, 7, bad), on_env_error="restart", total_steps=150)
    assert result.metrics["env_restarts"] > 0


@pytest.mark.parametrize("way", ["in turn", "workers", "whole episodes"])
def test_a_choice_in_an_array_is_cast_at_any_step(way: str) -> None:
    plain = train(partial(make, 7, 3, usual=3, space=Discrete(25)), **WAYS[way])
    cast = train(partial(make, 7, np.array([3]), usual=3, space=Discrete(25)), **WAYS[way])
    assert (cast.agent.parameters.values == plain.agent.parameters.values).all()


@pytest.mark.parametrize("way", ["in turn", "whole episodes"])
def test_a_reward_in_an_array_later_on_is_cast_or_refused(way: str) -> None:
    def fault(env: FaultyEnv, result: Any) -> Any:
        return (result[0], np.array([1.0]), *result[2:]) if env.steps == 7 and env.episode_steps else result

    if np.lib.NumpyVersion(np.__version__) < "2.4.0":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, of what it will refuse
            train(partial(FaultyEnv, fault), **WAYS[way])
        return
    with pytest.raises(EnvError, match=r"environment 0 .* step 7"):
        train(partial(FaultyEnv, fault), **WAYS[way])


@pytest.mark.parametrize("way", ["in turn", "workers", "whole episodes"])
@pytest.mark.parametrize(
    ("space", "usual", "bad", "name"),
    [
        (Box(-1.0, 1.0, (2,)), (0.5, 0.5), np.array([0.0, 300.0], np.float32), r"observation\[1\]"),
        (SPACE, good(), good(speed=(np.array([300.0, 0.0], np.float32),)), r"observation\['speed'\]\[0\]\[0\]"),
    ],
    ids=["box", "part"],
)
def test_numbers_out_of_bounds_are_warned_of_once(
    way: str, space: gym.Space, usual: Any, bad: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(partial(make, 7, bad, usual, space), total_steps=300, **WAYS[way])
    warnings = [record.getMessage() for record in caplog.records if "bounds" in record.getMessage()]
    assert len(warnings) == 1
    assert pytest.approx(300.0) == float(warnings[0].split(" was ")[1].split(",")[0])
    assert re.search(name, warnings[0])


@pytest.mark.parametrize("step", [0, 1], ids=["first reset", "first step"])
@pytest.mark.parametrize(
    ("space", "value"),
    [(Box(0.0, 1.0, (1,)), 900.0), (Box(-3e38, 3e38, (1,)), 3.3e38), (Box(2, 12, (1,), np.int64), 1)],
    ids=["floats", "wide", "whole"],
)
def test_out_of_bounds_at_first_is_warned_of_too(
    space: Box, value: float, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    usual = np.full(1, 0.5 * (float(space.low[0]) + float(space.high[0])), space.dtype)
    with np.errstate(over="ignore"):  # a network multiplies the widest by more than 1
        train(partial(make, step, np.array([value], space.dtype), usual=usual, space=space))
    warnings = [record.getMessage() for record in caplog.records if "bounds" in record.getMessage()]
    assert len(warnings) == 1


def outside() -> FaultyEnv:
    return FaultyEnv(lambda env, result: result, observation_space=Box(0.0, 1.0, (1,)), good=np.full(1, 9.0))


class BatchedCartPole(TorchCartPole):
    single_observation_space = Box(5.0, 6.0, (4,))


def warnings_of_bounds(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "outside of the bounds" in record.getMessage()]
    caplog.clear()
    return found


def test_observations_far_out_of_bounds_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = train(outside, run_dir=tmp_path / "run")
    assert len(warnings_of_bounds(caplog)) == 1
    assert hybridppo.resume(tmp_path / "run", total_steps=200, env=outside, progress=False).metrics["env_steps"] >= 200
    assert len(warnings_of_bounds(caplog)) == 1
    hybridppo.evaluate_agent(result.agent, outside, episodes=2, progress=False)
    assert len(warnings_of_bounds(caplog)) == 1
    train(lambda: SyncVectorEnv([outside] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    assert len(warnings_of_bounds(caplog)) == 1


def test_images_out_of_the_bounds_of_their_space_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    image, bright = Box(0, 100, (8, 8, 1), np.uint8), np.full((8, 8, 1), 200, np.uint8)
    for space, good, name in (
        (image, bright, ""),
        (Dict(camera=image, speed=Box(-1.0, 1.0, (1,))), {"camera": bright, "speed": [0.0]}, "['camera']"),
    ):
        train(partial(FaultyEnv, lambda env, result: result, observation_space=space, good=good), total_steps=200)
        (warning,) = warnings_of_bounds(caplog)
        assert warning.startswith(f"observation{name} was 200, outside of the bounds of its space, 0 to 100")


class Narrow(Unlike):
    """Pointers observe more than their space says."""

    def __init__(self) -> None:
        super().__init__()
        self._pointers = Box(-0.1, 0.1, (6,), np.float32)


def test_agents_with_spaces_of_their_own_and_batched_environments_are_warned_of_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(Narrow, total_steps=300, config={"sign": SMALL, "pointer": SMALL})
    (warning,) = warnings_of_bounds(caplog)
    assert re.match(r"agent 'pointer_0': observation\[0\] was -?0.*, -0.1.* to 0.1", warning)
    assert "agent 'pointer_0': observation[0] was" in str(hybridppo.check_env(Narrow, steps=50))
    train(partial(BatchedCartPole, 3), total_steps=200)
    (warning,) = warnings_of_bounds(caplog)
    assert "outside of the bounds of its space, 5.0 to 6.0" in warning


def test_within_the_bounds_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    train("CartPole-v1", total_steps=500)
    train(partial(make, 10**6, good()))
    assert [record for record in caplog.records if "bounds" in record.getMessage()] == []


def test_of_agents_that_are_absent_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    train(FromOneToTwo, total_steps=300, **WAYS["workers"])
    train(FromOneToTwo, total_steps=300)
    train(lambda: TakingTurns(FromOneToTwo()), total_steps=300)
    assert [record for record in caplog.records if "bounds" in record.getMessage()] == []
