"""A trace of a few iterations, for chrome://tracing or https://ui.perfetto.dev.

While it records, methods of the training's objects are wrapped; they are restored afterwards. So a run that is not
profiled has no cost. torch's profiler does not see NumPy's work, which appears as these wrapped regions.
"""

import logging
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from hybridppo.environments.base import Environments
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.runners.runner import Runner

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
        self._path, self._iterations = path, 0
        self._recording: profile | None = None
        self._regions: list[tuple[Any, str, str]] = [
            (runner, "iterate", "iteration"),
            (runner.sampler, "sample_async", "sampling: begin"),
            (runner.sampler, "sample_wait", "sampling: finish"),
            (environments, "step", "environment step"),
            (runner.agent.distribution, "sample", "choice of actions"),
            (runner.agent, "update", "learning"),
            (runner.placement, "to_learner", "copying: rollout to the learner"),
        ]

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Begin or end the recording."""
        self._iterations += 1
        if self._iterations == SKIPPED:
            for owner, method, region in self._regions:
                setattr(owner, method, record_function(region)(getattr(owner, method)))  # hides its class's method
            self._recording = profile()
            self._recording.start()
        elif self._iterations == SKIPPED + RECORDED:
            self.on_end(run)

    def on_finish(self, run: TrainingRun) -> None:
        """End the recording of a short training."""
        if self._iterations <= SKIPPED:
            logger.warning("no trace: the run ended within the %d iterations that are not recorded", SKIPPED)
        self.on_end(run)

    def on_end(self, run: TrainingRun) -> None:
        """End the recording, write the trace, and restore all methods; a second call does nothing."""
        if self._recording is None:
            return
        for owner, method, _ in self._regions:
            delattr(owner, method)
        recorded, self._recording = self._recording, None
        recorded.stop()
        if self._iterations <= SKIPPED:
            return
        try:
            recorded.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:  # RuntimeError: from torch's writer
            logger.warning("the trace %s cannot be written: %s", self._path, error)
        else:
            logger.info("trace: %s (open it at https://ui.perfetto.dev)", self._path)
