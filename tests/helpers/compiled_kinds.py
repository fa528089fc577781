"""Environments with rare spaces: several choices at once, and agents whose actions are numbers."""

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from hybridppo import compiled

WEIGHTS = np.array([[0.0, 0.1], [0.5, 0.2], [-0.25, 0.3]], np.float32)


@compiled.environment(
    state={"total": np.float32, "last": (np.int64, (2,))},
    observation_space=Box(-100.0, 100.0, (3,), np.float32),
    action_space=MultiDiscrete([3, 5], start=[-1, 2]),
    episode_length=6,
)
class Choices:
    """Several choices at once, an array of constants, and numbers by NumPy's functions."""

    def reset(state, random):
        state.total = np.float32(compiled.normal(random))
        state.last[0] = state.last[1] = 0

    def step(state, action, random):
        state.last[0], state.last[1] = action[0], action[1]
        state.total += np.float32(0.1) * np.float32(action[0] * action[1]) + WEIGHTS[action[0] + 1, action[1] % 2]
        return state.total, abs(state.total) > 2.0

    def observe(state, out):
        out[0], out[1], out[2] = np.sqrt(abs(state.total)), state.last[0], state.last[1]


@compiled.environment(
    policies={"one": 2, "other": 1},
    state={"x": np.float32, "steps": (np.int32, (2, 2))},
    observation_space=Box(-100.0, 100.0, (3,), np.float32),
    action_space=Box(-2.0, 2.0, (2,), np.float32),
    episode_length=5,
)
class Numbers:
    """Agents whose actions are numbers, truncated, with a field of two dimensions."""

    def reset(agent, state, random):
        state.x[agent] = np.float32(compiled.normal(random))
        for i in range(2):
            for j in range(2):
                state.steps[agent, i, j] = 0

    def go(agent, state, action, random):
        state.x[agent] += action[0] - action[1] + np.float32(compiled.uniform(random, -0.1, 0.1))
        state.steps[agent, 1, 0] += 1

    def reward(agent, state, time):
        return -abs(state.x[agent]), state.x[agent] > np.float32(5.0)

    def observe(agent, state, time, out):
        out[0], out[1], out[2] = state.x[agent], state.x[0], state.steps[agent, 1, 0]

    phases = (go,)
