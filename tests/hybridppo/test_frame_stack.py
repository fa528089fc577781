"""Stacks whose frames are stored once: the bits of stacks that an environment builds itself, wherever sampled."""

import json
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import assert_same_everywhere
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from stop_after import StopAfter
from toy_environments import IdentityBox, IdentityDiscrete

import hybridppo
from hybridppo import ConfigurationError, EnvError, Mirrored, PPOConfig, SingleDevice
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.spaces.frames import StackedFrames
from hybridppo.spaces.serialization import space_from_json, space_to_json

FRAMES = 4
SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-2)
STEPS = 64 * 4

SPACES: dict[str, Box] = {
    "vector": Box(-1.0, 1.0, (2,), np.float32),
    "matrix": Box(-1.0, 1.0, (2, 3), np.float64),
    "image": Box(0, 255, (9, 10, 2), np.uint8),
    "image, channels first": Box(0, 255, (2, 10, 9), np.uint8),
    "image without channels": Box(0, 255, (9, 10), np.uint8),
}
"""Kinds of frames. To add one, add a line."""
every_space = pytest.mark.parametrize("name", SPACES)
SOME = pytest.mark.parametrize("name", only_by_default(("vector", "image"), SPACES, pytest.mark.slow))


class Moving(gym.Env[Any, Any]):
    """Frames at random; episodes of one to nine steps, cut short or ended; rewards for what was seen two steps before.

    Args:
        space: of a frame.
        fails: in which step of the environment's life it raises; never, if None.
    """

    def __init__(self, space: Box, fails: int | None = None) -> None:
        self.observation_space, self.action_space = space, Discrete(2)
        self._fails, self._life = fails, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step, self._seen = 0, []
        self._length, self._is_cut = int(self.np_random.integers(1, 10)), bool(self.np_random.integers(2))
        return self._frame(), {}

    def step(self, action: Any) -> Any:
        self._life += 1
        if self._life == self._fails:
            raise RuntimeError("it has failed")
        self._step += 1
        reward = float(action == (self._seen[max(0, len(self._seen) - 3)] > 0.5))
        has_ended = self._step == self._length
        return self._frame(), reward, has_ended and not self._is_cut, has_ended and self._is_cut, {}

    def _frame(self) -> Any:
        low, high = self.observation_space.low, self.observation_space.high
        share = self.np_random.random(self.observation_space.shape)
        self._seen.append(float(share.flat[0]))
        return (low + share * (high - low)).astype(self.observation_space.dtype)


class Own(gym.Wrapper[Any, Any, Any, Any]):
    """The stacks that an environment would build itself, in a plain Box: the library must equal them."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        low, high = (
            self._joined([bound] * FRAMES) for bound in (env.observation_space.low, env.observation_space.high)
        )
        self.observation_space = Box(low, high, dtype=env.observation_space.dtype)
        self._frames: deque[Any] = deque(maxlen=FRAMES)

    def reset(self, **options: Any) -> Any:
        frame, info = self.env.reset(**options)
        self._frames.extend([frame] * FRAMES)
        return self._joined([*self._frames]), info

    def step(self, action: Any) -> Any:
        frame, *others = self.env.step(action)
        self._frames.append(frame)
        return (self._joined([*self._frames]), *others)

    def _joined(self, frames: list[Any]) -> Any:
        if frames[0].dtype == np.uint8 and frames[0].ndim == 3:
            return np.concatenate(frames, axis=0 if frames[0].shape[0] < frames[0].shape[2] else 2)
        return np.stack(frames)


def own(space: Box) -> gym.Env[Any, Any]:
    return Own(Moving(space))


def train(env: Any, config: PPOConfig = SMALL, **options: Any) -> hybridppo.TrainResult:
    arguments: dict[str, Any] = {"total_steps": STEPS, "placement": SingleDevice("cpu"), "seed": 0, "progress": False}
    return hybridppo.train(env, config=config, **{**arguments, **options})


def stacking(name: str, config: PPOConfig = SMALL, **options: Any) -> hybridppo.TrainResult:
    return train(partial(Moving, SPACES[name]), config, frame_stack=FRAMES, **options)


OVERLAP: Callable[[], Any] = partial(Mirrored, "cpu", "cpu", max_lag=1)


@every_space
def test_the_bits_are_those_of_stacks_that_are_stored_as_they_are(name: str) -> None:
    """Within episodes, at their starts and ends, across rollouts, and where they are bootstrapped."""
    reference = train(partial(own, SPACES[name]))
    found = stacking(name)
    assert torch.equal(values_of(found), values_of(reference))
    assert found.metrics["episodes"] == reference.metrics["episodes"] > STEPS // 10
    if name != "vector":
        return
    whole = replace(SMALL, num_envs=1, episodes_per_rollout=5)
    by_episodes = values_of(stacking(name, whole)), values_of(train(partial(own, SPACES[name]), whole))
    torch.testing.assert_close(*by_episodes, rtol=0.0, atol=1e-5)  # the critic passes over a row more, at the end
    overlapping = stacking(name, placement=OVERLAP())
    assert torch.equal(values_of(overlapping), values_of(train(partial(own, SPACES[name]), placement=OVERLAP())))


@SOME
def test_who_samples_and_where_changes_nothing(name: str) -> None:
    config = replace(SMALL, normalize_observations=True, normalize_rewards=True)
    assert_same_everywhere(partial(stacking, name, config), stacking(name, config))
    overlapping = [values_of(stacking(name, config, placement=OVERLAP(), num_workers=number)) for number in (0, 2)]
    assert torch.equal(*overlapping)


@pytest.mark.parametrize(
    ("name", "overlaps"), only_by_default(("vector, False", "image, True"), product(SPACES, (False, True)))
)
def test_stopped_in_the_midst_of_a_rollout_it_goes_on_exactly(name: str, overlaps: bool, tmp_path: Path) -> None:
    config = replace(SMALL, normalize_observations=True)

    def placement() -> Any:
        return OVERLAP() if overlaps else SingleDevice("cpu")

    expected = stacking(name, config, placement=placement())
    env, run = partial(Stopping, SPACES[name], tmp_path / "stopped"), tmp_path / "run"
    options = {"frame_stack": FRAMES, "run_dir": run, "on_interrupt": "return", "placement": placement()}
    options["num_workers"] = 0  # so that it is this process that steps
    train(env, config, **options)
    steps = sorted((run / "checkpoints").iterdir())[-1].name
    assert 0 < int(steps) < STEPS
    assert overlaps or int(steps) % 64
    again = hybridppo.resume(run, env=env, progress=False)
    assert torch.equal(values_of(again), values_of(expected))


class Stopping(Moving):
    """Asks the training to stop, once, in its 26th step."""

    def __init__(self, space: Box, mark: Path) -> None:
        super().__init__(space)
        self._mark = mark

    def step(self, action: Any) -> Any:
        found = super().step(action)
        if self._life == 26 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return found


@pytest.mark.parametrize("name", ["vector", "image"])
def test_an_environment_that_is_restarted_begins_another_stack(name: str) -> None:
    restarted = {"on_env_error": "restart"}
    found = train(partial(Moving, SPACES[name], 23), frame_stack=FRAMES, **restarted)
    expected = train(lambda: Own(Moving(SPACES[name], 23)), **restarted)
    assert found.metrics["env_restarts"] == expected.metrics["env_restarts"] > 0
    assert torch.equal(values_of(found), values_of(expected))


@SOME
def test_what_is_learned_from_is_what_was_acted_on(name: str) -> None:
    """Ratios are 1 while nothing is learned, even if frames are normalized first."""
    config = replace(SMALL, learning_rate=1e-12, normalize_observations=True, num_epochs=1)
    told: list[float] = []
    stacking(name, config, on_iteration=lambda metrics: told.append(metrics["approx_kl"]))
    assert len(told) == 4
    assert max(map(abs, told)) < 1e-9


def test_frames_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[int, ...]] = []
    update = hybridppo.PPO.update

    def seen(agent: hybridppo.PPO, rollout: Any) -> Any:
        assert rollout.history is not None
        stored.extend((tuple(rollout.observations.shape), tuple(rollout.history.shape)))
        return update(agent, rollout)

    monkeypatch.setattr(hybridppo.PPO, "update", seen)
    stacking("image", replace(SMALL, num_steps=32, num_minibatches=8), total_steps=128)
    assert stored == [(33, 4, 9, 10, 2), (3, 4, 9, 10, 2)]


def test_gradients_by_hand_and_by_autograd_agree() -> None:
    results = [stacking("vector", replace(SMALL, fast_updates=fast), total_steps=128) for fast in (True, False)]
    assert [type(result.agent.loop().backend) for result in results] == [NumpyBackend, Backend]
    torch.testing.assert_close(values_of(results[0]), values_of(results[1]), rtol=0.0, atol=2e-4)


@every_space
def test_a_stack_is_the_last_observations_and_at_first_one_over_and_over(name: str) -> None:
    env, plain = hybridppo.FrameStack(Moving(SPACES[name]), FRAMES), Own(Moving(SPACES[name]))
    for seed in range(3):
        observation, expected = env.reset(seed=seed)[0], plain.reset(seed=seed)[0]
        has_ended = False
        while not has_ended:
            np.testing.assert_array_equal(observation, expected)
            assert env.observation_space.contains(observation)
            observation, _, terminated, truncated, _ = env.step(0)
            expected = plain.step(0)[0]
            has_ended = terminated or truncated
    space = env.observation_space
    assert space_from_json(space_to_json(space)) == space
    assert space != StackedFrames(SPACES[name], FRAMES + 1)


@pytest.mark.parametrize("name", only_by_default(("image",), SPACES))
def test_an_agent_acts_on_stacks_once_loaded(name: str, tmp_path: Path) -> None:
    result = stacking(
        name, run_dir=tmp_path / "run", evaluation_episodes=4, evaluate_every=128, episodes_per_evaluation=2
    )
    assert result.evaluation is not None
    agent = hybridppo.load(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="num_frames must be a whole number of at least 1, got 0"):
        hybridppo.FrameStack(Moving(SPACES[name]), 0)
    env = hybridppo.FrameStack(Moving(SPACES[name]), FRAMES)
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(agent.act(observation))
    with pytest.raises(EnvError, match=r"acts on stacks of 4 observations.*hybridppo\.FrameStack\(env, 4\)"):
        agent.act(Moving(SPACES[name]).reset()[0])
    options = {"episodes": 4, "seed": 1, "progress": False}
    by_itself = hybridppo.evaluate_agent(agent, partial(Moving, SPACES[name]), **options)
    stacked_already = hybridppo.evaluate_agent(
        agent, lambda: hybridppo.FrameStack(Moving(SPACES[name]), FRAMES), **options
    )
    assert by_itself == stacked_already
    if name == "vector":
        exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz")
        assert exported.steps_checked == 1000


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_agent_of_a_vector_of_stacks_is_evaluated_in_such_a_vector(mode: AutoresetMode, tmp_path: Path) -> None:
    def vector() -> SyncVectorEnv:
        stacked = partial(hybridppo.FrameStack, Moving(SPACES["vector"]), FRAMES)
        return SyncVectorEnv([stacked], autoreset_mode=mode)

    run, options = tmp_path / "run", {"episodes": 1, "progress": False}
    result = train(vector, replace(SMALL, num_envs=1), run_dir=run, evaluation_episodes=3)
    assert result.evaluation is not None
    assert len(result.evaluation.returns) == 3
    alone = hybridppo.evaluate_agent(result.agent, partial(Moving, SPACES["vector"]), **options)
    assert hybridppo.evaluate(run, env=vector, **options).lengths == alone.lengths


@pytest.mark.extras
def test_auto_measures_it(tmp_path: Path) -> None:
    result = stacking(
        "vector", placement="auto", total_steps=64 * 2000, callbacks=[StopAfter(2)], run_dir=tmp_path / "run"
    )
    assert result.metrics["iteration"] == 2
    table = json.loads((tmp_path / "run" / "placements.json").read_text())
    assert table["trials"]


@pytest.mark.parametrize("shape", [(2, 5), (9, 1), (1, 1)])
def test_bytes_along_two_axes_that_are_too_few_for_an_image_are_stacked_as_numbers(shape: tuple[int, int]) -> None:
    found, expected = (
        train(partial(Moving, Box(0, 255, shape, dtype)), frame_stack=FRAMES) for dtype in (np.uint8, np.int64)
    )
    assert torch.equal(values_of(found), values_of(expected))
    space = StackedFrames(Box(0, 255, shape, np.uint8), FRAMES)
    assert space.shape == (FRAMES, *shape)
    assert space_from_json(space_to_json(space)) == space


def test_what_it_cannot_be_had_with_is_one_clear_error() -> None:
    moving = partial(Moving, SPACES["vector"])

    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([moving] * 4)

    def stacked_vector() -> SyncVectorEnv:
        stacks = partial(hybridppo.FrameStack, num_frames=FRAMES)
        return SyncVectorEnv([lambda: stacks(moving())] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)

    refused: list[tuple[Any, PPOConfig, dict[str, Any], type[Exception], str]] = [
        (moving, SMALL, {"frame_stack": 0}, ConfigurationError, "frame_stack must be"),
        (moving, SMALL, {"frame_stack": 65}, ConfigurationError, "frame_stack must be at most 64, got 65"),
        (moving, SMALL, {"action_masks": True}, ConfigurationError, "frame_stack=4 does not work with action_masks"),
        ("CartPole-v1", SMALL, {"vectorization": "compiled"}, ConfigurationError, "does not work with vectorization"),
        (moving, replace(SMALL, recurrent="gru"), {}, ConfigurationError, "recurrent='gru' does not work with stacks"),
        (moving, replace(SMALL, pool_size=2), {}, ConfigurationError, "pool_size=2 does not work with stacks"),
        (vector, SMALL, {}, ConfigurationError, "frame_stack=4 does not work with a .* that a function makes"),
        (IdentityDiscrete, SMALL, {}, EnvError, "frame_stack=4 stacks observations of a Box"),
        (
            partial(Moving, Box(0, 255, (2, 9, 1), np.uint8)),
            SMALL,
            {},
            EnvError,
            r"the observation space Box\(0, 255, \(2, 9, 1\), uint8\) is not supported: images need at least 3 pixels",
        ),
        (stacked_vector, SMALL, {"frame_stack": 1}, EnvError, "resets in the step after an episode's end"),
    ]
    for env, config, options, kind, message in refused:
        with pytest.raises(kind, match=message):
            train(env, config, **{"frame_stack": FRAMES, **options})
    with pytest.raises(EnvError, match="frame_stack=4 is for PPO"):
        hybridppo.train(
            IdentityBox, total_steps=64, config=hybridppo.TD3Config(), frame_stack=4, progress=False, placement="cpu"
        )
