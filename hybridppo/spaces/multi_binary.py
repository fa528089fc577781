"""`MultiBinary`: an array of truths."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, ConfigurationError
from hybridppo.spaces.base import FromJson, Json, Kind, KindOf
from hybridppo.spaces.box import MOST_NUMBERS
from hybridppo.spaces.categorical import MultiCategorical
from hybridppo.spaces.checks import checked_whole

Array = NDArray[Any]


class MultiBinaryKind(Kind[gym.spaces.MultiBinary]):
    """Each truth is a number in a row. A mask says of each that it must be 0 or 1, or, with 2, that either will do."""

    type_name = "MultiBinary"
    of = gym.spaces.MultiBinary

    def __init__(self, space: gym.spaces.MultiBinary, path: str, kind_of: KindOf) -> None:
        super().__init__(space, path, kind_of)
        self.size = math.prod(space.shape)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        array = checked_whole(observations, (*rows.shape[:-1], *self.space.shape), f"its observation{self.path}")
        bad = (array != 0) & (array != 1)
        if bad.any():
            at = np.argwhere(bad)[0].tolist()
            raise BadValueError(f"its observation{self.path}{at} is {array[tuple(at)]}, which is neither 0 nor 1")
        rows[...] = array.reshape(rows.shape)

    def checked(self, observation: Any, *, bounds: bool = True) -> Array:  # noqa: D102 - as in the base
        self.write(observation, np.empty(self.size, np.float32))
        return np.asarray(observation).astype(self.space.dtype).reshape(self.space.shape)

    def distribution(self, *, squash: bool) -> MultiCategorical:  # noqa: D102 - as in the base
        return MultiCategorical(np.full(self.space.shape, 2), np.zeros(self.space.shape, np.int64), self.space.dtype)

    @property
    def mask_parts(self) -> list[tuple[str, int]]:  # noqa: D102 - as in the base
        return [(self.path + "".join(f"[{i}]" for i in place), 2) for place in np.ndindex(*self.space.shape)]

    def flat_mask(self, mask: Any) -> Array:
        """`[2 * size]`, of an array of 0, 1 and 2 in the shape of the space; None allows everything."""
        if mask is None:
            return np.ones(2 * self.size, np.float32)
        array = np.asarray(mask)
        if array.shape != self.space.shape or not np.isin(array, (0, 1, 2)).all():
            shown = array.tolist() if array.size < 100 else f"of shape {array.shape}"
            raise BadValueError(
                f"its action mask{self.path} must be of shape {self.space.shape}, with 0 or 1 for what an action must "
                f"be there and 2 for either, and is {shown}"
            )
        # [size] -> [size, 2]: may it be 0, may it be 1
        return np.stack((array != 1, array != 0), axis=-1).ravel().astype(np.float32)

    def to_json(self) -> Json:  # noqa: D102 - as in the base
        return {"shape": list(self.space.shape)}

    @classmethod
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:  # noqa: D102 - as in the base
        shape = json["shape"]
        if math.prod(shape) > MOST_NUMBERS:
            raise ConfigurationError(f"a space may have {MOST_NUMBERS} numbers, and one of shape {shape} has more")
        return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
