"""Acrobot, as in gymnasium up to rounding (Sutton, 1996; the equations of Sutton and Barto's book)."""

from math import pi
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo.compiled.definition import environment
from hybridppo.compiled.random_numbers import uniform

FASTEST_1, FASTEST_2 = 4 * pi, 9 * pi
"""Largest speeds of both angles."""
SECONDS = 0.2
LENGTH, CENTRE, MASS, INERTIA, GRAVITY = 1.0, 0.5, 1.0, 1.0, 9.8
"""Length, mass and inertia of both links."""
HIGH = np.array([1.0, 1.0, 1.0, 1.0, FASTEST_1, FASTEST_2], dtype=np.float32)


def accelerations(angle_1: float, angle_2: float, speed_1: float, speed_2: float, torque: float) -> Any:
    """The angular accelerations of both links."""
    cos, sin = np.cos(angle_2), np.sin(angle_2)
    d1 = MASS * CENTRE**2 + MASS * (LENGTH**2 + CENTRE**2 + 2 * LENGTH * CENTRE * cos) + INERTIA + INERTIA
    d2 = MASS * (CENTRE**2 + LENGTH * CENTRE * cos) + INERTIA
    phi2 = MASS * CENTRE * GRAVITY * np.cos(angle_1 + angle_2 - pi / 2.0)
    phi1 = (
        -MASS * LENGTH * CENTRE * speed_2**2 * sin
        - 2 * MASS * LENGTH * CENTRE * speed_2 * speed_1 * sin
        + (MASS * CENTRE + MASS * LENGTH) * GRAVITY * np.cos(angle_1 - pi / 2)
        + phi2
    )
    second = (torque + d2 / d1 * phi1 - MASS * LENGTH * CENTRE * speed_1**2 * sin - phi2) / (
        MASS * CENTRE**2 + INERTIA - d2**2 / d1
    )
    return -(d2 * second + phi1) / d1, second


def wrapped(angle: float) -> float:
    """Between -pi and pi."""
    while angle > pi:
        angle -= 2 * pi
    while angle < -pi:
        angle += 2 * pi
    return angle


@environment(
    state={"angle_1": np.float64, "angle_2": np.float64, "speed_1": np.float64, "speed_2": np.float64},
    observation_space=Box(-HIGH, HIGH, dtype=np.float32),
    action_space=Discrete(3),
    episode_length=500,
)
class Acrobot:
    """Two hanging links, to be swung above a line by a torque between them; a step costs 1."""

    def reset(state: Any, random: Any) -> None:
        """Almost hanging; in float32, as in gymnasium."""
        state.angle_1 = np.float32(uniform(random, -0.1, 0.1))
        state.angle_2 = np.float32(uniform(random, -0.1, 0.1))
        state.speed_1 = np.float32(uniform(random, -0.1, 0.1))
        state.speed_2 = np.float32(uniform(random, -0.1, 0.1))

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """The Runge-Kutta method of fourth order."""
        torque, half = action - 1.0, SECONDS / 2.0
        a, b, va, vb = state.angle_1, state.angle_2, state.speed_1, state.speed_2
        wa1, wb1 = accelerations(a, b, va, vb, torque)
        va2, vb2 = va + half * wa1, vb + half * wb1
        wa2, wb2 = accelerations(a + half * va, b + half * vb, va2, vb2, torque)
        va3, vb3 = va + half * wa2, vb + half * wb2
        wa3, wb3 = accelerations(a + half * va2, b + half * vb2, va3, vb3, torque)
        va4, vb4 = va + SECONDS * wa3, vb + SECONDS * wb3
        wa4, wb4 = accelerations(a + SECONDS * va3, b + SECONDS * vb3, va4, vb4, torque)
        sixth = SECONDS / 6.0
        state.angle_1 = wrapped(a + sixth * (va + 2 * va2 + 2 * va3 + va4))
        state.angle_2 = wrapped(b + sixth * (vb + 2 * vb2 + 2 * vb3 + vb4))
        state.speed_1 = min(max(va + sixth * (wa1 + 2 * wa2 + 2 * wa3 + wa4), -FASTEST_1), FASTEST_1)
        state.speed_2 = min(max(vb + sixth * (wb1 + 2 * wb2 + 2 * wb3 + wb4), -FASTEST_2), FASTEST_2)
        is_above = -np.cos(state.angle_1) - np.cos(state.angle_2 + state.angle_1) > 1.0
        return (0.0 if is_above else -1.0), is_above

    def observe(state: Any, out: Any) -> None:
        """Both angles as points on the circle, and the speeds."""
        out[0], out[1] = np.cos(state.angle_1), np.sin(state.angle_1)
        out[2], out[3] = np.cos(state.angle_2), np.sin(state.angle_2)
        out[4], out[5] = state.speed_1, state.speed_2
