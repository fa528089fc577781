"""A rollout: the arrays that a sampler writes, the steps of agents that take turns, and what an agent learns from.

Workers use this file without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hybridppo._lazy import showing_fields
from hybridppo.distributions.base import Distribution
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.frames import FrameLayout
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import slices

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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


Kind = TypeVar("Kind", bound="Columns")


class Columns:
    """Tensors or arrays by name: the public attributes of an object that have a shape."""

    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        return {name: value for name, value in vars(self).items() if hasattr(value, "shape") and name[0] != "_"}

    def with_columns(self: Kind, **columns: Any) -> Kind:
        """The same with other or further columns."""
        kept = {name: value for name, value in vars(self).items() if name[0] != "_"}
        return type(self)(**{**kept, **columns})

    def map(self: Kind, function: Callable[[Any], Any]) -> Kind:
        """The same with `function` applied to each column."""
        return self.with_columns(**{name: function(column) for name, column in self.columns().items()})

    @property
    def num_bytes(self) -> int:
        """The size of all columns together."""
        return sum(int(column.nbytes) for column in self.columns().values())


@dataclass(frozen=True)
class MemoryLayout:
    """The size of an actor's state, and how often a rollout stores it."""

    state_size: int
    """Length of the state of one environment."""
    sequence_length: int
    """Steps of a training sequence; the state before each sequence is stored."""

    def num_sequences(self, num_steps: int) -> int:
        """Number of sequences in a rollout of `num_steps`; the last may be shorter."""
        return -(-num_steps // self.sequence_length)


FinalObservations = list[tuple[int, int, Array]]
"""Step, environment and final observation `[obs]` of truncated episodes, if it is not the next row's observation."""


@showing_fields
@dataclass(init=False)
class Rollout(Columns):
    """`T` steps of `N` environments, time-major: tensors that an agent learns from, on one device.

    A sampler writes into another such rollout: arrays on the host, or tensors on a device. It has the columns under "of
    a sampler" below, and not yet `log_probs` and the lists of rows.

    Not every row is a step: environments that reset on the step after an episode's end (gymnasium's `NEXT_STEP`) ignore
    the action of that row. `valid_rows` lists the steps, and only they may count in a loss or a statistic.

    The next rollout may be written into the same memory: keep a `copy`.
    """

    observations: Any = None
    """`[T + 1, N, *row]`, encoded by `ObservationEncoder`: the observation of each action, and the one after the last;
    for frame stacks, the newest frames `[T + 1, N, *frame]`."""
    actions: Any = None
    """`[T, N, *action]`, as drawn, before any clipping to the bounds of the space."""
    log_probs: Any = None
    """`[T, N]`, for the parameters that acted."""
    rewards: Any = None
    """`[T, N]`."""
    terminated: Any = None
    """`[T, N]` bool: the episode ended, so the return ends here."""
    truncated: Any = None
    """`[T, N]` bool: the episode was cut off, so the rest of the return is bootstrapped."""
    valid_rows: Any = None
    """`[M]` int64, ascending flat indices `t * N + n` of the rows that are steps."""
    final_rows: Any = None
    """`[K]` int64, flat indices of truncated steps whose final observation is not row `t + 1`; of terminated ones,
    too, if the agent's class sets `keeps_final_observations`."""
    final_observations: Any = None
    """`[K, *row]`, the final observations of these steps."""
    version: Any = 0
    """Version of the parameters that acted; the oldest, if `versions` differ."""
    place: Any = None
    """Its columns among those of all parts (`RolloutParts`)."""
    infos: Any = None
    """By name, the entries of infos that `train(..., step_infos=)` names, `[T, N]` float32; zeros in rows that are not
    steps."""
    starts: Any = None
    """`[T, N]` bool, whether each observation is the first of its episode; for recurrent actors only."""
    states: Any = None
    """`[S, N, state]`, the actor's state before each of `S` sequences; for recurrent actors only."""
    history: Any = None
    """`[K - 1, N, *frame]`, the older frames of the first stacks; for frame stacks only."""
    versions: Any = None
    """`[T, N]` int64, version that acted in each row; with `max_lag` above 1 only."""
    returns_so_far: Any = None
    """`[T, N]`, discounted return of the episode up to each step; with `max_lag` above 1, where columns change
    environments, and for agents that take turns. Else it follows from the rewards of the rows."""
    turns: Any = None
    """`[1, N]` int64, how often each agent has acted, also in steps that are open; for recurrent actors that take turns
    only. `starts` then also has the open step."""

    # Set by an agent, for what it prepares

    raw: Any = None
    """The rollout as it was sampled, in the environment's units. Beside it, observations are as the networks take them,
    normalised and stacked, and rewards are the agent's own and normalised; log-probabilities may be those before the
    update."""
    ratios: Any = None
    """`[T, N]`, probabilities of the actions before the update divided by those when they were taken, if V-trace
    corrects advantages by them."""

    # Of a sampler

    outputs: Any = None
    """`[T, N, outputs]`, the actor's outputs."""
    noise: Any = None
    """`[T, N, noise]`, drawn beforehand; fewer rows if a row is kept for many steps (`noise_rows`)."""
    restarted: Any = None
    """`[T, N]`: restarts of the environment in the step, see `Environments.restarted`."""
    absent: Any = None
    """`[T, N]` bool: whether the agent was absent, see `Environments.absent`."""
    waiting: Any = None
    """`[T, N]` bool: whether the agent waited for its turn, see `Environments.waiting`."""
    finals: Any = None
    """On a device, `[T, N, *row]`, the observation after each step if it was truncated; other rows do not matter."""

    def __init__(self, *columns: Any, infos: Any = None, **named: Any) -> None:
        """Columns in the order above, or by name; other names are those of `infos`."""
        further = [] if named.keys() <= _FIELDS else [name for name in named if name not in _FIELDS]
        self.place, self.infos = slice(None), {**(infos or {}), **{name: named.pop(name) for name in further}}
        vars(self).update(named)
        if columns:
            vars(self).update(zip(_FIELDS, columns, strict=False))

    def columns(self) -> dict[str, Any]:
        """The columns by name, those of infos included."""
        return {**super().columns(), **self.infos}

    @staticmethod
    def layout(
        num_steps: int,
        num_envs: int,
        encode: ObservationEncoder,
        distribution: Distribution,
        memory: MemoryLayout | None = None,
        infos: Sequence[str] = (),
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every array that a sampler on the host writes, by name; `infos` are names of `infos`."""
        leading, float32 = (num_steps, num_envs), "float32"
        frame = encode.shape if encode.frames is None else encode.frames.frame_shape
        layout = {
            "observations": ((num_steps + 1, num_envs, *frame), encode.dtype.name),
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
            layout["history"] = ((encode.frames.num_frames - 1, num_envs, *frame), encode.dtype.name)
        if memory is not None:
            layout["starts"] = (leading, "bool")
            layout["states"] = ((memory.num_sequences(num_steps), num_envs, memory.state_size), float32)
        return layout | dict.fromkeys(infos, (leading, float32))

    @classmethod
    def in_memory(cls, layout: Layout, pin_for: torch.device | None) -> Rollout:
        """The arrays of a rollout in one block of memory, all zeros.

        Args:
            layout: as `layout` returns it.
            pin_for: the device that copies from it, if page-locked memory makes its copies faster; else None.
        """
        if pin_for is None:
            return cls(**arrays_in(np.zeros(size_of(layout), np.uint8), layout))
        from hybridppo.system.devices import accelerator_of, page_locked_bytes

        return cls(**arrays_in(page_locked_bytes(size_of(layout), accelerator_of(pin_for)), layout))

    @classmethod
    def on_device(cls, layout: Layout, device: torch.device) -> Rollout:
        """Tensors of zeros on a device."""
        import torch

        kinds = {name: (shape, getattr(torch, dtype)) for name, (shape, dtype) in layout.items()}
        return cls(**{name: torch.zeros(shape, dtype=kind, device=device) for name, (shape, kind) in kinds.items()})

    def of(self, envs: slice) -> Rollout:
        """The columns of some environments; a view."""
        return self.map(lambda column: column[:, envs])

    def rows(
        self, filled: int, memory: MemoryLayout | None, noise: slice = slice(None), first: int = 0
    ) -> dict[str, Any]:
        """Views of the rows that matter if rows `first` to `filled` are filled: these, and some of the noise."""
        if not filled:  # the first observations are written when it is continued
            return {name: column[noise] for name, column in self.columns().items() if name == "noise"}
        rows = {"observations": slice(first, filled + 1), "noise": noise, "history": slice(0 if first else None)}
        if memory is not None:
            rows["states"] = slice(memory.num_sequences(first), memory.num_sequences(filled))
        return {name: column[rows.get(name, slice(first, filled))] for name, column in self.columns().items()}

    def write_first(self, row: int, rows: Array, frames: FrameLayout | None) -> None:
        """Write the first rows `[N, *obs]` of a rollout: unchanged, or frame by frame."""
        self.observations[row] = rows if frames is None else frames.newest(rows)
        if frames is not None and row == 0:
            self.history[:] = frames.older(rows)

    def grow_into(self, longer: Rollout) -> None:
        """Take the arrays of a rollout with more steps, after its first rows have become those of this one."""
        for name, rows in self.columns().items():
            longer.columns()[name][: len(rows)] = rows
        vars(self).update(vars(longer))

    # To learn from

    @property
    def parts(self) -> tuple[Rollout, ...]:
        """The parts from which an update makes a batch each: the rollout itself. `RolloutParts` has several."""
        return (self,)

    def map_parts(self, function: Callable[[Rollout], Rollout]) -> Rollout:
        """The rollout with `function` applied to each part."""
        return function(self)

    def whole(self) -> Rollout:
        """The rollout with all columns."""
        return self

    def copy(self) -> Rollout:
        """A copy to keep: the next rollout may be written into the same memory."""
        return self.map(lambda column: column.clone())

    @property
    def are_steps(self) -> Tensor:
        """`[T, N]` bool: which rows are steps."""
        found: Tensor = self.truncated.new_zeros(self.truncated.shape)
        found.view(-1).index_fill_(0, self.valid_rows, True)
        return found

    def steps(self, column: Tensor) -> Tensor:
        """The rows of a column that are steps, `[T, N, ...] -> [M, ...]`."""
        rows = column.flatten(0, 1)
        return rows if len(rows) == len(self.valid_rows) else rows.index_select(0, self.valid_rows)

    @property
    def next_observations(self) -> Tensor:
        """`[T, N, *row]`: what each step led to, also if the environment was then reset.

        For episodes that terminated, only if the agent's class sets `keeps_final_observations`; with frame stacks, not
        of `raw`, which has single frames.
        """
        following: Tensor = self.observations[1:].clone()
        following.flatten(0, 1)[self.final_rows] = self.final_observations
        return following

    def without_ends(self) -> Rollout:
        """The rollout as if its steps were those of one endless episode, for returns that go on after a reset."""
        finals = {"final_rows": self.final_rows[:0], "final_observations": self.final_observations[:0]}
        never = self.terminated.new_zeros(self.terminated.shape)
        return self.with_columns(terminated=never, truncated=never, **finals)

    def of_agents(self, own: Tensor, num_agents: int) -> Rollout:
        """A copy of the columns of some of the `A` agents of each environment; an environment's columns are neighbours.

        Args:
            own: `[a]` int64, indices of the agents.
            num_agents: `A`.
        """
        import torch

        num_columns = self.rewards.shape[1]
        first = torch.arange(0, num_columns, num_agents, device=own.device)
        columns = (first[:, None] + own).flatten()
        place = torch.full((num_columns,), -1, dtype=torch.int64, device=own.device)
        place[columns] = torch.arange(len(columns), device=own.device)

        def moved(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Positions in `rows` of flat indices within these columns, and their flat indices among these columns."""
            places = place[rows % num_columns]
            kept = places >= 0
            return kept, (rows // num_columns * len(columns) + places)[kept]

        _, valid_rows = moved(self.valid_rows)
        kept, final_rows = moved(self.final_rows)
        changes: dict[str, Any] = {
            name: tensor.index_select(1, columns) for name, tensor in self.columns().items() if name not in _OF_ROWS
        }
        finals = self.final_observations[kept]
        changes |= {"valid_rows": valid_rows, "final_rows": final_rows, "final_observations": finals}
        return self.with_columns(**changes)


_FIELDS = Rollout.__dataclass_fields__.keys()


def steps_by_turns(
    buffer: Rollout, valid: Array, finals: FinalObservations, memory: MemoryLayout | None = None
) -> tuple[Rollout, Array, FinalObservations, Array, Array]:
    """The steps of agents that take turns.

    A step that is unfinished at the end of the rollout is not learned from: the step before it is bootstrapped from its
    observation, and counts as truncated if other agents have more steps.

    Args:
        buffer: `T` rows, one turn each.
        valid: `[T, N]`, whether an agent is present, be it acting or waiting.
        finals: final observations of truncated episodes.
        memory: layout of the state of a recurrent actor; its sequences have all turns, also those that do not count
            because a restart broke off their episode.

    Returns:
        A buffer `[T', N]`, with as many rows as the agent with most steps has; which of its rows are steps; the final
        observations; the last of the `T` rows of each step, `[T', N]`; and the number of turns, `[N]`.
    """
    counts, columns, infos = valid, buffer.columns(), buffer.infos
    if memory is not None:
        valid = ~buffer.absent
    ends = (buffer.terminated | buffer.truncated) & valid
    turns = [
        _turns_of(*(array[:, column] for array in (buffer.rewards, valid, buffer.waiting, ends)))
        for column in range(valid.shape[1])
    ]
    number = np.array([own.number for own in turns])
    num_steps = int(number.max())
    steps = {
        name: np.zeros((num_steps + (name == "observations"), *array.shape[1:]), array.dtype)
        for name, array in columns.items()
        if name not in ("noise", "states")
    }
    if memory is not None:
        steps["states"] = buffer.states[: memory.num_sequences(num_steps)]
    last_rows = np.zeros((num_steps, len(turns)), np.int64)
    is_step = np.arange(num_steps)[:, None] < number
    places: dict[tuple[int, int], tuple[int, int]] = {}
    found: FinalObservations = []
    for column, (first, last, rewards, count) in enumerate(turns):
        own, acted, ended = (slice(count), column), first[:count], last[:count]
        for name in ("outputs", "actions"):
            steps[name][own] = columns[name][acted, column]
        for name in infos:
            steps[name][own] = columns[name][ended, column]
        steps["rewards"][own], last_rows[own] = rewards[:count], ended
        is_step[own] = counts[acted, column]
        for name in ("terminated", "truncated"):
            steps[name][own] = columns[name][ended, column] & ends[ended, column]
        seen = first[: num_steps + 1]
        steps["observations"][: len(seen), column] = buffer.observations[seen, column]
        if buffer.starts is not None:
            steps["starts"][: len(seen), column] = buffer.starts[first[:num_steps], column]
        places |= {(row, column): (step, column) for step, row in enumerate(ended.tolist())}
        is_open = len(first) > count
        if is_open and 0 < count < num_steps and not ends[ended[-1], column]:
            steps["truncated"][count - 1, column] = True
            found.append((count - 1, column, buffer.observations[first[count], column].copy()))
    found += [(*places[row, column], final) for row, column, final in finals if (row, column) in places]
    found.sort(key=lambda final: final[:2])
    return buffer.with_columns(**steps), is_step, found, last_rows, np.array([len(own.first) for own in turns])


class _Turns(NamedTuple):
    """The turns of an agent in a rollout."""

    first: Array
    """The row of each turn, in which the agent acts."""
    last: Array
    """The last row of each turn: the row before the next turn, or the end of the episode."""
    rewards: Array
    """The sum of rewards over the rows of each turn."""
    number: int
    """The number of turns that have ended: all, or all but the last."""


def _turns_of(rewards: Array, valid: Array, waits: Array, ends: Array) -> _Turns:
    """The turns of an agent, from its columns of a rollout, `[T]`; `ends` are those of its episodes."""
    first = np.flatnonzero(valid & ~waits)
    episode = np.cumsum(ends) - ends  # how many have ended before each row
    # The rows of a turn: from its own row to the row before the next turn, in the same episode.
    turn = np.searchsorted(first, np.arange(len(valid)), side="right") - 1
    belongs = valid & (turn >= 0)
    belongs[belongs] = episode[belongs] == episode[first[turn[belongs]]]
    rows, owners = np.flatnonzero(belongs), turn[belongs]
    last = first.copy()
    np.maximum.at(last, owners, rows)
    is_open = len(first) > 0 and not ends[last[-1]]
    return _Turns(first, last, np.bincount(owners, rewards[rows], len(first)), len(first) - int(is_open))


_OF_ROWS = ("valid_rows", "final_rows", "final_observations")


class RolloutParts:
    """Rollouts with equally many steps, by parameters of one version; each part is handled independently."""

    def __init__(self, parts: Sequence[Rollout]) -> None:
        places = slices(part.rewards.shape[1] for part in parts)
        self.parts = [part.with_columns(place=place) for part, place in zip(parts, places, strict=True)]

    @property
    def version(self) -> Any:
        """Version of the parameters that acted; the oldest, if versions differ."""
        return min(part.version for part in self.parts)

    @property
    def observations(self) -> Any:
        """Some of the observations, whose device is that of all tensors."""
        return self.parts[0].observations

    @property
    def num_bytes(self) -> int:
        """The size of all tensors together."""
        return sum(part.num_bytes for part in self.parts)

    def map(self, function: Callable[[Tensor], Tensor]) -> RolloutParts:
        """The same with `function` applied to each tensor."""
        return self.map_parts(lambda part: part.map(function))

    def map_parts(self, function: Callable[[Rollout], Rollout]) -> RolloutParts:
        """The parts with `function` applied to each."""
        return RolloutParts([function(part) for part in self.parts])

    def copy(self) -> RolloutParts:
        """A copy to keep, as `Rollout.copy`."""
        return self.map_parts(Rollout.copy)

    def whole(self) -> Rollout:
        """The rollout with all columns."""
        return joined(self.parts)

    def columns(self) -> dict[str, Tensor]:
        """The columns of the whole, by name."""
        return self.whole().columns()


def joined(parts: Sequence[Rollout]) -> Rollout:
    """One rollout with the columns of several, in their order; copied.

    If agents take turns, parts may differ in length: the others then go on like the columns of `steps_by_turns`.
    """
    import torch

    if len(parts) == 1:
        return parts[0]
    parts = _of_one_length(parts)
    tensors: dict[str, Any] = {
        name: torch.cat([part.columns()[name] for part in parts], 1)
        for name in parts[0].columns()
        if name not in _OF_ROWS
    }
    width, first = tensors["rewards"].shape[1], 0
    valid_rows: list[Tensor] = []
    final_rows: list[Tensor] = []
    for part in parts:
        size = part.rewards.shape[1]
        for rows, into in ((part.valid_rows, valid_rows), (part.final_rows, final_rows)):
            into.append(rows.div(size, rounding_mode="floor") * width + first + rows % size)
        first += size
    finals, order = torch.cat(final_rows).sort()
    return Rollout(
        **tensors,
        valid_rows=torch.cat(valid_rows).sort().values,
        final_rows=finals,
        final_observations=torch.cat([part.final_observations for part in parts]).index_select(0, order),
        version=parts[0].version,
    )


def _of_one_length(parts: Sequence[Rollout]) -> Sequence[Rollout]:
    """The parts with rows that are not steps at the ends of the shorter ones, whose open episodes are truncated."""
    if len({len(part.rewards) for part in parts}) == 1:
        return parts
    lengths = {
        name: max(len(part.columns()[name]) for part in parts) for name in parts[0].columns() if name not in _OF_ROWS
    }
    return [part if len(part.rewards) == lengths["rewards"] else _lengthened(part, lengths) for part in parts]


def _lengthened(part: Rollout, lengths: Mapping[str, int]) -> Rollout:
    import torch

    tensors: dict[str, Any] = {}
    for name, length in lengths.items():
        tensor = part.columns()[name]
        tensors[name] = torch.cat((tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])))
    last = len(part.rewards) - 1
    ends = (part.terminated | part.truncated).flatten()
    is_last = part.valid_rows >= last * part.rewards.shape[1]
    open_rows = part.valid_rows[is_last & ~ends[part.valid_rows]]
    columns = open_rows % part.rewards.shape[1]
    tensors["truncated"][last, columns] = True
    finals = torch.cat((part.final_observations, part.observations[last + 1, columns]))
    tensors |= {"final_rows": torch.cat((part.final_rows, open_rows)), "final_observations": finals}
    return part.with_columns(**tensors)


def in_parts(rollout: Rollout, number: int) -> Any:
    """A rollout cut into `number` parts with equally many columns; the rollout itself for one part."""
    import torch

    if number == 1:
        return rollout
    width = rollout.rewards.shape[1]
    columns = torch.arange(width, device=rollout.rewards.device).chunk(number)
    return RolloutParts([rollout.of_agents(own, width) for own in columns])
