"""A server of parameters, and learners that send it gradients, each at its own pace (`Central`).

The process that called `train` is the server: it has the agent, its optimizer and the run directory, and shows what is
shown.
"""

import time
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distribution.choosing import choose_for_learners
from hybridppo.distribution.dividing import as_copies, placement_on_cpus, require_divisible
from hybridppo.distribution.learners import Learners
from hybridppo.distribution.local import LocalTeam
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.base import Placement
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs.distribution_policies import Central
from hybridppo.runs.job import Job
from hybridppo.runs.options import RunOptions
from hybridppo.system.interruption import Stopped


class ServerOfParameters(LocalTeam):
    """The server's side of a training."""

    def __init__(self, policy: Central) -> None:
        self._learners = policy.learners
        self._max_lag = policy.learners - 1 if policy.max_lag is None else policy.max_lag

    def settled(self, run: RunOptions) -> RunOptions:
        """With both numbers of the distribution."""
        return replace(run, distribution=str(Central(self._learners, self._max_lag)))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with {self._learners} learners of a server of parameters"
        config = require_divisible(config, options, run, self._learners, whom)
        if config.pool_size > 1:
            raise ConfigurationError(
                f"pool_size={config.pool_size} cannot be had {whom}, whose rate every learner would lower for itself: "
                "use distribution='local' or 'multi'"
            )
        if config.minibatches % self._learners:
            raise ConfigurationError(
                f"num_minibatches must be a multiple of the {self._learners} learners, which each have a part of the "
                f"rows, got {config.minibatches}"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, "learners")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """On CPUs."""
        return placement_on_cpus(meant)

    def choose(  # noqa: D102 - as in the base
        self, auto: Auto, source: EnvSource, environments: Environments, config: AnyConfig, *, agent: AnyAgent,
        total_steps: int, **options: Any,
    ) -> Choice:  # fmt: skip
        assert isinstance(config, PPOConfig)  # `check` has seen to it
        policy = Central(self._learners, self._max_lag)
        return choose_for_learners(
            policy, source, environments, config, options["options"], agent, total_steps=total_steps
        )

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """One, for its spaces: the learners have them all."""
        return make_environments(source, 1, options)

    def begin(self, job: Job) -> Job:
        """The learners are started with the sampler, which stands for them."""
        self._seed = job.settings.seed
        return job

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """The learners."""
        assert isinstance(agent, PPO)  # `check` has seen to it
        return Learners(
            source,
            environments,
            agent,
            learners=self._learners,
            max_lag=self._max_lag,
            options=options["options"],
            seed=self._seed,
            env_seed=options["env_seed"],
            noise=options["noise"],
        )

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """One whose iterations are updates of the learners."""
        return CentralRunner(agent, sampler, placement, **options)


class CentralRunner(Runner):
    """Like `Runner`; an iteration is a rollout that one of the learners has learned from.

    Its seconds, which all learners share, are divided into sampling and learning as that learner divided its own.
    Whoever stops, a rollout or an update under way is dropped, and counts for nothing but the steps that were made.
    """

    def iterate(self) -> Metrics:  # noqa: D102 - as in the base
        start = time.perf_counter()
        self.agent.anneal(self.share_done)
        learners = cast(Learners, self.sampler)
        update = None
        while update is None:
            learners.begin(self.share_done)  # also one that takes another's place meanwhile
            update = learners.look()
            if update is None and self.is_stopping:
                raise Stopped
        cast(PPO, self.agent).version += 1
        end = time.perf_counter()
        sampling, learning = (share * (end - start) / sum(update.seconds) for share in update.seconds)
        lags = update.of_server.lags
        learned = {
            **update.metrics,
            "learner": update.learner,
            "learners": learners.num_learners,
            "gradient_lag_mean": sum(lags) / max(1, len(lags)),
            "gradient_lag_max": max(lags, default=0),
            "gradient_waits": update.of_server.waits,
        }
        seconds = {"seconds_sampling": sampling, "seconds_learning": learning, "seconds_copying": 0.0}
        return self._completed(learned, update.policy_lag, start, end, seconds)

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        reason = super().load_state(tensors, state, env_seed=env_seed)
        if self._rollout is not None:  # which another distribution had sampled, and not learned from
            self._rollout = None
            self.sampler.env_steps = self._steps_learned
        return reason
