"""`Discrete`, `MultiDiscrete` and `MultiBinary`: one choice, several choices, and binary choices."""

import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.errors import BadValueError, ConfigurationError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Json, Kind
from hybridppo.spaces.box import MOST_NUMBERS
from hybridppo.spaces.checks import as_numbers, as_scalar, as_truths, checked_whole, require_finite, write_one_hot


class DiscreteKind(Kind["gym.spaces.Discrete[Any]"]):  # not generic in older releases of gymnasium
    """One-hot in a row. A mask has a boolean for each option."""

    type_name = "Discrete"
    of = gym.spaces.Discrete

    def __init__(self, space: "gym.spaces.Discrete[Any]", path: str) -> None:
        super().__init__(space, path)
        self.size, self._start = int(space.n), int(space.start)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        if rows.ndim == 1:  # a single observation is written at every step: this is five times as fast
            number = observations
            if type(number) is not int:
                number = self._whole(as_scalar(f"its observation{self.path}", np.asarray(observations)))
            index = number - self._start
            if not 0 <= index < self.size:
                raise self._no_choice(number)
            rows.fill(0.0)
            rows[index] = 1.0
            return
        array = as_numbers(f"its observation{self.path}", observations)
        bad = write_one_hot(array.reshape(rows.shape[:-1]) - self._start, rows)
        if bad is not None:
            raise self._no_choice(array.ravel()[bad])

    def _whole(self, number: Any) -> int:
        if type(number) not in (int, bool) and not (type(number) is float and number.is_integer()):
            raise self._no_choice(number)
        return int(number)

    def _no_choice(self, number: Any) -> BadValueError:
        return BadValueError(f"its observation{self.path} is {number}, which is not one of its space, {self.space}")

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:  # noqa: D102 - as in the base
        name = f"its observation{self.path}"
        array = as_numbers(name, observation)
        require_finite(name, array)
        number = as_scalar(name, array)
        if number != int(number) or not self._start <= number < self._start + self.size:
            raise self._no_choice(number)
        return np.asarray(int(number))

    @property
    def mask_parts(self) -> list[tuple[str, int]]:  # noqa: D102 - as in the base
        return [(self.path, self.size)]

    def flat_mask(self, mask: Any) -> Array:
        """`[n]`; None allows everything, as in gymnasium."""
        if mask is None:
            return np.ones(self.size, np.float32)
        return as_truths(mask, (self.size,), f"its action mask{self.path}", "one for each action")

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        dtype = np.dtype(self.space.dtype)
        return {"n": self.size, "start": self._start, **({} if dtype == np.int64 else {"dtype": str(dtype)})}

    @classmethod
    def from_json(cls, json: Json) -> gym.Space[Any]:  # noqa: D102 - as in the base
        # Older releases of gymnasium have no argument `dtype`.
        own: dict[str, Any] = {"dtype": np.dtype(json["dtype"])} if "dtype" in json else {}
        return gym.spaces.Discrete(json["n"], start=json["start"], **own)


class _SeveralChoices(Kind[Any]):
    """The common part of spaces with several choices."""

    _sizes: list[int]
    """Number of options of each choice."""

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:
        self.write(observation, np.empty(self.size, np.float32))
        return np.asarray(observation).astype(self.space.dtype).reshape(self.space.shape)

    @property
    def mask_parts(self) -> list[tuple[str, int]]:
        places = np.ndindex(*self.space.shape)
        return [
            (self.path + "".join(f"[{i}]" for i in place), size)
            for place, size in zip(places, self._sizes, strict=True)
        ]


class MultiDiscreteKind(_SeveralChoices):
    """One-hot in a row, one choice after the other. A mask is a tuple with a mask for each choice, or flat."""

    type_name = "MultiDiscrete"
    of = gym.spaces.MultiDiscrete

    def __init__(self, space: "gym.spaces.MultiDiscrete[Any]", path: str) -> None:
        super().__init__(space, path)
        self._sizes = space.nvec.ravel().tolist()
        self._starts = space.start.ravel().astype(np.int64)
        self.size = sum(self._sizes)
        ends = np.cumsum([0, *self._sizes]).tolist()
        self._slices = [slice(start, end) for start, end in itertools.pairwise(ends)]

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        # [..., *space] -> [..., choices]
        indices = array.reshape(*rows.shape[:-1], len(self._sizes)) - self._starts
        for i, part in enumerate(self._slices):
            bad = write_one_hot(indices[..., i], rows[..., part])
            if bad is not None:
                number = (indices[..., i] + self._starts[i]).ravel()[bad]
                at = "".join(f"[{index}]" for index in np.unravel_index(i, self.space.shape))
                raise BadValueError(
                    f"its observation{self.path}{at} is {number}, which is not one of its space, {self.space}"
                )

    def flat_mask(self, mask: Any) -> Array:
        """`[sum(nvec)]`: from nested tuples as `sample` takes them, or from such an array; None allows everything."""
        if mask is None:
            return np.ones(self.size, np.float32)
        if isinstance(mask, np.ndarray) or (isinstance(mask, list) and all(np.ndim(part) == 0 for part in mask)):
            return as_truths(
                mask, (self.size,), f"its action mask{self.path}", f"those of all choices in turn, of {self._sizes}"
            )
        parts = self._flattened(mask, self.space.shape, f"its action mask{self.path}")
        return np.concatenate(
            [
                as_truths(part, (size,), f"its action mask{place}", "one for each action")
                for part, (place, size) in zip(parts, self.mask_parts, strict=True)
            ]
        )

    def _flattened(self, mask: Any, shape: tuple[int, ...], name: str) -> list[Any]:
        if not shape:
            return [mask]
        if not isinstance(mask, (tuple, list)) or len(mask) != shape[0]:
            found = f"{len(mask)} of them" if isinstance(mask, (tuple, list)) else f"a {type(mask).__name__}"
            raise BadValueError(f"{name} must be a tuple of {shape[0]} masks, one for each choice, and is {found}")
        return [leaf for i, part in enumerate(mask) for leaf in self._flattened(part, shape[1:], f"{name}[{i}]")]

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        space = self.space
        return {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(np.dtype(space.dtype))}

    @classmethod
    def from_json(cls, json: Json) -> gym.Space[Any]:  # noqa: D102 - as in the base
        return gym.spaces.MultiDiscrete(json["nvec"], dtype=np.dtype(json["dtype"]).type, start=json["start"])


class MultiBinaryKind(_SeveralChoices):
    """Each binary choice is one number in a row. A mask has 0 or 1 for a value that is required, and 2 for either."""

    type_name = "MultiBinary"
    of = gym.spaces.MultiBinary

    def __init__(self, space: gym.spaces.MultiBinary, path: str) -> None:
        super().__init__(space, path)
        self.size = math.prod(space.shape)
        self._sizes = [2] * self.size

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

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        return {"shape": list(self.space.shape)}

    @classmethod
    def from_json(cls, json: Json) -> gym.Space[Any]:  # noqa: D102 - as in the base
        shape = json["shape"]
        if math.prod(shape) > MOST_NUMBERS:
            raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")
        return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
