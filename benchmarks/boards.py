"""PettingZoo's tic-tac-toe and connect four with the same transitions, many times faster.

    python benchmarks/boards.py

plays both beside PettingZoo's own, and fails if they differ.
"""

import time
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

Array = NDArray[Any]


class Board:
    """Like PettingZoo's raw environments: `rows` by `columns`; `wanted` stones in a row win; stones may fall."""

    def __init__(self, rows: int, columns: int, wanted: int, stones_fall: bool) -> None:
        self.possible_agents = ["player_0", "player_1"] if stones_fall else ["player_1", "player_2"]
        self.agents, self.infos = list(self.possible_agents), {agent: {} for agent in self.possible_agents}
        self._shape, self._stones_fall = (rows, columns), stones_fall
        self._moves = columns if stones_fall else rows * columns
        self._lines = _lines_of(rows, columns, wanted)
        self._seen = np.zeros((2, rows, columns, 2), np.int8)
        """What each player sees: its own stones, and the other's."""
        self._legal = np.ones(self._moves, np.int8)
        seen = Box(0, 1, (rows, columns, 2), np.int8)
        self._space = Dict({"observation": seen, "action_mask": Box(0, 1, (self._moves,), np.int8)})
        self.reset()

    def observation_space(self, agent: str) -> Dict:  # noqa: D102 - PettingZoo's
        return self._space

    def action_space(self, agent: str) -> Discrete:  # noqa: D102 - PettingZoo's
        return Discrete(self._moves)

    @property
    def agent_selection(self) -> str:
        """Whose turn it is."""
        return self.possible_agents[self._turn]

    def reset(self, seed: int | None = None, options: Any = None) -> None:  # noqa: D102 - PettingZoo's
        self.agents = list(self.possible_agents)
        self._stones, self._gains, self._turn, self._is_over = [0, 0], [0, 0], 0, False
        self._free = [self._shape[0]] * self._moves
        self._seen[:], self._legal[:] = 0, 1

    def last(self) -> Any:
        """The observation of the agent whose turn it is, its reward since its last turn, and whether the game ended."""
        seen = {"observation": self._seen[self._turn], "action_mask": self._legal}
        return seen, self._gains[self._turn], self._is_over, False, {}

    def step(self, action: Any) -> None:  # noqa: D102 - PettingZoo's
        turn = self._turn
        self._turn = 1 - turn
        if self._is_over:
            self.agents.remove(self.possible_agents[turn])
            return
        rows, columns = self._shape
        move = int(action)
        if not self._legal[move]:
            raise ValueError(f"the move {move} is not legal")
        self._gains[turn] = 0
        if self._stones_fall:
            self._free[move] -= 1
            cell = self._free[move] * columns + move
            self._legal[move] = self._free[move] > 0
        else:
            cell, self._legal[move] = move, 0
        row, column = divmod(cell, columns)
        self._seen[turn, row, column, 0] = self._seen[1 - turn, row, column, 1] = 1
        own = self._stones[turn] = self._stones[turn] | 1 << cell
        if any(own & line == line for line in self._lines[cell]):
            self._gains[turn], self._gains[1 - turn], self._is_over = 1, -1, True
        elif (self._stones[0] | self._stones[1]) == (1 << rows * columns) - 1:
            self._is_over = True
        if self._is_over:
            self._legal[:] = 0 if self._stones_fall else self._legal

    def close(self) -> None:  # noqa: D102 - PettingZoo's
        pass


def _lines_of(rows: int, columns: int, wanted: int) -> list[list[int]]:
    """The winning lines through each cell, as bits."""
    found: list[list[int]] = [[] for _ in range(rows * columns)]
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (-1, 1)):
                ends = row + down * (wanted - 1), column + right * (wanted - 1)
                if 0 <= ends[0] < rows and 0 <= ends[1] < columns:
                    cells = [(row + down * at) * columns + column + right * at for at in range(wanted)]
                    for cell in cells:
                        found[cell].append(sum(1 << each for each in cells))
    return found


def tictactoe() -> Board:  # noqa: D103
    return Board(3, 3, 3, stones_fall=False)


def connect_four() -> Board:  # noqa: D103
    return Board(6, 7, 4, stones_fall=True)


def require_same(ours: Board, theirs: Any, games: int = 500) -> None:
    """Play the same moves in both."""
    generator = np.random.default_rng(0)
    for game in range(games):
        ours.reset()
        theirs.reset(seed=game)
        while theirs.agents:
            assert ours.agents == theirs.agents
            assert ours.agent_selection == theirs.agent_selection
            both = [env.last() for env in (ours, theirs)]
            assert np.array_equal(both[0][0]["observation"], both[1][0]["observation"])
            assert both[0][1:4] == both[1][1:4], (both[0][1:], both[1][1:])
            is_over = both[0][2]
            if not is_over:
                assert np.array_equal(both[0][0]["action_mask"], both[1][0]["action_mask"])
            move = None if is_over else int(generator.choice(np.flatnonzero(both[0][0]["action_mask"])))
            ours.step(move)
            theirs.step(move)
        assert not ours.agents


def main() -> None:
    """Compare, and time."""
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

    for make, theirs in ((tictactoe, tictactoe_v3.env()), (connect_four, connect_four_v3.env())):
        require_same(make(), theirs)
        env, moves, start = make(), 0, time.perf_counter()
        while moves < 20_000:
            env.reset()
            while env.agents:
                seen, _, is_over, _, _ = env.last()
                env.step(None if is_over else int(np.argmax(seen["action_mask"])))
                moves += 1
        print(f"{make.__name__}: the same; {(time.perf_counter() - start) / moves * 1e6:.0f} us a move")


if __name__ == "__main__":
    main()
