"""Does a pool of past rollouts save steps? PPO with `pool_size=4` beside plain PPO, for the same number of steps.

    python benchmarks/pool.py
    python benchmarks/pool.py --cases Pendulum-v1 --seeds 5
    python benchmarks/pool.py --kinds plain,pool --jobs 1

Settings are the library's defaults. `pool` differs only in `pool_size`, so that its minibatches are four times as
large. `small minibatches` has those of plain PPO, and four times as many of them. `short rollouts` follows the method's
authors: its rollouts are half as long, so that there are twice as many updates. `plain with short rollouts` has as many
updates, and no pool. The result is the number of steps until the mean return of the last 100 episodes is what plain
PPO's median run ended with, as a share of all steps. Each run is a process; runs that are already in the results are
skipped.
"""

import statistics
from typing import Any

from missing_runs import parser_of, run_missing

EVALUATION_EPISODES = 20
CASES = {"Pendulum-v1": 100_000, "LunarLander-v3": 300_000, "HalfCheetah-v5": 300_000}
"""Environments, and the steps of a training in each."""
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pool": {"pool_size": 4},
    "small minibatches": {"pool_size": 4, "num_minibatches": 128},
    "short rollouts": {"pool_size": 4, "num_steps": 256},
    "plain with short rollouts": {"num_steps": 256},
}
"""For each name, what differs from the defaults."""
NAMES = ("kind", "env_id", "total_steps", "seed")


def run(kind: str, env_id: str, total_steps: int, seed: int) -> list[dict[str, Any]]:
    """Train in this process; the curve is the mean return of the last 100 episodes after each iteration."""
    import hybridppo
    from hybridppo import PPOConfig

    curve: list[tuple[int, float]] = []

    def note(metrics: dict[str, float]) -> None:
        if metrics["episodes"] >= 100:  # before, it is of fewer
            curve.append((int(metrics["env_steps"]), metrics["episode_return_mean"]))

    result = hybridppo.train(
        env_id, total_steps=total_steps, seed=seed, placement="cpu", config=PPOConfig(**KINDS[kind]), progress=False,
        evaluation_episodes=EVALUATION_EPISODES, on_iteration=note,
    )  # fmt: skip
    assert result.evaluation is not None  # it was asked for
    return [{
        "kind": kind, "env_id": env_id, "total_steps": total_steps, "seed": seed, "seconds": result.metrics["seconds"],
        "evaluation": result.evaluation.return_mean, "training": curve[-1][1], "curve": curve,
    }]  # fmt: skip


def share_of_steps(curve: list[list[float]], goal: float, total_steps: int) -> float:
    """The share of the steps after which the goal is reached; infinite if it never is."""
    return next((steps / total_steps for steps, mean in curve if mean >= goal), float("inf"))


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each environment and kind; medians over seeds."""
    lines = [
        "| environment | steps | kind | seeds | return of training | evaluation | share of steps to plain PPO's return "
        "| seconds, to plain PPO's |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for env_id, total_steps in CASES.items():
        of_case = [r for r in runs if (r["env_id"], r["total_steps"]) == (env_id, total_steps)]
        plain = [r for r in of_case if r["kind"] == "plain"]
        if not plain:
            continue
        goal = statistics.median(r["training"] for r in plain)
        pace = statistics.median(r["seconds"] for r in plain)
        for kind in KINDS:
            found = [r for r in of_case if r["kind"] == kind]
            if not found:
                continue
            middle = {name: statistics.median(r[name] for r in found) for name in ("training", "evaluation", "seconds")}
            share = statistics.median(share_of_steps(r["curve"], goal, total_steps) for r in found)
            reached = f"{share:.2f}" if share <= 1.0 else "never"
            lines.append(
                f"| {env_id} | {total_steps:,} | {kind} | {len(found)} | {middle['training']:,.0f} "
                f"| {middle['evaluation']:,.0f} | {reached} | {middle['seconds'] / pace:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = parser_of(__doc__, "pool")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--total-steps", type=int, help="of each run (default: the environment's own number)")
    arguments = parser.parse_args()
    wanted = [
        {"kind": kind, "env_id": env_id, "total_steps": arguments.total_steps or CASES[env_id], "seed": seed}
        for env_id in arguments.cases.split(",")
        for seed in range(arguments.seeds)
        for kind in arguments.kinds.split(",")
    ]
    print(table(run_missing(__file__, arguments, run, wanted, NAMES)))


if __name__ == "__main__":
    main()
