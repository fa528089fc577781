"""A server of parameters, and learners that send it gradients, each at its own pace (`Central`).

The process that called `train` is the server: it has the agent, its optimizer and the run directory. What a learner
does is in `central_learner.py`.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.common.schedules import ADAPTIVE
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distribution.choosing import choose_for_learners
from hybridppo.distribution.dividing import as_copies, require_shareable
from hybridppo.distribution.local import LocalTeam
from hybridppo.environments.base import Environments
from hybridppo.environments.in_shards import EnvironmentShards
from hybridppo.environments.making import make_environments, to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import pack
from hybridppo.errors import ConfigurationError, DistributionError, EnvStateError, TrainingError
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.workers.losses import Losses
from hybridppo.runners.workers.pool import WorkerPool
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.runs.distribution_policies import Central
from hybridppo.runs.job import Job
from hybridppo.runs.options import RunOptions
from hybridppo.system.interruption import Stopped
from hybridppo.system.seeds import seed_of

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.25
"""How long to wait for a message at most, before looking whether to stop, and whether all go on."""
NOT_SAVED = "learners of distribution central step them, each at its own pace"

Message = tuple[str, Any] | WorkerLostError


class BoundedLag:
    """Who computes a gradient, and by which version of the parameters.

    A version is an optimizer step. At most `max_lag + 1` learners compute at the same time, and one that has ended
    waits for those that began before it wherever its step would make theirs too old. The oldest never waits. Nothing
    that was computed is thrown away. Source: Li et al., "Scaling Distributed Machine Learning with the Parameter
    Server", 2014, bounded delay.

    Args:
        max_lag: how many steps of others may lie between the parameters of a gradient and its own step.
        version: of the parameters now.
    """

    def __init__(self, max_lag: int, version: int = 0) -> None:
        self.max_lag, self.version = max_lag, version
        self._computing: dict[int, int] = {}
        """The version by which each learner computes, in the order in which they began."""

    def may_begin(self) -> bool:
        """Whether another may begin: were all to end in the order in which they began, none would be too old."""
        return len(self._computing) <= self.max_lag

    def begin(self, learner: int) -> None:
        """It computes by the version that there is now."""
        self._computing[learner] = self.version

    def may_step(self, learner: int) -> bool:
        """Whether its step leaves room for all that began before it."""
        for place, (other, version) in enumerate(self._computing.items()):
            if other == learner:
                return True
            if self.version + 1 + place - version > self.max_lag:
                return False
        raise KeyError(learner)

    def step(self, learner: int) -> int:
        """Its step is made; its lag."""
        lag = self.version - self._computing.pop(learner)
        self.version += 1
        return lag

    def forget(self, learner: int) -> None:
        """It is lost, with its gradient, if it has begun one."""
        self._computing.pop(learner, None)


class LearnerPool(WorkerPool):
    """Processes of learners, whose messages come when they will."""

    def __init__(self, envs: list[slice], setup: bytes, heartbeats: Any, timeout: float) -> None:
        module = "hybridppo.distribution.central_learner"
        super().__init__(envs, setup, lambda number: int(heartbeats[number][0]), timeout, module=module, role="learner")
        self._heartbeats = heartbeats
        self._alive: dict[int, tuple[list[int], float]] = {}

    def messages(self, learners: Collection[int]) -> list[tuple[int, Message]]:
        """What some of them have said, or how one was lost; nothing where a while passes without either."""
        waiting = {self._connections[learner]: learner for learner in learners}
        found: list[tuple[int, Message]] = []
        for connection in wait(list(waiting), timeout=min(SECONDS_BETWEEN_LOOKS, self._timeout / 4)):
            learner = waiting.pop(cast("Connection[Any, Any]", connection))
            self._alive.pop(learner, None)
            found.append((learner, self._message(learner)))
        now = time.monotonic()
        for learner in waiting.values():
            done = self._heartbeats[learner].tolist()
            before, since = self._alive.setdefault(learner, (done, now))
            if done != before:
                self._alive[learner] = done, now
            elif now - since > self._timeout:
                del self._alive[learner]  # of another in its place, nothing is known
                found.append((learner, WorkerLostError(self._silent(learner))))
        return found

    def _silent(self, learner: int) -> str:
        rows, gradients = self._heartbeats[learner].tolist()
        return (
            f"{self.name(learner)} has made no step and given no gradient for {self._timeout:g} s, after {rows} steps "
            f"of its rollout and {gradients} gradients: a step or a reset hangs, or is slower than worker_timeout "
            "(--worker-timeout) allows"
        )

    def _message(self, learner: int) -> Message:
        try:
            kind, value, _ = self._connections[learner].recv()
        except (EOFError, OSError):
            return WorkerLostError(f"{self.name(learner)} has died{self._how_it_ended(learner)}")
        if kind == "error":
            raise DistributionError(f"{self.name(learner)} failed: {value}")
        if kind == "diverged":
            raise TrainingError(f"{self.name(learner)}: {value}")
        return kind, value


@dataclass
class Update:
    """A learner's update, counted while the server makes its steps."""

    learner: int
    lags: list[int] = field(default_factory=list)
    """Of its gradients."""
    waits: int = 0
    """How often it waited, for the bound on the lag."""
    begun_at: int | None = None
    """The version when its first gradient was begun."""
    done: dict[str, Any] = field(default_factory=dict)
    """What the learner says of it when it has ended."""


class Learners(BaseSampler):
    """Learners 0 to `learners - 1`, each with an equal share of the environments.

    To the loop it is the sampler: it counts steps and episodes, when they are learned from. What one does is in
    `central_learner.py`.

    Args:
        source: as for `make_environments`.
        template: one of the environments, for its spaces and mode of reset; closed.
        agent: whose parameters they share, and whose optimizer steps.
        learners: how many.
        max_lag: see `BoundedLag`.
        options: how environments are made and stepped.
        seed: the run's.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: of the run; learners have generators of their own.
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
    ) -> None:
        config, agents = agent.config, template.num_agents
        share = config.num_envs // learners
        # The base is asked for no more than the shape of the whole, and its statistics.
        shape = config.num_steps, config.num_envs * agents
        buffer = cast(RolloutBuffer, SimpleNamespace(rewards=np.empty(shape, np.bool_)))
        # Learners' environments have no infos here, and cannot be steered.
        out_of_reach = EnvironmentShards([template])
        super().__init__(out_of_reach, bytearray(1), [buffer], agent.distribution, noise=noise, memory=agent.memory)
        self._agent, self._seed, self._env_seed, self._options = agent, seed, env_seed, options
        template.close()
        self._loop = agent.loop()
        self._lag = BoundedLag(max_lag, version=self._steps_made())
        self._envs = [slice(start, start + share) for start in range(0, config.num_envs, share)]
        size = agent.parameters.values.numel()
        shared: dict[str, tuple[tuple[int, ...], str]] = {
            "parameters": ((learners, size), "float32"),
            "gradients": ((learners, size), "float32"),
            "heartbeats": ((learners, 2), "int64"),
        }
        self._arrays = SharedArrays(shared)
        self._parameters = torch.from_numpy(self._arrays["parameters"])
        self._gradients = torch.from_numpy(self._arrays["gradients"])
        setup = {
            "source": to_send(source),
            "options": options,
            "config": replace(config, num_envs=share, num_minibatches=config.minibatches // learners),
            "kind": type(agent),
            "own": {name: value for name, value in agent.own.items() if name != "agent"},
            "seed": seed,
            "layout": shared,
            "path": self._arrays.path,
        }
        self._pool = LearnerPool(self._envs, pack(setup), self._arrays["heartbeats"], options.worker_timeout)
        self._here = set(range(learners))
        self._idle: list[int] = list(range(learners))
        self._asking: deque[int] = deque()
        self._ended: dict[int, bool] = {}  # who waits for its step, and whether it goes on after
        self._norms = dict.fromkeys(range(learners), 0.0)
        self._updates = {number: Update(number) for number in range(learners)}
        self._done: deque[Update] = deque()
        self._losses = Losses(learners, DistributionError, "a whole rollout", "what it had not learned from is")
        self._closed = False
        try:
            for number in range(learners):
                self._pool.start(number, env_seed + self._envs[number].start)
            self._pool.wait_until_ready(range(learners))
        except BaseException:
            self.close()
            raise
        if not options.restarts:  # another learner would have to map it
            self._arrays.unlink()

    @property
    def num_learners(self) -> int:
        """How many are there."""
        return len(self._here)

    def _steps_made(self) -> int:
        slots = self._agent.optimizer.state[self._agent.parameters.values]
        return int(slots["step"])

    def begin(self, share_done: float) -> None:
        """Let all that have nothing to do sample, and learn from it."""
        while self._idle:
            learner = self._idle.pop(0)
            self._updates[learner] = Update(learner)
            known = {
                name: {key: tensor.numpy() for key, tensor in part.moments.state_dict().items()}
                for name, part in self._agent.normalization.parts.items()
            }
            self._tell(learner, "update", (self._lag.version, share_done, known))

    def next_update(self) -> Update | None:
        """Make the steps that can be made; the next update that has ended, or None where none has for a while."""
        if not self._done:
            busy = self._here - {*self._asking, *self._ended, *self._idle}
            for learner, message in self._pool.messages(busy):
                if isinstance(message, WorkerLostError):
                    self._lose(learner, message)
                else:
                    self._hear(learner, *message)
            self._make_steps()
        if not self._done:
            return None
        update = self._done.popleft()
        self._idle.append(update.learner)
        self.statistics.add_ended(*update.done["episodes"])
        self.env_steps += update.done["env_steps"]
        self.env_restarts += update.done["env_restarts"]
        for name, (mean, variance, number) in update.done["seen"].items():
            part = self._agent.normalization.parts[name]
            part.merge(torch.from_numpy(mean), torch.from_numpy(variance), number)
        self._losses.end_row(update.learner)
        return update

    def _hear(self, learner: int, kind: str, value: Any) -> None:
        if kind == "begins":
            self._asking.append(learner)
        elif kind == "gradient":
            self._ended[learner] = value
        else:
            self._updates[learner].done = value
            self._done.append(self._updates[learner])
            return
        is_waiting = not (self._lag.may_begin() if kind == "begins" else self._lag.may_step(learner))
        self._updates[learner].waits += is_waiting

    def _make_steps(self) -> None:
        """Make all steps that may be made, and let begin who may."""
        while True:
            ready = [learner for learner in self._ended if self._lag.may_step(learner)]
            if ready:
                self._step(ready[0])
            elif self._asking and self._lag.may_begin():
                learner = self._asking.popleft()
                update = self._updates[learner]
                self._lag.begin(learner)
                if update.begun_at is None:
                    update.begun_at = self._lag.version
                self._tell(learner, "go", self._norms[learner])
            else:
                return

    @np.errstate(over="ignore", invalid="ignore")  # what comes of it is looked at below
    def _step(self, learner: int) -> None:
        """The optimizer's step along a learner's gradient."""
        goes_on = self._ended.pop(learner)
        self._agent.parameters.gradient.copy_(self._gradients[learner])
        self._norms[learner] = norm = float(self._loop.descend())
        if not math.isfinite(norm):
            self._refuse(learner)
        self._updates[learner].lags.append(self._lag.step(learner))
        if not goes_on:
            self._tell(learner, "stepped", norm)
            return
        if not self._lag.may_begin():
            self._updates[learner].waits += 1
        self._asking.append(learner)

    def _refuse(self, learner: int) -> NoReturn:
        raise TrainingError(
            f"{self._pool.name(learner)}: its gradient after {self._lag.version} steps is not finite. Usual causes: a "
            f"learning rate that is too large (learning_rate is {self._agent.config.learning_rate:g}), rewards or "
            "observations that are not normalised. The parameters are lost, and nothing of them was saved: mend the "
            "cause, and start anew or from the last checkpoint, which was written before"
        )

    def _tell(self, learner: int, kind: str, value: Any) -> None:
        """Let a learner go on, by the parameters as they are now."""
        self._parameters[learner].copy_(self._agent.parameters.values.detach())
        try:
            self._pool.send(learner, (kind, value))
        except WorkerLostError as lost:
            self._lose(learner, lost)

    def _lose(self, learner: int, error: WorkerLostError) -> None:
        """Start another in place of one that is lost, where that is asked for; else go on without it."""
        self._lag.forget(learner)
        self._ended.pop(learner, None)
        for waiting in (self._asking, self._idle):
            if learner in waiting:
                waiting.remove(learner)
        self._pool.end(learner)
        if self._options.restarts:
            seed = self._env_seed + self._envs[learner].start
            self._losses.replace(learner, error, seed, partial(self._start_anew, learner))
            return
        self._here.discard(learner)
        if not self._here:
            raise DistributionError(
                f"no learner is left; the last: {error}. Nothing that was saved is lost: resume goes on from the last "
                "checkpoint, also with distribution='local'"
            )
        logger.warning(
            "%s\nThe other learners go on, without its environments (on_env_error='restart' starts another).", error
        )

    def _start_anew(self, learner: int, env_seed: int) -> None:
        envs = self._envs[learner]
        self.env_restarts += envs.stop - envs.start
        self._pool.end(learner)
        self._pool.start(learner, env_seed)
        self._pool.wait_until_ready([learner])
        self._pool.send(learner, ("restart", self._seeds(learner, env_seed)))
        self._idle.append(learner)

    def _seeds(self, learner: int, env_seed: int) -> dict[str, int]:
        return {"envs": env_seed, "noise": seed_of(self._seed, f"noise of learner {learner} from {env_seed}")}

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._env_seed, self._lag.version = env_seed, self._steps_made()
        for learner in sorted(self._here):
            self._tell(learner, "restart", self._seeds(learner, env_seed + self._envs[learner].start))

    def check(self, rollout: Any) -> None:
        """Any rollout will do: it is sampled again."""

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._arrays.close()

    def _stepper_state(self) -> NoReturn:
        raise EnvStateError(NOT_SAVED)

    def _load_stepper_state(self, *saved: Any) -> NoReturn:
        raise EnvStateError(NOT_SAVED)


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
        if not isinstance(config, PPOConfig):
            raise ConfigurationError(
                f"learners share the gradients of PPO only, got {type(config).__name__}: use distribution='local'"
            )
        needed = {"episodes_per_rollout": None, "compiled_updates": False, "pool_size": 1}
        asked = {name: getattr(config, name) for name in needed} | {"num_workers": run.num_workers or 0}
        for name, value in asked.items():
            if value != needed.get(name, 0):
                raise ConfigurationError(
                    f"{name}={value!r} cannot be had {whom}: use distribution='local' or 'multi', or leave it out"
                )
        if config.named_schedules.get("learning_rate") == ADAPTIVE:
            raise ConfigurationError(
                f"an adaptive learning rate cannot be had {whom}, which each see the KL divergence of their own rows "
                "alone: use another schedule, or distribution='local' or 'multi'"
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
        """On CPUs."""
        on_cpu = isinstance(meant, Auto) or (meant.settings() == SingleDevice("cpu").settings())
        if not on_cpu:
            raise ConfigurationError(
                f"learners sample and learn by turns on CPUs, got {meant}: use placement='cpu', or another distribution"
            )
        return meant

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
        require_shareable(job.agent)
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

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        reason = super().load_state(tensors, state, env_seed=env_seed)
        if self._rollout is not None:  # which another distribution had sampled, and not learned from
            self._rollout = None
            self.sampler.env_steps = self._steps_learned
        return reason
