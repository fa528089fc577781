"""Uneven learners: `Central`, whose learners do not wait for each other, beside `MultiLearner`, whose learners do.

    python benchmarks/uneven.py --output benchmarks/results

Four learners learn CartPole-v1. They sleep as long as learners on other machines would work, so two cores are enough.
In the case `even`, each sleeps 0.2 s in each update, and in `uneven`, one of them sleeps ten times as long. In `slow
link`, each minibatch of one of them takes 30 ms longer, as if its gradient crossed a slow network. Both policies sample
as many rollouts of as many steps, and make as many passes over each. The speed is that of the steps after the first
rollouts, and the table has its median over the rounds, which take turns.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import machine
from turns import history_of

import hybridppo
from hybridppo.agents.common.loop import OptimizationLoop

LEARNERS, MAX_LAG = 4, 12
SECONDS_OF_AN_UPDATE, TIMES_AS_SLOW, SECONDS_OF_A_SLOW_LINK = 0.2, 10, 0.03
CASES = ("even", "uneven", "slow link")
POLICIES = {"multi": hybridppo.MultiLearner(LEARNERS), "central": hybridppo.Central(LEARNERS, MAX_LAG)}
SLOW_LEARNER = "HYBRIDPPO_BENCHMARK_SLOW_LEARNER"
"""The environment variable that names a file. The slow learner creates the file, so that only one is slow."""
CASE = "HYBRIDPPO_BENCHMARK_CASE"


class Uneven(hybridppo.PPO):
    """Sleeps in each update; the slow learner, which is the first that updates, sleeps longer."""

    is_slow: bool | None = None

    def update(self, rollout: Any) -> dict[str, float]:
        """As in the base class."""
        case, mark = os.environ[CASE], Path(os.environ[SLOW_LEARNER])
        if self.is_slow is None:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                self.is_slow = False
            else:
                self.is_slow = True
                if case == "slow link":
                    self._slow_down(self.loop())
        time.sleep(SECONDS_OF_AN_UPDATE * (TIMES_AS_SLOW if self.is_slow and case == "uneven" else 1))
        return super().update(rollout)

    def _slow_down(self, loop: OptimizationLoop) -> None:
        gradient = loop.backend.gradient

        def later(minibatch: Any, clip_range: Any) -> Any:
            time.sleep(SECONDS_OF_A_SLOW_LINK)
            return gradient(minibatch, clip_range)

        loop.backend.gradient = later  # type: ignore[method-assign]


def speed(policy: str, case: str, seconds: float) -> dict[str, float]:
    """Steps per second, and the lag that one process logs."""
    config = hybridppo.PPOConfig(num_envs=16, num_steps=32, num_epochs=4, num_minibatches=4, hidden_sizes=(64, 64))
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {CASE: case, SLOW_LEARNER: str(Path(folder) / "slow")}
        history = history_of(
            "CartPole-v1", TIMES_AS_SLOW * SECONDS_OF_AN_UPDATE, seconds, config=config, agent=Uneven, placement="cpu",
            distributed=POLICIES[policy], vectorization="sync",
        )  # fmt: skip
    (first, before), (last, after) = history[0], history[-1]
    lags = [metrics.get("gradient_lag_mean", 0.0) for _, metrics in history[1:]]
    return {
        "steps_per_second": (after["env_steps"] - before["env_steps"]) / (last - first),
        "gradient_lag_mean": sum(lags) / len(lags),
        "gradient_lag_max": max(metrics.get("gradient_lag_max", 0.0) for _, metrics in history[1:]),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each case."""
    lines = [
        "| learners | multi:4, steps/s | central:4, steps/s | times | gradient's lag, mean |",
        "|---|---:|---:|---:|---:|",
    ]
    for case in CASES:
        found = {policy: [row for row in rows if (row["case"], row["policy"]) == (case, policy)] for policy in POLICIES}
        multi, central = (median(row["steps_per_second"] for row in found[policy]) for policy in POLICIES)
        lag = median(row["gradient_lag_mean"] for row in found["central"])
        lines.append(f"| {case} | {multi:,.0f} | {central:,.0f} | {central / multi:.2f} | {lag:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all by turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--output", type=Path, help="a folder for uneven.json")
    arguments = parser.parse_args()
    rows = []
    for _ in range(arguments.rounds):
        for case in CASES:
            for policy in POLICIES:
                rows.append({"case": case, "policy": policy, **speed(policy, case, arguments.seconds)})
                print(rows[-1], flush=True)
    if arguments.output is not None:
        settings = {"max_lag": MAX_LAG, "seconds_of_an_update": SECONDS_OF_AN_UPDATE, "times_as_slow": TIMES_AS_SLOW,
                    "seconds_of_a_slow_link": SECONDS_OF_A_SLOW_LINK}  # fmt: skip
        machine.save("uneven", {"settings": settings, "rows": rows}, arguments.output)
    print(table(rows))


if __name__ == "__main__":
    main()
