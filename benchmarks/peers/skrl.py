"""skrl."""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import (
    CLIP_RANGE,
    ENTROPY_COEF,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    Case,
    Mark,
    work_done,
)

from peers import network


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of skrl on gymnasium's own vectorised environments: learning is what its `update` does, sampling the rest.

    Rows that environments spend on a reset count as steps here, in its favour: it trains on them like on others.
    """
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    environments = wrap_env(gym.make_vec(case.env_id, num_envs=case.num_envs), verbose=False)
    actions = environments.action_space
    is_discrete = isinstance(actions, gym.spaces.Discrete)
    seen = environments.observation_space
    spaces: dict[str, Any] = {"observation_space": seen, "action_space": actions, "device": "cpu"}

    def rows(inputs: dict[str, Any]) -> torch.Tensor:
        """Observations, which it gives to models flat."""
        found: torch.Tensor = inputs["observations"]
        return found.reshape(-1, *seen.shape)

    class Discrete(CategoricalMixin, Model):
        """Logits of the actions."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            CategoricalMixin.__init__(self)
            self.net = network(case, seen, self.num_actions)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(rows(inputs)), {}

    class Continuous(GaussianMixin, Model):
        """The mean of the actions, and their standard deviation, which no observation changes."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net = network(case, seen, self.num_actions)
            self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(rows(inputs)), {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):
        """A value."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = network(case, seen, 1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(rows(inputs)), {}

    marks: list[Mark] = []

    class Marked(PPO):
        """Notes when updates begin and end."""

        ended = 0.0

        def update(self, *, timestep: int, timesteps: int) -> None:
            begun = time.perf_counter()
            super().update(timestep=timestep, timesteps=timesteps)
            now = time.perf_counter()
            marks.append(Mark(now, (timestep + 1) * case.num_envs, begun - self.ended, now - begun))
            self.ended = now

    agent = Marked(
        models={"policy": Discrete() if is_discrete else Continuous(), "value": Value()},
        memory=RandomMemory(memory_size=case.num_steps, num_envs=case.num_envs, device="cpu"),
        **spaces,
        cfg={
            "rollouts": case.num_steps,
            "learning_epochs": case.num_epochs,
            "mini_batches": case.num_minibatches,
            "discount_factor": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "learning_rate": LEARNING_RATE,
            "grad_norm_clip": MAX_GRAD_NORM,
            "ratio_clip": CLIP_RANGE,
            "value_clip": 0.0,
            "entropy_loss_scale": ENTROPY_COEF,
            "value_loss_scale": VALUE_COEF / 2,  # its value loss lacks the half
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    timesteps = (case.warmup + case.iterations) * case.num_steps
    settings = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=environments, agents=agent, cfg=settings).train()
    return work_done(marks, case)
