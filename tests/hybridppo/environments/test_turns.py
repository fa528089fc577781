"""Environments whose agents act one after the other: each agent's steps, by hand and beside a parallel twin."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from sampling import sampler_of
from toy_agents import Matching, ScriptedAgents, TakingTurns

from hybridppo import EnvError, TwoPlayers
from hybridppo.environments.making import make_environments
from hybridppo.rollouts.rollout import Rollout


class Push:
    """An actor with constant outputs."""

    version = 0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros((len(rows), 2), np.float32)


def rollouts_of(
    make: Callable[[], Any],
    num_steps: int,
    number: int = 1,
    num_envs: int = 1,
    on_env_error: Any = "raise",
    **options: Any,
) -> list[Rollout]:
    environments = make_environments(make, num_envs, on_env_error=on_env_error)
    sampler = sampler_of(environments, num_steps=num_steps, **options)
    found = [sampler.collect(Push()).map(torch.clone) for _ in range(number)]
    sampler.close()
    return found


class Game:
    """Two players in turn. The first observes 10, 11, ..., the second 20, 21, ...; `script` has each turn's results.

    A turn gives (reward of the first, reward of the second, whether the game ends, whether it is cut short).
    """

    possible_agents = ("a", "b")

    def __init__(self, script: list[tuple[float, float, bool, bool]]) -> None:
        self._script, self._turns, self.agents = script, 0, []

    def observation_space(self, agent: str) -> Any:
        return Box(-100.0, 100.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection = ["a", "b"], "a"
        self._seen = {"a": 10, "b": 20}
        self._sums, self._ends = {"a": 0.0, "b": 0.0}, (False, False)

    def last(self) -> Any:
        agent = self.agent_selection
        return np.array([self._seen[agent]], np.float32), self._sums[agent], *self._ends, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if any(self._ends):
            assert action is None
            self.agents.remove(agent)
            self.agent_selection = "".join(self.agents)
            return
        assert action in (0, 1)
        self._sums[agent] = 0.0
        self._seen[agent] += 1
        first, second, terminated, truncated = self._script[self._turns % len(self._script)]
        self._turns += 1
        self._sums["a"] += first
        self._sums["b"] += second
        self._ends = terminated, truncated
        self.agent_selection = "b" if agent == "a" else "a"


def steps_of(rollout: Rollout, column: int) -> list[tuple[float, float, bool, bool]]:
    """Observation, reward, terminated and truncated of each step of a column."""
    number = rollout.rewards.shape[1]
    rows = [int(row) // number for row in rollout.valid_rows if int(row) % number == column]
    return [
        (
            float(rollout.observations[row, column, 0]),
            float(rollout.rewards[row, column]),
            bool(rollout.terminated[row, column]),
            bool(rollout.truncated[row, column]),
        )
        for row in rows
    ]


def test_a_step_runs_from_an_action_to_the_next_turn_with_all_rewards_between() -> None:
    """Six turns by hand: a, b, a, b, a (which ends the game), and the first of the next game."""
    script = [(1.0, 2.0, False, False), (3.0, 4.0, False, False), (5.0, 6.0, False, False), (7.0, 8.0, False, False),
              (100.0, -100.0, True, False)]  # fmt: skip
    (rollout,) = rollouts_of(partial(Game, script), 6)
    # a acts at 10, 11 and 12; b at 20 and 21. What a turn gives b before its first action belongs to no step.
    assert steps_of(rollout, 0) == [(10, 4.0, False, False), (11, 12.0, False, False), (12, 100.0, True, False)]
    assert steps_of(rollout, 1) == [(20, 10.0, False, False), (21, -92.0, True, False)]
    assert len(rollout.final_rows) == 0


def test_a_step_that_is_open_at_the_end_is_what_the_one_before_it_is_bootstrapped_from() -> None:
    """Five turns without an end: a, b, a, b, a. The last of each is open: a has two steps, and b one."""
    (rollout,) = rollouts_of(partial(Game, [(1.0, 0.0, False, False)]), 5)
    assert steps_of(rollout, 0) == [(10, 2.0, False, False), (11, 2.0, False, False)]
    assert float(rollout.observations[2, 0, 0]) == 12.0  # what follows a's last step
    # b has fewer steps than a: its own is cut after the first, and followed by what it saw then.
    assert steps_of(rollout, 1) == [(20, 0.0, False, True)]
    assert rollout.final_rows.tolist() == [1]
    assert rollout.final_observations.tolist() == [[21.0]]


def test_a_game_that_is_cut_short_is_bootstrapped_from_what_each_agent_sees_then() -> None:
    script = [(1.0, 0.0, False, False), (0.0, 2.0, False, True)]
    (rollout,) = rollouts_of(partial(Game, script), 4)
    assert steps_of(rollout, 0) == [(10, 1.0, False, True), (10, 1.0, False, True)]
    assert steps_of(rollout, 1) == [(20, 2.0, False, True), (20, 2.0, False, True)]
    assert rollout.final_rows.tolist() == [0, 1, 2, 3]
    assert rollout.final_observations.flatten().tolist() == [11.0, 21.0, 11.0, 21.0]


def test_returns_so_far_are_of_each_agents_own_steps() -> None:
    """By hand, with discounts of 0.5 for a and 0.25 for b, which apply to each action."""
    script = [(1.0, 2.0, False, False), (3.0, 4.0, False, False), (5.0, 6.0, False, False), (7.0, 8.0, False, False),
              (100.0, -100.0, True, False)]  # fmt: skip
    (rollout,) = rollouts_of(partial(Game, script), 5, discounts=lambda: np.array([0.5, 0.25], np.float32))
    assert rollout.returns_so_far is not None
    # a: 4, 12 and 100 are the rewards of its steps. b: 10 and -92, and 2 before its first action.
    assert rollout.returns_so_far[:, 0].tolist() == [4.0, 0.5 * 4.0 + 12.0, 0.5 * 14.0 + 100.0]
    assert rollout.returns_so_far[:2, 1].tolist() == [0.25 * 2.0 + 10.0, 0.25 * 10.5 - 92.0]


def test_returns_so_far_go_on_in_the_next_rollout() -> None:
    """a gets 1 in each turn: its step that is open at the end of a rollout counts, but is not learned from."""
    first, second = rollouts_of(
        partial(Game, [(1.0, 0.0, False, False)]), 5, number=2, discounts=lambda: np.full(2, 0.5, np.float32)
    )
    assert first.returns_so_far is not None
    assert second.returns_so_far is not None
    assert first.returns_so_far[:, 0].tolist() == [2.0, 0.5 * 2.0 + 2.0]
    # The open step: 0.5 * 3 + 1, and 1 in the first turn of this rollout.
    assert second.returns_so_far[0, 0].tolist() == 0.5 * 3.5 + 2.0


def test_a_game_that_ends_in_a_step_that_is_open_leaves_no_return() -> None:
    script = [(1.0, 0.0, False, False), (4.0, 0.0, False, False), (16.0, 0.0, False, False), (64.0, 0.0, True, False)]
    first, second = rollouts_of(partial(Game, script), 7, number=2, discounts=lambda: np.full(2, 0.5, np.float32))
    assert first.returns_so_far is not None
    assert second.returns_so_far is not None
    # The fourth step of a is open when the rollout ends, and b's next turn ends the game.
    assert first.returns_so_far[:, 0].tolist() == [5.0, 0.5 * 5.0 + 80.0, 5.0]
    assert steps_of(second, 0) == [(10, 5.0, False, False), (11, 80.0, True, False)]
    assert second.returns_so_far[:2, 0].tolist() == [5.0, 82.5]


def test_what_is_open_is_neither_learned_from_nor_lost_to_the_statistics() -> None:
    script = [(1.0, 10.0, False, False), (2.0, 20.0, False, False), (3.0, 30.0, True, False)]
    environments = make_environments(partial(Game, script), 1)
    sampler = sampler_of(environments, num_steps=5)
    for _ in range(6):
        sampler.collect(Push())
    assert sampler.counts.env_steps == 30  # turns
    assert sampler.counts.statistics.episodes == 20  # of each agent in each of the ten games
    assert sampler.counts.statistics.return_mean == (6.0 + 60.0) / 2
    assert sampler.counts.statistics.length_mean == 3.0
    sampler.close()


SCRIPTS = {
    "all at once": [[(3, "terminated")], [(3, "terminated")]],
    "one after another": [[(2, "truncated"), (4, "terminated")], [(5, "terminated"), (1, "both")], [(3, "truncated")]],
    "who is not always there": [[(2, "truncated"), (0, "")], [(4, "terminated")]],
}  # fmt: skip
"""To add a script, add a line."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_turns_of_a_parallel_environment_give_the_same_steps(name: str) -> None:
    scripts, num_rounds = SCRIPTS[name], 12
    (parallel,) = rollouts_of(partial(ScriptedAgents, scripts), num_rounds)
    count = len(scripts)
    # As many rounds in turns: agents that have left have none.
    made = make_environments(lambda: TakingTurns(ScriptedAgents(scripts)), 1)
    num_turns = len(parallel.valid_rows)
    sampler = sampler_of(made, num_steps=num_turns)
    turns = sampler.collect(Push())
    for column in range(count):
        expected, found = every_step(parallel, column), every_step(turns, column)
        assert found == expected[: len(found)]
        assert len(expected) - len(found) <= 1  # the last may be open
    sampler.close()


def every_step(rollout: Rollout, column: int) -> list[Any]:
    """Each step of a column, with what it is bootstrapped from if its episode was cut short by the environment."""
    number = rollout.rewards.shape[1]
    finals = dict(zip(rollout.final_rows.tolist(), rollout.final_observations.tolist(), strict=True))
    found = []
    for row in rollout.valid_rows.tolist():
        if row % number == column:
            at = row // number
            flags = bool(rollout.terminated[at, column]), bool(rollout.truncated[at, column])
            seen = rollout.observations[at, column].tolist()
            found.append((seen, float(rollout.rewards[at, column]), *flags, finals.get(row)))
    if found and found[-1][3] and found[-1][4][0] == found[-1][0][0] and found[-1][4][2] == found[-1][0][2] + 1:
        del found[-1]  # perhaps cut by the end of the rollout, and not by the environment
    return found


class Pass(gym.Env[Any, Any]):
    """Two players observe 10, 20, 30, ...; `script` has each step's results: reward, ends, and who is next."""

    observation_space, action_space = Box(-100.0, 100.0, (1,), np.float32), Discrete(2)

    def __init__(self, script: list[tuple[Any, bool, bool, Any]]) -> None:
        self._script = script

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._turns = 1
        return np.array([10.0], np.float32), {"current_player": 0}

    def step(self, action: Any) -> Any:
        reward, *ends, player = self._script[self._turns - 1]
        self._turns += 1
        info = {} if player is None else {"current_player": player}
        return np.array([10.0 * self._turns], np.float32), reward, *ends, info


def two_players(script: list[tuple[Any, bool, bool, Any]]) -> Any:
    return TwoPlayers(Pass(script))


def test_a_gymnasium_environment_of_two_players_gives_steps_by_hand() -> None:
    """Who acts: the first, the second twice, the first, the second; the last wins."""
    script = [(1.0, False, False, 1), (2.0, False, False, np.int64(1)), (4.0, False, False, 0), (0.0, False, False, 1),
              (8.0, True, False, None)]  # fmt: skip
    (rollout,) = rollouts_of(partial(two_players, script), 5)
    assert steps_of(rollout, 0) == [(10, 1.0 - 2.0 - 4.0, False, False), (40, 0.0 - 8.0, True, False)]
    assert steps_of(rollout, 1) == [(20, 2.0, False, False), (30, 4.0, False, False), (50, 8.0, True, False)]


def test_a_truncated_game_of_two_players_is_followed_by_what_each_observed_last() -> None:
    script = [(1.0, False, False, 1), (2.0, False, True, 0)]
    (rollout,) = rollouts_of(partial(two_players, script), 2)
    assert steps_of(rollout, 0) == [(10, -1.0, False, True)]
    assert steps_of(rollout, 1) == [(20, 2.0, False, True)]
    assert rollout.final_observations.tolist() == [[30.0], [20.0]]


class PassInPlace(Pass):
    """Writes every observation into the same array."""

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        self._seen[:] = observation
        return self._seen, *others

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seen, info = super().reset(seed=seed)
        return self._seen, info


def test_what_a_player_observed_last_stays_if_the_environment_reuses_its_array() -> None:
    game = TwoPlayers(PassInPlace([(1.0, False, False, 1), (2.0, False, True, 0)]))
    game.reset()
    for seen in ([10.0, 10.0], [10.0, 20.0], [30.0, 20.0]):
        assert [game.observe(player).item() for player in game.possible_agents] == seen
        game.step(0)


@pytest.mark.parametrize("player", [None, 2, -1, "first"])
def test_infos_must_say_whose_turn_it_is(player: Any) -> None:
    with pytest.raises(EnvError, match=f"its info.'current_player'. must be 0 or 1, .*, and is {player!r}"):
        rollouts_of(partial(two_players, [(1.0, False, False, player)]), 4)


class PassesTooLittle(Pass):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


def test_what_is_no_gymnasium_environment_has_no_two_players() -> None:
    with pytest.raises(EnvError, match="its step returned a tuple of 4 instead of the five values"):
        rollouts_of(lambda: TwoPlayers(PassesTooLittle([(1.0, False, False, 1)])), 4)
    game: Any = Game([])
    with pytest.raises(EnvError, match=r"TwoPlayers takes a gymnasium.Env, got .*Game"):
        TwoPlayers(game)


def test_masks_may_be_a_part_of_observations() -> None:
    for within in (True, False):
        environments = make_environments(
            lambda within=within: TakingTurns(Matching(masks=True), within), 2, action_masks=True
        )
        assert environments.observation_space.observation == Discrete(4)
        assert environments.encode.shape == (8,)
        rows = environments.reset(0)
        assert rows[0, 4:].sum() in (1, 2)  # of the agent whose turn it is
        environments.close()


class Faulty(Game):
    """A game with a `fault` in what it returns."""

    def __init__(self, fault: str) -> None:
        super().__init__([(1.0, 0.0, False, False)] * 3 + [(0.0, 0.0, True, False)])
        self._fault = fault

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed)
        if self._fault == "returns":
            return {}, {}
        if self._fault == "nobody":
            self.agents = []
        if self._fault == "joins":
            self.agents = ["a"]
        return None

    def last(self) -> Any:
        seen, reward, terminated, truncated, info = super().last()
        if self._fault == "nan":
            seen = seen * np.nan
        if self._fault == "reward":
            reward = "much"
        if self._fault == "few":
            return seen, reward
        return seen, reward, terminated, truncated, info

    def step(self, action: Any) -> None:
        if self._fault == "raises" and self._turns == 2:
            raise RuntimeError("the board has fallen")
        if self._fault == "stays" and action is None:
            return
        super().step(action)
        if self._fault == "stranger":
            self.agent_selection = "c"
        if self._fault == "vanishes":
            self.agents = []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("returns", "its reset returned something, and that of pettingzoo.AECEnv returns None"),
        ("nobody", "its reset left no agents to act"),
        ("nan", r"agent 'a': its observation\[0\] is nan"),
        ("reward", "agent 'b': its reward"),
        ("few", r"its last\(\) did not return five values"),
        ("raises", r"failed in step 3 of its episode, 3 after the first reset, action \{'a': .*the board has fallen"),
        ("stays", "do not leave when they are stepped with None"),
        ("stranger", "its agent 'c' is not in its possible_agents"),
        ("joins", "agent 'b' appeared in the middle of an episode, and was not in its reset"),
        ("vanishes", "agent 'a' is gone, and was neither terminated nor truncated"),
    ],
)
def test_a_fault_is_named(fault: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        rollouts_of(partial(Faulty, fault), 16)


def test_a_rollout_in_which_nobody_comes_to_a_next_turn_is_refused() -> None:
    with pytest.raises(EnvError, match=r"no agent has had a second turn: increase num_steps, which is 2 for 2 agents"):
        rollouts_of(partial(Game, [(1.0, 0.0, False, False)]), 2)


def test_a_rollout_in_which_a_restart_leaves_nobody_a_next_turn_is_sampled_again() -> None:
    failed: list[int] = []

    class FailsOnce(Game):
        def step(self, action: Any) -> None:
            if self._turns == 1 and not failed:
                failed.append(1)
                raise RuntimeError("the board has fallen")
            super().step(action)

    (rollout,) = rollouts_of(partial(FailsOnce, [(1.0, 0.0, False, False)]), 4, on_env_error="restart")
    assert failed
    assert [len(steps_of(rollout, column)) for column in (0, 1)] == [1, 1]
