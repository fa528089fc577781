"""A user's environment, with constants, a helper, an array in its state, and noise in its steps."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo import compiled

WIDTH = 5
SLOTS = (0.25, 0.5)


def fall(height, by):
    """A helper function."""
    return height - by


@compiled.environment(
    state={"ball": (np.float64, (2,)), "paddle": np.float64, "caught": np.int64},
    observation_space=Box(-10.0, 10.0, (3,), np.float32),
    action_space=Discrete(3, start=-1),
    episode_length=30,
)
class Catch:
    """A ball falls, and the paddle must be below it."""

    def reset(state, random):
        state.ball[0] = compiled.integers(random, WIDTH)
        state.ball[1] = 4.0
        state.paddle = 2.0
        state.caught = 0

    def step(state, action, random):
        state.paddle = min(max(state.paddle + action, 0.0), WIDTH - 1.0)
        speed = SLOTS[0] if compiled.uniform(random, 0.0, 1.0) < 0.5 else SLOTS[1]
        state.ball[1] = fall(state.ball[1], speed)
        if state.ball[1] > 0.0:
            return 0.0, False
        is_caught = abs(state.ball[0] - state.paddle) < 0.5
        if not is_caught:
            return -1.0, True
        state.caught += 1
        state.ball[0] = compiled.integers(random, WIDTH)
        state.ball[1] = 4.0
        return 1.0, False

    def observe(state, out):
        out[0], out[1] = state.ball[0] - state.paddle, state.ball[1]
        out[2] = state.caught
