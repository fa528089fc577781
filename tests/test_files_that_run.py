"""A reader passes through few files: from `train` to the first step, in an iteration, and in an update."""

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import hybridppo
from hybridppo import PPO, PPOConfig
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss

LIBRARY = tuple(
    str(Path(hybridppo.__file__).resolve().parents[1] / name) for name in ("hybridppo", "agents", "runners")
)
MOST = {"start": 64, "iteration": 28, "update": 12}
"""Files of the library of which a function is called."""
MOST_FRAMES = 12
"""Calls between the user's call of `train` and the user's loss, in any file."""


class Files:
    """The files of the library of which a function is called while it is active, in this thread."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def start(self) -> None:
        self.codes.clear()
        sys.setprofile(self._called)

    def stop(self) -> set[str]:
        sys.setprofile(None)
        return {
            path for path in (str(Path(code.co_filename).resolve()) for code in self.codes) if path.startswith(LIBRARY)
        }

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if (
            event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        ):  # a function, not the body of a class or file
            self.codes.add(frame.f_code)


@pytest.fixture
def files() -> Any:
    found = Files()
    yield found
    sys.setprofile(None)


CONFIG = PPOConfig(num_steps=32, num_minibatches=2)


def test_from_train_to_the_first_step(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    step = CartPoleVectorEnv.step

    def watched(env: CartPoleVectorEnv, actions: Any) -> Any:
        seen.append(files.stop())
        return step(env, actions)

    monkeypatch.setattr(CartPoleVectorEnv, "step", watched)
    files.start()
    hybridppo.train(
        "CartPole-v1", total_steps=64, placement="cpu", config=CONFIG, seed=0, run_dir=tmp_path / "run", progress=False
    )
    assert len(seen[0]) <= MOST["start"], sorted(seen[0])


def test_in_an_iteration(files: Files) -> None:
    ended: list[int] = []
    seen: list[set[str]] = []

    def on_iteration(metrics: Any) -> None:
        ended.append(1)
        if len(ended) == 2:
            files.start()
        elif len(ended) == 3:
            seen.append(files.stop())

    hybridppo.train(
        "CartPole-v1",
        total_steps=1024,
        placement="cpu",
        config=CONFIG,
        seed=0,
        progress=False,
        on_iteration=on_iteration,
    )
    assert len(seen[0]) <= MOST["iteration"], sorted(seen[0])


def test_in_an_update(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    update = PPO.update

    def watched(agent: PPO, rollout: Any) -> Any:
        files.start()
        try:
            return update(agent, rollout)
        finally:
            seen.append(files.stop())

    monkeypatch.setattr(PPO, "update", watched)
    hybridppo.train("CartPole-v1", total_steps=1024, placement="cpu", config=CONFIG, seed=0, progress=False)
    assert len(seen[2]) <= MOST["update"], sorted(seen[2])


@pytest.mark.parametrize("fast_updates", [True, False])
def test_a_debugger_passes_through_few_frames_from_train_to_a_loss(fast_updates: bool) -> None:
    depths: list[int] = []

    def depth() -> int:
        return len(inspect.stack(context=0))

    def mine(inputs: LossInputs, config: PPOConfig, clip_range: Any) -> Loss:
        depths.append(depth())
        return ppo_loss(inputs, config, clip_range)

    config = replace(CONFIG, num_epochs=1, fast_updates=fast_updates)
    hybridppo.train("CartPole-v1", total_steps=64, placement="cpu", config=config, loss=mine, seed=0, progress=False)
    assert min(depths) - depth() - 1 <= MOST_FRAMES
