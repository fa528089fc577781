"""Self-play on PettingZoo's classic games: how well an agent plays against players that it has never met.

    python benchmarks/self_play.py
    python benchmarks/self_play.py --games connect_four --seeds 1 --jobs 1

Tic-tac-toe is played against a player that never loses; connect four against one that plays at random, and one that
looks a step ahead: it wins if it can, and blocks if it must. Half of the games are played from either seat. The
agent takes its most probable actions. It learns connect four in `boards.py`, whose transitions are PettingZoo's, from
both seats of games against its present self, and the other games against snapshots of itself. For rock paper scissors,
the result is how often the last snapshots together play each action. Each run is saved as soon as it has ended, and is
not repeated.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import boards
import connect_four_networks
import numpy as np
import torch
from missing_runs import Run, parser_of, run_missing
from numpy.typing import NDArray

import hybridppo
from hybridppo import PPOConfig

Board = NDArray[Any]
Player = Callable[[Any, Any, np.random.Generator], int]
"""Chooses an action from an observation, its mask and a generator."""
STEPS = {"tictactoe": 600_000, "connect_four": 300_000, "rock paper scissors": 200_000}
CONFIGS: dict[str, dict[str, Any]] = {
    "tictactoe": {
        "num_envs": 16, "num_steps": 64, "num_epochs": 8, "num_minibatches": 16, "learning_rate": 7e-4,
        "normalize_rewards": False, "entropy_coef": 0.15, "schedules": "entropy_coef=linear",
    },
    "connect_four": {
        "num_envs": 64, "num_steps": 128, "num_epochs": 2, "num_minibatches": 16, "learning_rate": 2e-3,
        "gae_lambda": 0.9, "normalize_rewards": False, "normalize_observations": False, "entropy_coef": 0.03,
    },
    "rock paper scissors": {"num_envs": 32, "num_steps": 75, "num_epochs": 4, "entropy_coef": 0.05},
}  # fmt: skip
"""Advantages are normalized. With a small `entropy_coef`, a player whose every move loses would therefore learn to give
the one saving move a probability of nearly 0, and never play it again."""
SNAPSHOT_EVERY = {"tictactoe": 8_000, "connect_four": None, "rock paper scissors": 4_000}
"""Steps between two snapshots. None: there are none, the agent learns in both seats, and every turn is a step."""
NETWORKS = {"connect_four": connect_four_networks.networks}
"""Networks in place of multilayer perceptrons."""
LAST = 20
"""How many of the last snapshots of rock paper scissors are evaluated as one player."""
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
    """The result with perfect play for the player whose turn it is: 1, 0 or -1."""
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


def against_all(name: str, agent: Any) -> dict[str, dict[str, float]]:
    """The shares of games in PettingZoo's environments, against each player."""
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

    make = {"tictactoe": tictactoe_v3.env, "connect_four": connect_four_v3.env}[name]
    return {who: play(make, agent, one, GAMES, 1) for who, one in OPPONENTS[name].items()}


def mixture(folder: Path, observations: int = 4) -> dict[str, Any]:
    """How often the last snapshots play each action, over their observations: together, and the extremes of one."""
    each = []
    for path in sorted(folder.iterdir())[-LAST:]:
        agent: Any = hybridppo.load(path)
        rows = torch.eye(observations)
        with torch.no_grad():
            each.append(agent.actor(rows).softmax(-1).numpy())
    of_snapshots = np.mean(each, axis=1)  # [snapshots, observations, 3] -> [snapshots, 3]
    return {
        "snapshots": len(each),
        "together": of_snapshots.mean(0).tolist(),
        "most of one snapshot": of_snapshots.max(0).tolist(),
        "least of one snapshot": of_snapshots.min(0).tolist(),
        "together, by observation": np.mean(each, axis=0).tolist(),
    }


def learn(run: Run) -> Run:
    """Train by self-play, and play against the opponents."""
    from pettingzoo.classic import rps_v2, tictactoe_v3

    name, seed = run["game"], run["seed"]
    makes: dict[str, Any] = {
        "tictactoe": tictactoe_v3.raw_env,
        "connect_four": boards.connect_four,
        "rock paper scissors": rps_v2.parallel_env,
    }
    make, steps = makes[name], STEPS[name]
    config = PPOConfig(**{"anneal_learning_rate": True, **CONFIGS[name]})
    every = SNAPSHOT_EVERY[name]
    own: dict[str, Any] | None = None
    if every is not None:
        own = {"snapshot_every": every, "pool": 30, "latest": 0.5, "opponents": "uniform"}
    with tempfile.TemporaryDirectory() as folder:
        start, start_of_work = time.perf_counter(), time.process_time()
        result = hybridppo.train(
            make, total_steps=steps, seed=seed, config=config, action_masks=name in OPPONENTS, placement="cpu",
            self_play=own, networks=NETWORKS.get(name), run_dir=Path(folder) / "run",
            progress=False,
        )  # fmt: skip
        seconds = {"seconds": time.perf_counter() - start, "seconds_of_work": time.process_time() - start_of_work}
        found = {} if name in OPPONENTS else {"mixture": mixture(Path(folder) / "run" / "snapshots")}
    if name in OPPONENTS:
        found = {"against": against_all(name, result.agent)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        **run, "steps": steps, **seconds, "commit": commit.stdout.strip(), "config": config.to_json(), "self_play": own,
        "rating": result.metrics.get("self_play/rating"), **found,
    }  # fmt: skip


def as_markdown(runs: list[Run]) -> str:
    """A row for each run, with its results."""
    lines = ["| game | seed | steps | seconds | reached |", "|---|---:|---:|---:|---|"]
    for run in sorted(runs, key=lambda run: (run["game"], run["seed"])):
        if "mixture" in run:
            shares = ", ".join(f"{share:.3f}" for share in run["mixture"]["together"])
            reached = f"the last {run['mixture']['snapshots']} snapshots together play {shares}"
        else:
            reached = "; ".join(
                f"against {who}: " + ", ".join(f"{share:.1%} {what}" for what, share in of.items())
                for who, of in run["against"].items()
            )
        lines.append(f"| {run['game']} | {run['seed']} | {run['steps']:,} | {run['seconds']:,.0f} | {reached} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, and print the table."""
    parser = parser_of(__doc__, "self_play")
    parser.set_defaults(seeds=3)
    parser.add_argument("--games", default=",".join(STEPS), help="games, separated by commas (default: all)")
    arguments = parser.parse_args()
    names = ("game", "seed")
    wanted = [{"game": game, "seed": seed} for game in arguments.games.split(",") for seed in range(arguments.seeds)]
    print(as_markdown(run_missing(__file__, arguments, lambda **one: [learn(one)], wanted, names)))


if __name__ == "__main__":
    main()
