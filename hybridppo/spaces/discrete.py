"""`Discrete`: a choice among `n`, numbered from `start`."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError
from hybridppo.spaces.base import FromJson, Json, Kind, KindOf
from hybridppo.spaces.categorical import Categorical
from hybridppo.spaces.checks import as_numbers, as_scalar, as_truths, require_finite, write_one_hot

Array = NDArray[Any]


class DiscreteKind(Kind[gym.spaces.Discrete[Any]]):
    """One-hot in a row. A mask has a truth for each choice."""

    type_name = "Discrete"
    of = gym.spaces.Discrete

    def __init__(self, space: "gym.spaces.Discrete[Any]", path: str, kind_of: KindOf) -> None:
        super().__init__(space, path, kind_of)
        self.size, self._start = int(space.n), int(space.start)

    def write(self, observations: Any, rows: Array) -> None:  # noqa: D102 - as in the base
        if rows.ndim == 1:  # a single one is written at every step: this is five times as fast
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

    def distribution(self, *, squash: bool) -> Categorical:  # noqa: D102 - as in the base
        return Categorical(self.size, self._start, self.space.dtype)

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
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:  # noqa: D102 - as in the base
        # Older releases of gymnasium have no argument `dtype`.
        own: dict[str, Any] = {"dtype": np.dtype(json["dtype"])} if "dtype" in json else {}
        return gym.spaces.Discrete(json["n"], start=json["start"], **own)
