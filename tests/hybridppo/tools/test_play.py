"""Episodes to watch: frames, returns, and the error if there is nothing to see."""

import contextlib
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from ppo_settings import ppo_config
from processes import run_python
from tagging import RUNNER, TAGGED, TAGGER, tag
from tensor_environments import Guessing
from toy_agents import Matching, TakingTurns
from videos import frames_of

import hybridppo
from hybridppo import ConfigurationError, EnvError, compiled
from hybridppo.commands.main import main
from hybridppo.commands.tools import episode_lines
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.errors import pip_install
from hybridppo.tools.play import Video

QUIET = {"seed": 0, "placement": "cpu", "progress": False}


class Numbered(gym.Env[Any, Any]):
    """Episodes of seven steps, a gray for each; the mask allows one action, which changes."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 10}  # noqa: RUF012 - as gymnasium has it
    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.rendered = 0
        self._picture = np.zeros((64, 64, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen()

    def step(self, action: int) -> Any:
        reward = float(action == self._steps % 3)
        self._steps += 1
        observation, info = self._seen()
        return observation, reward, self._steps == 7, False, info

    def _seen(self) -> Any:
        mask = np.arange(3) == self._steps % 3
        return np.full(1, self._steps / 10, np.float32), {"action_mask": mask.astype(np.int8)}

    def render(self) -> Any:
        self.rendered += 1
        self._picture[:] = 30 * self._steps  # the same array for every picture
        return self._picture


@pytest.fixture(scope="module")
def masked_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playing") / "run"
    config = ppo_config(
        num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,), recurrent="gru", recurrent_size=4
    )
    hybridppo.train(Numbered, total_steps=64, config=config, run_dir=path, action_masks=True, **QUIET)
    return path


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playing") / "run"
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train("CartPole-v1", total_steps=64, config=config, run_dir=path, **QUIET)
    return path


@pytest.mark.extras
def test_a_video_has_a_frame_for_every_observation(masked_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "new" / "video.mp4"
    played = hybridppo.play(masked_run, path, episodes=3, env=lambda: Numbered("rgb_array"))
    assert played.path == path
    assert (played.returns, played.lengths, played.steps) == ((7.0,) * 3, (7,) * 3, 21)  # as masks and memory have it
    greys = [float(frame.mean()) for frame in frames_of(path)]
    np.testing.assert_allclose(greys, [30 * step for step in range(8)] * 3, atol=6)
    assert [each.name for each in path.parent.iterdir()] == ["video.mp4"]


@pytest.mark.extras
def test_the_command_writes_a_video_into_the_run(cartpole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    with pytest.raises(SystemExit) as exited:
        main(["play", str(cartpole), "--episodes", "2", "--seed", "3"])
    assert exited.value.code == 0
    out = capsys.readouterr().out
    assert f"video: {cartpole / 'video.mp4'}" in out
    env, agent = gym.make("CartPole-v1"), hybridppo.load(cartpole)
    observation, _ = env.reset(seed=3)
    lengths = []
    for _ in range(2):
        length, has_ended = 0, False
        while not has_ended:
            observation, _, terminated, truncated, _ = env.step(agent.act(observation))
            length, has_ended = length + 1, terminated or truncated
        lengths.append(length)
        observation, _ = env.reset()
    assert [f"{length} steps" in out for length in lengths] == [True, True]
    assert len(frames_of(cartpole / "video.mp4")) == sum(lengths) + 2


@pytest.mark.extras
def test_the_agent_of_a_file_is_shown_beside_it(cartpole: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    file = hybridppo.load(cartpole).save(tmp_path / "agent.safetensors")
    short = {"env_kwargs": {"max_episode_steps": 3}, "most_steps": 2}
    assert hybridppo.play(file, env="CartPole-v1", **short).path == tmp_path / "agent.mp4"
    with pytest.raises(SystemExit) as exited:
        main(["play", str(file)])
    assert exited.value.code == 2


def test_a_run_or_a_file_is_played_in_the_environment_that_is_given(cartpole: Path, tmp_path: Path) -> None:
    file = hybridppo.load(cartpole).save(tmp_path / "agent.safetensors")

    def make(length: int = 3) -> gym.Env[Any, Any]:
        env = gym.make("CartPole-v1", max_episode_steps=length)
        env.unwrapped.render_mode, env.unwrapped.render = "human", lambda: None
        return env

    assert [hybridppo.play(given, window=True, env=make).lengths for given in (cartpole, file)] == [(3,), (3,)]
    assert hybridppo.play(cartpole, window=True, env=make, env_kwargs={"length": 2}).lengths == (2,)
    with pytest.raises(ConfigurationError, match=r"an agent's file, which names no environment: pass env=... \(--env"):
        hybridppo.play(file, window=True)


@pytest.mark.extras
def test_a_video_ends_after_so_many_steps(masked_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "video.mp4"
    played = hybridppo.play(masked_run, path, episodes=3, env=lambda: Numbered("rgb_array"), most_steps=10)
    assert (played.lengths, played.steps) == ((7,), 10)
    assert len(frames_of(path)) == 12


@pytest.mark.extras
@pytest.mark.parametrize(
    ("shape", "dtype", "got"),
    [((64, 64), "uint8", r"\[64, 64\]"), ((64, 64, 4), "uint8", r"\[64, 64, 4\]"), ((8, 8, 3), "float32", "float32")],
)
def test_a_picture_that_no_video_can_have_is_named(
    masked_run: Path, tmp_path: Path, shape: tuple[int, ...], dtype: str, got: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")

    def make() -> gym.Env[Any, Any]:
        env = Numbered("rgb_array")
        env._picture = np.zeros(shape, dtype)
        return env

    with pytest.raises(EnvError, match=rf"a picture must be uint8 \[height, width, 3\], got .*{got}"):
        hybridppo.play(masked_run, tmp_path / "video.mp4", env=make)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extras
def test_a_video_has_even_sizes_and_one_size(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    picture = np.full((63, 31, 3), 200, np.uint8)
    with contextlib.closing(Video(tmp_path / "a.mp4", 12.5)) as video:
        for _ in range(5):
            video.add(picture)
        with pytest.raises(EnvError, match=r"a picture must be uint8 \[63, 31, 3\], got uint8 \[31, 63, 3\]"):
            video.add(picture.transpose(1, 0, 2))
    video.require_whole()
    frames = frames_of(tmp_path / "a.mp4")
    assert [frame.shape for frame in frames] == [(64, 32, 3)] * 5
    assert abs(float(frames[0][:60, :28].mean()) - 200) < 4  # nothing is scaled, a row and a column are added


@pytest.mark.extras
def test_a_video_that_lacks_pictures_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with contextlib.closing(Video(tmp_path / "a.mp4", 30)) as video:
        for _ in range(3):
            video.add(np.zeros((32, 32, 3), np.uint8))
    video._frames += 1
    with pytest.raises(OSError, match="3 of 4 pictures were written"):
        video.require_whole()
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(OSError, match=r"a\.mp4"):
        video.require_whole()


def test_a_window_is_the_environments_own(masked_run: Path) -> None:
    played = hybridppo.play(masked_run, window=True, episodes=2, env=lambda: Numbered("human"))
    assert (played.returns, played.path) == ((7.0, 7.0), None)
    with pytest.raises(EnvError, match="has no window: its render_mode is None"):
        hybridppo.play(masked_run, window=True, env=Numbered)
    assert hybridppo.play(masked_run, window=True, episodes=2, most_steps=10, env=lambda: Numbered("human")).steps == 10


def test_a_function_gets_the_arguments_of_the_run(tmp_path: Path) -> None:
    def make(length: int, render_mode: str | None = None) -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(Numbered(render_mode), length)

    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    run_dir = tmp_path / "run"
    hybridppo.train(make, env_kwargs={"length": 5}, total_steps=32, config=config, run_dir=run_dir, **QUIET)
    assert hybridppo.play(run_dir, window=True, env=partial(make, render_mode="human")).lengths == (5,)


def test_a_reward_of_several_numbers_is_weighted_as_in_training(tmp_path: Path) -> None:
    def make(render_mode: str | None = None) -> gym.Env[Any, Any]:
        return gym.wrappers.TransformReward(Numbered(render_mode), lambda _: [1.0, 2.0])

    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    options = {**QUIET, "config": config, "reward_weights": (1.0, 0.5), "run_dir": tmp_path / "run"}
    hybridppo.train(make, total_steps=32, **options)
    assert hybridppo.play(tmp_path / "run", window=True, env=lambda: make("human")).returns == (14.0,)


class Shown(Matching):
    metadata: dict[str, Any] = {}  # noqa: RUF012 - as PettingZoo has it
    render_mode = "human"

    def __init__(self) -> None:
        super().__init__(masks=True)


def test_several_agents_play_together_each_with_a_memory_of_its_own(tmp_path: Path) -> None:
    config = ppo_config(
        num_envs=2, num_steps=8, num_minibatches=2, hidden_sizes=(8,), recurrent="gru", recurrent_size=4
    )
    options = {**QUIET, "config": config, "action_masks": True, "run_dir": tmp_path / "run"}
    hybridppo.train(Shown, total_steps=96, **options)
    played = hybridppo.play(tmp_path / "run", window=True, episodes=2, env=Shown)
    # Each leaves a step before the one ahead of it; the last is not there in every other episode.
    assert played.agents == ("player 2", "player 1", "player 0", "player 1", "player 0")
    assert (played.lengths, played.episodes, played.steps) == ((6, 7, 8, 7, 8), 2, 16)
    assert all(0 <= value <= length for value, length in zip(played.returns, played.lengths, strict=True))
    lines = episode_lines(
        replace(played, agents=("wolf_0", "wolf_1", "sheep_0", "wolf_0", "wolf_1"), returns=(1, 2, 5, 3, 4))
    )
    assert lines == ["wolf: mean return 2.5 of 4 agents' episodes", "sheep: mean return 5 of 1 agents' episodes"]


class Seen(TorchCartPole):
    """Has pictures, a gray for each number of an environment."""

    closed = 0
    metadata: dict[str, Any] = {"render_fps": 10}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, num_envs: int, render_mode: str | None = None, episode_length: int = 6) -> None:
        super().__init__(num_envs, episode_length=episode_length)
        self.render_mode = render_mode

    def render(self) -> Any:
        greys = torch.arange(self.num_envs, dtype=torch.uint8).view(-1, 1, 1, 1)
        return (40 + greys).expand(-1, 64, 64, 3)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def tensor_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playing") / "run"
    config = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train(TorchCartPole(4), total_steps=128, config=config, run_dir=path, seed=0, progress=False)
    return path


class DrawnTurns(TakingTurns):
    """A game in turns that draws."""

    metadata: dict[str, Any] = {"render_fps": 10}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(Matching(masks=True), within=True)
        self.render_mode, self.drawn = render_mode, 0

    def render(self) -> Any:
        self.drawn += 1
        return np.zeros((8, 8, 3), np.uint8)


def test_agents_that_take_turns_are_played(tmp_path: Path) -> None:
    config = ppo_config(num_envs=2, num_steps=24, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    options = {**QUIET, "config": config, "action_masks": True, "run_dir": tmp_path / "run"}
    hybridppo.train(DrawnTurns, total_steps=96, **options)
    played = hybridppo.play(tmp_path / "run", window=True, episodes=2, env=partial(DrawnTurns, "human"))
    assert played.episodes == 2
    # Of the three agents, in every other episode two are there.
    assert sorted(played.agents) == ["player 0", "player 0", "player 1", "player 1", "player 2"]
    assert all(0 <= value <= 8 for value in played.returns)
    assert sum(played.returns) > 0


def test_another_agent_has_all_players_but_the_first(tmp_path: Path, masked_run: Path) -> None:
    config = ppo_config(num_envs=2, num_steps=24, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    for name, seed in (("one", 0), ("other", 1)):
        options = {**QUIET, "seed": seed, "config": config, "action_masks": True, "run_dir": tmp_path / name}
        hybridppo.train(DrawnTurns, total_steps=96, **options)
    made = partial(DrawnTurns, "human")
    own = {name: hybridppo.play(tmp_path / name, window=True, env=made) for name in ("one", "other")}
    both = hybridppo.play(tmp_path / "one", window=True, env=made, against=tmp_path / "other")
    returns = {name: dict(zip(each.agents, each.returns, strict=True)) for name, each in {**own, "both": both}.items()}
    # What an agent of this game observes, no other changes.
    assert returns["both"] == {**returns["other"], "player 0": returns["one"]["player 0"]}
    assert [line.partition(":")[0] for line in episode_lines(both, by_kind=False)] == list(both.agents)
    agents = {name: hybridppo.load(tmp_path / name) for name in ("one", "other")}
    players = {"player 0": "one", "player 1": "other", "player 2": "other"}
    evaluated = hybridppo.evaluate_policies(
        agents, DrawnTurns, episodes=1, deterministic=True, policy_of=players.__getitem__
    )
    assert len(evaluated["one"].returns) == 1  # with the masks that the agents were trained with
    with pytest.raises(ConfigurationError, match="against is for environments in which another agent can play"):
        hybridppo.play(masked_run, window=True, env=partial(Numbered, "human"), against=tmp_path / "one")


def test_one_batched_environment_is_played(tensor_run: Path) -> None:
    agent, made = hybridppo.load(tensor_run), list[Seen]()

    def make(num_envs: int) -> Seen:
        made.append(Seen(num_envs, "human"))
        return made[-1]

    played = hybridppo.play(tensor_run, window=True, episodes=1, seed=5, env=make)
    env, length, has_ended = Seen(1), 0, False
    observations, _ = env.reset(seed=5)
    while not has_ended:
        action = torch.as_tensor(agent.act(observations[0].numpy())).expand(1)
        observations, _, terminated, truncated, _ = env.step(action)
        length, has_ended = length + 1, bool(terminated[0] or truncated[0])
    assert (played.lengths, played.returns) == ((length,), (float(length),))
    assert hybridppo.play(tensor_run, window=True, episodes=2, seed=5, env=make).episodes == 2
    assert [(each.num_envs, each.closed) for each in made] == [(1, 1), (1, 1)]
    for unseen in (TorchCartPole(4), TorchCartPole, Seen(2, "human")):
        with pytest.raises(EnvError, match=r"has no window.*must be made by a function of num_envs, have render\(\)"):
            hybridppo.play(tensor_run, window=True, env=unseen)


def test_parts_of_observations_and_actions_of_tensors_are_played(tmp_path: Path) -> None:
    spaces = Dict(a=Box(-1.0, 1.0, (2,)), b=Discrete(3)), Tuple((Discrete(2), Box(-1.0, 1.0, (2,))))
    config = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train(Guessing(2, *spaces), total_steps=32, config=config, run_dir=tmp_path / "run", progress=False)
    env: Any = Guessing(1, *spaces)
    env.render_mode = "human"
    assert hybridppo.play(tmp_path / "run", window=True, episodes=2, env=env).lengths == (4, 4)


@pytest.mark.extras
def test_a_video_of_environments_of_tensors(tensor_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    played = hybridppo.play(tensor_run, tmp_path / "a.mp4", episodes=2, env=Seen)
    frames = frames_of(tmp_path / "a.mp4")
    assert len(frames) == played.steps + 1  # the picture after an episode's end is the next one's first
    assert all(abs(float(frame.mean()) - 40) < 4 for frame in frames)
    with pytest.raises(EnvError, match=r"draws no pictures.*have render\(\)"):
        hybridppo.play(tensor_run, tmp_path / "b.mp4", env=TorchCartPole)


def test_compiled_environments_draw_where_they_say_how() -> None:
    game = tag(taggers=1, runners=2, episode_length=5)
    made: Any = game(render_mode="rgb_array")
    made.reset(seed=0)
    made.fields.x[:], made.fields.y[:] = (0.5, 0.1, 0.9), (0.5, 0.1, 0.9)
    made.fields.tagged_by[2], made.fields.in_game[2] = 0, 0
    picture = made.render()
    assert (picture.shape, picture.dtype) == ((480, 480, 3), np.uint8)
    at = [
        tuple(picture[480 - 16 - round(y * 448), 16 + round(x * 448)]) for x, y in ((0.5, 0.5), (0.1, 0.1), (0.9, 0.9))
    ]
    assert at == [TAGGER, RUNNER, TAGGED]
    assert game().render() is None
    with pytest.raises(gym.error.UnsupportedMode, match="Tag has no render_mode 'human': it draws for 'rgb_array'"):
        game(render_mode="human")
    with pytest.raises(gym.error.UnsupportedMode, match=r"write `def draw\(state\)` in the class"):
        UNDRAWN(render_mode="rgb_array")
    assert DRAWN(render_mode="rgb_array").render().mean() == 7.0


def _slide(**more: Any) -> Any:
    """An environment of one number, with further attributes in its class."""

    def reset(state: Any, random: Any) -> None:
        state.x = 7.0

    def step(state: Any, action: Any, random: Any) -> Any:
        return 0.0, False

    def observe(state: Any, out: Any) -> None:
        out[0] = state.x

    define = compiled.environment(
        state={"x": np.float64}, observation_space=Box(-9.0, 9.0, (1,), np.float32), action_space=Discrete(2)
    )
    return define(type("Slide", (), {"reset": reset, "step": step, "observe": observe, **more}))


UNDRAWN = _slide()
DRAWN = _slide(draw=lambda state: np.full((4, 4, 3), 7, np.uint8))


def test_what_draws_nothing_and_what_is_no_video_is_refused(
    masked_run: Path, cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybridppo.tools.play.is_installed", lambda name: True)
    with pytest.raises(EnvError, match="draws no pictures: its render_mode is None"):
        hybridppo.play(masked_run, tmp_path / "a.mp4", env=Numbered)
    with pytest.raises(ConfigurationError, match=r"end with \.mp4"):
        hybridppo.play(cartpole, tmp_path / "a.gif")
    number: Any = 3
    with pytest.raises(ConfigurationError, match="output must be a path, got 3"):
        hybridppo.play(cartpole, number)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_remedy_is_said(cartpole: Path, tmp_path: Path) -> None:
    code = f"""
import hybridppo.tools.play as playing
playing.is_installed = lambda name: False
from hybridppo.commands.main import main
main(["play", {str(cartpole)!r}, "--output", {str(tmp_path / "a.mp4")!r}])
"""
    process = run_python("-c", code)
    assert process.returncode == 2
    assert pip_install("video") in process.stderr


def test_a_window_writes_no_video(cartpole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["play", str(cartpole), "--window", "--output", "a.mp4"])
    assert exited.value.code == 2
    assert "a window writes no video: leave output out" in capsys.readouterr().err


def test_a_window_without_pygame_is_one_line(
    cartpole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(SystemExit) as exited:
        main(["play", str(cartpole), "--window"])
    assert exited.value.code == 1
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "rollout" not in each]
    assert line.endswith('pygame is not installed, run `pip install "gymnasium[classic-control]"`')


class Nim(gym.Env[Any, Any]):
    """Two players take one or two of five by turns; who takes the last wins."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - as gymnasium has it
    observation_space = gym.spaces.Discrete(6)
    action_space = gym.spaces.Discrete(2, start=1)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def _info(self) -> dict[str, Any]:
        return {"current_player": self.player, "action_mask": np.arange(2) < max(1, self.left)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.player = 5, 0
        return self.left, self._info()

    def step(self, action: Any) -> Any:
        self.left, self.player = max(0, self.left - int(action)), 1 - self.player
        return self.left, float(self.left == 0), self.left == 0, False, self._info()

    def render(self) -> Any:
        return "|" * self.left


def nim(render_mode: str | None = None) -> Any:
    return hybridppo.TwoPlayers(Nim(render_mode))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Sets what a person types, one text after the other; returns what the terminal then shows, with the prompts."""

    def typing(*texts: str) -> Any:
        left = list(texts)

        def answer(prompt: str) -> str:
            print(prompt)
            if not left:
                raise EOFError
            return left.pop(0)

        monkeypatch.setattr("builtins.input", answer)
        return lambda: capsys.readouterr().out.splitlines()

    return typing


def agent_of(env: Any, player: str, path: Path) -> Path:
    """The file of an agent of a game."""
    agent = hybridppo.PPO(env.observation_space(player), env.action_space(player), ppo_config(hidden_sizes=(4,)))
    path.mkdir(exist_ok=True)
    return agent.save(path / "agent.safetensors")


def test_a_person_plays_one_of_two(tmp_path: Path, typed: Any) -> None:
    """The game is drawn as text, wrong input is asked for again, and the agent plays the other one."""
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(4,))
    options = {**QUIET, "config": config, "action_masks": True, "run_dir": tmp_path / "run"}
    hybridppo.train(nim, total_steps=64, **options)
    shown = typed("3", "", "take", "2", "2", "1", "1")
    played = hybridppo.play(tmp_path / "run", env=partial(nim, "ansi"), human="player_0")
    lines = shown()
    prompt = "player_0, your action, one of 1, 2: "
    assert lines[:7] == ["|||||", prompt, "3 is not legal", prompt, " is not legal", prompt, "take is not legal"]
    assert lines[8].startswith("player_1 plays ")
    assert sorted(played.returns) == [-1.0, 1.0]
    assert (played.agents, played.path) == (("player_0", "player_1"), None)
    shown = typed("1")  # without text of its own, the observation is shown; and the input ends
    with pytest.raises(KeyboardInterrupt):
        hybridppo.play(tmp_path / "run", env=nim, human="player_0")
    assert shown()[:2] == ["5", prompt]
    shown = typed("2", "1", "1")
    hybridppo.play(tmp_path / "run", env=partial(nim, "human"), human="player_0", window=True)  # which its window shows
    assert shown()[0] == prompt


class Pairing:
    """A parallel game: both choose at once, and the same choice is worth 1."""

    possible_agents = ("left", "right")
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 9.0, (1,))

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> Any:
        return {agent: np.array([self.time], np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.time += 1
        self.chosen = actions
        each = dict.fromkeys(self.agents, float(actions["left"] == actions["right"]))
        seen, ends = self._seen(), dict.fromkeys(self.agents, self.time == 2)
        if self.time == 2:
            self.agents = []
        return seen, each, ends, dict.fromkeys(ends, False), {agent: {} for agent in ends}

    def close(self) -> None:
        pass


def test_a_person_plays_where_all_act_at_once(tmp_path: Path, typed: Any) -> None:
    game = Pairing()
    path = agent_of(game, "left", tmp_path)
    shown = typed("2", "0")
    played = hybridppo.play(path, env=lambda: game, human="right")
    prompt = "right, your action, one of 0, 1, 2: "
    assert shown() == ["[0.]", prompt, "[1.]", prompt]
    assert (game.chosen["right"], played.lengths) == (0, (2, 2))


def test_what_no_person_can_play_is_refused(tmp_path: Path, masked_run: Path) -> None:
    path = agent_of(Pairing(), "left", tmp_path)
    with pytest.raises(ConfigurationError, match="human must name one of the agents left, right, got 'middle'"):
        hybridppo.play(path, env=Pairing, human="middle")
    with pytest.raises(ConfigurationError, match="human needs an environment of agents, got 'me'"):
        hybridppo.play(masked_run, env=Numbered, human="me")
    with pytest.raises(ConfigurationError, match="a person writes no video: leave output out"):
        hybridppo.play(path, "a.mp4", env=Pairing, human="left")
    game = Pairing()
    game.action_space = lambda agent: Box(-1.0, 1.0, (1,))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="a person types numbers of actions, and those of left are Box"):
        hybridppo.play(agent_of(game, "left", tmp_path / "other"), env=lambda: game, human="left")


class Balanced(CartPoleEnv):
    """A window that draws nothing."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> None:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, MuJoCo needs no variable")
def test_without_a_display_mujoco_is_told_how_to_draw(
    cartpole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", ModuleType("mujoco"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")
    with caplog.at_level("INFO"):
        hybridppo.play(cartpole, window=True, env=partial(Balanced, "human"))
    assert os.environ["MUJOCO_GL"] == "egl"
    assert any("MuJoCo draws with MUJOCO_GL=egl" in message for message in caplog.messages)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")  # as the user has said
    hybridppo.play(cartpole, window=True, env=partial(Balanced, "human"))
    assert os.environ["MUJOCO_GL"] == "osmesa"
