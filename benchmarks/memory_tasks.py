"""Do agents with a memory remember? A T-maze, a symbol to repeat, CartPole without velocities, POPGym, a MiniGrid.

    python benchmarks/memory_tasks.py
    python benchmarks/memory_tasks.py --tasks POPGym --seeds 2                 # needs `pip install popgym`
    python benchmarks/memory_tasks.py --tasks "T-maze of 10,delayed copy of 10" --seeds 2
    python benchmarks/memory_tasks.py --tasks MiniGrid-MemoryS7 --seeds 1      # hours: by name only

The mazes and the symbols have 10 or 20 blank steps between what is to be remembered and when it is needed; they are
those of the tests. An agent without memory gets 0 in the T-maze, and 0.25 of the four symbols. POPGym's tasks (Morad et
al., 2023) have returns of at most 1. Tasks that are already in the results are skipped.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machine
from missing_runs import kept_runs
from settings import cleanrl

import hybridppo
from hybridppo.tools.gallery import places_alone

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from toy_environments import DelayedCopy, TMaze

SETTINGS: dict[str, Any] = {
    "num_envs": 16, "num_steps": 64, "learning_rate": 1e-3, "anneal_learning_rate": False, "gamma": 0.98,
    "hidden_sizes": (64,),
}  # fmt: skip
LONG: dict[str, Any] = {
    **SETTINGS, "gamma": 1.0, "gae_lambda": 1.0, "sequence_length": 64, "num_epochs": 8, "num_minibatches": 8,
    "clip_range_vf": None, "recurrent_size": 128,
}  # fmt: skip
"""For copies, and for more than 10 blank steps: no discount, so that the reward reaches back through them in full, and
gradients through whole episodes, which sequences of 32 steps would cut."""
BALANCE: dict[str, Any] = {
    "num_envs": 8, "num_steps": 128, "num_epochs": 8, "num_minibatches": 8, "learning_rate": 1e-3, "gamma": 0.98,
    "gae_lambda": 0.9, "clip_range_vf": None, "entropy_coef": 0.0, "hidden_sizes": (64,),
    "normalize_observations": True, "normalize_rewards": True,
}  # fmt: skip
CORRIDOR: dict[str, Any] = {
    "num_envs": 32, "num_steps": 128, "num_minibatches": 8, "learning_rate": 1e-3, "anneal_learning_rate": True,
    "clip_range_vf": None, "entropy_coef": 0.05, "schedules": "entropy_coef=linear", "hidden_sizes": (64,),
    "recurrent_size": 128, "sequence_length": 64, "normalize_observations": True,
}  # fmt: skip
"""More entropy than usual until late: agents start with their backs to the object, and have to look for it."""
CARDS: dict[str, Any] = {
    "num_envs": 32, "num_steps": 128, "num_minibatches": 8, "learning_rate": 1e-3, "anneal_learning_rate": True,
    "gamma": 0.5, "gae_lambda": 0.0, "clip_range_vf": None, "entropy_coef": 0.0, "hidden_sizes": (64,),
    "recurrent_size": 128, "sequence_length": 64,
}  # fmt: skip
"""Each action is rewarded at once, and changes nothing."""
POPGYM: dict[str, dict[str, Any]] = {
    "RepeatPrevious": CARDS,
    "RepeatFirst": CARDS,
    "PositionOnlyCartPole": {**CARDS, "gamma": 0.99, "gae_lambda": 0.95},
    "HigherLower": CARDS,
    "CountRecall": CARDS,
}
"""The easy versions."""

TASKS: dict[str, tuple[Callable[[], Any] | str, int, dict[str, Any]]] = {
    "T-maze of 10": (partial(TMaze, 10), 30_000, SETTINGS),
    "T-maze of 20": (partial(TMaze, 20), 60_000, LONG),
    "T-maze of 20 by sequences of 32": (partial(TMaze, 20), 30_000, SETTINGS),
    "delayed copy of 10": (partial(DelayedCopy, 10), 60_000, LONG),
    "delayed copy of 10 by sequences of 32": (partial(DelayedCopy, 10), 60_000, SETTINGS),
    "delayed copy of 20": (partial(DelayedCopy, 20), 60_000, LONG),
    "delayed copy of 20 by sequences of 32": (partial(DelayedCopy, 20), 60_000, SETTINGS),
    "CartPole without velocities": (places_alone, 100_000, BALANCE),
    **{f"POPGym {name}": (f"popgym:popgym-{name}Easy-v0", 200_000, POPGYM[name]) for name in POPGYM},
    "MiniGrid-MemoryS7": ("MiniGrid-MemoryS7-v0", 2_000_000, CORRIDOR),
}
"""Environment, steps of its training, and settings."""
MEMORIES = ("lstm", "gru", "mingru", None)


def train(task: str, memory: Any, seeds: int) -> dict[str, Any]:
    """The mean return of 100 episodes after each training."""
    env, total_steps, settings = TASKS[task]
    config = cleanrl(**settings, recurrent=memory)
    found = []
    for seed in range(seeds):
        result = hybridppo.train(
            env, total_steps=total_steps, seed=seed, config=config, placement="cpu", evaluation_episodes=100,
            progress=False,
        )  # fmt: skip
        assert result.evaluation is not None  # it was asked for
        found.append(result.evaluation.return_mean)
    about = {"task": task, "memory": memory, "seeds": seeds, "total_steps": total_steps}
    return {**about, "config": config.to_json(), "evaluations": found}


def main() -> None:
    """Train what is missing, print a line for each, and save the returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(name for name in TASKS if TASKS[name][1] <= 100_000))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=machine.RESULTS / "memory_tasks.json")
    arguments = parser.parse_args()
    runs = kept_runs(arguments.output)
    tasks = [name for name in TASKS for asked in arguments.tasks.split(",") if asked in (name, name.partition(" ")[0])]
    for task in tasks:
        for memory in MEMORIES:
            about = {"task": task, "memory": memory, "seeds": arguments.seeds}
            if not any(about.items() <= run.items() for run in runs):
                runs.append(train(task, memory, arguments.seeds))
                machine.save(arguments.output.stem, {"runs": runs}, arguments.output.parent)
    for run in runs:
        print(f"{run['task']}, {run['memory']}: {', '.join(f'{mean:.2f}' for mean in run['evaluations'])}")


if __name__ == "__main__":
    main()
