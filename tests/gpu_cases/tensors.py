"""Cases of environments that are tensors on the device."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_cases.behaviour import breaking_off
from gpu_cases.case import (
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    distance,
    require,
    values_of,
    waits_of,
)

from hybridppo.agents import PPO, PPOConfig
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.placements.placement import SingleDevice
from hybridppo.runners.device_sampler import TensorSampler
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.training import resume, train

EAGER = replace(SMALL, num_envs=64, fast_updates=False)
RECURRENT = replace(EAGER, recurrent="gru", recurrent_size=16, sequence_length=8)
LENGTH = 20
"""Maximum steps of an episode, so that some are truncated."""


def _train(device: torch.device, config: PPOConfig, **options: Any) -> Any:
    make = partial(TorchCartPole, device=device, episode_length=LENGTH)
    goal: dict[str, Any] = {"total_steps": 4 * config.batch_size, "seed": 0, "progress": False}
    return train(make, placement=SingleDevice(device), config=config, **goal, **options)


def samples_without_waits(bench: Bench) -> str:
    """A rollout waits for the device only at its end, for one read and one search."""
    bench.needs_gpu("counting waits")
    environments = TensorEnvironments(TorchCartPole(64, bench.device, episode_length=LENGTH), 64, owns=True)
    agent, placement = PPO(environments.observation_space, environments.action_space, EAGER), SingleDevice(bench.device)
    placement.prepare(agent)
    placement.act_on_tensors()
    plan = RolloutPlan(agent.distribution, np.random.default_rng(0), env_seed=0, num_steps=EAGER.num_steps)
    sampler = TensorSampler(environments, plan)
    with placement.sampling(agent) as actor:
        counts = [waits_of(lambda: sampler.collect(actor), bench.device) for _ in range(3)]
    said = f"waits of three rollouts of {EAGER.num_steps} steps: {', '.join(map(str, counts))} (expected: 2)"
    require(counts[1:] == [2, 2], said)
    return said


def agrees_with_the_cpu(bench: Bench, config: PPOConfig) -> str:
    """A training on the device ends like one on the CPU with the same noise."""
    found, expected = _train(bench.device, config), _train(torch.device("cpu"), config)
    begun = _train(torch.device("cpu"), replace(config, learning_rate=1e-30))
    apart = distance(found.agent, expected.agent, values_of(begun.agent))
    said = f"ends {apart:.2g} of the way from the CPU's end"
    require(apart <= TOLERANCES["fp32"], said)
    return said


def resumes(bench: Bench) -> str:
    """A run that is stopped and resumed ends like one that was never stopped."""
    whole, run_dir = _train(bench.device, EAGER), bench.folder / "run"
    with breaking_off() as break_off:
        _train(bench.device, EAGER, run_dir=run_dir, checkpoint_seconds=0.0, on_iteration=break_off)
    make = partial(TorchCartPole, device=bench.device, episode_length=LENGTH, num_envs=EAGER.num_envs)
    resumed = resume(run_dir, env=make, progress=False)
    require(torch.equal(values_of(resumed.agent), values_of(whole.agent)), "it ends elsewhere")
    return "bit for bit"


def tensor_cases() -> Iterator[Case]:
    """All cases of this file."""
    yield Case("tensors/waits", "batched environments: rollouts without a wait", samples_without_waits)
    for name, config in (("mlp", EAGER), ("memory", RECURRENT)):
        case = partial(agrees_with_the_cpu, config=config)
        yield Case(f"tensors/{name}", f"batched environments, {name}: as on the CPU", case)
    yield Case("tensors/resume", "batched environments: resumed as if never stopped", resumes)
