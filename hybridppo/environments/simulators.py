"""Simulators whose environments are torch tensors already: Isaac Lab's and mjlab's.

Both have the interface that rsl_rl made common: observations in named groups, of which one is for the policy; an
episode that has ended is reset within the step, and its final observation is not given. Nothing of either is imported.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor


class Simulator:
    """An environment of Isaac Lab or mjlab, as environments of tensors are.

    Args:
        env: a `ManagerBasedRLEnv` or `DirectRLEnv` of Isaac Lab, a `ManagerBasedRlEnv` of mjlab, or what
            `gymnasium.make` made of one; made by you, and closed by you where you give it to `train` itself.
        group: of the observations, that the agent sees.
        clip_actions: between plus and minus that; None for as they are drawn.

    Raises:
        ValueError: if there is no such group.
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
        """The simulator's own environment."""
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """All of them."""
        observations, infos = self.env.reset(seed=seed)
        return observations[self.group], infos

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Where the task says that its horizon is finite, time that has run out is an end, and not cut short."""
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
    """A space as gymnasium's: mjlab has boxes and dicts of its own."""
    if isinstance(space, gym.Space):
        return space
    if parts := _parts(space):
        return gym.spaces.Dict({name: gymnasiums(part) for name, part in parts.items()})
    return gym.spaces.Box(np.float32(space.low), np.float32(space.high), tuple(space.shape), np.float32)
