"""A server of parameters, and learners that send it gradients, each at its own pace (`Central`).

The process that called `train` is the server: it has the agent, its optimizer and the run directory. Learners
(`central_learner.py`) are processes of this machine, or Ray actors on any machine. They send a message and wait for the
reply, and the server decides when it replies:

    learner                           server
    "ready", "done", update           "update": newest parameters and moments, as soon as it is wanted
    "begin"                           parameters, as soon as one more learner may compute a gradient
    "gradient", gradient              parameters, after the optimizer's step, and as after "begin"
"""

import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
import torch

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.registry import AnyConfig
from hybridppo.agents.schedules import ADAPTIVE
from hybridppo.auto.auto import Auto
from hybridppo.distributed.cluster import Cluster
from hybridppo.distributed.dividing import as_copies, require_shareable
from hybridppo.distributed.strategy import Strategy
from hybridppo.distributed_policies import Central
from hybridppo.environments.base import Environments, Steering, steering_refused
from hybridppo.environments.making import make_environments, to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import ALONE
from hybridppo.errors import ConfigurationError, DistributedError, EnvError, EnvStateError, TrainingError
from hybridppo.interfaces import Agent, Metrics
from hybridppo.options import RunOptions
from hybridppo.placements.placement import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.episodes import EpisodeStatistics
from hybridppo.runners.counts import Counts
from hybridppo.runners.processes import LocalProcesses, Pool, WorkerLostError
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import BaseSampler, RolloutPlan
from hybridppo.runners.sharded_sampler import EnvironmentShards
from hybridppo.runners.workers import LostWorkers
from hybridppo.settings import Plan
from hybridppo.system.seeds import seed_of
from hybridppo.system.signals import Stopped

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.25
"""Seconds to wait for a message before the server checks whether the run was asked to stop."""
_NEEDED: dict[str, Any] = {
    "episodes_per_rollout": None, "compiled_updates": False, "pool_size": 1, "num_workers": 0, "self_play": None,
    "info_metrics": (),
}  # fmt: skip
"""Options that learners need at these values."""
NOT_SAVED = "learners of distributed=central step them, each at its own pace"


class BoundedLag:
    """Decides which learner may compute a gradient, and which may step.

    The version of the parameters counts optimizer steps. At most `max_lag + 1` learners compute at the same time. A
    learner with a gradient waits for those that began before it, if its step would make their gradients too old; the
    learner that began first never waits. So no gradient is dropped. Source: Li et al., "Scaling Distributed Machine
    Learning with the Parameter Server", 2014, bounded delay.

    Args:
        max_lag: the most optimizer steps between the parameters of a gradient and its own step.
        version: the present version of the parameters.
    """

    def __init__(self, max_lag: int, version: int = 0) -> None:
        self.max_lag, self.version = max_lag, version
        self._computing: dict[int, int] = {}
        """The version with which each learner computes, in the order in which they began."""

    def may_begin(self) -> bool:
        """Whether another learner may begin: if all end in the order in which they began, no gradient is too old."""
        return len(self._computing) <= self.max_lag

    def begin(self, learner: int) -> None:
        """Note that a learner begins to compute with the present parameters."""
        self._computing[learner] = self.version

    def may_step(self, learner: int) -> bool:
        """Whether the learner's step would leave the gradients of all that began before it young enough."""
        for place, (other, version) in enumerate(self._computing.items()):
            if other == learner:
                return True
            if self.version + 1 + place - version > self.max_lag:
                return False
        raise KeyError(learner)

    def step(self, learner: int) -> int:
        """Note that the learner's step is made; return the lag of its gradient."""
        lag = self.version - self._computing.pop(learner)
        self.version += 1
        return lag

    def forget(self, learner: int) -> None:
        """Note that the learner is lost."""
        self._computing.pop(learner, None)


@dataclass
class Update:
    """A learner's update, counted while the server makes its steps."""

    learner: int
    lags: list[int] = field(default_factory=list)
    """Of its gradients."""
    waits: int = 0
    """How often the learner waited for the bound."""
    begun_at: int | None = None
    """The version with which the first gradient was computed."""
    done: dict[str, Any] = field(default_factory=dict)
    """What the learner counted."""


class Learners(BaseSampler):
    """Learners 0 to `learners - 1`, each with an equal share of the environments.

    The loop takes them for the sampler: they count steps and episodes once these are learned from.

    Args:
        source: as for `make_environments`.
        template: one of the environments, for its spaces and autoreset mode; closed.
        agent: the agent of the server.
        learners: number of learners.
        max_lag: see `BoundedLag`.
        options: how environments are made and stepped.
        seed: seed of the run.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the run; learners have their own.
        over_ray: whether learners are Ray actors.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        agent: PPO,
        *,
        learners: int,
        max_lag: int,
        options: EnvironmentOptions,
        seed: int,
        env_seed: int,
        noise: np.random.Generator,
        over_ray: bool,
    ) -> None:
        config, agents = agent.config, template.num_agents
        share = config.num_envs // learners
        # The environments of learners are out of reach.
        out_of_reach = EnvironmentShards([template])
        counts = Counts(out_of_reach, config.num_envs * agents, EpisodeStatistics)
        plan = RolloutPlan(agent.distribution, noise, env_seed, config.num_steps, memory=agent.memory)
        super().__init__(out_of_reach, counts, plan)
        self._agent, self._seed, self._env_seed, self._restarts = agent, seed, env_seed, options.restarts
        template.close()
        self._loop = agent.loop()
        self._lag = BoundedLag(max_lag, version=self._steps_made())
        self._envs = [slice(start, start + share) for start in range(0, config.num_envs, share)]
        self._config: PPOConfig | None = None
        setup = {
            "source": to_send(source),
            "options": options,
            "config": self._config_of_learners(),
            "kind": type(agent),
            "own": {name: value for name, value in agent.own.items() if name != "agent"},
            "seed": seed,
        }
        self._pool = _pool_of(self._envs, setup, options, over_ray=over_ray)
        self._here = set(range(learners))
        self._idle = list(range(learners))
        self._waiting: dict[int, tuple[Any, int] | None] = {}
        """Learners that wait for parameters, in their order: with a gradient and the number that will follow in the
        update; or None to begin an update."""
        self._norms = dict.fromkeys(range(learners), 0.0)
        self._updates = {number: Update(number) for number in range(learners)}
        self._done: deque[Update] = deque()
        self._losses = LostWorkers(
            self._pool, learners, DistributedError, "a whole rollout", "what it had not learned from is"
        )
        self._closed = False
        self._pool.start_all([env_seed + envs.start for envs in self._envs])

    @property
    def num_learners(self) -> int:
        """Number of learners that are not lost."""
        return len(self._here)

    def _config_of_learners(self) -> PPOConfig:
        """The present settings of the agent, which a callback may change, with the share of each learner."""
        config, number = self._agent.config, len(self._envs)
        if config is not self._config:  # `replace` checks all settings, which takes long
            self._config, num_minibatches = config, config.minibatches // number
            self._share = replace(config, num_envs=config.num_envs // number, num_minibatches=num_minibatches)
        return self._share

    def _steps_made(self) -> int:
        return int(self._agent.optimizer.state[self._agent.parameters.values]["step"])

    def begin(self, share_done: float) -> None:
        """Let all idle learners sample a rollout and learn from it."""
        while self._idle:
            learner = self._idle.pop(0)
            self._updates[learner] = Update(learner)
            moments = {
                name: {key: tensor.numpy() for key, tensor in part.moments.state_dict().items()}
                for name, part in self._agent.normalization.parts.items()
            }
            task = {"version": self._lag.version, "share_done": share_done, "moments": moments}
            task["config"] = self._config_of_learners()
            self._send(learner, "update", {**task, "parameters": self._parameters()})

    def _parameters(self) -> Any:
        return self._agent.parameters.values.detach().numpy()

    def next_update(self) -> Update | None:
        """Make the steps that may be made; the next update that has ended, or None if none ended for a while."""
        if not self._done:
            busy = self._here - self._waiting.keys() - set(self._idle)
            try:
                for learner, answer in self._pool.answers(sorted(busy), patience=SECONDS_BETWEEN_LOOKS):
                    if isinstance(answer, WorkerLostError):
                        self._lose(learner, answer)
                    else:
                        self._take(learner, *answer[0])
            except EnvError as error:
                raise DistributedError(str(error)) from error
            self._reply()
        if not self._done:
            return None
        update = self._done.popleft()
        self._idle.append(update.learner)
        self.counts.statistics.add_ended(*update.done["episodes"])
        self.counts.env_steps += update.done["env_steps"]
        self.counts.env_restarts += update.done["env_restarts"]
        for name, (mean, variance, number) in update.done["seen"].items():
            part = self._agent.normalization.parts[name]
            part.merge(torch.from_numpy(mean), torch.from_numpy(variance), number)
        self._losses.end_row(update.learner)
        return update

    def _take(self, learner: int, kind: str, value: Any) -> None:
        """Handle a learner's message."""
        update = self._updates[learner]
        if kind == "ready":
            self._idle.append(learner)
        elif kind == "diverged":
            raise TrainingError(f"{self._pool.name(learner)}: {value}")
        elif kind == "done":
            update.done = value
            self._done.append(update)
        else:
            self._wait(learner, value)

    def _wait(self, learner: int, gradient: tuple[Any, int] | None) -> None:
        """Let a learner wait for parameters until the bound allows it."""
        self._waiting[learner] = gradient
        self._updates[learner].waits += not self._may_go_on(learner)

    def _may_go_on(self, learner: int) -> bool:
        return self._lag.may_begin() if self._waiting[learner] is None else self._lag.may_step(learner)

    def _reply(self) -> None:
        """Make all steps that may be made, and give parameters to all learners that may go on."""
        while (learner := next(filter(self._may_go_on, self._waiting), None)) is not None:
            gradient, update = self._waiting.pop(learner), self._updates[learner]
            if gradient is not None:
                self._step(learner, gradient[0])
                if gradient[1]:  # more gradients of the update follow
                    self._wait(learner, None)
                    continue
            else:
                self._lag.begin(learner)
                if update.begun_at is None:
                    update.begun_at = self._lag.version
            self._send(learner, "parameters", (self._norms[learner], self._parameters()))

    @np.errstate(over="ignore", invalid="ignore")  # the norm shows it
    def _step(self, learner: int, gradient: Any) -> None:
        """Make an optimizer step along a learner's gradient."""
        parameters = self._agent.parameters
        parameters.gradient.copy_(torch.from_numpy(gradient))
        parameters.zero_frozen()
        self._agent.optimizer.forget(parameters.frozen)
        self._norms[learner] = norm = float(self._loop.backend.descend())
        if not math.isfinite(norm):
            raise TrainingError(
                f"{self._pool.name(learner)}: its gradient after {self._lag.version} steps is not finite. Usual "
                f"causes: a learning rate that is too large (learning_rate is {self._agent.config.learning_rate:g}), "
                "rewards or observations that are not normalised. The parameters are lost and not saved: fix the "
                "cause, and start anew or from the last checkpoint, which was written before"
            )
        self._updates[learner].lags.append(self._lag.step(learner))

    def _send(self, learner: int, kind: str, value: Any) -> None:
        try:
            self._pool.ask(learner, kind, value)
        except WorkerLostError as lost:
            self._lose(learner, lost)

    def _lose(self, learner: int, error: WorkerLostError) -> None:
        """Replace a lost learner if restarts are allowed; else continue without it."""
        self._lag.forget(learner)
        self._waiting.pop(learner, None)
        if learner in self._idle:
            self._idle.remove(learner)
        self._pool.end(learner)
        if self._restarts:
            seed = self._env_seed + self._envs[learner].start
            self._losses.replace(learner, error, seed, partial(self._start_anew, learner))
            return
        self._here.discard(learner)
        if not self._here:
            raise DistributedError(
                f"no learner is left; the last: {error}. Nothing that was saved is lost: resume goes on from the last "
                "checkpoint, also with distributed='local'"
            )
        logger.warning(
            "%s\nThe other learners go on without its environments (on_env_error='restart' starts another).", error
        )

    def _start_anew(self, learner: int, env_seed: int) -> None:
        envs = self._envs[learner]
        self.counts.env_restarts += envs.stop - envs.start
        self._pool.ask(learner, "restart", self._restart(learner, env_seed))  # it is idle when it has answered

    def _restart(self, learner: int, env_seed: int) -> dict[str, Any]:
        noise = seed_of(self._seed, f"noise of learner {learner} from {env_seed}")
        return {"envs": env_seed, "noise": noise, "parameters": self._parameters()}

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._env_seed, self._lag.version, self._idle = env_seed, self._steps_made(), []
        for learner in sorted(self._here):
            self._send(learner, "restart", self._restart(learner, env_seed + self._envs[learner].start))

    def _steered(self, steering: Steering) -> list[Any]:
        raise steering_refused("those of learners of a server of parameters", "use distributed='local' or 'multi'")

    def check(self, rollout: Any) -> None:
        """Accept any rollout, because it is sampled again."""

    def close(self) -> None:  # noqa: D102 - as in the base
        if not self._closed:
            self._closed = True
            self._pool.close()

    def _stepper_state(self) -> NoReturn:
        raise EnvStateError(NOT_SAVED)

    def _load_stepper_state(self, *saved: Any) -> NoReturn:
        raise EnvStateError(NOT_SAVED)


def _pool_of(envs: list[slice], setup: dict[str, Any], options: EnvironmentOptions, *, over_ray: bool) -> Pool:
    if not over_ray:
        module, restarts = "hybridppo.distributed.central_learner", options.restarts
        timeout = options.worker_timeout
        return LocalProcesses(module, "learner", envs, setup, timeout, restarts=restarts, otherwise=ALONE)
    from hybridppo.distributed.ray_actors import Actors  # which loads Ray
    from hybridppo.distributed.ray_learners import RemoteLearner

    return Actors(RemoteLearner, "learner", envs, setup, options.worker_timeout)


class ServerOfParameters(Strategy):
    """The strategy of a training with a server, on the server's side.

    Args:
        policy: the policy, with the number of learners and the limit of the lag.
        address: address of a running Ray cluster for the learners; None for processes of this machine.
    """

    def __init__(self, policy: Central, address: str | None) -> None:
        learners = self._learners = policy.learners
        super().__init__(str(policy), None if address is None else lambda: Cluster("central", address, learners))
        self._max_lag = learners - 1 if policy.max_lag is None else policy.max_lag

    def settled(self, run: RunOptions) -> RunOptions:
        """The options, with both numbers of the policy."""
        return replace(run, distributed=str(Central(self._learners, self._max_lag)))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with {self._learners} learners of a server of parameters"
        if not isinstance(config, PPOConfig):
            given = "several policies" if hasattr(config, "policies") else type(config).__name__
            raise ConfigurationError(f"learners share the gradients of PPO only, got {given}: use distributed='local'")
        values = {**vars(config), **vars(options), "num_workers": run.num_workers or 0, "self_play": run.self_play}
        for name, needed in _NEEDED.items():
            if values[name] != needed:
                raise ConfigurationError(
                    f"{name}={values[name]!r} does not work {whom}: use distributed='local' or 'multi', or "
                    f"{name}={needed!r}"
                )
        if config.named_schedules.get("learning_rate") == ADAPTIVE:
            raise ConfigurationError(
                f"an adaptive learning rate does not work {whom}, which each see the KL divergence of their own rows "
                "alone: use another schedule, or distributed='local' or 'multi'"
            )
        for name, number in {"num_envs": config.num_envs, "num_minibatches": config.minibatches}.items():
            if number % self._learners:
                raise ConfigurationError(
                    f"{name} must be a multiple of the {self._learners} learners, which each have a part of the rows, "
                    f"got {number}"
                )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, "learners")

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The CPU; other placements are refused."""
        on_cpu = isinstance(meant, Auto) or (meant.settings() == SingleDevice("cpu").settings())
        if not on_cpu:
            raise ConfigurationError(
                f"learners sample and learn by turns on CPUs, got {meant}: use placement='cpu', or another distributed="
            )
        return meant

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """One environment, for its spaces: the learners have all environments."""
        return make_environments(source, 1, options)

    def begin(self, plan: Plan) -> Plan:
        """The same plan: the sampler starts the learners."""
        require_shareable(plan.agent)
        self._seed = plan.settings.seed
        return plan

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """The learners, in the place of a sampler."""
        assert isinstance(agent, PPO)  # `check` has refused others
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
            over_ray=self._cluster is not None,
        )

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """A loop whose iterations are updates of the learners."""
        return CentralRunner(agent, sampler, placement, **options)


class CentralRunner(Runner):
    """Like `Runner`; an iteration is a rollout that one of the learners has learned from.

    The seconds of an iteration, which all learners share, are divided into sampling and learning in the proportion of
    that learner. After a stop, rollouts and updates under way are dropped; only the optimizer steps that were made
    count.
    """

    def iterate(self) -> Metrics:  # noqa: D102 - as in the base
        start = time.perf_counter()
        self.agent.anneal(self.share_done)
        learners = cast(Learners, self.sampler)
        update = None
        while update is None:
            learners.begin(self.share_done)  # also learners that have just replaced lost ones
            update = learners.next_update()
            if update is None and self.is_stopping:
                raise Stopped
        cast(PPO, self.agent).version += 1
        end = time.perf_counter()
        shares, lags = update.done["seconds"], update.lags
        sampling, learning = (share * (end - start) / sum(shares) for share in shares)
        learned = {
            **update.done["metrics"],
            "learner": update.learner,
            "learners": learners.num_learners,
            "gradient_lag_mean": sum(lags) / max(1, len(lags)),
            "gradient_lag_max": max(lags, default=0),
            "gradient_waits": update.waits,
        }
        # Without a step in its rollout, a learner has given no gradient.
        policy_lag = 0 if update.begun_at is None else update.begun_at - update.done["version"]
        seconds = {"seconds_sampling": sampling, "seconds_learning": learning, "seconds_copying": 0.0}
        return self._completed(learned, policy_lag, start, end, seconds)

    def run(self) -> Metrics:  # noqa: D102 - as in the base
        if self.data.rollout is not None:  # sampled under another `distributed=`, and not learned from
            self.data.rollout = None
            self.sampler.counts.env_steps = self.steps_learned
        return super().run()
