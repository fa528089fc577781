"""Placement `auto` within a distribution policy: tried on a part of the training, by the learner that speaks."""

import logging
from dataclasses import replace

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AnyAgent
from hybridppo.auto.auto import Auto, Choice, Within
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runs.distribution_policies import Central, MultiLearner
from hybridppo.system.threads import cpu_cores

logger = logging.getLogger(__name__)


def choose_for_learners(
    policy: MultiLearner | Central,
    source: EnvSource,
    environments: Environments,
    config: PPOConfig,
    options: EnvironmentOptions,
    agent: AnyAgent,
    *,
    total_steps: int,
) -> Choice:
    """The number of torch threads of each learner: they sample and learn by turns on CPUs, and nothing else is open.

    Each has its part of the cores. Another number rounds differently: it is looked at only if `torch_threads` is None.

    Args:
        policy: with the number of learners.
        source: of the environments.
        environments: as made for training, all or some of them; not touched.
        config: of the training.
        options: of the environments.
        agent: what is to be trained, to make others like it.
        total_steps: of the run, of whose time the trials take 5 % at most.
    """
    learners = policy.learners
    assert learners is not None
    cores = max(1, cpu_cores() // learners)
    if config.torch_threads is not None:
        return _only(
            config.torch_threads, f"cpu within {policy}, the only candidate with torch_threads={config.torch_threads}"
        )
    if cores == 1:
        return _only(1, f"cpu within {policy}, the only candidate: a learner has one of {cpu_cores()} cores")
    minibatches = config.minibatches // learners if isinstance(policy, Central) else config.minibatches
    part = replace(config, num_envs=config.num_envs // learners, num_minibatches=minibatches)
    within = Within(str(policy), ("cpu",), cores)
    return Auto().choose(
        source, environments, part, total_steps=total_steps // learners, options=options, agent=agent, within=within
    )


def _only(torch_threads: int, line: str) -> Choice:
    """The CPU alone, and why."""
    logger.info("placement auto: %s", line)
    table = {"seconds": 0.0, "left_out": [], "chosen": "cpu", "line": line}
    return Choice(SingleDevice("cpu"), 0, torch_threads, table)
