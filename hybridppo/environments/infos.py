"""Numbers of infos: `train(..., info_metrics=("profit",))` for metrics, `step_infos=("cost",)` for rollouts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from hybridppo.errors import BadValueError, MissingEntryError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.system.validation import real

Sums = dict[str, list[float]]
"""By name: sum and number of values over steps, and sum and number of last values over ended episodes."""

LARGEST = float(np.finfo(np.float32).max)


class EntryNames:
    """The entries of infos that `info_metrics` names; a name with * or ? is a pattern of names."""

    def __init__(self, asked: Sequence[str]) -> None:
        self._patterns = [name for name in asked if "*" in name or "?" in name]
        self._plain = [name for name in asked if name not in self._patterns]

    def among(self, entries: Mapping[str, Any]) -> list[str]:
        """All names without a pattern; and the entries that match a pattern and are numbers, arrays or tensors."""
        return [*self._plain, *filter(partial(self._matches, entries), entries)] if self._patterns else self._plain

    def _matches(self, entries: Mapping[str, Any], name: str) -> bool:
        is_meant = isinstance(name, str) and any(fnmatchcase(name, pattern) for pattern in self._patterns)
        return is_meant and not name.startswith("_") and name not in self._plain and is_number(entries[name])


def is_number(value: Any) -> bool:
    """Whether a value is a number, or an array or a tensor of numbers."""
    if isinstance(value, bool | int | float):
        return True
    return hasattr(value, "dtype") and getattr(value.dtype, "kind", "f") in "biuf"  # torch's types have no kind


class InfoNumbers:
    """Takes numbers from infos: sums for metrics, until `take`, and columns of a rollout.

    Args:
        names: names of the entries to sum, and patterns of names.
        num_columns: columns of a rollout.
    """

    def __init__(self, names: Sequence[str], num_columns: int) -> None:
        self.left_out: set[int] = set()
        """Columns whose infos do not count."""
        self._entries = EntryNames(names)
        self._last: list[dict[str, float]] = [{} for _ in range(num_columns)]
        self._sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        self.written: Mapping[str, Array] = {}
        """The arrays `[T, N]` of the entries that every step must have."""
        self.rows: Array = np.zeros(num_columns, np.int64)
        """The row of each column's next step."""

    def step(self, column: int, info: Any, *, may_lack: bool = False) -> None:
        """Take the numbers of a step.

        Args:
            column: the column of the rollout.
            info: its info.
            may_lack: whether the step may have begun later: missing entries are nan then (`infos_of_steps`).

        Raises:
            BadValueError: if an entry is not a finite number, or an entry of each step is missing.
        """
        if column in self.left_out:
            return
        entries = info if isinstance(info, (dict, Mapping)) else {}  # `dict` first, which is faster
        for name in self._entries.among(entries):
            if (value := entries.get(name)) is not None:
                sums, number = self._sums[name], finite(name, value, "info_metrics")
                sums[0] += number
                sums[1] += 1.0
                self._last[column][name] = number
        for name, rows in self.written.items():
            if name in entries:
                rows[self.rows[column], column] = finite(name, entries[name], "step_infos")
            elif may_lack:
                rows[self.rows[column], column] = np.nan
            else:
                raise lacking(name, entries)

    def end(self, column: int) -> None:
        """Count the last values of an episode that has ended."""
        for name, number in self._last[column].items():
            self._sums[name][2] += number
            self._sums[name][3] += 1.0
        self._last[column].clear()

    def break_off(self, column: int) -> None:
        """Drop the last values of an episode that a restart has broken off."""
        self._last[column].clear()

    def vector_step(self, infos: Any, columns: Array, ended: Any, are_steps: Any, is_final: bool, first: int) -> None:
        """Take the numbers of a step of a gymnasium vector, with their masks (`_profit` of `profit`).

        Args:
            infos: infos of the step.
            columns: `[n]`, the columns that have stepped.
            ended: `[n]`, whether an episode ended.
            are_steps: `[n]`, which are steps and not resets.
            is_final: whether infos of a last step are in `infos["final_info"]`, and the others belong to the reset.
            first: number of the first environment, for messages.

        Raises:
            BadValueError: as `step`.
        """
        if is_final and "final_info" in infos and infos["final_info"] is not None:
            self._of_vector(infos["final_info"], columns, ended, first)
            self._of_vector(infos, columns, ~ended, first)
        else:
            self._of_vector(infos, columns, are_steps, first)
        for column in columns[ended].tolist():
            self.end(column)
        self.rows[columns] += 1

    def _of_vector(self, infos: Mapping[str, Any], columns: Array, which: Any, first: int) -> None:
        given = {
            name: (values if np.ndim(values) else [values] * len(which), infos.get(f"_{name}", which))
            for name, values in infos.items()
            if not name.startswith("_")
        }
        for i in np.flatnonzero(which).tolist():
            try:
                self.step(columns[i], {name: values[i] for name, (values, there) in given.items() if there[i]})
            except BadValueError as error:
                raise BadValueError(f"environment {first + columns[i]}: {error}") from None

    def unfinished(self, columns: slice) -> list[dict[str, float]]:
        """The last values of the unfinished episodes of some columns, for `go_on`."""
        return [dict(last) for last in self._last[columns]]

    def go_on(self, columns: slice, unfinished: Sequence[Mapping[str, Any]]) -> None:
        """Continue with the result of `unfinished`."""
        self._last[columns] = [{name: real(last[name], name) for name in last} for last in unfinished]

    def take(self) -> Sums:
        """Return the sums so far, and begin at zero again."""
        found = dict(self._sums)
        self._sums.clear()
        return found


def summed(parts: Sequence[Sums]) -> Sums:
    """The sums of several environments or processes together."""
    names = dict.fromkeys(chain(*parts))
    return {name: np.sum([sums[name] for sums in parts if name in sums], axis=0).tolist() for name in names}


def metrics_of(parts: Sequence[Sums]) -> dict[str, float]:
    """Means over the sums of several processes, by metric name; entries without values are left out."""
    found: dict[str, float] = {}
    for name, (steps, number, ends, episodes) in summed(parts).items():
        if number:
            found[f"info/{name}"] = steps / number
        if episodes:
            found[f"episode_info/{name}"] = ends / episodes
    return found


def finite(name: str, value: Any, option: str) -> float:
    """An entry of an info as a number.

    Raises:
        BadValueError: if it is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not abs(number) <= LARGEST:
        raise BadValueError(f"its info[{name!r}] must be a finite number ({option}), and is {shown(value)}")
    return number


def lacking(name: str, entries: Iterable[Any]) -> MissingEntryError:
    """The error for a step whose info has no such entry."""
    known = ", ".join(sorted(map(str, entries))) or "no entries"
    return MissingEntryError(
        f"its info has no {name!r}, which every step must have (step_infos): it has {known}; let the environment, or a "
        "wrapper, write it in every step"
    )
