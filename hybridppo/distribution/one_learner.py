"""The update of one learner among several, timed alone: all that it does itself, with nobody to wait for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.exchanges import MinibatchShards, Served, num_columns
from hybridppo.auto.portions import with_steps
from hybridppo.auto.timing import stable_median
from hybridppo.distribution.prediction import Sizes
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
        self.plain = self.agent.loop()
        self._policy = policy
        self.agent.share((lambda: Served(Waiting())) if isinstance(policy, Central) else self._shards)

    def _shards(self) -> MinibatchShards:
        policy = cast(MultiLearner, self._policy)
        assert policy.learners is not None
        shards = policy.shards or policy.learners
        each = shards // policy.learners
        parameters = self.agent.parameters
        silent = Silent(policy.learners, each, num_columns(parameters))
        return MinibatchShards(parameters, silent, num_shards=shards, mine=slice(0, each))

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

    def seconds_of_a_step(self, most: float) -> float:
        """What the server of parameters does with a gradient: copies it, clips it, steps, and copies parameters."""
        agent = self.agent
        gradient, parameters = agent.parameters.gradient.clone(), agent.parameters.values.detach().clone()

        def step() -> float:
            start = time.perf_counter()
            agent.parameters.gradient.copy_(gradient)
            self.plain.descend()
            parameters.copy_(agent.parameters.values.detach())
            return time.perf_counter() - start

        with limit_threads(1):
            step()
            return stable_median(step, most)


def sizes_of(learner: OneLearner, config: PPOConfig, num_shards: int) -> Sizes:
    """What crosses, and how often, in a training.

    Args:
        learner: one of it.
        config: of the training.
        num_shards: of a minibatch; into as many parts values are cut.
    """
    rollout, rows = learner.rollout, config.batch_size * learner.num_agents
    arrays = (rollout.observations, rollout.actions, rollout.log_probs, rollout.rewards)
    a_row = sum(array[0, 0].numel() * array.element_size() for array in arrays) + 2  # and how episodes end
    states, memory, passes = 0, learner.agent.memory, 1
    numbers = rows  # that go to all once an update: values
    if config.pool_size > 1:  # of all rollouts in it, with log-probabilities before and after
        passes = 3 * config.pool_size
    if memory is not None:  # sequence by sequence, with the critic's state after each row
        assert rollout.states is not None
        states, passes = rollout.states.nbytes, memory.num_sequences(config.num_steps + 1)
        numbers = -(-rows // passes) * (1 + memory.state_size)
    pieces = -(-numbers // num_shards // num_columns(learner.agent.parameters)) or 1
    return Sizes(
        minibatches=config.num_epochs * config.minibatches,
        exchanges_of_values=passes * pieces,
        bytes_of_rollout=rows * a_row + states,
        bytes_of_parameters=4 * sum(parameter.numel() for parameter in learner.agent.actor.parameters()),
    )
