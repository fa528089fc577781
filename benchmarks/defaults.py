"""Do the defaults learn? This library's and stable-baselines3's on eight environments, evaluated as `evaluate` does.

    python benchmarks/defaults.py
    python benchmarks/defaults.py --candidates library,stable-baselines3 --total-steps 100000 --seeds 5
    python benchmarks/defaults.py --environments LunarLander-v3 --jobs 1
    python benchmarks/defaults.py --candidates library,beta --environments continuous
    python benchmarks/defaults.py --candidates library,first --environments eleven --output statistics.json

Each run is a process: a training with nothing but defaults, and at each of `--total-steps` 20 episodes with the most
probable actions. Runs that are already in the results are skipped, so it can be stopped and continued. The table
shows, for each environment, the interquartile mean over seeds and its bootstrap interval.

The last command compares ways to normalise (`normalisations.py`) on the eight environments, a maze, the arm of a robot
and images of a ball to catch. It needs `pip install gymnasium-robotics "mujoco<3.4"`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import machine
import numpy as np
from normalisations import NORMALISATIONS
from settings import CLEANRL
from tqdm.auto import tqdm

from hybridppo.tools.plot import bootstrap_interval, interquartile_mean

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("examples", "tests/helpers")]
from beta import Beta
from toy_environments import Catch

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
CONTINUOUS = (
    "Pendulum-v1", "MountainCarContinuous-v0", "LunarLanderContinuous-v3", "BipedalWalker-v3", "HalfCheetah-v5",
    "Hopper-v5", "Walker2d-v5", "InvertedDoublePendulum-v5",
)  # fmt: skip
ELEVEN = (*ENVIRONMENTS, "PointMaze_UMazeDense-v3", "FetchReachDense-v4", "Catch")
OF_SMALL_RETURNS = ELEVEN[-2:]
SUITES = {"continuous": CONTINUOUS, "eleven": ELEVEN}
CANDIDATES: dict[str, dict[str, Any] | None] = {
    "library": {}, "stable-baselines3": None, "cleanrl": CLEANRL, "beta": {},
    "no-observations": {"normalize_observations": False}, "no-rewards": {"normalize_rewards": False},
    "no-normalisation": {"normalize_observations": False, "normalize_rewards": False},
    **{name: {} for name in NORMALISATIONS},
}  # fmt: skip
"""For each name, what differs from the present defaults; None for the other library."""
EVALUATION_EPISODES = 20
NAMES = ("candidate", "env_id", "total_steps", "seed")


Mark = tuple[int, float, list[float], float]
"""Steps, seconds of training, returns of the evaluation, mean return of the last episodes in training."""


def run(candidate: str, env_id: str, marks: list[int], seed: int) -> list[dict[str, Any]]:
    """Train in this process, and evaluate at each of `marks`: one training if nothing anneals to its end."""
    settings = CANDIDATES[candidate]
    own = {"action_distribution": Beta} if candidate == "beta" else {}
    if candidate in NORMALISATIONS:
        NORMALISATIONS[candidate]()
    if env_id in ELEVEN[8:10]:
        import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)
    runs = []
    for total_steps, seconds, returns, training in (
        peer(env_id, marks, seed) if settings is None else ours(env_id, marks, seed, settings, own)
    ):
        runs.append({
            "candidate": candidate, "env_id": env_id, "total_steps": total_steps, "seed": seed, "seconds": seconds,
            "evaluation": float(np.mean(returns)), "training": training,
        })  # fmt: skip
    return runs


def peer(env_id: str, marks: list[int], seed: int) -> Iterator[Mark]:
    """Train stable-baselines3. Its defaults anneal nothing: a training that goes on equals one that never stopped."""
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


def ours(env_id: str, marks: list[int], seed: int, settings: dict[str, Any], own: dict[str, Any]) -> Iterator[Mark]:
    """Train here: a resumed training equals one that never stopped, unless it annealed to the first mark."""
    import hybridppo
    from hybridppo import PPOConfig

    config = PPOConfig(**settings)
    env: Any = Catch if env_id == "Catch" else env_id
    first = True
    with tempfile.TemporaryDirectory() as folder:
        for mark in marks:
            again = first or config.anneal_learning_rate
            run_dir = Path(folder) / str(mark if config.anneal_learning_rate else "all")
            asked = {**own, "total_steps": mark, "evaluation_episodes": EVALUATION_EPISODES, "progress": False}
            if again:
                result = hybridppo.train(env, seed=seed, placement="cpu", config=config, run_dir=run_dir, **asked)
            else:
                result = hybridppo.resume(run_dir, env=None if env is env_id else env, **asked)
            first = False
            assert result.evaluation is not None  # it was asked for
            metrics = result.metrics
            yield mark, metrics["seconds"], list(result.evaluation.returns), metrics["episode_return_mean"]


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each environment and number of steps, a column for each candidate that has runs."""
    columns = candidates_of(runs)
    lines = [f"| environment | steps | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for total_steps in sorted({r["total_steps"] for r in runs}):
        for env_id in dict.fromkeys((*ELEVEN, *CONTINUOUS)):
            cells = []
            cells = [cell(runs, name, env_id, total_steps) for name in columns]
            if any(cells):
                lines.append(f"| {env_id} | {total_steps:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def candidates_of(runs: list[dict[str, Any]]) -> list[str]:
    """The candidates that have runs."""
    return [name for name in CANDIDATES if any(r["candidate"] == name for r in runs)]


def cell(runs: list[dict[str, Any]], *key: Any) -> str:
    """The figures of a candidate in an environment after so many steps; empty without runs."""
    found = np.array([r["evaluation"] for r in runs if (r["candidate"], r["env_id"], r["total_steps"]) == key])
    if not len(found):
        return ""
    (low, high), digits = bootstrap_interval(found), 2 if key[1] in OF_SMALL_RETURNS else 0
    return f"{interquartile_mean(found):.{digits}f} ({low:.{digits}f} to {high:.{digits}f}; {len(found)})"


def of_normalisations(runs: list[dict[str, Any]]) -> str:
    """Markdown: a table of those that have runs in all environments, and one of all in those that were tried first."""
    first = (("PointMaze_UMazeDense-v3", 30_000), ("Hopper-v5", 100_000), ("HalfCheetah-v5", 100_000),
             ("Pendulum-v1", 100_000))  # fmt: skip
    wide = {name for name in CANDIDATES if cell(runs, name, "LunarLander-v3", 100_000)}
    lines = [f"| | {' | '.join(f'{env_id}, {steps:,}' for env_id, steps in first)} |", "|---" * (1 + len(first)) + "|"]
    lines += [f"| {name} | {' | '.join(cell(runs, name, *key) for key in first)} |" for name in candidates_of(runs)]
    return "\n\n".join((table([r for r in runs if r["candidate"] in wide]), "\n".join(lines)))


def in_a_process(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a candidate, an environment and a seed, made by this script in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(one)]
    done = subprocess.run(command, env=machine.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{one} failed:\n{done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Make the runs that the results lack, save the findings of each as soon as it ends, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", default="library,stable-baselines3")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help=f"ids, or {' or '.join(SUITES)}")
    parser.add_argument("--total-steps", default="100000", help="or several, with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once")
    parser.add_argument("--output", type=Path, default=machine.RESULTS / "defaults.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(**json.loads(arguments.one))))
        return
    environments = SUITES.get(arguments.environments, arguments.environments.split(","))
    marks = sorted(int(steps) for steps in arguments.total_steps.split(","))
    output: Path = arguments.output
    kept = json.loads(output.read_text(encoding="utf-8"))["runs"] if output.exists() else []
    made = {tuple(have[name] for name in NAMES) for have in kept}
    wanted = [
        {"candidate": candidate, "env_id": env_id, "seed": seed, "marks": marks}
        for seed in range(arguments.seeds)
        for candidate in arguments.candidates.split(",")
        for env_id in environments
        if any((candidate, env_id, mark, seed) not in made for mark in marks)
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found in tqdm(pool.map(in_a_process, wanted), total=len(wanted), unit="run"):
            again = [tuple(each[name] for name in NAMES) for each in found]
            kept = [have for have in kept if tuple(have[name] for name in NAMES) not in again] + found
            machine.save(output.stem, {"runs": kept}, output.parent)
    print(table(kept))


if __name__ == "__main__":
    main()
