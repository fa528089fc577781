"""A rollout that was begun and not finished."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout

Array = NDArray[Any]


@dataclass
class RolloutUnderWay:
    """A rollout that was started and not finished."""

    buffer: RolloutBuffer
    version: int
    """Of the parameters that act."""
    filled: int = 0
    """How many rows it has, when nobody works on it."""
    finals: FinalObservations = field(default_factory=list)
    actor: SamplingActor | None = None
    """What it was last let go on with."""
    is_running: bool = False
    """Whether somebody works on it."""


def rows_that_matter(
    buffer: RolloutBuffer, filled: int, memory: MemoryLayout | None = None
) -> dict[str, tuple[Array, slice]]:
    """The arrays of a buffer with the rows that matter where `filled` are: those, and the noise of the others."""
    rows = {"observations": slice(filled + 1), "noise": slice(filled, None)}
    if memory is not None:
        rows["states"] = slice(memory.num_sequences(filled))
    return {name: (array, rows.get(name, slice(filled))) for name, array in buffer.arrays.items()}


def require_like(name: str, tensor: Tensor, array: Array) -> None:
    """Refuse a tensor whose shape or type are not those of the array, with a ValueError."""
    if tuple(tensor.shape) != array.shape or tensor.numpy().dtype != array.dtype:
        message = f"{name} is of shape {list(tensor.shape)} and type {tensor.dtype}"
        raise ValueError(f"{message}, not {list(array.shape)} and {array.dtype}")
