"""Episodes of an environment of several agents to look at: what `playing.py` does where there is more than one."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from hybridppo.agents.registry import AnyAgent
from hybridppo.errors import EnvError
from hybridppo.spaces.masks import MaskedObservation


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


Returns = tuple[tuple[float, ...], tuple[int, ...], tuple[str, ...], int, int]
"""Of every agent's episode the return, the length and the name; and how many of all ended, and steps in all."""


def play_together(
    player_of: Callable[[str], AnyAgent],
    env: Any,
    agents: list[str],
    episodes: int,
    seed: int,
    deterministic: bool,
    most_steps: int | None,
) -> Returns:
    """Episodes one after the other, each until nobody is left.

    Args:
        player_of: whose policy an agent has, by its name.
        env: a `Together`, or a wrapper of one.
        agents: the names of all.
        episodes: how many.
        seed: of the environment.
        deterministic: take the most probable actions.
        most_steps: after which to end, wherever the episode is; None for never.

    Raises:
        EnvError: where an episode starts with nobody.
    """
    returns: list[float] = []
    lengths: list[int] = []
    names: list[str] = []
    ended = steps = 0
    observations, infos = env.reset(seed=seed)
    players = {name: player_of(name) for name in agents}
    there, length = _there(agents, observations), 0
    totals, states = dict.fromkeys(agents, 0.0), dict.fromkeys(agents)
    while most_steps is None or steps < most_steps:
        actions = {}
        for name in there:
            player = players[name]
            is_masked = isinstance(player.observation_space, MaskedObservation)
            mask = infos[name].get("action_mask") if is_masked else None
            actions[name], states[name] = player.act(
                observations[name], deterministic, action_mask=mask, state=states[name]
            )
        observations, rewards, terminations, truncations, infos = env.step(actions)
        steps, length = steps + 1, length + 1
        for name in list(there):
            totals[name] += float(rewards[name])
            if terminations[name] or truncations[name]:
                there.remove(name)
                returns.append(totals[name])
                lengths.append(length)
                names.append(name)
        if there:
            continue
        ended += 1
        if ended == episodes:
            break
        observations, infos = env.reset()
        there, length = _there(agents, observations), 0
        totals, states = dict.fromkeys(agents, 0.0), dict.fromkeys(agents)
    return tuple(returns), tuple(lengths), tuple(names), ended, steps


def _there(agents: list[str], observations: dict[str, Any]) -> list[str]:
    there = [name for name in agents if name in observations]
    if not there:
        raise EnvError("an episode starts with nobody: reset gives no agent an observation")
    return there
