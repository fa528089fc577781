"""Multi-agent environments whose true returns are known, for the tests to import. None needs PettingZoo."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from space_kinds import draw

import hybridppo

AgentScript = Sequence[tuple[int, str]]
"""Length and end of each of an agent's episodes: "terminated", "truncated", "both"; with length 0 it is absent."""


def scripted_reward(episode: int, agent: int, step: int) -> float:
    return float(100 * episode + 10 * agent + step + 1)


class ScriptedAgents:
    """Episodes that no action changes. Observations are (episode, agent, steps done), each seen only once.

    `actions` holds the mapping of every step. An agent that has left is spoken of no more.
    """

    def __init__(self, scripts: Sequence[AgentScript], observation_space: gym.Space[Any] | None = None) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(scripts))]
        self.agents: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.seeds: list[int | None] = []
        self.times_closed = 0
        self._scripts, self._episode, self._step = scripts, -1, 0
        self._space = observation_space if observation_space is not None else Box(-np.inf, np.inf, (3,), np.float32)

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        self._episode, self._step = self._episode + 1, 0
        self.agents = [agent for i, agent in enumerate(self.possible_agents) if self._length(i)]
        return {agent: self._seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.actions.append(dict(actions))
        assert list(actions) == self.agents
        acting, step = self.agents, self._step
        self._step += 1
        rewards = {agent: scripted_reward(self._episode, self.number(agent), step) for agent in acting}
        ends = {agent: self._end(self.number(agent)) for agent in acting}
        terminated = {agent: end in ("terminated", "both") for agent, end in ends.items()}
        truncated = {agent: end in ("truncated", "both") for agent, end in ends.items()}
        self.agents = [agent for agent in acting if not ends[agent]]
        observations = {agent: self._seen(agent) for agent in acting}
        return observations, rewards, terminated, truncated, {agent: {} for agent in acting}

    def close(self) -> None:
        self.times_closed += 1

    def number(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _length(self, i: int) -> int:
        return self._scripts[i][self._episode % len(self._scripts[i])][0]

    def _end(self, i: int) -> str:
        return self._scripts[i][self._episode % len(self._scripts[i])][1] if self._step == self._length(i) else ""

    def _seen(self, agent: str) -> np.ndarray:
        return np.array((self._episode, self.number(agent), self._step), np.float32)


class FromOneToTwo(ScriptedAgents):
    """Two agents that observe 1.5, in a space without zeros; they leave one after the other."""

    def __init__(self) -> None:
        super().__init__([[(3, "terminated")], [(6, "truncated")]], Box(1.0, 2.0, (3,)))

    def _seen(self, agent: str) -> np.ndarray:
        return np.full(3, 1.5, np.float32)


class Matching:
    """Each agent must name what it observes, and is rewarded by 1 if it does. They leave one after the other.

    The `i`-th agent stays for `length - i` steps; every second is truncated. With `masks`, what is observed is allowed
    and one thing besides, and an action that is not is an error. In every other episode, the last agent is not there.
    """

    def __init__(
        self,
        num_agents: int = 3,
        length: int = 8,
        space: gym.Space[Any] | None = None,
        masks: bool = False,
    ) -> None:
        self.possible_agents = [f"player {i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.np_random = np.random.default_rng(0)
        self._length, self._space, self._masks = length, Discrete(4) if space is None else space, masks
        self._steps = self._episodes = 0

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return Discrete(4) if not isinstance(self._space, Discrete) else self._space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random, self._episodes = np.random.default_rng(seed), 0
        self._steps, self._episodes = 0, self._episodes + 1
        self.agents = self.possible_agents[: len(self.possible_agents) - (self._episodes % 2 == 0)]
        return self._observe(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        acting = self.agents
        for agent in acting:
            if self._masks and not self._allowed[agent][int(actions[agent])]:
                raise ValueError(f"{agent} may not do {actions[agent]}")
        rewards = {agent: float(actions[agent] == self._wanted[agent]) for agent in acting}
        self._steps += 1
        has_left = {a: self._steps == self._length - self.possible_agents.index(a) for a in acting}
        truncated = {a: has_left[a] and self.possible_agents.index(a) % 2 == 1 for a in acting}
        terminated = {a: has_left[a] and not truncated[a] for a in acting}
        observations, infos = self._observe(acting)
        self.agents = [agent for agent in acting if not has_left[agent]]
        return observations, rewards, terminated, truncated, infos

    def best(self, agent: str) -> float:
        """The best return of an agent."""
        return float(self._length - self.possible_agents.index(agent))

    def _observe(self, agents: list[str]) -> Any:
        self._wanted = {agent: int(self.np_random.integers(4)) for agent in agents}
        self._allowed = {agent: self._mask(self._wanted[agent]) for agent in agents}
        infos = {agent: {"action_mask": self._allowed[agent]} if self._masks else {} for agent in agents}
        return {agent: self._seen(self._wanted[agent]) for agent in agents}, infos

    def _mask(self, wanted: int) -> np.ndarray:
        mask = np.zeros(4, np.int8)
        mask[[wanted, int(self.np_random.integers(4))]] = 1
        return mask

    def _seen(self, wanted: int) -> Any:
        if isinstance(self._space, Discrete):
            return wanted
        if isinstance(self._space, gym.spaces.Dict):
            drawn = draw(self._space, self.np_random)
            return {**drawn, "wanted": wanted}
        row = np.zeros(self._space.shape, self._space.dtype)
        row.reshape(-1)[wanted] = self._space.high.reshape(-1)[wanted]
        return row


AGENT_KINDS: dict[str, Callable[..., Matching]] = {
    "discrete": Matching,
    "vectors": partial(Matching, space=Box(0.0, 1.0, (2, 2))),
    "images": partial(Matching, space=Box(0, 255, (4, 4, 1), np.uint8)),
    "images and choices": partial(
        Matching, space=gym.spaces.Dict({"camera": Box(0, 255, (3, 3, 1), np.uint8), "wanted": Discrete(4)})
    ),
}
"""To add a kind, add a line."""


class FaultyAgents(ScriptedAgents):
    """Two agents in episodes of 10 steps, in which `fault` may alter what `reset` or `step` returns.

    It is called with the environment and that, as `env.steps` counts the steps of its life, from 1 on.
    """

    def __init__(self, fault: Callable[["FaultyAgents", Any], Any]) -> None:
        super().__init__([[(10, "truncated")], [(10, "terminated")]], Box(-1e4, 1e4, (3,), np.float32))
        self.steps, self.seed, self._fault = 0, None, fault

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed if seed is not None else self.seed
        return self._fault(self, super().reset(seed))

    def step(self, actions: dict[str, Any]) -> Any:
        self.steps += 1
        return self._fault(self, super().step(actions))


class Unlike:
    """Agents of two kinds with different spaces: each must do what it observes, and is rewarded if it does.

    A `sign` observes one of four, and names it. A `pointer` observes six numbers, of which the second is the target and
    the others are noise, and gives two numbers, of which the first is to be near the target. Agents leave one after the
    other, as in `Matching`. With `images`, a pointer observes an image, and if they are "beside", also the numbers.
    """

    possible_agents = ("sign_0", "pointer_0", "sign_1", "pointer_1")

    def __init__(self, length: int = 6, images: bool | str = False) -> None:
        self.agents: list[str] = []
        self.np_random = np.random.default_rng(0)
        self._length, self._steps = length, 0
        self._images, numbers = images, Box(-1.0, 1.0, (6,), np.float32)
        image = Box(0, 255, (4, 4, 1), np.uint8)
        self._pointers: Any = image if images is True else numbers
        if images == "beside":
            self._pointers = gym.spaces.Dict(camera=image, numbers=numbers)

    def observation_space(self, agent: str) -> Any:
        return Discrete(4) if agent.startswith("sign") else self._pointers

    def action_space(self, agent: str) -> Any:
        return Discrete(4) if agent.startswith("sign") else Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._steps, self.agents = 0, list(self.possible_agents)
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        acting = self.agents
        assert list(actions) == acting
        rewards = {agent: self._reward(agent, actions[agent]) for agent in acting}
        self._steps += 1
        ends = {a: self._steps == self._length - self.possible_agents.index(a) for a in acting}
        truncated = {a: ends[a] and a.endswith("1") for a in acting}
        terminated = {a: ends[a] and not truncated[a] for a in acting}
        observations = self._observe()
        self.agents = [agent for agent in acting if not ends[agent]]
        return observations, rewards, terminated, truncated, {}

    def _reward(self, agent: str, action: Any) -> float:
        if agent.startswith("sign"):
            return float(action == self._targets[agent])
        assert np.shape(action) == (2,)
        return 1.0 - abs(float(action[0]) - float(self._targets[agent]))

    def _observe(self) -> dict[str, Any]:
        self._targets: dict[str, Any] = {}
        observations: dict[str, Any] = {}
        for agent in self.agents:
            if agent.startswith("sign"):
                observations[agent] = self._targets[agent] = int(self.np_random.integers(4))
            else:
                numbers = self.np_random.uniform(-1.0, 1.0, 6).astype(np.float32)
                self._targets[agent] = numbers[1]
                pixels = np.full((4, 4, 1), 127.5 * (numbers[1] + 1.0)).astype(np.uint8)
                both = {"camera": pixels, "numbers": numbers}
                observations[agent] = both if self._images == "beside" else pixels if self._images else numbers
        return observations


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class NoughtsAndCrosses(gym.Env[Any, Any]):
    """Tic-tac-toe as one gymnasium environment, with the observations, rewards and masks of PettingZoo's."""

    metadata: ClassVar[dict[str, Any]] = {}  # older vectors of gymnasium write into that of all environments
    observation_space = Box(0, 1, (3, 3, 2), np.int8)
    action_space = Discrete(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._cells, self._player = np.full(9, -1), 0
        return self._seen()

    def step(self, action: Any) -> Any:
        assert self._cells[action] == -1
        self._cells[action] = self._player
        has_won = any((self._cells[list(line)] == self._player).all() for line in LINES)
        is_over = has_won or not (self._cells == -1).any()
        self._player = 1 - self._player
        observation, info = self._seen()
        return observation, float(has_won), is_over, False, {} if is_over else info

    def _seen(self) -> Any:
        board = np.stack([self._cells == self._player, self._cells == 1 - self._player], -1).astype(np.int8)
        mask = (self._cells == -1).astype(np.int8)
        return board.reshape(3, 3, 2), {"action_mask": mask, "current_player": self._player}


def noughts_and_crosses() -> Any:
    return hybridppo.TwoPlayers(NoughtsAndCrosses())


class TakingTurns:
    """A parallel environment in PettingZoo's AEC form: agents choose actions in turn, and then it is stepped.

    Args:
        env: as this module has them.
        within: whether observations have the agent's mask in them, as those of PettingZoo's classic games.
    """

    def __init__(self, env: Any, within: bool = False) -> None:
        self._env, self._within = env, within
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        space = self._env.observation_space(agent)
        if not self._within:
            return space
        return gym.spaces.Dict({"observation": space, "action_mask": Box(0, 1, (4,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._seen, self._infos = self._env.reset(seed)
        self.agents = list(self._env.agents)
        self._sums = dict.fromkeys(self.agents, 0.0)
        self._terminated = dict.fromkeys(self.agents, False)
        self._truncated = dict.fromkeys(self.agents, False)
        self._begin_round()

    @property
    def infos(self) -> dict[str, Any]:
        return {agent: {} if self._within else self._infos.get(agent, {}) for agent in self.agents}

    def observe(self, agent: str) -> Any:
        info = self._infos.get(agent, {})
        return {"observation": self._seen[agent], **info} if self._within else self._seen[agent]

    def last(self) -> Any:
        agent = self.agent_selection
        ends = self._terminated[agent], self._truncated[agent]
        return self.observe(agent), self._sums[agent], *ends, self.infos[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        self._sums[agent] = 0.0
        if self._terminated[agent] or self._truncated[agent]:
            assert action is None
            self.agents.remove(agent)
            self._left.remove(agent)
        else:
            self._said[agent] = action
            self._left.remove(agent)
        if not self._left and self._said:
            self._seen, rewards, self._terminated, self._truncated, self._infos = self._env.step(self._said)
            for each, reward in rewards.items():
                self._sums[each] += reward
        if not self._left:
            self._begin_round()
        elif self._left:
            self.agent_selection = self._left[0]

    def close(self) -> None:
        pass

    def _begin_round(self) -> None:
        self._said: dict[str, Any] = {}
        self._left = list(self.agents)
        if self._left:
            self.agent_selection = self._left[0]
