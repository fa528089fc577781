"""Workers that only step, with environments and an actor that sleep: how near a rollout comes to its longer half.

    python benchmarks/acting.py
    python benchmarks/acting.py envpool

The halves, each measured alone, are the steps of the busiest worker and all calls of the actor. "second" is the
simulated GPU of the tests, whose operations the CPU computes. `envpool` compares EnvPool's two modes instead, by turns.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
    (2, 0, 2.0, 2.0, "cpu"), (2, 2, 2.0, 2.0, "cpu"), (4, 4, 2.0, 2.0, "cpu"), (4, 2, 2.0, 2.0, "cpu"),
    (2, 2, 2.0, 2.0, "second"), (4, 2, 2.0, 2.0, "second"), (4, 1, 1.0, 2.0, "second"),
    (1, 1, 5.0, 0.0, "cpu"), (16, 16, 5.0, 0.0, "cpu"),
)  # fmt: skip
"""Environments, workers, the milliseconds of a step and of a call of the actor, and its device."""
STEPS, ROLLOUTS = 100, 5
POOLS = (("Pong-v5", 8, 4), ("Pong-v5", 16, 4), ("CartPole-v1", 64, 32))
"""Environments of EnvPool, their number, and how many are received at a time in the asynchronous mode."""
POOL_STEPS, POOL_ROLLOUTS = {"Pong-v5": 64, "CartPole-v1": 512}, 11


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


def sampling(
    source: Any, config: PPOConfig, num_workers: int = 0, env_kwargs: Any = None, device: str = "cpu", **networks: Any
) -> Any:
    """A function that samples a rollout and returns its seconds, one that closes the sampler, and the actor."""
    options = EnvironmentOptions(env_kwargs=env_kwargs)
    environments, placement = make_environments(source, config.num_envs, options), SingleDevice(device)
    agent = PPO(environments.observation_space, environments.action_space, config, **networks)
    placement.prepare(agent)
    sampler = make_sampler(
        source, environments, agent, placement, num_steps=config.num_steps, num_workers=num_workers, options=options,
        env_seed=0, noise=np.random.default_rng(0),
    )  # fmt: skip

    with placement.sampling(agent) as actor:  # whose parameters stay as they are
        pass

    def collect() -> float:
        start = time.perf_counter()
        sampler.collect(actor)
        return time.perf_counter() - start

    return collect, sampler.close, actor


def compare_modes(name: str, num_envs: int, batch_size: int, layer_norm: bool) -> dict[str, Any]:
    """Environment steps per second of sampling in EnvPool's two modes, medians of rollouts by turns."""
    is_image = name == "Pong-v5"
    config = PPOConfig(
        num_envs=num_envs, num_steps=POOL_STEPS[name], num_minibatches=1, layer_norm=layer_norm,
        activation="relu" if is_image else "tanh", hidden_sizes=(512,) if is_image else (64, 64),
        normalize_observations=False,
    )  # fmt: skip
    in_parts = {"batch_size": batch_size}
    modes = {"synchronous": None, "asynchronous": in_parts, "with one thread": in_parts | {"num_threads": 1}}
    samplers = [sampling(f"envpool/{name}", config, env_kwargs=own) for own in modes.values()]
    seconds = [[collect() for collect, *_ in samplers] for _ in range(POOL_ROLLOUTS + 1)][1:]
    for _, close, _ in samplers:
        close()
    speeds = [config.batch_size / statistics.median(each) for each in zip(*seconds, strict=True)]
    return {
        "environment": name, "num_envs": num_envs, "batch_size": batch_size,
        "actor": "torch, with layer_norm" if layer_norm else "NumPy", **dict(zip(modes, speeds, strict=True)),
    }  # fmt: skip


def measure(num_envs: int, num_workers: int, env_ms: float, actor_ms: float, device: str) -> dict[str, Any]:
    """The median milliseconds of a step of all environments, and those of its halves."""
    config = PPOConfig(num_envs=num_envs, num_steps=STEPS, num_minibatches=1)

    def networks(*_: Any) -> Any:
        return Network(2, actor_ms / 1e3), Network(1, 0.0)

    source = partial(Sleeping, env_ms / 1e3)
    collect, close, act = sampling(source, config, num_workers, device=device, networks=networks)
    seconds = [collect() for _ in range(ROLLOUTS)]
    close()
    calls, steps = 2 if num_workers and num_envs > 1 else 1, -(-num_envs // max(1, num_workers))
    env, rows = source(), np.zeros((-(-num_envs // calls), 4), np.float32)
    halves = {"steps_ms": steps * median_ms(lambda: env.step(0)), "calls_ms": calls * median_ms(lambda: act(rows))}
    took = 1e3 * statistics.median(seconds[1:]) / STEPS
    return {
        "num_envs": num_envs, "num_workers": num_workers, "env_ms": env_ms, "actor_ms": actor_ms, "device": device,
        **halves, "ms": took, "ratio": took / max(halves.values()),
    }  # fmt: skip


def median_ms(call: Callable[[], object]) -> float:
    """The median milliseconds of a call."""
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    """Measure, print and save."""
    torch.set_num_threads(1)
    of_pools = "envpool" in sys.argv[1:]
    if of_pools:
        found = [compare_modes(*pool, layer_norm=of_torch) for pool in POOLS for of_torch in (False, True)]
    else:
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
        from fake_accelerator import pretended_accelerator

        with pretended_accelerator() as there:
            devices = {"cpu": "cpu", "second": str(there.device)}
            found = [measure(*case, devices[device]) for *case, device in CASES]
    texts = [[f"{each:.3g}" if isinstance(each, float) else str(each) for each in case.values()] for case in found]
    table = "\n".join(" | ".join(line) for line in ([*found[0]], *texts))
    machine.report("envpool" if of_pools else "acting", {"cases": found}, table)


if __name__ == "__main__":
    main()
