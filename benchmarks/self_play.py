"""Self-play on PettingZoo's board games: how an agent does against players that it has never met.

python benchmarks/self_play.py
python benchmarks/self_play.py --games connect_four --steps 3000000

Tic-tac-toe is played against a player that never loses; connect four against one that plays at random, and one that
looks a step ahead: it wins if it can, and blocks if it must. Half of the games are played from either seat. The
agent takes its most probable actions.
"""

import argparse
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import machine
import numpy as np
from numpy.typing import NDArray

import hybridppo
from hybridppo import PPOConfig, SelfPlay

Board = NDArray[Any]
Player = Callable[[Any, Any, np.random.Generator], int]
"""From an observation, its mask and a generator to an action."""
STEPS = {"tictactoe": 300_000, "connect_four": 2_000_000}
GAMES = 1_000


def random_player(board: Board, mask: Any, generator: np.random.Generator) -> int:
    """One of the legal moves."""
    return int(generator.choice(np.flatnonzero(mask)))


def one_step_player(board: Board, mask: Any, generator: np.random.Generator) -> int:
    """Connect four: wins if it can, blocks if it must, else plays at random."""
    legal = np.flatnonzero(mask).tolist()
    for who in (0, 1):
        for column in legal:
            taken = board[..., 0] + board[..., 1]
            row = int(np.flatnonzero(taken[:, column] == 0)[-1])
            stones = board[..., who].copy()
            stones[row, column] = 1
            if _has_four(stones):
                return int(column)
    return random_player(board, mask, generator)


def _has_four(stones: Board) -> bool:
    across = stones[:, :-3] & stones[:, 1:-2] & stones[:, 2:-1] & stones[:, 3:]
    down = stones[:-3] & stones[1:-2] & stones[2:-1] & stones[3:]
    falling = stones[:-3, :-3] & stones[1:-2, 1:-2] & stones[2:-1, 2:-1] & stones[3:, 3:]
    rising = stones[3:, :-3] & stones[2:-1, 1:-2] & stones[1:-2, 2:-1] & stones[:-3, 3:]
    return bool(across.any() or down.any() or falling.any() or rising.any())


def perfect_player(board: Board, mask: Any, generator: np.random.Generator) -> int:
    """Tic-tac-toe: one of the best moves."""
    own, other = (tuple(board[..., who].reshape(-1).tolist()) for who in (0, 1))
    values = {
        move: -_value(other, tuple(1 if at == move else one for at, one in enumerate(own)))
        for move in np.flatnonzero(mask).tolist()
    }
    best = max(values.values())
    return int(generator.choice([move for move, value in values.items() if value == best]))


LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def _value(own: tuple[int, ...], other: tuple[int, ...]) -> int:
    """What the player whose turn it is comes to: 1, 0 or -1."""
    if any(all(other[at] for at in line) for line in LINES):
        return -1
    free = [at for at in range(9) if not own[at] and not other[at]]
    if not free:
        return 0
    return max(-_value(other, tuple(1 if at == move else one for at, one in enumerate(own))) for move in free)


def play(make: Any, agent: Any, opponent: Player, games: int, seed: int) -> dict[str, float]:
    """The shares of games that the agent wins, draws and loses."""
    generator = np.random.default_rng(seed)
    counts = {"wins": 0, "draws": 0, "losses": 0}
    env = make()
    for game in range(games):
        env.reset(seed=seed + game)
        own = env.possible_agents[game % 2]
        gained = 0.0
        while env.agents:
            name = env.agent_selection
            seen, reward, terminated, truncated, _ = env.last()
            gained += reward if name == own else 0.0
            if terminated or truncated:
                env.step(None)
                continue
            board, mask = seen["observation"], seen["action_mask"]
            action = agent.act(board, action_mask=mask) if name == own else opponent(board, mask, generator)
            env.step(int(action))
        counts["wins" if gained > 0 else "losses" if gained < 0 else "draws"] += 1
    env.close()
    return {name: count / games for name, count in counts.items()}


OPPONENTS: dict[str, dict[str, Player]] = {
    "tictactoe": {"random": random_player, "perfect": perfect_player},
    "connect_four": {"random": random_player, "one step ahead": one_step_player},
}


def learn(name: str, steps: int, seed: int) -> dict[str, Any]:
    """Train by self-play, and play against the others."""
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

    make = {"tictactoe": tictactoe_v3.env, "connect_four": connect_four_v3.env}[name]
    config = PPOConfig(num_envs=16, num_steps=128, entropy_coef=0.01, anneal_learning_rate=True)
    start = time.perf_counter()
    result = hybridppo.train(
        make, total_steps=steps, seed=seed, config=config, action_masks=True, placement="cpu",
        self_play=SelfPlay(snapshot_every=max(1, steps // 50), pool=20, latest=0.5, opponents="prioritised"),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    against = {who: play(make, result.agent, player, GAMES, 1) for who, player in OPPONENTS[name].items()}
    return {"steps": steps, "seconds": seconds, "rating": result.metrics["self_play/rating"], "against": against}


def main() -> None:  # noqa: D103
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default=",".join(STEPS), help="which, with commas between (default: all)")
    parser.add_argument("--steps", type=int, help="of each (default: what a game takes)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = {}
    for name in arguments.games.split(","):
        rows[name] = learn(name, arguments.steps or STEPS[name], arguments.seed)
        print(name, rows[name])
    print(f"Raw figures: {machine.save('self_play', {'seed': arguments.seed, 'games': GAMES, 'rows': rows})}")


if __name__ == "__main__":
    main()
