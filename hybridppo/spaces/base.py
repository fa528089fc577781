"""What a kind of space says for itself: observations, actions, masks, JSON. One file for each kind.

A further kind is a file with a subclass of `Kind`, and its name in the list of `registry.py`. Nothing else knows of it.
Files of kinds do not import `registry.py`: what they need of other kinds is handed to them as `kind_of`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.spaces.checks import UnsupportedSpaceError
from hybridppo.spaces.rows import ImageLayout

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
SpaceT = TypeVar("SpaceT", bound="gym.Space[Any]")

Json = dict[str, Any]
FromJson = Callable[[Json], "gym.Space[Any]"]
KindOf = Callable[["gym.Space[Any]", str], "Kind[Any]"]
"""The kind of a space that is found at a path within another, like `['camera']`."""


class Distribution(Protocol):
    """What a sampler and an agent need to know of an action space.

    An actor's outputs `[..., output_size]` are what its network gives, `[..., output_size - free_size]`, and then
    numbers that depend on no observation. The first `mask_size` of them are logits, which a mask may forbid.
    """

    output_size: int
    """How many numbers the actor gives per observation."""
    free_size: int
    """How many of them, the last, depend on no observation: parameters of the actor by themselves."""
    mask_size: int
    """How many of them, the first, are logits of choices: what a mask has a number for."""
    noise_size: int
    """How many random numbers an action takes."""
    action_shape: tuple[int, ...]
    action_dtype: Any

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for a block of actions, `[*shape, noise_size]`."""
        ...

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Random actions `[..., *action_shape]` for `outputs` and noise of the same leading shape."""
        ...

    def mode(self, outputs: Array) -> Array:
        """The most probable actions."""
        ...

    def to_env(self, actions: Array) -> Any:
        """What `step` of a vector of environments takes for these actions `[N, *action_shape]`."""
        ...

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The actions' log-probabilities `[...]`."""
        ...

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The same, to the last bit, and the distributions' entropies in nats `[...]`."""
        ...


class Kind(ABC, Generic[SpaceT]):
    """One space, as its kind sees it.

    A kind that is no observation leaves out `write` and `checked`; one that is no action, `distribution`; one whose
    actions cannot be masked, `mask_parts` and `flat_mask`.

    Args:
        space: the space.
        path: where in the whole space it is, for messages: "" for the whole.
        kind_of: the kind of any space, for those that are made of others.
    """

    type_name: ClassVar[str]
    """The `type` in its JSON form."""
    of: ClassVar[type[gym.Space[Any]]]
    """The class of its spaces."""
    size: int = 0
    """Numbers that an observation is in a row; bytes, of an image."""
    image: ImageLayout | None = None
    """How it is an image, if so."""
    is_measured: ClassVar[bool] = False
    """Whether its numbers are quantities, of which a mean and a deviation say something; those of a choice are not."""

    def __init__(self, space: SpaceT, path: str, kind_of: KindOf) -> None:
        self.space, self.path = space, path

    # As an observation

    @property
    def leaves(self) -> Sequence[Kind[Any]]:
        """The parts that a row is made of: itself, but for a space of spaces."""
        return [self]

    @property
    def by_key(self) -> dict[str, Kind[Any]]:
        """The parts of a space of spaces, by key; none of any other."""
        return {}

    def values(self, observations: Any) -> Sequence[Any]:
        """What an observation, or a batch of them, has for each of the leaves."""
        return [observations]

    def write(self, observations: Any, rows: Array) -> None:
        """Write one observation into a row `[size]`, or a batch as gymnasium's vectors give it into rows `[N, size]`.

        Raises:
            BadValueError: where what is written would not tell it: a choice that the space has not.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    def checked(self, observation: Any, *, bounds: bool = True) -> Any:
        """An observation as its space has it, cast where nothing is lost by it.

        Args:
            observation: a single one.
            bounds: whether numbers are held to the bounds of their `Box`.

        Raises:
            BadValueError: where its shape, type or values are not those of the space.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    def bounds(self) -> tuple[Array, Array]:
        """What the numbers of a row lie between, `[size]` each."""
        return np.zeros(self.size, np.float32), np.ones(self.size, np.float32)

    # As an action

    def distribution(self, *, squash: bool) -> Distribution:
        """How its actions are drawn; `squash` is for numbers between bounds."""
        raise UnsupportedSpaceError(self.space, self.path)

    @property
    def each(self) -> Callable[[Any], Iterable[Any]]:
        """What takes apart a batch, of actions or observations, as gymnasium's vectors have it."""
        return iter

    @property
    def mask_parts(self) -> Sequence[tuple[str, int]]:
        """The choices that a mask has truths for: where each is, and among how many."""
        return []

    def flat_mask(self, mask: Any) -> Array:
        """A mask, as `sample` of the space takes it, as float32: 1 for what is allowed; of all choices in turn.

        Raises:
            BadValueError: where it is none of this space.
        """
        raise UnsupportedSpaceError(self.space, self.path)

    # As JSON

    @abstractmethod
    def to_json(self) -> Json:
        """Its space as JSON can hold it, without the `type`."""

    @classmethod
    @abstractmethod
    def from_json(cls, json: Json, from_json: FromJson) -> gym.Space[Any]:
        """The space that `to_json` described; `from_json` reads one within it."""
