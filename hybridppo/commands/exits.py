"""Exit codes, and what is said of a training when it ends."""

import math
import sys

from hybridppo.errors import command
from hybridppo.reporting.advice import advice
from hybridppo.system.figures import shown_return
from hybridppo.training.train import TrainResult

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
        print(f"interrupted; go on with: {command('hybridppo', 'resume', result.run_dir)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(summary(result))
    _report_evaluation(result)
    print(f"run directory: {result.run_dir}")
    return EXIT_DONE


def _report_evaluation(result: TrainResult) -> None:
    if result.stopped_by is not None:
        print(f"stopped before its goal: {result.stopped_by}")
    if result.evaluation is not None:
        mean, deviation = result.evaluation.return_mean, result.evaluation.return_std
        episodes = len(result.evaluation.returns)
        print(f"evaluation: return {mean:.2f} +- {deviation:.2f} over {episodes} episodes, most probable actions")
    returns = result.evaluation.returns if result.evaluation is not None else None
    for sentence in advice(result.metrics, result.agent.config, returns):
        print(f"note: {sentence}")


def summary(result: TrainResult) -> str:
    """Returns, steps, seconds and speed of a training, in a line."""
    metrics = result.metrics
    if not metrics:  # resumed, and there was nothing left to do
        return "training: nothing was left to do"
    steps, seconds = metrics["env_steps"], metrics["seconds"]
    of_policies = [name for name in result.agents if f"{name}/episode_return_mean" in metrics]
    means = [f"{name}: {_return(metrics[f'{name}/episode_return_mean'])}" for name in of_policies]
    returns = ", ".join(means) or _return(metrics["episode_return_mean"])
    return f"training: {returns}, {steps:,} steps in {seconds:.1f} s, {steps / seconds:,.0f} steps/s"


def _return(mean: float) -> str:
    return shown_return(mean) + (" (latest episodes, sampled actions)" if math.isfinite(mean) else "")
