"""`Discrete`, `MultiDiscrete` and `MultiBinary`: one choice, several choices, and binary choices."""

import itertools
import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Kind
from hybridppo.spaces.checks import as_numbers, as_scalar, as_truths, checked_whole, write_one_hot


class ChoicesKind(Kind[Any]):
    """One or several choices, one-hot in a row, one after the other.

    A mask has a truth for each option; that of several choices is a tuple with a mask for each, or flat.
    """

    of: ClassVar[type[gym.Space[Any]]] = gym.spaces.MultiDiscrete

    def __init__(self, space: Any, path: str) -> None:
        super().__init__(space, path)
        self.sizes, self.starts = self._options()
        """Number of options of each choice, and the number of its first option."""
        self.size = sum(self.sizes)
        ends = np.cumsum([0, *self.sizes]).tolist()
        self._slices = [slice(start, end) for start, end in itertools.pairwise(ends)]

    def _options(self) -> tuple[list[int], Array]:
        return self.space.nvec.ravel().tolist(), self.space.start.ravel().astype(np.int64)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        # [..., *space] -> [..., choices]
        indices = array.reshape(*rows.shape[:-1], len(self.sizes)) - self.starts
        for i, part in enumerate(self._slices):
            bad = write_one_hot(indices[..., i], rows[..., part])
            if bad is not None:
                raise self._no_choice((indices[..., i] + self.starts[i]).ravel()[bad], self.mask_parts[i][0])

    def _no_choice(self, number: Any, path: str) -> BadValueError:
        return BadValueError(f"its observation{path} is {number}, which is not one of its space, {self.space}")

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:  # noqa: D102 - as in the base
        self.write(observation, np.empty(self.size, np.float32))
        return np.asarray(observation).astype(self.space.dtype).reshape(self.space.shape)

    @property
    def mask_parts(self) -> list[tuple[str, int]]:  # noqa: D102 - as in the base
        paths = [self.path + "".join(f"[{i}]" for i in place) for place in np.ndindex(*self.space.shape)]
        return list(zip(paths, self.sizes, strict=True))

    def flat_mask(self, mask: Any) -> Array:
        """`[sum(sizes)]`: from nested tuples as `sample` takes them, or from such an array; None allows everything."""
        if mask is None:
            return np.ones(sum(self.sizes), np.float32)
        is_flat = isinstance(mask, np.ndarray) or (isinstance(mask, list) and all(np.ndim(part) == 0 for part in mask))
        if self.space.shape and is_flat:
            which = f"those of all choices in turn, of {self.sizes}"
            return as_truths(mask, (sum(self.sizes),), f"its action mask{self.path}", which)
        parts = zip(self._masks(mask, self.space.shape, self.path), self.mask_parts, strict=True)
        which = "one for each action"
        return np.concatenate([as_truths(part, (n,), f"its action mask{path}", which) for part, (path, n) in parts])

    def _masks(self, mask: Any, shape: tuple[int, ...], path: str) -> list[Any]:
        """The masks of all choices in turn."""
        if not shape:
            return [mask]
        if not isinstance(mask, (tuple, list)) or len(mask) != shape[0]:
            found = f"{len(mask)} of them" if isinstance(mask, (tuple, list)) else f"a {type(mask).__name__}"
            raise BadValueError(
                f"its action mask{path} must be a tuple of {shape[0]} masks, one for each choice, and is {found}"
            )
        return [leaf for i, part in enumerate(mask) for leaf in self._masks(part, shape[1:], f"{path}[{i}]")]


class DiscreteKind(ChoicesKind):
    """A choice."""

    of = gym.spaces.Discrete

    def _options(self) -> tuple[list[int], Array]:
        self._start = int(self.space.start)
        return [int(self.space.n)], np.array([self._start])

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        if rows.ndim == 1:  # a single observation is written at every step: this is five times as fast
            number = observations
            if type(number) is not int:
                number = self._whole(as_scalar(f"its observation{self.path}", np.asarray(observations)))
            index = number - self._start
            if not 0 <= index < self.size:
                raise self._no_choice(number, self.path)
            rows.fill(0.0)
            rows[index] = 1.0
            return
        array = as_numbers(f"its observation{self.path}", observations)
        bad = write_one_hot(array.reshape(rows.shape[:-1]) - self._start, rows)
        if bad is not None:
            raise self._no_choice(array.ravel()[bad], self.path)

    def _whole(self, number: Any) -> int:
        if type(number) not in (int, bool) and not (type(number) is float and number.is_integer()):
            raise self._no_choice(number, self.path)
        return int(number)


class MultiBinaryKind(ChoicesKind):
    """Each binary choice is one number in a row. A mask has 0 or 1 for a value that is required, and 2 for either."""

    of = gym.spaces.MultiBinary

    def __init__(self, space: gym.spaces.MultiBinary, path: str) -> None:
        super().__init__(space, path)
        self.size = math.prod(space.shape)

    def _options(self) -> tuple[list[int], Array]:
        return [2] * math.prod(self.space.shape), np.zeros(math.prod(self.space.shape), np.int64)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        bad = (array != 0) & (array != 1)
        if bad.any():
            at = np.argwhere(bad)[0].tolist()
            raise BadValueError(f"its observation{self.path}{at} is {array[tuple(at)]}, which is neither 0 nor 1")
        rows[...] = array.reshape(rows.shape)

    def flat_mask(self, mask: Any) -> Array:
        """`[2 * size]`, from an array of 0, 1 and 2 in the shape of the space; None allows everything."""
        if mask is None:
            return np.ones(2 * self.size, np.float32)
        array = np.asarray(mask)
        if array.shape != self.space.shape or not np.isin(array, (0, 1, 2)).all():
            shown = array.tolist() if array.size < 100 else f"of shape {array.shape}"
            raise BadValueError(
                f"its action mask{self.path} must be of shape {self.space.shape}, with 0 or 1 for what an action must "
                f"be there and 2 for either, and is {shown}"
            )
        # [size] -> [size, 2]: whether 0 is allowed, whether 1 is allowed
        return np.stack((array != 1, array != 0), axis=-1).ravel().astype(np.float32)
