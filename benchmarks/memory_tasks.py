"""Do agents with a memory remember? A T-maze, and a symbol to be said again, after 10 or 20 blank steps; 5 seeds.

    python benchmarks/memory_tasks.py
    python benchmarks/memory_tasks.py --lengths 10,20 --seeds 5

The environments are those of the tests. What cannot remember gets 0 in the T-maze, and 0.25 of the four symbols.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import machine
from settings import cleanrl

import hybridppo
from hybridppo import PPOConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from toy_environments import DelayedCopy, TMaze

TASKS: dict[str, tuple[type[Any], int]] = {"T-maze": (TMaze, 30_000), "delayed copy": (DelayedCopy, 60_000)}
"""The environment, and the steps that it is trained for."""
SETTINGS: dict[str, Any] = {
    "num_envs": 16, "num_steps": 64, "learning_rate": 1e-3, "anneal_learning_rate": False, "gamma": 0.98,
    "hidden_sizes": (64,),
}  # fmt: skip
LONG: dict[str, Any] = {
    "gamma": 1.0, "gae_lambda": 1.0, "sequence_length": 64, "num_epochs": 8, "num_minibatches": 8,
    "clip_range_vf": None, "entropy_coef": 0.0,
}  # fmt: skip
"""What differs where there are more than 10 blank steps: the reward is not discounted on its way back through them, and
gradients go through whole episodes, which sequences of 32 steps would cut."""


def config(recurrent: Any, length: int) -> PPOConfig:
    """The settings of all tasks of a length."""
    return cleanrl(**{**SETTINGS, **(LONG if length > 10 else {})}, recurrent=recurrent)


def main() -> None:
    """Train all, print a line for each, and keep the returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="10,20")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    runs = []
    for task, (env, total_steps) in TASKS.items():
        for length in map(int, arguments.lengths.split(",")):
            for recurrent in ("lstm", "gru", None):
                found = []
                for seed in range(arguments.seeds):
                    result = hybridppo.train(
                        partial(env, length), total_steps=total_steps, seed=seed, config=config(recurrent, length),
                        placement="cpu", evaluation_episodes=100, progress=False,
                    )  # fmt: skip
                    assert result.evaluation is not None  # it was asked for
                    found.append(result.evaluation.return_mean)
                runs.append({
                    "task": task, "blank_steps": length, "memory": recurrent, "total_steps": total_steps,
                    "config": config(recurrent, length).to_json(), "evaluations": found,
                })  # fmt: skip
                print(f"{task}, {length} blank steps, {recurrent}: {', '.join(f'{mean:.2f}' for mean in found)}")
    print(f"Raw figures: {machine.save('memory_tasks', {'runs': runs})}")


if __name__ == "__main__":
    main()
