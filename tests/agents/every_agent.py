"""Every agent, small: the tests that all of them join. To add an agent, add a line to `AGENTS`."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from ppo_settings import ppo_config

from hybridppo import DDPGConfig, TD3Config

_OFF_POLICY: dict[str, Any] = {
    "num_envs": 4,
    "train_frequency": 5,
    "gradient_steps": 3,
    "batch_size": 8,
    "buffer_size": 120,
    "learning_starts": 20,
    "steps_per_iteration": 40,
    "n_steps": 3,
    "hidden_sizes": (8, 8),
    "learning_rate": 1e-2,
}


@dataclass(frozen=True)
class Case:
    """An agent's small configuration."""

    config: Any
    steps_per_iteration: int
    bad: dict[str, Any]
    """Configuration fields that make it diverge."""
    needs: str
    """A tensor of its checkpoints that changes with every update."""

    def with_(self, **fields: Any) -> "Case":
        return replace(self, config=replace(self.config, **fields))


AGENTS: dict[str, Case] = {
    "ppo": Case(
        ppo_config(num_envs=4, num_steps=10, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8)),
        40,
        {"learning_rate": 1e30},
        "optimizer.step",
    ),
    "ddpg": Case(DDPGConfig(**_OFF_POLICY), 40, {"learning_rate": 1e30}, "optimizer.step_critic"),
    "ddpg, one step": Case(
        DDPGConfig(**{**_OFF_POLICY, "gradient_steps": None, "n_steps": 1}),
        40,
        {"learning_rate": 1e30},
        "optimizer.step_critic",
    ),
    "td3": Case(TD3Config(**_OFF_POLICY), 40, {"learning_rate": 1e30}, "optimizer.step_critic"),
    "td3, on the host": Case(
        TD3Config(**{**_OFF_POLICY, "buffer_on": "host", "gradient_steps": 1}),
        40,
        {"learning_rate": 1e30},
        "optimizer.step_critic",
    ),
}
VARIANTS = ("ddpg, one step", "td3, on the host")
"""Agents that resemble others; if a test takes long, it is run with them by `make extras`."""
ENV = "Pendulum-v1"
"""An environment that every agent learns."""


def every(*, is_long: bool = False) -> list[Any]:
    """A test case for each agent."""
    return [pytest.param(name, marks=marks_of(name, is_long=is_long)) for name in AGENTS]


def marks_of(name: str, *, is_long: bool) -> list[pytest.MarkDecorator]:
    """The marks of an agent's tests, for tests that may take long."""
    return [pytest.mark.extras] if is_long and name in VARIANTS else []
