"""Every fenced block of README.md and docs/ is run, with fewer steps than it says, or has a reason why not."""

import configparser
import functools
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, PPOConfig
from hybridppo.commands.main import main, parse_command
from hybridppo.tensors import TorchCartPole

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
WALKED = ("first_robot.md", "first_game.md")
"""Pages that test_wheel.py follows as a whole, because each command needs what those before it have made."""
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name not in WALKED)]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
SHELLS = ("console", "bash")
DIRECTIVES = ("{toctree}", "{image}", "{eval-rst}")
"""Blocks for Sphinx, which test_site.py tests by building the pages."""
STEPS = 600
TINY = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
RUN = "runs/CartPole-v1-20260101-120000-seed0"


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """For a console, the lines behind a prompt, with the name of its machine; for a script, every line."""
        text = self.text.replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if self.language == "bash":
            return lines
        return [line.removeprefix("$ ") for line in lines if re.match(r"\w*\$ ", line)]


def blocks_of(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(page, (info.split() or [""])[0], textwrap.dedent(text)) for _, _, info, text in found]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


@dataclass(frozen=True)
class Reason:
    """Why something is not run, and what in its text shows that this reason applies."""

    words: str
    sign: str


GPU = Reason("needs a GPU", r"--placement (cuda|hybrid|overlap)")
MACHINES = Reason("needs other machines", r"10\.0\.0\.1|--address auto|ray stop")
INSTALLS = Reason("would change what is installed", r"^pip install")
SERVES = Reason("goes on until it is ended", r"^tensorboard --logdir")
WINDOW = Reason("opens a window", r"--window")
PERSON = Reason("waits for a person", r"--human")
REPOSITORY = Reason("is the repository's own work of minutes", r"^(make|python) ")
EXCERPT = Reason("is an excerpt of the library's own loop", r"agent\.update\(placement\.to_learner")
PACKAGES = Reason("needs what no extra installs", r"isaaclab|IsaacLab|Playground")
ACCOUNT = Reason("needs an account of the Hugging Face Hub", r"USER/|hf auth login")
COMPILED = Reason("is compiled by C++, in test_export.py", r"#include|g\+\+|aoti_compile")

NOT_RUN = {
    # What a block, or a command of one, begins with.
    "make train": REPOSITORY,
    "make test": REPOSITORY,
    "make gpu": REPOSITORY,
    "make gpu-day": REPOSITORY,
    "python scripts/release.py": REPOSITORY,
    "hybridppo train HalfCheetah-v5 --placement": GPU,
    "python tests/tools/": REPOSITORY,
    "pip install ": INSTALLS,
    "hybridppo train CartPole-v1 --vectorization compiled --placement cuda": GPU,
    "hybridppo train LunarLander-v3 --distributed coarse:8 --address auto": MACHINES,
    "first$  ": MACHINES,
    "second$ ": MACHINES,
    "torchrun ": MACHINES,
    "tensorboard ": SERVES,
    f"hybridppo play {RUN} --window": WINDOW,
    "hybridppo play runs/game --human": PERSON,
    "with placement.sampling(agent) as actor:": EXCERPT,
    "import hybridppo\n\nenv = hybridppo.tensors.Playground": PACKAGES,
    "from isaaclab.app import": PACKAGES,
    "env = hybridppo.tensors.IsaacLab": PACKAGES,
    "#include <iostream>": COMPILED,
    "torch._inductor.aoti_compile_and_package": COMPILED,
    "TORCH=$(python": COMPILED,
    "hf auth login": ACCOUNT,
    "hybridppo push": ACCOUNT,
    'agent = hybridppo.pretrained("USER/': ACCOUNT,
}
"""All that is not run, with the reasons."""


def reason_for(text: str) -> Reason | None:
    """Why a block or a command is not run; None if it is run."""
    return next((reason for start, reason in NOT_RUN.items() if text.startswith(start)), None)


LONG = (
    "hybridppo benchmark",
    "hybridppo tune",
    "hybridppo doctor",
    "hybridppo placements",
    "hybridppo train LunarLander",
)
"""Commands that take minutes; the slow tests run the blocks that have one."""
SCRIPTS = [block for block in BLOCKS if block.language in SHELLS and reason_for(block.text) is None]


def is_long(block: Block) -> bool:
    return any(command.startswith(LONG) for command in block.commands)


def lines_of(blocks: Iterable[Block]) -> list[str]:
    """The library's commands."""
    return [command for block in blocks for command in block.commands if command.startswith("hybridppo ")]


def test_every_fence_is_found() -> None:
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        fences = [line for line in lines if line.lstrip().startswith(("```", "~~~"))]
        assert len(fences) == 2 * len(blocks_of(page)), page.name


def fault_of(block: Block) -> str | None:
    """What is wrong with a block that is neither run nor has a reason; None if nothing is wrong."""
    if (reason := reason_for(block.text)) is not None:
        return (
            None if re.search(reason.sign, block.text) else f"it is not run because it {reason.words}: nothing shows it"
        )
    if block.language not in SHELLS:
        is_known = block.language in ("python", "json", "yaml", *DIRECTIVES)
        return None if is_known else f"blocks of {block.language!r} are not run: give a reason in NOT_RUN"
    for command in block.commands:
        reason = reason_for(command)
        if reason is None and not command.startswith("hybridppo "):
            return f"it is not run: give a reason in NOT_RUN: {command}"
        if reason is not None and not re.search(reason.sign, command):
            return f"it is not run because it {reason.words}: nothing shows it: {command}"
    return None if block.commands else "a console shows commands behind `$ `"


def test_every_block_is_run_or_has_a_reason() -> None:
    faults = {f"{block.page.name}: {block.text[:40]!r}": fault_of(block) for block in BLOCKS}
    assert {block: fault for block, fault in faults.items() if fault is not None} == {}


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("toml", "a = 1\n", "blocks of 'toml' are not run"),
        ("", "hybridppo train CartPole-v1\n", "blocks of '' are not run"),
        ("console", "$ hybridppo doctor\n$ git status\n", "give a reason in NOT_RUN: git status"),
        ("console", "hybridppo train CartPole-v1\n", "behind `$ `"),
        ("console", "$ torchrun script.py\n", "needs other machines: nothing shows it: torchrun"),
        ("python", "from isaaclab.app import that\n", None),
        ("python", "import hybridppo\n", None),
        ("bash", "# a word\nhybridppo doctor\n", None),
    ],
)
def test_a_new_block_is_not_left_out_in_silence(language: str, text: str, fault: str | None) -> None:
    found = fault_of(Block(ROOT / "README.md", language, text))
    assert found is None if fault is None else found is not None and fault in found


def test_every_reason_is_of_something() -> None:
    texts = [block.text for block in BLOCKS]
    texts += [command for block in BLOCKS if block.language in SHELLS for command in block.commands]
    assert [start for start in NOT_RUN if not any(text.startswith(start) for text in texts)] == []


def test_what_is_not_run_is_there() -> None:
    """The repository's extras, scripts and make targets."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tried = 0
    for command in (command for block in BLOCKS if block.language in SHELLS for command in block.commands):
        words = shlex.split(command, comments=True)
        if reason_for(command) is INSTALLS:
            for extras in re.findall(r"'\.\[(.*?)\]'", command):
                assert set(extras.split(",")) <= set(setup["options.extras_require"]), command
        elif reason_for(command) is REPOSITORY and words[1] != "-m":
            assert f"\n{words[1]}:" in makefile if words[0] == "make" else (ROOT / words[1]).is_file(), command
        else:
            continue
        tried += 1
    assert tried > 8


@pytest.mark.parametrize("line", dict.fromkeys(lines_of(filter(is_long, SCRIPTS))))
def test_a_command_that_is_not_run_here_is_one(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    if "--help" not in arguments:
        words = [word for word in arguments if word not in ("--tuned-from", "maze/tuned.json")]  # no file is there
        parse_command([name, *words])  # a flag that is none is refused


def test_commands_are_read() -> None:
    assert len(lines_of(SCRIPTS)) > 30
    with pytest.raises(ConfigurationError, match="no flag --no-such-flag"):
        parse_command(["plot", "runs", "--no-such-flag"])


class MyEnv(gym.Env[Any, Any]):
    """An environment that a reader might write."""

    def __new__(cls, **kwargs: Any) -> Any:
        return gym.make("CartPole-v1", **kwargs)


MY_ENVS = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

gym.register("Maze-v0", entry_point=lambda size=4, **options: CartPoleEnv(**options))
"""
FILES = {found[1]: block.text for block in BLOCKS if (found := re.match(r"# (\w+\.py)\n", block.text))}
"""Files that pages let the reader write."""


class AnyAgent:
    """An agent of the environment that the page uses."""

    def act(self, observation: Any, *, action_mask: Any = None) -> int:
        return 0


@pytest.fixture(scope="session")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "run"
    config = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2)
    evaluating: dict[str, Any] = {"evaluate_every": 32, "episodes_per_evaluation": 1}
    hybridppo.train("CartPole-v1", total_steps=64, seed=0, config=config, run_dir=path, progress=False, **evaluating)
    return path


@pytest.fixture
def folder(a_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with environments and runs."""
    monkeypatch.chdir(tmp_path)
    for run in ("runs/first", "runs/mine", "runs/a", "runs/b", "runs/c", "runs/narrow", RUN):
        shutil.copytree(a_run, tmp_path / run)
    wide = tmp_path / "runs" / "wide"  # another configuration, for what tells configurations apart
    shutil.copytree(a_run, wide)
    config = json.loads((wide / "config.json").read_text(encoding="utf-8"))
    config["config"]["hidden_sizes"] = [256, 256]
    (wide / "config.json").write_text(json.dumps(config), encoding="utf-8")
    hybridppo.load("runs/mine").save("agent.safetensors")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        sys.modules.pop(name.removesuffix(".py"), None)
    (tmp_path / "my_envs.py").write_text(f"{MY_ENVS}\n{FILES['my_envs.py']}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for env_id in ("Maze-v0", "Corridor-v0"):
        gym.registry.pop(env_id, None)
    return tmp_path


@pytest.fixture
def names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has at this point: an environment, an agent, runs. Trainings have few steps."""
    hybridppo.export("runs/mine", "policy.npz", check_steps=0)
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
        if isinstance(options.get("distributed"), hybridppo.GPUOnly):  # on the CPU, in one process
            one = hybridppo.GPUOnly(1, shards=options["distributed"].learners)
            options |= {"distributed": one, "placement": "cpu", "config": replace(options["config"], num_envs=16)}
        return train(*arguments, **{"progress": False, **options})

    if not torch.cuda.is_available():
        mirrored = hybridppo.Mirrored
        monkeypatch.setattr(hybridppo, "Mirrored", lambda *devices, **options: mirrored("cpu", "cpu", **options))
    monkeypatch.setattr(hybridppo, "train", short)
    monkeypatch.setattr("sys.breakpointhook", lambda: None)
    tune = functools.partial(hybridppo.tune, jobs=2, progress=False)
    monkeypatch.setattr(hybridppo, "tune", lambda *args, **own: tune(*args, **own | {"trials": 1, "total_steps": 64}))
    monkeypatch.setattr(hybridppo, "resume", functools.partial(resume, progress=False))
    env = gym.make("CartPole-v1")
    observation, info = env.reset(seed=0)
    agent = hybridppo.load("runs/mine")
    return {
        "hybridppo": hybridppo, "PPOConfig": PPOConfig, "gym": gym, "np": np, "torch": torch, "MyEnv": MyEnv,
        "env": env, "observation": observation, "info": info, "agent": agent, "config": TINY, "run_dir": "runs/mine",
        "__name__": "__main__",
    }  # fmt: skip


class TensorCartPole(TorchCartPole):
    """A batched environment that a reader might write."""

    def __init__(self, num_envs: int, device: str) -> None:
        super().__init__(num_envs, device)


MORE: dict[str, dict[str, Any]] = {
    # It tells of many environments, and of an agent for each.
    "environments.md": {"agent": AnyAgent(), "info": {"action_mask": np.ones(2, np.int8)}},
    "distributed.md": {"MyEnv": TensorCartPole},
}


@pytest.mark.parametrize(
    "page", dict.fromkeys(block.page for block in BLOCKS if block.language == "python"), ids=lambda page: page.name
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_code_runs(page: Path, names: dict[str, Any], folder: Path) -> None:
    blocks = [block.text for block in blocks_of(page) if block.language == "python"]
    for number, text in enumerate(blocks):
        if reason_for(text) is not None:
            continue
        file = folder / f"block_{number}.py"  # where what looks for a function's source finds it
        file.write_text(text)
        names.update(MORE.get(page.name, {}))
        exec(compile(text, str(file), "exec"), names)


# Commands: each with few steps, few episodes and small networks.

SMALL = {"--num-envs": "2", "--num-steps": "16", "--num-minibatches": "1", "--num-epochs": "1"}
SHORTER: dict[str, dict[str, str]] = {
    "train": {"--total-steps": "128"},
    "resume": {"--total-steps": "128"},
    "evaluate": {"--episodes": "2"},
    "placements": {"--total-steps": "2000", "--num-steps": "16", "--num-minibatches": "1", "--num-epochs": "1"},
    "check": {"--steps": "50"},
    "doctor": {"--seconds": "0.01"},
    "play": {"--episodes": "1", "--most-steps": "20"},
    "export": {"--check-steps": "5"},
    "tune": {"--total-steps": "64", "--trials": "1"},
    "benchmark": {"--total-steps": "10000", "--seeds": "1"},  # an episode of Acrobot is 500 steps long
}
SHORTER_WHERE_SAID = {"--evaluate-every": "64", "--episodes-per-evaluation": "1"}
WITH_PROGRESS = ("train", "resume", "evaluate", "placements", "tune", "benchmark")


def shortened(command: str) -> list[str]:
    """The arguments of a command, changed so that it has less to do."""
    name, *arguments = shlex.split(command.partition(" > ")[0], comments=True)[1:]
    if "--help" in arguments:
        return [name, *arguments]
    arguments = ["CartPole-v1" if argument == "MyEnv-v0" else argument for argument in arguments]
    options = dict(SHORTER.get(name, {}))
    if name == "train" and "--agent" not in arguments:
        options |= SMALL
    if "batch_size" in command:  # it divides the number of environments
        del options["--num-envs"]
    options |= {flag: value for flag, value in SHORTER_WHERE_SAID.items() if flag in arguments}
    for flag, value in options.items():
        if flag in arguments:
            arguments[arguments.index(flag) + 1] = value
        else:
            arguments += [flag, value]
    return [name, *arguments, *(["--no-progress"] if name in WITH_PROGRESS else [])]


def test_commands_are_shortened_and_otherwise_what_they_are() -> None:
    found = shortened("hybridppo train MyEnv-v0 --total-steps 1000000 --agent td3 --seed 3     # a word")
    assert found == ["train", "CartPole-v1", "--total-steps", "128", "--agent", "td3", "--seed", "3", "--no-progress"]
    assert shortened("hybridppo plot runs --by seconds") == ["plot", "runs", "--by", "seconds"]


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{block.page.name}: {block.commands[0][:60]}",
            marks=[pytest.mark.slow] if is_long(block) else [],
        )
        for block in SCRIPTS
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_commands_run(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for other in blocks_of(block.page):
        if other.language == "yaml":
            (folder / "my.yaml").write_text(other.text)
        if other.language == "json":
            suites = json.loads(other.text)
            (folder / "mine.json").write_text(other.text)
            assert "mine.json" in block.page.read_text(encoding="utf-8")
            assert all(gym.spec(suite["env_id"]) for suite in suites.values())
    for command in block.commands:
        if reason_for(command) is None:
            arguments = shortened(command)
            if "--run-dir" in arguments:  # pages make their runs anew
                shutil.rmtree(arguments[arguments.index("--run-dir") + 1], ignore_errors=True)
            with pytest.raises(SystemExit) as exited:
                main(arguments)
            assert exited.value.code in (None, 0), f"{command}: {''.join(capsys.readouterr())}"
