"""The interface of trackers.

class Printer(Tracker):
    name = "printer"

    def log(self, rows):
        for env_steps, values in rows:
            print(env_steps, values)

hybridppo.train("CartPole-v1", total_steps=100_000, track=[Printer(), "tensorboard"])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = tuple[int, dict[str, float]]
"""Environment steps, and values by name."""


@dataclass(frozen=True)
class TrackedRun:
    """The data of a run for its trackers."""

    name: str
    """The name of the run directory; without a run directory, the environment and the seed."""
    config: dict[str, Any]
    """All settings, as in `config.json`."""
    run_dir: Path | None

    def flat_config(self) -> dict[str, str | int | float | bool | None]:
        """The settings without nesting (`config.learning_rate`), and the path of the run directory."""
        found: dict[str, Any] = {}
        _flatten(self.config, "", found)
        return {**found, "run_dir": None if self.run_dir is None else str(self.run_dir.resolve())}


class Tracker:
    """Receives the metrics of a run. A subclass overrides `log`, and other methods if it needs them.

    All methods are called in one thread, beside the training. If a method raises an error, the error is logged, and the
    method is called again later with the same rows. A tracker never ends a training.
    """

    name: str = ""
    """Its name in messages, and in the folder `trackers/` of the run directory."""
    needs_run_dir: bool = False
    """Whether it needs a run directory."""

    def open(self, run: TrackedRun, before: str | None) -> str | None:
        """Begin to track a run, or continue.

        Args:
            run: the run.
            before: in a resumed run, the value that `open` returned earlier; else None.

        Returns:
            A value that lets a later `open` continue the same run, such as an id; or None.
        """
        return None

    def log(self, rows: Sequence[Row]) -> None:
        """Receive rows, in the order of their iterations."""
        raise NotImplementedError

    def close(self) -> None:
        """The training has ended; called if `open` has returned."""


def _flatten(value: dict[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for name, item in value.items():
        if isinstance(item, dict) and item:
            _flatten(item, f"{prefix}{name}.", into)
        else:
            is_plain = item is None or isinstance(item, (str, int, float, bool))
            into[f"{prefix}{name}"] = item if is_plain else str(item)
