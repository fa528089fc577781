"""MountainCar, with the same bits as gymnasium's (Moore, 1990)."""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo.compiled.definition import environment
from hybridppo.compiled.random_numbers import uniform

LEFT, RIGHT, FASTEST, GOAL = -1.2, 0.6, 0.07, 0.5
FORCE, GRAVITY = 0.001, 0.0025


@environment(
    state={"place": np.float64, "speed": np.float64},
    observation_space=Box(
        np.array([LEFT, -FASTEST], dtype=np.float32), np.array([RIGHT, FASTEST], dtype=np.float32), dtype=np.float32
    ),
    action_space=Discrete(3),
    episode_length=200,
)
class MountainCar:
    """A car too weak for the hill in front of it; a step costs 1."""

    def reset(state: Any, random: Any) -> None:
        """At rest, near the bottom."""
        state.place, state.speed = uniform(random, -0.6, -0.4), 0.0

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """Push left, not at all, or right."""
        speed = state.speed + ((action - 1) * FORCE + math.cos(3 * state.place) * -GRAVITY)
        speed = min(max(speed, -FASTEST), FASTEST)
        place = min(max(state.place + speed, LEFT), RIGHT)
        if place == LEFT and speed < 0:
            speed = 0.0
        state.place, state.speed = place, speed
        return -1.0, place >= GOAL and speed >= 0.0

    def observe(state: Any, out: Any) -> None:
        """Position and speed."""
        out[0], out[1] = state.place, state.speed
