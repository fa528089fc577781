"""Sums of entries of infos, for metrics: `train(..., info_metrics=("profit",))`."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from hybridppo.errors import BadValueError, ConfigurationError, shown
from hybridppo.system.validation import real

Sums = dict[str, list[float]]
"""By name: sum and number of values over steps, and sum and number of last values over ended episodes."""


class InfoSums:
    """Sums entries of infos until `take`.

    Args:
        names: names of the entries.
        num_columns: columns of a rollout.
    """

    def __init__(self, names: Sequence[str], num_columns: int) -> None:
        self.names = names
        self.left_out: set[int] = set()
        """Columns whose infos do not count."""
        self._last: list[dict[str, float]] = [{} for _ in range(num_columns)]
        self._sums: Sums = {}
        self.take()

    def step(self, column: int, info: Any) -> None:
        """Count the info of a step.

        Raises:
            BadValueError: if an entry is not a finite number.
        """
        if column in self.left_out:
            return
        for name in self.names:
            value = info.get(name) if isinstance(info, Mapping) else None
            if value is None:
                continue
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = float("nan")
            if not isfinite(number):
                raise BadValueError(f"its info[{name!r}] must be a finite number (info_metrics), and is {shown(value)}")
            self._sums[name][0] += number
            self._sums[name][1] += 1.0
            self._last[column][name] = number

    def end(self, column: int) -> None:
        """Count the last values of an episode that has ended."""
        for name, number in self._last[column].items():
            self._sums[name][2] += number
            self._sums[name][3] += 1.0
        self._last[column].clear()

    def break_off(self, column: int) -> None:
        """Drop the last values of an episode that a restart has broken off."""
        self._last[column].clear()

    def vector_step(self, infos: Any, ended: Any, are_steps: Any, is_final: bool = False) -> None:
        """Count the infos of a step of a gymnasium vector, with their masks (`_profit` of `profit`).

        Args:
            infos: infos of the step.
            ended: `[N]`, whether an episode ended.
            are_steps: `[N]`, which rows are steps and not resets.
            is_final: whether infos of a last step are in `infos["final_info"]`, and the others belong to the reset.
        """
        if is_final and "final_info" in infos and infos["final_info"] is not None:
            self._of_vector(infos["final_info"], ended)
            self._of_vector(infos, ~ended)
        else:
            self._of_vector(infos, are_steps)
        for column in np.flatnonzero(ended).tolist():
            self.end(column)

    def _of_vector(self, infos: Any, which: Any) -> None:
        for name in self.names:
            if name in infos:
                there = np.asarray(infos.get(f"_{name}", True)) & which
                values = infos[name] if np.ndim(infos[name]) else np.full(len(which), infos[name])
                for column in np.flatnonzero(there).tolist():
                    self.step(column, {name: values[column]})

    def unfinished(self, columns: slice) -> list[dict[str, float]]:
        """The last values of the unfinished episodes of some columns, for `go_on`."""
        return [dict(last) for last in self._last[columns]]

    def go_on(self, columns: slice, unfinished: Sequence[Mapping[str, Any]]) -> None:
        """Continue with the result of `unfinished`."""
        self._last[columns] = [
            {name: real(last[name], name) for name in self.names if name in last} for last in unfinished
        ]

    def take(self) -> Sums:
        """Return the sums so far, and begin at zero again."""
        found, self._sums = self._sums, {name: [0.0] * 4 for name in self.names}
        return found


def metrics_of(parts: Sequence[Sums]) -> dict[str, float]:
    """Means over the sums of several processes, by metric name; entries without values are left out."""
    found: dict[str, float] = {}
    for name in parts[0]:
        steps, number, ends, episodes = (sum(part[name][i] for part in parts if name in part) for i in range(4))
        if number:
            found[f"info/{name}"] = steps / number
        if episodes:
            found[f"episode_info/{name}"] = ends / episodes
    return found


def refused(what: str) -> ConfigurationError:
    """The error for environments without infos."""
    return ConfigurationError(
        f"info_metrics are not available from {what}: train in copies that the library steps (vectorization='sync'), "
        "in this process, in workers or over Ray's samplers, or as tensors, or leave it out"
    )
