"""Only one process at a time writes to a run directory; a lock ends with its process."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config
from run_files import lines_of

import hybridppo
from hybridppo import RunDirectoryError
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import FolderLock, locked, wait_until_free

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
HOLDING = """
import sys
from pathlib import Path
from hybridppo.run_directory.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def train(path: Path, **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 96, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False} | options
    return hybridppo.train("CartPole-v1", run_dir=path, **options)


def test_a_held_folder_names_its_holder(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(RunDirectoryError, match=rf"in use by process {os.getpid()} on .*, since \d{{4}}-"):
            FolderLock(tmp_path)
        (tmp_path / "lock.json").unlink()  # as just before it is written
        with pytest.raises(RunDirectoryError, match="in use by another process"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunDirectoryError, match=f"in use by process {process.pid} on "):
            FolderLock(tmp_path)
        process.kill()
    wait_until_free(tmp_path, 60.0)
    FolderLock(tmp_path).release()


def test_two_trainings_never_share_a_run(tmp_path: Path) -> None:
    path, refused = tmp_path / "run", []

    def meanwhile(metrics: Any) -> None:
        for begin in (train, lambda path: hybridppo.resume(path, progress=False)):
            with pytest.raises(RunDirectoryError, match=f"{path} (is in use by process {os.getpid()}|exists already)"):
                begin(path)
            refused.append(metrics["iteration"])
        hybridppo.evaluate(path, episodes=1, progress=False)  # who only reads may

    last = train(path, on_iteration=meanwhile).metrics["iteration"]
    assert refused == [number for number in range(1, last + 1) for _ in range(2)]
    lines = [line["iteration"] for line in lines_of(path)]
    assert lines == list(range(1, last + 1))
    assert hybridppo.resume(path, total_steps=192, progress=False).metrics["iteration"] > last


def test_an_empty_folder_in_use_is_refused_with_the_holder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
        train(tmp_path)
    assert train(tmp_path).saved


@pytest.mark.parametrize("is_there", [False, True], ids=["to be made", "empty"])
def test_of_several_that_start_at_once_one_has_the_run_and_loses_nothing(is_there: bool, tmp_path: Path) -> None:
    for number in range(20):
        path, barrier = tmp_path / str(number), threading.Barrier(3)
        made: list[RunDirectory] = []
        errors: list[Exception] = []
        if is_there:
            path.mkdir()

        def start(seed: int, path: Path = path, barrier: Any = barrier, made: Any = made, errors: Any = errors) -> None:
            barrier.wait()
            try:
                made.append(RunDirectory.create(path, {"seed": seed}))
            except RunDirectoryError as error:
                errors.append(error)

        threads = [threading.Thread(target=start, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(made), len(errors)) == (1, 2)
        assert RunDirectory.open(path).config == made[0].config
        assert (path / "checkpoints").is_dir()
        made[0].close()


def test_a_run_is_free_when_it_has_ended_however_it_did(tmp_path: Path) -> None:
    def fail(metrics: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", on_iteration=fail)
    FolderLock(tmp_path / "run").release()
    with pytest.raises(ZeroDivisionError):
        hybridppo.resume(tmp_path / "run", progress=False, on_iteration=fail)
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="damaged"):
        hybridppo.resume(tmp_path / "run", progress=False)
    FolderLock(tmp_path / "run").release()


def test_what_is_no_run_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    for begin in (train, hybridppo.resume):
        with pytest.raises(RunDirectoryError):
            begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_benchmarks_and_searches_lock_their_folders(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(RunDirectoryError, match="in use by process"):
            hybridppo.run_benchmark("CartPole-v1", settings="defaults", total_steps=64, output=tmp_path, progress=False)
        pytest.importorskip("optuna")
        with pytest.raises(RunDirectoryError, match="in use by process"):
            hybridppo.tune("CartPole-v1", total_steps=64, trials=1, output=tmp_path, progress=False)
