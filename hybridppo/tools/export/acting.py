"""Episodes to look at, of one agent or several: `playing.py` makes the environments, and this acts in them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.tensors import on_host, tensors_of
from hybridppo.errors import EnvError
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.system.accelerator import accelerator_of

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

    def agent(self, name: str) -> SimpleNamespace:
        """The spaces of an agent."""
        env = self._env
        return SimpleNamespace(observation_space=env.observation_space(name), action_space=env.action_space(name))

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


class FirstOfTensors(gym.Env[Any, Any]):
    """The first environment of an environment of tensors, whose others take the same actions.

    Args:
        env: as `hybridppo/environments/tensors.py` has it. With `render()`, of pictures `[height, width, 3]` or
            `[N, height, width, 3]`, it is seen.
        render_mode: how it is to be seen, if it does not say so itself.
        owns: whether it is closed with this.
    """

    def __init__(self, env: Any, render_mode: str, owns: bool) -> None:
        self._env, self._owns = env, owns
        self._device = torch.empty(0, device=env.device).device  # "cuda" by its number
        self._accelerator = accelerator_of(self._device)
        self._begun: Any = None
        is_seen = render_mode == "rgb_array" and callable(getattr(env, "render", None))
        self.render_mode = getattr(env, "render_mode", None) or ("rgb_array" if is_seen else None)
        self.metadata = {"render_modes": [self.render_mode], **getattr(env, "metadata", {})}
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the one that the environment has begun itself, unless a seed asks for another."""
        begun, self._begun = self._begun, None
        if begun is not None and seed is None:
            return begun, {}
        with self._accelerator.selected(), torch.no_grad():
            observations, _ = self._env.reset(seed=seed)
        return _first(observations), {}

    def step(self, action: Any) -> Any:
        """The environment's step; at the end of an episode, the observation is that of the next."""
        actions = tensors_of(_repeated(action, self._env.num_envs), self._device)
        with self._accelerator.selected(), torch.no_grad():
            observations, rewards, terminated, truncated, _ = self._env.step(actions)
        observation, ends = _first(observations), (bool(terminated[0]), bool(truncated[0]))
        self._begun = observation if any(ends) else None
        return observation, float(rewards[0]), *ends, {}

    def render(self) -> Any:
        """The picture of the first environment, or of all."""
        picture = self._env.render()
        picture = on_host(picture) if isinstance(picture, torch.Tensor) else np.asarray(picture)
        return picture[0] if picture.ndim == 4 else picture

    def close(self) -> None:
        """Close the environment, if it was made for this and can be closed."""
        if self._owns and callable(getattr(self._env, "close", None)):
            self._env.close()


def _first(batch: Any) -> Any:
    """Of a batch of observations in tensors, the first, on the host."""
    if isinstance(batch, dict):
        return {key: _first(part) for key, part in batch.items()}
    return tuple(map(_first, batch)) if isinstance(batch, tuple) else on_host(batch[0])


def _repeated(action: Any, times: int) -> Any:
    """A batch of the same action, as gymnasium's vectors have it."""
    if isinstance(action, dict):
        return {key: _repeated(part, times) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_repeated(part, times) for part in action)
    return np.repeat(np.asarray(action)[None], times, axis=0)


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
        EnvError: where an episode starts with nobody; if an agent has other spaces than the environment.
    """
    are_several = isinstance(env.unwrapped, Together)
    agents = env.unwrapped.agents if are_several else [ALONE]
    env = env if are_several else Alone(env)
    players = {name: player_of(name) for name in agents}
    for name, player in players.items():
        require_spaces_of(player, env.unwrapped.agent(name) if are_several else env, masks_apart=True)
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
