"""Shows episodes of the agent of a run, or of a file, in a video or a window, or lets a person play against it.

    hybridppo.play("runs/CartPole-v1-20260101-120000-seed0", "cartpole.mp4")
    hybridppo.play("runs/game", human="player_1")

Videos need imageio-ffmpeg (the extra `video`). Episodes are those of an evaluation, in an environment that is filmed.
"""

import contextlib
import logging
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from torch import Tensor

from hybridppo.agents.policies import Policies
from hybridppo.agents.registry import AnyAgent
from hybridppo.compiled.definition import Definition
from hybridppo.distributions.own import MakeDistribution
from hybridppo.environments.making import is_tensor_env, with_arguments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import env_of_id, import_modules, source_of
from hybridppo.environments.tensors import on_host
from hybridppo.errors import ConfigurationError, EnvError, is_installed, pip_install, shown
from hybridppo.evaluation import environment_of, playing
from hybridppo.loading import is_agent_file, load
from hybridppo.networks.making import Networks
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint, path_of
from hybridppo.run_directory.files import making
from hybridppo.runners.episodes import Evaluation
from hybridppo.spaces.masks import MASK
from hybridppo.system.validation import require_bools, require_path, require_whole

logger = logging.getLogger(__name__)

MOST_STEPS = 3000


@dataclass(frozen=True)
class Played(Evaluation):
    """The episodes that were played, as an evaluation."""

    episodes: int = 0
    """How many episodes ended, each with its last agent's."""
    steps: int = 0
    """Steps of all episodes, an unfinished one included."""
    path: Path | None = None
    """The video."""


def play(
    run_dir: str | Path,
    output: str | Path | None = None,
    *,
    window: bool = False,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    checkpoint: WhichCheckpoint = "latest",
    most_steps: int | None = None,
    env: EnvSource | None = None,
    env_kwargs: dict[str, Any] | None = None,
    agent: type[AnyAgent] | None = None,
    networks: Networks | None = None,
    action_distribution: MakeDistribution | None = None,
    against: str | Path | None = None,
    human: str | None = None,
) -> Played:
    """Write whole episodes of an agent into a video, a frame for every observation; or show them in a window.

    Args:
        run_dir: the run directory, or a file of `agent.save`.
        output: the video, `.mp4`; None for `video.mp4` in the run directory, or for the name of the agent's file with
            `.mp4`. The video appears when it is complete.
        window: show the episodes in the environment's own window, and write no video.
        episodes: number of episodes.
        seed: seed of the environment, and of stochastic actions.
        deterministic: take deterministic actions.
        checkpoint: as for `hybridppo.load`.
        most_steps: number of steps after which to end, even within an episode; None for no limit in a window, and for
            3,000 steps of a video, because an episode may have no end.
        env: as for `hybridppo.evaluate`; a function must make an environment with `render_mode="rgb_array"`, or
            `"human"` for a window. For batched environments on tensors, the function makes one.
        env_kwargs: as for `hybridppo.evaluate`.
        agent: as for `hybridppo.load`.
        networks: as for `hybridppo.load`.
        action_distribution: as for `hybridppo.load`.
        against: another run, or a file of `agent.save`, whose agent plays against this one. The run's agent is the
            first player, and all players of the same policy; the other agent is the rest.
        human: the name of an agent that a person plays, who types the actions. The terminal shows the game (its `ansi`
            picture, or else the observation) and the legal actions; with `window`, the game's own window shows it.

    Raises:
        ConfigurationError: if imageio-ffmpeg is not installed, `run_dir` is a file and `env` is missing, or an argument
            is invalid.
        KeyboardInterrupt: if the person's input ends.
        EnvError: if the environment has no window, cannot draw pictures, or draws others than `uint8` arrays of one
            shape `[height, width, 3]`.
        RunDirectoryError: if the video cannot be written.
    """
    source, options = environment_of(run_dir, env, env_kwargs)
    require_bools(deterministic=deterministic, window=window)
    shows = window or human is not None
    if shows and output is not None:
        raise ConfigurationError(f"a {'window' if window else 'person'} writes no video: leave output out")
    path = None if shows else _path_of_video(run_dir, output)
    how = {"episodes": require_whole("episodes", episodes), "seed": require_whole("seed", seed, 0, below=2**31)}
    limit = math.inf if shows else MOST_STEPS
    limit = limit if most_steps is None else require_whole("most_steps", most_steps)
    player = load(run_dir, checkpoint, agent=agent, networks=networks, action_distribution=action_distribution)
    other = None if against is None else load(against, checkpoint)
    if human is not None and not window:
        made = _in_text(source, options)
    else:
        made = filmed(source, options, "human" if window else "rgb_array")
    if "mujoco" in sys.modules:
        _draw_without_display()
    with contextlib.closing(made) as film:
        if human is not None:
            film.person = Person(human, film)
        alike = EnvironmentOptions(reward_weights=options.reward_weights)
        played = partial(play_episodes, player, other, film, limit, alike, deterministic=deterministic, **how)
        if path is None:
            return played()
        with making(path), tempfile.TemporaryDirectory(prefix=".video-", dir=path.parent) as folder:
            video = Video(Path(folder) / "video.mp4", getattr(film, "metadata", {}).get("render_fps", 30))
            film.on_picture = video.add
            with contextlib.closing(video):
                found = played()
            video.require_whole()
            video.path.replace(path)
    return replace(found, path=path)


def _path_of_video(run_dir: str | Path, output: str | Path | None) -> Path:
    if output is None:
        path = path_of(run_dir)
        output = path.with_suffix(".mp4") if is_agent_file(path) else RunDirectory.open(path).path / "video.mp4"
    output = require_path("output", output)
    if output.suffix.lower() != ".mp4":
        raise ConfigurationError(f"the video must end with .mp4, got {output.name!r}")
    if not is_installed("imageio_ffmpeg"):
        raise ConfigurationError(f"videos need imageio-ffmpeg: {pip_install('video')}")
    return output


def _draw_without_display() -> None:
    """Let MuJoCo draw on a machine without a display, unless the user has said how."""
    if sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"))):
        logger.info("there is no display: MuJoCo draws with MUJOCO_GL=egl (or MUJOCO_GL=osmesa, if you set it)")
        os.environ["MUJOCO_GL"] = "egl"


def _in_text(source: EnvSource, options: EnvironmentOptions) -> "Filmed":
    """An environment that draws its game as text if it can."""
    film = filmed(source, options, None)
    if not isinstance(source, str) or "ansi" not in getattr(film, "metadata", {}).get("render_modes", ()):
        return film
    film.close()
    return filmed(source, options, "ansi")


class Person:
    """A person who plays one agent, and types its actions.

    Args:
        name: the agent.
        game: a multi-agent environment.

    Raises:
        ConfigurationError: if there is no such agent, or its actions are not numbers.
    """

    def __init__(self, name: str, game: Any) -> None:
        names = list(map(str, getattr(game, "possible_agents", ())))
        if name not in names:
            agents = f"must name one of the agents {', '.join(names)}" if names else "needs an environment of agents"
            raise ConfigurationError(f"human {agents}, got {shown(name)}")
        self._name, self._game, self._space = name, game, game.action_space(name)
        if not isinstance(self._space, gym.spaces.Discrete):
            raise ConfigurationError(f"a person types numbers of actions, and those of {name} are {shown(self._space)}")

    def replaced(self, action: Any, seen: Any) -> Any:
        """The action of the game's next step with the person's in its place.

        Args:
            action: that of the agent whose turn it is, or of all agents by name.
            seen: the observations and infos of all agents by name, if they act at the same time.
        """
        if isinstance(action, dict):
            if self._name not in action:
                return action
            return {**action, self._name: self._asked(*(each.get(self._name, {}) for each in seen))}
        if (agent := self._game.agent_selection) == self._name:
            observation, *_, info = self._game.last()
            return self._asked(observation, info)
        print(f"{agent} plays {action}")
        return action

    def _asked(self, observation: Any, info: Any) -> int:
        is_dict = isinstance(observation, dict)
        mask = info.get(MASK, observation.get(MASK) if is_dict else None)
        first, count = int(self._space.start), int(self._space.n)
        legal = [first + number for number in range(count) if mask is None or mask[number]]
        mode = getattr(self._game, "render_mode", None)
        if mode == "ansi":
            print(self._game.render())
        elif mode != "human":
            print({key: each for key, each in observation.items() if key != MASK} if is_dict else observation)
        while True:
            try:
                text = input(f"{self._name}, your action, one of {', '.join(map(str, legal))}: ").strip()
            except EOFError:
                raise KeyboardInterrupt from None
            if text in map(str, legal):
                return int(text)
            print(f"{text} is not legal")


class Video:
    """A video file; its length costs no memory.

    Args:
        path: the file, `.mp4`.
        fps: pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self._fps = path, fps
        self._shape: tuple[int, ...] = ()
        self._frames = 0
        self._writer: Any = None

    def add(self, picture: Any) -> None:
        """Write a picture, `uint8 [height, width, 3]`; all have the shape of the first.

        Raises:
            EnvError: if it is another array.
        """
        picture = np.asarray(picture)
        shape = self._shape or picture.shape
        if picture.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or picture.shape != shape:
            wanted = list(self._shape) or "[height, width, 3]"
            raise EnvError(f"a picture must be uint8 {wanted}, got {picture.dtype} {list(picture.shape)}")
        if self._writer is None:
            from imageio_ffmpeg import write_frames

            self._shape = shape
            # Players need even sizes: a row or a column of black is added, and nothing is scaled.
            even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
            options = {"fps": self._fps, "quality": None, "macro_block_size": 1, "output_params": even}
            self._writer = write_frames(str(self.path), shape[1::-1], ffmpeg_log_level="error", **options)
            next(self._writer)
        self._writer.send(np.ascontiguousarray(picture))
        self._frames += 1

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def require_whole(self) -> None:
        """Count the pictures in the file.

        Raises:
            OSError: if some are missing, as on a full disk.
        """
        from imageio_ffmpeg import count_frames_and_secs

        try:
            found, _ = count_frames_and_secs(str(self.path))
        except RuntimeError as error:  # it is no video
            raise OSError(str(error)) from error
        if found != self._frames:
            raise OSError(f"{found} of {self._frames} pictures were written: is the disk full?")


class Filmed:
    """An environment of any kind that is drawn after each reset and step, and counts its steps.

    A reset is drawn at the first step, because the reset after the last episode is not played.

    Args:
        env: a gymnasium environment, one of several agents, or a single batched environment on tensors.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.on_picture: Callable[[Any], object] | None = None
        """Gets each picture, which the environment may draw into again; None for an environment that has a window."""
        self.person: Person | None = None
        self.steps = 0
        self._seen: Any = None
        self._is_closed = self._has_begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """This object, because the environment within it was made before, by another function."""
        return self

    def reset(self, **options: Any) -> Any:
        """Begin an episode."""
        self._has_begun = True
        self._seen = self.env.reset(**options)
        return self._seen

    def step(self, action: Any) -> Any:
        """Step; without an action, an agent leaves, which is no step."""
        if self._has_begun:
            self._draw()
        self._has_begun = False
        if self.person is not None and action is not None:
            action = self.person.replaced(action, self._seen)
        found = self.env.step(action)
        if self.person is not None and isinstance(action, dict):
            self._seen = found[0], found[-1]
        if action is not None:
            self.steps += 1
            self._draw()
        return found

    def _draw(self) -> None:
        if self.on_picture is not None:
            picture = self.env.render()
            picture = on_host(picture) if isinstance(picture, Tensor) else np.asarray(picture)
            self.on_picture(picture[0] if picture.ndim == 4 else picture)  # of batched environments

    def close(self) -> None:
        """Close the environment, unless it lacks the method, as PettingZoo's may; a second call does nothing."""
        if not self._is_closed and callable(getattr(self.env, "close", None)):
            self._is_closed = True
            self.env.close()


class FilmedEnv(Filmed, gym.Wrapper[Any, Any, Any, Any]):
    """A gymnasium environment that is filmed."""

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        gym.Wrapper.__init__(self, env)
        Filmed.__init__(self, env)


def filmed(source: EnvSource, options: EnvironmentOptions, render_mode: str | None) -> Filmed:
    """One environment that renders in a mode; None for any environment.

    Raises:
        EnvError: if it does not.
    """
    import_modules(options.imports)
    given, source = source, source_of(source)
    if render_mode is not None and (isinstance(given, str) or isinstance(source, Definition)):
        options = replace(options, env_kwargs={**(options.env_kwargs or {}), "render_mode": render_mode})
    if isinstance(source, str):
        source = partial(env_of_id, source, False, "")
    what = f"the environment {'draws no pictures' if render_mode == 'rgb_array' else 'has no window'}"
    remedy = f"it must take render_mode={render_mode!r}"
    made: Any = source
    if not is_tensor_env(source) and callable(source):
        try:
            made = with_arguments(source, 1, options)()
        except (gym.error.Error, TypeError, ConfigurationError) as error:  # the last two: it takes no render_mode
            raise EnvError(f"{what}: {remedy} ({error.__cause__ or error})") from error
    film = FilmedEnv(made) if isinstance(made, gym.Env) else Filmed(made)
    mode = getattr(made, "render_mode", None)
    if is_tensor_env(made):
        remedy = "batched environments must be made by a function of num_envs, have render(), and that render_mode"
        mode = None if made.num_envs > 1 else mode or ("rgb_array" if callable(getattr(made, "render", None)) else None)
    if isinstance(made, VectorEnv) or render_mode not in (None, mode):
        film.close()
        raise EnvError(f"{what}: its render_mode is {mode!r}, and {remedy}")
    return film


def play_episodes(
    player: AnyAgent, other: AnyAgent | None, film: Filmed, limit: float, options: EnvironmentOptions, **how: Any
) -> Played:
    """Play episodes one after the other, each until no agent is left, or until the film has so many steps.

    Raises:
        ConfigurationError: if the other agent has no player.
        EnvError: if an agent has other spaces than the environment.
    """
    agents: Any = player
    if other is not None:
        agents = _agents_of_players(player, other, list(map(str, getattr(film, "possible_agents", ()))))
    with playing(agents, lambda: film, 1, options, policy_of=str) as (_, run):
        ended = count()
        over: dict[str, Any] = {"on_episode": lambda: next(ended), "is_over": lambda: film.steps >= limit}
        found = run(**how, **over)
    return Played(**vars(found), episodes=next(ended), steps=film.steps)


def _agents_of_players(player: AnyAgent, other: AnyAgent, names: Sequence[str]) -> dict[str, AnyAgent]:
    """The agent that acts for each player: the first player and those of its policy have `player`, the rest `other`.

    Raises:
        ConfigurationError: if the other agent has no player.
    """
    own = names[:1]
    if isinstance(player, Policies):
        own = [name for name in names if player.agent_of(name) is player.agent_of(names[0])]
    if len(own) == len(names):
        raise ConfigurationError(
            f"against is for environments in which another agent can play, and the agents of this one are "
            f"{', '.join(names) or 'one'}: leave it out"
        )
    agents = {name: player if name in own else other for name in names}
    return {name: agent.agent_of(name) if isinstance(agent, Policies) else agent for name, agent in agents.items()}
