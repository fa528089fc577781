"""What a lag of several updates costs in learning, and what it gains if one environment is slow.

    python benchmarks/lag.py
    python benchmarks/lag.py --cases CartPole-v1 --seeds 5 --jobs 1
    python benchmarks/lag.py --stragglers

Settings are the library's defaults, and all kinds train for the same steps. `lag 0` samples and learns by turns. The
others have `max_lag=4` with two workers that are held four rollouts ahead, so that their lag is 4, and not the least
that keeps the learner busy. One corrects by V-trace, one is decoupled (it also clips around the policy before the
update), and one does not correct. Intervals are of the interquartile mean of the seeds, by bootstrap. Each run is a
process; runs that are already in the results are skipped.

`--stragglers` trains with sixteen environments, each in a process of its own. One of them takes ten times as long for a
step as the others. It does so under `max_lag` 0, 1 and 4. Environments sleep, so that two cores are enough.
"""

import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
from missing_runs import parser_of, run_missing
from turns import history_of

from hybridppo.tools.curves import bootstrap_interval, interquartile_mean

EVALUATION_EPISODES = 20
CASES = {"CartPole-v1": 100_000, "LunarLander-v3": 300_000, "HalfCheetah-v5": 300_000}
"""Environments, and the steps of a training in each."""
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "lag 0": (0, {}),
    "lag 4, V-trace": (4, {"lag_correction": "vtrace"}),
    "lag 4, decoupled": (4, {"lag_correction": "decoupled"}),
    "lag 4, no correction": (4, {"lag_correction": "none"}),
}
"""For each name, the lag and what differs from the defaults."""
NAMES = ("kind", "env_id", "total_steps", "seed")
NUM_ENVS, SECONDS_OF_A_STEP, TIMES_AS_SLOW = 16, 0.02, 10
LAGS = (0, 1, 4)


def run(kind: str, env_id: str, total_steps: int, seed: int) -> list[dict[str, Any]]:
    """Train in this process; the curve is the mean return of the last 100 episodes after each iteration."""
    import hybridppo
    from hybridppo import Mirrored, PPOConfig
    from hybridppo.runners.workers import lagging

    lagging.ROLLOUTS_AHEAD = 4
    curve: list[tuple[int, float]] = []
    lags: list[float] = []

    def note(metrics: dict[str, float]) -> None:
        lags.append(metrics.get("policy_lag_mean", 0.0))
        if metrics["episodes"] >= 100:  # before, it is of fewer
            curve.append((int(metrics["env_steps"]), metrics["episode_return_mean"]))

    max_lag, settings = KINDS[kind]
    result = hybridppo.train(
        env_id, total_steps=total_steps, seed=seed, config=PPOConfig(**settings), progress=False,
        placement=Mirrored("cpu", "cpu", max_lag=max_lag), num_workers=2 if max_lag else 0,
        evaluation_episodes=EVALUATION_EPISODES, on_iteration=note,
    )  # fmt: skip
    assert result.evaluation is not None  # it was asked for
    return [{
        "kind": kind, "env_id": env_id, "total_steps": total_steps, "seed": seed, "seconds": result.metrics["seconds"],
        "evaluation": result.evaluation.return_mean, "training": curve[-1][1], "curve": curve,
        "policy_lag_mean": sum(lags) / len(lags), "steps_dropped": result.metrics.get("steps_dropped", 0),
    }]  # fmt: skip


def sleepy(seconds: float, slow: float, taken: Path) -> Any:
    """An environment that sleeps in each step; of all copies, the first to be stepped sleeps longer.

    Args:
        seconds: of a step.
        slow: seconds of a step of the first copy.
        taken: a file that the first copy creates.
    """
    import gymnasium as gym

    class Sleepy(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        action_space = gym.spaces.Discrete(2)
        seconds_of_a_step: float | None = None

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            return self._observation(), {}

        def step(self, action: Any) -> Any:
            if self.seconds_of_a_step is None:
                try:
                    taken.touch(exist_ok=False)
                except FileExistsError:
                    self.seconds_of_a_step = seconds
                else:
                    self.seconds_of_a_step = slow
            time.sleep(self.seconds_of_a_step)
            self.steps += 1
            return self._observation(), float(action), False, self.steps >= 100, {}

        def _observation(self) -> Any:
            return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)

    return Sleepy()


def stragglers(max_lag: int, seconds: float) -> dict[str, Any]:
    """Train for this many seconds, after the slowest environment has filled its first rollout."""
    from hybridppo import Mirrored, PPOConfig

    slow = TIMES_AS_SLOW * SECONDS_OF_A_STEP
    config = PPOConfig(num_envs=NUM_ENVS, num_steps=64, num_epochs=4, num_minibatches=8)
    with tempfile.TemporaryDirectory() as folder:
        history = history_of(
            partial(sleepy, SECONDS_OF_A_STEP, slow, Path(folder) / "taken"), config.num_steps * slow, seconds,
            config=config, placement=Mirrored("cpu", "cpu", max_lag=max_lag), num_workers=NUM_ENVS,
        )  # fmt: skip
    (first, before), (last, after) = history[0], history[-1]
    measured = [metrics for _, metrics in history[1:]]
    return {
        "max_lag": max_lag,
        "steps_per_second": (after["env_steps"] - before["env_steps"]) / (last - first),
        "samplers_busy": after.get("samplers_busy"),
        "policy_lag": max(metrics["policy_lag"] for metrics in measured),
        "policy_lag_mean": float(np.mean([m.get("policy_lag_mean", m["policy_lag"]) for m in measured])),
        "steps_dropped": after.get("steps_dropped", 0),
        "iterations": len(measured),
    }


def table_of_stragglers(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each lag."""
    lines = ["| max_lag | steps/s | times lag 0 | workers sampling | lag: largest, mean | steps dropped |"]
    lines.append("|---:|---:|---:|---:|---|---:|")
    for row in rows:
        busy = "" if row["samplers_busy"] is None else f"{row['samplers_busy']:.0%}"
        times = row["steps_per_second"] / rows[0]["steps_per_second"]
        lag = f"{row['policy_lag']:.0f}, {row['policy_lag_mean']:.1f}"
        lines.append(
            f"| {row['max_lag']} | {row['steps_per_second']:,.0f} | {times:.1f} | {busy} | {lag} "
            f"| {row['steps_dropped']:,} |"
        )
    return "\n".join(lines)


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each environment and kind."""
    lines = [
        "| environment | steps | kind | seeds | return of training | evaluation | lag |",
        "|---|---:|---|---:|---|---|---:|",
    ]
    for env_id, total_steps in sorted({(r["env_id"], r["total_steps"]) for r in runs}):
        for kind in KINDS:
            found = [r for r in runs if (r["env_id"], r["total_steps"], r["kind"]) == (env_id, total_steps, kind)]
            if not found:
                continue
            cells = []
            for what in ("training", "evaluation"):
                returns = np.array([r[what] for r in found])
                low, high = bootstrap_interval(returns)
                cells.append(f"{interquartile_mean(returns):,.0f} ({low:,.0f} to {high:,.0f})")
            lag = float(np.mean([r["policy_lag_mean"] for r in found]))
            lines.append(
                f"| {env_id} | {total_steps:,} | {kind} | {len(found)} | {cells[0]} | {cells[1]} | {lag:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = parser_of(__doc__, "lag")
    parser.add_argument("--cases", default="CartPole-v1,LunarLander-v3")
    parser.add_argument("--kinds", default=";".join(KINDS), help="kinds, separated by semicolons")
    parser.add_argument("--total-steps", type=int, help="of each, instead of its own number")
    parser.add_argument("--stragglers", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each lag, with --stragglers")
    arguments = parser.parse_args()
    if arguments.stragglers:
        rows = []
        for max_lag in LAGS:
            rows.append(stragglers(max_lag, arguments.seconds))
            print(json.dumps(rows[-1]), flush=True)
        machine.save("stragglers", {"seconds_of_a_step": SECONDS_OF_A_STEP, "times": TIMES_AS_SLOW, "rows": rows})
        return
    wanted = [
        {"kind": kind, "env_id": env_id, "total_steps": arguments.total_steps or CASES[env_id], "seed": seed}
        for env_id in arguments.cases.split(",")
        for seed in range(arguments.seeds)
        for kind in arguments.kinds.split(";")
    ]
    print(table(run_missing(__file__, arguments, run, wanted, NAMES)))


if __name__ == "__main__":
    main()
