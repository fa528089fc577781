"""Environments in JAX: Brax's and MuJoCo Playground's, whose arrays become torch tensors through DLPack.

Both libraries use the same memory, so nothing is copied. jax, brax and mujoco_playground are imported when an
environment is made.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

NAME_OF_FINALS = "hybridppo_final_obs"


class JaxEnvironment:
    """Steps many copies of a functional environment of Brax's kind; `step` resets ended episodes.

    Each copy begins all episodes in the same state, as in the training of Brax and Playground. Final observations are
    kept before the reset.

    Args:
        env: the environment, or the name by which the library makes one.
        num_envs: number of copies.
        episode_length: steps after which an episode is truncated; None for the library's default, or 1,000.
        action_repeat: how often each action is taken in one step; None for the library's default, or 1.
        key: key of the agent's observations, if they are a dict.
        device: "cpu", "cuda" or "cuda:1"; None for JAX's choice.
        **options: for the function of the library that makes the environment.

    Raises:
        ValueError: if observations are not vectors, or lack the key.
    """

    _library: Callable[[], tuple[Any, ...]]
    """Gives the functions that make an environment and its defaults by a name, and the wrapper that resets itself."""

    def __init__(
        self,
        env: Any,
        num_envs: int,
        *,
        episode_length: int | None = None,
        action_repeat: int | None = None,
        key: str = "state",
        device: str | None = None,
        **options: Any,
    ) -> None:
        import jax
        from brax.envs.wrappers.training import EpisodeWrapper, VmapWrapper

        make, defaults_of, wrap_reset = self._library()
        defaults: Any = {}
        if isinstance(env, str):
            env, defaults = make(env, **options), defaults_of(env)
        length = episode_length if episode_length is not None else int(defaults.get("episode_length", 1000))
        repeat = action_repeat if action_repeat is not None else int(defaults.get("action_repeat", 1))
        self._jax, self.num_envs = jax, num_envs
        size = env.observation_size
        self._key = key if isinstance(size, dict) else None
        if self._key is not None:
            if self._key not in size:
                raise ValueError(f"its observations have no {key!r}: they have {', '.join(size)} (key=...)")
            size = size[self._key]
        shape = (size,) if isinstance(size, int) else tuple(size)
        self.single_observation_space: gym.Space[Any] = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space: gym.Space[Any] = gym.spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)
        self._place = _jax_device(jax, device)
        self.device: torch.device = _tensor(jax.device_put(jax.numpy.zeros(1), self._place)).device
        wrapped = wrap_reset(KeepsFinals(EpisodeWrapper(VmapWrapper(env), length, repeat)))
        self._reset, self._step = jax.jit(wrapped.reset), jax.jit(wrapped.step)
        self._seed, self._state = 0, cast(Any, None)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Reset all environments, each with its own random key."""
        self._seed = self._seed + 1 if seed is None else seed
        key = self._jax.device_put(self._jax.random.PRNGKey(self._seed), self._place)
        self._state = self._reset(self._jax.random.split(key, self.num_envs))
        return self._seen(self._state.obs), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """Step all environments; an end that is not a truncation is a termination. Infos have the state's metrics."""
        given = self._jax.dlpack.from_dlpack(actions.contiguous())
        self._state = state = self._step(self._state, given)
        done, truncation = _tensor(state.done) > 0, _tensor(state.info["truncation"]) > 0
        infos = Tensors({**state.metrics, "final_obs": self._own(state.info[NAME_OF_FINALS])})
        return self._seen(state.obs), _tensor(state.reward), done & ~truncation, done & truncation, infos

    def _seen(self, observations: Any) -> Tensor:
        return _tensor(self._own(observations))

    def _own(self, observations: Any) -> Any:
        return observations if self._key is None else observations[self._key]

    def get_state(self) -> dict[str, Tensor]:
        """The bytes of all arrays of the state, by number: torch lacks some of their types."""
        leaves = map(np.ascontiguousarray, self._jax.tree.leaves(self._state))
        return {f"{i:04}": torch.tensor(leaf.reshape(-1).view(np.uint8)) for i, leaf in enumerate(leaves)}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `get_state`."""
        leaves, tree = self._jax.tree.flatten(self._state)
        found = [
            self._jax.device_put(state[f"{i:04}"].numpy().view(leaf.dtype).reshape(leaf.shape), self._place)
            for i, leaf in enumerate(leaves)
        ]
        self._state = self._jax.tree.unflatten(tree, found)


class Tensors(Mapping[str, Tensor]):
    """Arrays of JAX by name, which become tensors when they are looked up."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Tensor:
        return _tensor(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class Brax(JaxEnvironment):
    """An environment of Brax. A name and `options`, such as `backend`, are for `brax.envs.get_environment`."""

    @staticmethod
    def _library() -> tuple[Any, ...]:
        from brax import envs
        from brax.envs.wrappers.training import AutoResetWrapper

        return envs.get_environment, lambda name: {}, AutoResetWrapper


class Playground(JaxEnvironment):
    """An environment of MuJoCo Playground. A name and `options`, as `config_overrides`, are for `registry.load`."""

    @staticmethod
    def _library() -> tuple[Any, ...]:
        from mujoco_playground import registry
        from mujoco_playground._src.wrapper import BraxAutoResetWrapper

        return registry.load, registry.get_default_config, BraxAutoResetWrapper


class KeepsFinals:
    """Keeps the last observation of each state, because a reset overwrites it."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, rng: Any) -> Any:
        """The environment's `reset`."""
        return self._kept(self.env.reset(rng))

    def step(self, state: Any, action: Any) -> Any:
        """The environment's `step`."""
        return self._kept(self.env.step(state, action))

    def _kept(self, state: Any) -> Any:
        return state.replace(info={**state.info, NAME_OF_FINALS: state.obs})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def _tensor(array: Any) -> Tensor:
    return from_dlpack(array)


def _jax_device(jax: Any, device: str | None) -> Any:
    if device is None:
        return jax.devices()[0]
    wanted = torch.device(device)
    return jax.devices("gpu" if wanted.type == "cuda" else wanted.type)[wanted.index or 0]
