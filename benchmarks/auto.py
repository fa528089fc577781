"""Does placement auto choose well? Its choice against every candidate, each measured for longer.

    python benchmarks/auto.py
    python benchmarks/auto.py --works pendulum,slow --rounds 5

The pieces of work differ in environment, network and batch. For each, auto chooses several times for a run of two
minutes, and for one of three seconds; then every candidate trains for some moments, round after round, so that a
change of the machine's pace affects all of them. Candidates several times slower than the best take one turn. With a
CUDA device, CartPole with hidden layers of 64 to 2048 follows, and from which size on learning on it pays. On many
cores `--torch-threads 1` leaves out most candidates.

Results go to results/auto.json, or to results/auto-cuda.json with a CUDA device. The exit code is 1 if a
promise is broken: a choice within 5 % of the best in all works but one, and never more than 15 % off.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridppo import PPOConfig
from hybridppo.auto.auto import Auto
from hybridppo.auto.comparison import candidates
from hybridppo.auto.search import Limits
from hybridppo.auto.trials import Candidate, Training
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import EnvError
from hybridppo.system.accelerator import num_cuda_devices

# Below the library, which has to be imported before NumPy.
import gymnasium as gym  # isort: skip
import machine  # isort: skip
from settings import cleanrl  # isort: skip
import numpy as np  # isort: skip

WITHIN, AT_MOST = 1.05, 1.15
HOPELESS = 2.5
"""Candidates that take this many times longer than the best in the first round get no further turn."""
LONG_RUN, SHORT_RUN = 120.0, 3.0
"""Lengths, in seconds, of the runs to choose for."""


class Slow(gym.Env[Any, Any]):
    """Computes for about a millisecond a step, as a simulator does."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,))
    action_space = gym.spaces.Discrete(4)
    size = 50_000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start a new episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """Compute for a while."""
        sum(range(self.size))
        self._step += 1
        return self._observation(), float(action == 0), False, self._step == 200, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)


class VerySlow(Slow):
    """Computes for five times as long."""

    size = 250_000


@dataclass(frozen=True)
class Piece:
    """A piece of work."""

    env: EnvSource
    config: PPOConfig


def _config(**fields: Any) -> PPOConfig:
    # The number of threads is left open, so that auto chooses it too.
    return cleanrl(torch_threads=None, **fields)


WORKS: dict[str, Piece] = {
    "cartpole": Piece("CartPole-v1", _config(num_envs=8)),
    "cartpole_wide": Piece("CartPole-v1", _config(num_envs=64, hidden_sizes=(256, 256))),
    "cartpole_large": Piece("CartPole-v1", _config(num_envs=8, hidden_sizes=(512, 512))),
    "acrobot": Piece("Acrobot-v1", _config(num_envs=8)),
    "acrobot_large_batch": Piece("Acrobot-v1", _config(num_envs=16, num_steps=256, num_minibatches=32)),
    "pendulum": Piece(
        "Pendulum-v1", _config(num_envs=4, num_steps=512, num_epochs=10, num_minibatches=32, entropy_coef=0.0)
    ),
    "lunar_lander": Piece("LunarLander-v3", _config(num_envs=8)),
    "half_cheetah": Piece(
        "HalfCheetah-v5", _config(num_envs=8, num_steps=256, num_epochs=10, num_minibatches=32, entropy_coef=0.0)
    ),
    "slow": Piece(Slow, _config(num_envs=8, num_steps=32)),
    "car_racing": Piece(
        "CarRacing-v3",
        _config(num_envs=8, num_steps=32, hidden_sizes=(512,), activation="relu", entropy_coef=0.0),
    ),
    "very_slow": Piece(VerySlow, _config(num_envs=4, num_steps=16, hidden_sizes=(256, 256))),
}

CUDA_SIZES = (64, 128, 256, 512, 1024, 2048)


def cuda_works(sizes: Sequence[int]) -> dict[str, Piece]:
    """CartPole by size of network."""
    return {f"cartpole_{size}": Piece("CartPole-v1", _config(num_envs=8, hidden_sizes=(size,) * 2)) for size in sizes}


def measure(piece: Piece, *, rounds: int, seconds: float) -> dict[str, Any]:
    """One piece of work: what auto chooses with and without overlap, and how long every candidate takes."""
    training = Training(piece.env, piece.config, EnvironmentOptions())
    limits = _limits(training)
    found = candidates(limits, piece.config.num_envs)
    measured, steps = _measure_all(training, found, rounds=rounds, seconds=seconds)
    per_second = steps / min(measured.values())
    choices: dict[str, Any] = {}
    for max_lag in (0, 1):
        long = [_chosen(training, max_lag, LONG_RUN * per_second) for _ in range(rounds)]
        short = _chosen(training, max_lag, SHORT_RUN * per_second)
        chosen = statistics.mode(table["chosen"] for table in long)
        allowed = [each.label for each in found if each.max_lag <= max_lag]
        choices[f"max_lag={max_lag}"] = {
            "chosen": chosen,
            "each": [table["chosen"] for table in long],
            "allowed": allowed,
            "trials": [table["trials"] for table in long],
            "seconds_choosing": max(table["seconds"] for table in long),
            "seconds_choosing_short_run": short["seconds"],
            **judge(chosen, allowed, measured),
        }
    rows = {"measured": measured, "choices": choices}
    return {"config": piece.config.to_json(), "run_seconds": [LONG_RUN, SHORT_RUN], **rows}


def _limits(training: Training) -> Limits:
    environments = make_environments(training.source, training.config.num_envs)
    try:
        return Auto(1).limits(training, environments, total_steps=10**9)
    finally:
        environments.close()


def _chosen(training: Training, max_lag: int, total_steps: float) -> dict[str, Any]:
    environments = make_environments(training.source, training.config.num_envs)
    try:
        auto = Auto(max_lag)
        return auto.choose(training.source, environments, training.config, total_steps=round(total_steps)).table
    finally:
        environments.close()


def _measure_all(
    training: Training, tried: Sequence[Candidate], *, rounds: int, seconds: float
) -> tuple[dict[str, float], int]:
    """Seconds of an iteration under every candidate, medians over rounds in which all take their turn; its steps."""
    turns: dict[str, list[float]] = {}
    steps = 0
    for _ in range(rounds):
        best = min((min(each) for each in turns.values()), default=math.inf)
        for candidate in tried:
            if min(turns.get(candidate.label, [0.0])) > HOPELESS * best:
                continue
            trial = training.try_out(candidate, seconds)
            turns.setdefault(candidate.label, []).append(trial.iteration)
            steps = trial.steps
    return {label: statistics.median(values) for label, values in turns.items()}, steps


def judge(chosen: str, allowed: Sequence[str], measured: Mapping[str, float]) -> dict[str, Any]:
    """How far a choice is from the best that was allowed."""
    best = min((label for label in allowed if label in measured), key=lambda label: measured[label])
    return {
        "best": best,
        "ratio_to_best": measured[chosen] / measured[best],
        "ratio_to_cpu": measured[chosen] / measured["cpu"] if "cpu" in measured else None,
    }


def summary(works: Mapping[str, Any], max_lag: int) -> dict[str, Any]:
    """Whether the promises are kept, over all works."""
    choices = [row["choices"][f"max_lag={max_lag}"] for row in works.values()]
    ratios = [choice["ratio_to_best"] for choice in choices]
    num_within = sum(ratio <= WITHIN for ratio in ratios)
    return {
        "works": len(ratios),
        "within_5_percent": num_within,
        "worst_ratio": max(ratios),
        "stable": sum(len(set(choice["each"])) == 1 for choice in choices),
        "longest_choice": max(choice["seconds_choosing"] for choice in choices),
        "longest_of_a_short_run": max(choice["seconds_choosing_short_run"] for choice in choices),
        "is_kept": num_within >= len(ratios) - max(1, len(ratios) // 8) and max(ratios) <= AT_MOST,
    }


def crossing(measured: Mapping[int, Mapping[str, float]]) -> int | None:
    """The smallest size of network from which on sampling on the CPU and learning on the GPU is always faster.

    Candidates that were not measured were far too slow.
    """
    sizes = sorted(measured)
    faster = [size for size in sizes if measured[size].get("hybrid", math.inf) < measured[size].get("cpu", math.inf)]
    return next((size for size in faster if all(other in faster for other in sizes if other >= size)), None)


def as_markdown(works: Mapping[str, Any], max_lag: int) -> str:
    """The works as a table."""
    lines = [
        "| work | chosen | best measured | ms | of best | of cpu |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name, row in works.items():
        choice, measured = row["choices"][f"max_lag={max_lag}"], row["measured"]
        of_cpu = "" if choice["ratio_to_cpu"] is None else f"{choice['ratio_to_cpu']:.2f}"
        lines.append(
            f"| {name} | {choice['chosen']} | {choice['best']} | {1e3 * measured[choice['chosen']]:.1f} "
            f"| {choice['ratio_to_best']:.3f} | {of_cpu} |"
        )
    return "\n".join(lines)


def result_as_markdown(result: Mapping[str, Any]) -> str:
    """A whole result: a table, and a line on the promises without and with overlap."""
    parts = []
    for max_lag, title in ((0, "No overlap allowed"), (1, "Overlap allowed")):
        found = result["summaries"][f"max_lag={max_lag}"]
        long, short = found["longest_choice"], found["longest_of_a_short_run"]
        parts.append(
            f"{title}: within 5 % of the best in {found['within_5_percent']} of {found['works']}, never more than "
            f"{100 * (found['worst_ratio'] - 1):.0f} % off; the same choice each time in {found['stable']}; trials of "
            f"at most {long:.1f} s for a run of {LONG_RUN:.0f} s, and of {short:.2f} s for one of {SHORT_RUN:.0f} s."
        )
        parts.append(as_markdown(result["works"], max_lag))
    return "\n\n".join(parts)


def main() -> int:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default=",".join(WORKS), help="which, by name (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every candidate")
    parser.add_argument("--seconds", type=float, default=0.8, help="of every turn, after an iteration that warms up")
    parser.add_argument("--sizes", type=int, nargs="*", default=CUDA_SIZES, help="of networks with a CUDA device")
    parser.add_argument("--torch-threads", type=int, help="a number (default: auto chooses it too)")
    arguments = parser.parse_args()
    accelerator = "cuda" if num_cuda_devices() else None
    sizes = arguments.sizes if accelerator else ()
    pieces = {name: WORKS[name] for name in arguments.works.split(",") if name} | cuda_works(sizes)
    pieces = {
        name: replace(piece, config=replace(piece.config, torch_threads=arguments.torch_threads))
        for name, piece in pieces.items()
    }
    works: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, piece in pieces.items():
        try:
            works[name] = measure(piece, rounds=arguments.rounds, seconds=arguments.seconds)
        except EnvError as error:  # a package of environments that is not installed
            left_out[name] = str(error)
            print(f"{name}: left out: {error}", flush=True)
            continue
        print(as_markdown({name: works[name]}, 1).splitlines()[-1], flush=True)
    payload: dict[str, Any] = {"arguments": vars(arguments), "left_out": left_out, "works": works}
    payload["summaries"] = {f"max_lag={max_lag}": summary(works, max_lag) for max_lag in (0, 1)}
    if sizes:
        payload["crossing"] = {
            "measured": crossing({size: works[f"cartpole_{size}"]["measured"] for size in sizes}),
        }
        print(f"\nFrom hidden layers of this size on, hybrid is faster than cpu: {payload['crossing']}")
    print(f"\n{result_as_markdown(payload)}")
    print(f"\nRaw figures: {machine.save('auto-cuda' if accelerator else 'auto', payload)}")
    return 0 if all(each["is_kept"] for each in payload["summaries"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
