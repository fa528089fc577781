"""Sampling without waiting: a rollout is what is there first (`max_lag` above 1).

    worker 0   | part | part | part | part |           parts of a few steps, one after the other; each is acted by the
    worker 1   |     part     |     part     |         newest parameters when it begins
    rollout    | the parts that are there, the oldest first, as many as fill `num_steps` of `num_envs` columns |

Workers are ahead of the learner by as much as keeps it busy: by one rollout at least, by more if it had to wait while
one of them had nothing to do, and by `max_lag` rollouts at most. Every part is learned from once, in whichever rollout,
unless its parameters are more than `max_lag` updates old by then: it is dropped and counted then. A slow environment
has fewer parts, and each of its steps weighs as much as any other.
"""

import copy
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.environments.base import Environments
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.options import EnvSource
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.page_locking import allocate
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.workers.sampler import WorkerSampler
from hybridppo.runners.workers.share import Filled
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.state_dependent import noise_rows
from hybridppo.system.interruption import Stopped
from hybridppo.system.validation import whole

Array = NDArray[Any]

FEWEST_STEPS = 16
"""Steps of a part at least, unless a rollout has fewer: each part is a message there and one back."""
ROLLOUTS_AHEAD = 1
"""How many rollouts workers are ahead at least."""
MOST_PARTS = 8
"""Into how many parts the steps of a rollout are divided at most."""
COUNTED = ("statistics", "by_policy", "env_steps", "env_restarts", "steps_dropped", "_resetting")
"""What changes when steps are counted."""


@dataclass
class Part:
    """Some steps of one worker's environments."""

    worker: int
    number: int
    """Among those of its worker."""
    turn: int
    """Which buffer they are in."""
    versions: Array
    """Of the parameters that acted, `[steps]`."""
    is_anew: bool
    """Whether its environments were started anew before it, in another worker."""
    filled: int = 0
    """How many steps there are."""
    finals: FinalObservations = field(default_factory=list)
    infos: list[Sums] = field(default_factory=list)
    seconds: float = 0.0
    """How long they took."""

    def oldest(self) -> int:
        """The oldest version that acted."""
        return int(self.versions.min())

    def begin_again(self, is_anew: bool) -> None:
        """Forget what is there."""
        self.filled, self.finals, self.infos, self.seconds, self.is_anew = 0, [], [], 0.0, is_anew


@dataclass(frozen=True)
class Counted:
    """A part whose steps are counted."""

    part: Part
    valid: Array
    """`[steps, n]`, which rows are steps."""
    terminated: Array
    """`[steps, n]`, also where an episode was broken off."""
    is_whole: bool
    """Whether no environment was restarted in it."""

    def continues(self, before: "Counted") -> bool:
        """Whether its first step follows the last of another."""
        ours, theirs = self.part, before.part
        follows = ours.worker == theirs.worker and ours.number == theirs.number + 1
        return follows and self.is_whole and not ours.is_anew


class LaggingSampler(WorkerSampler):
    """As `WorkerSampler`, but nobody waits for the slowest, nor for an update.

    Args:
        source: as there, and the others that are not named here.
        template: as there.
        distribution: as there.
        network: as there.
        max_lag: how many updates the parameters that act may be behind.
        drops: whether older steps are dropped; an agent with a replay buffer learns from them too.
        num_envs: as there.
        num_workers: as there; must divide `num_envs`.
        num_steps: as there.
        **options: as there.

    Raises:
        ConfigurationError: for what cannot be sampled so.
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
        **options: Any,
    ) -> None:
        num_envs = num_envs if num_envs is not None else template.num_envs // template.num_agents
        _require_possible(max_lag, num_envs, num_workers, has_memory=options.get("memory") is not None)
        is_one_piece = (
            template.encode.frames is not None  # the frames before the first are kept for a whole column
            or template.waiting is not None  # a turn may reach from one part to the next
            or noise_rows(distribution, num_steps) < num_steps  # one noise is for many steps
        )
        steps = num_steps if is_one_piece else steps_of_a_part(num_steps)
        self._num_parts = num_steps // steps
        self._most_room = max_lag * self._num_parts
        self._least_room = min(ROLLOUTS_AHEAD * self._num_parts, self._most_room)
        self._room = self._least_room
        """How many parts of each worker there may be that were not given away."""
        shared = {"num_envs": num_envs, "num_workers": num_workers, "num_buffers": self._most_room, **options}
        super().__init__(source, template, distribution, network, num_steps=steps, **shared)
        layout = RolloutBuffer.layout(num_steps, self.num_envs, template.encode, distribution)
        (_, *noise), dtype = layout["noise"]  # which parts have
        self._rollout_buffer = allocate({**layout, "noise": ((0, *noise), dtype)}, self._work.pin_for)
        self.num_steps, self._steps, self._width = num_steps, steps, self.num_envs // num_workers
        self._max_lag, self._drops = max_lag, drops
        self.steps_dropped = 0
        """Environment steps that nobody learned from, because they were too old."""
        self._version = 0
        self._free = [deque(range(self._most_room)) for _ in range(num_workers)]
        self._numbers = [0] * num_workers
        self._anew = [False] * num_workers
        self._to_fill: list[deque[Part]] = [deque() for _ in range(num_workers)]
        """Parts that nobody fills: those that were broken off first."""
        self._asked_for: list[deque[Part]] = [deque() for _ in range(num_workers)]
        """Parts that workers fill, in their order."""
        self._done: deque[Part] = deque()
        """Parts that are full, those of the oldest parameters first, and then as they came."""
        self._is_going = False
        self._busy, self._seconds, self._since, self._lag_mean = 0.0, 0.0, 0.0, 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether there are steps that were not given away, or may be soon."""
        return self._is_going or bool(self._done) or any(self._to_fill)

    @property
    def is_paused(self) -> bool:
        """Whether there are, and nobody makes more."""
        return self.is_under_way and not self._is_going

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, with the steps that were not given away."""
        with self._all_counted():
            return self.env_steps

    def metrics(self) -> Metrics:
        """What is to be known of the lag: of the last rollout, and so far."""
        seconds = self._seconds + (time.perf_counter() - self._since if self._is_going else 0.0)
        return {
            "policy_lag_mean": self._lag_mean,
            "steps_dropped": self.steps_dropped,
            "samplers_busy": min(1.0, self._busy / (len(self._envs) * seconds)) if seconds else 0.0,
        }

    def sample_async(self, actor: SamplingActor) -> None:
        """Let workers act by these parameters in all that they begin from now on, and fill whatever there is room for.

        May be called while they work. The actor's parameters are copied.
        """
        self._publish(actor)
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
                try:
                    self._transport.fill(worker, to_fill[0].turn, to_fill[0].filled)
                except WorkerLostError as lost:
                    self._replace(worker, lost)
                    self._begin_anew(worker)
                else:
                    self._asked_for[worker].append(to_fill.popleft())

    def _new_part(self, worker: int, turn: int) -> Part:
        noise = self._buffers[turn].noise
        noise[:, self._envs[worker]] = self._distribution.draw_noise(self._noise, (len(noise), self._width))
        self._numbers[worker] += 1
        is_anew, self._anew[worker] = self._anew[worker], False
        return Part(worker, self._numbers[worker], turn, np.zeros(self._steps, np.int64), is_anew)

    def _begin_anew(self, worker: int) -> None:
        """Another is to make whatever a worker that is lost has not ended."""
        parts = [*self._asked_for[worker], *self._to_fill[worker]]
        for part in parts:
            part.begin_again(is_anew=part is parts[0])
        self._anew[worker] = not parts
        self._asked_for[worker].clear()
        self._to_fill[worker].clear()  # in place: whoever asks for more has it in hand
        self._to_fill[worker].extend(parts)

    def _forget(self, worker: int, first: int, end: int) -> None:
        self._begin_anew(worker)

    def _look(self, *, patient: bool) -> None:
        """Take the first answer that comes; without patience, of each worker one that is there already."""
        owing = [worker for worker, parts in enumerate(self._asked_for) if parts]
        for worker, answer in self._transport.answers(owing, patience=None if patient else 0.0):
            if isinstance(answer, WorkerLostError):
                self._replace(worker, answer)
                self._begin_anew(worker)
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
        if part.filled < self._steps:  # it was told to stop
            self._to_fill[part.worker].append(part)
        else:
            self._losses.end_row(part.worker)
            # Those of a worker stay in their order, since its versions never fall.
            self._done = deque(sorted((*self._done, part), key=Part.oldest))

    def _has_enough(self) -> bool:
        """Whether there are parts for a rollout, without those that are too old, which are dropped."""
        while self._drops and self._done and self._version - self._done[0].oldest() > self._max_lag:
            part, before = self._done.popleft(), self.env_steps
            self._counted(part)
            self.steps_dropped += self.env_steps - before
            self._free[part.worker].append(part.turn)
        return len(self._done) >= self._num_parts * len(self._envs)

    def pause(self) -> None:
        """Let workers stop after the step that they are at, and wait until they have."""
        self._stop[0] = 1
        try:
            while any(self._asked_for):
                self._look(patient=True)
        finally:
            self._stop[0] = 0
        self._halt()

    def wait(self) -> None:
        """As `pause`: there is always a part that has not ended."""
        self.pause()

    def _halt(self) -> None:
        if self._is_going:
            self._is_going = False
            self._seconds += time.perf_counter() - self._since

    def give_up(self, reason: str) -> None:
        """As in the base, with all parts."""
        super().give_up(reason)
        self._halt()
        for parts in (self._done, *self._to_fill, *self._asked_for):
            parts.clear()

    def sample_wait(self) -> Rollout:
        """A rollout of the parts that came first.

        Raises:
            Stopped: if workers were told to stop, and there are not enough.
        """
        while True:
            self._look(patient=False)
            if len(self._done) >= 2 * self._num_parts * len(self._envs):  # there is one rollout more than is needed
                self._room = max(self._least_room, self._room - 1)
            while not self._has_enough():
                if not self._stop[0]:
                    # Nobody has nothing to do while the learner waits.
                    self._room = min(self._most_room, self._room + (not all(self._asked_for)))
                    self._ask_for_more()
                if not any(self._asked_for):
                    self._halt()
                    raise Stopped
                self._look(patient=True)
                self._look(patient=False)  # or those that are looked at first would always be first
            number = self._num_parts * len(self._envs)
            buffer, valid, finals, versions = self._joined([self._done.popleft() for _ in range(number)])
            if self._has_steps(buffer, valid):
                break
            self._ask_for_more()
        self._measure_rollout()
        self._lag_mean = self._version - float(versions.mean())
        rollout = self._rollout_of(buffer, valid, finals, int(versions.min()))
        if rollout.rewards.shape != versions.shape:  # of turns, whose steps are other rows
            versions = np.full(tuple(rollout.rewards.shape), rollout.version)
        return replace(rollout, versions=torch.from_numpy(versions))

    def _joined(self, parts: Sequence[Part]) -> tuple[RolloutBuffer, Array, FinalObservations, Array]:
        """The arrays of a rollout of these parts, which rows are steps, final observations, and versions `[T, N]`.

        Where steps of others follow in a column, what an episode would have brought is bootstrapped, as it is at the
        end of a rollout.
        """
        whole, steps, width = self._rollout_buffer, self._steps, self._width
        valid, versions = np.zeros(whole.rewards.shape, np.bool_), np.zeros(whole.rewards.shape, np.int64)
        finals: FinalObservations = []
        # Counted in the order of time, which the columns are not in.
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
                known = {(step, env) for step, env, _ in part.finals}
                finals += [(rows.start + step, envs.start + env, final) for step, env, final in part.finals]
                if place + 1 < self._num_parts and not column[place + 1].continues(counted):
                    for env in np.flatnonzero(counted.valid[-1] & ~counted.terminated[-1]).tolist():
                        whole.truncated[rows.stop - 1, envs.start + env] = True
                        if (steps - 1, env) not in known:
                            finals.append((rows.stop - 1, envs.start + env, ours.observations[steps, env].copy()))
                self._free[part.worker].append(part.turn)
        self._infos = [sums for part in parts for sums in part.infos]
        self._seconds_filling = sum(part.seconds for part in parts) / len(self._envs)
        return whole, valid, sorted(finals, key=lambda final: final[:2]), versions

    def _counted(self, part: Part) -> Counted:
        """Count a part's steps, which must be done in the order of time."""
        envs, filled = self._envs[part.worker], part.filled
        if part.is_anew:
            self.drop_running(envs)
            self._resetting[envs] = False
            self.env_restarts += self._width // self._num_agents
        ours = self._buffers[part.turn].of(envs)
        block: Any = SimpleNamespace()
        for name in ("rewards", "terminated", "truncated", "restarted", "absent", "waiting"):
            array = getattr(ours, name)
            rows = np.full((filled, self.num_envs), name == "absent", array.dtype)  # nobody else is there
            rows[:, envs] = array[:filled]
            setattr(block, name, rows)
        resetting = self._resetting.copy()
        valid, broken_off = self._count(block)
        resetting[envs] = self._resetting[envs]
        self._resetting = resetting
        return Counted(part, valid[:, envs], block.terminated[:, envs], is_whole=broken_off is None)

    @contextmanager
    def _all_counted(self) -> Iterator[None]:
        """Within it, steps that were not given away are counted, as dropped."""
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
        """As in the base, after the step that each worker is at."""
        self.pause()
        return self._steered(steering)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base. Steps that were not given away are not in it: who goes on from it has them as dropped."""
        with self._all_counted():
            tensors, state = super().state()
            return tensors, {**state, "steps_dropped": self.steps_dropped}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:  # noqa: D102
        self.steps_dropped = whole({"steps_dropped": 0, **state}, "steps_dropped")
        return super().load_state(tensors, state, env_seed=env_seed)

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """A rollout that was begun with less lag is dropped."""
        dropped = whole(state, "filled") * self.num_envs // (self._num_agents if self.by_policy else 1)
        self.env_steps += dropped
        self.steps_dropped += dropped
        self.drop_running()


def _require_possible(max_lag: int, num_envs: int, num_workers: int, *, has_memory: bool) -> None:
    if num_envs % num_workers:
        raise ConfigurationError(
            f"num_envs={num_envs} must be a multiple of num_workers={num_workers} with max_lag={max_lag}, so that each "
            "worker has as many environments: choose another number"
        )
    if has_memory:
        raise ConfigurationError(
            f"recurrent cannot be had with max_lag={max_lag}, under which the columns of a rollout are of other "
            "environments than those of the rollout before: leave it out, or use max_lag=1"
        )


def steps_of_a_part(num_steps: int) -> int:
    """Into how many steps a rollout is cut: as few as there may be."""
    fits = (steps for steps in range(FEWEST_STEPS, num_steps) if num_steps % steps == 0)
    return next((steps for steps in fits if num_steps <= MOST_PARTS * steps), num_steps)


def in_columns(parts: Sequence[Counted], length: int) -> list[list[Counted]]:
    """Parts in columns of a length, so that few are followed by others than they were.

    Args:
        parts: in the order of time, as many as fill columns.
        length: parts of a column.
    """
    runs: list[list[Counted]] = []
    for _, of_worker in sorted(_by_worker(parts).items()):
        for i, part in enumerate(of_worker):
            if i == 0 or not part.continues(of_worker[i - 1]):
                runs.append([])
            runs[-1].append(part)
    columns = [run[i : i + length] for run in runs for i in range(0, len(run) - length + 1, length)]
    rest = [part for run in runs for part in run[len(run) - len(run) % length :]]
    return columns + [rest[i : i + length] for i in range(0, len(rest), length)]


def _by_worker(parts: Sequence[Counted]) -> dict[int, list[Counted]]:
    found: dict[int, list[Counted]] = {}
    for part in parts:
        found.setdefault(part.part.worker, []).append(part)
    return found
