"""Observations that are one of several spaces, texts, sequences or graphs.

In a row, items have a fixed number of places: of each, 1 if it is there, and its numbers; then zeros. A network sees
them through an encoder that ignores empty places (`networks/items.py`).
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import UnsupportedSpaceError, as_numbers, require_finite
from hybridppo.spaces.kinds import KINDS, Kind, kind_of, parts_of
from hybridppo.spaces.rows import ItemsLayout, slices

WITHOUT_LIMIT = (
    "an observation may have any number of items: max_items (--max-items) says how many places a row has for them"
)
"""The remedy for a sequence or a graph without a limit."""


class Limited:
    """A base that lets spaces of different limits differ."""

    max_items: int

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.max_items == getattr(other, "max_items", None)

    __hash__ = None  # type: ignore[assignment]  # like that of other spaces


class LimitedSequence(Limited, gym.spaces.Sequence):
    """A `Sequence` of at most `max_items` items."""

    def __init__(self, space: gym.spaces.Sequence, max_items: int) -> None:
        super().__init__(space.feature_space, stack=space.stack)
        self.max_items = max_items


class LimitedGraph(Limited, gym.spaces.Graph):
    """A `Graph` of at most `max_items` nodes and `max_items` edges."""

    def __init__(self, space: gym.spaces.Graph, max_items: int) -> None:
        super().__init__(space.node_space, space.edge_space)
        self.max_items = max_items


def limited(space: gym.Space[Any], max_items: int) -> gym.Space[Any]:
    """The space, in which sequences and graphs have at most `max_items` items."""
    if isinstance(space, gym.spaces.Sequence):
        return LimitedSequence(space, max_items)
    if isinstance(space, gym.spaces.Graph):
        return LimitedGraph(space, max_items)
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict([(key, limited(part, max_items)) for key, part in space.spaces.items()])
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([limited(part, max_items) for part in space.spaces])
    return space


def max_items_of(space: gym.Space[Any]) -> int:
    """The limit of the sequences and graphs in a space, which may have masks; 0 if it has none."""
    space = getattr(space, "observation", space)
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return max((max_items_of(part) for _, part in parts_of(space)), default=0)
    return getattr(space, "max_items", 0)


class Members:
    """Writes values of a space that lies within a kind of this file, as numbers without images and items."""

    def __init__(self, space: gym.Space[Any], path: str) -> None:
        self._kind = kind_of(space, path)
        for leaf in self._kind.leaves:
            if leaf.image is not None or isinstance(leaf, VaryingKind):
                what = "an image" if leaf.image is not None else f"a {leaf.of.__name__}"
                raise UnsupportedSpaceError(leaf.space, leaf.path, f"items and members of a OneOf cannot be {what}")
        self._places = slices(leaf.size for leaf in self._kind.leaves)
        self.size = sum(leaf.size for leaf in self._kind.leaves)
        self.is_measured = any(leaf.is_measured for leaf in self._kind.leaves)
        low, high = zip(*(leaf.bounds() for leaf in self._kind.leaves), strict=True)
        self.bounds = np.minimum(np.concatenate(low), 0.0), np.maximum(np.concatenate(high), 0.0)

    def each(self, batch: Any) -> Iterable[Any]:
        """The values of a batch in gymnasium's vector form."""
        return self._kind.each(batch)

    def write(self, value: Any, row: Array) -> None:
        """Write a value into a row `[size]`.

        Raises:
            BadValueError: if it does not fit the space.
        """
        for leaf, place, part in zip(self._kind.leaves, self._places, self._kind.values(value), strict=True):
            leaf.write(part, row[place])
            require_finite(f"its observation{leaf.path}", row[place])


class VaryingKind(Kind[Any]):
    """The base of the kinds of this file."""

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        if rows.ndim > 1:
            for observation, row in zip(observations, rows, strict=True):
                self.write(observation, row)
            return
        rows[...] = 0.0
        self._write(observations, rows, f"its observation{self.path}")

    @abstractmethod
    def _write(self, observation: Any, row: Array, name: str) -> None:
        """Write an observation, which messages call `name`, into a row of zeros."""

    def checked(self, observation: Any) -> Any:  # noqa: D102 - as in the base
        self.write(observation, np.empty(self.size, np.float32))
        return observation

    def bounds(self) -> tuple[Array, Array]:
        """Those of the members, with the zeros of empty places; infinite for characters and links."""
        low, high = bounds = np.full(self.size, -np.inf, np.float32), np.full(self.size, np.inf, np.float32)
        for end, numbers in enumerate(bounds):
            for member, places in self._members_in(numbers):
                places[...] = member.bounds[end]
        return low, high

    def _members_in(self, row: Array) -> Iterable[tuple[Members, Array]]:
        """The members, each with its places in a row, `[..., size]`."""
        return ()


class ItemsKind(VaryingKind):
    """The base of the kinds whose row is places for items."""

    items: ItemsLayout

    def _lay_out(self, items: ItemsLayout) -> None:
        self.items, self.size = items, items.size


class OneOfKind(VaryingKind):
    """One-hot which of the spaces it is, then the rows of all in turn: zeros for those that it is not."""

    of = gym.spaces.OneOf

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._members = [Members(each, f"{path}[{i}]") for i, each in enumerate(space.spaces)]
        self._places = slices((member.size for member in self._members), len(self._members))
        self.size = self._places[-1].stop
        self.is_measured = any(member.is_measured for member in self._members)

    def _write(self, observation: Any, row: Array, name: str) -> None:
        if not isinstance(observation, (tuple, list)) or len(observation) != 2:
            raise BadValueError(f"{name} must be a pair, a space's number and a value, and is {shown(observation)}")
        which, value = observation
        if np.ndim(which) or which not in range(len(self._members)):
            raise BadValueError(f"{name} names space {shown(which)}, and there are {len(self._members)}")
        row[int(which)] = 1.0
        self._members[int(which)].write(value, row[self._places[int(which)]])

    def _members_in(self, row: Array) -> Iterable[tuple[Members, Array]]:
        return [(member, row[place]) for member, place in zip(self._members, self._places, strict=True)]


class TextKind(ItemsKind):
    """Each character by its number, in the order of the sorted character set."""

    of = gym.spaces.Text

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._numbers = {character: i for i, character in enumerate(sorted(space.character_set))}
        self._lay_out(ItemsLayout(((space.max_length, 2),), len(self._numbers)))

    def _write(self, observation: Any, row: Array, name: str) -> None:
        if not isinstance(observation, str):
            raise BadValueError(f"{name} must be text, and is {shown(observation)}")
        if len(observation) > self.space.max_length:
            raise BadValueError(f"{name} has {len(observation)} characters, and its space {self.space.max_length}")
        try:
            numbers = [self._numbers[character] for character in observation]
        except KeyError as error:
            raise BadValueError(f"{name} has the character {error}, which its space has not") from None
        (places,) = self.items.tables(row)
        places[: len(numbers)] = np.stack((np.ones(len(numbers)), numbers), axis=1)


class SequenceKind(ItemsKind):
    """The items in turn."""

    of = gym.spaces.Sequence

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._item = Members(space.feature_space, f"{path}[]")
        self._lay_out(ItemsLayout(((max_items_of(space), 1 + self._item.size),)))

    def _write(self, observation: Any, row: Array, name: str) -> None:
        try:
            items = list(self._item.each(observation) if self.space.stack else observation)
        except (TypeError, LookupError, ValueError):  # of stacked items, whose parts may differ in number
            how = f", stacked as values of {self.space.stacked_feature_space}" if self.space.stack else ""
            raise BadValueError(f"{name} must be a sequence{how}, and is {shown(observation)}") from None
        _require_places(name, "items", len(items), self.space.max_items)
        for item, place in zip(items, self.items.tables(row)[0], strict=False):
            place[0] = 1.0
            self._item.write(item, place[1:])

    def _members_in(self, row: Array) -> Iterable[tuple[Members, Array]]:
        return [(self._item, self.items.tables(row)[0][:, 1:])]


class GraphKind(ItemsKind):
    """The nodes in turn; then the edges, each with the numbers of its two nodes before its own."""

    of = gym.spaces.Graph

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self._node = Members(space.node_space, f"{path}.nodes")
        self._edge = None if space.edge_space is None else Members(space.edge_space, f"{path}.edges")
        widths = 1 + self._node.size, 3 + (0 if self._edge is None else self._edge.size)
        self._lay_out(ItemsLayout(tuple((max_items_of(space), width) for width in widths)))

    def _write(self, observation: Any, row: Array, name: str) -> None:
        if not isinstance(observation, tuple) or len(observation) != 3:
            raise BadValueError(f"{name} must be a GraphInstance, and is {shown(observation)}")
        nodes, edges, links = observation
        nodes = np.atleast_1d(as_numbers(f"{name}.nodes", nodes))
        edges = np.atleast_1d(as_numbers(f"{name}.edges", () if edges is None else edges))
        links = as_numbers(f"{name}.edge_links", () if links is None else links)
        if not links.size:
            links = np.zeros((0, 2))
        if links.ndim != 2 or links.shape[1] != 2 or (len(links) and not set(links.ravel()) <= set(range(len(nodes)))):
            what = f"[edges, 2], numbers of two of its {len(nodes)} nodes each"
            raise BadValueError(f"{name}.edge_links must be {what}, and is {shown(links.tolist())}")
        if self._edge is not None and len(edges) != len(links):
            found = f"{len(links)}, and has {shown(edges)}"
            raise BadValueError(f"{name} must have as many edges as edge_links, {found}")
        _require_places(name, "nodes", len(nodes), self.space.max_items)
        _require_places(name, "edges", len(links), self.space.max_items)
        of_nodes, of_edges = self.items.tables(row)
        of_nodes[: len(nodes), 0], of_edges[: len(links), 0], of_edges[: len(links), 1:3] = 1.0, 1.0, links
        for node, place in zip(nodes, of_nodes, strict=False):
            self._node.write(node, place[1:])
        if self._edge is not None:
            for edge, place in zip(edges, of_edges, strict=False):
                self._edge.write(edge, place[3:])

    def _members_in(self, row: Array) -> Iterable[tuple[Members, Array]]:
        nodes, edges = self.items.tables(row)
        return [(self._node, nodes[:, 1:]), *([] if self._edge is None else [(self._edge, edges[:, 3:])])]


def _require_places(name: str, what: str, number: int, most: int) -> None:
    if number > most:
        raise BadValueError(f"{name} has {number} {what}, and max_items (--max-items) is {most}: make it larger")


KINDS += [TextKind, SequenceKind, GraphKind, OneOfKind]
