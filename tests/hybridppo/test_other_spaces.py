"""Every function that takes an agent and an environment refuses other spaces, and says what differs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from toy_agents import Matching

import hybridppo
from hybridppo import HybridPPOError

SMALL = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
QUIET: dict[str, Any] = {"placement": "cpu", "seed": 0, "progress": False, "total_steps": 16, "config": SMALL}


class Spaced(gym.Env[Any, Any]):
    """Episodes of four steps, in two spaces."""

    render_mode = "human"

    def __init__(self, observation: Any = None, action: Any = None) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,)) if observation is None else observation
        self.action_space = Discrete(2) if action is None else action
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {"action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        self._steps += 1
        row, info = np.zeros(self.observation_space.shape, np.float32), {"action_mask": np.ones(2, np.int8)}
        return row, 1.0, self._steps == 4, False, info

    def render(self) -> None:
        """Show nothing."""


OTHERS = {
    r"observation_space was Box\(-1.0, 1.0, \(2,\), float32\) and is Box\(-5.0, 5.0, \(2,\), float32\): if its": (
        partial(Spaced, Box(-5.0, 5.0, (2,)))
    ),
    r"action_space was Discrete\(2\) and is Discrete\(2, start=1\)": partial(Spaced, None, Discrete(2, start=1)),
    r"observation_space was .*\(2,\), float32\) and is .*\(3,\), float32\); action_space was": (
        partial(Spaced, Box(-1.0, 1.0, (3,)), Discrete(3))
    ),
}


def train(env: Any, **options: Any) -> hybridppo.TrainResult:
    return hybridppo.train(env, **QUIET | options)


def start_from_file(run: Path, env: Any) -> Any:
    file = hybridppo.load(run).save(run.parent / "agent.safetensors")
    return train(env, start_from=file)


USERS: dict[str, Callable[[Path, Any], Any]] = {
    "evaluate": lambda run, env: hybridppo.evaluate(run, env=env, episodes=1, progress=False),
    "evaluate_agent": lambda run, env: hybridppo.evaluate_agent(hybridppo.load(run), env, episodes=1, progress=False),
    "resume": lambda run, env: hybridppo.resume(run, env=env, progress=False),
    "play": lambda run, env: hybridppo.play(run, window=True, env=env),
    "start_from": lambda run, env: train(env, start_from=run),
    "start_from, a file": start_from_file,
    "an agent that there is": lambda run, env: train(env, agent=hybridppo.load(run), config=None),
}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spaces") / "run"
    train(Spaced, run_dir=path)
    return path


@pytest.mark.parametrize("user", USERS)
def test_an_environment_of_other_spaces_is_refused(user: str, run_dir: Path) -> None:
    USERS[user](run_dir, Spaced)
    for difference, other in OTHERS.items():
        with pytest.raises(HybridPPOError, match=f"not the one that was trained in: {difference}"):
            USERS[user](run_dir, other)


@pytest.mark.parametrize("user", ["play", "evaluate"])
def test_masks_do_not_hide_a_difference(user: str, tmp_path: Path) -> None:
    train(Spaced, action_masks=True, run_dir=tmp_path / "run")
    USERS[user](tmp_path / "run", Spaced)
    with pytest.raises(HybridPPOError, match="not the one that was trained in: observation_space was"):
        USERS[user](tmp_path / "run", partial(Spaced, Box(-5.0, 5.0, (2,))))


def test_agents_in_other_spaces_are_refused(tmp_path: Path) -> None:
    class Shown(Matching):
        render_mode = "human"

    train(Shown, run_dir=tmp_path / "run")
    hybridppo.play(tmp_path / "run", window=True, env=Shown)
    for user in (USERS["play"], USERS["evaluate"]):
        with pytest.raises(HybridPPOError, match=r"observation_space was Discrete\(4\) and is Discrete\(4, start=1\)"):
            user(tmp_path / "run", partial(Shown, space=Discrete(4, start=1)))


class ChangesItsMind:
    """Makes environments with other bounds after this many calls."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def __call__(self) -> Any:
        self._calls -= 1
        return Spaced() if self._calls >= 0 else Spaced(Box(-5.0, 5.0, (2,)))


@pytest.mark.parametrize("beside", [False, True])
def test_an_evaluation_during_training_is_in_the_same_spaces(beside: bool) -> None:
    with pytest.raises(HybridPPOError, match="not the one that was trained in: observation_space was"):
        train(ChangesItsMind(2), evaluate_every=8, evaluate_async=beside)


def test_spaces_that_read_alike_are_told_apart(run_dir: Path) -> None:
    low = -np.ones(2000, np.float32)
    first, second = Box(low, -low), Box(np.where(np.arange(2000) == 1000, -2.0, low).astype(np.float32), -low)
    agent = hybridppo.PPO(first, Discrete(2), SMALL, seed=0)
    with pytest.raises(HybridPPOError, match=r"observation_space was Box.* and is "):
        hybridppo.evaluate_agent(agent, partial(Spaced, second), episodes=1, progress=False)


def test_the_remedy_for_other_bounds_works(run_dir: Path) -> None:
    wide, space = OTHERS[next(iter(OTHERS))], hybridppo.load(run_dir).observation_space
    train(lambda: gym.wrappers.TransformObservation(wide(), lambda o: o, space), start_from=run_dir)
    with pytest.raises(HybridPPOError, match=r"\(docs/runs.md, other observations: copy what fits into a new agent\)"):
        train(partial(Spaced, Box(-1.0, 1.0, (3,))), start_from=run_dir)
