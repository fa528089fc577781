"""skrl."""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Stopwatch

from peers import network


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of skrl on gymnasium's vector environments: learning is the time in its `update`, sampling the rest.

    Rows that environments spend on a reset count as steps here, in its favor: it trains on them as on others.
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
    spaces: dict[str, Any] = {"observation_space": seen, "action_space": actions, "device": case.device}

    def rows(inputs: dict[str, Any]) -> torch.Tensor:
        """Observations, which skrl passes to models flattened, in their own shape."""
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
        """The mean of the actions, and a standard deviation that does not depend on the observation."""

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

    watch = Stopwatch(case)

    class Marked(PPO):
        """Notes when updates begin and end."""

        def update(self, *, timestep: int, timesteps: int) -> None:
            sampled = time.perf_counter()
            super().update(timestep=timestep, timesteps=timesteps)
            watch.mark(sampled, (timestep + 1) * case.num_envs)

    agent = Marked(
        models={"policy": Discrete() if is_discrete else Continuous(), "value": Value()},
        memory=RandomMemory(memory_size=case.num_steps, num_envs=case.num_envs, device=case.device),
        **spaces,
        cfg={
            "rollouts": case.num_steps,
            "learning_epochs": case.num_epochs,
            "mini_batches": case.num_minibatches,
            "discount_factor": case.gamma,
            "gae_lambda": case.gae_lambda,
            "learning_rate": case.learning_rate,
            "grad_norm_clip": case.max_grad_norm,
            "ratio_clip": case.clip_range,
            "value_clip": 0.0,
            "entropy_loss_scale": case.entropy_coef,
            "value_loss_scale": case.value_coef / 2,  # its value loss lacks the half
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    timesteps = (case.warmup + case.iterations) * case.num_steps
    settings = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=environments, agents=agent, cfg=settings).train()
    return watch.work_done()
