"""What a tracker is asked to do.

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
"""Environment steps, and numbers by name."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it begins."""

    name: str
    """Of the run directory's folder; without one, the environment and the seed."""
    config: dict[str, Any]
    """Everything that was asked for, as `config.json` has it."""
    run_dir: Path | None

    def flat_config(self) -> dict[str, str | int | float | bool | None]:
        """The configuration without nesting: `config.learning_rate` and the like, and where the run lies."""
        found: dict[str, Any] = {}
        _flatten(self.config, "", found)
        return {**found, "run_dir": None if self.run_dir is None else str(self.run_dir.resolve())}


class Tracker:
    """Takes what a run has to tell; a subclass overrides `log`, and what else it needs.

    All methods are called in one thread, beside the training. Each may raise whatever it likes: that is warned of, and
    it is asked again later, with the same rows. It never ends a training.
    """

    name: str = ""
    """What it is called in messages, and in the run directory's folder `trackers/`."""
    needs_run_dir: bool = False
    """Whether it cannot do without a run directory."""

    def open(self, run: TrackedRun, before: str | None) -> str | None:
        """Begin, or go on.

        Args:
            run: what there is to know of it.
            before: what `open` returned when the run, which is resumed, was tracked before; else None.

        Returns:
            What is needed to go on with the same run later, where that is something.
        """
        return None

    def log(self, rows: Sequence[Row]) -> None:
        """Take some rows, in the order of their iterations."""
        raise NotImplementedError

    def close(self) -> None:
        """The training has ended; called where `open` has returned."""


def _flatten(value: dict[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for name, item in value.items():
        if isinstance(item, dict) and item:
            _flatten(item, f"{prefix}{name}.", into)
        else:
            is_plain = item is None or isinstance(item, (str, int, float, bool))
            into[f"{prefix}{name}"] = item if is_plain else str(item)
