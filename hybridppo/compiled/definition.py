"""What a compiled environment is: its state, its spaces, and three functions.

@compiled.environment(
    state={"x": np.float64, "speed": np.float64},
    observation_space=Box(-1.0, 1.0, (2,), np.float32),
    action_space=Discrete(2),
    episode_length=500,
)
class Slide:
    def reset(state, random):               # set every field; numbers from compiled.uniform(random, low, high)
        state.x, state.speed = compiled.uniform(random, -0.1, 0.1), 0.0

    def step(state, action, random):        # change the state; the reward, and whether the episode is over
        state.speed += 0.01 * (2 * action - 1)
        state.x += state.speed
        return -abs(state.x), abs(state.x) > 1.0

    def observe(state, out):                # write the observation
        out[0], out[1] = state.x, state.speed
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import gymnasium as gym
import numpy as np

from hybridppo.compiled import kernels
from hybridppo.compiled.sources import Sources, gather
from hybridppo.errors import ConfigurationError, shown
from hybridppo.validation import require_whole

if TYPE_CHECKING:
    from hybridppo.compiled.python_form import PythonForm

FUNCTIONS = {"reset": ("state", "random"), "step": ("state", "action", "random"), "observe": ("state", "out")}
"""What an environment has, with the arguments of each."""

ActionKind = Literal["choice", "choices", "numbers"]


@dataclass(frozen=True, repr=False)
class Definition:
    """A compiled environment. Called, it makes one that Python steps, for looking into: the same source, no Numba.

    It stands for an environment wherever the library takes one: `train(Slide, vectorization="compiled")`.
    """

    name: str
    state: np.dtype[Any]
    """A record: the fields by name."""
    observation_space: gym.spaces.Box
    """Of one dimension, float32."""
    action_space: gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box
    """A `Box` is of one dimension, float32; `step` has a number for `Discrete`, and else an array."""
    episode_length: int
    """Steps after which an episode is truncated; 0 for never."""
    functions: dict[str, Callable[..., Any]]
    """`reset`, `step` and `observe`, as they are in the class."""

    def __call__(self) -> PythonForm:
        """One environment as gymnasium has it, stepped by Python."""
        from hybridppo.compiled.python_form import PythonForm

        return PythonForm(self)

    def __repr__(self) -> str:
        return f"<compiled environment {self.name}>"

    def __getattr__(self, name: str) -> Any:
        # As in the class that it was written as, by which pickle finds them, and messages name it.
        known = self.__dict__
        if name in known.get("functions", ()):
            return known["functions"][name]
        if name in ("__name__", "__qualname__") and "name" in known:
            return known["name"]
        raise AttributeError(f"{type(self).__name__} object has no attribute {name!r}")

    @property
    def action_kind(self) -> ActionKind:
        """What `step` is given."""
        if isinstance(self.action_space, gym.spaces.Box):
            return "numbers"
        return "choice" if isinstance(self.action_space, gym.spaces.Discrete) else "choices"

    @property
    def action_size(self) -> int:
        """How many numbers an action is."""
        return int(np.prod(self.action_space.shape or ()))

    @cached_property
    def sources(self) -> Sources:
        """The functions, all that they call, and the loops around them; goes with the definition to other processes.

        Raises:
            EnvError: where they refer to what cannot be compiled, with the line.
        """
        loops = {name: getattr(kernels, name) for name in (*kernels.CONTRACTED, *kernels.LOOPS)}
        instead = {getattr(kernels, name): function for name, function in self.functions.items()}
        instead[kernels.take] = kernels.take_choice if self.action_kind == "choice" else kernels.step
        instead[kernels.choose] = kernels.choose_numbers if self.action_kind == "numbers" else kernels.choose_one
        return gather(self.name, {**self.functions, **loops}, instead)


def environment(
    *,
    state: Mapping[str, Any],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    episode_length: int = 0,
) -> Callable[[type], Definition]:
    """A decorator for the class that an environment is written as.

    Args:
        state: the type of each field, by its name: a NumPy type of numbers, or such a type and a shape.
        observation_space: a `Box` of one dimension, float32.
        action_space: `Discrete`, `MultiDiscrete` of one dimension, or a `Box` of one dimension, float32.
        episode_length: steps after which an episode is truncated; 0 for never.

    Raises:
        ConfigurationError: naming what cannot be.
    """
    fields = _fields(state)
    require_whole("episode_length", episode_length, 0)
    if not _is_vector(observation_space):
        raise ConfigurationError(
            f"observation_space must be a Box of one dimension and float32, got {observation_space}: write "
            "Box(low, high, (size,), np.float32)"
        )
    is_choice = isinstance(action_space, gym.spaces.Discrete) or (
        isinstance(action_space, gym.spaces.MultiDiscrete) and len(action_space.shape) == 1
    )
    if not is_choice and not _is_vector(action_space):
        raise ConfigurationError(
            f"action_space must be Discrete, "
            f"or of one dimension a MultiDiscrete or a Box of float32, got {action_space}"
        )

    def define(written: type) -> Definition:
        functions = {name: _function(written, name) for name in FUNCTIONS}
        return Definition(
            written.__name__,
            fields,
            cast("gym.spaces.Box", observation_space),
            cast("gym.spaces.Discrete", action_space),
            episode_length,
            functions,
        )

    return define


def _fields(state: Mapping[str, Any]) -> np.dtype[Any]:
    if not isinstance(state, Mapping) or not state:
        raise ConfigurationError(f"state must be types by the name of the field, got {shown(state)}")
    fields = []
    for name, of in state.items():
        try:
            dtype = np.dtype(of)
        except TypeError:
            dtype = np.dtype(object)
        if not (isinstance(name, str) and name.isidentifier()) or dtype.base.kind not in "biuf":
            raise ConfigurationError(
                f"state[{name!r}] must be a type of numbers under a Python name, such as np.float64, or "
                f"(np.float64, (3,)) for an array of three, got {shown(of)}"
            )
        fields.append((name, dtype.base, dtype.shape) if dtype.shape else (name, dtype))
    return np.dtype(fields, align=True)


def _is_vector(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32


def _function(written: type, name: str) -> Callable[..., Any]:
    found = inspect.getattr_static(written, name, None)
    expected = f"def {name}({', '.join(FUNCTIONS[name])})"
    if not inspect.isfunction(found):
        raise ConfigurationError(f"{written.__name__} has no function {name}: write `{expected}` in the class")
    given = list(inspect.signature(found).parameters)
    if len(given) != len(FUNCTIONS[name]):
        raise ConfigurationError(
            f"{written.__name__}.{name} takes ({', '.join(given)}): write `{expected}`, without self: there is no "
            "object, everything an environment remembers is in its state"
        )
    return found
