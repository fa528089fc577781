"""Sampling in worker processes: each steps some of the environments with its own actor, into shared memory."""

import contextlib
import logging
from collections.abc import Sequence
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hybridppo.accelerator import accelerator_of
from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import pack
from hybridppo.environments.registration import source_elsewhere
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.forms import numpy_form
from hybridppo.networks.numpy_forms.actor import NumpyActor
from hybridppo.networks.numpy_forms.images import NumpyImageActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.workers.page_locking import PageLock
from hybridppo.runners.workers.pool import WorkerLostError, WorkerPool
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]

logger = logging.getLogger(__name__)

LOSSES_IN_A_ROW = 3
"""How often a worker may be lost, and another started in its place, without a whole rollout between."""


class WorkerSampler(BaseSampler):
    """Steps environments in processes of their own.

    Workers start light: a fresh interpreter that loads gymnasium and NumPy, not torch. Environments are seeded by
    their number, so how many workers there are changes nothing, but for an environment's own
    vectorised form, whose copies share one generator.

    Args:
        source: as for `make_environments`.
        template: the `N` environments as made in this process, for their spaces and reset mode; not stepped.
        distribution: of the action space.
        network: the actor, for the shapes of its parameters.
        num_workers: processes, at most `N`; environments are divided as evenly as possible.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        options: how the environments are made and stepped.
        pin_for: the device that rollouts are copied to, where its copies are faster from page-locked memory; else None.

    Raises:
        EnvError: where a worker fails, dies or hangs: which one, with its own traceback or signal.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        distribution: Distribution,
        network: nn.Module,
        *,
        num_workers: int,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        options: EnvironmentOptions | None = None,
        pin_for: torch.device | None = None,
    ) -> None:
        num_envs = template.num_envs
        if not 1 <= num_workers <= num_envs:
            raise ConfigurationError(f"num_workers must lie between 1 and num_envs = {num_envs}, got {num_workers}")
        form = numpy_form(network)
        if form is None:
            raise ConfigurationError(
                "worker processes sample with networks of tanh or relu only: choose such a network, or num_workers=0"
            )
        layout = RolloutBuffer.layout(num_steps, num_envs, template.encode, distribution)
        shapes = [tuple(parameter.shape) for parameter in network.parameters()]
        size = sum(parameter.numel() for parameter in network.parameters())
        shared = {f"{name}{i}": spec for i in range(2) for name, spec in layout.items()}
        shared |= {"parameters": ((size,), "float32"), "stop": ((1,), "uint8")}
        shared |= {f"heartbeat{worker}": ((1,), "int64") for worker in range(num_workers)}
        self._arrays = SharedArrays(shared)
        self._closed = False
        self._parameters = self._arrays["parameters"]
        buffers = [RolloutBuffer(**{name: self._arrays[f"{name}{i}"] for name in layout}) for i in range(2)]
        stop, skips_row_after_end = self._arrays["stop"].data, template.skips_row_after_end
        super().__init__(
            stop, buffers, distribution, template.encode, skips_row_after_end=skips_row_after_end, noise=noise
        )
        self._seconds_filling = 0.0
        options = options if options is not None else EnvironmentOptions()
        self._restarts = options.restarts
        bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
        self._envs = [slice(start, end) for start, end in pairwise(bounds)]
        self._losses, self._losses_in_a_row = [0] * num_workers, [0] * num_workers
        self._env_seed = env_seed
        self._turn_begun = self._first = 0
        self._page_lock: PageLock | None = None
        setup = {
            "source": source_elsewhere(source),
            "options": options,
            "layout": shared,
            "fields": list(layout),
            "path": self._arrays.path,
            "shapes": shapes,
            "form": form,
            "distribution": distribution,
            "num_envs": num_envs,
            "spaces": SimpleNamespace(observation_space=template.observation_space, action_space=template.action_space),
        }
        self._pool = WorkerPool(self._envs, pack(setup), self._rows_of, options.worker_timeout)
        try:
            for worker, envs in enumerate(self._envs):
                self._pool.start(worker, env_seed + envs.start)
            self._pool.wait_until_ready(self._pool.workers)
            if not self._restarts:  # another worker would have to map it
                self._arrays.unlink()
            if pin_for is not None:
                assert self._arrays.memory is not None  # not closed yet
                self._page_lock = PageLock(self._arrays.memory, accelerator_of(pin_for))
        except BaseException:
            self.close()
            raise

    def _rows_of(self, worker: int) -> int:
        return int(self._arrays[f"heartbeat{worker}"][0])

    def _begin(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        assert isinstance(actor, (NumpyActor, NumpyImageActor))  # what a placement gives for such a network on the CPU
        np.concatenate([parameter.reshape(-1) for parameter in actor.parameters], out=self._parameters)
        self._turn_begun = next(i for i, mine in enumerate(self._buffers) if mine is buffer)
        self._first = first
        for worker in self._pool.workers:
            message = ("fill", (self._turn_begun, first, None))
            try:
                self._pool.send(worker, message)
            except WorkerLostError as lost:
                self._replace(worker, lost)
                self._forget(worker, first, first)
                self._pool.send(worker, message)

    def _end(self) -> tuple[int, FinalObservations]:
        answers: dict[int, tuple[int, FinalObservations]] = {}
        seconds: list[float] = []
        lost: set[int] = set()

        def wait_for(workers: Sequence[int]) -> None:
            for worker, answer in self._pool.answers(workers):
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer)
                    lost.add(worker)
                else:
                    (rows, finals), took = answer
                    answers[worker] = rows, answers.get(worker, (0, []))[1] + finals
                    seconds.append(took)

        wait_for(self._pool.workers)
        filled = max((rows for rows, _ in answers.values()), default=self.num_steps)
        # Workers that were told to stop have stopped where each was: those behind go on to where the furthest is.
        behind = {worker: rows for worker, (rows, _) in answers.items() if rows < filled}
        for worker, rows in behind.items():
            with contextlib.suppress(WorkerLostError):  # which shows when its answer is waited for
                self._pool.send(worker, ("fill", (self._turn_begun, rows, filled)))
        wait_for(list(behind))
        for worker in lost:
            self._forget(worker, self._first, filled)
        for worker in answers.keys() - lost:
            self._losses_in_a_row[worker] = 0
        self._seconds_filling = max(seconds, default=0.0)
        finals = [
            (step, self._envs[worker].start + env, observation)
            for worker, (_, part) in answers.items()
            if worker not in lost
            for step, env, observation in part
        ]
        return filled, sorted(finals, key=lambda final: final[:2])  # as one process would have found them

    def _stepper_state(self) -> tuple[list[EnvState], Array]:
        states, observations = [], []
        for (state, not_saved), _ in self._ask([("state", None)] * len(self._envs)):
            if not_saved is not None:
                raise EnvStateError(not_saved)
            states += state[0]
            observations.append(state[1])
        return states, np.concatenate(observations)

    def _load_stepper_state(self, states: list[EnvState], observation: Array) -> None:
        ends = list(accumulate(state["num_envs"] for state in states))
        if not {envs.stop for envs in self._envs} <= set(ends):
            raise EnvStateError(
                f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
                f"cannot be divided among {len(self._envs)} workers: num_workers={len(states)} goes on exactly"
            )
        parts = [
            ([s for s, end in zip(states, ends, strict=True) if envs.start < end <= envs.stop], observation[envs])
            for envs in self._envs
        ]
        for not_restored, _ in self._ask([("load_state", part) for part in parts]):
            if not_restored is not None:
                raise EnvStateError(not_restored)

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._seconds_filling

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._env_seed = env_seed
        self._ask([("restart", env_seed + envs.start) for envs in self._envs])

    def _ask(self, messages: Sequence[tuple[str, Any]]) -> list[tuple[Any, float]]:
        """The answers of all workers, to a message each; of another in its place where one is lost."""
        answers: dict[int, tuple[Any, float]] = {}
        while waiting := [worker for worker in self._pool.workers if worker not in answers]:
            for worker in waiting:
                with contextlib.suppress(WorkerLostError):  # which shows when its answer is waited for
                    self._pool.send(worker, messages[worker])
            for worker, answer in self._pool.answers(waiting):
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer)
                    done = self._under_way.filled if self._under_way is not None else 0
                    self._forget(worker, done, done)
                else:
                    answers[worker] = answer
        return [answers[worker] for worker in self._pool.workers]

    def _replace(self, worker: int, error: WorkerLostError) -> None:
        """Start another in place of one that is lost, where that is asked for; else raise the error."""
        if not self._restarts:
            raise error
        while True:
            self._losses[worker] += 1
            self._losses_in_a_row[worker] += 1
            if self._losses_in_a_row[worker] > LOSSES_IN_A_ROW:
                times = self._losses_in_a_row[worker]
                raise EnvError(f"lost {times} times without a whole rollout between, the last: {error}") from error
            logger.warning("%s\nAnother is started in its place, and its unfinished episodes are dropped.", error)
            self._pool.end(worker)
            parts = [self._env_seed + self._envs[worker].start, self._losses[worker]]
            try:
                self._pool.start(worker, int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1))
                self._pool.wait_until_ready([worker])
            except WorkerLostError as again:
                error = again
            else:
                return

    def _forget(self, worker: int, first: int, end: int) -> None:
        """Nothing counts of what a lost worker wrote to rows `first` to `end`, nor of the episodes it was in."""
        envs = self._envs[worker]
        if end == 0:  # nothing of the rollout was there yet
            self.statistics.drop_running(envs)
            self.env_restarts += envs.stop - envs.start
            return
        part = self._buffers[self._turn_begun].of(envs)
        for array in (part.outputs, part.actions, part.rewards, part.terminated, part.truncated, part.restarted):
            array[first:end] = 0
        part.observations[first + 1 if first else 0 : end + 1] = 0
        part.restarted[end - 1] += 1

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._closed:
            return
        self._closed = True
        self.request_stop()
        self._pool.close()
        if self._page_lock is not None:
            self._page_lock.close()
        self._arrays.close()
