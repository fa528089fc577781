"""Callbacks and trackers of a training, from the arguments that `train` and `resume` share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hybridppo.errors import ConfigurationError, shown
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, Logger, Loggers, OnIteration, require_callbacks, require_functions
from hybridppo.reporting.trackers.base import Tracker
from hybridppo.reporting.trackers.registry import names_of_trackers, tracker_of
from hybridppo.reporting.trackers.tracking import tracked
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
        trackers: Sequence[Tracker],
        *,
        progress: bool,
        on_iteration: Callable[[Metrics], object] | None,
        loggers: Loggers,
        callbacks: Sequence[Callback] | Callback,
        on_interrupt: OnInterrupt,
    ) -> "Reporting":
        """The reporting for the arguments of `train` and `resume`, with trackers by name and as objects.

        Raises:
            ConfigurationError: for a wrong argument, and for trackers whose package is missing.
        """
        require_bools(progress=progress)
        if on_interrupt not in get_args(OnInterrupt):
            raise ConfigurationError(f"on_interrupt must be raise or return, got {shown(on_interrupt)}")
        if on_iteration is not None and not callable(on_iteration):
            raise ConfigurationError(f"on_iteration must be a function of the metrics, got {shown(on_iteration)}")
        functions: list[Callback] = [OnIteration(on_iteration)] if on_iteration is not None else []
        functions += map(Logger, require_functions(loggers))
        named = [tracker_of(name) for name in names_of_trackers(track)]
        own = require_callbacks(callbacks)
        return cls(progress, [*functions, *own, *tracked([*named, *trackers], run_dir)], on_interrupt)


def named_trackers(options: dict[str, Any]) -> tuple[dict[str, Any], list[Tracker]]:
    """The options with the names of trackers as one text, and the trackers that were given as objects.

    If only objects are given, the options have no names, so that a resumed run keeps its own.
    """
    track = options.get("track")
    if track is None or isinstance(track, str):
        return options, []
    several = [track] if isinstance(track, Tracker) else list(track) if isinstance(track, Sequence) else [track]
    names = [each for each in several if isinstance(each, str)]
    trackers = [each for each in several if isinstance(each, Tracker)]
    for each in several:
        if not isinstance(each, (str, Tracker)):
            raise ConfigurationError(f"track must be names, or objects of subclasses of Tracker, got {shown(each)}")
    others = {name: value for name, value in options.items() if name != "track"}
    return ({**others, "track": ",".join(names)} if names else others), trackers
