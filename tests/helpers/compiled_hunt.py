"""A user's multi-agent environment: hunters on a line, and prey that leaves when it is caught."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo import compiled

HUNTERS, PREY, LENGTH = 2, 3, 12


@compiled.environment(
    policies={"hunter": HUNTERS, "prey": PREY},
    state={"x": np.float64, "caught": np.int64, "steps": (np.int64, (2,))},
    observation_space=Box(-100.0, 100.0, (4,), np.float32),
    action_space=Discrete(3, start=-1),
    episode_length=LENGTH,
    state_space=Box(-100.0, 100.0, (HUNTERS + PREY + 1,), np.float32),
)
class Hunt:
    """Each step moves by one in either direction; the hunter beside it catches prey."""

    def reset(agent, state, random):
        state.x[agent] = compiled.integers(random, 10)
        state.caught[agent] = -1
        state.steps[agent, 0] = 0
        state.steps[agent, 1] = 0

    def move(agent, state, action, random):
        state.x[agent] += action + compiled.uniform(random, -0.1, 0.1)
        state.steps[agent, action % 2] += 1

    def catch(agent, state, action, random):
        if agent >= HUNTERS:
            for hunter in range(HUNTERS):
                if abs(state.x[hunter] - state.x[agent]) < 0.7 and state.steps[agent, 0] + state.steps[agent, 1] > 2:
                    state.caught[agent] = hunter

    def reward(agent, state, time):
        if agent >= HUNTERS:
            return -1.0 if state.caught[agent] >= 0 else 0.1, state.caught[agent] >= 0
        worth = 0.0
        for prey in range(HUNTERS, HUNTERS + PREY):
            if state.caught[prey] == agent:
                worth += 1.0
        return worth, False

    def end(state, time):
        return state.x[0] > 10.5

    def observe(agent, state, time, out):
        out[0], out[1] = state.x[agent], time
        out[2] = state.x[0] - state.x[agent]
        out[3] = state.caught[agent]

    def observe_state(state, time, out):
        out[0] = time
        for agent in range(HUNTERS + PREY):
            out[1 + agent] = state.x[agent] / 2

    def draw(state, time):
        picture = np.zeros((32, 32, 3), np.uint8)
        picture[:, :, 0] = 10 * time
        return picture

    phases = (move, catch)
