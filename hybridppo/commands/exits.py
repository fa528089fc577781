"""Exit codes, and what is said of a training when it ends."""

import math
import sys

from hybridppo.reporting.advice import advice
from hybridppo.training import TrainResult

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def report(result: TrainResult) -> int:
    """Say in a line what came of a training, and where it lies; the exit code."""
    if not result.saved:
        print(
            f"hybridppo: error: the last checkpoint is not on the disk (see above): {result.run_dir} ends with the one "
            "before it; make room and resume",
            file=sys.stderr,
        )
        return EXIT_ERROR
    if result.interrupted:
        print(f"interrupted; go on with: hybridppo resume {result.run_dir}", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(summary(result))
    if result.stopped_by is not None:
        print(f"stopped before its goal: {result.stopped_by}")
    if result.evaluation is not None:
        mean, deviation = result.evaluation.return_mean, result.evaluation.return_std
        episodes = len(result.evaluation.returns)
        print(f"evaluation: return {mean:.2f} +- {deviation:.2f} over {episodes} episodes, most probable actions")
    returns = result.evaluation.returns if result.evaluation is not None else None
    for sentence in advice(result.metrics, result.agent.config, returns):
        print(f"note: {sentence}")
    print(f"run directory: {result.run_dir}")
    return EXIT_DONE


def summary(result: TrainResult) -> str:
    """Return, steps, seconds and speed of a training, in a line."""
    metrics = result.metrics
    if not metrics:  # resumed, and there was nothing left to do
        return "training: nothing was left to do"
    mean, steps, seconds = metrics["episode_return_mean"], metrics["env_steps"], metrics["seconds"]
    returns = f"return {mean:.1f} (latest episodes, sampled actions)" if math.isfinite(mean) else "no whole episode"
    return f"training: {returns}, {steps:,} steps in {seconds:.1f} s, {steps / seconds:,.0f} steps/s"
