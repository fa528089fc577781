"""Environments over Ray: in each step they receive actions and send observations."""

import operator
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybridppo.distributed.ray_actors import Actors
from hybridppo.distributed.remote import RemoteEnvironments
from hybridppo.environments.base import Environments, EnvState, Steering, Step, latest
from hybridppo.environments.making import to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.workers import LostWorkers, divided, states_of_workers
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.kinds import map_parts

STEPS_TO_RECOVER = 100
"""After this number of steps, losses of a worker are counted from 0 again."""


class RayEnvironments(Environments):
    """Environments divided among Ray actors.

    A lost worker is an error. With `on_env_error="restart"`, another replaces it, and its unfinished episodes are
    dropped.

    Args:
        source: as for `make_environments`.
        template: one of the environments, for spaces and agents.
        num_envs: number of environments.
        num_workers: number of workers, which share the environments as evenly as possible.
        options: how the environments are made and stepped.

    Raises:
        EnvError: if a worker fails, dies or does not answer.
    """

    def __init__(
        self, source: EnvSource, template: Environments, *, num_envs: int, num_workers: int, options: EnvironmentOptions
    ) -> None:
        agents = template.num_agents
        super().__init__(num_envs * agents, template.observation_space, template.action_space)
        self.agents, self.clips_rewards = template.agents, template.clips_rewards
        self.skips_row_after_end = template.skips_row_after_end
        self._has_absent, self._take_turns = template.absent is not None, template.waiting is not None
        self.waiting = template.waiting
        self.replays = template.replays
        self._shares = divided(num_envs, num_workers)
        self._columns = [slice(share.start * agents, share.stop * agents) for share in self._shares]
        self._workers = range(num_workers)
        self._restarts, self._seed = options.restarts, 0
        self._steps_since_loss = [0] * num_workers
        self._steering: list[Steering] = []
        spaces = SimpleNamespace(observation_space=self.observation_space, action_space=self.action_space)
        setup = {"source": to_send(source), "options": options, "spaces": spaces, "num_envs": num_envs}
        role = "environment worker"
        self._pool = Actors(RemoteEnvironments, role, self._shares, setup, options.worker_timeout)
        self._losses = LostWorkers(
            self._pool, num_workers, EnvError, f"{STEPS_TO_RECOVER} steps", "its unfinished episodes are"
        )
        self._pool.start_all([0] * num_workers)

    def _answers(self, workers: Collection[int], method: str, arguments_of: Callable[[int], Any]) -> dict[int, Any]:
        """The answer of each worker to a call, or its `WorkerLostError` if it may be replaced."""
        for worker in workers:
            self._pool.ask(worker, method, arguments_of(worker))
        answers: dict[int, Any] = {}
        for worker, answer in self._pool.answers(workers, together=True):
            answers[worker] = answer if isinstance(answer, WorkerLostError) else answer[0]
        for answer in answers.values():
            if isinstance(answer, WorkerLostError) and not self._restarts:
                raise answer
        return answers

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed = seed
        rows: dict[int, Array] = {}
        while waiting := [worker for worker in self._workers if worker not in rows]:
            answers = self._answers(waiting, "reset", lambda i: (seed + self._shares[i].start,))
            for worker, answer in answers.items():
                if isinstance(answer, WorkerLostError):
                    self._replace(worker, answer, lambda seed: None)  # and ask it likewise
                else:
                    rows[worker] = answer[0]
        return np.concatenate([rows[worker] for worker in self._workers])

    def step(self, actions: Any) -> Step:  # noqa: D102 - as in the base
        answers = self._answers(
            self._workers, "step", lambda i: map_parts(lambda part: part[self._columns[i]], actions)
        )
        parts, self.restarted = [], {}
        finals_of: list[int] = []
        finals: list[Array] = []
        for worker in self._workers:
            answer, first = answers[worker], self._columns[worker].start
            if isinstance(answer, WorkerLostError):
                answer = self._step_of_another(worker, answer)
            else:
                self._steps_since_loss[worker] += 1
                if self._steps_since_loss[worker] == STEPS_TO_RECOVER:
                    self._losses.end_row(worker)
            *part, of, final, restarted, absent, waiting = answer
            parts.append((*part, absent, waiting))
            finals_of += [first + env for env in of]
            finals += final
            self.restarted |= {first + env: times for env, times in restarted.items()}
        observations, rewards, terminated, truncated, absent, idle = zip(*parts, strict=True)
        if self._has_absent:
            self.absent = np.concatenate(absent)
        if self._take_turns:
            self.waiting = np.concatenate(idle)
        together = [np.concatenate(each) for each in (observations, rewards, terminated, truncated)]
        return (together[0], together[1], together[2], together[3], finals_of, finals)

    def _step_of_another(self, worker: int, lost: WorkerLostError) -> tuple[Any, ...]:
        """Replace a lost worker; returns rows that begin episodes and do not count as a step."""
        first: list[Array] = []

        def begin(seed: int) -> None:
            answer = self._answers([worker], "reset", lambda i: (seed,))[worker]
            if isinstance(answer, WorkerLostError):
                raise answer
            first.append(answer[0])

        self._replace(worker, lost, begin)
        count = self._columns[worker].stop - self._columns[worker].start
        nothing = np.zeros(count, np.bool_)
        rewards = np.zeros(count, np.float32)
        return first[0], rewards, nothing, nothing, [], [], dict.fromkeys(range(count), 1), nothing, nothing

    def steer(self, steering: Steering) -> list[Any]:  # noqa: D102 - as in the base
        answers = self._answers(self._workers, "steer", lambda i: (steering,))
        for answer in answers.values():
            if isinstance(answer, WorkerLostError):
                raise answer
        self._steering = latest(self._steering, steering)
        return [found for worker in self._workers for found in answers[worker][0]]

    def _replace(self, worker: int, lost: WorkerLostError, begin: Callable[[int], None]) -> None:
        self._steps_since_loss[worker] = 0

        def steer(seed: int) -> None:
            for steering in self._steering:
                self._answers([worker], "steer", lambda i, steering=steering: (steering,))  # type: ignore[misc]
            begin(seed)

        self._losses.replace(worker, lost, self._seed + self._shares[worker].start, steer)

    def state(self) -> list[EnvState]:  # noqa: D102 - as in the base
        return [state for states in self._states("state") for state in states]

    def load_state(self, states: list[EnvState], actions: Sequence[Any] = ()) -> None:  # noqa: D102 - as in the base
        own = [[map_parts(operator.itemgetter(at), each) for each in actions] for at in self._columns]
        self._states("load_state", list(zip(states_of_workers(states, self._columns), own, strict=True)))

    def _states(self, method: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        """The result of a method at every worker."""
        answers = self._answers(self._workers, method, lambda i: () if arguments is None else arguments[i])
        for answer in answers.values():
            if isinstance(answer, WorkerLostError):  # the next step replaces it
                raise EnvStateError(str(answer))
            if answer[1] is not None:
                raise EnvStateError(answer[1])
        return [answers[worker][0] for worker in self._workers]

    def _close(self) -> None:
        self._pool.close()
