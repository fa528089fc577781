"""Shows episodes of a run's agent in a video or a window.

    hybridppo.record_video("runs/CartPole-v1-20260101-120000-seed0", "cartpole.mp4")

Videos need moviepy (the extra `video`). The environment and the agents meet in `_play`: one agent, several agents and
an environment of tensors all have the methods of PettingZoo's `ParallelEnv` there, with dicts by agent name.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from hybridppo.agents.policies import Policies
from hybridppo.agents.registry import AnyAgent
from hybridppo.compiled.definition import Definition
from hybridppo.environments.action_masks import has_mask, mask_apart, without_mask
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.frame_stack import FrameStack
from hybridppo.environments.making import is_tensor_env, with_arguments
from hybridppo.environments.named import make_env
from hybridppo.environments.new_objects import make_new
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.parallel import is_parallel
from hybridppo.environments.registration import source_of
from hybridppo.environments.tensors import on_host, tensors_of
from hybridppo.environments.turns import takes_turns
from hybridppo.errors import ConfigurationError, EnvError, pip_install
from hybridppo.networks.making import Networks
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.runs.loading import load
from hybridppo.runs.settings import Settings
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.validation import require_whole

MOST_STEPS = 3000
"""The limit for a video, whose frames lie in memory until its end."""
ALONE = ""
"""The name of an agent that is the only one."""


@dataclass(frozen=True)
class Played:
    """The episodes that were played."""

    returns: tuple[float, ...]
    """Returns of the episodes that ended; with several agents, of each agent's episodes."""
    lengths: tuple[int, ...]
    agents: tuple[str, ...]
    """The agent of each return, if there are several; else empty."""
    episodes: int
    """How many episodes ended, each with its last agent's."""
    steps: int
    """Steps of all episodes, an unfinished one included."""
    path: Path | None = None
    """The video."""


def record_video(
    run_dir: str | Path,
    output: str | Path | None = None,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    checkpoint: WhichCheckpoint = "latest",
    most_steps: int = MOST_STEPS,
    env: EnvSource | None = None,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    against: str | Path | None = None,
) -> Played:
    """Write whole episodes of a run's agent into one video: a frame for every observation.

    Args:
        run_dir: of the run.
        output: the video, `.mp4`; None for `video.mp4` in the run directory. It is there when it is whole.
        episodes: how many.
        seed: of the environment.
        deterministic: take the most probable actions.
        checkpoint: as for `hybridppo.load`, like `agent` and `networks`.
        most_steps: after which the video ends, wherever the episode is.
        env: as for `hybridppo.resume`; a function makes an environment with `render_mode="rgb_array"`. Of an
            environment of tensors, the first is shown, by its `render()`.
        agent: as for `hybridppo.load`.
        networks: as for `hybridppo.load`.
        against: another run, or a file of `agent.save`, whose agent plays against this one. The run's agent has the
            first seat, with all seats of the same policy; the other has the rest.

    Raises:
        ConfigurationError: if moviepy is not installed, or an argument cannot be meant.
        EnvError: if the environment draws no pictures.
    """
    directory = RunDirectory.open(run_dir)
    output = Path(output) if output is not None else directory.path / "video.mp4"
    if output.suffix.lower() != ".mp4":
        raise ConfigurationError(f"the video must end with .mp4, got {output.name!r}")
    if find_spec("moviepy") is None:
        raise ConfigurationError(f"videos need moviepy: {pip_install('video')}")
    players_of, settings = _players(directory, checkpoint, agent, networks, against)
    made = _make(settings.source(env), settings.environment, "rgb_array")
    frames: list[Any] = []
    try:
        played = _play(
            players_of,
            made,
            episodes,
            seed,
            deterministic,
            most_steps,
            lambda: frames.append(np.asarray(made.render())),
        )
    finally:
        _close(made)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".video-", dir=output.parent) as folder:
        from moviepy.video.io.ImageSequenceClip import ImageSequenceClip

        written = Path(folder) / "video.mp4"
        clip = ImageSequenceClip(frames, fps=getattr(made, "metadata", {}).get("render_fps", 30))
        clip.write_videofile(str(written), logger=None)
        written.replace(output)
    return replace(played, path=output)


def play(
    run_dir: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    checkpoint: WhichCheckpoint = "latest",
    most_steps: int | None = None,
    env: EnvSource | None = None,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    against: str | Path | None = None,
) -> Played:
    """Show episodes of a run's agent in the environment's own window.

    Arguments are as for `record_video`; a function makes an environment with `render_mode="human"`. Without
    `most_steps`, every episode is played to its end.

    Raises:
        EnvError: if the environment has no window.
    """
    players_of, settings = _players(RunDirectory.open(run_dir), checkpoint, agent, networks, against)
    made = _make(settings.source(env), settings.environment, "human")
    try:
        return _play(players_of, made, episodes, seed, deterministic, most_steps)
    finally:
        _close(made)


Players = Callable[[Sequence[str]], dict[str, AnyAgent]]
"""From the names of an environment's agents to the agent that acts for each."""


def _players(
    directory: RunDirectory,
    checkpoint: WhichCheckpoint,
    agent: type[AnyAgent] | None,
    networks: Networks | None,
    against: str | Path | None,
) -> tuple[Players, Settings]:
    """Who plays, and the settings of the run."""
    player = load(directory.path, checkpoint, agent=agent, networks=networks)
    other = None if against is None else load(against, checkpoint)

    def players_of(names: Sequence[str]) -> dict[str, AnyAgent]:
        if other is None:
            return {name: _who_acts(player, name) for name in names}
        own = {names[0]}
        if isinstance(player, Policies):
            own = {name for name in names if player.agent_of(name) is player.agent_of(names[0])}
        if len(own) == len(names):
            raise ConfigurationError(
                f"against is for environments in which another can have a seat, and the agents of this one are "
                f"{', '.join(names) or 'one'}: leave it out"
            )
        return {name: _who_acts(player if name in own else other, name) for name in names}

    return players_of, Settings.read(directory)


def _who_acts(agent: AnyAgent, name: str) -> AnyAgent:
    """The agent of a run that acts for an agent of the environment."""
    return agent.agent_of(name) if isinstance(agent, Policies) else agent


def _make(source: EnvSource, options: EnvironmentOptions, render_mode: str) -> Any:
    """An environment that renders, with the methods of PettingZoo's `ParallelEnv`."""
    what = "draws no pictures" if render_mode == "rgb_array" else "has no window"
    remedy = f"it must take render_mode={render_mode!r}"
    owns = not is_tensor_env(source)
    try:
        given, source = source, source_of(source)
        made: Any = source
        if isinstance(source, str):
            env_kwargs = {**(options.env_kwargs or {}), "render_mode": render_mode}
            made = make_new(make_env, source, imports=options.imports, **env_kwargs)
        elif isinstance(source, Definition):
            made = source(render_mode=render_mode)
        elif owns and callable(source):
            if isinstance(given, str):
                options = replace(options, env_kwargs={**(options.env_kwargs or {}), "render_mode": render_mode})
            made = with_arguments(source, 1, options)()
    except (gym.error.Error, TypeError) as error:  # TypeError: it takes no render_mode
        raise EnvError(f"the environment {what}: {remedy} ({error})") from error
    if is_tensor_env(made):
        remedy = "an environment of tensors must have render(), and for a window render_mode='human'"
        first = FirstOfTensors(made, render_mode, owns)
        made = AgentsOfTensors(first, made.policies) if hasattr(made, "policies") else first
    is_drawn = getattr(made, "render_mode", None) == render_mode
    if is_drawn and (is_parallel(made) or takes_turns(made)):
        if options.frame_stack > 1:
            raise ConfigurationError("an environment of several agents with stacked frames cannot be played")
        return made if is_parallel(made) else InTurns(made)
    if not isinstance(made, gym.Env) or not is_drawn:
        mode = getattr(made, "render_mode", None)
        _close(made)
        raise EnvError(f"the environment {what}: its render_mode is {mode!r}, and {remedy}")
    return OneAgent(made if options.frame_stack == 1 else FrameStack(made, options.frame_stack))


def _close(env: Any) -> None:
    if callable(getattr(env, "close", None)):
        env.close()


class OneAgent:
    """A gymnasium environment with the methods of PettingZoo's `ParallelEnv`."""

    possible_agents = (ALONE,)

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        self.env, self.metadata = env, env.metadata
        self.render, self.close = env.render, env.close

    def observation_space(self, name: str) -> "gym.Space[Any]":
        """The agent's observation space."""
        return self.env.observation_space

    def action_space(self, name: str) -> "gym.Space[Any]":
        """The agent's action space."""
        return self.env.action_space

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed)
        return {ALONE: observation}, {ALONE: info}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """The five values of the environment's step, each by agent name."""
        return tuple({ALONE: each} for each in self.env.step(actions[ALONE]))


class InTurns:
    """An environment whose agents act in turn, with the methods of PettingZoo's `ParallelEnv`.

    Only the agent whose turn it is is observed, and acts.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.metadata, self.possible_agents = env, env.metadata, tuple(env.possible_agents)
        self.render, self.close = env.render, env.close
        self.observation_space, self.action_space = env.observation_space, env.action_space

    @property
    def agents(self) -> list[str]:
        """Who is there."""
        return list(self.env.agents)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self.env.reset(seed=seed)
        observations, *_, infos = self._next_turn()
        return observations, infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step with the action of the agent whose turn it is; the five values for who has one now, or has left."""
        self.env.step(actions[self.env.agent_selection])
        return self._next_turn()

    def _next_turn(self) -> tuple[dict[str, Any], ...]:
        found: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
        while self.env.agents:
            agent = self.env.agent_selection
            values = self.env.last()
            for of_agents, value in zip(found, values, strict=True):
                of_agents[agent] = value
            if not (values[2] or values[3]):
                break
            self.env.step(None)
        return found


class FirstOfTensors(gym.Env[Any, Any]):
    """The first environment of an environment of tensors; the others take the same actions.

    Args:
        env: as `hybridppo/environments/tensors.py` describes it. It can be shown if it has `render()`, which returns
            pictures `[height, width, 3]` or `[N, height, width, 3]`.
        render_mode: the render mode asked for, if the environment names none.
        owns: whether to close the environment with this.
    """

    def __init__(self, env: Any, render_mode: str, owns: bool) -> None:
        self._env, self._owns = env, owns
        self._device = torch.empty(0, device=env.device).device  # "cuda" by its number
        self._accelerator = accelerator_of(self._device)
        self.next_observation: Any = None
        """The first observation of an episode that the environment has begun itself."""
        renders = render_mode == "rgb_array" and callable(getattr(env, "render", None))
        self.render_mode = getattr(env, "render_mode", None) or ("rgb_array" if renders else None)
        self.metadata = {"render_modes": [self.render_mode], **getattr(env, "metadata", {})}
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the one that the environment has begun itself, unless there is a seed."""
        begun, self.next_observation = self.next_observation, None
        if begun is not None and seed is None:
            return begun, {}
        with self._accelerator.selected(), torch.no_grad():
            observations, _ = self._env.reset(seed=seed)
        return _first(observations), {}

    def step(self, action: Any) -> Any:
        """Step; at the end of an episode, the observation is the first of the next one."""
        observation, reward, *ends = self.taken(action)
        self.next_observation = observation if any(ends) else None
        return observation, float(reward), *map(bool, ends), {}

    def taken(self, action: Any) -> tuple[Any, ...]:
        """The observation, reward, terminated and truncated of a step."""
        count, space = self._env.num_envs, self.action_space
        empty: Any = create_empty_array(space, count)
        actions = tensors_of(concatenate(space, [action] * count, empty), self._device)
        with self._accelerator.selected(), torch.no_grad():
            return tuple(map(_first, self._env.step(actions)[:4]))

    def render(self) -> Any:
        """The picture of the first environment, or of all."""
        picture = self._env.render()
        picture = on_host(picture) if isinstance(picture, torch.Tensor) else np.asarray(picture)
        return picture[0] if picture.ndim == 4 else picture

    def close(self) -> None:
        """Close the environment, if this owns it."""
        if self._owns:
            _close(self._env)


class AgentsOfTensors:
    """The agents of the first environment of tensors, with the methods of PettingZoo's `ParallelEnv`.

    Args:
        env: the first environment of an environment of tensors.
        policies: the number of agents of each kind.
    """

    def __init__(self, env: FirstOfTensors, policies: Mapping[str, int]) -> None:
        self.env, self.metadata, self.render_mode = env, env.metadata, env.render_mode
        self.render, self.close = env.render, env.close
        self._kinds = {f"{kind}_{i}": (kind, i) for kind, count in policies.items() for i in range(count)}
        self.possible_agents = tuple(self._kinds)
        self._observed, self._acted = cast(Any, env.observation_space).spaces, cast(Any, env.action_space).spaces
        # To the environment, the actions of all agents are one action.
        self.env.action_space = gym.spaces.Dict(
            {k: batch_space(space, policies[k]) for k, space in self._acted.items()}
        )
        self._present: set[str] = set()

    def observation_space(self, name: str) -> "gym.Space[Any]":
        """The agent's observation space."""
        found: gym.Space[Any] = self._observed[self._kinds[name][0]]
        return found

    def action_space(self, name: str) -> "gym.Space[Any]":
        """The agent's action space."""
        found: gym.Space[Any] = self._acted[self._kinds[name][0]]
        return found

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._present = {*self._kinds}
        return self._by_name(self.env.reset(seed=seed)[0]), {name: {} for name in self._kinds}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """The five values of the step, each by agent name; absent agents need no action."""
        by_kind: dict[str, Any] = {}
        for kind, space in self._acted.items():
            nothing = _row(create_empty_array(space, 1), 0)
            own = [actions.get(name, nothing) for name, (of_agent, _) in self._kinds.items() if of_agent == kind]
            by_kind[kind] = concatenate(space, own, cast(Any, create_empty_array(space, len(own))))
        values = self.env.taken(by_kind)
        observations, rewards, terminated, truncated = map(self._by_name, values)
        self._present -= {name for name in self._kinds if terminated[name] or truncated[name]}
        self.env.next_observation = None if self._present else values[0]
        return observations, rewards, terminated, truncated, {name: {} for name in self._kinds}

    def _by_name(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: _row(values[kind], i) for name, (kind, i) in self._kinds.items()}


def _row(batch: Any, i: int) -> Any:
    """One row of a batch, or of a container of batches."""
    if isinstance(batch, dict):
        return {key: _row(part, i) for key, part in batch.items()}
    return tuple(_row(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]


def _first(batch: Any) -> Any:
    """The first observation of a batch of tensors, on the host."""
    if isinstance(batch, dict):
        return {key: _first(part) for key, part in batch.items()}
    return tuple(map(_first, batch)) if isinstance(batch, tuple) else on_host(batch[0])


def _play(
    players_of: Players,
    env: Any,
    episodes: int,
    seed: int,
    deterministic: bool,
    most_steps: int | None,
    on_observation: Callable[[], object] = lambda: None,
) -> Played:
    """Play episodes one after the other, each until no agent is left.

    Args:
        players_of: who acts for each of the environment's agents.
        env: with the methods of PettingZoo's `ParallelEnv`.
        episodes: how many.
        seed: of the environment.
        deterministic: take the most probable actions.
        most_steps: end after this many, even within an episode; None for no limit.
        on_observation: called after each reset and each step.

    Raises:
        EnvError: if an episode starts without an agent, or an agent has other spaces than the environment.
    """
    require_whole("episodes", episodes)
    require_whole("seed", seed, 0, below=2**31)
    limit = math.inf if most_steps is None else require_whole("most_steps", most_steps)
    agents = list(env.possible_agents)
    players = players_of(agents)
    for name, player in players.items():
        _require_spaces(player, env, name)
    found: list[tuple[float, int, str]] = []
    ended = steps = 0
    episode: _Episode | None = None
    while steps < limit and (episode is not None or ended < episodes):
        if episode is None:
            episode = _Episode(env, players, None if steps else seed)
        else:
            found += episode.step(deterministic)
            steps += 1
        on_observation()
        if not episode.present:
            ended, episode = ended + 1, None
    names = () if agents == [ALONE] else tuple(name for _, _, name in found)
    return Played(tuple(each[0] for each in found), tuple(each[1] for each in found), names, ended, steps)


def _require_spaces(player: AnyAgent, env: Any, name: str) -> None:
    """Refuse an agent that has other spaces than the environment's agent of this name."""
    seen = env.observation_space(name)
    if isinstance(player.observation_space, MaskedObservation):
        seen = without_mask(seen)
    met = SimpleNamespace(observation_space=seen, action_space=env.action_space(name))
    known = getattr(player, "given_space", player.observation_space)
    require_spaces_of(SimpleNamespace(observation_space=known, action_space=player.action_space), met)


class _Episode:
    """An episode under way.

    Args:
        env: is reset.
        players: who acts, by the names of the environment's agents.
        seed: of the reset; None to go on with the environment's own numbers.

    Raises:
        EnvError: if it starts without an agent.
    """

    def __init__(self, env: Any, players: Mapping[str, AnyAgent], seed: int | None) -> None:
        self._env, self._players, self._steps = env, players, 0
        self._observations, self._infos = env.reset(seed=seed)
        there = env.agents if isinstance(env, InTurns) else self._observations
        self.present = [name for name in players if name in there]
        """The agents whose episode has not ended."""
        if not self.present:
            raise EnvError("an episode starts with nobody: reset gives no agent an observation")
        self._returns, self._states = dict.fromkeys(players, 0.0), dict.fromkeys(players)

    def step(self, deterministic: bool) -> list[tuple[float, int, str]]:
        """Let all act who are observed; the return, the steps and the name of each agent whose episode has ended."""
        actions = {name: self._act(name, deterministic) for name in self.present if name in self._observations}
        self._observations, rewards, terminations, truncations, self._infos = self._env.step(actions)
        self._steps += 1
        ended = []
        for name in [each for each in self.present if each in rewards]:
            self._returns[name] += float(rewards[name])
            if terminations[name] or truncations[name]:
                self.present.remove(name)
                ended.append((self._returns[name], self._steps, name))
        return ended

    def _act(self, name: str, deterministic: bool) -> Any:
        player, seen, info = self._players[name], self._observations[name], self._infos[name]
        mask = None
        if isinstance(player.observation_space, MaskedObservation):
            seen, info = mask_apart(seen) if has_mask(self._env.observation_space(name)) else (seen, info)
            mask = info.get("action_mask")
        action, self._states[name] = player.act(seen, deterministic, action_mask=mask, state=self._states[name])
        return action
