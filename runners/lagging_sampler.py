"""Sampling without waiting: a rollout has the steps that are there first (`max_lag` above 1).

    worker 0   | part | part | part | part |           parts of a few steps; the newest parameters act in each
    worker 1   |     part     |     part     |
    rollout    | as many parts as fill `num_steps` of `num_envs` columns, those of the oldest parameters first |

Workers are ahead of the learner by one rollout; by more if the learner had to wait although a worker was idle; and by
at most `max_lag` rollouts. Every part is in one rollout. A part whose parameters are more than `max_lag` updates old is
dropped and counted. A slow environment has fewer parts; each of its steps has the same weight as any other step.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.base import Environments, Steering
from hybridppo.environments.infos import Sums
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.rollout import FinalObservations, Rollout
from hybridppo.runners.filling import Filled
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import RolloutPlan, Sampler
from hybridppo.runners.workers import Workers
from hybridppo.spaces.arrays import Array
from hybridppo.system.signals import Stopped
from hybridppo.system.validation import whole

FEWEST_STEPS = 16
"""The fewest steps of a part, unless a rollout has fewer: each part costs two messages."""
ROLLOUTS_AHEAD = 1
"""The fewest rollouts that workers are ahead."""
MOST_PARTS = 8
"""The most parts that the steps of a rollout are divided into."""


@dataclass
class Part:
    """A few steps of one worker's environments."""

    worker: int
    number: int
    """Its place among the parts of its worker."""
    versions: Array
    """The versions of the parameters that acted, `[steps]`."""
    is_anew: bool = False
    """Whether its environments were restarted before it, in a new worker."""
    is_asked: bool = False
    """Whether the worker was asked to fill it."""
    filled: int = 0
    """The number of steps so far."""
    finals: FinalObservations = field(default_factory=list)
    infos: list[Sums] = field(default_factory=list)
    seconds: float = 0.0
    """The seconds that the steps took."""
    counted: Any = None
    """Its `CountedRows`, when they are counted."""

    def oldest(self) -> int:
        """The oldest version that acted."""
        return int(self.versions.min())

    def continues(self, before: "Part") -> bool:
        """Whether its first step follows the last step of another part."""
        follows = self.worker == before.worker and self.number == before.number + 1
        return follows and not self.is_anew and self.counted is not None and self.counted.is_whole


class LaggingSampler(Sampler):
    """Workers step without waiting for the slowest one, or for an update.

    Args:
        plan: what a rollout is made of.
        template: as for `Workers`.
        max_lag: the largest policy lag.
        drops: whether steps that are too old are dropped; an agent with a replay buffer learns from them, too.
        num_envs: number of environments.
        num_workers: processes; must divide `num_envs`.
        **options: as for `Workers`.
    """

    rows_are = "in parts of workers"

    def __init__(
        self,
        plan: RolloutPlan,
        *,
        template: Environments,
        max_lag: int,
        drops: bool,
        num_envs: int,
        num_workers: int,
        **options: Any,
    ) -> None:
        num_steps, distribution = plan.num_steps, plan.distribution
        is_one_piece = (
            template.encode.frames is not None  # the frames before the first are stored for a whole column
            or template.waiting is not None  # a turn may reach from one part to the next
            or distribution.noise_rows(num_steps) < num_steps  # a row of noise is for many steps
        )
        steps = num_steps if is_one_piece else steps_of_a_part(num_steps)
        self._num_parts = num_steps // steps
        self._most_room = max_lag * self._num_parts
        self._least_room = min(ROLLOUTS_AHEAD * self._num_parts, self._most_room)
        self._room = self._least_room
        """The most parts of each worker that are not in a rollout yet."""
        options |= {"num_envs": num_envs, "num_workers": num_workers, "num_buffers": self._most_room}
        workers = Workers(plan=replace(plan, num_steps=steps), template=template, **options)
        workers.on_loss, self._workers = self._begin_anew, workers
        super().__init__(workers, plan)
        layout = Rollout.layout(num_steps, self.num_envs, template.encode, distribution, infos=template.step_infos)
        del layout["noise"]  # which only parts have
        self._rollout_buffer = Rollout.in_memory(layout, plan.pin_for)
        self._steps, self._width = steps, self.num_envs // num_workers
        self._envs = workers.columns
        self._max_lag, self._drops = max_lag, drops
        self.steps_dropped = 0
        """Environment steps that were too old to learn from."""
        self._version = 0
        self._begun, self._given = [0] * num_workers, [0] * num_workers
        """How many parts of each worker have begun, and how many of these are in rollouts or were dropped."""
        self._is_anew = [False] * num_workers
        self._unfilled: list[deque[Part]] = [deque() for _ in range(num_workers)]
        """The parts of each worker that are not full, in their order."""
        self._done: deque[Part] = deque()
        """Full parts: those of the oldest parameters first, and else in the order of their ends."""
        self._is_going = False
        self._measured_at = time.perf_counter()

    @property
    def is_under_way(self) -> bool:
        """Whether there are steps that are not in a rollout yet, or workers are stepping."""
        return self._is_going or bool(self._done) or any(self._unfilled)

    @property
    def is_paused(self) -> bool:
        """Whether there are such steps, and workers are idle."""
        return self.is_under_way and not self._is_going

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, but with the steps that are not in a rollout yet."""
        with self._all_counted():
            return self.counts.env_steps

    def sample_async(self, actor: SamplingActor) -> None:
        """Use a copy of these parameters in all parts that begin from now on; let workers fill free parts.

        It may be called while workers step.
        """
        self._workers.publish(actor)
        self._version = actor.version
        self._is_going = True
        self._ask_for_more()

    def _ask_for_more(self) -> None:
        for worker, parts in enumerate(self._unfilled):
            while self._begun[worker] - self._given[worker] < self._room:
                self._add_part(worker)
            while (part := next((part for part in parts if not part.is_asked), None)) is not None:
                part.is_asked = self._workers.fill(worker, self._turn_of(part), part.filled)

    def _turn_of(self, part: Part) -> int:
        """The number of its buffer; a worker's parts are given away in their order."""
        return part.number % self._most_room

    def _add_part(self, worker: int) -> None:
        part = Part(worker, self._begun[worker], np.zeros(self._steps, np.int64), self._is_anew[worker])
        self._begun[worker], self._is_anew[worker] = part.number + 1, False
        noise = self._buffers[self._turn_of(part)].noise
        shape = len(noise), self._width
        noise[:, self._envs[worker]] = self._plan.distribution.draw_noise(self._plan.noise, shape)
        self._unfilled[worker].append(part)

    def _begin_anew(self, worker: int) -> None:
        """Let a new worker fill the parts that a lost one has not filled."""
        parts = self._unfilled[worker]
        for i, part in enumerate(parts):
            parts[i] = Part(worker, part.number, part.versions, is_anew=i == 0)
        self._is_anew[worker] = not parts

    @property
    def _asked(self) -> list[int]:
        """The workers that fill a part."""
        return [worker for worker, parts in enumerate(self._unfilled) if any(part.is_asked for part in parts)]

    def _look(self, *, patient: bool) -> None:
        """Wait for one answer; if not `patient`, take one answer from each worker that has answered already."""
        try:
            for worker, answer in self._workers.pool.answers(self._asked, patience=None if patient else 0.0):
                if isinstance(answer, WorkerLostError):
                    self._workers.replace(worker, answer)
                else:
                    self._take(self._unfilled[worker], *answer)
                if patient:
                    return
        except BaseException as error:
            self._note(error)
            raise

    def _take(self, parts: deque[Part], filled: Filled, seconds: float) -> None:
        part = next(part for part in parts if part.is_asked)
        part.versions[part.filled : filled.rows] = filled.version
        part.filled, part.is_asked = filled.rows, False
        part.finals += filled.finals
        part.infos += [filled.infos] if filled.infos is not None else []
        part.seconds += seconds
        if part.filled == self._steps:  # else it was stopped
            parts.popleft()
            self._workers.pool.end_row(part.worker)
            # The parts of a worker stay in order, because its versions never fall.
            self._done = deque(sorted((*self._done, part), key=Part.oldest))

    def _has_enough(self) -> bool:
        """Drop parts that are too old; return whether the others are enough for a rollout."""
        while self._drops and self._done and self._version - self._done[0].oldest() > self._max_lag:
            part, before = self._done.popleft(), self.counts.env_steps
            self._count(part)
            self.steps_dropped += self.counts.env_steps - before
            self._given[part.worker] += 1
        return len(self._done) >= self._num_parts * len(self._envs)

    def pause(self) -> None:
        """Stop the workers after their present steps."""
        self._stop[0] = 1
        try:
            while self._asked:
                self._look(patient=True)
        finally:
            self._stop[0] = 0
        self._is_going = False

    def wait(self) -> None:
        """As `pause`, because there is always a part that has not ended."""
        self.pause()

    def give_up(self, reason: str) -> None:
        """As in the base; drops all parts."""
        super().give_up(reason)
        self._is_going = False
        for parts in (self._done, *self._unfilled):
            parts.clear()

    def sample_wait(self) -> Rollout:
        """A rollout of the parts that were filled first.

        Raises:
            Stopped: if workers were stopped before there were enough.
        """
        while True:
            self._look(patient=False)
            if len(self._done) >= 2 * self._num_parts * len(self._envs):  # one rollout more than needed
                self._room = max(self._least_room, self._room - 1)
            while not self._has_enough():
                if not self._stop[0]:
                    # No worker is idle while the learner waits.
                    self._room = min(self._most_room, self._room + (len(self._asked) < len(self._envs)))
                    self._ask_for_more()
                if not self._asked:
                    self._is_going = False
                    raise Stopped
                self._look(patient=True)
                self._look(patient=False)  # else the same workers would always be first
            number = self._num_parts * len(self._envs)
            buffer, valid, finals, versions, returns = self._joined([self._done.popleft() for _ in range(number)])
            if self._has_steps(buffer, valid):
                break
            self._ask_for_more()
        self.infos.end_rollout()
        before, self._measured_at = self._measured_at, time.perf_counter()
        self.metrics = {
            "policy_lag_mean": self._version - float(versions.mean()),
            "steps_dropped": self.steps_dropped,
            "samplers_busy": min(1.0, self.seconds_filling / (self._measured_at - before)),
        }
        rollout = self._rollout_of(buffer, valid, finals, int(versions.min()), returns)
        if buffer.waiting.any():  # the steps of turns are other rows
            versions = np.full(tuple(rollout.rewards.shape), rollout.version)
        return rollout.with_columns(versions=torch.from_numpy(versions))

    def _joined(self, parts: Sequence[Part]) -> tuple[Rollout, Array, FinalObservations, Array, Array]:
        """A rollout of these parts: arrays, which rows are steps, final observations, versions and returns `[T, N]`.

        If other steps follow a part in its column, its episodes are truncated there, so that they are bootstrapped.
        """
        whole, steps, width = self._rollout_buffer, self._steps, self._width
        valid, versions = np.zeros(whole.rewards.shape, np.bool_), np.zeros(whole.rewards.shape, np.int64)
        returns = np.zeros(whole.rewards.shape, np.float32)
        finals: FinalObservations = []
        for part in parts:  # in the order of time, which is not that of the columns
            self._count(part)
        ordered = sorted(parts, key=lambda part: (part.worker, part.number))  # so that most parts continue others
        for i, part in enumerate(ordered):
            number, place = divmod(i, self._num_parts)
            envs, rows = slice(number * width, (number + 1) * width), slice(place * steps, (place + 1) * steps)
            counted = part.counted
            ours = self._buffers[self._turn_of(part)].of(self._envs[part.worker])
            for name, array in ours.columns().items():
                if name != "noise":
                    start = 0 if name == "history" else rows.start
                    whole.columns()[name][start : start + len(array), envs] = array
            whole.terminated[rows, envs] = counted.terminated
            valid[rows, envs], versions[rows, envs] = counted.valid, part.versions[:, None]
            returns[rows, envs] = counted.returns
            known = {(step, env) for step, env, _ in part.finals}
            finals += [(rows.start + step, envs.start + env, final) for step, env, final in part.finals]
            if place + 1 < self._num_parts and not ordered[i + 1].continues(part):
                for env in np.flatnonzero(counted.valid[-1] & ~counted.terminated[-1]).tolist():
                    whole.truncated[rows.stop - 1, envs.start + env] = True
                    if (steps - 1, env) not in known:
                        finals.append((rows.stop - 1, envs.start + env, ours.observations[steps, env].copy()))
            self._given[part.worker] += 1
        self._workers.infos = [sums for part in parts for sums in part.infos]
        self.seconds_filling = sum(part.seconds for part in parts) / len(self._envs)
        return whole, valid, sorted(finals, key=lambda final: final[:2]), versions, returns

    def _count(self, part: Part) -> None:
        """Count a part's steps; parts must be counted in the order of time."""
        envs = self._envs[part.worker]
        if part.is_anew:
            self.counts.drop_running(envs)
            self.counts.env_restarts += self._width // self._workers.num_agents
        part.counted = self.counts.add_columns(self._buffers[self._turn_of(part)].of(envs), envs, part.filled)

    @contextmanager
    def _all_counted(self) -> Iterator[None]:
        """A context in which the steps that are not in a rollout yet are counted, as dropped."""
        counts, dropped = self.counts.state(), self.steps_dropped
        try:
            for part in (*self._done, *(part for parts in self._unfilled for part in parts if part.filled)):
                self._count(part)
            self.steps_dropped += self.counts.env_steps - counts["env_steps"]
            yield
        finally:
            self.counts.load_state(counts)
            self.steps_dropped = dropped

    def steer(self, steering: Steering) -> list[Any]:
        """As in the base, but at once, after the present step of each worker."""
        self.pause()
        return super().steer(steering)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base; steps that are not in a rollout yet count as dropped."""
        with self._all_counted():
            tensors, state = super().state()
            return tensors, {**state, "steps_dropped": self.steps_dropped}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        self.steps_dropped = whole({"steps_dropped": 0, **state}, "steps_dropped")  # a run without lag has none
        return super().load_state(tensors, state, env_seed=env_seed)


def steps_of_a_part(num_steps: int) -> int:
    """The number of steps of a part: the smallest that is allowed."""
    fits = (steps for steps in range(FEWEST_STEPS, num_steps) if num_steps % steps == 0)
    return next((steps for steps in fits if num_steps <= MOST_PARTS * steps), num_steps)
