"""A game of several agents in which one policy learns in each episode, and opponents play the others."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Outer
from hybridppo.environments.multi_agent import MultiAgentEnvironment
from hybridppo.environments.options import SelfPlayOptions
from hybridppo.environments.wrappers import mask_for_sample
from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.of_agents import AgentName, SpacesOfAgents

Opponent = Callable[[Array, np.random.Generator, list[Any]], tuple[Sequence[Any], list[Any]]]
"""From rows `[n, *row]`, a generator and the state of each row's agent (None at the start of an episode, or without
a memory) to the actions and the new states."""
MOST_RESETS = 100
"""How many episodes in a row may end before the learner's first turn."""


class _Match:
    """The state of an episode besides that of the game."""

    def __init__(self, num_players: int) -> None:
        self.generator = np.random.default_rng(0)
        self.learners: list[int] = []
        """The learner's players."""
        self.opponents: dict[str, str] = {}
        """The name of the snapshot that plays the others of each policy; empty before the first snapshots."""
        self.states: list[Any] = [None] * num_players
        """The state of each player's opponent."""
        self.gains = np.zeros(num_players)
        """The return of each player in this episode."""
        self.results: list[list[Any]] = []
        """For each ended episode, the learner's policy, the opponent's policy and name, and the score: 1 for a win, 0.5
        for a draw, else 0."""
        self.missed: list[list[Any]] = []
        """For each of the learner's players whose episode ended before its first turn, the policy and the return."""
        self.before: list[float] = []
        """The reward of each column before the learner's first turn, which its first step gets."""


class SelfPlayGame(Outer):
    """Like `MultiAgentEnvironment` with the learner as its agent, which is another player in each episode.

    If there are several policies, one is drawn in each episode, learns, and is all its players. All agents are then
    columns, and the columns of opponents are absent.

    Args:
        inner: the game, whose agents are the players; players of one policy have the same spaces.
        options: load opponents from files, and give each agent its policy.

    Raises:
        EnvError: if agents of the only policy have different spaces, or there is only one agent.
    """

    turn = 0

    def __init__(self, inner: MultiAgentEnvironment, options: SelfPlayOptions) -> None:
        self.env = inner
        self._opponent_of: Callable[[Path], Opponent] = options.opponent_of
        self.agents, self.agent = ("learner",), inner.agent
        players = range(len(inner.agents))
        self._columns = [0] * len(inner.agents)
        """The column of each player."""
        self._sides = [[player] for player in players]
        """The groups of players of which the learner is one."""
        self._policies = [""] * len(inner.agents)
        self.takes_turns = False
        if options.policy_of is not None:
            self.agents, self._columns, self.takes_turns = inner.agents, list(players), inner.takes_turns
            self._policies = [str(options.policy_of(AgentName(agent))) for agent in inner.agents]
            self._sides = [[player for player in players if self._policies[player] == own] for own in options.policies]
        else:
            _require_opponents(inner)
        self._match = _Match(len(inner.agents))
        self.saved = {"inner": inner.saved, "match": self._match}
        self._rows = np.zeros((len(self.agents), *inner.rows.shape[1:]), inner.rows.dtype)
        self.rewards = np.zeros(len(self.agents), np.float32)
        self.terminated, self.truncated, self.present = (np.zeros(len(self.agents), np.bool_) for _ in range(3))
        self.is_over = False
        self.finals: list[tuple[int, Array]] = []
        self.infos: dict[Any, Any] = {}
        actions: Any = inner.action_space
        self._random_actions: Any = deepcopy(actions)  # to seed them; the game may draw from its own
        self.action_space = gym.spaces.Tuple([actions[column] for column in range(len(self.agents))])
        self._folder = Path()
        self._pools: Mapping[str, tuple[list[str], list[float]]] = {}
        self._opponents: dict[str, Opponent] = {}
        """The opponents of this episode, by policy; in a restored one, those that have played."""

    def use_folder(self, folder: str) -> None:
        """Load opponents from this folder."""
        self._folder = Path(folder)
        self._opponents.clear()

    def set_opponents(self, pools: Mapping[str, Mapping[str, Any]]) -> None:
        """Draw the opponents of each policy from its `snapshots`, by name, with their `weights`, from now on."""
        self._pools = {policy: (list(pool["snapshots"]), pool["weights"]) for policy, pool in pools.items()}

    def take_results(self) -> tuple[list[list[Any]], list[list[Any]]]:
        """The results of the episodes since the last call, and those that were missed, as in `_Match`."""
        found = self._match.results, self._match.missed
        self._match.results, self._match.missed = [], []
        return found

    def take_over(self, before: "SelfPlayGame") -> None:
        """Take over the results of the environment that this one replaces."""
        self._match.results, self._match.missed = before._match.results, before._match.missed

    def reset_options(self) -> dict[str, Any]:
        """The pools from which the next reset draws opponents."""
        return {"pools": self._pools}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, Any]:
        """Begin an episode, and play up to the learner's first turn; `options` may have the `pools` of opponents."""
        match, inner = self._match, self.env
        pools = self._pools if options is None else options["pools"]
        if seed is not None:
            match.generator = np.random.default_rng([seed, 1])
        for _ in range(MOST_RESETS):
            inner.reset(seed=seed)
            seed = None
            match.gains[:] = 0.0
            match.states = [None] * len(inner.agents)
            sides = [side for side in self._sides if inner.present[side].any()]
            if not sides:
                continue
            match.learners = sides[int(match.generator.integers(len(sides)))]
            match.opponents = {
                policy: str(match.generator.choice(names, p=weights))
                for policy, (names, weights) in pools.items()
                if self._others_of(policy)
            }
            self._opponents = {policy: self._loaded(policy) for policy in match.opponents}  # whose files may go later
            self.rewards[:] = 0
            beginners = [player for player in match.learners if inner.present[player]]
            is_present = self._others_play()
            gone = [player for player in beginners if not inner.present[player]]
            match.missed += [[self._policies[player], float(match.gains[player])] for player in gone]
            self.rewards[[self._columns[player] for player in gone]] = 0
            if is_present:
                break
            self._add_result()  # the others have ended the game before the learner's turn
        else:
            raise BadValueError(f"{MOST_RESETS} episodes in a row have ended before the learner's turn")
        match.before = self.rewards.tolist()
        self._rows[:], self.is_over, self.present[:] = 0, False, False
        self._show()
        return self._rows, {}

    def step(self, actions: Any) -> tuple[Array, Array, bool, bool, Any]:
        """As `MultiAgentEnvironment.step`, up to the learner's next turn or the end of its episode."""
        inner = self.env
        self.finals, self.infos = [], {}
        for array in (self.rewards, self.terminated, self.truncated):
            array[:] = 0
        if self._match.before:
            self.rewards[:], self._match.before = self._match.before, []
        self._play([inner.turn] if inner.takes_turns else np.flatnonzero(inner.present).tolist(), actions)
        self._others_play()
        self._show()
        self.is_over = not self.present.any()
        if self.is_over:
            self._add_result()
        has_ended = bool(self.terminated.any() or self.truncated.any())
        return self._rows, self.rewards, has_ended, False, self.infos

    def require_finite(self) -> None:
        """As in `MultiAgentEnvironment`."""
        self.env.require_finite()

    def use_saved(self) -> None:
        """As in `MultiAgentEnvironment`."""
        self._opponents.clear()
        self.env.use_saved()
        self.present[:] = False
        self._show()

    def _show(self) -> None:
        """Show the learner's players as they are now."""
        inner = self.env
        for player in self._match.learners:
            column = self._columns[player]
            self._rows[column], self.present[column] = inner.rows[player], inner.present[player]
        self.turn = self._columns[inner.turn]

    def _add_result(self) -> None:
        """Note the result of the episode against the snapshot of each policy."""
        match = self._match
        own = match.gains[match.learners].max()
        for policy, name in match.opponents.items():
            others = match.gains[self._others_of(policy)].max()
            score = 0.5 if own == others else float(own > others)
            match.results.append([self._policies[match.learners[0]], policy, name, score])

    def _others_of(self, policy: str) -> list[int]:
        """The players of a policy that are opponents."""
        learners = self._match.learners
        return [player for player, own in enumerate(self._policies) if own == policy and player not in learners]

    def _others_play(self) -> bool:
        """If players take turns, let the others act until the learner's turn; whether the learner is still present."""
        learners, inner = self._match.learners, self.env
        while is_present := any(inner.present[player] for player in learners):
            if not inner.takes_turns or inner.turn in learners:
                break
            self._play([inner.turn], None)
        return is_present

    def _play(self, players: Sequence[int], own_actions: Any) -> None:
        """Let these players act; the learner by its columns of `own_actions`."""
        match, inner = self._match, self.env
        actions: list[Any] = [None] * len(inner.agents)
        others: dict[str, list[int]] = {}
        for player in players:
            if player in match.learners:
                actions[player] = own_actions[self._columns[player]]
            else:
                others.setdefault(self._policies[player], []).append(player)
        for policy, of_policy in others.items():
            for player, action in zip(of_policy, self._chosen(policy, of_policy), strict=True):
                actions[player] = action
        inner.step(actions)
        match.gains += inner.rewards
        for player in match.learners:
            column = self._columns[player]
            if inner.agents[player] in inner.infos:
                self.infos[self.agents[column]] = inner.infos[inner.agents[player]]
            self.rewards[column] += inner.rewards[player]
            self.terminated[column] |= inner.terminated[player]
            self.truncated[column] |= inner.truncated[player]
        self.finals += [(self._columns[player], final) for player, final in inner.finals if player in match.learners]

    def _chosen(self, policy: str, players: Sequence[int]) -> Sequence[Any]:
        """The actions of opponents of a policy."""
        match, inner = self._match, self.env
        if policy not in match.opponents:  # there is no snapshot yet
            return [self._random_action(player) for player in players]
        if policy not in self._opponents:
            self._opponents[policy] = self._loaded(policy)
        before = [match.states[player] for player in players]
        actions, states = self._opponents[policy](inner.rows_of(players), match.generator, before)
        for player, state in zip(players, states, strict=True):
            match.states[player] = state
        return actions

    def _loaded(self, policy: str) -> Opponent:
        return self._opponent_of(self._folder / policy / self._match.opponents[policy])

    def _random_action(self, player: int) -> Any:
        space = self._random_actions[player]
        space.seed(int(self._match.generator.integers(2**31)))
        return space.sample(mask_for_sample(space, self.env.masks[player]))


def _require_opponents(inner: MultiAgentEnvironment) -> None:
    """Refuse a game that one policy cannot play against itself, with an `EnvError`."""
    spaces = inner.agent.observation_space, inner.agent.action_space
    if len(inner.agents) < 2 or any(isinstance(space, SpacesOfAgents) for space in spaces):
        raise EnvError(
            "self_play is for environments of two or more agents with the same spaces, and the agents of this one "
            f"are {', '.join(map(str, inner.agents))}"
            + ("" if len(inner.agents) < 2 else ", whose spaces differ: train a policy for each kind")
        )
