"""MountainCarContinuous, with the same bits as gymnasium's: its state is float32 from the first step on."""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from hybridppo.compiled.definition import environment
from hybridppo.compiled.random_numbers import uniform

LEFT, RIGHT, FASTEST = np.float32(-1.2), np.float32(0.6), np.float32(0.07)
GOAL = np.float32(0.45)
POWER = np.float32(0.0015)
GRAVITY = 0.0025
NOTHING, MOST = np.float32(0.0), np.float32(1.0)


@environment(
    state={"place": np.float32, "speed": np.float32},
    observation_space=Box(
        np.array([LEFT, -FASTEST], dtype=np.float32), np.array([RIGHT, FASTEST], dtype=np.float32), dtype=np.float32
    ),
    action_space=Box(-1.0, 1.0, (1,), np.float32),
    episode_length=999,
)
class MountainCarContinuous:
    """The car with a force between -1 and 1; the goal is worth 100, and a force costs its square."""

    def reset(state: Any, random: Any) -> None:
        """At rest, near the bottom."""
        state.place, state.speed = np.float32(uniform(random, -0.6, -0.4)), NOTHING

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """Push the car."""
        force = min(max(action[0], -MOST), MOST)
        speed = state.speed + (
            force * POWER - np.float32(GRAVITY * math.cos(np.float64(np.float32(3.0) * state.place)))
        )
        speed = min(max(speed, -FASTEST), FASTEST)
        place = min(max(state.place + speed, LEFT), RIGHT)
        if place == LEFT and speed < NOTHING:
            speed = NOTHING
        state.place, state.speed = place, speed
        is_there = bool(place >= GOAL and speed >= NOTHING)
        cost = np.float64(action[0]) * np.float64(action[0]) * 0.1
        return (100.0 if is_there else 0.0) - cost, is_there

    def observe(state: Any, out: Any) -> None:
        """Position and speed."""
        out[0], out[1] = state.place, state.speed
