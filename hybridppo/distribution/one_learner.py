"""The update of one learner among several, timed alone: all that it does itself, with nobody to wait for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.served_steps import ServedSteps
from hybridppo.agents.ppo.sharded_steps import ShardedSteps, num_columns
from hybridppo.auto.portions import with_steps
from hybridppo.auto.timing import stable_median
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runs.distribution_policies import Central, MultiLearner
from hybridppo.system.threads import limit_threads

MOST_STEPS = 32
"""Of the rollout that is sampled for the measurements; they are of that one over and over."""


class Silent:
    """The exchange of a learner whose others are always as far: their rows hold nothing.

    Args:
        num_learners: how many there would be.
        num_rows: of each.
        num_columns: of a row.
    """

    def __init__(self, num_learners: int, num_rows: int, num_columns: int) -> None:
        self._rows = torch.zeros(num_learners * num_rows, num_columns).unbind()
        self._mine = self._rows[:num_rows]

    def to_fill(self) -> Sequence[Tensor]:
        """Its own."""
        return self._mine

    def filled(self) -> Sequence[Tensor]:
        """All."""
        return self._rows


class Waiting:
    """A server of parameters that takes every gradient, and makes no step."""

    def begin(self) -> None:
        """At once."""

    def give(self, *, goes_on: bool) -> float:
        """A norm."""
        return 1.0


class OneLearner:
    """A learner of a policy, with a rollout to learn from.

    Args:
        source: of the environments.
        config: of the whole training.
        options: of the environments.
        policy: with the number of learners.
        make_agent: makes an agent from a configuration, such as `PPO.like`; None makes PPO as it comes.
    """

    def __init__(
        self,
        source: EnvSource,
        config: PPOConfig,
        options: EnvironmentOptions,
        policy: MultiLearner | Central,
        make_agent: Callable[[PPOConfig], PPO] | None = None,
    ) -> None:
        assert policy.learners is not None
        # Nobody knows how many epochs target_kl would leave: all are counted.
        own = replace(config, target_kl=None)
        if isinstance(policy, Central):
            num_minibatches = config.minibatches // policy.learners
            own = replace(own, num_envs=config.num_envs // policy.learners, num_minibatches=num_minibatches)
        self._config = own
        environments = make_environments(source, own.num_envs, options)
        try:
            spaces, self.num_agents = (
                (environments.observation_space, environments.action_space),
                environments.num_agents,
            )
            self.agent = make_agent(own) if make_agent is not None else PPO(*spaces, own, seed=0)
            cpu = SingleDevice("cpu")
            cpu.prepare(self.agent)
            sampler = Sampler(
                environments,
                self.agent.distribution,
                num_steps=min(own.num_steps, MOST_STEPS),
                env_seed=0,
                noise=np.random.default_rng(0),
                memory=self.agent.memory,
            )
            with cpu.sampling(self.agent) as actor:
                self.rollout: Rollout = with_steps(sampler.collect(actor), own.num_steps, self.agent.memory)
        finally:
            environments.close()
        self.agent.fill_pool(self.rollout)
        self.plain = self.agent._optimizer_steps()
        self.agent.spread = self._served if isinstance(policy, Central) else self._sharded
        self._policy, self.agent._steps = policy, None

    def _sharded(self, form: Any) -> ShardedSteps:
        policy = cast(MultiLearner, self._policy)
        assert policy.learners is not None
        shards = policy.shards or policy.learners
        each = shards // policy.learners
        silent = Silent(policy.learners, each, num_columns(self.agent))
        return ShardedSteps(self.agent, form, num_shards=shards, mine=slice(0, each), exchange=silent)

    def _served(self, form: Any) -> ServedSteps:
        return ServedSteps(self.agent, form, Waiting())

    def update(self) -> float:
        """Seconds of an update."""
        start = time.perf_counter()
        self.agent.update(self.rollout)
        return time.perf_counter() - start

    def seconds(self, most: float, threads: int = 1) -> float:
        """The median of an update's, in at most so many seconds, and once at least beside the first."""
        with limit_threads(threads):
            self.update()  # what is made once
            return stable_median(self.update, most)
