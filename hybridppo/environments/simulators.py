"""Isaac Lab's and mjlab's environments, whose values are already torch tensors.

Both have the interface that rsl_rl made common: observations are in named groups, one of them for the policy; `step`
resets an ended episode, and does not return its final observation. Neither package is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from torch import Tensor


class Simulator:
    """Wraps an environment of Isaac Lab or mjlab as an environment of tensors; arguments as of `IsaacLab`."""

    of_policy: ClassVar[str]
    """The name of the observation group for the policy."""

    def __init__(self, env: Any, group: str | Sequence[str] | None = None, clip_actions: float | None = None) -> None:
        self.env, inner = env, env.unwrapped
        self.group = group = self.of_policy if group is None else group
        groups = _parts(inner.single_observation_space)
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
        actions = gymnasiums(inner.single_action_space)
        if clip_actions is not None:
            actions = gym.spaces.Box(-clip_actions, clip_actions, actions.shape, np.float32)
        self.single_action_space: gym.Space[Any] = actions
        self._is_finite = bool(getattr(inner.cfg, "is_finite_horizon", False))

    @property
    def unwrapped(self) -> Any:
        """The simulator's environment."""
        return self.env.unwrapped

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

    def close(self) -> None:
        """End the simulation."""
        self.env.close()


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

    of_policy = "policy"


class Mjlab(Simulator):
    """An environment of mjlab, whose observation group for the policy is named `actor` (`policy` in early releases).

    Args:
        env: a `ManagerBasedRlEnv`, also within wrappers.
        group: as for `IsaacLab`; None for `actor`.
        clip_actions: as for `IsaacLab`.
    """

    of_policy = "actor"


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
