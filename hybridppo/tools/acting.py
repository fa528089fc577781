"""Episodes to look at, of one agent or several: `playing.py` makes the environments, and this acts in them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from hybridppo.agents.registry import AnyAgent
from hybridppo.errors import EnvError
from hybridppo.spaces.masks import MaskedObservation

ALONE = ""
"""The name of an agent that is the only one."""


@dataclass(frozen=True)
class Played:
    """What was seen."""

    returns: tuple[float, ...]
    """Of the episodes that ended; where there are several agents, of each agent's."""
    lengths: tuple[int, ...]
    agents: tuple[str, ...]
    """Whose each of them is, where there are several; else none."""
    episodes: int
    """How many ended, each with its last agent's."""
    steps: int
    """Of all episodes, with that which was broken off."""
    path: Path | None = None
    """The video."""


class Together(gym.Env[Any, Any]):
    """A parallel environment as one that gymnasium's wrappers take: everything goes by the names of its agents.

    Args:
        env: with the methods of PettingZoo's `ParallelEnv`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.render_mode, self.metadata = env.render_mode, dict(getattr(env, "metadata", {}))
        self.agents = list(env.possible_agents)
        self.observation_space = gym.spaces.Dict({name: env.observation_space(name) for name in self.agents})
        self.action_space = gym.spaces.Dict({name: env.action_space(name) for name in self.agents})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment gives it."""
        found: tuple[Any, dict[str, Any]] = self._env.reset(seed=seed, options=options)
        return found

    def step(self, action: dict[str, Any]) -> Any:
        """Likewise: what five mappings of agents say."""
        return self._env.step(action)

    def render(self) -> Any:
        """A picture of all."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment, where there is something to close."""
        if callable(getattr(self._env, "close", None)):
            self._env.close()


class Alone(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of one agent, by its name."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """What the one sees."""
        observation, info = self.env.reset(seed=seed, options=options)
        return {ALONE: observation}, {ALONE: info}

    def step(self, action: dict[str, Any]) -> Any:
        """What the one sees, gets, and whether its episode ends."""
        return tuple({ALONE: each} for each in self.env.step(action[ALONE]))


def act_in(
    env: Any,
    player_of: Callable[[str], AnyAgent],
    *,
    episodes: int,
    seed: int,
    deterministic: bool,
    most_steps: int | None,
) -> Played:
    """Episodes one after the other, each until nobody is left.

    Args:
        env: a `Together`, or an environment of one agent; perhaps within gymnasium's wrappers.
        player_of: whose policy an agent has, by its name.
        episodes: how many.
        seed: of the environment.
        deterministic: take the most probable actions.
        most_steps: after which to end, wherever the episode is; None for never.

    Raises:
        EnvError: where an episode starts with nobody.
    """
    are_several = isinstance(env.unwrapped, Together)
    agents = env.unwrapped.agents if are_several else [ALONE]
    env = env if are_several else Alone(env)
    players = {name: player_of(name) for name in agents}
    returns: list[float] = []
    lengths: list[int] = []
    names: list[str] = []
    ended = steps = 0
    there: list[str] = []
    first: int | None = seed
    while most_steps is None or steps < most_steps:
        if not there:
            if ended == episodes:
                break
            (observations, infos), first = env.reset(seed=first), None
            there = [name for name in agents if name in observations]
            if not there:
                raise EnvError("an episode starts with nobody: reset gives no agent an observation")
            began, totals, states = steps, dict.fromkeys(agents, 0.0), dict.fromkeys(agents)
        actions = {}
        for name in there:
            player = players[name]
            mask = infos[name].get("action_mask") if isinstance(player.observation_space, MaskedObservation) else None
            actions[name], states[name] = player.act(
                observations[name], deterministic, action_mask=mask, state=states[name]
            )
        observations, rewards, terminations, truncations, infos = env.step(actions)
        steps += 1
        for name in actions:
            totals[name] += float(rewards[name])
            if terminations[name] or truncations[name]:
                there.remove(name)
                returns.append(totals[name])
                lengths.append(steps - began)
                names.append(name)
        ended += not there
    return Played(tuple(returns), tuple(lengths), tuple(names) if are_several else (), ended, steps)
