"""Pendulum, with the same bits as gymnasium's: the torque's term is float32, as its actions are."""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from hybridppo.compiled.definition import environment
from hybridppo.compiled.random_numbers import uniform

FASTEST = 8.0
MOST = np.float32(2.0)
GRAVITY, SECONDS = 10.0, 0.05
THREE, TORQUE_COST = np.float32(3.0), np.float32(0.001)
HIGH = np.array([1.0, 1.0, FASTEST], dtype=np.float32)


@environment(
    state={"angle": np.float64, "speed": np.float64},
    observation_space=Box(-HIGH, HIGH, dtype=np.float32),
    action_space=Box(-2.0, 2.0, (1,), np.float32),
    episode_length=200,
)
class Pendulum:
    """A pendulum to swing up and hold with a weak torque; angle, speed and torque cost."""

    def reset(state: Any, random: Any) -> None:
        """Any angle and speed."""
        state.angle, state.speed = uniform(random, -math.pi, math.pi), uniform(random, -1.0, 1.0)

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """A step; episodes never end by themselves."""
        torque = min(max(action[0], -MOST), MOST)
        angle, speed = state.angle, state.speed
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_top * from_top + 0.1 * (speed * speed) + TORQUE_COST * (torque * torque)
        speed += (3 * GRAVITY / 2 * np.sin(angle) + THREE * torque) * SECONDS
        state.speed = min(max(speed, -FASTEST), FASTEST)
        state.angle = angle + state.speed * SECONDS
        return -cost, False

    def observe(state: Any, out: Any) -> None:
        """The angle as a point on the circle, and the speed."""
        out[0], out[1], out[2] = np.cos(state.angle), np.sin(state.angle), state.speed
