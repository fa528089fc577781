"""A game of several agents in which one policy learns in each episode, and opponents have the other seats."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.multi_agent import MultiAgentEnvironment, multi_agent_environment
from hybridppo.environments.options import SelfPlayOptions
from hybridppo.environments.wrappers import mask_for_sample
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.of_agents import SpacesOfAgents

Opponent = Callable[[Array, np.random.Generator, list[Any]], tuple[Sequence[Any], list[Any]]]
"""From rows `[n, *row]`, a generator and the state of each row's agent (None at the start of an episode, or without
a memory) to the actions and the new states."""
MOST_RESETS = 100
"""How many episodes in a row may end before the learner's first turn."""


class _Memory:
    """The state of the seats, which a checkpoint saves together with that of the game."""

    def __init__(self, game: Any, rows: Array, present: Array, masks: list[Any], results: list[list[Any]]) -> None:
        self.game, self.rows, self.present, self.masks = game, rows, present, masks
        self.generator = np.random.default_rng(0)
        self.team: list[int] = []
        """The seats of the learner."""
        self.opponents: dict[str, str] = {}
        """The name of the snapshot in the other seats of each policy; empty before the first snapshots."""
        self.states: list[Any] = [None] * len(present)
        """The state of the opponent in each seat."""
        self.gains = np.zeros(len(present))
        """The return of each agent in this episode."""
        self.results = results
        """For each ended episode, the learner's policy, the opponent's policy and name, and the score: 1 for a win, 0.5
        for a draw, else 0."""


class SelfPlayGame:
    """Like `MultiAgentEnvironment` with the learner as its agent, whose seat is drawn in each episode.

    If there are several policies, one is drawn in each episode and learns in all its seats. All agents are then
    columns, and the columns of opponents are absent.

    Args:
        inner: the game; agents of one policy have the same spaces.
        options: load opponents from files, and give each agent its policy.
        results: gets the results of episodes; if the environment is restarted, its next seat gets the same list.

    Raises:
        EnvError: if agents of the only policy have different spaces, or there is only one agent.
    """

    turn = 0

    def __init__(self, inner: MultiAgentEnvironment, options: SelfPlayOptions, results: list[list[Any]]) -> None:
        self._inner, self._results = inner, results
        self._opponent_of: Callable[[Path], Opponent] = options.opponent_of
        self.agents, self.agent = ("learner",), inner.agent
        slots = range(len(inner.agents))
        self._columns = [0] * len(inner.agents)
        """The column of each seat."""
        self._teams = [[slot] for slot in slots]
        """The seats of which the learner gets one."""
        self._policies = [""] * len(inner.agents)
        self.takes_turns = False
        if options.policy_of is not None:
            self.agents, self._columns, self.takes_turns = inner.agents, list(slots), inner.takes_turns
            self._policies = [str(options.policy_of(str(agent))) for agent in inner.agents]
            self._teams = [[slot for slot in slots if self._policies[slot] == name] for name in options.policies]
        else:
            _require_seats(inner)
        self.infos: Any = {}
        self.saved = self._memory = _Memory(inner.env, inner.rows, inner.present, inner.masks, results)
        self._rows = np.zeros((len(self.agents), *inner.rows.shape[1:]), inner.rows.dtype)
        self.rewards = np.zeros(len(self.agents), np.float32)
        self.terminated, self.truncated, self.present = (np.zeros(len(self.agents), np.bool_) for _ in range(3))
        self.is_over = False
        self.finals: list[tuple[int, Array]] = []
        actions: Any = inner.action_space
        self._random_actions: Any = deepcopy(actions)  # to seed them; the game may draw from its own
        self.action_space = gym.spaces.Tuple([actions[column] for column in range(len(self.agents))])
        self._folder = Path()
        self._pools: Mapping[str, tuple[list[str], list[float]]] = {}
        self._opponents: dict[str, Opponent] = {}
        """The opponents of this episode that have played, by policy."""

    @property
    def unwrapped(self) -> Any:
        """The game itself."""
        return self._inner.unwrapped

    def use_folder(self, folder: str) -> None:
        """Load opponents from this folder."""
        self._folder = Path(folder)
        self._opponents.clear()

    def set_opponents(self, pools: Mapping[str, tuple[list[str], list[float]]], ratings: Mapping[str, Any]) -> None:
        """Draw the opponents of each policy by these names and weights from the next episode on.

        `ratings` is not used here.
        """
        self._pools = pools

    def take_results(self) -> list[list[Any]]:
        """The results of the episodes since the last call."""
        found = self._results.copy()
        self._results.clear()
        return found

    def reset_options(self) -> dict[str, Any]:
        """The pools from which the next reset draws opponents."""
        return {"pools": self._pools}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode, and play up to the learner's first turn; `options` may have the `pools` of opponents."""
        memory, inner = self._memory, self._inner
        pools = self._pools if options is None else options["pools"]
        if seed is not None:
            memory.generator = np.random.default_rng([seed, 1])
        for _ in range(MOST_RESETS):
            inner.reset(seed=seed)
            seed = None
            memory.gains[:] = 0.0
            memory.states = [None] * len(inner.agents)
            self._opponents.clear()
            teams = [team for team in self._teams if inner.present[team].any()]
            if not teams:
                continue
            memory.team = teams[int(memory.generator.integers(len(teams)))]
            memory.opponents = {
                policy: str(memory.generator.choice(names, p=weights))
                for policy, (names, weights) in pools.items()
                if self._seats_of(policy)
            }
            if self._others_play():
                break
            self._add_result()  # the others have ended the game before the learner's turn
        else:
            raise BadValueError(f"{MOST_RESETS} episodes in a row have ended before the learner's turn")
        self._rows[:], self.is_over, self.present[:] = 0, False, False
        self._show()
        return self._rows, {}

    def step(self, action: Any) -> Any:
        """As `MultiAgentEnvironment.step`, up to the learner's next turn or the end of its episode."""
        inner = self._inner
        self.finals, self.infos = [], {}
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        seats = [inner.turn] if inner.takes_turns else np.flatnonzero(inner.present).tolist()
        self._play(seats, action)
        self._others_play()
        self._show()
        self.is_over = not self.present.any()
        if self.is_over:
            self._add_result()
        return self._rows, self.rewards, self.terminated, self.truncated, {}

    def require_finite(self) -> None:
        """As in `MultiAgentEnvironment`."""
        self._inner.require_finite()

    def put_present(self, present: Array) -> None:
        """As in `MultiAgentEnvironment`."""
        self.present[:] = present
        memory, inner = self._memory, self._inner
        self._opponents.clear()
        inner.rows[:] = memory.rows
        inner.put_present(np.array(memory.present))
        inner.masks[:] = memory.masks
        memory.rows, memory.present, memory.masks = inner.rows, inner.present, inner.masks
        self._results[:] = memory.results
        memory.results = self._results
        self._show()

    def close(self) -> None:
        """Close the game."""
        self._inner.close()

    def _show(self) -> None:
        """Show the learner's seats as they are now."""
        inner = self._inner
        for seat in self._memory.team:
            column = self._columns[seat]
            self._rows[column], self.present[column] = inner.rows[seat], inner.present[seat]
        self.turn = self._columns[inner.turn]

    def _add_result(self) -> None:
        """Note the result of the episode against the snapshot of each policy."""
        memory = self._memory
        own = memory.gains[memory.team].max()
        for policy, name in memory.opponents.items():
            others = memory.gains[self._seats_of(policy)].max()
            score = 0.5 if own == others else float(own > others)
            self._results.append([self._policies[memory.team[0]], policy, name, score])

    def _seats_of(self, policy: str) -> list[int]:
        """The seats of a policy that opponents have."""
        team = self._memory.team
        return [seat for seat, own in enumerate(self._policies) if own == policy and seat not in team]

    def _others_play(self) -> bool:
        """If agents take turns, let the others act until the learner's turn; whether the learner is still present."""
        team, inner = self._memory.team, self._inner
        while is_present := any(inner.present[seat] for seat in team):
            if not inner.takes_turns or inner.turn in team:
                break
            self._play([inner.turn], None)
        return is_present

    def _play(self, seats: Sequence[int], own_actions: Any) -> None:
        """Let the agents in these seats act; the learner by its columns of `own_actions`."""
        memory, inner = self._memory, self._inner
        actions: list[Any] = [None] * len(inner.agents)
        others: dict[str, list[int]] = {}
        for seat in seats:
            if seat in memory.team:
                actions[seat] = own_actions[self._columns[seat]]
            else:
                others.setdefault(self._policies[seat], []).append(seat)
        for policy, of_policy in others.items():
            for seat, action in zip(of_policy, self._chosen(policy, of_policy), strict=True):
                actions[seat] = action
        inner.step(actions)
        memory.gains += inner.rewards
        infos = inner.infos if isinstance(inner.infos, Mapping) else {}
        for seat in memory.team:
            column = self._columns[seat]
            if inner.agents[seat] in infos:
                self.infos[self.agents[column]] = infos[inner.agents[seat]]
            self.rewards[column] += inner.rewards[seat]
            self.terminated[column] |= inner.terminated[seat]
            self.truncated[column] |= inner.truncated[seat]
        self.finals += [(self._columns[slot], final) for slot, final in inner.finals if slot in memory.team]

    def _chosen(self, policy: str, seats: Sequence[int]) -> Sequence[Any]:
        memory, inner = self._memory, self._inner
        if policy in memory.opponents:
            if policy not in self._opponents:
                self._opponents[policy] = self._opponent_of(self._folder / policy / memory.opponents[policy])
            rows, before = inner.rows_of(seats), [memory.states[seat] for seat in seats]
            actions, states = self._opponents[policy](rows, memory.generator, before)
            for seat, state in zip(seats, states, strict=True):
                memory.states[seat] = state
            return actions
        found = []
        for seat in seats:  # there is no snapshot yet
            space = self._random_actions[seat]
            space.seed(int(memory.generator.integers(2**31)))
            found.append(space.sample(mask_for_sample(space, inner.masks[seat])))
        return found


def _require_seats(inner: MultiAgentEnvironment) -> None:
    """Refuse a game that one policy cannot play against itself, with an `EnvError`."""
    spaces = inner.agent.observation_space, inner.agent.action_space
    if len(inner.agents) < 2 or any(isinstance(space, SpacesOfAgents) for space in spaces):
        raise EnvError(
            "self_play is for environments of two or more agents with the same spaces, and the agents of this one "
            f"are {', '.join(map(str, inner.agents))}"
            + ("" if len(inner.agents) < 2 else ", whose spaces differ: train a policy for each kind")
        )


def self_play_game(make: Callable[[], Any], options: SelfPlayOptions, results: list[list[Any]]) -> SelfPlayGame:
    """The environment that `make` makes, as the learner's seats."""
    return SelfPlayGame(multi_agent_environment(make, options.action_masks, options.critic_observes), options, results)
