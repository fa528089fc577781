"""A game of several agents as an environment of one: it has a seat in each episode, and opponents have the others."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from hybridppo.environments.parallel import ParallelEnvironment
from hybridppo.environments.turns import agents_environment
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.spaces.rows import CriticObserves

Array = NDArray[Any]

Opponent = Callable[[Array, np.random.Generator, list[Any]], tuple[Sequence[Any], list[Any]]]
"""From rows `[n, *row]`, a generator and the state of each row's agent (None at the start of an episode, or without
a memory) to the actions and the new states."""
MOST_RESETS = 100
"""How many episodes in a row may end before the learner's first turn."""


class _Memory:
    """The state of a seat that a checkpoint saves, with the game's."""

    def __init__(self, game: Any, rows: Array, present: Array, masks: list[Any]) -> None:
        self.game, self.rows, self.present, self.masks = game, rows, present, masks
        self.generator = np.random.default_rng(0)
        self.seat = 0
        self.opponent: str | None = None
        """The name of the snapshot in the other seats; None for random actions."""
        self.states: list[Any] = [None] * len(present)
        """The state of the opponent in each seat."""
        self.gains = np.zeros(len(present))
        """The return of each agent in this episode."""
        self.results: list[list[Any]] = []
        """The opponent's name and the score of each ended episode: 1 for a win, 0.5 for a draw, else 0."""


class Seat(gym.Env[Any, Any]):
    """Like `ParallelEnvironment` with one agent: the learner, whose seat is drawn in each episode.

    Args:
        inner: the game, whose agents have the same spaces.
        opponent_of: loads an opponent from a file.

    Raises:
        EnvError: if agents have different spaces, or there is only one.
    """

    takes_turns, turn = False, 0

    def __init__(self, inner: ParallelEnvironment, opponent_of: Callable[[Path], Opponent]) -> None:
        spaces = inner.agent.observation_space, inner.agent.action_space
        if len(inner.agents) < 2 or any(isinstance(space, SpacesOfAgents) for space in spaces):
            raise EnvError(
                "self_play is for environments of two or more agents with the same spaces, and the agents of this one "
                f"are {', '.join(map(str, inner.agents))}"
                + ("" if len(inner.agents) < 2 else ", whose spaces differ: train a policy for each kind")
            )
        self._inner, self._opponent_of = inner, opponent_of
        self.agents, self.agent = ("learner",), inner.agent
        self.infos: Any = {}
        self._memory = _Memory(inner.env, inner.rows, inner.present, inner.masks)
        self._rows = np.zeros((1, *inner.rows.shape[1:]), inner.rows.dtype)
        self.rewards = np.zeros(1, np.float32)
        self.terminated, self.truncated, self.present = (np.zeros(1, np.bool_) for _ in range(3))
        self.is_over = False
        self.finals: list[tuple[int, Array]] = []
        low, high = (0, 255) if self._rows.dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = Box(low, high, self._rows.shape, dtype=self._rows.dtype.type)
        self.action_space = gym.spaces.Tuple([inner.agent.action_space])
        self._random_actions: Any = inner.action_space
        self._folder, self._names, self._weights = Path(), [""], [1.0]

    @property
    def saved(self) -> object:
        """The object whose state a checkpoint saves."""
        return self._memory

    @property
    def unwrapped(self) -> Any:
        """The game itself."""
        return self._inner.unwrapped

    def use_folder(self, folder: str) -> None:
        """Load opponents from this folder."""
        self._folder = Path(folder)

    def set_opponents(self, names: list[str], weights: list[float], ladder: Mapping[str, Any]) -> None:
        """Draw opponents by these weights from the next episode on. `ladder` is not used here."""
        self._names, self._weights = names, weights

    def take_results(self) -> list[list[Any]]:
        """The results of the episodes since the last call."""
        found, self._memory.results = self._memory.results, []
        return found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode, and play up to the learner's first turn."""
        memory, inner = self._memory, self._inner
        if seed is not None:
            memory.generator = np.random.default_rng([seed, 1])
        for _ in range(MOST_RESETS):
            inner.reset(seed=seed)
            seed = None
            memory.gains[:] = 0.0
            memory.states = [None] * len(inner.agents)
            memory.seat = int(memory.generator.choice(np.flatnonzero(inner.present)))
            name = str(memory.generator.choice(self._names, p=self._weights))
            memory.opponent = name or None
            if self._others_play():
                break
        else:
            raise BadValueError(f"{MOST_RESETS} episodes in a row have ended before the learner's turn")
        self.present[:], self.is_over = True, False
        self._rows[0] = inner.rows[memory.seat]
        return self._rows, {}

    def step(self, action: Any) -> Any:
        """As `ParallelEnvironment.step`, up to the learner's next turn or the end of its episode."""
        memory, inner = self._memory, self._inner
        self.finals = []
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        seats = [memory.seat] if inner.takes_turns else np.flatnonzero(inner.present).tolist()
        self._play(seats, action[0])
        if inner.present[memory.seat]:
            self._others_play()
        self.present[0] = inner.present[memory.seat]
        self._rows[0] = inner.rows[memory.seat]
        self.is_over = not self.present[0]
        if self.is_over:
            others = np.delete(memory.gains, memory.seat).max()
            own = memory.gains[memory.seat]
            if memory.opponent is not None:
                memory.results.append([memory.opponent, 0.5 if own == others else float(own > others)])
        return self._rows, self.rewards, self.terminated, self.truncated, {}

    def require_finite(self) -> None:
        """As in `ParallelEnvironment`."""
        self._inner.require_finite()

    def put_present(self, present: Array) -> None:
        """As in `ParallelEnvironment`."""
        self.present[:] = present
        memory, inner = self._memory, self._inner
        inner.rows[:] = memory.rows
        inner.put_present(np.array(memory.present))
        inner.masks[:] = memory.masks
        memory.rows, memory.present, memory.masks = inner.rows, inner.present, inner.masks

    def close(self) -> None:
        """Close the game."""
        self._inner.close()

    def _others_play(self) -> bool:
        """If agents take turns, let the others act until the learner's turn; whether the learner is still present."""
        memory, inner = self._memory, self._inner
        while inner.takes_turns and inner.present[memory.seat] and inner.turn != memory.seat:
            self._play([inner.turn], None)
        return bool(inner.present[memory.seat])

    def _play(self, seats: Sequence[int], own_action: Any) -> None:
        """Let the agents in these seats act; the learner by `own_action`."""
        memory, inner = self._memory, self._inner
        others = [seat for seat in seats if seat != memory.seat]
        actions: list[Any] = [own_action] * len(inner.agents)
        for seat, action in zip(others, self._chosen(others) if others else (), strict=True):
            actions[seat] = action
        inner.step(actions)
        memory.gains += inner.rewards
        self.rewards[0] += inner.rewards[memory.seat]
        self.terminated[0] |= inner.terminated[memory.seat]
        self.truncated[0] |= inner.truncated[memory.seat]
        self.finals += [(0, final) for slot, final in inner.finals if slot == memory.seat]

    def _chosen(self, seats: Sequence[int]) -> Sequence[Any]:
        memory, inner = self._memory, self._inner
        if memory.opponent is not None:
            act = self._opponent_of(self._folder / memory.opponent)
            actions, states = act(inner.rows[seats], memory.generator, [memory.states[seat] for seat in seats])
            for seat, state in zip(seats, states, strict=True):
                memory.states[seat] = state
            return actions
        found = []
        for seat in seats:  # there is no snapshot yet
            space = self._random_actions[seat]
            space.seed(int(memory.generator.integers(2**31)))
            found.append(space.sample(inner.masks[seat]))
        return found


def seat_environment(
    make: Callable[[], Any],
    action_masks: bool,
    critic_observes: CriticObserves,
    opponent_of: Callable[[Path], Opponent],
) -> Seat:
    """The environment that `make` makes, as the learner's seat."""
    return Seat(agents_environment(make, action_masks, critic_observes), opponent_of)
