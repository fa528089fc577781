"""Published tables, repeated with their settings, steps and seeds: theirs beside ours.

    python benchmarks/published/run.py
    python benchmarks/published/run.py --tables "CleanRL ppo.py" --jobs 2
    python benchmarks/published/run.py --rows Ant-v5 --seeds 1

Each run is a process and a folder below `--runs`; finished ones are skipped, stopped ones continue. A figure of
`training` is the mean return of the last 100 episodes of the training; one of `evaluation` that of 100 episodes after
it with the most probable actions; `best` is the highest of such evaluations, over 10 episodes, every 30,000 steps of
the training. Each row uses the one that the others published. Ours is the interquartile mean over seeds, with a 95 %
bootstrap interval. Rows that have not been run say so in the table.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import machine  # noqa: E402
from settings import CLEANRL  # noqa: E402

from hybridppo.agents.registry import config_from_json  # noqa: E402
from hybridppo.run_directory.lines import read_lines  # noqa: E402
from hybridppo.system.figures import markdown_table, shown_number  # noqa: E402
from hybridppo.tools.curves import bootstrap_interval, interquartile_mean  # noqa: E402
from hybridppo.tools.one_run import RunAsked  # noqa: E402
from hybridppo.tools.side_by_side import result_of, train_missing  # noqa: E402

KEYS = {"training": "episode_return_mean", "evaluation": "evaluation_return_mean"}


@dataclass(frozen=True)
class Row:
    """A published figure, and how it is repeated."""

    table: str
    env: str
    total_steps: int
    published: float | None
    spread: float | None
    """Standard deviation over their seeds."""
    their_seeds: int
    config: dict[str, Any]
    measure: str = "training"
    seeds: int = 3
    agent: str = "ppo"
    source: str = ""
    """The function that makes the environment, if its name is not that of the row."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `train`."""
    note: str = ""
    """What differs from their settings, and what was tried if the row misses."""

    def asked(self, seed: int, runs: Path) -> RunAsked:
        """The run of a seed."""
        folder = runs / self.table.replace(" ", "-") / self.env.replace("/", "-") / f"seed{seed}"
        config = config_from_json(self.agent, self.config).to_json()
        options: dict[str, Any] = {
            "placement": "cpu",
            "evaluation_episodes": 100,
            "env_kwargs": self.env_kwargs or None,
        }
        if self.measure == "best":
            options |= {"evaluate_every": 30_000, "evaluate_episodes": 10, "evaluate_beside": False}
        return RunAsked(
            str(folder),
            self.source or self.env,
            self.total_steps,
            seed,
            self.agent,
            config,
            {**options, **self.options},
        )


COMPILED: dict[str, Any] = {"compiled": True}
ZOO_GRID: dict[str, Any] = {
    "num_envs": 8, "num_steps": 128, "num_minibatches": 16, "num_epochs": 10, "learning_rate": 2.5e-4,
    "entropy_coef": 0.0, "value_coef": 1.0, "normalize_observations": True, "normalize_rewards": True,
}  # fmt: skip
CONTROL: dict[str, Any] = {
    "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "num_epochs": 10, "learning_rate": 3e-4,
    "anneal_learning_rate": True, "clip_range_vf": 0.2, "entropy_coef": 0.0, "normalize_observations": True,
    "normalize_rewards": True,
}  # fmt: skip
TD3: dict[str, Any] = {
    "buffer_size": 1_000_000, "batch_size": 256, "learning_starts": 25_000, "hidden_sizes": [256, 256],
    "activation": "relu", "learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005,
}  # fmt: skip
TIANSHOU: dict[str, Any] = {
    "num_envs": 8, "num_steps": 256, "num_minibatches": 32, "num_epochs": 10, "learning_rate": 3e-4,
    "anneal_learning_rate": True, "entropy_coef": 0.0, "value_coef": 0.5, "normalize_advantage": False,
    "normalize_observations": True, "normalize_rewards": True, "log_std_init": -0.5,
}  # fmt: skip
GYMNAX: dict[str, Any] = {
    "num_envs": 64, "num_steps": 128, "num_minibatches": 8, "num_epochs": 4, "learning_rate": 5e-4, "gamma": 0.999,
    "entropy_coef": 0.01, "value_coef": 0.5, "clip_range_vf": 0.2, "hidden_sizes": [256, 256], "activation": "relu",
    "normalize_observations": False, "normalize_rewards": False,
}  # fmt: skip
NO_CONTROL = "dm_control 1.0.50 fails with MuJoCo 4.0.0 (`flex_vertedge`); 1.0.34 with MuJoCo 3.3.7 works"
BOOTSTRAPS = "the value after a truncated episode is bootstrapped, which CleanRL's PPO does not do"
TERMINATES = {"ends": "terminated"}
AS_CLEANRL = "no value after a truncated episode, as in CleanRL's PPO"
HOURS = "takes ten hours of two cores"
AS_V3 = {"contact_cost_weight": 0, "include_cfrc_ext_in_observation": False}

ROWS: tuple[Row, ...] = (
    *(
        Row("CleanRL ppo.py", env, 500_000, published, spread, 3, CLEANRL, options=COMPILED)
        for env, published, spread in (
            ("CartPole-v1", 490.0, 6.1),
            ("Acrobot-v1", -86.4, 1.3),
            ("MountainCar-v0", -200.0, 0.0),
        )
    ),
    *(
        Row(
            "rl-baselines3-zoo PPO, MiniGrid", env, 100_000, published, None, 1, ZOO_GRID, "evaluation", 5,
            source="worlds:flat_grid", env_kwargs={"env_id": env},
        )
        for env, published in (("MiniGrid-Empty-Random-5x5-v0", 0.968), ("MiniGrid-DoorKey-5x5-v0", 0.964))
    ),
    *(
        Row(
            "Tianshou PPO, MuJoCo", env, 1_000_000, published, spread, 10, TIANSHOU, "best", options=COMPILED,
            env_kwargs=kwargs, note=note,
        )
        for env, published, spread, kwargs, note in (
            ("Ant-v5", 3258.4, 1079.3, AS_V3, "without the contact forces that v3 did not show"),
            ("Walker2d-v5", 3588.5, 756.6, {}, ""),
            ("Hopper-v5", 2609.3, 700.8, {}, ""),
            ("HalfCheetah-v5", 5783.9, 1244.0, {}, ""),
        )
    ),
    *(
        Row(
            "CleanRL td3_continuous_action.py", env, 1_000_000, published, spread, 3, TD3, agent="td3",
            options=COMPILED, note="a million gradient steps each",
        )
        for env, published, spread in (
            ("HalfCheetah-v4", 9583.0, 126.0),
            ("Hopper-v4", 3135.0, 360.0),
            ("Walker2d-v4", 4058.0, 659.0),
        )
    ),
    *(
        Row(
            "CleanRL PPO, dm_control", f"{domain}-{task}{name}", 8_000_000, published, spread, 3, CONTROL,
            source="worlds:control", env_kwargs={"domain": domain, "task": task, **ends}, options=COMPILED, note=note,
        )
        for name, ends, note in (("", {}, f"{BOOTSTRAPS}; {NO_CONTROL}"), ("-terminated", TERMINATES, AS_CLEANRL))
        for domain, task, published, spread in (
            ("cartpole", "swingup", 640.9, 11.4),
            ("reacher", "easy", 626.3, 15.5),
            ("ball_in_cup", "catch", 900.8, 5.3),
        )
    ),
    Row(
        "CleanRL PPO, dm_control", "ball_in_cup-catch-kl", 8_000_000, 900.8, 5.3, 3, {**CONTROL, "target_kl": 0.02},
        source="worlds:control", env_kwargs={"domain": "ball_in_cup", "task": "catch"}, options=COMPILED,
        note="bootstrapped; an update ends at a KL divergence of 0.02",
    ),
    *(
        Row(
            "gymnax-blines PPO, MinAtar", f"MinAtar/{game}-v1", 10_000_000, published, None, 1, GYMNAX, "evaluation",
            source="worlds:flat_minatar", env_kwargs={"game": game, "max_episode_steps": steps}, options=COMPILED,
            note=f"as gymnax has it: no sticky actions, {steps:,} steps at most; no warm-up of the learning rate",
        )
        for game, published, steps in (
            ("Asterix", 15.0, 1000),
            ("Breakout", 28.0, 1000),
            ("Freeway", 58.0, 2500),
            ("Seaquest", None, 1000),
            ("SpaceInvaders", 131.0, 1000),
        )
    ),
    *(
        Row(
            "CleanRL ppo_atari_envpool.py", f"envpool/{game}-v5", 10_000_000, published, spread, 3,
            {**CLEANRL, "num_envs": 8, "shared_trunk": True, "hidden_sizes": [512], "activation": "relu",
             "clip_range": 0.1, "clip_range_vf": 0.1},
            note=note,
        )
        for game, published, spread, note in (
            ("Pong", 20.4, 0.4, "to 6.5 million steps: 19.7, one seed (below)"),
            ("Breakout", 414.7, 28.1, HOURS),
            ("BeamRider", 1916.0, 485.0, HOURS),
        )
    ),
)  # fmt: skip
"""The tables, the cheapest first."""


def as_markdown(runs: list[dict[str, Any]]) -> str:
    """A line for each row: theirs, ours, and whether ours is within or above their interval."""
    heads = (
        "environment", "table", "steps", "theirs", "their seeds", "ours", "95 %", "by seed", "verdict", "note",
    )  # fmt: skip
    lines = []
    for row in ROWS:
        own = [run for run in runs if (run["table"], run["env"]) == (row.table, row.env)]
        theirs = "none" if row.published is None else f"{row.published:,}"
        theirs += "" if row.spread is None else f" +- {row.spread:,}"
        cells = [row.env, row.table, f"{row.total_steps:,}", theirs, str(row.their_seeds)]
        if not own:
            lines.append([*cells, "not run", "", "", "", row.note])
            continue
        values = np.asarray([run[row.measure] for run in own])
        middle, (low, high) = interquartile_mean(values), bootstrap_interval(values)
        interval = f"{shown_number(low)} to {shown_number(high)}" if len(own) > 1 else ""
        by_seed = ", ".join(shown_number(value) for value in values)
        lines.append(
            [*cells, shown_number(middle), interval, by_seed, verdict(row, float(middle), float(high)), row.note]
        )
    return markdown_table(heads, lines)


def verdict(row: Row, middle: float, high: float) -> str:
    """`reached` if ours is at least theirs less their deviation, `within` if our interval reaches that, or `missed`."""
    if row.published is None:
        return ""
    least = row.published - (row.spread or 0.0)
    return "reached" if middle >= least else "within" if high >= least else "missed"


def main() -> None:
    """Run what is missing, save it, and print the table."""
    tables = tuple(dict.fromkeys(row.table for row in ROWS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tables", default=";".join(tables), help="with semicolons between (default: all): %(default)s"
    )
    parser.add_argument("--rows", help="environments, separated by commas (default: all of the tables)")
    parser.add_argument("--seeds", type=int, help="of each row (default: the row's own number)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once (default %(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/published"), help="the folder of the runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.tables.split(";")) - set(tables):
        parser.error(f"unknown tables {sorted(unknown)}: use {'; '.join(tables)}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))  # of `worlds`
    chosen = [row for row in ROWS if row.table in arguments.tables.split(";")]
    if arguments.rows is not None:
        chosen = [row for row in chosen if row.env in arguments.rows.split(",")]
    for row in chosen:
        asked = {seed: row.asked(seed, arguments.runs) for seed in range(arguments.seeds or row.seeds)}
        train_missing(list(asked.values()), jobs=arguments.jobs, progress=sys.stderr.isatty(), label=row.env)
        print(as_markdown(keep(row, asked)), flush=True)


def keep(row: Row, asked: dict[int, RunAsked]) -> list[dict[str, Any]]:
    """Write a row's findings into the results; returns all that the results now have."""
    path = machine.RESULTS / "published.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    for seed, run in asked.items():
        result = result_of(run)
        assert result is not None  # it has been trained
        about = {"table": row.table, "env": row.env, "seed": seed}
        runs = [each for each in runs if not about.items() <= each.items()]
        found = {measure: result[key] for measure, key in KEYS.items()}
        during = [line["evaluation_return_mean"] for line in read_lines(Path(run.run_dir) / "evaluations.jsonl")]
        found["best"] = max([*during, result["evaluation_return_mean"]])
        of_run = {"seconds": result["seconds"], "total_steps": row.total_steps, "cpu": machine.describe()["cpu"]}
        runs.append({**about, **found, **of_run, "config": run.config})
    machine.save("published", {"runs": runs})
    return runs


if __name__ == "__main__":
    main()
