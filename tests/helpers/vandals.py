"""Environments that overwrite everything that they were given and have returned, for the tests to import.

At each call, a vandal first checks that what it was given before is unchanged, and then destroys all of it and all that
it has returned. Otherwise it behaves like the environment within it.
"""

import copy
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv


def is_tensor(value: Any) -> bool:
    """Without importing torch, which worker processes do without."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_tensor(one):
        return bool(sys.modules["torch"].equal(one, other))
    return bool(np.array_equal(one, other))


def destroy(value: Any) -> None:
    """Write into all arrays and containers of a value."""
    if isinstance(value, dict | list | tuple):
        for part in list(value.values() if isinstance(value, dict) else value):
            destroy(part)
        if not isinstance(value, tuple):
            value.clear()
    elif is_tensor(value):
        value.copy_(value.logical_not() if value.dtype is sys.modules["torch"].bool else 77 - value)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        if value.dtype == object:
            for part in value.ravel():
                destroy(part)
            value[...] = None
        else:
            value[...] = ~value if value.dtype == np.bool_ else 77 - value


class Vandalism:
    """What a vandal has been given, with copies, and what it has returned."""

    def __init__(self) -> None:
        self._given: list[tuple[Any, Any]] = []
        self._returned: list[Any] = []

    def take(self, given: Any) -> Any:
        """Copy what was given now, and destroy what was given and returned before."""
        for one, before in self._given:
            assert same(one, before), f"what was given has become {one}, and was {before}"
        for value in (*(one for one, _ in self._given), *self._returned):
            destroy(value)
        self._given, self._returned = [(given, copy.deepcopy(given))], []
        return copy.deepcopy(given)

    def give(self, result: Any) -> Any:
        """Note what is returned, and destroy at once what was given for it."""
        for one, _ in self._given:
            destroy(one)
        self._given = []
        returned = tuple(as_array(part) for part in copy.deepcopy(result))
        self._returned.append(returned)
        return returned


def as_array(value: Any) -> Any:
    """A number or a truth value as an array, which can be overwritten."""
    return np.array(value) if isinstance(value, float | bool | np.generic) else value


class Vandal(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of one agent, or a vector."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._vandalism = Vandalism()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        options = self._vandalism.take(options)
        return self._vandalism.give(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self._vandalism.give(self.env.step(self._vandalism.take(action)))


class VandalVector(VectorEnv[Any, Any, Any]):
    """A vector environment."""

    def __init__(self, vector: Any) -> None:
        self.vector, self._vandalism = vector, Vandalism()
        self.num_envs, self.metadata = vector.num_envs, vector.metadata
        for kind in ("observation_space", "action_space"):
            setattr(self, kind, getattr(vector, kind))
            setattr(self, f"single_{kind}", getattr(vector, f"single_{kind}"))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        options = self._vandalism.take(options)
        return self._vandalism.give(self.vector.reset(seed=seed, options=options))

    def step(self, actions: Any) -> Any:
        return self._vandalism.give(self.vector.step(self._vandalism.take(actions)))

    def close_extras(self, **kwargs: Any) -> None:
        self.vector.close()


class VandalOthers:
    """A multi-agent environment, or of tensors: `step` takes all actions, `reset` a seed."""

    def __init__(self, env: Any) -> None:
        self._env, self._vandalism = env, Vandalism()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_env"], name)

    def reset(self, *, seed: int | None = None) -> Any:
        self._vandalism.take(None)
        return self._vandalism.give(self._env.reset(seed=seed))

    def step(self, actions: Any) -> Any:
        return self._vandalism.give(self._env.step(self._vandalism.take(actions)))
