"""What the documents show works: code is run, with fewer steps than it says; commands are read with all their flags."""

import functools
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import PPOConfig
from hybridppo.commands.main import COMMANDS
from hybridppo.commands.parsing import parse
from hybridppo.commands.train import train_command

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEPS = 600
TINY = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))

EXCERPTS = (
    "with placement.sampling(agent) as actor:",
    "import hybridppo\n\nenv = hybridppo.tensors.Playground",
    "from isaaclab.app import",
)
"""What blocks begin with that are a part of something, or need what no extra installs."""


def blocks_of(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


COMMAND_LINES = [
    pytest.param(line[2:], id=f"{page.name}: {line[2:70]}")
    for page in PAGES
    for block in blocks_of(page, "console")
    for line in block.splitlines()
    if line.startswith("$ hybridppo ")
]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_is_one(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    kind = train_command(["train", *arguments]) if name == "train" else COMMANDS[name]
    if "--help" in arguments:
        return
    parse(kind, arguments=arguments)  # a flag that is none ends the process


def test_commands_are_read() -> None:
    assert len(COMMAND_LINES) > 30
    with pytest.raises(SystemExit):
        parse(COMMANDS["plot"], arguments=["runs", "--no-such-flag"])


class MyEnv(gym.Env[Any, Any]):
    """An environment of the reader's."""

    def __new__(cls, **kwargs: Any) -> Any:
        return gym.make("CartPole-v1", **kwargs)


MY_ENVS = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

gym.register("Maze-v0", entry_point=lambda size=4, **options: CartPoleEnv(**options))
"""


class AnyAgent:
    """An agent of whatever environment a page is telling of."""

    def act(self, observation: Any, *, action_mask: Any = None) -> int:
        return 0


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has by the time of reading: an environment, an agent, runs; and steps are few."""
    monkeypatch.chdir(tmp_path)
    for run in ("runs/first", "runs/mine"):
        hybridppo.train("CartPole-v1", total_steps=64, seed=0, config=TINY, run_dir=run, progress=False)
    (tmp_path / "my_envs.py").write_text(MY_ENVS)
    hybridppo.export("runs/mine", "policy.npz", check_steps=0)
    monkeypatch.syspath_prepend(tmp_path)
    train, resume = hybridppo.train, hybridppo.resume

    @functools.wraps(train)
    def short(*arguments: Any, **options: Any) -> Any:
        if options.get("run_dir"):
            shutil.rmtree(options["run_dir"], ignore_errors=True)  # pages make their runs anew
        options["total_steps"] = min(options["total_steps"], STEPS)
        config = options.get("config", PPOConfig() if "agent" not in options else None)
        if isinstance(config, PPOConfig):
            steps = min(config.num_steps, 64)
            options["config"] = replace(config, num_steps=steps, num_minibatches=None, num_epochs=1)
        return train(*arguments, **{"progress": False, **options})

    if not torch.cuda.is_available():
        mirrored = hybridppo.Mirrored
        monkeypatch.setattr(hybridppo, "Mirrored", lambda *devices, **options: mirrored("cpu", "cpu", **options))
    monkeypatch.setattr(hybridppo, "train", short)
    monkeypatch.setattr(hybridppo, "resume", functools.partial(resume, progress=False))
    env = gym.make("CartPole-v1")
    observation, info = env.reset(seed=0)
    agent = hybridppo.load("runs/mine")
    return {
        "hybridppo": hybridppo, "PPOConfig": PPOConfig, "gym": gym, "np": np, "torch": torch, "MyEnv": MyEnv,
        "env": env, "observation": observation, "info": info, "agent": agent, "config": TINY, "run_dir": "runs/mine",
        "__name__": "documents",
    }  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page, "python")], ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_code_runs(page: Path, names: dict[str, Any], tmp_path: Path) -> None:
    # It tells of many environments, and of an agent for each.
    always = (
        {"agent": AnyAgent(), "info": {"action_mask": np.ones(2, np.int8)}} if page.name == "environments.md" else {}
    )
    for number, block in enumerate(blocks_of(page, "python")):
        if block.startswith(EXCERPTS):
            continue
        file = tmp_path / f"block_{number}.py"  # where what looks for a function's source finds it
        file.write_text(block)
        names.update(always)
        exec(compile(block, str(file), "exec"), names)
