"""Episodes of a run's agent to look at: in a video, or in a window.

    hybridppo.record_video("runs/CartPole-v1-20260101-120000-seed0", "cartpole.mp4")

Videos are gymnasium's `RecordVideo`, which needs moviepy (the extra `video`).
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym

from hybridppo.agents.policies import Policies
from hybridppo.agents.registry import AnyAgent
from hybridppo.compiled.definition import Definition
from hybridppo.environments.frame_stack import FrameStack
from hybridppo.environments.making import is_tensor_env, with_arguments
from hybridppo.environments.named import make_env
from hybridppo.environments.new_objects import make_new
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.parallel import is_parallel
from hybridppo.errors import ConfigurationError, EnvError, pip_install
from hybridppo.networks.making import Networks
from hybridppo.run_directory.directory import RunDirectory, WhichCheckpoint
from hybridppo.runs.loading import load
from hybridppo.runs.settings import Settings
from hybridppo.system.validation import require_whole
from hybridppo.tools.export.acting import FirstOfTensors, Played, Together, act_in

MOST_STEPS = 3000
"""Of a video, whose frames lie in memory until its end."""


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

    Raises:
        ConfigurationError: where moviepy is not installed, or an argument cannot be meant.
        EnvError: where the environment draws no pictures.
    """
    directory = RunDirectory.open(run_dir)
    output = Path(output) if output is not None else directory.path / "video.mp4"
    if output.suffix.lower() != ".mp4":
        raise ConfigurationError(f"the video must end with .mp4, got {output.name!r}")
    if find_spec("moviepy") is None:
        raise ConfigurationError(f"videos need moviepy: {pip_install('video')}")
    player_of, settings = _players(directory, checkpoint, agent, networks)
    made = _make(settings.source(env), settings.environment, "rgb_array")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".video-", dir=output.parent) as folder:
        recorder: Any = gym.wrappers.RecordVideo(
            made,
            str(Path(folder) / "frames"),
            episode_trigger=lambda episode: episode == 0,
            video_length=2**62,  # from the first episode to the last, in one file
        )
        try:
            played = _play(player_of, recorder, episodes, seed, deterministic, most_steps)
        finally:
            recorder.close()
        (video,) = (Path(folder) / "frames").glob("*.mp4")
        video.replace(output)
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
) -> Played:
    """Show episodes of a run's agent in the environment's own window.

    Arguments are as for `record_video`; a function makes an environment with `render_mode="human"`. Without
    `most_steps`, every episode is played to its end.

    Raises:
        EnvError: where the environment has no window.
    """
    player_of, settings = _players(RunDirectory.open(run_dir), checkpoint, agent, networks)
    made = _make(settings.source(env), settings.environment, "human")
    try:
        return _play(player_of, made, episodes, seed, deterministic, most_steps)
    finally:
        made.close()


def _players(
    directory: RunDirectory, checkpoint: WhichCheckpoint, agent: type[AnyAgent] | None, networks: Networks | None
) -> "tuple[Callable[[str], AnyAgent], Settings]":
    """Whose policy an agent has, by its name, and the settings of the run."""
    player = load(directory.path, checkpoint, agent=agent, networks=networks)
    settings = Settings.read(directory)
    return (player.agent_of if isinstance(player, Policies) else lambda name: player), settings


def _make(source: EnvSource, options: EnvironmentOptions, render_mode: str) -> "gym.Env[Any, Any]":
    what = "draws no pictures" if render_mode == "rgb_array" else "has no window"
    remedy = f"it must take render_mode={render_mode!r}"
    owns = not is_tensor_env(source)
    try:
        made: Any = source
        if isinstance(source, str):
            env_kwargs = {**(options.env_kwargs or {}), "render_mode": render_mode}
            made = make_new(make_env, source, imports=options.imports, **env_kwargs)
        elif isinstance(source, Definition):
            made = source(render_mode=render_mode)
        elif owns and callable(source):
            made = with_arguments(source, 1, options)()
    except (gym.error.Error, TypeError) as error:  # TypeError: of one that takes no render_mode
        raise EnvError(f"the environment {what}: {remedy} ({error})") from error
    if is_tensor_env(made):
        remedy = "an environment of tensors must have render(), and for a window render_mode='human'"
        made = FirstOfTensors(made, render_mode, owns)
    is_drawn = getattr(made, "render_mode", None) == render_mode
    if is_drawn and is_parallel(made):
        if options.frame_stack > 1:
            raise ConfigurationError(
                "stacks of frames of several agents cannot be played: look at the agents one by one"
            )
        return Together(made)
    if not isinstance(made, gym.Env) or not is_drawn:
        mode = getattr(made, "render_mode", None)
        if callable(getattr(made, "close", None)):
            made.close()
        raise EnvError(f"the environment {what}: its render_mode is {mode!r}, and {remedy}")
    return made if options.frame_stack == 1 else FrameStack(made, options.frame_stack)


def _play(
    player_of: Callable[[str], AnyAgent],
    env: "gym.Env[Any, Any]",
    episodes: int,
    seed: int,
    deterministic: bool,
    most_steps: int | None,
) -> Played:
    return act_in(
        env,
        player_of,
        episodes=require_whole("episodes", episodes),
        seed=require_whole("seed", seed, 0, below=2**31),
        deterministic=deterministic,
        most_steps=None if most_steps is None else require_whole("most_steps", most_steps),
    )
