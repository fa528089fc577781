"""A trace of a few iterations, for chrome://tracing or https://ui.perfetto.dev.

While it records, methods of the training's objects are wrapped; they are restored afterwards. So a run that is not
profiled has no cost. torch's profiler does not see NumPy's work, which appears as these wrapped regions.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from hybridppo.environments.base import Environments
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.runners.runner import Runner
from hybridppo.system.devices import num_cuda_devices

logger = logging.getLogger(__name__)

SKIPPED = 2
"""Iterations before the recorded ones, since the first ones load and allocate."""
RECORDED = 5
"""Iterations in a trace."""


class Profiler(Callback):
    """Records iterations of a runner, from the third on.

    Args:
        runner: a runner that is not running yet.
        environments: the environments of its sampler, if it steps them in this process; workers are not shown.
        path: file of the trace, JSON.
    """

    is_of_library = True

    def __init__(self, runner: Runner, environments: Environments, path: Path) -> None:
        self._runner, self._environments, self._path = runner, environments, path
        self._iterations = 0
        self._profile: profile | None = None
        self._wrapped: list[tuple[Any, str]] = []

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Begin or end the recording."""
        self._iterations += 1
        if self._iterations == SKIPPED:
            self._begin()
        elif self._iterations == SKIPPED + RECORDED:
            self._write()

    def on_finish(self, run: TrainingRun) -> None:
        """End the recording of a short training."""
        if self._iterations <= SKIPPED:
            logger.warning("no trace: the run ended within the %d iterations that are not recorded", SKIPPED)
        self._write()

    def on_end(self, run: TrainingRun) -> None:
        """End the recording after an error."""
        self._write()

    def _begin(self) -> None:
        runner = self._runner
        regions = [
            (runner, "iterate", "iteration"),
            (runner.sampler, "sample_async", "sampling: begin"),
            (runner.sampler, "sample_wait", "sampling: finish"),
            (self._environments, "step", "environment step"),
            (runner.agent.distribution, "sample", "choice of actions"),
            (runner.agent, "update", "learning"),
            (runner.placement, "to_learner", "copying: rollout to the learner"),
        ]
        for owner, method, region in regions:
            setattr(owner, method, _recorded(region, getattr(owner, method)))  # hides the method of its class
            self._wrapped.append((owner, method))
        activities = [ProfilerActivity.CPU]
        if num_cuda_devices():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()

    def _write(self) -> None:
        """End the recording, write the trace, and restore all methods; a second call does nothing."""
        if self._profile is None:
            return
        for owner, method in self._wrapped:
            delattr(owner, method)
        recorded, self._profile = self._profile, None
        recorded.stop()
        if self._iterations <= SKIPPED:
            return
        try:
            recorded.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:  # RuntimeError: from torch's writer
            logger.warning("the trace %s cannot be written: %s", self._path, error)
        else:
            logger.info("trace: %s (open it at https://ui.perfetto.dev)", self._path)


def _recorded(region: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*arguments: Any) -> Any:
        with record_function(region):
            return function(*arguments)

    return recorded
