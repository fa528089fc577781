"""The workers of a sampler: each steps some of the environments with its own actor, and may be lost and replaced."""

import contextlib
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from hybridppo.environments.base import Environments, EnvState, Steering, latest
from hybridppo.environments.infos import Sums, summed
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import to_send
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.errors import ConfigurationError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.networks.numpy_actors import ArrayActor, NumpyTwin, PoliciesTwin
from hybridppo.rollouts.rollout import FinalObservations, Layout, Rollout
from hybridppo.runners.acting import Acting, parts_of
from hybridppo.runners.acting import layout as layout_of_acting
from hybridppo.runners.filling import Flag, StepperState
from hybridppo.runners.processes import LocalProcesses, Pool, WorkerLostError
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.runners.worker import PublishedParameters
from hybridppo.spaces.arrays import Array
from hybridppo.system.devices import PageLock, accelerator_of
from hybridppo.system.signals import Stopped

logger = logging.getLogger(__name__)


class Transport(Pool):
    """A pool that also carries parameters and rollouts, between workers and a sampler."""

    buffers: list[Rollout]
    """The arrays of rollouts."""
    stop: Flag
    """Set to 1 to stop workers before their next step."""

    @abstractmethod
    def publish(self, parameters: Sequence[Array], version: int) -> None:
        """Publish the actor's parameters for all rows that workers begin from now on."""

    @abstractmethod
    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        """Let a worker fill its columns of a buffer from row `first` on; with `end`, it does not stop before that row.

        It answers with a `Filled`. It raises as `ask` does.
        """


@dataclass(frozen=True)
class Work:
    """The work of a group of workers."""

    shares: Sequence[slice]
    """The environments of each worker."""
    columns: Sequence[slice]
    """The columns of each worker; an environment has a column for each of its agents."""
    num_buffers: int
    """The number of buffers."""
    setup: dict[str, Any]
    """Sent to all workers (`Worker`)."""
    pin_for: torch.device | None
    """The device that rollouts are copied to, if it copies faster from page-locked memory; else None."""
    acting: Layout | None = None
    """The arrays by which workers ask the trainer to act (`acting.py`); None if they act themselves."""


FEWEST_ROLLOUTS = 5
"""Rollouts before the first warning, because the first ones load and compile."""
SHARE_THAT_COUNTS = 0.5
"""There is a warning if a usual worker has waited for at least this share of the time."""
SECONDS_THAT_COUNT = 1.0
"""There is a warning if a usual worker has also waited for at least this number of seconds in all."""


class SlowestWorker:
    """Sums the time that each worker takes to fill its columns, and warns once if a usual worker waits long.

    Args:
        num_workers: their number.
        name: returns the name of a worker, for messages.
    """

    def __init__(self, num_workers: int, name: Callable[[int], str]) -> None:
        self._name, self._seconds = name, np.zeros(num_workers)
        self._rollouts = 0
        self._is_logged = False

    def add(self, seconds: Sequence[float]) -> None:
        """Count a rollout with the seconds of each worker."""
        self._seconds += seconds
        self._rollouts += 1
        if self._is_logged or self._rollouts < FEWEST_ROLLOUTS:
            return
        slowest, usual = int(self._seconds.argmax()), float(np.median(self._seconds))
        longest = float(self._seconds[slowest])
        if longest - usual < max(SECONDS_THAT_COUNT, SHARE_THAT_COUNTS * longest):
            return
        self._is_logged = True
        logger.warning(
            "%s took %.3g s for %d rollouts and a usual worker %.3g s, which waited for %.0f %% of the time. With "
            "placement=Auto(max_lag=2) or more (--placement auto --max-lag 2), workers need not wait for each other",
            self._name(slowest), longest, self._rollouts, usual, 100.0 * (1.0 - usual / longest),
        )  # fmt: skip


class Processes(LocalProcesses, Transport):
    """A `Transport` to processes of this machine. `close` ends them and frees the memory.

    Args:
        work: the work of the workers.
    """

    def __init__(self, work: Work) -> None:
        setup, numbers = {**work.setup, "num_buffers": work.num_buffers}, range(work.num_buffers)
        layout = {f"{name}{i}": spec for i in numbers for name, spec in setup["layout"].items()}
        layout |= {**PublishedParameters.layout(sum(map(math.prod, setup["shapes"]))), **(work.acting or {})}
        super().__init__("hybridppo.runners.worker", "worker", work.shares, setup, layout=layout)
        self._published = PublishedParameters(self.arrays)
        if work.acting is not None:
            arrays = {name: self.arrays[name] for name in work.acting}
            parts = list(setup["parts"].values())
            self.acting = Acting(arrays, parts, lambda worker, group: self.ask(worker, "acted", group))
        self.buffers = [Rollout(**{name: self.arrays[f"{name}{i}"] for name in setup["layout"]}) for i in numbers]
        self.stop: Flag = self.arrays["stop"].data
        self._page_lock: PageLock | None = None
        if work.pin_for is not None:
            assert self.arrays.memory is not None  # not closed yet
            self._page_lock = PageLock(self.arrays.memory, accelerator_of(work.pin_for))

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the base
        self._published.write(parameters, version)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the base
        self.ask(worker, "fill", (turn, first, end))

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._page_lock is not None:  # before the memory is freed
            self._page_lock.close()
        self.acting = None
        super().close()


class Workers:
    """Steps environments in processes of their own, started by a `Transport`.

    A worker is a fresh interpreter that loads gymnasium and NumPy, not torch. Environments are seeded by their number,
    so the number of workers changes no result, except for an environment's own vectorised form, whose copies share one
    generator. If workers do not act themselves (`acts`), the trainer acts for half of the environments at a time, and
    products of matrices in torch may differ in their last bit for another number of rows.

    Args:
        source: makes the environments, as for `make_environments`.
        template: environments made in this process, for their spaces and autoreset mode; not stepped.
        network: the actor, for the shapes of its parameters.
        plan: what a rollout is made of; workers fill `num_steps` at a time.
        num_envs: number of environments.
        num_workers: processes, at most as many as environments, which are divided as evenly as possible.
        options: how the environments are made and stepped.
        transport: starts the workers, and carries messages and rollouts.
        num_buffers: number of buffers.
        acts: whether this process acts, and workers only step.

    Raises:
        EnvError: if a worker fails, dies or hangs; it names the worker, and has its traceback or signal.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        network: nn.Module,
        plan: RolloutPlan,
        *,
        num_envs: int,
        num_workers: int,
        options: EnvironmentOptions,
        transport: Callable[[Work], Transport] = Processes,
        num_buffers: int = 2,
        acts: bool = False,
    ) -> None:
        self.encode, self.num_agents = template.encode, template.num_agents
        self.skips_row_after_end, self.clips_rewards = template.skips_row_after_end, template.clips_rewards
        agents = template.num_agents
        self._shares = shares = divided(num_envs, num_workers)
        # Halves of vectors whose copies share a generator would have other seeds.
        parts = parts_of(shares, agents, halves=acts and isinstance(template, SubEnvironments))
        self._parts = [[part.envs for part in own] for own in parts]
        """The environments of each part of each worker."""
        self.columns = [slice(share.start * agents, share.stop * agents) for share in shares]
        """The columns of each worker; the agents of an environment are together."""
        sizes, names = (plan.num_steps, num_envs * agents), options.step_infos
        layout = Rollout.layout(*sizes, template.encode, plan.distribution, plan.memory, names)
        setup = {
            "source": to_send(source),
            "options": options,
            "layout": layout,
            "shapes": [] if acts else [tuple(array.shape) for array in arrays_of(network)],
            "form": None if acts else _form_of(network),
            "distribution": plan.distribution,
            "memory": plan.memory,
            "num_envs": num_envs,
            "parts": {share.start: own for share, own in zip(shares, parts, strict=True)},
            "spaces": SimpleNamespace(observation_space=template.observation_space, action_space=template.action_space),
        }
        acting = layout_of_acting(num_envs * agents, template.encode, plan.distribution, plan.memory) if acts else None
        setup["acting"] = [*(acting or ())]
        self.pool = transport(Work(shares, self.columns, num_buffers, setup, plan.pin_for, acting))
        self.buffers, self.stop = self.pool.buffers, self.pool.stop
        self.counts: Any = None
        """Counts the steps; set by the sampler."""
        self.seconds = 0.0
        """The seconds of the slowest worker in the last rollout."""
        self._turn = self._first = 0
        """The number of the buffer that is being filled, and the row from which it is."""
        self._replaced: set[int] = set()
        """Workers that were lost, whose rows and unfinished episodes do not count."""
        self._slowest = SlowestWorker(num_workers, self.pool.name)
        self.infos: list[Sums] = []
        """Sums of entries of infos, of the rollout under way."""
        self.on_loss: Callable[[int], None] = self._replaced.add
        """Called with the number of a worker that was lost and replaced."""
        self._env_seed = plan.env_seed
        self.info_names, self.step_infos = template.info_names, options.step_infos
        self._steering: list[Steering] = []
        self.pool.start_all([self._seed_of(worker) for worker in range(num_workers)])

    def _seed_of(self, worker: int) -> int:
        """The seed of a worker's first environment."""
        return self._env_seed + int(self._shares[worker].start)

    def publish(self, actor: SamplingActor) -> None:
        """Let workers use a copy of this actor's parameters in everything that they begin from now on."""
        if self.pool.acting is not None:
            self.pool.acting.begin(actor)
            return
        # The form of such a network on the CPU.
        assert isinstance(actor, ArrayActor)
        self.pool.publish(actor.parameters, actor.version)

    def begin_to_fill(
        self, buffer: Rollout, actor: SamplingActor, first: int
    ) -> Callable[[], tuple[int, FinalObservations]]:
        """Let each worker fill its columns of a buffer from row `first` on; a function that waits until all have.

        It returns the number of rows, and the new final observations. If workers do not act, it acts for them.
        """
        self.publish(actor)
        self._turn, self._first = next(i for i, mine in enumerate(self.buffers) if mine is buffer), first
        for worker in self.pool.workers:
            while not self.fill(worker, self._turn, first):
                pass  # another is there
        self._drop_lost(buffer, first, first)  # later on, rows of workers that are lost do not count
        return self._fill

    def _fill(self) -> tuple[int, FinalObservations]:
        buffer = self.buffers[self._turn]
        answers: dict[int, tuple[int, FinalObservations]] = {}
        seconds = [0.0] * len(self.columns)

        def wait_for(numbers: Sequence[int]) -> None:
            for worker, answer in self.pool.answers(numbers):
                if isinstance(answer, WorkerLostError):
                    self.replace(worker, answer)
                else:
                    filled, took = answer
                    answers[worker] = filled.rows, answers.get(worker, (0, []))[1] + filled.finals
                    seconds[worker] += took
                    if filled.infos is not None:
                        self.infos.append(filled.infos)

        wait_for(self.pool.workers)
        filled = max((rows for rows, _ in answers.values()), default=len(buffer.rewards))
        # Workers that were stopped continue to the row of the one that is ahead.
        behind = {worker: rows for worker, (rows, _) in answers.items() if rows < filled}
        for worker, rows in behind.items():
            with contextlib.suppress(WorkerLostError):  # `answers` returns it
                self.pool.fill(worker, self._turn, rows, filled)
        wait_for(list(behind))
        kept = answers.keys() - self._replaced
        self._drop_lost(buffer, self._first, filled)
        for worker in kept:
            self.pool.end_row(worker)
        if self.pool.acting is None:  # else their seconds have the waits for this process
            self._slowest.add(seconds)
        self.seconds = max(seconds)
        finals = [
            (step, self.columns[worker].start + env, observation)
            for worker in kept
            for step, env, observation in answers[worker][1]
        ]
        return filled, sorted(finals, key=lambda final: final[:2])  # in the order of one process

    def _drop_lost(self, buffer: Rollout, first: int, end: int) -> None:
        """Drop what lost workers wrote to rows `first` to `end`, and the episodes that they were in."""
        for worker in self._replaced:
            columns = self.columns[worker]
            if end == 0:  # the rollout has no rows yet
                self.counts.drop_running(columns)
                self.counts.env_restarts += (columns.stop - columns.start) // self.num_agents
                continue
            part = buffer.of(columns)
            for name, array in part.columns().items():
                if name not in ("observations", "noise", "states", "history"):
                    array[first:end] = 0
            part.observations[first + 1 if first else 0 : end + 1] = 0
            part.restarted[end - 1] += 1
        self._replaced.clear()

    def fill(self, worker: int, turn: int, first: int) -> bool:
        """Let a worker fill its columns of a buffer from row `first` on; False if it was lost and replaced instead."""
        try:
            self.pool.fill(worker, turn, first)
        except WorkerLostError as lost:
            self.replace(worker, lost)
            return False
        return True

    def replace(self, worker: int, error: WorkerLostError) -> None:
        """Start another worker in place of a lost one, if `on_env_error` is "restart"; else raise the error."""

        def begin(seed: int) -> None:
            for steering in self._steering:
                for _, problem in self.pool.call(worker, "steer", [(steering,)] * len(self._parts[worker])):
                    if problem is not None:
                        raise problem

        try:
            self.pool.replace(worker, error, self._seed_of(worker), begin)
        except Stopped:  # there is no time to start another
            raise error from None
        self.on_loss(worker)

    def _ask(self, kind: str, arguments: Callable[[slice], tuple[Any, ...]] = lambda part: ()) -> list[Any]:
        """Call a method of each part of each worker (`Worker.answer`) with its arguments; return the results.

        A worker that is lost is replaced, and asked again.
        """
        answers: dict[int, tuple[Any, float]] = {}
        while waiting := [worker for worker in self.pool.workers if worker not in answers]:
            for worker in waiting:
                with contextlib.suppress(WorkerLostError):  # `answers` returns it
                    self.pool.ask(worker, kind, [arguments(part) for part in self._parts[worker]])
            for worker, answer in self.pool.answers(waiting):
                if isinstance(answer, WorkerLostError):
                    self.replace(worker, answer)
                else:
                    answers[worker] = answer
        results, problems = zip(*chain.from_iterable(answers[worker][0] for worker in self.pool.workers), strict=True)
        for problem in filter(None, problems):
            raise problem
        return list(results)

    def take_infos(self) -> Sums:
        """As `Environments.take_infos`, of all workers."""
        found, self.infos = self.infos, []
        return summed(found)

    def steer(self, steering: Steering) -> list[Any]:
        """As `Environments.steer`."""
        found = self._ask("steer", lambda part: (steering,))
        self._steering = latest(self._steering, steering)
        return [result for of_worker in found for result in of_worker]

    def restart(self, env_seed: int) -> None:
        """Reset every environment, the `i`-th with `env_seed + i`."""
        self._env_seed = env_seed
        self._ask("restart", lambda part: (env_seed + part.start,))

    def state(self) -> StepperState:
        """As `Stepper.state`."""
        parts = self._ask("state")
        states, observations, remembered = zip(*parts, strict=True)
        return [state for part in states for state in part], np.concatenate(observations), np.concatenate(remembered)

    def load_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """As `Stepper.load_state`, also for another number of workers if each environment was saved separately."""
        agents = self.num_agents
        columns = [slice(part.start * agents, part.stop * agents) for part in chain(*self._parts)]
        apart = states_of_workers(states, columns, f": num_workers={len(states)} goes on exactly")
        saved = {
            own.start: (state, observation[own], remembered[own]) for state, own in zip(apart, columns, strict=True)
        }
        self._ask("load_state", lambda part: saved[part.start * agents])

    def close(self) -> None:
        """End all workers; a second call does nothing."""
        self.on_loss = lambda worker: None  # the owner's function would keep its owner alive
        self.counts = None
        self.pool.close()


def divided(num_envs: int, num_workers: int) -> "list[slice[int, int, None]]":
    """The environments of each worker, divided as evenly as possible."""
    if not 1 <= num_workers <= num_envs:
        raise ConfigurationError(
            f"num_workers must be 0 (this process), or 1 to num_envs = {num_envs}, got {num_workers}"
        )
    bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def states_of_workers(states: list[EnvState], columns: Sequence[slice], remedy: str = "") -> list[list[EnvState]]:
    """The saved states of each worker's columns.

    Raises:
        EnvStateError: if a state belongs to several workers; `remedy` ends its message.
    """
    ends = list(accumulate(state["num_envs"] for state in states))
    if not {own.stop for own in columns} <= set(ends):
        raise EnvStateError(
            f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
            f"cannot be divided among {len(columns)} workers{remedy}"
        )
    return [[state for state, end in zip(states, ends, strict=True) if own.start < end <= own.stop] for own in columns]


def _form_of(network: nn.Module) -> NumpyTwin | PoliciesTwin:
    form = twin_of(network)
    if form is None:
        raise ConfigurationError(
            "workers that sample at their own pace act in NumPy, with the library's own networks of tanh or relu only, "
            "without layer_norm and impala convolutions: choose such a network, or max_lag=1"
        )
    return form
