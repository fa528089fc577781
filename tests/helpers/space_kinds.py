"""An environment with known optimum for every kind of space. To add a kind, add a line to `KINDS`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

from hybridppo.spaces.items import LimitedGraph, LimitedSequence

LENGTH = 8
"""Steps of an episode."""


def draw(space: gym.Space, generator: np.random.Generator) -> Any:
    """A member of a space, drawn from the environment's own generator, unlike `space.sample()`."""
    if isinstance(space, Dict):
        return {key: draw(part, generator) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(draw(part, generator) for part in space.spaces)
    if isinstance(space, Discrete):
        return int(space.start + generator.integers(space.n))
    if isinstance(space, MultiDiscrete):
        return (space.start + generator.integers(0, space.nvec)).astype(space.dtype)
    if isinstance(space, MultiBinary):
        return generator.integers(0, 2, space.shape).astype(space.dtype)
    return generator.uniform(space.low, space.high).astype(space.dtype)


def score(space: gym.Space, wanted: Any, action: Any) -> float:
    """1 for each choice that is right, less the squared error of each number."""
    if isinstance(space, Dict):
        return sum(score(part, wanted[key], action[key]) for key, part in space.spaces.items())
    if isinstance(space, Tuple):
        return sum(map(score, space.spaces, wanted, action))
    if isinstance(space, Box):
        return -float(np.square(action - wanted).sum())
    return float(np.sum(np.asarray(wanted) == np.asarray(action)))


def best(space: gym.Space) -> float:
    """The highest score of an action."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return sum(map(best, parts))
    return 0.0 if isinstance(space, Box) else float(np.prod(space.shape))


def draw_mask(space: gym.Space, wanted: Any, generator: np.random.Generator) -> Any:
    """A mask for `space.sample`, which allows the wanted action and perhaps more."""
    if isinstance(space, Dict):
        return {key: draw_mask(part, wanted[key], generator) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(draw_mask(part, value, generator) for part, value in zip(space.spaces, wanted, strict=True))
    if isinstance(space, Discrete):
        return one_choice(int(space.n), int(wanted - space.start), generator)
    if isinstance(space, MultiDiscrete):
        return nested(space.nvec, np.asarray(wanted) - space.start, generator)
    if isinstance(space, MultiBinary):
        return np.where(generator.random(space.shape) < 0.5, 2, wanted).astype(np.int8)
    return None


def nested(sizes: Any, wanted: Any, generator: np.random.Generator) -> Any:
    if np.ndim(sizes) == 0:
        return one_choice(int(sizes), int(wanted), generator)
    return tuple(nested(size, want, generator) for size, want in zip(sizes, wanted, strict=True))


def one_choice(n: int, wanted: int, generator: np.random.Generator) -> np.ndarray:
    mask = generator.integers(0, 2, n, dtype=np.int8)
    mask[wanted] = 1
    return mask


def require_allowed(space: gym.Space, mask: Any, action: Any) -> None:
    """Raise an error if the mask does not allow an action."""
    if isinstance(space, Dict):
        for key, part in space.spaces.items():
            require_allowed(part, mask[key], action[key])
    elif isinstance(space, Tuple):
        for part, own, value in zip(space.spaces, mask, action, strict=True):
            require_allowed(part, own, value)
    elif isinstance(space, Discrete):
        is_allowed = mask[int(action - space.start)]
        if not is_allowed:
            raise ValueError(f"action {action} is not allowed by {mask}")
    elif isinstance(space, MultiDiscrete):
        for place in np.ndindex(*space.shape):
            own = mask
            for i in place:
                own = own[i]
            if not own[int(action[place] - space.start[place])]:
                raise ValueError(f"action {action} is not allowed by {mask}")
    elif isinstance(space, MultiBinary) and not np.all((mask == 2) | (mask == action)):
        raise ValueError(f"action {action} is not allowed by {mask}")


class Identity(gym.Env[Any, Any]):
    """The action must repeat the observation, in the same space. An action outside the space is an error.

    With `masks`, `info["action_mask"]` allows some of the actions, and another is an error.
    """

    def __init__(self, space: gym.Space, masks: bool = False) -> None:
        self.observation_space = self.action_space = space
        self._masks, self._step = masks, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step = 0
        self._draw()
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self._masks:
            require_allowed(self.action_space, self._mask, action)
        reward = score(self.action_space, self._wanted, action)
        self._step += 1
        self._draw()
        return self._observation(), reward, False, self._step == LENGTH, self._info()

    def _draw(self) -> None:
        self._wanted = draw(self.action_space, self.np_random)
        self._mask = draw_mask(self.action_space, self._wanted, self.np_random) if self._masks else None

    def _observation(self) -> Any:
        return self._wanted

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask} if self._masks else {}


class Camera(Identity):
    """An image shows the wanted choice, and a vector the wanted number."""

    def __init__(self, masks: bool = False, channels_first: bool = False) -> None:
        super().__init__(Tuple((Discrete(3, start=1), Box(-1.0, 1.0, (1,)))), masks)
        shape = (1, 5, 6) if channels_first else (5, 6, 1)
        self.observation_space = Dict(
            camera=Box(0, 255, shape, np.uint8), speed=Box(-1.0, 1.0, (1,)), lamps=MultiBinary(2)
        )

    def _observation(self) -> Any:
        return self._seen(*self._wanted)

    def _seen(self, choice: Any, number: Any) -> Any:
        image = np.zeros((5, 6), np.uint8)
        image[:, 2 * (choice - 1) : 2 * choice] = 255
        shape = self.observation_space["camera"].shape
        return {"camera": image.reshape(shape), "speed": number, "lamps": np.array([1, 0], np.int8)}


class Recalled(Camera):
    """What is wanted was shown one step before, so that only a memory knows it; the first step shows its own."""

    def _draw(self) -> None:
        shown = draw(self.action_space, self.np_random)
        self._wanted = self._shown if self._step else shown
        self._shown = shown
        self._mask = draw_mask(self.action_space, self._wanted, self.np_random) if self._masks else None

    def _observation(self) -> Any:
        return self._seen(*self._shown)


class TwoCameras(Identity):
    """Only images, of two sizes: the action must name what is lit in them."""

    def __init__(self) -> None:
        super().__init__(MultiDiscrete([3, 2]))
        self.observation_space = Tuple((Box(0, 255, (3, 3, 1), np.uint8), Box(0, 255, (2, 4, 5), np.uint8)))

    def _observation(self) -> Any:
        images = np.zeros((3, 3, 1), np.uint8), np.zeros((2, 4, 5), np.uint8)
        images[0][:, self._wanted[0]] = 255
        images[1][self._wanted[1]] = 255
        return images


class Letter(Identity):
    """The wanted choice is in one of four parts, drawn at random: text, a set, a graph, one of two spaces."""

    def __init__(self, masks: bool = False) -> None:
        super().__init__(Discrete(3), masks)
        point, node = Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,))
        self.observation_space = Dict(
            text=Text(6, charset="abc"),
            points=LimitedSequence(Sequence(Dict(at=point, kind=Discrete(2))), 4),
            net=LimitedGraph(Graph(node, Discrete(3)), 4),
            either=OneOf([Discrete(4), point]),
        )

    def _observation(self) -> Any:
        draws, wanted, part = self.np_random, int(self._wanted), int(self.np_random.integers(4))
        number = np.float32(wanted - 1)
        nodes, links = draws.uniform(-1.0, 1.0, (3, 1)).astype(np.float32), np.array([[0, 1], [2, 1]])
        kinds = np.full(2, wanted) if part == 2 else np.zeros(0, np.int64)
        return {
            "text": "abc"[wanted] * int(draws.integers(1, 7)) if part == 0 else "",
            "points": tuple(
                {"at": np.array([number, x], np.float32), "kind": int(draws.integers(2))}
                for x in draws.uniform(-1.0, 1.0, draws.integers(1, 5) if part == 1 else 0)
            ),
            "net": GraphInstance(nodes, kinds, links[: len(kinds)]),
            "either": (0, np.int64(wanted if part == 3 else 3)) if draws.random() < 0.5 or part != 3
            else (1, np.array([number, 1.0], np.float32)),
        }  # fmt: skip


NESTED = Dict(
    arms=Tuple((Discrete(3, start=-1), Box(-1.0, 1.0, (2,)))),
    keys=MultiBinary(2),
    moves=Dict(far=MultiDiscrete([2, 3]), near=Discrete(2)),
)


@dataclass(frozen=True)
class KindOfSpace:
    """A kind's environment, and what is known about it."""

    make: Callable[..., gym.Env[Any, Any]]
    best: float
    """The best return of an episode."""
    config: dict[str, Any] = field(default_factory=dict)
    """Changes to the configuration."""
    has_masks: bool = True
    """Whether `make` takes `masks=True`."""
    learned_in: int = 40_000
    """Steps of an episode."""


def identity(space: gym.Space, has_masks: bool = True, **config: Any) -> KindOfSpace:
    """The kind of an `Identity` of a space."""
    return KindOfSpace(partial(Identity, space), LENGTH * best(space), config, has_masks)


KINDS = {
    "box": identity(Box(-1.0, 1.0, (1, 2)), has_masks=False),
    "squashed box": identity(Box(-2.0, 1.0, (2,), np.float64), has_masks=False, squash_actions=True),
    "discrete": identity(Discrete(4, start=-2)),
    "multi-discrete": identity(MultiDiscrete([2, 3, 3], start=[1, 0, -1])),
    "multi-discrete of two axes": identity(MultiDiscrete([[2, 3], [2, 2]])),
    "multi-binary": identity(MultiBinary((2, 2))),
    "tuple": identity(Tuple((Box(-1.0, 1.0, (1,)), Discrete(3, start=1)))),
    "dict, nested": identity(NESTED),
    "squashed tuple": identity(Tuple((Discrete(2), Box(0.0, 3.0, (1,)))), squash_actions=True),
    "whole numbers of a box": identity(Tuple((Discrete(3), Box(-2, 3, (1, 2), np.int8), Box(0, 1, (2,), np.uint8)))),
    "image and vector": KindOfSpace(Camera, LENGTH * 1.0),
    "image with channels first": KindOfSpace(partial(Camera, channels_first=True), LENGTH * 1.0),
    "image and vector, encoded": KindOfSpace(
        Camera, LENGTH * 1.0, {"encoder_sizes": {"camera": [16], "speed": [8, 8]}}
    ),
    "dict, nested, encoded": identity(NESTED, encoder_sizes={"arms": (16,), "moves": (8,)}),
    "dict, encoded, with a memory": replace(
        identity(NESTED, encoder_sizes={"keys": (8,)}, recurrent="gru", recurrent_size=8, sequence_length=8),
        learned_in=80_000,
    ),
    "image and vector, with a memory": KindOfSpace(
        Recalled, LENGTH * 1.0, {"recurrent": "lstm", "recurrent_size": 32, "sequence_length": 8}
    ),
    "items": KindOfSpace(Letter, LENGTH * 1.0),
    "images alone": KindOfSpace(TwoCameras, LENGTH * 2.0, has_masks=False),
}
