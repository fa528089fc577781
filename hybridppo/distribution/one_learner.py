"""Times the update of one learner among several: an ordinary update of its share of a rollout."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hybridppo.agents import PPO, PPOConfig
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
"""Of the rollout that is sampled; its rows are repeated to make a whole one."""


class OneLearner:
    """A learner with its share of the environments, and a rollout to learn from.

    Its minibatches are as large as the parts that a learner has of the training's minibatches; nobody is waited for.

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
        own = share_of(config, policy)
        environments = make_environments(source, own.num_envs, options)
        try:
            spaces = environments.observation_space, environments.action_space
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


def share_of(config: PPOConfig, policy: MultiLearner | Central) -> PPOConfig:
    """The configuration of a training that does by itself what one learner does."""
    learners = policy.learners
    assert learners is not None
    if isinstance(policy, Central):
        num_minibatches = config.minibatches // learners
    else:  # the gradient of each shard is a pass of its own
        num_minibatches = config.minibatches * ((policy.shards or learners) // learners)
    # Nobody knows how many epochs target_kl would leave: all are counted.
    share = replace(config, num_envs=config.num_envs // learners, num_minibatches=1, target_kl=None)
    most = min(num_minibatches, share.units, share.batch_size // 2)
    possible = (count for count in range(most, 0, -1) if share.batch_size % count == 0)
    return replace(share, num_minibatches=next(possible, 1))
