"""Environments anywhere that Ray reaches, stepped from here: actions out, observations in, every step."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import ray
import ray.exceptions
from numpy.typing import NDArray

from hybridppo.distribution.messages import packed, unpacked
from hybridppo.distribution.ray_workers import (
    SECONDS_BETWEEN_LOOKS,
    SECONDS_TO_CLOSE,
    explained,
    reason_of,
    require_versions,
)
from hybridppo.distribution.remote_copies import RemoteCopies
from hybridppo.distribution.remote_share import path_here
from hybridppo.environments.base import Environments, EnvState, Step
from hybridppo.environments.making import to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import pack
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.runners.workers.transport import SECONDS_TO_START, WorkerLostError
from hybridppo.system.interruption import give_up_if_stopped

Array = NDArray[Any]

logger = logging.getLogger(__name__)

LOSSES_IN_A_ROW = 3
"""How often a worker may be lost, and another started in its place, without so many steps between:"""
STEPS_TO_RECOVER = 100


class RemoteEnvironments(Environments):
    """Environments divided among actors of Ray's, each with one CPU.

    One that Ray says is lost, or that gives no answer for `worker_timeout` seconds, is killed; then that is an error,
    or, with `on_env_error="restart"`, another is started in its place, and its unfinished episodes are dropped.

    Args:
        source: as for `make_environments`.
        template: of them, for spaces and agents.
        num_envs: how many.
        num_workers: among how many they are divided, as evenly as possible.
        options: how they are made and stepped.

    Raises:
        EnvError: where a worker fails, dies or does not answer: which one.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        *,
        num_envs: int,
        num_workers: int,
        options: EnvironmentOptions,
    ) -> None:
        agents = template.num_agents
        super().__init__(num_envs * agents, template.observation_space, template.action_space)
        self.agents, self.clips_rewards = template.agents, template.clips_rewards
        self.skips_row_after_end = template.skips_row_after_end  # type: ignore[misc]  # that of those that it stands for
        self._has_absent = template.absent is not None
        bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
        self._shares = [slice(start, end) for start, end in pairwise(bounds)]
        self._columns = [slice(share.start * agents, share.stop * agents) for share in self._shares]
        self._timeout, self._restarts = options.worker_timeout, options.restarts
        self._losses, self._steps_since = [0] * num_workers, [STEPS_TO_RECOVER] * num_workers
        self._times_lost = [0] * num_workers
        self._seed = 0
        self._places = [""] * num_workers
        self._kind = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(RemoteCopies)
        self._handles: list[Any] = []
        with explained():
            self._setup = ray.put(pack({"source": to_send(source), "options": options}))
        try:
            self._handles = [self._kind.remote() for _ in self._shares]
            self._begin(range(num_workers))
        except BaseException:
            self.close()
            raise

    def _begin(self, workers: Sequence[int]) -> None:
        path = path_here()
        answers = self._answers(
            workers, lambda i: self._handles[i].begin.remote(self._setup, path, self._shares[i]), SECONDS_TO_START
        )
        for worker, about in answers.items():
            if isinstance(about, WorkerLostError):
                raise about
            self._places[worker] = f", process {about['pid']} of {about['host']}"
            require_versions(self._name(worker), about["versions"])
            if about["spaces"] != (self.observation_space, self.action_space):
                raise EnvError(f"{self._name(worker)} has the spaces {about['spaces']}, and there were others here")

    def _name(self, worker: int) -> str:
        envs = self._shares[worker]
        return f"environment worker {worker} (environments {envs.start} to {envs.stop - 1}){self._places[worker]}"

    def _answers(
        self, workers: Sequence[int], call: Callable[[int], Any], least_seconds: float = 0.0
    ) -> dict[int, Any]:
        """What each answers to a call, or the `WorkerLostError` of one that is lost.

        Raises:
            EnvError: of the first that failed.
        """
        timeout = max(self._timeout, least_seconds)
        with explained():
            refs = {worker: call(worker) for worker in workers}
        at_once = min(timeout, SECONDS_BETWEEN_LOOKS) if least_seconds else timeout
        deadline = time.monotonic() + timeout
        ready, left = ray.wait(list(refs.values()), num_returns=len(refs), timeout=at_once)
        while left and time.monotonic() < deadline:
            give_up_if_stopped(self._name(workers[0]))
            ready, left = ray.wait(list(refs.values()), num_returns=len(refs), timeout=at_once)
        there = set(ready)
        answers: dict[int, Any] = {}
        for worker, ref in refs.items():
            try:
                # What is there is fetched at leisure: with no time at all a busy machine loses workers that answered.
                kind, value, _ = unpacked(ray.get(ref, timeout=timeout if ref in there else 0))
            except ray.exceptions.GetTimeoutError:
                answers[worker] = WorkerLostError(
                    f"{self._name(worker)} has not answered for {timeout:g} s: a step or a reset hangs, or is slower "
                    "than worker_timeout (--worker-timeout) allows, the network is down, or no CPU of the cluster is "
                    "free"
                )
            except ray.exceptions.RayTaskError as error:
                raise EnvError(f"{self._name(worker)} failed: {error}") from error
            except ray.exceptions.RayError as error:
                answers[worker] = WorkerLostError(f"{self._name(worker)} is lost: {reason_of(error)}")
            else:
                if kind == "error":
                    raise EnvError(f"{self._name(worker)} failed: {value}")
                answers[worker] = value
        for worker, answer in answers.items():
            if isinstance(answer, WorkerLostError):
                self._kill(worker)
                if not self._restarts:
                    raise answer
        return answers

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed = seed
        rows: dict[int, Array] = {}
        while waiting := [worker for worker in range(len(self._shares)) if worker not in rows]:
            answers = self._answers(
                waiting, lambda i: self._handles[i].call.remote("reset", seed + self._shares[i].start)
            )
            for worker, answer in answers.items():
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer)  # and ask it likewise: nothing was lost yet
                else:
                    rows[worker] = answer[0]
        return np.concatenate([rows[worker] for worker in range(len(self._shares))])

    def step(self, actions: Any) -> Step:  # noqa: D102 - as in the base
        workers = range(len(self._shares))
        answers = self._answers(workers, lambda i: self._handles[i].step.remote(self._packed(actions, i)))
        parts, self.restarted = [], {}
        finals_of: list[int] = []
        finals: list[Array] = []
        for worker in workers:
            answer, first = answers[worker], self._columns[worker].start
            if isinstance(answer, WorkerLostError):
                answer = self._instead(worker, answer)
            else:
                self._steps_since[worker] += 1
            *part, of, final, restarted, absent = answer
            parts.append((*part, absent))
            finals_of += [first + env for env in of]
            finals += final
            self.restarted |= {first + env: times for env, times in restarted.items()}
        observations, rewards, terminated, truncated, absent = zip(*parts, strict=True)
        if self._has_absent:
            self.absent = np.concatenate(absent)
        together = [np.concatenate(each) for each in (observations, rewards, terminated, truncated)]
        return (together[0], together[1], together[2], together[3], finals_of, finals)

    def _packed(self, actions: Any, worker: int) -> Any:
        return packed(part_of(actions, self._columns[worker]), 0)  # a few numbers for each environment

    def _instead(self, worker: int, lost: WorkerLostError) -> tuple[Any, ...]:
        """What stands for a step of a worker that is lost: another begins episodes, and none of it is a step."""
        columns = self._columns[worker]
        count = columns.stop - columns.start
        while True:
            self._replace(worker, lost)
            # A seed of its own: from the old one, what went wrong might go wrong again.
            parts = [self._seed + self._shares[worker].start, self._times_lost[worker]]
            seed = int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1)
            answer = self._answers([worker], partial(self._reset_at, seed))[worker]
            if not isinstance(answer, WorkerLostError):
                break
            lost = answer
        nothing = np.zeros(count, np.bool_)
        rewards = np.zeros(count, np.float32)
        return answer[0], rewards, nothing, nothing, [], [], dict.fromkeys(range(count), 1), nothing

    def _reset_at(self, seed: int, worker: int) -> Any:
        return self._handles[worker].call.remote("reset", seed)

    def _replace(self, worker: int, lost: WorkerLostError) -> None:
        """Start another in place of one that is lost."""
        self._losses[worker] = 1 + (self._losses[worker] if self._steps_since[worker] < STEPS_TO_RECOVER else 0)
        self._steps_since[worker] = 0
        self._times_lost[worker] += 1
        if self._losses[worker] > LOSSES_IN_A_ROW:
            raise EnvError(f"lost {self._losses[worker]} times in a row, the last: {lost}") from lost
        logger.warning("%s\nAnother is started in its place, and its unfinished episodes are dropped.", lost)
        self._places[worker] = ""
        self._handles[worker] = self._kind.remote()
        self._begin([worker])

    def state(self) -> list[EnvState]:  # noqa: D102 - as in the base
        return [state for states in self._states("state") for state in states]

    def remember_the_start(self) -> None:  # noqa: D102 - as in the base
        with contextlib.suppress(EnvStateError):  # `state` will say so, whenever it is wanted
            self._states("remember_the_start")

    def load_state(self, states: list[EnvState]) -> None:  # noqa: D102 - as in the base
        ends = list(accumulate(state["num_envs"] for state in states))
        if not {columns.stop for columns in self._columns} <= set(ends):
            raise EnvStateError(
                f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
                f"cannot be divided among {len(self._columns)} workers"
            )
        parts = [
            [state for state, end in zip(states, ends, strict=True) if columns.start < end <= columns.stop]
            for columns in self._columns
        ]
        self._states("load_state", parts)

    def _states(self, method: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        """What a method of states gives at every worker."""

        def call(worker: int) -> Any:
            given = () if arguments is None else (arguments[worker],)
            return self._handles[worker].call.remote(method, *given)

        answers = self._answers(range(len(self._shares)), call)
        for answer in answers.values():
            if isinstance(answer, WorkerLostError):  # the next step replaces it
                raise EnvStateError(str(answer))
            if answer[1] is not None:
                raise EnvStateError(answer[1])
        return [answers[worker][0] for worker in range(len(self._shares))]

    def _parts(self) -> list[tuple[object, int]]:
        raise AssertionError("they are elsewhere, and so are their states")

    def _kill(self, worker: int) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # of one that is gone already
            ray.kill(self._handles[worker], no_restart=True)

    def _close(self) -> None:
        if not (self._handles and ray.is_initialized()):
            return
        with contextlib.suppress(ray.exceptions.RayError):  # those that are lost are gone
            refs = [handle.close.remote() for handle in self._handles]
            ray.wait(refs, num_returns=len(refs), timeout=SECONDS_TO_CLOSE)
        for worker in range(len(self._handles)):
            self._kill(worker)


def part_of(batch: Any, rows: slice) -> Any:
    """Some of the actions of a batch, of any space."""
    if isinstance(batch, dict):
        return {key: part_of(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(part_of(part, rows) for part in batch)
    return batch[rows]
