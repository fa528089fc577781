"""Where a run comes from, as its `config.json` says."""

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo.settings import COMMIT, origin

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(autouse=True)
def _git_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.settings.COMMIT", COMMIT)


def git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def test_the_command_the_directory_and_the_machine_are_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "hybridppo", "train", "my envs:Maze-v0"])
    assert origin() == {
        "command": "python -m hybridppo train 'my envs:Maze-v0'", "directory": str(folder), "host": platform.node(),
    }  # fmt: skip


@needs_git
def test_the_commit_is_known_and_whether_files_have_changed(folder: Path) -> None:
    git("init", "-q")
    assert "commit" not in origin()  # there is none yet
    (folder / "model.py").write_text("width = 64\n")
    git("add", "model.py")
    git("commit", "-q", "-m", "first")
    git("tag", "-a", "v1", "-m", "a tag")
    commit = git("rev-parse", "HEAD")
    found = origin()
    assert (found["commit"], found["has_changes"]) == (commit, False)
    (folder / "runs.log").write_text("not tracked")
    assert origin()["has_changes"] is False
    (folder / "model.py").write_text("width = 65\n")
    assert (origin()["commit"], origin()["has_changes"]) == (commit, True)


def test_without_git_nothing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert set(origin()) == {"command", "directory", "host"}


def test_a_run_keeps_the_origin_that_it_began_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    options: dict[str, Any] = {"placement": "cpu", "seed": 0, "progress": False, "run_dir": folder / "run"}
    monkeypatch.setattr("sys.orig_argv", ["first"])
    hybridppo.train("CartPole-v1", total_steps=16, config=config, **options)
    monkeypatch.setattr("sys.orig_argv", ["second"])
    hybridppo.resume(folder / "run", total_steps=32, progress=False)
    written = json.loads((folder / "run" / "config.json").read_text())
    assert written["origin"]["command"] == "first"
    assert written["total_steps"] == 32
    hybridppo.write_report(folder / "run")
    assert "first" in (folder / "run" / "report.html").read_text()
