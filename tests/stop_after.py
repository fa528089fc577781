"""A training that is planned to be long, and so does what only long ones do, but ends after a few iterations."""

from typing import Any

import hybridppo


class StopAfter(hybridppo.Callback):
    """Ends the training after this many iterations."""

    def __init__(self, iterations: int = 1) -> None:
        self._iterations = iterations

    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == self._iterations:
            run.stop("seen enough")
