"""Workers in Ray actors: one pool starts, loses and replaces them. What an actor holds differs (`ray_actors.py`)."""

import contextlib
import math
import operator
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import ray.exceptions

from hybridppo._version import __version__
from hybridppo.distributed.ray_actors import FilledRows, RayWorker, RemoteEnvironments, RemoteSampler
from hybridppo.environments.base import Environments, EnvState, Steering, Step, latest
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import to_send
from hybridppo.environments.pickling import ALONE, pack
from hybridppo.environments.sub_environments import STEPS_TO_RECOVER
from hybridppo.errors import DistributedError, EnvError, EnvStateError, TrainingError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.filling import Flag
from hybridppo.runners.processes import SECONDS_TO_CLOSE, Pool, WorkerLostError
from hybridppo.runners.workers import Transport, Work, divided, states_of_workers
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.kinds import map_parts

SECONDS_BETWEEN_QUESTIONS = 1.0
"""Seconds between questions to an actor about its progress."""
SECONDS_TO_COME_BACK = 10.0
"""Seconds in which Ray's control server may start again. Ray itself ends this process after 60 s."""


class RayProcess:
    """One of Ray's own processes, to which a connection is open: it ends as soon as the process does.

    Ray reports such a death late. Before that, it ends this process if it touches the store of objects.

    Args:
        name: the process, for messages.
        address: where it listens, HOST:PORT.
        patience: seconds in which it may start again.
    """

    def __init__(self, name: str, address: str, patience: float = 0.0) -> None:
        host, _, port = address.rpartition(":")
        self._name, self._address, self._patience = f"{name} at {address}", (host.strip("[]"), int(port)), patience
        self._connection: socket.socket | None = None
        self._tried, self._refuses_since = -math.inf, math.inf

    def require(self, *, at_once: bool = False) -> None:
        """Raise a DistributedError if it is dead; `at_once` if it may not start again either."""
        if self._is_connected():
            return
        now = time.monotonic()
        if now - self._tried < SECONDS_BETWEEN_QUESTIONS and not at_once:
            return
        self._tried = now
        try:
            self._connection = socket.create_connection(self._address, SECONDS_BETWEEN_QUESTIONS)
            self._connection.setblocking(False)
            self._refuses_since = math.inf
        except ConnectionRefusedError as error:
            self._refuses_since = min(now, self._refuses_since)
            if at_once or now - self._refuses_since >= self._patience:
                raise DistributedError(
                    f"Ray's {self._name} has died, and a training over Ray cannot go on without it. If neither ray "
                    "stop nor a lack of memory has ended it, see session_latest/logs in Ray's temporary folder"
                ) from error
        except OSError:  # the network is slow, or no way leads there: nothing is known
            pass

    def _is_connected(self) -> bool:
        try:
            while self._connection is not None and self._connection.recv(4096):
                pass  # it greets
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()  # it is dead, or has waited too long for an answer to its greeting
        return False

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def processes_of_ray() -> list[RayProcess]:
    """Those that have to live as long as a training: the control server, and the raylet of this machine."""
    context = ray.get_runtime_context()
    here = [each for each in ray.nodes() if each["NodeID"] == context.get_node_id()]
    raylets = [RayProcess("raylet", f"{each['NodeManagerAddress']}:{each['NodeManagerPort']}") for each in here]
    return [*raylets, RayProcess("control server (gcs_server)", context.gcs_address, SECONDS_TO_COME_BACK)]


class RayPool(Pool):
    """Actors on any machine of the cluster, each with one CPU and a share of the environments.

    Args:
        kind: what an actor holds.
        role: the name of an actor in messages.
        shares: the environments of each actor.
        setup: the setup of all actors.

    Raises:
        DistributedError: if Ray cannot store the setup.
    """

    seconds_between_looks = 0.1
    """Seconds within which a request to stop is passed on."""
    asks_for_rows = True

    def __init__(self, kind: type[RayWorker], role: str, shares: Sequence[slice], setup: dict[str, Any]) -> None:
        super().__init__(role, shares, setup["options"])
        self._kind = ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD",
            concurrency_groups={"control": 1},
        )(kind)  # fmt: skip
        self._of_ray = processes_of_ray()
        packed = pack(setup, ALONE)
        with self._explained():
            self._setup = ray.put(packed)
        self._actors: dict[int, Any] = {}
        self._places: dict[int, str] = {}
        """Process and machine of each actor that has started."""
        self._owed: dict[int, deque[Any]] = {}
        """References to pending answers, in order."""
        self._rows: dict[int, int] = {}
        """The last known progress of the actors with pending answers."""
        self._stops = 0
        """The number of requests to stop."""
        self._asked: dict[int, float] = {}
        """The time of the last question to each actor about its progress."""

    @property
    def workers(self) -> list[int]:  # noqa: D102 - as in the base
        return list(self._actors)

    def name(self, worker: int) -> str:
        """An actor for messages, with its process and machine."""
        return super().name(worker) + self._places.get(worker, "")

    def start(self, worker: int, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._places.pop(worker, None)
        self._rows.pop(worker, None)
        self._owed[worker] = deque()
        with self._explained():
            self._actors[worker] = actor = self._kind.remote()
            self._owed[worker].append(actor.begin.remote(self._setup, folders(), self._shares[worker], env_seed))

    def require_ray(self, *, at_once: bool = False) -> None:
        """Raise a DistributedError if Ray itself has died, before it ends this process."""
        for process in self._of_ray:
            process.require(at_once=at_once)

    def ask(self, worker: int, kind: str, value: Any) -> None:  # noqa: D102 - as in the base
        with self._explained():
            self._owed[worker].append(self._actors[worker].ask.remote(kind, value))

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:  # noqa: D102 - as in the base
        by_ref = {self._owed[worker][0]: worker for worker in workers}
        with self._explained():
            ready, others = ray.wait(list(by_ref), num_returns=len(by_ref) if together else 1, timeout=seconds)
        self.require_ray()
        if ready and others and not together:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return [by_ref[ref] for ref in ready]

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        self._rows.pop(worker, None)
        try:
            # A busy machine may take a while to fetch an answer. Ray takes no infinite limit.
            answer, more = ray.get(self._owed[worker].popleft(), timeout=min(self._timeout, 10.0**6))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (TrainingError, DistributedError)):
                raise type(cause)(f"{self.name(worker)}: {cause}") from error
            raise EnvError(f"{self.name(worker)} failed: {cause if isinstance(cause, EnvError) else error}") from error
        except (ray.exceptions.RayError, OSError) as error:
            self.require_ray(at_once=True)
            self.kill(worker)
            raise WorkerLostError(f"{self.name(worker)} is lost: {reason_of(error)}") from error
        if worker in self._places:
            return answer, more
        self._places[worker] = more
        if answer != __version__:
            raise DistributedError(
                f"{self.name(worker)} has hybridppo {answer}, and the trainer {__version__}: install the same"
            )
        return None, 0.0

    def rows(self, worker: int) -> int:
        """As in the base; the actor is asked from time to time."""
        now, patience = time.monotonic(), min(SECONDS_BETWEEN_QUESTIONS, self._timeout / 4)
        if worker in self._places and now - self._asked.get(worker, 0.0) > patience:
            self._asked[worker] = now
            with contextlib.suppress(ray.exceptions.RayError):  # the pending answer will show a loss
                self._rows[worker] = ray.get(self._actors[worker].rows.remote(), timeout=patience / 2)
        return self._rows.get(worker, -1)

    def silence(self, worker: int, rows: int, timeout: float) -> str:  # noqa: D102 - as in the base
        if worker not in self._places:
            has, free = (found.get("CPU", 0) for found in (ray.cluster_resources(), ray.available_resources()))
            return (
                f"has not begun within {timeout:g} s. Each needs a CPU; the cluster has {has:g}, of which {free:g} are "
                "free"
            )
        after = f", after {rows} of its rollout" if rows >= 0 else ""
        return (
            f"has made no step for {timeout:g} s{after}, or does not answer: a step or a reset hangs, or is slower "
            "than worker_timeout (--worker-timeout) allows, or the network is down"
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """A context in which Ray's errors become errors with a remedy."""
        try:
            yield
        except (ray.exceptions.RayError, OSError) as error:
            self.require_ray(at_once=True)
            if isinstance(error, ray.exceptions.ObjectStoreFullError):
                raise DistributedError(
                    "Ray's store of objects is full, and so is the disk that it spills to: give it more "
                    "(ray start --object-store-memory), free the disk, or lower num_envs or num_steps (train_frequency "
                    "of DDPG and TD3)"
                ) from error
            raise DistributedError(f"Ray failed: {reason_of(error)}") from error

    def kill(self, worker: int) -> None:  # noqa: D102 - as in the base
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it has ended
            ray.kill(self._actors[worker], no_restart=True)

    def close(self) -> None:
        """Let all actors close their environments, and end them; a second call does nothing."""
        for process in self._of_ray:
            process.close()
        if not self._actors or not ray.is_initialized():
            return
        with contextlib.suppress(ray.exceptions.RayError):  # those that are lost are gone
            self._stop_all()
            refs = [actor.close.remote() for actor in self._actors.values()]
            ray.wait(refs, num_returns=len(refs), timeout=SECONDS_TO_CLOSE)
        for worker in self._actors:
            self.kill(worker)
        self._actors = {}

    def _stop_all(self) -> None:
        """Stop what actors were asked to fill, and wait until they know it: what they are asked later goes on."""
        self._stops += 1
        refs = [actor.stop.remote(self._stops) for actor in self._actors.values()]
        ray.wait(refs, num_returns=len(refs), timeout=SECONDS_BETWEEN_QUESTIONS)


def folders() -> list[str]:
    """The folders of this process's modules, which actors need to unpack a setup."""
    return [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]


def reason_of(error: Exception) -> str:
    """The sentence of Ray's error that says what happened."""
    text = str(error)
    for mark in ("Worker exit detail: ", "Death cause: ", "died because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return f"{type(error).__name__}: {text.splitlines()[0].partition('. ')[0]}" if text else type(error).__name__


class RayEnvironments(Environments):
    """Environments divided among Ray actors: in each step they receive actions and send observations.

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
        if options.info_metrics or options.step_infos:
            self.measure_infos(options.info_metrics, options.step_infos)  # it refuses them
        self.agents, self.clips_rewards = template.agents, template.clips_rewards
        self.skips_row_after_end = template.skips_row_after_end
        self.replays = template.replays
        self._has_absent, self._take_turns = template.absent is not None, template.waiting is not None
        self.waiting = template.waiting
        self._shares = divided(num_envs, num_workers)
        self._columns = [slice(share.start * agents, share.stop * agents) for share in self._shares]
        self._seed = self._steps = 0
        self._steering: list[Steering] = []
        spaces = SimpleNamespace(observation_space=self.observation_space, action_space=self.action_space)
        setup = {"source": to_send(source), "options": options, "spaces": spaces, "num_envs": num_envs}
        role = "environment worker"
        self._pool = RayPool(RemoteEnvironments, role, self._shares, setup)
        self._pool.start_all([0] * num_workers)

    def _answers(
        self, method: str, arguments: Iterable[Any], of_lost: Callable[[int, WorkerLostError], Any] | None = None
    ) -> list[Any]:
        """Each worker's answer to a call with its own arguments.

        If lost workers may be replaced, the answer of one is the result of `of_lost`, which takes the worker and the
        error; else the error is raised.
        """
        for worker, own in enumerate(arguments):
            self._pool.ask(worker, method, own)
        answers: list[Any] = [None] * len(self._shares)
        for worker, answer in self._pool.answers(self._pool.workers, together=True):
            answers[worker] = answer if isinstance(answer, WorkerLostError) else answer[0]
        for worker, answer in enumerate(answers):
            if isinstance(answer, WorkerLostError):
                if of_lost is None or not self._pool.restarts:
                    raise answer
                answers[worker] = of_lost(worker, answer)
        return answers

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed = seed
        seeds = [(seed + share.start,) for share in self._shares]
        return np.concatenate(self._answers("reset", seeds, self._replace))

    def step(self, actions: Any) -> Step:  # noqa: D102 - as in the base
        own = [map_parts(operator.itemgetter(columns), actions) for columns in self._columns]
        parts, self.restarted = [], {}
        finals_of: list[int] = []
        finals: list[Array] = []
        answers = self._answers("step", own, self._step_of_another)
        for columns, (*part, of, final, restarted, absent, waiting) in zip(self._columns, answers, strict=True):
            first = columns.start
            parts.append((*part, absent, waiting))
            finals_of += [first + env for env in of]
            finals += final
            self.restarted |= {first + env: times for env, times in restarted.items()}
        self._steps += 1
        if self._steps % STEPS_TO_RECOVER == 0:
            for worker in self._pool.workers:
                self._pool.end_row(worker)
        observations, rewards, terminated, truncated, absent, idle = zip(*parts, strict=True)
        if self._has_absent:
            self.absent = np.concatenate(absent)
        if self._take_turns:
            self.waiting = np.concatenate(idle)
        together = [np.concatenate(each) for each in (observations, rewards, terminated, truncated)]
        return (together[0], together[1], together[2], together[3], finals_of, finals)

    def _step_of_another(self, worker: int, lost: WorkerLostError) -> tuple[Any, ...]:
        """Replace a lost worker; returns rows that begin episodes and do not count as a step."""
        first = self._replace(worker, lost)
        nothing, rewards = np.zeros(len(first), np.bool_), np.zeros(len(first), np.float32)
        return first, rewards, nothing, nothing, [], [], dict.fromkeys(range(len(first)), 1), nothing, nothing

    def _replace(self, worker: int, lost: WorkerLostError) -> Array:
        """Start another worker in place of a lost one; returns the first observations of its environments."""
        first: list[Array] = []

        def begin(seed: int) -> None:
            for steering in self._steering:
                self._pool.call(worker, "steer", (steering,))
            first.append(self._pool.call(worker, "reset", (seed,)))

        self._pool.replace(worker, lost, self._seed + self._shares[worker].start, begin)
        return first[-1]

    def steer(self, steering: Steering) -> list[Any]:  # noqa: D102 - as in the base
        answers = self._answers("steer", [(steering,)] * len(self._shares))
        self._steering = latest(self._steering, steering)
        return list(chain(*answers))

    def state(self) -> list[EnvState]:  # noqa: D102 - as in the base
        return list(chain(*self._states("state", [()] * len(self._shares))))

    def load_state(  # noqa: D102 - as in the base
        self, states: list[EnvState], rows: Array | None = None, actions: Sequence[Any] = ()
    ) -> None:
        assert rows is not None
        own = [[map_parts(operator.itemgetter(at), each) for each in actions] for at in self._columns]
        each_rows = [rows[at] for at in self._columns]
        self._states("load_state", zip(states_of_workers(states, self._columns), each_rows, own, strict=True))

    def _states(self, method: str, arguments: Iterable[Any]) -> list[Any]:
        answers = self._answers(method, arguments, lambda worker, lost: lost)  # the next step replaces it
        for answer in answers:
            if isinstance(answer, (WorkerLostError, EnvStateError)):
                raise EnvStateError(str(answer))
        return answers

    def _close(self) -> None:
        self._pool.close()


class RaySamplers(RayPool, Transport):
    """A `Transport` whose workers are Ray actors: they receive parameters and noise, and send rollouts.

    Args:
        work: the work of the samplers.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(RemoteSampler, "sampler", work.shares, work.setup)
        self.buffers = [Rollout.in_memory(work.setup["layout"], work.pin_for) for _ in range(work.num_buffers)]
        self.stop: Flag = bytearray(1)
        self._work, self._has_stopped = work, False
        self._version, self._parameters = -1, np.empty(0, np.float32)

    def publish(self, parameters: Sequence[Array], version: int) -> None:  # noqa: D102 - as in the base
        self._version = version
        flat = [parameter.reshape(-1) for parameter in parameters]
        self._parameters = np.concatenate(flat).astype(np.float32, copy=False)

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:  # noqa: D102 - as in the base
        self.require_ray()  # parameters and noise may go to the store of objects
        noise = None
        if end is None:
            row = self._work.setup["distribution"].noise_row(first)
            noise = np.ascontiguousarray(self.buffers[turn].noise[row:, self._work.columns[worker]])
        self.ask(worker, "fill", (turn, first, end, self._stops, self._version, self._parameters, noise))

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:  # noqa: D102 - as in the base
        if self.stop[0] and not self._has_stopped:
            self._stop_all()
        self._has_stopped = bool(self.stop[0])
        return super().wait(workers, seconds, together)

    def receive(self, worker: int) -> tuple[Any, float]:  # noqa: D102 - as in the base
        self.require_ray()  # rollouts come from the store of objects
        answer, seconds = super().receive(worker)
        if not isinstance(answer, FilledRows):
            return answer, seconds
        part, memory = self.buffers[answer.turn].of(self._work.columns[worker]), self._work.setup["memory"]
        for name, rows in part.rows(answer.filled.rows, memory, slice(0), answer.first).items():
            rows[:] = answer.arrays[name]
        return answer.filled, seconds
