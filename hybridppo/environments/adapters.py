"""Environments with habits of their own: several agents in gymnasium's interface, vectors of rewards, and old gym's."""

import copy
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Outer
from hybridppo.environments.checks import five_of, takes_seed, two_of
from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.spaces.checks import as_numbers, require_finite
from hybridppo.spaces.masks import MASK

logger = logging.getLogger(__name__)

CURRENT_PLAYER = "current_player"
"""The key of infos that says whose turn it is, as in EnvPool's games of two players."""


@cache
def _say(what: str) -> None:
    """Log a warning once in a process, since many copies are made."""
    logger.warning("%s", what)


class Adapter(Outer):
    """An environment with another interface."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata, self.render_mode = getattr(env, "metadata", {}), getattr(env, "render_mode", None)

    def render(self) -> Any:
        """The picture of the environment."""
        return self.env.render()


class OldInterface(Adapter, gym.Env[Any, Any]):
    """An environment of gym before 0.26, or with a `reset` that takes no seed, as a `gymnasium.Env`.

    `reset()` may return the observation alone, and `step` the four values of gym before 0.26: observation, reward, done
    and info, in which "TimeLimit.truncated" says that a time limit ended the episode. The seed goes to `reset(seed)`,
    else to the method `seed`, else nowhere, with a warning.

    Args:
        env: an object with `reset`, `step`, `observation_space` and `action_space`. Spaces may be gym's.

    Raises:
        EnvError: if a space is neither gymnasium's nor like one of gym's.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        name = type(self.unwrapped).__name__
        self.observation_space, self.action_space = (
            space_like(getattr(env, each), f"the {each} of {name}") for each in ("observation_space", "action_space")
        )
        self._takes_seed, seed = takes_seed(env.reset), None
        if not self._takes_seed:
            seed = getattr(self.unwrapped, "seed", None)
        self._seed = seed if callable(seed) else None
        if not isinstance(env, gym.Env):
            _say(f"{name} is no gymnasium.Env: its reset and step are taken as those of gym or of gymnasium")
        if not self._takes_seed and self._seed is None:
            _say(f"the reset of {name} takes no seed: the seed of the training does not reach it")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None and self._seed is not None:
            self._seed(seed)
        result = self.env.reset(seed=seed) if self._takes_seed else self.env.reset()
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if is_pair else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Five values, also for an environment that returns four."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            return five_of(result)
        observation, reward, done, info = result
        truncated = isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, done and not truncated, truncated, info


def with_old_interface(made: Any) -> Any:
    """An environment with `OldInterface`, beneath gymnasium's wrappers, which pass a seed on and take five values."""
    inner = made
    while isinstance(inner, gym.Wrapper) and isinstance(inner.env, gym.Wrapper):
        inner = inner.env
    if not isinstance(inner, gym.Wrapper):
        return OldInterface(made)
    if not isinstance(inner.env, OldInterface):
        inner.env = OldInterface(inner.env)
    return made


def space_like(space: Any, what: str) -> gym.Space[Any]:
    """A space of gymnasium that is like a space of gym, by the name of its class and its attributes.

    Raises:
        EnvError: if it is like none.
    """
    if isinstance(space, gym.Space):
        return space
    kind = type(space).__name__.removesuffix("Space")  # crafter has BoxSpace if there is no gym
    if kind == "list":  # of several agents
        return gym.spaces.Tuple([space_like(part, what) for part in space])
    if kind == "Box":
        dtype = np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
        return gym.spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return gym.spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(space.nvec)
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(space.n)
    if kind == "Dict":
        return gym.spaces.Dict({key: space_like(part, what) for key, part in space.spaces.items()})
    if kind == "Tuple":
        return gym.spaces.Tuple([space_like(part, what) for part in space.spaces])
    raise EnvError(f"{what} must be a space of gymnasium or gym, got {shown(space)}")


class TupleOfAgents(Adapter):
    """A gymnasium multi-agent environment, with the methods of PettingZoo's `ParallelEnv`.

        hybridppo.train(lambda: hybridppo.TupleOfAgents(gym.make("rware-tiny-2ag-v2")), total_steps=1_000_000)

    Observations and actions are tuples with a part for each agent, `agent_0`, `agent_1` and so on. Rewards, and the
    flags that end an episode, are one for all agents or a list with one for each. An agent whose episode has ended
    before that of others repeats its last action, which the environment should ignore.

    Args:
        env: the environment.

    Raises:
        EnvError: if its spaces are not tuples of one length.
    """

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        observed: Any = env.observation_space
        acted: Any = env.action_space
        are_tuples = isinstance(observed, gym.spaces.Tuple) and isinstance(acted, gym.spaces.Tuple)
        if not are_tuples or len(observed.spaces) != len(acted.spaces):
            raise EnvError(
                "TupleOfAgents takes an environment whose spaces are tuples with a part for each agent, got "
                f"{observed} and {acted}"
            )
        self.possible_agents = [f"agent_{number}" for number in range(len(observed.spaces))]
        self.agents: list[str] = []
        self._observed = dict(zip(self.possible_agents, observed.spaces, strict=True))
        self._acted = dict(zip(self.possible_agents, acted.spaces, strict=True))
        self._actions: dict[str, Any] = {}
        _say(f"{type(env.unwrapped).__name__} has {len(self.possible_agents)} agents, by its spaces: a row for each")

    def observation_space(self, agent: str) -> "gym.Space[Any]":
        """The agent's part of the space."""
        return self._observed[agent]

    def action_space(self, agent: str) -> "gym.Space[Any]":
        """The agent's part of the space."""
        return self._acted[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The observations and infos by agent."""
        observations, info = two_of(self.env.reset(seed=seed, options=options))
        self.agents, self._actions = list(self.possible_agents), {}
        return self._each("observations", observations), self._infos(info)

    def step(self, actions: dict[str, Any]) -> Any:
        """The five values of PettingZoo, each by agent."""
        self._actions |= actions
        observations, rewards, *ends, info = five_of(self.env.step(tuple(map(self._actions.get, self.possible_agents))))
        terminated, truncated = (self._each("ends", end, is_shared=np.ndim(end) == 0) for end in ends)
        values = (
            self._each("observations", observations),
            self._each("rewards", rewards, is_shared=np.ndim(rewards) == 0),
            terminated,
            truncated,
            self._infos(info),
        )
        found = tuple({agent: each[agent] for agent in self.agents} for each in values)
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return found

    def _each(self, what: str, values: Any, *, is_shared: bool = False) -> dict[str, Any]:
        if is_shared:
            return dict.fromkeys(self.possible_agents, values)
        if len(values) != len(self.possible_agents):
            raise BadValueError(
                f"its {what} must be {len(self.possible_agents)}, one for each agent, got {shown(values)}"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Any) -> dict[str, Any]:
        """The info of each agent: its own if there is a list of them; else the one of all."""
        return self._each("infos", info, is_shared=not isinstance(info, (list, tuple)))


class TwoPlayers(Adapter):
    """Two agents, `player_0` and `player_1`, who take turns in a gymnasium environment.

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
        super().__init__(env)
        self.agents: list[str] = []
        self.agent_selection = ""
        self.infos: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._rewards: dict[str, Any] = {}
        self._ends: tuple[Any, Any] = (False, False)

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

    def _begin_turn(self, observation: Any, info: Any) -> None:
        player = info.get(CURRENT_PLAYER)
        if player not in (0, 1):
            raise BadValueError(f"its info['current_player'] must be 0 or 1, who acts next, and is {shown(player)}")
        agent = self.agent_selection = self.possible_agents[int(player)]
        # The other player's stays, also if the environment writes each observation into the same array.
        self._seen[agent], self.infos[agent] = copy.deepcopy(observation), info


class WeightedRewards(gym.Wrapper[Any, Any, Any, Any]):
    """The weighted sum of an environment's rewards, `[K]`. The info has each of them: `reward_0`, `reward_1`, ...

    Args:
        env: the environment.
        weights: a weight for each reward.
    """

    def __init__(self, env: "gym.Env[Any, Any]", weights: Sequence[float]) -> None:
        super().__init__(env)
        self._weights = np.asarray(weights, np.float64)

    def step(self, action: Any) -> Any:
        """The five values of a step.

        Raises:
            BadValueError: if there is another number of rewards than of weights, or one is not finite.
        """
        observation, rewards, terminated, truncated, info = five_of(self.env.step(action))
        array = as_numbers("its reward", rewards)
        if array.shape != self._weights.shape:
            what = f"reward_weights has {len(self._weights)} weights, and the environment's reward is {shown(rewards)}"
            raise BadValueError(f"{what}: give a weight for each number")
        require_finite("its reward", array)
        own = {f"reward_{number}": float(value) for number, value in enumerate(array)}
        return observation, float(self._weights @ array), terminated, truncated, {**info, **own}
