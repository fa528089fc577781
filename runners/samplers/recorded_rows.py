"""Rows of a rollout on a device recorded as CUDA graphs, some at once: one launch instead of a dozen for each row.

A recording is good where the same rows are filled by parameters at the same addresses, whatever these hold by then.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hybridppo.errors import DeviceError
from hybridppo.system.recording import Record, tried

ROWS = 16
"""Rows of a recording; a stop is noticed after at most so many."""
MOST_PLACES = 2
"""In which parameters may lie; those that lie elsewhere at every turn would be recorded at every turn."""

Place = tuple[int, ...]
"""Addresses of parameters."""


class RecordedRows:
    """Fills rows by replays, where they are whole recordings.

    Args:
        queue_row: puts a row into the device's queue, on tensors at fixed addresses.
        changed: what rows change and later ones depend on, but for what they write into the rollout.
        rewards: `[T, N]`, of the rollout.
        record: how; a recording may run the rows some times first, which is undone.
    """

    def __init__(
        self, queue_row: Callable[[int], None], changed: Sequence[Tensor], rewards: Tensor, record: Record
    ) -> None:
        self._queue_row, self._changed, self._rewards, self._record = queue_row, changed, rewards, record
        self._replays: dict[Place, dict[int, Callable[[], object]]] = {}

    def fill(self, t: int, place: Place) -> int:
        """Fill row `t`, or the recording that begins with it; the row to go on with.

        Raises:
            DeviceError: where a replay does nothing.
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
        """A recording of rows, tried, with nothing changed by it but the rows themselves."""
        rewards = self._rewards[first:end]

        def rows() -> None:
            for t in range(first, end):
                self._queue_row(t)

        def replay(recording: Callable[[], object]) -> None:
            rewards.fill_(torch.nan)
            recording()

        def check() -> None:
            if bool(rewards.isnan().all()):  # waits for the device, once a recording
                raise DeviceError(
                    f"rows {first} to {end - 1} of a rollout were recorded as a CUDA graph, but its replay filled "
                    "none: train with cuda_graphs=False, and report this with the versions of torch and the driver"
                )

        return tried(lambda: self._record(rows), replay, check, self._changed)
