"""Run directories: their contents, and what is never overwritten."""

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_files import lines_of

import hybridppo
from hybridppo.errors import RunDirectoryError
from hybridppo.run_directory import files
from hybridppo.run_directory.checkpoints import FORMAT_VERSION
from hybridppo.run_directory.directory import RunDirectory, fresh_path


def test_create_then_open(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "a" / "run", {"seed": 3})
    assert RunDirectory.open(tmp_path / "a" / "run").config == {"format_version": FORMAT_VERSION, "seed": 3}


def test_what_exists_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="exists already"):
        RunDirectory.create(tmp_path, {})
    with pytest.raises(RunDirectoryError, match="exists already"):
        RunDirectory.create(tmp_path / "precious.txt", {})
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="cannot be made"):
        RunDirectory.create(tmp_path / "file" / "run", {})
    with pytest.raises(RunDirectoryError, match="cannot be made"):  # as does a folder that must not be entered
        RunDirectory.create(tmp_path / ("long" * 100), {})


def test_other_folders_are_no_run_directories(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run directory"):
        RunDirectory.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"config\.json is damaged"):
        RunDirectory.open(tmp_path)

    for version in ("[]", '"4"', "true", "NaN"):
        (tmp_path / "config.json").write_text(f'{{"format_version": {version}}}')
        with pytest.raises(RunDirectoryError, match=r"config\.json is damaged: format_version must be a whole number"):
            RunDirectory.open(tmp_path)


READING = {
    "load": hybridppo.load,
    "resume": hybridppo.resume,
    "plot": lambda path: hybridppo.plot_runs(path, "curves.svg"),
}


@pytest.mark.parametrize("read", READING.values(), ids=READING)
def test_a_path_that_cannot_be_looked_at_is_a_clear_error(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no run directory: .*File name too long"):  # or Permission denied
        read(tmp_path / ("long" * 100))


def test_a_line_is_on_disk_at_once_and_strict_json(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, {})
    run.log({"iteration": 1, "loss": 0.5, "mean": math.nan, "best": math.inf})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert lines_of(tmp_path) == [{"iteration": 1, "loss": 0.5, "mean": None, "best": None}]
    run.close()
    run.close()


def test_rewinding_drops_what_comes_after(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, {})
    for iteration in range(1, 6):
        run.log({"iteration": iteration})
    run.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 6, "lo')  # cut short by a crash
    run.rewind(iteration=3, env_steps=300)
    run.log({"iteration": 4})
    assert [line["iteration"] for line in lines_of(tmp_path)] == [1, 2, 3, 4]


def test_the_last_line_is_written_again_without_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(files, "_iteration_of", lambda line: (read.append(line), json.loads(line)["iteration"])[1])
    with contextlib.closing(RunDirectory.create(tmp_path, {})) as run:
        for iteration in range(1, 101):
            run.log({"iteration": iteration})
        run.log_again(100, {"iteration": 100, "more": 1.0})
    assert lines_of(tmp_path)[-2:] == [{"iteration": 99}, {"iteration": 100, "more": 1.0}]
    assert len(read) == 2


def test_rewinding_sets_damaged_newer_checkpoints_aside(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, {})
    for steps in (300, 400):
        (tmp_path / "checkpoints" / f"{steps:012d}").mkdir()
    run.rewind(iteration=3, env_steps=300)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names[0] == "000000000300"
    assert names[1].startswith("damaged-000000000400")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no folder with an open file")
def test_what_was_written_once_is_written_again_with_the_folder(tmp_path: Path) -> None:
    path, names = tmp_path / "run", ("config.json", "placements.json")
    run = RunDirectory.create(path, {"seed": 3})
    run.write("placements.json", {"line": "cpu"})
    before = [(path / name).read_bytes() for name in names]
    shutil.rmtree(path)
    run.log({"iteration": 1})
    assert [(path / name).read_bytes() for name in names] == before
    run.close()


def test_fresh_paths_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = fresh_path("module:Some/Env-v0", 3)
    first.mkdir(parents=True)
    assert first.parent == Path("runs")
    assert not fresh_path("module:Some/Env-v0", 3).exists()
