"""The arrays that a rollout is written to. Workers use this file without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridppo.distributions.base import Distribution
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.box import FrameLayout
from hybridppo.spaces.observations import ObservationEncoder

Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and type of each array, by name."""

_ALIGNMENT = 64  # a cache line, so that processes writing neighbouring arrays do not slow each other down


def size_of(layout: Layout) -> int:
    """Bytes that the arrays of a layout take, one after the other."""
    return sum(_padded(shape, dtype) for shape, dtype in layout.values())


def arrays_in(memory: NDArray[np.uint8], layout: Layout) -> dict[str, Array]:
    """The arrays of a layout, one after the other in `size_of(layout)` bytes."""
    arrays, offset = {}, 0
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, buffer=memory, offset=offset)
        offset += _padded(shape, dtype)
    return arrays


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    return -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT


FinalObservations = list[tuple[int, int, Array]]
"""Step, environment and final observation `[obs]` of truncated episodes, if it is not the next row's observation."""


@dataclass
class RolloutBuffer:
    """The arrays of one rollout, time-major."""

    observations: Array
    """`[T + 1, N, *obs]`, encoded by `ObservationEncoder`; for frame stacks, the newest frames `[T + 1, N, *frame]`."""
    outputs: Array
    """`[T, N, outputs]`, the actor's outputs."""
    actions: Array
    """`[T, N, *action]`, as drawn."""
    rewards: Array
    """`[T, N]`, like the three below."""
    terminated: Array
    truncated: Array
    restarted: Array
    """`[T, N]`: restarts of the environment in the step, see `Environments.restarted`."""
    absent: Array
    """`[T, N]` bool: whether the agent was absent, see `Environments.absent`."""
    waiting: Array
    """`[T, N]` bool: whether the agent waited for its turn, see `Environments.waiting`."""
    noise: Array
    """`[T, N, noise]`, drawn beforehand; fewer rows if a row is kept for many steps (`noise_rows`)."""
    starts: Array | None = None
    """`[T, N]` bool, whether each observation is the first of its episode; for recurrent actors only."""
    states: Array | None = None
    """`[S, N, state]`, the actor's state before each of `S` sequences; for recurrent actors only."""

    history: Array | None = None
    """`[K - 1, N, *frame]`, the older frames of the first stacks; for frame stacks only."""

    @staticmethod
    def layout(
        num_steps: int,
        num_envs: int,
        encode: ObservationEncoder,
        distribution: Distribution,
        memory: MemoryLayout | None = None,
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every array, by name."""
        leading, float32 = (num_steps, num_envs), "float32"
        layout = {
            "observations": ((num_steps + 1, num_envs, *encode.shape), encode.dtype.name),
            "outputs": ((*leading, distribution.output_size), float32),
            "actions": ((*leading, *distribution.action_shape), np.dtype(distribution.action_dtype).name),
            "rewards": (leading, float32),
            "terminated": (leading, "bool"),
            "truncated": (leading, "bool"),
            "restarted": (leading, "int32"),
            "absent": (leading, "bool"),
            "waiting": (leading, "bool"),
            "noise": ((distribution.noise_rows(num_steps), num_envs, distribution.noise_size), float32),
        }
        if encode.frames is not None:
            frame, dtype = encode.frames.frame_shape, encode.dtype.name
            layout["observations"] = ((num_steps + 1, num_envs, *frame), dtype)
            layout["history"] = ((encode.frames.num_frames - 1, num_envs, *frame), dtype)
        if memory is not None:
            layout["starts"] = (leading, "bool")
            layout["states"] = ((memory.num_sequences(num_steps), num_envs, memory.state_size), float32)
        return layout

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays but those that are None, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    def of(self, envs: slice) -> RolloutBuffer:
        """The columns of some environments; a view."""
        return RolloutBuffer(**{name: array[:, envs] for name, array in self.arrays.items()})

    def first(self, num_steps: int, memory: MemoryLayout | None) -> RolloutBuffer:
        """The first steps; a view."""
        return RolloutBuffer(
            **{name: array[rows] for name, (array, rows) in self.rows(num_steps, slice(None), memory).items()}
        )

    def rows(self, filled: int, noise: slice, memory: MemoryLayout | None) -> dict[str, tuple[Array, slice]]:
        """The arrays with the rows that matter if `filled` are filled: these, and some of the noise."""
        rows = {"observations": slice(filled + 1), "noise": noise, "history": slice(None)}
        if memory is not None:
            rows["states"] = slice(memory.num_sequences(filled))
        return {name: (array, rows.get(name, slice(filled))) for name, array in self.arrays.items()}

    def write_first(self, row: int, rows: Array, frames: FrameLayout | None) -> None:
        """Write the first rows `[N, *obs]` of a rollout: unchanged, or frame by frame."""
        self.observations[row] = rows if frames is None else frames.newest(rows)
        if frames is not None and row == 0:
            assert self.history is not None  # the rollout was laid out for frames
            self.history[:] = frames.older(rows)

    def grow_into(self, longer: RolloutBuffer) -> None:
        """Take the arrays of a buffer with more steps, after its first rows have become those of this one."""
        for name, array in longer.arrays.items():
            rows = getattr(self, name)
            array[: len(rows)] = rows
            setattr(self, name, array)
