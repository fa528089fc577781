"""Small environments that depend only on their seeds, for tests of combinations. Worker processes need no torch."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

EPISODE = 5


class Toy(gym.Env[Any, Any]):
    """Episodes of 5 steps, which depend only on the seed. Some are truncated; a large number asks for large actions.

    Args:
        kind: "numbers" for actions of a Box, else choices.
        masks: whether one choice of three is forbidden; taking it is an error.
        fails: whether one step in fifty raises an error.
    """

    observation_space = Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, kind: str = "choices", masks: bool = False, fails: bool = False) -> None:
        self.action_space = Box(-1.0, 1.0, (2,), np.float32) if kind == "numbers" else Discrete(3)
        self._masks, self._fails = masks, fails
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step, self._is_cut = 0, bool(self.np_random.integers(2))
        return self._observe()

    def step(self, action: Any) -> Any:
        if self._masks and action == self._forbidden:
            raise ValueError(f"{action} is forbidden")
        self._step += 1
        if self._fails and self._seen[0] > 0.96:
            raise ValueError("it happens")
        reward = float(np.mean(action)) * float(self._seen[0])
        observation, info = self._observe()
        is_last = self._step == EPISODE
        return observation, reward, is_last and not self._is_cut, is_last and self._is_cut, info

    def _observe(self) -> Any:
        self._seen = self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)
        self._forbidden = int(self.np_random.integers(3))
        return self._seen, {"action_mask": np.arange(3) != self._forbidden} if self._masks else {}


class ToyAgents:
    """Two of them side by side; the second leaves after 3 steps."""

    possible_agents = ("stays", "leaves")

    def __init__(self, **options: Any) -> None:
        self._games = {agent: Toy(**options) for agent in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._games[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._games[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._step = list(self.possible_agents), 0
        seen = {
            agent: game.reset(seed=None if seed is None else 2 * seed + i)
            for i, (agent, game) in enumerate(self._games.items())
        }
        return {agent: one[0] for agent, one in seen.items()}, {agent: one[1] for agent, one in seen.items()}

    def step(self, actions: dict[str, Any]) -> Any:
        self._step += 1
        seen = {agent: self._games[agent].step(actions[agent]) for agent in self.agents}
        observations, rewards, terminated, truncated, infos = (
            {agent: one[i] for agent, one in seen.items()} for i in range(5)
        )
        if "leaves" in terminated and self._step == 3:
            terminated["leaves"] = True
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return observations, rewards, terminated, truncated, infos

    def close(self) -> None:
        pass
