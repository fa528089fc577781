"""Environments in JAX: Brax's and MuJoCo Playground's, whose arrays become torch tensors through DLPack.

Nothing is copied on the way: both libraries see the same memory. jax, brax and mujoco_playground are imported where an
environment is made, and not before.
"""

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

NAME_OF_FINALS = "hybridppo_final_obs"


class JaxEnvironment:
    """A functional environment of Brax's kind, stepped side by side and reset within the step.

    Each environment begins all its episodes where it began its first, as Brax's and Playground's own training does.
    Final observations are true: they are kept before the reset.

    Args:
        env: a single environment: `reset(key)`, `step(state, action)`, `observation_size`, `action_size`.
        num_envs: how many are stepped side by side.
        episode_length: steps after which an episode is truncated.
        action_repeat: how often each action is taken in one step.
        key: of the observations that the agent sees, where they are a dict.
        device: "cpu", "cuda" or "cuda:1"; None for JAX's own choice.
        wrap_reset: what makes an environment reset itself, given one that ends its episodes.

    Raises:
        ValueError: if observations are no vector, or have no such key.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        *,
        episode_length: int,
        action_repeat: int,
        key: str,
        device: str | None,
        wrap_reset: Callable[[Any], Any],
    ) -> None:
        import jax
        from brax.envs.wrappers.training import EpisodeWrapper, VmapWrapper

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
        wrapped = wrap_reset(KeepsFinals(EpisodeWrapper(VmapWrapper(env), episode_length, action_repeat)))
        self._reset, self._step = jax.jit(wrapped.reset), jax.jit(wrapped.step)
        self._seed, self._state = 0, cast(Any, None)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Every environment from a key of its own."""
        self._seed = self._seed + 1 if seed is None else seed
        key = self._jax.device_put(self._jax.random.PRNGKey(self._seed), self._place)
        self._state = self._reset(self._jax.random.split(key, self.num_envs))
        return self._seen(self._state.obs), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Ends that are no truncations are terminations."""
        given = self._jax.dlpack.from_dlpack(actions.contiguous())
        self._state = state = self._step(self._state, given)
        done, truncation = _tensor(state.done) > 0, _tensor(state.info["truncation"]) > 0
        finals = self._seen(state.info[NAME_OF_FINALS])
        return (
            self._seen(state.obs),
            _tensor(state.reward),
            done & ~truncation,
            done & truncation,
            {"final_obs": finals},
        )

    def _seen(self, observations: Any) -> Tensor:
        return _tensor(observations if self._key is None else observations[self._key])

    def get_state(self) -> dict[str, Tensor]:
        """Every array of the state, by its number, as bytes where torch has no such type."""
        leaves = self._jax.tree.leaves(self._state)
        return {f"{i:04}": _tensor(self._plain(leaf)) for i, leaf in enumerate(leaves)}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        leaves, tree = self._jax.tree.flatten(self._state)
        found = [self._as(leaf, state[f"{i:04}"]) for i, leaf in enumerate(leaves)]
        self._state = self._jax.tree.unflatten(tree, found)

    def _plain(self, leaf: Any) -> Any:
        """An array in a type that torch and files have."""
        jnp, array = self._jax.numpy, self._jax.numpy.asarray(leaf)
        kinds = {"bool": jnp.uint8, "uint32": jnp.int32, "uint16": jnp.int16}
        kind = kinds.get(str(array.dtype))
        if kind is None:
            return array
        return array.astype(kind) if kind is jnp.uint8 else self._jax.lax.bitcast_convert_type(array, kind)

    def _as(self, leaf: Any, tensor: Tensor) -> Any:
        """A tensor as an array of the type of a leaf."""
        dtype = self._jax.numpy.asarray(leaf).dtype
        array = self._jax.dlpack.from_dlpack(tensor.clone())
        if array.dtype == dtype:
            return array
        return array.astype(dtype) if str(dtype) == "bool" else self._jax.lax.bitcast_convert_type(array, dtype)


class Brax(JaxEnvironment):
    """An environment of Brax.

    Args:
        env: its name, as `brax.envs.get_environment` takes it, or one that there is.
        num_envs: how many are stepped side by side.
        episode_length: as for `JaxEnvironment`, like all that follow.
        action_repeat: likewise.
        key: likewise.
        device: likewise.
        **options: for `brax.envs.get_environment`, such as `backend`.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        *,
        episode_length: int = 1000,
        action_repeat: int = 1,
        key: str = "state",
        device: str | None = None,
        **options: Any,
    ) -> None:
        from brax import envs
        from brax.envs.wrappers.training import AutoResetWrapper

        made = envs.get_environment(env, **options) if isinstance(env, str) else env
        super().__init__(
            made, num_envs, episode_length=episode_length, action_repeat=action_repeat, key=key, device=device,
            wrap_reset=AutoResetWrapper,
        )  # fmt: skip


class Playground(JaxEnvironment):
    """An environment of MuJoCo Playground.

    Args:
        env: its name, as `mujoco_playground.registry.load` takes it, or one that there is.
        num_envs: how many are stepped side by side.
        episode_length: None for what Playground's own configuration of the environment says.
        action_repeat: None likewise.
        key: as for `JaxEnvironment`.
        device: likewise.
        **options: for `registry.load`, such as `config_overrides`.
    """

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
        from mujoco_playground import registry
        from mujoco_playground._src.wrapper import BraxAutoResetWrapper

        if isinstance(env, str):
            config = registry.get_default_config(env)
            env = registry.load(env, **options)
        else:
            config = {}
        length = episode_length if episode_length is not None else int(config.get("episode_length", 1000))
        repeat = action_repeat if action_repeat is not None else int(config.get("action_repeat", 1))
        super().__init__(
            env, num_envs, episode_length=length, action_repeat=repeat, key=key, device=device,
            wrap_reset=BraxAutoResetWrapper,
        )  # fmt: skip


class KeepsFinals:
    """An environment of many, each of whose states remembers what was seen last, which a reset then writes over."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, rng: Any) -> Any:
        """As the environment's own."""
        return self._kept(self.env.reset(rng))

    def step(self, state: Any, action: Any) -> Any:
        """Likewise."""
        return self._kept(self.env.step(state, action))

    def _kept(self, state: Any) -> Any:
        return state.replace(info={**state.info, NAME_OF_FINALS: state.obs})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def _tensor(array: Any) -> Tensor:
    tensor: Tensor = from_dlpack(array)
    return tensor


def _jax_device(jax: Any, device: str | None) -> Any:
    if device is None:
        return jax.devices()[0]
    wanted = torch.device(device)
    return jax.devices("gpu" if wanted.type == "cuda" else wanted.type)[wanted.index or 0]
