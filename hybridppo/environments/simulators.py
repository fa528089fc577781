"""Isaac Lab's and mjlab's environments, whose values are already torch tensors.

Both have the interface that rsl_rl made common: observations are in named groups, one of them for the policy; `step`
resets an ended episode, and does not return its final observation. Neither package is imported.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor


class Simulator:
    """Wraps an environment of Isaac Lab or mjlab as an environment of tensors.

    Args:
        env: a `ManagerBasedRLEnv` or `DirectRLEnv` of Isaac Lab, a `ManagerBasedRlEnv` of mjlab, or what
            `gymnasium.make` made of one; made by you, and closed by you where you give it to `train` itself.
        group: of the observations, that the agent sees.
        clip_actions: between plus and minus that; None for as they are drawn.

    Raises:
        ValueError: if the environment has no such group.
    """

    def __init__(self, env: Any, group: str, clip_actions: float | None = None) -> None:
        self.env, self.group = env, group
        inner = env.unwrapped
        groups = _parts(inner.single_observation_space)
        if group not in groups:
            raise ValueError(f"the environment has no observations {group!r}: it has {', '.join(groups)} (group=...)")
        self.num_envs: int = inner.num_envs
        self.device: Any = inner.device
        self.single_observation_space: gym.Space[Any] = gymnasiums(groups[group])
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
        return observations[self.group], infos

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all environments. If the task has a finite horizon, running out of time terminates an episode."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if self._is_finite:
            terminated = terminated | truncated
        return observations[self.group], rewards, terminated, truncated, infos

    def close(self) -> None:
        """End the simulation."""
        self.env.close()


class IsaacLab(Simulator):
    """An environment of Isaac Lab, whose observations for the policy are called `policy`."""

    def __init__(self, env: Any, group: str = "policy", clip_actions: float | None = None) -> None:
        super().__init__(env, group, clip_actions)


class Mjlab(Simulator):
    """An environment of mjlab, whose observations for the policy are called `actor` (`policy` in early releases)."""

    def __init__(self, env: Any, group: str = "actor", clip_actions: float | None = None) -> None:
        super().__init__(env, group, clip_actions)


def _parts(space: Any) -> Mapping[str, Any]:
    parts = getattr(space, "spaces", None)
    return parts if isinstance(parts, Mapping) else {}


def gymnasiums(space: Any) -> "gym.Space[Any]":
    """A space as gymnasium's; mjlab has its own boxes and dicts."""
    if isinstance(space, gym.Space):
        return space
    if parts := _parts(space):
        return gym.spaces.Dict({name: gymnasiums(part) for name, part in parts.items()})
    return gym.spaces.Box(np.float32(space.low), np.float32(space.high), tuple(space.shape), np.float32)
