"""A gymnasium environment of two players who take turns, with the methods of PettingZoo's `AECEnv`."""

import copy
from typing import Any

import gymnasium as gym

from hybridppo.environments.checks import five_of
from hybridppo.environments.wrappers import MASK
from hybridppo.errors import BadValueError, EnvError, shown

CURRENT_PLAYER = "current_player"
"""The key of infos that says whose turn it is, as in EnvPool's games of two players."""


class TwoPlayers:
    """Two agents, `player_0` and `player_1`, of a gymnasium environment.

        hybridppo.train(lambda: hybridppo.TwoPlayers(MyGame()), self_play=hybridppo.SelfPlay(), total_steps=1_000_000)

    `info["current_player"]` of each reset and step, 0 or 1, is the player who acts next; the observation, and a mask in
    `info["action_mask"]`, are this player's. The reward of a step is that of the player who acted, and the other player
    gets its negative. The info of the last step is both players'. If a game is truncated, the return of the player who
    would not act next is bootstrapped from its last observation.

    Args:
        env: the environment.

    Raises:
        EnvError: if it is not a gymnasium environment.
    """

    possible_agents = ("player_0", "player_1")

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        if not isinstance(env, gym.Env):
            raise EnvError(f"TwoPlayers takes a gymnasium.Env, got {shown(env)}")
        self.env, self.metadata, self.render_mode = env, env.metadata, env.render_mode
        self.agents: list[str] = []
        self.agent_selection = ""
        self.infos: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._rewards: dict[str, Any] = {}
        self._ends: tuple[Any, Any] = (False, False)

    @property
    def unwrapped(self) -> "gym.Env[Any, Any]":
        """The environment without its wrappers."""
        return self.env.unwrapped

    def observation_space(self, agent: str) -> "gym.Space[Any]":
        """The space of the environment."""
        return self.env.observation_space

    def action_space(self, agent: str) -> "gym.Space[Any]":
        """The space of the environment."""
        return self.env.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game; until the second player's first turn, both have the first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        observation = copy.deepcopy(observation)
        self.agents, self._ends = list(self.possible_agents), (False, False)
        self._rewards = dict.fromkeys(self.agents, 0.0)
        self._seen, self.infos = dict.fromkeys(self.agents, observation), dict.fromkeys(self.agents, info)
        self._begin_turn(observation, info)

    def observe(self, agent: str) -> Any:
        """The latest observation of an agent."""
        return self._seen[agent]

    def last(self) -> tuple[Any, Any, Any, Any, Any]:
        """The five values of a step for the agent whose turn it is; the reward is the sum since its last action."""
        agent = self.agent_selection
        return self._seen[agent], self._rewards[agent], *self._ends, self.infos[agent]

    def step(self, action: Any) -> None:
        """Act for the agent whose turn it is, or remove it if the game has ended."""
        agent = self.agent_selection
        if any(self._ends):
            self.agents.remove(agent)
            self.agent_selection = self.agents[0] if self.agents else agent
            return
        observation, reward, *ends, info = five_of(self.env.step(action))
        self._ends = ends[0], ends[1]
        self._rewards[agent] = 0.0
        for each in self.agents:
            self._rewards[each] += reward if each == agent else -reward
            if any(ends):  # also if nobody acts next; a mask belongs to what a player has observed
                own = {key: value for key, value in self.infos[each].items() if key == MASK}
                self.infos[each] = {**info, **own}
        if not any(ends) or CURRENT_PLAYER in info:
            self._begin_turn(observation, info)

    def render(self) -> Any:
        """The picture of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _begin_turn(self, observation: Any, info: Any) -> None:
        player = info.get(CURRENT_PLAYER)
        if player not in (0, 1):
            raise BadValueError(f"its info['current_player'] must be 0 or 1, who acts next, and is {shown(player)}")
        agent = self.agent_selection = self.possible_agents[int(player)]
        # The other player's stays, also if the environment writes each observation into the same array.
        self._seen[agent], self.infos[agent] = copy.deepcopy(observation), info
