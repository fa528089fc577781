"""Callbacks and loggers of a training, from the arguments that `train` and `resume` share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hybridppo.errors import ConfigurationError, shown
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import (
    Callback,
    FunctionLogger,
    Loggers,
    OnIteration,
    require_callbacks,
    require_functions,
)
from hybridppo.reporting.loggers import Logger, make_loggers
from hybridppo.system.validation import require_bools

OnInterrupt = Literal["raise", "return"]


@dataclass(frozen=True)
class Reporting:
    """Callbacks of a training, and how it reports its end."""

    progress: bool = True
    """Whether to show a progress bar."""
    callbacks: Sequence[Callback] = ()
    on_interrupt: OnInterrupt = "return"

    @classmethod
    def of(
        cls,
        run_dir: str | Path | None,
        track: str,
        given: Sequence[Logger],
        *,
        progress: bool,
        on_iteration: Callable[[Metrics], object] | None,
        loggers: Loggers,
        callbacks: Sequence[Callback] | Callback,
        on_interrupt: OnInterrupt,
    ) -> "Reporting":
        """The reporting for the arguments of `train` and `resume`, with loggers by name and as objects.

        Raises:
            ConfigurationError: for a wrong argument, and for loggers whose package is missing.
        """
        require_bools(progress=progress)
        if on_interrupt not in get_args(OnInterrupt):
            raise ConfigurationError(f"on_interrupt must be raise or return, got {shown(on_interrupt)}")
        if on_iteration is not None and not callable(on_iteration):
            raise ConfigurationError(f"on_iteration must be a function of the metrics, got {shown(on_iteration)}")
        functions: list[Callback] = [OnIteration(on_iteration)] if on_iteration is not None else []
        functions += map(FunctionLogger, require_functions(loggers))
        own = require_callbacks(callbacks)
        # Loggers never fail, and come first: they get the metrics with which another callback fails.
        return cls(progress, [*make_loggers(track, given, run_dir), *functions, *own], on_interrupt)


def named_loggers(track: object) -> tuple[str | None, list[Logger]]:
    """The names of loggers in `track` as one text, and the loggers in it that are objects.

    The text is None if only objects are given, so that a resumed run keeps its own.
    """
    if track is None or isinstance(track, str):
        return track, []
    several = list(track) if isinstance(track, Sequence) else [track]
    for each in several:
        if not isinstance(each, (str, Logger)):
            raise ConfigurationError(f"track must be names, or objects of subclasses of Logger, got {shown(each)}")
    names = [each for each in several if isinstance(each, str)]
    return (",".join(names) if names else None), [each for each in several if isinstance(each, Logger)]
