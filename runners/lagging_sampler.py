"""Sampling without waiting: a rollout has the steps that are there first (`max_lag` above 1).

    worker 0   | part | part | part | part |           parts of a few steps; the newest parameters act in each
    worker 1   |     part     |     part     |
    rollout    | as many parts as fill `num_steps` of `num_envs` columns, those of the oldest parameters first |

Workers are ahead of the learner by one rollout; by more if the learner had to wait although a worker was idle; and by
at most `max_lag` rollouts. Every part is in one rollout. A part whose parameters are more than `max_lag` updates old is
dropped and counted. A slow environment has fewer parts; each of its steps has the same weight as any other step.
"""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.deterministic import GaussianExploration
from hybridppo.environments.base import Environments
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.options import EnvSource
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.page_locking import allocate
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.filling import Filled
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import BaseSampler, require_like
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
COUNTED = ("statistics", "by_policy", "env_steps", "env_restarts", "steps_dropped", "_resetting", "_so_far")
"""The attributes that change when steps are counted."""
COUNTED_FROM = ("rewards", "terminated", "truncated", "restarted", "absent", "waiting")
"""The arrays of a rollout that steps are counted from."""


@dataclass
class Part:
    """A few steps of one worker's environments."""

    worker: int
    number: int
    """Its place among the parts of its worker."""
    turn: int
    """The number of its buffer."""
    versions: Array
    """The versions of the parameters that acted, `[steps]`."""
    is_anew: bool
    """Whether its environments were restarted before it, in a new worker."""
    filled: int = 0
    """The number of steps so far."""
    finals: FinalObservations = field(default_factory=list)
    infos: list[Sums] = field(default_factory=list)
    seconds: float = 0.0
    """The seconds that the steps took."""

    def oldest(self) -> int:
        """The oldest version that acted."""
        return int(self.versions.min())

    def begin_again(self, is_anew: bool) -> None:
        """Drop the steps so far."""
        self.filled, self.finals, self.infos, self.seconds, self.is_anew = 0, [], [], 0.0, is_anew


@dataclass(frozen=True)
class Counted:
    """A part whose steps are counted."""

    part: Part
    valid: Array
    """Which rows are steps, `[steps, n]`."""
    terminated: Array
    """`[steps, n]`; also where a restart broke off an episode."""
    is_whole: bool
    """Whether no environment was restarted in it."""
    returns: Array
    """The discounted return of the episode up to each step, `[steps, n]`."""

    def continues(self, before: "Counted") -> bool:
        """Whether its first step follows the last step of another part."""
        ours, theirs = self.part, before.part
        follows = ours.worker == theirs.worker and ours.number == theirs.number + 1
        return follows and self.is_whole and not ours.is_anew


class LaggingSampler(BaseSampler):
    """Workers step without waiting for the slowest one, or for an update.

    Args:
        source: as for `Workers`.
        template: as for `Workers`.
        distribution: distribution of the actions.
        network: as for `Workers`.
        max_lag: the largest policy lag.
        drops: whether steps that are too old are dropped; an agent with a replay buffer learns from them, too.
        num_envs: number of environments; None for as many as in the template.
        num_workers: processes; must divide `num_envs`.
        num_steps: `T`.
        noise: generator of the actions' randomness.
        discounts: as for `BaseSampler`.
        **options: as for `Workers`.

    Raises:
        ConfigurationError: if these environments or this agent cannot be sampled in this way.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        distribution: Distribution,
        network: nn.Module,
        *,
        max_lag: int,
        drops: bool,
        num_envs: int | None = None,
        num_workers: int,
        num_steps: int,
        noise: np.random.Generator,
        discounts: Callable[[], Array],
        **options: Any,
    ) -> None:
        num_envs = num_envs if num_envs is not None else template.num_envs // template.num_agents
        _require_possible(max_lag, num_envs, num_workers, has_memory=options.get("memory") is not None)
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
        options |= {"num_envs": num_envs, "num_workers": num_workers, "num_steps": steps}
        workers = self._workers = self._stepper = Workers(
            source, template, distribution, network, self._begin_anew, num_buffers=self._most_room, **options
        )
        stop, buffers = workers.pool.stop, workers.pool.buffers
        super().__init__(workers, stop, buffers, distribution, noise=noise, discounts=discounts)
        layout = RolloutBuffer.layout(num_steps, self.num_envs, template.encode, distribution)
        (_, *noise_shape), dtype = layout["noise"]  # only parts have noise
        self._rollout_buffer = allocate({**layout, "noise": ((0, *noise_shape), dtype)}, workers.work.pin_for)
        self.num_steps, self._steps, self._width = num_steps, steps, self.num_envs // num_workers
        self._envs = workers.columns
        self._max_lag, self._drops = max_lag, drops
        self.steps_dropped = 0
        """Environment steps that were too old to learn from."""
        self._version = 0
        self._free = [deque(range(self._most_room)) for _ in range(num_workers)]
        self._numbers = [0] * num_workers
        self._anew = [False] * num_workers
        self._to_fill: list[deque[Part]] = [deque() for _ in range(num_workers)]
        """Parts that are not being filled; those that were broken off come first."""
        self._asked_for: list[deque[Part]] = [deque() for _ in range(num_workers)]
        """Parts that workers fill, in their order."""
        self._done: deque[Part] = deque()
        """Full parts: those of the oldest parameters first, and else in the order of their ends."""
        self._is_going = False
        self._busy, self._seconds, self._since, self._lag_mean = 0.0, 0.0, 0.0, 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether there are steps that are not in a rollout yet, or workers are stepping."""
        return self._is_going or bool(self._done) or any(self._to_fill)

    @property
    def is_paused(self) -> bool:
        """Whether there are such steps, and workers are idle."""
        return self.is_under_way and not self._is_going

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, but with the steps that are not in a rollout yet."""
        with self._all_counted():
            return self.env_steps

    def metrics(self) -> Metrics:
        """The mean lag of the last rollout, the dropped steps, and the share of the time that workers were busy."""
        seconds = self._seconds + (time.perf_counter() - self._since if self._is_going else 0.0)
        return {
            "policy_lag_mean": self._lag_mean,
            "steps_dropped": self.steps_dropped,
            "samplers_busy": min(1.0, self._busy / (len(self._envs) * seconds)) if seconds else 0.0,
        }

    def sample_async(self, actor: SamplingActor) -> None:
        """Use a copy of these parameters in all parts that begin from now on; let workers fill free parts.

        It may be called while workers step.
        """
        self._workers.publish(actor)
        self._version = actor.version
        if not self._is_going:
            self._is_going, self._since = True, time.perf_counter()
        self._ask_for_more()

    def _ask_for_more(self) -> None:
        for worker, free in enumerate(self._free):
            to_fill = self._to_fill[worker]
            while self._most_room - len(free) < self._room:
                to_fill.append(self._new_part(worker, free.popleft()))
            while to_fill:
                if self._workers.fill(worker, to_fill[0].turn, to_fill[0].filled):
                    self._asked_for[worker].append(to_fill.popleft())

    def _new_part(self, worker: int, turn: int) -> Part:
        noise, envs, distribution = self._buffers[turn].noise, self._envs[worker], self._distribution
        if isinstance(distribution, GaussianExploration):  # the noise of an environment may continue
            noise[:, envs] = distribution.draw_noise_of(envs, self._noise, len(noise))
        else:
            noise[:, envs] = distribution.draw_noise(self._noise, (len(noise), self._width))
        self._numbers[worker] += 1
        is_anew, self._anew[worker] = self._anew[worker], False
        return Part(worker, self._numbers[worker], turn, np.zeros(self._steps, np.int64), is_anew)

    def _begin_anew(self, worker: int) -> None:
        """Let a new worker fill the parts that a lost one has not filled."""
        parts = [*self._asked_for[worker], *self._to_fill[worker]]
        for part in parts:
            part.begin_again(is_anew=part is parts[0])
        self._anew[worker] = not parts
        self._asked_for[worker].clear()
        self._to_fill[worker].clear()  # in place, because `_ask_for_more` holds it
        self._to_fill[worker].extend(parts)

    def _look(self, *, patient: bool) -> None:
        """Wait for one answer; if not `patient`, take one answer from each worker that has answered already."""
        owing = [worker for worker, parts in enumerate(self._asked_for) if parts]
        with self._noting_faults():
            for worker, answer in self._workers.pool.answers(owing, patience=None if patient else 0.0):
                if isinstance(answer, WorkerLostError):
                    self._workers.replace(worker, answer)
                else:
                    self._take(self._asked_for[worker].popleft(), *answer)
                if patient:
                    return

    def _take(self, part: Part, filled: Filled, seconds: float) -> None:
        part.versions[part.filled : filled.rows] = filled.version
        part.filled = filled.rows
        part.finals += filled.finals
        part.infos += [filled.infos] if filled.infos is not None else []
        part.seconds += seconds
        self._busy += seconds
        if part.filled < self._steps:  # it was stopped
            self._to_fill[part.worker].append(part)
        else:
            self._workers.losses.end_row(part.worker)
            # The parts of a worker stay in order, because its versions never fall.
            self._done = deque(sorted((*self._done, part), key=Part.oldest))

    def _has_enough(self) -> bool:
        """Drop parts that are too old; return whether the others are enough for a rollout."""
        while self._drops and self._done and self._version - self._done[0].oldest() > self._max_lag:
            part, before = self._done.popleft(), self.env_steps
            self._counted(part)
            self.steps_dropped += self.env_steps - before
            self._free[part.worker].append(part.turn)
        return len(self._done) >= self._num_parts * len(self._envs)

    def pause(self) -> None:
        """Stop the workers after their present steps."""
        self._stop[0] = 1
        try:
            while any(self._asked_for):
                self._look(patient=True)
        finally:
            self._stop[0] = 0
        self._halt()

    def wait(self) -> None:
        """As `pause`, because there is always a part that has not ended."""
        self.pause()

    def _halt(self) -> None:
        if self._is_going:
            self._is_going = False
            self._seconds += time.perf_counter() - self._since

    def give_up(self, reason: str) -> None:
        """As in the base; drops all parts."""
        super().give_up(reason)
        self._halt()
        for parts in (self._done, *self._to_fill, *self._asked_for):
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
                    self._room = min(self._most_room, self._room + (not all(self._asked_for)))
                    self._ask_for_more()
                if not any(self._asked_for):
                    self._halt()
                    raise Stopped
                self._look(patient=True)
                self._look(patient=False)  # else the same workers would always be first
            number = self._num_parts * len(self._envs)
            buffer, valid, finals, versions, returns = self._joined([self._done.popleft() for _ in range(number)])
            if self._has_steps(buffer, valid):
                break
            self._ask_for_more()
        self._measure_rollout()
        self._lag_mean = self._version - float(versions.mean())
        rollout = self._rollout_of(buffer, valid, finals, int(versions.min()), returns)
        if buffer.waiting.any():  # the steps of turns are other rows
            versions = np.full(tuple(rollout.rewards.shape), rollout.version)
        return replace(rollout, versions=torch.from_numpy(versions))

    def _joined(self, parts: Sequence[Part]) -> tuple[RolloutBuffer, Array, FinalObservations, Array, Array]:
        """A rollout of these parts: arrays, which rows are steps, final observations, versions and returns `[T, N]`.

        If other steps follow a part in its column, its episodes are truncated there, so that they are bootstrapped.
        """
        whole, steps, width = self._rollout_buffer, self._steps, self._width
        valid, versions = np.zeros(whole.rewards.shape, np.bool_), np.zeros(whole.rewards.shape, np.int64)
        returns = np.zeros(whole.rewards.shape, np.float32)
        finals: FinalObservations = []
        # Steps are counted in the order of time, which is not that of the columns.
        columns = in_columns([self._counted(part) for part in parts], self._num_parts)
        for number, column in enumerate(columns):
            envs = slice(number * width, (number + 1) * width)
            for place, counted in enumerate(column):
                part, rows = counted.part, slice(place * steps, (place + 1) * steps)
                ours = self._buffers[part.turn].of(self._envs[part.worker])
                for name, array in ours.arrays.items():
                    if name != "noise":
                        start = 0 if name == "history" else rows.start
                        getattr(whole, name)[start : start + len(array), envs] = array
                whole.terminated[rows, envs] = counted.terminated
                valid[rows, envs], versions[rows, envs] = counted.valid, part.versions[:, None]
                returns[rows, envs] = counted.returns
                known = {(step, env) for step, env, _ in part.finals}
                finals += [(rows.start + step, envs.start + env, final) for step, env, final in part.finals]
                if place + 1 < self._num_parts and not column[place + 1].continues(counted):
                    for env in np.flatnonzero(counted.valid[-1] & ~counted.terminated[-1]).tolist():
                        whole.truncated[rows.stop - 1, envs.start + env] = True
                        if (steps - 1, env) not in known:
                            finals.append((rows.stop - 1, envs.start + env, ours.observations[steps, env].copy()))
                self._free[part.worker].append(part.turn)
        self._workers.infos = [sums for part in parts for sums in part.infos]
        self.seconds_filling = sum(part.seconds for part in parts) / len(self._envs)
        return whole, valid, sorted(finals, key=lambda final: final[:2]), versions, returns

    def _counted(self, part: Part) -> Counted:
        """Count a part's steps; parts must be counted in the order of time."""
        envs, filled = self._envs[part.worker], part.filled
        if part.is_anew:
            self.drop_running(envs)
            self._resetting[envs] = False
            self.env_restarts += self._width // self._num_agents
        ours = self._buffers[part.turn].of(envs)
        block: Any = SimpleNamespace()
        for name in COUNTED_FROM:
            array = getattr(ours, name)
            rows = np.full((filled, self.num_envs), name == "absent", array.dtype)  # all other columns are absent
            rows[:, envs] = array[:filled]
            setattr(block, name, rows)
        resetting = self._resetting.copy()
        valid, broken_off = self._count(block)
        resetting[envs] = self._resetting[envs]
        self._resetting = resetting
        returns = self._returns_so_far(block, valid, envs)
        return Counted(part, valid[:, envs], block.terminated[:, envs], broken_off is None, returns)

    @contextmanager
    def _all_counted(self) -> Iterator[None]:
        """A context in which the steps that are not in a rollout yet are counted, as dropped."""
        before = {name: copy.deepcopy(getattr(self, name)) for name in COUNTED}
        try:
            for part in (*self._done, *(part for parts in self._to_fill for part in parts if part.filled)):
                self._counted(part)
            self.steps_dropped += self.env_steps - before["env_steps"]
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def steer(self, steering: Steering, *, while_paused: bool = False) -> list[Any]:
        """As in the base, but at once, after the present step of each worker."""
        self.pause()
        return self._steered(steering)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base; steps that are not in a rollout yet count as dropped."""
        with self._all_counted():
            tensors, state = super().state()
            return tensors, {**state, "steps_dropped": self.steps_dropped}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        self.steps_dropped = whole({"steps_dropped": 0, **state}, "steps_dropped")
        return super().load_state(tensors, state, env_seed=env_seed)

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Count and drop a rollout that a training with less lag had begun; steer what has waited for its end."""
        self._steer_what_is_due()
        before, shape = self.env_steps, (whole(state, "filled"), self.num_envs)
        block: Any = SimpleNamespace()
        for name in COUNTED_FROM:
            like = np.zeros(shape, getattr(self._rollout_buffer, name).dtype)
            found = tensors[f"buffer.{name}"]
            require_like(f"buffer.{name}", found, like)
            setattr(block, name, found.numpy())
        if shape[0]:
            valid, _ = self._count(block)
            self._returns_so_far(block, valid, slice(None))
        self.steps_dropped += self.env_steps - before


def _require_possible(max_lag: int, num_envs: int, num_workers: int, *, has_memory: bool) -> None:
    if num_envs % num_workers:
        raise ConfigurationError(
            f"num_envs={num_envs} must be a multiple of num_workers={num_workers} with max_lag={max_lag}, so that each "
            "worker has as many environments: choose another number"
        )
    if has_memory:
        raise ConfigurationError(
            f"recurrent does not work with max_lag={max_lag}, because the columns of its rollouts change their "
            "environments: leave it out, or use max_lag=1"
        )


def steps_of_a_part(num_steps: int) -> int:
    """The number of steps of a part: the smallest that is allowed."""
    fits = (steps for steps in range(FEWEST_STEPS, num_steps) if num_steps % steps == 0)
    return next((steps for steps in fits if num_steps <= MOST_PARTS * steps), num_steps)


def in_columns(parts: Sequence[Counted], length: int) -> list[list[Counted]]:
    """Arrange parts in columns, so that few are followed by a part that does not continue them.

    Args:
        parts: in the order of time, as many as fill whole columns.
        length: parts of a column.
    """
    last: dict[int, Counted] = {}
    runs: dict[int, list[list[Counted]]] = {}
    for part in parts:
        worker = part.part.worker
        of_worker = runs.setdefault(worker, [])
        if worker not in last or not part.continues(last[worker]):
            of_worker.append([])
        of_worker[-1].append(part)
        last[worker] = part
    whole, rest = [], []
    for run in (run for worker in sorted(runs) for run in runs[worker]):
        end = len(run) - len(run) % length
        whole += [run[i : i + length] for i in range(0, end, length)]
        rest += run[end:]
    return whole + [rest[i : i + length] for i in range(0, len(rest), length)]
