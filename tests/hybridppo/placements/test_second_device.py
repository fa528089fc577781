"""Everything that learns, under every placement, on a device whose tensors the CPU cannot reach (second_device.py).

    pytest tests/hybridppo/placements/test_second_device.py

Results are the CPU's bit for bit, and what is left on the wrong side is an error. A new placement, agent or kind of
observation or action joins by a line in `PLACEMENTS` or `WORKS`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from toy_environments import Catch, HighestAllowed, ScriptedEnv

import hybridppo
from hybridppo import Migrating, Mirrored, PPOConfig, SingleDevice
from hybridppo.placements import acting
from hybridppo.placements.base import Placement

PLACEMENTS: dict[str, Callable[[str, str], Placement]] = {
    "single": lambda here, there: SingleDevice(there),
    "migrating": lambda here, there: Migrating(here, there, force_copy=True),
    "migrating, sampling there": lambda here, there: Migrating(there, here, force_copy=True),
    "mirrored": lambda here, there: Mirrored(here, there, force_copy=True, verify=True),
    "mirrored, sampling there": lambda here, there: Mirrored(there, here, force_copy=True, verify=True),
    "mirrored on one": lambda here, there: Mirrored(there, there, force_copy=True),
    "every third": lambda here, there: Mirrored(here, there, force_copy=True, publish_every=3),
    "overlapping": lambda here, there: Mirrored(here, there, max_lag=1),
    "overlapping, sampling there": lambda here, there: Mirrored(there, here, max_lag=1),
}
"""By the CPU's name and the second device's. With the CPU as both they give what the second device must give."""

SMALL = PPOConfig(
    num_envs=2, num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-2, fast_updates=False
)


@dataclass(frozen=True)
class Work:
    """What is learned, and how."""

    env: Any
    config: PPOConfig = SMALL
    options: dict[str, Any] = field(default_factory=dict)


WORKS = {
    "discrete actions": Work("CartPole-v1"),
    "Gaussian actions": Work("Pendulum-v1"),
    "images": Work(Catch),
    "masks": Work(HighestAllowed, options={"action_masks": True}),
    "whole episodes": Work(
        lambda: HighestAllowed(observation_space=gym.spaces.Box(0.0, 1.0, (2,))),
        replace(SMALL, num_envs=1, episodes_per_rollout=2),
        {"action_masks": True},
    ),
    "final observations": Work(lambda: ScriptedEnv(((3, "truncated"), (5, "terminated")))),
    "other settings": Work(
        "CartPole-v1",
        replace(
            SMALL, critic_learning_rate=1e-3, anneal_clip_range=True, clip_range_vf=None, target_kl=1e-3,
            normalize_advantage=False, activation="relu",
        ),
    ),
}  # fmt: skip
ITERATIONS = 4


def train(work: Work, placement: Placement, **options: Any) -> Any:
    """A short run by turns, in this process and thread, and its metrics by iteration but for times and crossings."""
    history: list[Any] = []
    arguments = {"total_steps": 4 * 16, "vectorization": "sync", "num_workers": 0, **work.options, **options}
    result = hybridppo.train(
        work.env,
        seed=3,
        placement=placement,
        config=work.config,
        progress=False,
        on_iteration=lambda metrics: history.append(
            {k: v for k, v in metrics.items() if "second" not in k and k not in ("publishes", "bytes_copied")}
        ),
        **arguments,
    )
    return result, history


def state_of(agent: Any) -> dict[str, Tensor]:
    """Parameters, buffers and moments, on the CPU."""
    return {name: tensor.detach().cpu() for name, tensor in agent.state()[0].items()}


def assert_same(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), name


@pytest.fixture(autouse=True)
def _acting_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's actors round otherwise than torch's, and there are none on the second device."""
    monkeypatch.setattr(acting, "numpy_form", lambda network: None)


@cache
def on_cpu(work: str, placement: str, **options: Any) -> Any:
    return train(WORKS[work], PLACEMENTS[placement]("cpu", "cpu"), **options)


# The result


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("work", WORKS)
def test_training_and_evaluation_give_what_they_give_on_the_cpu(work: str, placement: str, second_device: str) -> None:
    made = PLACEMENTS[placement]("cpu", second_device)
    result, history = train(WORKS[work], made, evaluation_episodes=2)
    expected, expected_history = on_cpu(work, placement, evaluation_episodes=2)
    assert result.agent.parameters.values.device == made.learning_device
    assert_same(state_of(result.agent), state_of(expected.agent))
    np.testing.assert_equal(history, expected_history)  # until an episode has ended, its mean is not a number
    assert result.evaluation == expected.evaluation
