"""Sampling in worker processes: each steps some of the environments with its own actor, into shared memory."""

import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.making import to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.forms import actor_form, arrays_of
from hybridppo.networks.numpy_forms.form import NumpyForm, NumpyPoliciesActor, OwnActor, PoliciesForm
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.workers.losses import Losses
from hybridppo.runners.workers.processes import Processes
from hybridppo.runners.workers.slowest import SlowestWorker
from hybridppo.runners.workers.transport import Transport, Work, WorkerLostError
from hybridppo.spaces.distributions import Distribution
from hybridppo.system.interruption import Stopped

Array = NDArray[Any]


class WorkerSampler(BaseSampler):
    """Steps environments in processes of their own.

    Workers start light: a fresh interpreter that loads gymnasium and NumPy, not torch. Environments are seeded by
    their number, so how many workers there are changes nothing, but for an environment's own
    vectorised form, whose copies share one generator.

    Args:
        source: as for `make_environments`.
        template: environments as made in this process, for their spaces and reset mode; not stepped.
        distribution: of the action space.
        network: the actor, for the shapes of its parameters.
        num_envs: how many environments there are; None for as many as in the template.
        num_workers: processes, at most as many as there are environments; these are divided as evenly as possible.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        options: how the environments are made and stepped.
        pin_for: the device that rollouts are copied to, where its copies are faster from page-locked memory; else None.
        memory: the actors', where they have one.
        transport: where workers are, and how what they do comes here.
        num_buffers: how many rollouts workers have room for.

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
        num_envs: int | None = None,
        num_workers: int,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        options: EnvironmentOptions | None = None,
        pin_for: torch.device | None = None,
        memory: MemoryLayout | None = None,
        transport: Callable[[Work], Transport] = Processes,
        num_buffers: int = 2,
    ) -> None:
        agents = template.num_agents
        num_envs = num_envs if num_envs is not None else template.num_envs // agents
        options = options if options is not None else EnvironmentOptions()
        shares = _divided(num_envs, num_workers)
        # In columns: an environment's agents stay together.
        self._envs = [slice(share.start * agents, share.stop * agents) for share in shares]
        layout = RolloutBuffer.layout(num_steps, num_envs * agents, template.encode, distribution, memory)
        form, arrays = _form_of(network), arrays_of(network)
        setup = {
            "source": to_send(source),
            "options": options,
            "fields": list(layout),
            "shapes": [tuple(array.shape) for array in arrays],
            "form": form,
            "distribution": distribution,
            "memory": memory,
            "num_envs": num_envs,
            "spaces": SimpleNamespace(observation_space=template.observation_space, action_space=template.action_space),
        }
        size = sum(array.numel() for array in arrays)
        self._work = Work(shares, self._envs, layout, num_buffers, size, setup, options, pin_for)
        self._transport = transport(self._work)
        super().__init__(
            self._transport.stop,
            self._transport.buffers,
            distribution,
            template.encode,
            skips_row_after_end=template.skips_row_after_end,
            noise=noise,
            memory=memory,
            num_agents=agents,
            clips_rewards=template.clips_rewards,
        )
        self._closed = False
        self._seconds_filling = 0.0
        self._slowest = SlowestWorker(self._work)
        self._infos: list[Sums] = []
        """What infos had in the rollout under way."""
        self._restarts = options.restarts
        self._losses = Losses(num_workers, EnvError, "a whole rollout", "its unfinished episodes are")
        self._env_seed = env_seed
        self._turn_begun = self._first = 0
        try:
            for worker in range(num_workers):
                self._transport.start(worker, self._seed_of(worker))
            self._transport.wait_until_ready(self._transport.workers)
        except BaseException:
            self.close()
            raise

    def _seed_of(self, worker: int) -> int:
        """Of the first environment of a worker."""
        return self._env_seed + self._envs[worker].start // self._num_agents

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._publish(actor)
        self._turn_begun = next(i for i, mine in enumerate(self._buffers) if mine is buffer)
        self._first = first
        for worker in self._transport.workers:
            try:
                self._transport.fill(worker, self._turn_begun, first)
            except WorkerLostError as lost:
                self._replace(worker, lost)
                self._forget(worker, first, first)
                self._transport.fill(worker, self._turn_begun, first)

    def _publish(self, actor: SamplingActor) -> None:
        # What a placement gives for such a network on the CPU.
        assert isinstance(actor, OwnActor | NormalizingActor | NumpyPoliciesActor)
        self._transport.publish(actor.parameters, actor.version)

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        answers: dict[int, tuple[int, FinalObservations]] = {}
        seconds = [0.0] * len(self._envs)
        lost: set[int] = set()

        def wait_for(workers: Sequence[int]) -> None:
            for worker, answer in self._transport.answers(workers):
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer)
                    lost.add(worker)
                else:
                    filled, took = answer
                    answers[worker] = filled.rows, answers.get(worker, (0, []))[1] + filled.finals
                    seconds[worker] += took
                    if filled.infos is not None:
                        self._infos.append(filled.infos)

        wait_for(self._transport.workers)
        filled = max((rows for rows, _ in answers.values()), default=self.num_steps)
        # Workers that were told to stop have stopped where each was: those behind go on to where the furthest is.
        behind = {worker: rows for worker, (rows, _) in answers.items() if rows < filled}
        for worker, rows in behind.items():
            with contextlib.suppress(WorkerLostError):  # which shows when its answer is waited for
                self._transport.fill(worker, self._turn_begun, rows, filled)
        wait_for(list(behind))
        for worker in lost:
            self._forget(worker, self._first, filled)
        for worker in answers.keys() - lost:
            self._losses.end_row(worker)
        self._seconds_filling = max(seconds)
        self._slowest.add(seconds)
        finals = [
            (step, self._envs[worker].start + env, observation)
            for worker, (_, part) in answers.items()
            if worker not in lost
            for step, env, observation in part
        ]
        return filled, sorted(finals, key=lambda final: final[:2])  # as one process would have found them

    def measure_infos(self, names: Sequence[str]) -> None:  # noqa: D102 - as in the base
        for problem, _ in self._ask([("measure_infos", names)] * len(self._envs)):
            if problem is not None:
                raise ConfigurationError(problem)
        self._info_names = names

    def _take_infos(self) -> list[Sums]:
        found, self._infos = self._infos, []
        return found

    def _require_steerable(self) -> None:
        pass

    def _steer(self, steering: Steering) -> list[Any]:
        found: list[Any] = []
        for (of_worker, problem), _ in self._ask([("steer", steering)] * len(self._envs)):
            if problem is not None:
                raise EnvError(problem)
            found += of_worker
        return found

    def _stepper_state(self) -> StepperState:
        states, observations, remembered = [], [], []
        for (state, not_saved), _ in self._ask([("state", None)] * len(self._envs)):
            if not_saved is not None:
                raise EnvStateError(not_saved)
            states += state[0]
            observations.append(state[1])
            remembered.append(state[2])
        return states, np.concatenate(observations), np.concatenate(remembered)

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        ends = list(accumulate(state["num_envs"] for state in states))
        if not {envs.stop for envs in self._envs} <= set(ends):
            raise EnvStateError(
                f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
                f"cannot be divided among {len(self._envs)} workers: num_workers={len(states)} goes on exactly"
            )
        parts = [
            (
                [s for s, end in zip(states, ends, strict=True) if envs.start < end <= envs.stop],
                observation[envs],
                remembered[envs],
            )
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
        self._ask([("restart", self._seed_of(worker)) for worker in range(len(self._envs))])

    def _ask(self, messages: Sequence[tuple[str, Any]]) -> list[tuple[Any, float]]:
        """The answers of all workers, to a message each; of another in its place where one is lost."""
        answers: dict[int, tuple[Any, float]] = {}
        while waiting := [worker for worker in self._transport.workers if worker not in answers]:
            for worker in waiting:
                with contextlib.suppress(WorkerLostError):  # which shows when its answer is waited for
                    self._transport.ask(worker, *messages[worker])
            for worker, answer in self._transport.answers(waiting):
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer)
                    done = self._under_way.filled if self._under_way is not None else 0
                    self._forget(worker, done, done)
                else:
                    answers[worker] = answer
        return [answers[worker] for worker in self._transport.workers]

    def _replace(self, worker: int, error: WorkerLostError) -> None:
        """Start another in place of one that is lost, where that is asked for; else raise the error."""
        if not self._restarts:
            raise error

        def start(seed: int) -> None:
            self._transport.end(worker)
            self._transport.start(worker, seed)
            self._transport.wait_until_ready([worker])
            again: list[tuple[str, Any]] = [("steer", steering) for steering in self.steering]
            if self._info_names:
                again.append(("measure_infos", self._info_names))
            for message in again:
                self._transport.ask(worker, *message)
                for _, answer in self._transport.answers([worker]):
                    if isinstance(answer, WorkerLostError):
                        raise answer

        try:
            self._losses.replace(worker, error, self._seed_of(worker), start)
        except Stopped:  # there is no time for another
            raise error from None

    def _forget(self, worker: int, first: int, end: int) -> None:
        """Nothing counts of what a lost worker wrote to rows `first` to `end`, nor of the episodes it was in."""
        envs = self._envs[worker]
        if end == 0:  # nothing of the rollout was there yet
            self.drop_running(envs)
            self.env_restarts += (envs.stop - envs.start) // self._num_agents
            return
        part = self._buffers[self._turn_begun].of(envs)
        for array in (
            part.outputs, part.actions, part.rewards, part.terminated, part.truncated, part.restarted, part.absent,
            part.waiting,
        ):  # fmt: skip
            array[first:end] = 0
        if part.starts is not None:
            part.starts[first:end] = False
        part.observations[first + 1 if first else 0 : end + 1] = 0
        part.restarted[end - 1] += 1

    def close(self) -> None:  # noqa: D102 - as in the base
        if not self._closed:
            self._closed = True
            self.request_stop()
            self._transport.close()


def _divided(num_envs: int, num_workers: int) -> "list[slice[int, int, None]]":
    """Each worker's share of the environments, as even as can be."""
    if not 1 <= num_workers <= num_envs:
        raise ConfigurationError(f"num_workers must lie between 1 and num_envs = {num_envs}, got {num_workers}")
    bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def _form_of(network: nn.Module) -> NumpyForm | PoliciesForm:
    form = actor_form(network)
    if form is None:
        raise ConfigurationError(
            "worker processes sample in NumPy, with the library's own networks of tanh or relu only, without "
            "layer_norm, a3c and impala convolutions: choose such a network, or num_workers=0"
        )
    return form
