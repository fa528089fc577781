"""The learners of `Central`, as their server has them: processes that sample, and compute gradients."""

import logging
import math
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, cast

import numpy as np
import torch

from hybridppo.agents import PPO
from hybridppo.distribution.lag import BoundedLag
from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.making import to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import pack
from hybridppo.errors import DistributionError, EnvStateError, TrainingError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.workers.pool import WorkerPool
from hybridppo.runners.workers.sampler import LOSSES_IN_A_ROW
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.system.seeds import seed_of

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.25
"""How long to wait for a message at most, before looking whether to stop, and whether all go on."""
NOT_SAVED = "learners of distribution central step them, each at its own pace"

Message = tuple[str, Any] | WorkerLostError


class LearnerPool(WorkerPool):
    """Processes of learners, whose messages come when they will."""

    def __init__(self, envs: list[slice], setup: bytes, heartbeats: list[Any], timeout: float) -> None:
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
class UpdateUnderWay:
    """What is counted of a learner's update while the server makes its steps."""

    lags: list[int] = field(default_factory=list)
    """Of its gradients."""
    waits: int = 0
    """How often it waited, for the bound on the lag."""
    begun_at: int | None = None
    """The version when its first gradient was begun."""


@dataclass(frozen=True)
class Update:
    """A rollout that a learner has learned from; all its steps are made."""

    learner: int
    metrics: dict[str, Any]
    """Those of the agent's update."""
    policy_lag: int
    """How many steps were made between the parameters that acted and those of its first gradient."""
    seconds: tuple[float, float]
    """For which it sampled, and learned."""
    of_server: UpdateUnderWay


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
        columns = config.num_envs * agents
        layout = RolloutBuffer.layout(config.num_steps, columns, template.encode, agent.distribution, agent.memory)
        # For its shapes alone: memory that nobody writes to is none.
        buffer = RolloutBuffer(**{name: np.empty(shape, dtype) for name, (shape, dtype) in layout.items()})
        super().__init__(
            bytearray(1), [buffer], agent.distribution, template.encode, noise=noise, memory=agent.memory,
            num_agents=agents,
            skips_row_after_end=template.skips_row_after_end, clips_rewards=template.clips_rewards,
        )  # fmt: skip
        self._agent, self._seed, self._env_seed, self._options = agent, seed, env_seed, options
        template.close()
        self._loop = agent.loop()
        self._lag = BoundedLag(max_lag, version=self._steps_made())
        self._envs = [slice(start, start + share) for start in range(0, config.num_envs, share)]
        size = agent.parameters.values.numel()
        shared: dict[str, tuple[tuple[int, ...], str]] = {}
        for number in range(learners):
            shared |= {f"parameters{number}": ((size,), "float32"), f"gradient{number}": ((size,), "float32")}
            shared |= {f"heartbeat{number}": ((2,), "int64")}
        self._arrays = SharedArrays(shared)
        self._parameters = [torch.from_numpy(self._arrays[f"parameters{number}"]) for number in range(learners)]
        self._gradients = [torch.from_numpy(self._arrays[f"gradient{number}"]) for number in range(learners)]
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
        heartbeats = [self._arrays[f"heartbeat{number}"] for number in range(learners)]
        self._pool = LearnerPool(self._envs, pack(setup), heartbeats, options.worker_timeout)
        self._here = set(range(learners))
        self._idle: list[int] = list(range(learners))
        self._asking: deque[int] = deque()
        self._ended: dict[int, bool] = {}  # who waits for its step, and whether it goes on after
        self._norms = dict.fromkeys(range(learners), 0.0)
        self._under_way_of = {number: UpdateUnderWay() for number in range(learners)}
        self._done: deque[tuple[int, dict[str, Any]]] = deque()
        self._losses, self._losses_in_a_row = [0] * learners, [0] * learners
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
            self._under_way_of[learner] = UpdateUnderWay()
            known = {
                name: {key: tensor.numpy() for key, tensor in part.moments.state_dict().items()}
                for name, part in self._agent.normalization.parts.items()
            }
            self._tell(learner, "update", (self._lag.version, share_done, known))

    def look(self) -> Update | None:
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
        learner, done = self._done.popleft()
        self._idle.append(learner)
        return self._counted(learner, done)

    def _hear(self, learner: int, kind: str, value: Any) -> None:
        if kind == "begins":
            self._asking.append(learner)
        elif kind == "gradient":
            self._ended[learner] = value
        else:
            self._done.append((learner, value))
            return
        is_waiting = not (self._lag.may_begin() if kind == "begins" else self._lag.may_step(learner))
        self._under_way_of[learner].waits += is_waiting

    def _make_steps(self) -> None:
        """Make all steps that may be made, and let begin who may."""
        while True:
            ready = [learner for learner in self._ended if self._lag.may_step(learner)]
            if ready:
                self._step(ready[0])
            elif self._asking and self._lag.may_begin():
                learner = self._asking.popleft()
                under_way = self._under_way_of[learner]
                self._lag.begin(learner)
                if under_way.begun_at is None:
                    under_way.begun_at = self._lag.version
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
        self._under_way_of[learner].lags.append(self._lag.step(learner))
        if not goes_on:
            self._tell(learner, "stepped", norm)
            return
        if not self._lag.may_begin():
            self._under_way_of[learner].waits += 1
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

    def _counted(self, learner: int, done: dict[str, Any]) -> Update:
        """Count what a learner has learned from."""
        agents, envs = self._num_agents, self._envs[learner]
        columns = slice(envs.start * agents, envs.stop * agents)
        for block in done["blocks"]:
            self.statistics.add(*(self._in_columns(array, columns) for array in block))
        self.env_steps += done["env_steps"]
        self.env_restarts += done["env_restarts"]
        for name, (mean, variance, number) in done["seen"].items():
            part = self._agent.normalization.parts[name]
            part.merge(torch.from_numpy(mean), torch.from_numpy(variance), number)
        self._losses_in_a_row[learner] = 0
        under_way = self._under_way_of[learner]
        # Without a step in its rollout, a learner has given no gradient.
        policy_lag = 0 if under_way.begun_at is None else under_way.begun_at - done["version"]
        return Update(learner, done["metrics"], policy_lag, done["seconds"], under_way)

    def _in_columns(self, array: Any, columns: slice) -> Any:
        """A learner's columns `[T, n]` among those of all."""
        if array is None:
            return None
        whole = np.zeros((len(array), self.num_envs), array.dtype)
        whole[:, columns] = array
        return whole

    def _lose(self, learner: int, error: WorkerLostError) -> None:
        """Start another in place of one that is lost, where that is asked for; else go on without it."""
        self._lag.forget(learner)
        self._ended.pop(learner, None)
        for waiting in (self._asking, self._idle):
            if learner in waiting:
                waiting.remove(learner)
        agents, envs = self._num_agents, self._envs[learner]
        self.statistics.drop_running(slice(envs.start * agents, envs.stop * agents))
        self._pool.end(learner)
        while self._options.restarts:
            self._losses[learner] += 1
            self._losses_in_a_row[learner] += 1
            if self._losses_in_a_row[learner] > LOSSES_IN_A_ROW:
                times = self._losses_in_a_row[learner]
                raise DistributionError(f"lost {times} times without a whole rollout between, the last: {error}")
            logger.warning("%s\nAnother is started in its place; what it had not learned from is dropped.", error)
            self.env_restarts += envs.stop - envs.start
            parts = [self._env_seed + envs.start, self._losses[learner]]
            try:
                self._start_anew(learner, int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1))
            except WorkerLostError as again:
                error = again
                self._pool.end(learner)
            else:
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
        self._pool.start(learner, env_seed)
        self._pool.wait_until_ready([learner])
        self._pool.send(learner, ("restart", self._seeds(learner, env_seed)))
        self._idle.append(learner)

    def _seeds(self, learner: int, env_seed: int) -> dict[str, int]:
        return {"envs": env_seed, "noise": seed_of(self._seed, f"noise of learner {learner} from {env_seed}")}

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return 0.0

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._env_seed, self._lag.version = env_seed, self._steps_made()
        for learner in sorted(self._here):
            self._tell(learner, "restart", self._seeds(learner, env_seed + self._envs[learner].start))

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._arrays.close()

    def _begin(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> NoReturn:
        raise AssertionError("learners sample for themselves")

    def _end(self) -> tuple[int, FinalObservations]:
        raise AssertionError("learners sample for themselves")

    def _stepper_state(self) -> StepperState:
        raise EnvStateError(NOT_SAVED)

    def _load_stepper_state(self, states: list[EnvState], observation: Any, remembered: Any) -> None:
        raise EnvStateError(NOT_SAVED)
