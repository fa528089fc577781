"""Samplers in this process, with the noise of a seed, for the tests to import."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.base import Environments
from hybridppo.placements.placement import Placement, SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.sampler import LocalFiller, RolloutPlan, Sampler


def sampler_of(
    environments: Environments,
    distribution: Any = None,
    *,
    env_seed: int = 0,
    noise_seed: int = 0,
    in_thread: bool = False,
    **options: Any,
) -> Sampler:
    """The distribution is by default that of the action space; further options are the plan's."""
    distribution = distribution_for(environments.action_space) if distribution is None else distribution
    if options.get("num_steps", 1) is None:
        del options["num_steps"]
    plan = RolloutPlan(distribution, np.random.default_rng(noise_seed), env_seed, **options)
    thread = ThreadPoolExecutor(1) if in_thread else None
    return Sampler(LocalFiller(environments, plan, num_buffers=1 + in_thread), plan, thread=thread)


def collecting(
    agent: Any, environments: Environments, placement: Placement | None = None, **options: Any
) -> Callable[[], Rollout]:
    """Each call samples a rollout of the agent's; without a placement that is prepared, everything is on the CPU."""
    if placement is None:
        placement = SingleDevice("cpu")
        placement.prepare(agent)
    options = {"num_steps": agent.config.num_steps, "memory": agent.memory} | options
    sampler = sampler_of(environments, agent.distribution, **options)

    def collect() -> Rollout:
        with placement.sampling(agent) as actor:
            return sampler.collect(actor)

    return collect


def log_probs_of(agent: Any, rollout: Rollout, actor: Any = None) -> torch.Tensor:
    """Those of the rollout's actions as the agent is now, or for another actor of its kind."""
    with torch.no_grad():
        outputs = (agent.actor if actor is None else actor)(rollout.observations[:-1])
    return agent.distribution.log_prob_and_entropy(outputs, rollout.actions)[0]  # type: ignore[no-any-return]
