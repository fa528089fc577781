"""Workers that only step, with environments and an actor that sleep: how near a rollout comes to its longer half.

    python benchmarks/acting.py

The halves are the time of the steps of the busiest worker, and that of all calls of the actor.
"""

import statistics
import time
from functools import partial
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import torch
from torch import nn

from hybridppo import PPO, PPOConfig, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runners.assembly import make_sampler

CASES = (
    (2, 0, 2.0, 2.0), (2, 2, 2.0, 2.0), (4, 4, 2.0, 2.0), (4, 2, 2.0, 2.0), (1, 1, 5.0, 0.0), (16, 16, 5.0, 0.0),
)  # fmt: skip
"""Environments, workers, and the milliseconds of a step and of a call of the actor."""
STEPS, ROLLOUTS = 100, 5


class Sleeping(gym.Env[Any, Any]):
    """A step takes so many seconds and no work."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self._seconds, self._seen = seconds, np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode without end."""
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        time.sleep(self._seconds)
        return self._seen, 1.0, False, False, {}


class Network(nn.Module):
    """A linear network that sleeps; no form in NumPy is known for it."""

    def __init__(self, outputs: int, seconds: float) -> None:
        super().__init__()
        self.layer, self._seconds = nn.Linear(4, outputs), seconds

    def forward(self, rows: torch.Tensor) -> Any:
        """`[B, 4] -> [B, outputs]`."""
        time.sleep(self._seconds)
        return self.layer(rows)


def measure(num_envs: int, num_workers: int, env_ms: float, actor_ms: float) -> dict[str, Any]:
    """The median milliseconds of a step of all environments, and those of the longer half."""
    config = PPOConfig(num_envs=num_envs, num_steps=STEPS, num_minibatches=1)

    def networks(*_: Any) -> Any:
        return Network(2, actor_ms / 1e3), Network(1, 0.0)

    agent = PPO(Sleeping.observation_space, Sleeping.action_space, config, networks=networks)
    placement, source = SingleDevice("cpu"), partial(Sleeping, env_ms / 1e3)
    placement.prepare(agent)
    sampler = make_sampler(
        source, make_environments(source, num_envs), agent, placement, num_steps=STEPS, num_workers=num_workers,
        options=EnvironmentOptions(), env_seed=0, noise=np.random.default_rng(0),
    )  # fmt: skip
    seconds = []
    with placement.sampling(agent) as actor:
        for _ in range(ROLLOUTS):
            start = time.perf_counter()
            sampler.collect(actor)
            seconds.append(time.perf_counter() - start)
    sampler.close()
    calls, steps = min(2, max(1, num_workers)), -(-num_envs // max(1, num_workers))
    longer = max(steps * env_ms, calls * actor_ms)
    took = 1e3 * statistics.median(seconds[1:]) / STEPS
    return {
        "num_envs": num_envs, "num_workers": num_workers, "env_ms": env_ms, "actor_ms": actor_ms,
        "ms": took, "longer_half_ms": longer, "ratio": took / longer,
    }  # fmt: skip


def main() -> None:
    """Measure, print and save."""
    torch.set_num_threads(1)
    found = [measure(*case) for case in CASES]
    lines = [" | ".join(found[0])] + [" | ".join(f"{value:.3g}" for value in each.values()) for each in found]
    machine.report("acting", {"cases": found}, "\n".join(lines))


if __name__ == "__main__":
    main()
