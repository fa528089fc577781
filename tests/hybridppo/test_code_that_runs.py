"""Which code runs: what `config.json` names only after it is printed, and nothing of the working directory unasked."""

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
from processes import run_python

from hybridppo import PPOConfig
from hybridppo.commands.main import main
from hybridppo.errors import ConfigurationError
from hybridppo.tools.jobs import Run

SMALL = ["--num-envs", 2, "--num-steps", 16, "--hidden-sizes", 8, "--num-minibatches", 2, "--vectorization", "sync"]
MAKES = """
import logging

logger = logging.getLogger(__name__)
logger.warning("imported")


def made(**arguments):
    logger.warning("called")
    raise ValueError("a stranger's code")
"""
ASKS = "ask to import stranger_too, to import stranger, to call stranger:made with {'size': 8}"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    return int(exited.value.code or 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "r"
    options = ["--total-steps", 64, "--seed", 0, "--placement", "cpu", "--no-progress", *SMALL]
    assert run("train", "CartPole-v1", "--run-dir", path, *options) == 0
    config = json.loads((path / "config.json").read_text())
    config |= {"env_id": "stranger:made", "env_kwargs": {"size": 8}, "imports": "stranger_too"}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """The working directory, with a run whose settings name two modules in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    for name in ("stranger", "stranger_too"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        Path(f"{name}.py").write_text(MAKES)
    shutil.copytree(trained, "r")
    caplog.set_level(logging.INFO)
    return tmp_path


@pytest.mark.parametrize(
    "arguments", [["evaluate", "r"], ["play", "r"], ["resume", "r"], ["train", "--config", "r/config.json"]]
)
def test_what_the_settings_of_a_run_ask_for_is_printed_before_it_runs(
    arguments: list[str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if arguments[0] == "play":
        pytest.importorskip("imageio_ffmpeg")
    assert run(*arguments) == 1
    asked, *runs = (text for text in caplog.messages if "ask to" in text or text in ("imported", "called"))
    assert asked.endswith(ASKS)
    assert runs[:2] == ["imported"] * 2
    assert {*runs} == {"imported", "called"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "r", "--env", "CartPole-v1", "--episodes", "1", "--no-progress"],
        ["train", "CartPole-v1", "--config", "r", "--run-dir", "s", "--no-progress", "--evaluation-episodes", "1"],
        ["export", "r", "p.npz", "--check-steps", "2"],
        ["watch", "r"],
        ["check", "CartPole-v1", "--steps", "2"],
        ["agents"],
        pytest.param(["plot", "r"], marks=pytest.mark.extras),
        pytest.param(["report", "r"], marks=pytest.mark.extras),
    ],
)
def test_no_code_that_the_settings_name_runs_unasked(
    arguments: list[str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = list(sys.path)
    assert run(*arguments) == 0
    assert not {"imported", "called"} & {*caplog.messages}
    assert sys.path == path  # without the working directory, in which a file may have the name of a package


@pytest.mark.extras
def test_a_command_runs_no_file_with_the_name_of_a_package(folder: Path) -> None:
    for package in ("numpy", "colorama", "defusedxml"):
        (folder / f"{package}.py").write_text("raise SystemExit('a file of the working directory')")
    process = run_python("-m", "hybridppo", "report", "r", cwd=folder, warm=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_search_or_benchmark_goes_on_in_no_run_that_names_other_code(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="was begun with env_id 'stranger:made', not 'CartPole-v1'"):
        Run(Path("r"), "CartPole-v1", 64, 0, PPOConfig()).train()
    with pytest.raises(ConfigurationError, match="was begun with imports 'stranger_too', not ''"):
        Run(Path("r"), "stranger:made", 64, 0, PPOConfig()).train()
    config = json.loads(Path("r/config.json").read_text())
    config |= {"env_id": "CartPole-v1", "env_kwargs": None, "imports": "", "address": "nowhere:1"}
    Path("r/config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match="was begun with address 'nowhere:1', not None"):
        Run(Path("r"), "CartPole-v1", 64, 0, PPOConfig()).train()
