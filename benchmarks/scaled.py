"""Do the units of an environment matter? CartPole as it is, and with other scales, with the default settings.

    python benchmarks/scaled.py
    python benchmarks/scaled.py --seeds 1 --total-steps 20000          # to see that it works

Observations times 10,000, rewards times 1,000, and both: how many steps it takes until the mean return of the latest
100 episodes is 475 (in the environment's own units). `PPOConfig()` normalizes both; each is also run without.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import machine
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformObservation, TransformReward

import hybridppo
from hybridppo import PPOConfig

ENV_ID, GOAL = "CartPole-v1", 475.0
OBSERVATIONS, REWARDS = 1e4, 1e3
SCALES = {"as it is": (1.0, 1.0), "observations": (OBSERVATIONS, 1.0), "rewards": (1.0, REWARDS)}
SCALES["both"] = (OBSERVATIONS, REWARDS)


def scaled(observations: float, rewards: float) -> gym.Env[Any, Any]:
    """CartPole in other units."""
    env = gym.make(ENV_ID)
    limit = np.full(4, np.inf, np.float32)
    env = TransformObservation(env, lambda seen: (seen * observations).astype(np.float32), Box(-limit, limit))
    return TransformReward(env, lambda reward: float(reward) * rewards)


def steps_to_goal(scales: tuple[float, float], config: PPOConfig, seed: int, total_steps: int) -> int | None:
    """Environment steps until the goal; None if it was not reached."""
    reached: list[int] = []

    def look(metrics: dict[str, Any]) -> None:
        found = metrics["episode_return_mean"]
        if not reached and found is not None and metrics["episodes"] >= 100 and found >= GOAL * scales[1]:
            reached.append(metrics["env_steps"])

    hybridppo.train(
        partial(scaled, *scales), total_steps=total_steps, seed=seed, placement="cpu", config=config, progress=False,
        target_return=GOAL * scales[1], on_iteration=look,
    )  # fmt: skip
    return reached[0] if reached else None


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each scale, with and without normalisation."""
    lines = ["| scaled | normalised | steps to 475, a figure for each seed | median |", "|---|---|---|---:|"]
    for row in rows:
        steps = ["not reached" if each is None else f"{each:,}" for each in row["steps"]]
        there = [each for each in row["steps"] if each is not None]
        middle = f"{statistics.median(there):,.0f}" if len(there) == len(steps) else ""
        lines.append(f"| {row['scaled']} | {'yes' if row['normalised'] else 'no'} | {', '.join(steps)} | {middle} |")
    return "\n".join(lines)


def main() -> None:
    """Train, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--total-steps", type=int, default=150_000, help="give up after these")
    parser.add_argument("--output", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = []
    for normalised in (True, False):
        config = PPOConfig(normalize_observations=normalised, normalize_rewards=normalised)
        for name, scales in SCALES.items():
            seeds = range(arguments.seeds)
            steps = [steps_to_goal(scales, config, seed, arguments.total_steps) for seed in seeds]
            rows.append({"scaled": name, "normalised": normalised, "steps": steps})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    machine.report("scaled", {"rows": rows}, f"\n{table(rows)}", arguments.output)


if __name__ == "__main__":
    main()
