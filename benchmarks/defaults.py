"""Do the defaults learn? This library's and stable-baselines3's on eight environments, evaluated as `evaluate` does.

    python benchmarks/defaults.py
    python benchmarks/defaults.py --candidates library,stable-baselines3 --total-steps 100000 --seeds 5
    python benchmarks/defaults.py --environments LunarLander-v3 --jobs 1

Each run is a process: a training with nothing but defaults, and at each of `--total-steps` 20 episodes with the most
probable actions. Runs that are already in the results are skipped, so it can be stopped and continued. The table
shows, for each environment, the interquartile mean over seeds and its bootstrap interval.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from missing_runs import parser_of, run_missing
from settings import CLEANRL

from hybridppo.tools.curves import bootstrap_interval, interquartile_mean

ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "HalfCheetah-v5",
    "Hopper-v5",
)
LIKE_SB3 = {
    "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "num_epochs": 10, "learning_rate": 3e-4,
    "anneal_learning_rate": False, "clip_range_vf": None, "entropy_coef": 0.0, "normalize_observations": False,
    "normalize_rewards": False,
}  # fmt: skip
FOUR = {**LIKE_SB3, "num_envs": 4, "num_steps": 512}
EIGHT = {**LIKE_SB3, "num_envs": 8, "num_steps": 256}
CANDIDATES: dict[str, dict[str, Any] | None] = {
    "stable-baselines3": None,
    "library": {},
    "cleanrl": CLEANRL,
    "like-sb3": LIKE_SB3,
    "four": FOUR,
    "four-annealed": {**FOUR, "anneal_learning_rate": True},
    "eight": EIGHT,
    "eight-annealed": {**EIGHT, "anneal_learning_rate": True},
    "four-short": {**FOUR, "num_steps": 256, "num_minibatches": 16},
    "four-normalised": {**FOUR, "normalize_observations": True, "normalize_rewards": True},
    "four-rewards": {**FOUR, "normalize_rewards": True},
    "eight-normalised": {**EIGHT, "normalize_observations": True, "normalize_rewards": True},
    "eight-rewards": {**EIGHT, "normalize_rewards": True},
    "value-1": {"value_coef": 1.0},
    "value-quarter": {"value_coef": 0.25},
    "two": {"num_envs": 2, "num_steps": 1024},
    "deviation-0.6": {"log_std_init": -0.5},
    "deviation-0.4": {"log_std_init": -1.0},
    "rate-5e-4": {"learning_rate": 5e-4},
    "rate-2e-4": {"learning_rate": 2e-4},
    "relu": {"activation": "relu"},
    "lambda-0.9": {"gae_lambda": 0.9},
    "lambda-0.98": {"gae_lambda": 0.98},
    "minibatches-16": {"num_minibatches": 16},
    "epochs-5": {"num_epochs": 5},
    "epochs-7": {"num_epochs": 7},
    "kl-0.03": {"target_kl": 0.03},
    "kl-0.02": {"target_kl": 0.02},
}  # fmt: skip
"""For each name, what differs from the present defaults; None for the other library."""
PUBLISHED = ("library", "stable-baselines3", "cleanrl")
"""What the documents compare: the present defaults, the other library's, and our earlier ones."""
EVALUATION_EPISODES = 20
NAMES = ("candidate", "env_id", "total_steps", "seed")


Mark = tuple[int, float, list[float], float]
"""Steps, seconds of training, returns of the evaluation, mean return of the last episodes in training."""


def run(candidate: str, env_id: str, marks: list[int], seed: int) -> list[dict[str, Any]]:
    """Train in this process, and evaluate at each of `marks`: one training if nothing anneals to its end."""
    settings = CANDIDATES[candidate]
    runs = []
    for total_steps, seconds, returns, training in (
        peer(env_id, marks, seed) if settings is None else ours(env_id, marks, seed, settings)
    ):
        runs.append({
            "candidate": candidate, "env_id": env_id, "total_steps": total_steps, "seed": seed, "seconds": seconds,
            "evaluation": float(np.mean(returns)), "training": training,
        })  # fmt: skip
    return runs


def peer(env_id: str, marks: list[int], seed: int) -> Iterator[Mark]:
    """Train stable-baselines3. Its defaults anneal nothing: a training that goes on equals one that never stopped."""
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", env_id, seed=seed, device="cpu")
    seconds = 0.0
    for mark in marks:
        start = time.perf_counter()
        model.learn(mark - model.num_timesteps, reset_num_timesteps=False)
        seconds += time.perf_counter() - start
        env = Monitor(gym.make(env_id))
        env.reset(seed=10_000 + seed)
        returns, _ = evaluate_policy(model, env, EVALUATION_EPISODES, return_episode_rewards=True)
        yield mark, seconds, list(returns), float(np.mean([episode["r"] for episode in model.ep_info_buffer]))


def ours(env_id: str, marks: list[int], seed: int, settings: dict[str, Any]) -> Iterator[Mark]:
    """Train here: a resumed training equals one that never stopped, unless it annealed to the first mark."""
    import hybridppo
    from hybridppo import PPOConfig

    config = PPOConfig(**settings)
    first = True
    with tempfile.TemporaryDirectory() as folder:
        for mark in marks:
            again = first or config.anneal_learning_rate
            run_dir = Path(folder) / str(mark if config.anneal_learning_rate else "all")
            asked: dict[str, Any] = {"total_steps": mark, "evaluation_episodes": EVALUATION_EPISODES, "progress": False}
            if again:
                result = hybridppo.train(env_id, seed=seed, placement="cpu", config=config, run_dir=run_dir, **asked)
            else:
                result = hybridppo.resume(run_dir, **asked)
            first = False
            assert result.evaluation is not None  # it was asked for
            metrics = result.metrics
            yield mark, metrics["seconds"], list(result.evaluation.returns), metrics["episode_return_mean"]


def table(runs: list[dict[str, Any]], candidates: Iterable[str] = CANDIDATES) -> str:
    """Markdown: a row for each environment and number of steps, a column for each candidate that has runs."""
    columns = [name for name in candidates if any(r["candidate"] == name for r in runs)]
    lines = [f"| environment | steps | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for total_steps in sorted({r["total_steps"] for r in runs}):
        for env_id in ENVIRONMENTS:
            cells = []
            for name in columns:
                key = (name, env_id, total_steps)
                found = [r["evaluation"] for r in runs if (r["candidate"], r["env_id"], r["total_steps"]) == key]
                if not found:
                    cells.append("")
                    continue
                low, high = bootstrap_interval(np.array(found))
                cells.append(f"{interquartile_mean(np.array(found)):.0f} ({low:.0f} to {high:.0f}; {len(found)})")
            if any(cells):
                lines.append(f"| {env_id} | {total_steps:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = parser_of(__doc__, "defaults")
    parser.add_argument("--candidates", default="library,stable-baselines3")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    parser.add_argument("--total-steps", default="100000", help="or several, with commas")
    arguments = parser.parse_args()
    marks = sorted(int(steps) for steps in arguments.total_steps.split(","))
    wanted = [
        {"candidate": candidate, "env_id": env_id, "seed": seed, "marks": marks}
        for seed in range(arguments.seeds)
        for candidate in arguments.candidates.split(",")
        for env_id in arguments.environments.split(",")
    ]

    def found_as(one: dict[str, Any]) -> list[dict[str, Any]]:
        what = {name: one[name] for name in ("candidate", "env_id", "seed")}
        return [{**what, "total_steps": mark} for mark in marks]

    print(table(run_missing(__file__, arguments, run, wanted, NAMES, found_as)))


if __name__ == "__main__":
    main()
