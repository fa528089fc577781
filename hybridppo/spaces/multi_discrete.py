"""`MultiDiscrete`: several choices at once, each among its own number."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError
from hybridppo.spaces.base import FromJson, Json, Kind, KindOf
from hybridppo.spaces.categorical import MultiCategorical
from hybridppo.spaces.checks import as_truths, checked_whole, write_one_hot

Array = NDArray[Any]


class MultiDiscreteKind(Kind[gym.spaces.MultiDiscrete[Any]]):
    """One-hot in a row, one choice after the other. A mask is a tuple of truths for each, or all of them flat."""

    type_name = "MultiDiscrete"
    of = gym.spaces.MultiDiscrete

    def __init__(self, space: "gym.spaces.MultiDiscrete[Any]", path: str, kind_of: KindOf) -> None:
        super().__init__(space, path, kind_of)
        self._sizes: list[int] = space.nvec.ravel().tolist()
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

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:  # noqa: D102 - as in the base
        self.write(observation, np.empty(self.size, np.float32))
        return np.asarray(observation).astype(self.space.dtype).reshape(self.space.shape)

    def distribution(self, *, squash: bool) -> MultiCategorical:  # noqa: D102 - as in the base
        return MultiCategorical(self.space.nvec, self.space.start, self.space.dtype)

    @property
    def mask_parts(self) -> list[tuple[str, int]]:  # noqa: D102 - as in the base
        places = np.ndindex(*self.space.shape)
        return [
            (self.path + "".join(f"[{i}]" for i in place), size)
            for place, size in zip(places, self._sizes, strict=True)
        ]

    def flat_mask(self, mask: Any) -> Array:
        """`[sum(nvec)]`: of nested tuples as `sample` takes them, or of such an array; None allows everything."""
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
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:  # noqa: D102 - as in the base
        return gym.spaces.MultiDiscrete(json["nvec"], dtype=np.dtype(json["dtype"]).type, start=json["start"])
