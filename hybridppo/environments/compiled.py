"""Environments that Numba has compiled: all of a vector in one call, on as many threads as are asked for."""

import base64
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.compiled.random_numbers import NUM_WORDS, begin
from hybridppo.environments.base import Environments, EnvState, Step
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.spaces.checks import finite_test
from hybridppo.system.validation import whole

if TYPE_CHECKING:
    from hybridppo.compiled.building import Kernels
    from hybridppo.compiled.definition import Definition

Array = NDArray[Any]

SECONDS_WORTH_DIVIDING = 3e-4
"""Of one thread's work; what takes less is done sooner than others are awake."""


class CompiledEnvironments(Environments):
    """`E` environments of a definition, reset within the step that ends an episode; every row is a step.

    Args:
        definition: what they are.
        num_envs: how many.
        first: the number of the first among those of the run, for messages.
        num_threads: among how many they are divided; it changes no bit.

    Raises:
        EnvError: if they cannot be compiled.
    """

    is_compiled = True

    def __init__(self, definition: "Definition", num_envs: int, first: int = 0, num_threads: int = 1) -> None:
        from hybridppo.compiled.building import build

        agents = definition.agents
        columns = num_envs * max(1, len(agents))
        super().__init__(columns, definition.observation_space, definition.action_space)
        self.agents, self._num = agents, num_envs
        self.definition = definition
        self.kernels: Kernels = build(definition)
        self.states: Array = np.zeros(num_envs, definition.state)
        """`[E]`, records; like the two below, all that the environments are in the middle of."""
        self.randoms: Array = np.zeros((num_envs, *([len(agents)] if agents else []), NUM_WORDS), np.int64)
        """`[E, 4]`, or of each agent `[E, A, 4]`: key, episode and draws, see `random_numbers.py`."""
        self.lengths: Array = np.zeros(num_envs, np.int64)
        """`[E]`, of the episodes under way."""
        self._first, self._seed, self._num_steps = first, 0, 0
        self._num_threads = min(num_threads, num_envs)
        self._threads: ThreadPoolExecutor | None = None
        self._seconds_of_work = 0.0
        bounds = [part * num_envs // self._num_threads for part in range(self._num_threads + 1)]
        self._parts_of_threads = list(pairwise(bounds))
        # Observations and rewards in one array, for the test of whether they are finite.
        size = columns * self.encode.size
        self._numbers = np.zeros(size + columns, np.float32)
        self._observations, self._rewards = self._numbers[:size].reshape(columns, -1), self._numbers[size:]
        self._sum = finite_test(self._numbers.size)
        self._terminated, self._truncated = np.zeros(columns, np.bool_), np.zeros(columns, np.bool_)
        self._finals = np.zeros((columns, self.encode.size), np.float32)
        self._action_dtype = np.float32 if isinstance(definition.action_space, gym.spaces.Box) else np.int64

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed, self._num_steps = seed, 0
        self.states[:] = np.zeros(1, self.states.dtype)
        for i, randoms in enumerate(self.randoms.reshape(self._num, -1, NUM_WORDS)):
            for random in randoms:
                begin(random, seed + i)
        with self.failing("in their reset"):
            self._begin_all()
        self.require_finite(self._observations, self._rewards, "in their reset")
        return self._observations.copy()

    def step(self, actions: Any) -> Step:
        """Final observations are those of before the reset."""
        self._num_steps += 1
        actions = np.asarray(actions, self._action_dtype).reshape(self.num_envs, -1)
        when = f"in step {self._num_steps}"
        self.on_threads(self._stepping(actions), when)
        if not np.isfinite(self._sum(self._numbers)):
            self.require_finite(self._observations, self._rewards, when)
        finals_of: list[int] = []
        finals: list[Array] = []
        if self._truncated.any():
            finals_of = np.flatnonzero(self._truncated & ~self._terminated).tolist()
            finals = [self._finals[i].copy() for i in finals_of]
            if finals:
                self.require_finite_finals(np.stack(finals), finals_of, when)
        return self._observations, self._rewards, self._terminated, self._truncated, finals_of, finals

    def _begin_all(self) -> None:
        self.kernels.begin_all(self.world, self._observations)

    def _stepping(self, actions: Array) -> Callable[[int, int], None]:
        """One step of the environments from one to another, by actions `[N, action]`."""
        results = self._observations, self._rewards, self._terminated, self._truncated, self._finals
        return lambda first, end: self.kernels.step_all(self.world, first, end, actions, *results)

    @property
    def world(self) -> tuple[Any, ...]:
        """What every loop takes first, see `compiled/kernels.py`."""
        return self.states, self.randoms, self.lengths, self.definition.episode_length

    def on_threads(self, loop: Callable[[int, int], None], when: str) -> None:
        """Call a loop for the environments from one to another, for all of them, by each thread for its own.

        What took this thread less than it takes to wake another is not divided the next time. That goes by a stopwatch,
        as no bit depends on it.

        Raises:
            EnvError: if the environment's own functions raise.
        """
        with self.failing(when):
            begun = time.perf_counter()
            if len(self._parts_of_threads) == 1 or self._seconds_of_work < SECONDS_WORTH_DIVIDING:
                loop(0, self._num)
                self._seconds_of_work = time.perf_counter() - begun
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_threads - 1, thread_name_prefix="hybridppo-compiled")
            (first, end), *others = self._parts_of_threads
            futures = [self._threads.submit(loop, *part) for part in others]
            begun = time.perf_counter()
            try:
                loop(first, end)
            finally:
                self._seconds_of_work = (time.perf_counter() - begun) * len(self._parts_of_threads)
                for future in futures:
                    future.exception()  # none may write any more when this is over
            for future in futures:
                future.result()

    def failing(self, when: str) -> "_Failing":
        """Within it, what the environment's own functions raise is an `EnvError`."""
        return _Failing(self, when)

    def require_finite(self, observations: Array, rewards: Array, when: str, columns: Array | None = None) -> None:
        """Refuse observations `[..., N, obs]` and rewards `[..., N]` that are not finite, of all columns or of these.

        Raises:
            EnvError: naming the first environment and number that is not.
        """
        for name, numbers, axis in (("observation", observations, -2), ("reward", rewards, -1)):
            if not np.isfinite(numbers).all():
                place = np.argwhere(~np.isfinite(numbers))[0]
                where = self.encode.names[place[-1]] if name == "observation" else ""
                value = numbers[tuple(place)]
                column = place[axis] if columns is None else columns[place[axis]]
                raise self.failure(when, f"the {name} of {self._column(column)}: {name}{where} is {value}")

    def require_finite_finals(self, finals: Array, envs: Sequence[int] | Array, when: str) -> None:
        """Likewise, of final observations `[n, obs]`, each of the environment given for it."""
        if not np.isfinite(finals).all():
            final, number = np.argwhere(~np.isfinite(finals))[0].tolist()
            where, value = self.encode.names[number], finals[final, number]
            column = self._column(int(envs[final]))
            raise self.failure(when, f"the final observation of {column}: observation{where} is {value}")

    def _column(self, column: int) -> str:
        """What a column is of."""
        env, agent = divmod(int(column), self.num_agents)
        return f"environment {self._first + env}" + (f", agent {self.agents[agent]!r}" if self.agents else "")

    def failure(self, when: str, what: str) -> EnvError:
        """The error for what went wrong."""
        last = self._first + self._num - 1
        name = self.definition.name
        return EnvError(
            f"environments {self._first} to {last}, compiled {name} (seed {self._seed}), failed {when}: {what}"
        )

    def state(self) -> list[EnvState]:
        """Of each environment by itself, so that they may go on divided among other workers."""
        dtype = str(self.states.dtype.descr)
        return [
            {
                "num_envs": 1,
                "compiled": {
                    "fields": dtype,
                    "state": base64.b64encode(self.states[i].tobytes()).decode("ascii"),
                    "random": self.randoms[i].tolist(),
                    "length": int(self.lengths[i]),
                },
            }
            for i in range(self._num)
        ]

    def load_state(self, states: list[EnvState]) -> None:  # noqa: D102 - as in the base
        if len(states) != self._num or not all("compiled" in state for state in states):
            raise EnvStateError(
                f"what was saved is not the state of {self._num} compiled environments: resume with the num_envs "
                "and the vectorization that the run had"
            )
        rows, randoms, lengths = self.states.copy(), self.randoms.copy(), self.lengths.copy()
        for i, state in enumerate(states):
            saved = state["compiled"]
            if saved["fields"] != str(self.states.dtype.descr):
                raise EnvStateError(f"the fields of {self.definition.name} are not what they were when it was saved")
            rows[i] = np.frombuffer(base64.b64decode(saved["state"], validate=True), self.states.dtype, 1)[0]
            if np.shape(saved["random"]) != randoms[i].shape:
                raise EnvStateError("what was saved of random numbers is not of this release")
            randoms[i], lengths[i] = saved["random"], whole(saved, "length")
        self.states[:], self.randoms[:], self.lengths[:] = rows, randoms, lengths

    def remember_the_start(self) -> None:
        """Everything is saved, whatever it was then."""

    def _parts(self) -> list[tuple[object, int]]:
        raise EnvStateError("compiled environments save themselves")  # `state` and `load_state` do

    def _close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)


class _Failing:
    """See `CompiledEnvironments.failing`."""

    def __init__(self, environments: CompiledEnvironments, when: str) -> None:
        self._environments, self._when = environments, when

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, EnvError):
            what = f"{type(error).__name__}: {error}"
            if isinstance(error, IndexError):
                what += f" of its array: step {self._environments.definition.name}() in Python to see where"
            raise self._environments.failure(self._when, what) from error
