"""Environments that Numba compiles: one call steps all of them, on several threads if asked for.

There is a column for each agent of each environment, environment by environment. An agent that leaves ends its episode;
its rows are not steps (`absent`) until its environment's next reset.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from hybridppo.compiled.random_numbers import NUM_WORDS, begin
from hybridppo.environments.base import Environments, EnvState, Step
from hybridppo.environments.state import decoded, encoded_array
from hybridppo.errors import EnvError, EnvStateError, failures, shown_error
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import finite_test
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import CriticRows, each_observes, joint_space, spaces_with_critics_part
from hybridppo.spaces.rows import ObservesOfAgents
from hybridppo.system.threads import SideBySide

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

SECONDS_WORTH_DIVIDING = 3e-4
"""Work of one thread is divided only if it takes longer: a shorter call ends before other threads are awake."""


class CompiledEnvironments(Environments):
    """`E` environments of a definition, each of `A` agents, which are reset within the step that ends an episode.

    Args:
        definition: the definition of the environments.
        num_envs: number of environments.
        first: number of the first environment among those of the run, for messages.
        num_threads: number of threads; it does not change the result.
        critic_observes: what rows have besides an agent's own observation, like `PPOConfig.critic_observes`.

    Raises:
        EnvError: if they cannot be compiled, or have no state that critics could see.
    """

    is_compiled = True

    def __init__(
        self,
        definition: "Definition",
        num_envs: int,
        first: int = 0,
        num_threads: int = 1,
        critic_observes: ObservesOfAgents = "own",
    ) -> None:
        from hybridppo.compiled.building import build

        agents = definition.agents
        observes = each_observes(critic_observes, agents or ("",))
        if "state" in observes and definition.state_space is None:
            raise EnvError(
                f"critic_observes='state' needs a state_space, and {definition.name} has none: pass state_space= to "
                "compiled.environment and write `def observe_state(state, time, out)`, or use critic_observes='all'"
            )
        shape = num_envs, len(observes)
        columns = int(np.prod(shape))
        observed = [definition.observation_space] * shape[1]
        spaces = spaces_with_critics_part(observed, observes, definition() if agents else None)
        super().__init__(columns, joint_space(agents, spaces), definition.action_space)
        written: gym.Space[Any] = definition.observation_space
        if "state" in observes:
            written, definition = spaces[observes.index("state")], definition.showing_state
        self.written = ObservationEncoder(written)
        """Encodes the rows that loops write: an agent's own observation, and the state if a critic sees it."""
        self.whole: CriticRows | None = None
        """Makes the rows that critics see from those that loops write; None if they are the same."""
        if {*observes} not in ({"own"}, {"state"}):
            self.whole = CriticRows(spaces, observes, self.encode.size)
        self.agents, self._num = agents, num_envs
        self.definition = definition
        self.kernels = build(definition)
        self.kinds: Array = np.array([0, *accumulate(definition.policies.values() or [1])], np.int64)
        """`[K + 1]`: the first agent of each kind, and the number of agents."""
        self.states: Array = np.zeros(num_envs, definition.state)
        """`[E]` records; together with the three arrays below, the whole state of the environments."""
        self.randoms: Array = np.zeros((*shape, NUM_WORDS), np.int64)
        """`[E, A, 4]`: key, episode and draws, see `random_numbers.py`."""
        self.lengths: Array = np.zeros(num_envs, np.int64)
        """`[E]`, lengths of the unfinished episodes."""
        self.present: Array = np.ones(shape, np.bool_)
        """`[E, A]`: which agents are present."""
        self._first, self._num_steps = first, 0
        self.title = f"environments {first} to {first + num_envs - 1}, compiled {definition.name}"
        self._num_threads = min(num_threads, num_envs)
        self._threads = SideBySide("hybridppo-compiled")
        self._seconds_of_work = 0.0
        # Observations and rewards share one array, so that one test finds numbers that are not finite.
        size = columns * self.written.size
        self._numbers = np.zeros(size + columns, np.float32)
        self._observations, self._rewards = self._numbers[:size].reshape(columns, -1), self._numbers[size:]
        self._sum = finite_test(self._numbers.size)
        self._terminated, self._truncated, self._absent = (np.zeros(columns, np.bool_) for _ in range(3))
        self._finals = np.zeros((columns, self.written.size), np.float32)
        # The loops write the row after the one that they act in; here, both are the same row.
        rows = self._observations
        self._both_observations = np.lib.stride_tricks.as_strided(rows, (2, *rows.shape), (0, *rows.strides))
        if agents:
            self.absent = self._absent
        self._action_dtype = np.float32 if isinstance(definition.action_space, gym.spaces.Box) else np.int64

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed, self._num_steps = seed, 0
        self.states[:] = np.zeros(1, self.states.dtype)
        for i, randoms in enumerate(self.randoms):
            for random in randoms:
                begin(random, seed + i)
        begin_all, rows = self.kernels.begin_all, self._both_observations
        self.on_threads(lambda first, end: begin_all(self.world, first, end, rows, self.row()), "in their reset")
        self.require_finite(self._observations, self._rewards, "in their reset")
        return self.seen(self._observations, self.present.ravel()).copy()

    def step(self, actions: Any) -> Step:
        """Final observations are those before the reset."""
        self._num_steps += 1
        actions = np.asarray(actions, self._action_dtype).reshape(self.num_envs, -1)
        when = f"in step {self._num_steps}"
        results = (self._rewards, self._terminated, self._truncated, self._absent, self._finals)
        rows = self._both_observations, *(array[None] for array in results)
        self.on_threads(
            lambda first, end: self.kernels.step_all(self.world, first, end, actions, rows, self.row()), when
        )
        if not np.isfinite(self._sum(self._numbers)):
            self.require_finite(self._observations, self._rewards, when)
        finals_of: list[int] = []
        finals: list[Array] = []
        if self._truncated.any():
            are_final = self._truncated & ~self._terminated
            finals_of = np.flatnonzero(are_final).tolist()
            finals = list(self.finals_of(self._finals[None], are_final[None], when))
        seen = self.seen(self._observations, self.present.ravel())
        return seen, self._rewards, self._terminated, self._truncated, finals_of, finals

    def seen(self, rows: Array, are_there: Array) -> Array:
        """Rows `[..., N, written]` with what critics see besides, `[..., N, obs]`.

        Args:
            rows: as loops write them.
            are_there: `[..., N]`, which agents are present.
        """
        return rows if self.whole is None else self.whole.whole(rows, are_there)

    def finals_of(self, finals: Array, are_final: Array, when: str) -> Array:
        """The final observations `[n, obs]` among rows `[T, N, written]`, in their order; `are_final` is `[T, N]`.

        Raises:
            EnvError: if a number is not finite.
        """
        found = finals[are_final]
        self.require_finite_rows("final observation", found, np.nonzero(are_final)[1], when)
        if self.whole is None:
            return found
        steps, envs = np.nonzero(are_final.reshape(len(finals), self._num, -1).any(2))
        cut = are_final.reshape(len(finals), self._num, -1)[steps, envs]
        rows = finals.reshape(len(finals), self._num, -1, finals.shape[-1])[steps, envs]
        rows[~cut] = 0
        return self.whole.whole(rows, cut)[cut]

    @property
    def world(self) -> tuple[Any, ...]:
        """The first argument of every loop, see `compiled/kernels.py`."""
        return self.states, self.randoms, self.lengths, self.present, self.definition.episode_length

    def row(self) -> Array:
        """A new array for an observation; each thread needs one."""
        return np.empty(self.written.size, np.float32)

    def on_threads(self, loop: Callable[[int, int], None], when: str) -> None:
        """Call `loop(first, end)` for all environments, divided among the threads.

        Work that is shorter than waking another thread is not divided the next time. This depends on a clock, but
        changes no result.

        Raises:
            EnvError: if the environment's own functions raise an error.
        """
        count = 1 if self._seconds_of_work < SECONDS_WORTH_DIVIDING else self._num_threads

        def part(number: int) -> None:
            begun = time.perf_counter()
            loop(number * self._num // count, (number + 1) * self._num // count)
            if number == 0:
                self._seconds_of_work = (time.perf_counter() - begun) * count

        try:
            self._threads.run(part, count)
        except failures() as error:
            what = shown_error(error)
            if isinstance(error, IndexError):
                what += f" of its array: step {self.definition.name}() in Python to see where"
            raise self.failure(when, what) from error

    def require_finite(self, observations: Array, rewards: Array, when: str) -> None:
        """Refuse observations `[..., N, written]` and rewards `[..., N]` that are not finite.

        Raises:
            EnvError: naming the first environment and number.
        """
        every = np.arange(self.num_envs)
        self.require_finite_rows("observation", observations, every, when)
        self.require_finite_rows("reward", rewards[..., None], every, when)

    def require_finite_rows(self, what: str, rows: Array, columns: Array, when: str) -> None:
        """Likewise for rows `[..., n, *]` of these columns."""
        if np.isfinite(rows).all():
            return
        place = np.argwhere(~np.isfinite(rows))[0]
        value = rows[tuple(place)]
        number = "reward" if what == "reward" else f"observation{self.written.names[place[-1]]}"
        remedy = ", or `observe` does not write it" if what == "observation" and np.isnan(value) else ""
        env, agent = divmod(int(columns[place[-2]]), self.num_agents)
        who = f"environment {self._first + env}" + (f", agent {self.agents[agent]!r}" if self.agents else "")
        raise self.failure(when, f"the {what} of {who}: {number} is {value}{remedy}")

    def _arrays(self) -> dict[str, Array]:
        """The whole state, `[E, ...]` each."""
        states = self.states.view(np.uint8).reshape(self._num, -1)
        return {"states": states, "randoms": self.randoms, "lengths": self.lengths, "present": self.present}

    def state(self) -> list[EnvState]:
        """The state of each environment separately, so that it can be divided among other workers."""
        arrays, fields = self._arrays(), str(self.states.dtype.descr)
        return [
            {
                "num_envs": self.num_agents,  # columns
                "fields": fields,
                "compiled": {name: encoded_array(array[i]) for name, array in arrays.items()},
            }
            for i in range(self._num)
        ]

    def load_state(  # noqa: D102 - as in the base
        self, states: list[EnvState], rows: Array | None = None, actions: Sequence[Any] = ()
    ) -> None:
        if len(states) != self._num or not all("compiled" in state for state in states):
            raise EnvStateError(
                f"what was saved is not the state of {self._num} compiled environments: resume with the num_envs "
                "and the vectorization that the run had"
            )
        arrays = self._arrays()
        saved = {name: [decoded(state["compiled"][name]) for state in states] for name in arrays}
        for name, array in arrays.items():
            are_alike = all((own.shape, own.dtype) == (array.shape[1:], array.dtype) for own in saved[name])
            if not are_alike or any(state["fields"] != str(self.states.dtype.descr) for state in states):
                raise EnvStateError(
                    f"the {name} of {self.definition.name} are of another form than when they were saved"
                )
        for name, array in arrays.items():
            array[:] = saved[name]

    def _close(self) -> None:
        self._threads.close()
