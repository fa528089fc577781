"""CartPole, with the same bits as gymnasium's (Barto, Sutton and Anderson, 1983)."""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo.compiled.definition import environment
from hybridppo.compiled.random_numbers import uniform

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = POLE_MASS + 1.0
HALF_LENGTH = 0.5
MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0
SECONDS = 0.02
"""Seconds between two steps."""
LARGEST_ANGLE = 12 * 2 * math.pi / 360
FURTHEST = 2.4

HIGH = np.array([FURTHEST * 2, np.inf, LARGEST_ANGLE * 2, np.inf], dtype=np.float32)


@environment(
    state={"x": np.float64, "x_speed": np.float64, "angle": np.float64, "angle_speed": np.float64},
    observation_space=Box(-HIGH, HIGH, dtype=np.float32),
    action_space=Discrete(2),
    episode_length=500,
)
class CartPole:
    """A pole on a cart that is pushed left or right; a step is worth 1."""

    def reset(state: Any, random: Any) -> None:
        """Almost upright."""
        state.x = uniform(random, -0.05, 0.05)
        state.x_speed = uniform(random, -0.05, 0.05)
        state.angle = uniform(random, -0.05, 0.05)
        state.angle_speed = uniform(random, -0.05, 0.05)

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """A step by Euler's method."""
        force = FORCE if action == 1 else -FORCE
        cos, sin = np.cos(state.angle), np.sin(state.angle)
        angle_speed = state.angle_speed
        push = (force + MASS_LENGTH * (angle_speed * angle_speed) * sin) / TOTAL_MASS
        turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS))
        acceleration = push - MASS_LENGTH * turn * cos / TOTAL_MASS
        state.x += SECONDS * state.x_speed
        state.x_speed += SECONDS * acceleration
        state.angle += SECONDS * angle_speed
        state.angle_speed += SECONDS * turn
        return 1.0, abs(state.x) > FURTHEST or abs(state.angle) > LARGEST_ANGLE

    def observe(state: Any, out: Any) -> None:
        """Position, speed, angle and angular speed."""
        out[0], out[1], out[2], out[3] = state.x, state.x_speed, state.angle, state.angle_speed
