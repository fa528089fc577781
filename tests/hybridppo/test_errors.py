"""Error messages: the commands in them can be pasted as they are."""

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import hybridppo
from hybridppo import ConfigurationError, RunDirectoryError
from hybridppo.commands.main import COMMANDS
from hybridppo.commands.parsing import EXIT_INTERRUPTED
from hybridppo.commands.train import report
from hybridppo.errors import command, pip_install
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.running import TrainResult

ROOT = Path(hybridppo.__file__).parent
PRINTED = re.compile(rf"\bhybridppo ({'|'.join(COMMANDS)}) \S|pip install [^'{{]*\[")
"""A command that is quoted neither by `command` nor by hand."""


def written_out(file: Path) -> list[str]:
    """The commands in a file's texts, without its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | within:
            texts.append(node.value)
    return [f"{file}: {text}" for text in texts if PRINTED.search(text)]


def test_every_command_in_a_message_is_quoted() -> None:
    folders = (ROOT, ROOT / "agents", ROOT / "runners")
    files = {file.resolve() for folder in folders for file in folder.rglob("*.py")}
    with_commands = [file for file in files if re.search("hybridppo |pip install", file.read_text(encoding="utf-8"))]
    assert [found for file in sorted(with_commands) for found in written_out(file)] == []


def test_a_command_is_read_back_by_the_shell_as_it_was_meant() -> None:
    words = ["hybridppo", "resume", "runs/it's 1 & $HOME"]
    expected = subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
    assert command(words[0], words[1], Path(words[2])) == expected.replace("/", os.sep)
    assert pip_install("plot") == f"{command('pip', 'install', '.[plot]')} in your clone of hybridppo"


def test_paths_with_spaces_are_quoted_in_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my runs" / "one"
    to_resume = command("hybridppo", "resume", path)
    assert str(path) != to_resume.removeprefix("hybridppo resume ")
    RunDirectory.create(path, {})
    with pytest.raises(RunDirectoryError, match=re.escape(f"`{to_resume}`")):
        RunDirectory.create(path, {})
    result = TrainResult(None, {}, path, 0, None, interrupted=True, saved=True)  # type: ignore[arg-type]
    assert report(result) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == f"interrupted; go on with: {to_resume}\n"
    with pytest.raises(ConfigurationError, match=re.escape(command("hybridppo", "tune", "My Env-v0"))):
        hybridppo.tuned("My Env-v0")
