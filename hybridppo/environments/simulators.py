"""Environments of Isaac Lab, of mjlab, and those made for rsl_rl, whose values are already torch tensors.

Observations are in named groups, one of them for the policy; `step` resets an ended episode, and does not return its
final observation. None of these packages is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.base import Outer


class Simulator(Outer):
    """Wraps an environment of Isaac Lab or mjlab as a batched environment; arguments as of `IsaacLab`."""

    of_policy: ClassVar[tuple[str, ...]]
    """The names that the observation group for the policy may have."""

    def __init__(self, env: Any, group: str | Sequence[str] | None = None, clip_actions: float | None = None) -> None:
        self.env, inner = env, getattr(env, "unwrapped", env)
        groups, actions = self._spaces(inner)
        if group is None:
            group = next((name for name in self.of_policy if name in groups), self.of_policy[0])
        self.group = group
        asked = [group] if isinstance(group, str) else list(group)
        missing = next((name for name in asked if name not in groups), None)
        if missing is not None or not asked:
            what = f"no observations {missing!r}" if asked else "observations, and group=() names none"
            raise ValueError(f"the environment has {what}: it has {', '.join(groups)} (group=...)")
        self.num_envs: int = inner.num_envs
        self.device: Any = inner.device
        spaces = {name: gymnasiums(groups[name]) for name in asked}
        self.single_observation_space: gym.Space[Any] = (
            spaces[group] if isinstance(group, str) else gym.spaces.Dict(spaces)
        )
        if clip_actions is not None:
            actions = gym.spaces.Box(-clip_actions, clip_actions, actions.shape, np.float32)
        self.single_action_space: gym.Space[Any] = actions
        self._is_finite = bool(getattr(getattr(inner, "cfg", None), "is_finite_horizon", False))

    def _spaces(self, inner: Any) -> "tuple[Mapping[str, Any], gym.Space[Any]]":
        """The space of each observation group, and that of actions."""
        return _parts(inner.single_observation_space), gymnasiums(inner.single_action_space)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments."""
        observations, infos = self.env.reset(seed=seed)
        return self._seen(observations), infos

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all environments. If the task has a finite horizon, running out of time terminates an episode."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if self._is_finite:
            terminated = terminated | truncated
        return self._seen(observations), rewards, terminated, truncated, infos

    def _seen(self, observations: Any) -> Any:
        if isinstance(self.group, str):
            return observations[self.group]
        return {name: observations[name] for name in self.group}


class IsaacLab(Simulator):
    """An environment of Isaac Lab, whose observation group for the policy is named `policy`.

    Args:
        env: a `ManagerBasedRLEnv` or `DirectRLEnv`, also within wrappers, as `gymnasium.make` returns it. If you pass
            the environment itself to `train`, close it yourself.
        group: the name of the observation group that the agent sees, None for `policy`; or several names. Observations
            are then a `Dict` of these groups, and `actor_keys` and `critic_keys` select the groups of the actor and of
            the critic.
        clip_actions: the largest absolute value of an action; None to clip nothing.

    Raises:
        ValueError: if the environment has no such group.
    """

    of_policy = ("policy",)


class Mjlab(Simulator):
    """An environment of mjlab, whose observation group for the policy is named `actor` (`policy` in early releases).

    Args:
        env: a `ManagerBasedRlEnv`, also within wrappers.
        group: as for `IsaacLab`; None for `actor`.
        clip_actions: as for `IsaacLab`.
    """

    of_policy = ("actor",)


class RslRlVecEnv(Simulator):
    """An environment made for rsl_rl: a `VecEnv`, whose `step` returns observations, rewards, dones and extras.

    An episode whose flag in `extras["time_outs"]` is set was truncated. Observations are a `TensorDict` of groups (from
    rsl_rl 3 on), a tensor and `extras["observations"]` (2), or two tensors, the second of which is the group `critic`
    (1). The interface has no seed: `env.seed(seed)` is called if there is such a method.

    Args:
        env: the environment.
        group: as for `IsaacLab`; None for `policy`, or else `actor`.
        clip_actions: as for `IsaacLab`.
    """

    of_policy = ("policy", "actor")

    def _spaces(self, inner: Any) -> "tuple[Mapping[str, Any], gym.Space[Any]]":
        groups = {
            name: gym.spaces.Box(-np.inf, np.inf, tuple(rows.shape[1:])) for name, rows in self._observed().items()
        }
        return groups, gym.spaces.Box(-np.inf, np.inf, (int(self.env.num_actions),))

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, if there is such a method."""
        if seed is not None:
            getattr(self.env, "seed", lambda seed: None)(seed)
        getattr(self.env, "reset", lambda: None)()
        return self._seen(self._observed()), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all environments."""
        observations, *privileged, rewards, dones, extras = self.env.step(actions)
        ended = dones.bool()
        truncated = ended & extras["time_outs"].bool() if "time_outs" in extras else torch.zeros_like(ended)
        return self._seen(_groups(observations, extras, *privileged)), rewards, ended & ~truncated, truncated, extras

    def _observed(self) -> Any:
        """The present observations by group."""
        found, privileged = self.env.get_observations(), getattr(self.env, "get_privileged_observations", lambda: None)
        observations, extras = found if isinstance(found, tuple) else (found, {})
        return _groups(observations, extras, privileged())


def _groups(observations: Any, extras: Mapping[str, Any], privileged: Any = None) -> Any:
    """Observations of a `VecEnv` by group, in each of the three forms."""
    if not isinstance(observations, Tensor):
        return observations
    found = {"policy": observations, **extras.get("observations", {})}
    return found if privileged is None else {**found, "critic": privileged}


def _parts(space: Any) -> Mapping[str, Any]:
    parts = getattr(space, "spaces", None)
    return parts if isinstance(parts, Mapping) else {}


def gymnasiums(space: Any) -> "gym.Space[Any]":
    """A space as one of gymnasium's; mjlab has its own boxes and dicts."""
    if isinstance(space, gym.Space):
        return space
    if parts := _parts(space):
        return gym.spaces.Dict({name: gymnasiums(part) for name, part in parts.items()})
    return gym.spaces.Box(np.float32(space.low), np.float32(space.high), tuple(space.shape), np.float32)
