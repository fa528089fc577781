"""Rows of a rollout recorded as CUDA graphs: one launch for several rows, instead of a dozen for each.

A recording is valid for the same rows and for parameters at the same addresses; their values may change.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hybridppo.errors import DeviceError
from hybridppo.system.recording import Record, tried

ROWS = 16
"""The rows of a recording, which are filled before a stop takes effect."""
MOST_PLACES = 2
"""The number of sets of addresses to record for; others would be recorded again in every rollout."""

Place = tuple[int, ...]
"""The addresses of parameters."""


class RecordedRows:
    """Fills rows by replays, if they are whole recordings.

    Args:
        queue_row: launches a row, on tensors at fixed addresses.
        changed: the tensors that rows change and later rows read, except for the rollout.
        rewards: `[T, N]`, of the rollout.
        record: records; it may run the rows a few times first, which is undone.
    """

    def __init__(
        self, queue_row: Callable[[int], None], changed: Sequence[Tensor], rewards: Tensor, record: Record
    ) -> None:
        self._queue_row, self._changed, self._rewards, self._record = queue_row, changed, rewards, record
        self._replays: dict[Place, dict[int, Callable[[], object]]] = {}

    def fill(self, t: int, place: Place) -> int:
        """Fill row `t`, or the recording that begins with it; return the next row.

        Raises:
            DeviceError: if a replay does nothing.
        """
        if t % ROWS or (place not in self._replays and len(self._replays) == MOST_PLACES):
            self._queue_row(t)
            return t + 1
        end = min(t + ROWS, len(self._rewards))
        replays = self._replays.setdefault(place, {})
        if t not in replays:
            replays[t] = self._recorded(t, end)
        replays[t]()
        return end

    def _recorded(self, first: int, end: int) -> Callable[[], object]:
        """A tested recording of rows, which has changed nothing but these rows."""
        rewards = self._rewards[first:end]

        def rows() -> None:
            for t in range(first, end):
                self._queue_row(t)

        def replay(recording: Callable[[], object]) -> None:
            rewards.fill_(torch.nan)
            recording()

        def check() -> None:
            if bool(rewards.isnan().all()):  # waits for the device once for each recording
                raise DeviceError(
                    f"rows {first} to {end - 1} of a rollout were recorded as a CUDA graph, but its replay filled "
                    "none: train with fast_updates=False and cuda_graphs=False, and report this with the versions of "
                    "torch and the driver"
                )

        return tried(lambda: self._record(rows), replay, check, self._changed)
