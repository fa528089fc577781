"""Each promise about files, disks and run directories: `docs/reliability.md` has the list."""

import contextlib
import json
import logging
import math
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from ppo_settings import ppo_config
from processes import run_python, start_python, wait_until
from run_files import lines_of, on_a_full_disk
from selection import only_by_default
from toy_environments import IdentityDiscrete, ScriptedEnv

import hybridppo
from hybridppo import CheckpointError, ConfigurationError, RunDirectoryError
from hybridppo.interfaces import Metrics
from hybridppo.run_directory import checkpoints, files
from hybridppo.run_directory.checkpoints import FORMAT_VERSION
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size


def train(env: Any = "CartPole-v1", *, iterations: int = 4, **options: Any) -> hybridppo.TrainResult:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "vectorization": "sync", "progress": False} | options
    return hybridppo.train(env, total_steps=iterations * BATCH, **options)


def resume(run_dir: Path, iterations: int | None = None, **options: Any) -> hybridppo.TrainResult:
    total_steps = None if iterations is None else iterations * BATCH
    return hybridppo.resume(run_dir, total_steps=total_steps, progress=False, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "run"
    train(run_dir=path, checkpoint_seconds=0.0)
    return path


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_lines_that_a_checkpoint_counts_are_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real = checkpoints.save

    def save(folder: Path, *arguments: Any, **options: Any) -> None:
        events.append("checkpoint")
        real(folder, *arguments, **options)

    monkeypatch.setattr(files, "sync_file", lambda path: events.append(path.name))
    monkeypatch.setattr(checkpoints, "save", save)
    train(run_dir=tmp_path / "run", evaluate_every=2 * BATCH, episodes_per_evaluation=1, checkpoint_seconds=1e6)
    assert events == ["metrics.jsonl", "evaluations.jsonl", "checkpoint"] * 3  # the first, and two evaluations


# Killed in the middle of writing a checkpoint


WRITES_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
import torch
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings

path = Path(sys.argv[1])
run = RunDirectory(path, {})
first = max((int(folder.name) for folder in checkpoints.folders(path / "checkpoints")), default=0) + 1
for step in count(first):
    tensors = {f"part{i}": torch.full((50_000,), float(step)) for i in range(3)}
    run.save_checkpoint(step, tensors, {"step": step, "filler": ["x" * 100] * 200}, keep=2, score=-float(step % 7))
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
def test_killed_in_the_middle_of_writing_a_checkpoint_the_previous_one_is_whole(tmp_path: Path) -> None:
    folder, moments = tmp_path / "checkpoints", random.Random(0)
    folder.mkdir()
    cut_short, newest = 0, 0
    for _ in range(60):  # as many kills as it takes until some came while one was written
        writer = start_python("-c", WRITES_FOR_EVER, tmp_path)
        wait_until(lambda n=newest: checkpoints.folders(folder)[-1:] not in ([], [folder / f"{n:012d}"]), writer)
        deadline = time.monotonic() + 60
        while not any(folder.glob(".*.tmp")):  # the next one is being written
            assert time.monotonic() < deadline
        time.sleep(moments.uniform(0.0, 0.001))
        writer.kill()
        writer.wait()
        cut_short += any(folder.glob(".*.tmp"))
        path, checkpoint = checkpoints.load_latest(folder)
        assert path == checkpoints.folders(folder)[-1]  # none was passed over
        assert checkpoint.state["step"] == int(path.name) > newest
        assert all((tensor == float(path.name)).all() for tensor in checkpoint.tensors.values())
        best_score = checkpoints.load_best(folder)[1].score
        assert best_score is not None
        assert best_score >= (checkpoint.score or -math.inf)
        RunDirectory(tmp_path, {}).rewind(0, 10**9)  # as `resume` does
        assert not list(folder.glob(".*"))
        newest = int(path.name)
        if cut_short == 2:
            break
    assert cut_short > 0, "no kill came while a checkpoint was written: the test has shown nothing"


# Truncated or altered


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": data[:-10], "altered": flipped, "empty": b""}[kind])


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("kind", ["truncated", "altered", "empty", "missing"])
def test_checkpoint_truncated_or_altered_the_previous_one_is_used_aloud(
    run_dir: Path, file: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    *_, previous, newest = checkpoints.folders(run_dir / "checkpoints")
    damage(newest / file, kind)
    result = resume(run_dir, 5)
    assert result.metrics["iteration"] == 5
    assert [line["iteration"] for line in lines_of(run_dir)] == [1, 2, 3, 4, 5]
    assert any(str(newest / file) in text and str(previous) in text for text in warnings_in(caplog))


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_checkpoint_truncated_or_altered_there_is_never_a_silent_start_from_scratch(run_dir: Path, file: str) -> None:
    for folder in checkpoints.folders(run_dir / "checkpoints"):
        damage(folder / file, "altered")
    assert_refused(run_dir, CheckpointError, file)


def assert_refused(run_dir: Path, error: type[Exception], match: str, resume: Any = resume) -> None:
    """A run is neither resumed nor loaded nor evaluated, and nothing in it changes."""
    before = contents(run_dir)
    for use in (resume, hybridppo.load, hybridppo.evaluate):
        with pytest.raises(error, match=match):
            use(run_dir)
    assert contents(run_dir) == before


def test_checkpoint_truncated_or_altered_none_at_all_is_an_error(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints")
    assert_refused(run_dir, CheckpointError, "there is no checkpoint in")


# Disk full

ON_A_FULL_DISK = """
import json, logging, os, resource, signal, sys
from pathlib import Path
import hybridppo
from hybridppo import PPOConfig
from hybridppo.run_directory import checkpoints

folder, how = Path(sys.argv[1]), sys.argv[2]
warnings = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger().addHandler(handler)
run_dir = folder / "run"
seen = {}

def fill():
    if how.startswith("file size"):
        sys.dont_write_bytecode = True  # it would be truncated, and stay
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    assert os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize < 10**6, "not a small disk"
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                pass

def make_room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (folder / "filler").unlink(missing_ok=True)

def on_iteration(metrics):
    iteration = metrics["iteration"]
    if iteration == 3:
        fill()
    if iteration == 12:
        path, checkpoint = checkpoints.load_latest(run_dir / "checkpoints")
        seen["iteration_kept"] = checkpoint.state["runner"]["iteration"]
        seen["leftovers"] = [str(path) for path in run_dir.rglob(".*")]
        seen["warnings"] = list(warnings)
        if "stays" not in how:
            make_room()

result = hybridppo.train(
    "CartPole-v1", total_steps=14 * 32, seed=3, placement="cpu", vectorization="sync", run_dir=run_dir, progress=False,
    config=PPOConfig(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,)),
    checkpoint_seconds=0.0, on_iteration=on_iteration,
)
seen["saved"] = result.saved
seen["iterations"] = result.metrics["iteration"]
seen["all_warnings"] = warnings
make_room()
print(json.dumps(seen))
"""


def can_mount() -> bool:
    return (
        sys.platform == "linux"
        and shutil.which("unshare") is not None
        and subprocess.run(
            ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"], capture_output=True, check=False
        ).returncode
        == 0
    )


def train_on_a_disk_that_fills(tmp_path: Path, how: str) -> dict[str, Any]:
    """The results of the script above, in a process of its own; afterwards the folder holds the run."""
    script = tmp_path / "script.py"
    script.write_text(ON_A_FULL_DISK)
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = (script, disk, how)
    if how.startswith("file system"):
        if not can_mount():
            pytest.skip("no small file system can be mounted here: that takes unshare and user namespaces")
        inside = 'mount -t tmpfs -o size=400k none "$0" && "$@" && cp -r "$0/run" "$0.copy"'
        command = ["unshare", "-rm", "sh", "-c", inside, str(disk), sys.executable, *map(str, arguments)]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    elif os.name != "posix":
        pytest.skip("limits of file sizes are of POSIX")
    else:
        process = run_python(*arguments)
    assert process.returncode == 0, process.stderr
    seen: dict[str, Any] = json.loads(process.stdout)
    return seen


@pytest.mark.parametrize("how", only_by_default(("file size",), ["file system", "file size"], pytest.mark.slow))
def test_disk_full_training_goes_on_warns_and_keeps_the_old_checkpoint(tmp_path: Path, how: str) -> None:
    seen = train_on_a_disk_that_fills(tmp_path, how)
    assert seen["iterations"] == 14
    assert seen["iteration_kept"] == 2  # the last before the disk was full
    assert seen["leftovers"] == []
    reasons = "No space left on device" if how == "file system" else "File too large"
    for what in ("checkpoint", "metrics.jsonl"):
        told = [text for text in seen["warnings"] if what in text]
        assert len(told) == 1, "one loud warning, not one per iteration"
        assert "FAILED" in told[0]
        assert reasons in told[0]
    assert sum("works again" in text for text in seen["all_warnings"]) == 2
    run = (tmp_path / "disk.copy") if how == "file system" else (tmp_path / "disk" / "run")
    assert seen["saved"]
    assert checkpoints.load_latest(run / "checkpoints")[1].state["runner"]["iteration"] == 14
    logged = [line["iteration"] for line in lines_of(run)]  # whole lines all of them
    assert logged[-2:] == [13, 14]  # there was room again at the end of the twelfth
    assert logged == sorted(set(logged))
    assert 2 <= len(logged) - 3 < 11  # those that found room in a block that was the file's already
    assert resume(run, 15).metrics["iteration"] == 15


@pytest.mark.parametrize(
    "how",
    only_by_default(
        ("file system stays full",), ["file system stays full", "file size stays limited"], pytest.mark.slow
    ),
)
def test_disk_full_to_the_end_is_told_and_the_run_goes_on_from_the_old_checkpoint(tmp_path: Path, how: str) -> None:
    seen = train_on_a_disk_that_fills(tmp_path, how)
    assert not seen["saved"]
    assert seen["iterations"] == 14
    run = (tmp_path / "disk.copy") if "system" in how else (tmp_path / "disk" / "run")
    assert not (run / "result.json").exists()
    assert resume(run).metrics["iteration"] == 14
    assert [line["iteration"] for line in lines_of(run)] == list(range(1, 15))


@pytest.mark.skipif(os.name != "posix", reason="limits of file sizes are of POSIX")
def test_disk_full_to_the_end_is_an_error_on_the_command_line(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import resource, sys
        from hybridppo import training
        from hybridppo.commands import main as cli
        sys.dont_write_bytecode = True  # it would be truncated, and stay
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))  # enough for config.json alone
        cli.main(sys.argv[1:])
    """)
    arguments = "train CartPole-v1 --total-steps 64 --placement cpu --num-envs 2 --num-steps 16 --no-progress --run-dir"
    process = run_python("-c", code, *arguments.split(), tmp_path / "run")
    assert process.returncode == 1, process.stderr
    assert "writing a checkpoint" in process.stderr
    assert "the last checkpoint is not on the disk" in process.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows moves no folder with an open file")
def test_a_run_directory_that_is_moved_is_made_again_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def moved(metrics: Metrics) -> None:
        if metrics["iteration"] == 2:
            (tmp_path / "run").rename(tmp_path / "elsewhere")

    assert train(run_dir=tmp_path / "run", checkpoint_seconds=0.0, on_iteration=moved).saved
    assert [text for text in warnings_in(caplog) if "was moved or deleted: it is made again" in text]
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == [3, 4]
    assert resume(tmp_path / "run", 5).metrics["iteration"] == 5
    assert [line["iteration"] for line in lines_of(tmp_path / "elsewhere")] == [1, 2]
    assert resume(tmp_path / "elsewhere").metrics["iteration"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no folder with an open file")
@pytest.mark.parametrize("what", ["the folder", "the lock"])
def test_a_run_directory_that_is_deleted_is_made_again_with_its_lock(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, refused = tmp_path / "run", []

    def delete(metrics: Metrics) -> None:
        if metrics["iteration"] == 2:
            shutil.rmtree(path) if what == "the folder" else (path / "lock").unlink()
        if metrics["iteration"] == 4:
            with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()}"):
                resume(path)
            refused.append(path)

    assert train(run_dir=path, checkpoint_seconds=0.0, on_iteration=delete).saved
    assert refused == [path]
    assert len([text for text in warnings_in(caplog) if "was moved or deleted: it is made again" in text]) == 1
    assert {"config.json", "result.json", "lock"} <= set(contents(path))
    assert [line["iteration"] for line in lines_of(path)] == [1, 2, 3, 4][-2 if what == "the folder" else 0 :]
    assert resume(path, 5).metrics["iteration"] == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows moves no folder with an open file")
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_run_directory_whose_place_another_run_has_taken_is_left_to_it(
    has_ended: bool, run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, before, opened = tmp_path / "here", dict[str, bytes](), list[RunDirectory]()

    def replace(metrics: Metrics) -> None:
        if metrics["iteration"] == 2:
            path.rename(tmp_path / "elsewhere")
            run_dir.rename(path)
            directory = RunDirectory.open_to_train(path)
            before.update(contents(path))
            if has_ended:
                directory.close()
            else:
                opened.append(directory)

    result = train(run_dir=path, checkpoint_seconds=0.0, on_iteration=replace)
    assert result.metrics["iteration"] == 4
    assert not result.saved
    after = contents(path)
    assert {name: data for name, data in before.items() if after.get(name) != data}.keys() <= {"lock.json"}
    told = "another run has taken its place|is in use by process"
    assert any(re.search(told, text) and "checkpoint" in text for text in warnings_in(caplog))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows moves no folder with an open file")
def test_a_run_directory_that_is_moved_to_another_disk_and_linked_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def move(metrics: Metrics) -> None:
        if metrics["iteration"] == 2:
            shutil.copytree(path, tmp_path / "disk")
            shutil.rmtree(path)
            path.symlink_to(tmp_path / "disk")

    assert train(run_dir=path, checkpoint_seconds=0.0, on_iteration=move).saved
    assert [line["iteration"] for line in lines_of(path)] == [1, 2, 3, 4]
    assert path.is_symlink()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows deletes no folder with an open file")
def test_a_deleted_replay_buffer_is_written_again_whole(tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = hybridppo.TD3Config(num_envs=2, hidden_sizes=(8,), learning_starts=32, steps_per_iteration=32)

    def delete(metrics: Metrics) -> None:
        if metrics["iteration"] == 2:
            shutil.rmtree(path)

    whole = train("Pendulum-v1", run_dir=tmp_path / "whole", config=config, iterations=5)
    train("Pendulum-v1", run_dir=path, config=config, checkpoint_seconds=0.0, on_iteration=delete)
    assert torch.equal(resume(path, 5).agent.parameters.values, whole.agent.parameters.values)


# A hole in the record


def test_lines_that_are_lost_are_told_of_by_all_who_read_them(
    run_dir: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    hybridppo.plot_runs(run_dir, tmp_path / "curves.svg")
    assert warnings_in(caplog) == []
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_bytes(lines[0])
    said = "metrics.jsonl has lines of 1 of the first 4 iterations: the others are lost"
    for use in (lambda: hybridppo.plot_runs(run_dir, tmp_path / "curves.svg"), lambda: resume(run_dir)):
        caplog.clear()
        use()
        assert [text for text in warnings_in(caplog) if said in text] == [f"{run_dir}/{said}"]
    assert said in hybridppo.write_report(run_dir).read_text()


# Resumed with something else


def test_resume_with_another_environment_is_refused_with_the_difference(run_dir: Path) -> None:
    before = contents(run_dir)
    with pytest.raises(
        CheckpointError, match=r"trained in 'CartPole-v1', not in 'Acrobot-v1': .*evaluate.*start_from=RUN_DIR"
    ):
        resume(run_dir, 8, env="Acrobot-v1")
    assert contents(run_dir) == before


def test_resume_with_another_space_is_refused_with_the_difference(tmp_path: Path) -> None:
    script, path = ((5, "truncated"),), tmp_path / "run"
    train(lambda: ScriptedEnv(script), run_dir=path, iterations=1)
    before = contents(path)
    with pytest.raises(CheckpointError, match=r"action_space was Discrete\(2\) and is Discrete\(3\)"):
        resume(path, 8, env=lambda: ScriptedEnv(script, Discrete(3)))
    with pytest.raises(CheckpointError, match=r"observation_space was .*Box.* and is .*Discrete.*; action_space was"):
        resume(path, 8, env=IdentityDiscrete)
    assert contents(path) == before


def test_resume_with_another_network_is_refused_with_the_difference(run_dir: Path) -> None:
    edit(run_dir / "config.json", lambda config: config["config"].update(hidden_sizes=[9]))
    words = r"does not fit the network(.|\n)*\[8, 4\](.|\n)*\[9, 4\]"
    assert_refused(run_dir, CheckpointError, words, lambda path: resume(path, 8))


def test_a_refused_resume_changes_no_file_that_a_run_is_read_from(run_dir: Path) -> None:
    before = contents(run_dir)
    with pytest.raises(
        ConfigurationError, match=r"num_workers must be 0 \(this process\), or 1 to num_envs = 2, got 9"
    ):
        resume(run_dir, 8, num_workers=9)
    assert contents(run_dir) == before
    assert resume(run_dir, 5).metrics["iteration"] == 5  # with the run's own number of workers


def test_options_of_a_resume_that_has_trained_stay_the_runs_own_after_an_error(run_dir: Path) -> None:
    def fail(metrics: Any) -> None:
        if metrics["iteration"] == 6:
            raise ConfigurationError("no more")

    with pytest.raises(ConfigurationError, match="no more"):
        resume(run_dir, 8, on_iteration=fail, keep_checkpoints=5)
    assert RunDirectory.open(run_dir).config["keep_checkpoints"] == 5
    assert resume(run_dir, 8).metrics["iteration"] == 8


def test_a_goal_that_the_run_has_passed_trains_nothing_and_does_not_replace_the_runs_own(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(run_dir / "config.json", lambda config: config.update(total_steps=6 * BATCH))  # as if stopped on the way
    for goal in (2, 4):
        assert resume(run_dir, goal, keep_checkpoints=5).metrics["iteration"] == 4
        config = RunDirectory.open(run_dir).config
        assert (config["total_steps"], config["keep_checkpoints"]) == (6 * BATCH, 5)
    assert sum("nothing to train" in text for text in warnings_in(caplog)) == 2
    assert resume(run_dir).metrics["iteration"] == 6


def test_an_unknown_part_of_a_checkpoint_is_refused_by_name(run_dir: Path) -> None:
    newest = checkpoints.folders(run_dir / "checkpoints")[-1]
    checkpoint = checkpoints.load(newest)
    shutil.rmtree(newest)
    checkpoints.save(newest, {**checkpoint.tensors, "oracle.weight": torch.zeros(1)}, checkpoint.state)
    with pytest.raises(CheckpointError, match="oracle"):
        hybridppo.load(run_dir)


# Formats


def test_a_checkpoint_of_a_newer_format_is_refused_with_both_versions(run_dir: Path) -> None:
    for folder in checkpoints.folders(run_dir / "checkpoints"):
        edit(folder / "state.json", lambda header: header.update(format_version=99))
    with pytest.raises(CheckpointError, match=f"version 99, but .* version {FORMAT_VERSION}: use"):
        resume(run_dir)


def test_a_run_directory_of_a_newer_format_is_refused_with_both_versions(run_dir: Path) -> None:
    edit(run_dir / "config.json", lambda config: config.update(format_version=99))
    assert_refused(run_dir, RunDirectoryError, f"version 99, but .* version {FORMAT_VERSION}: use")


# From elsewhere


@pytest.mark.gpu
def test_a_checkpoint_made_on_cuda_loads_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = train(run_dir=path, placement="hybrid", iterations=3)
    assert result.agent.parameters.values.device.type == "cuda"
    code = (
        "import sys, torch, hybridppo; assert not torch.cuda.is_available();"
        "print(float(hybridppo.load(sys.argv[1]).parameters.values.double().sum()));"
        "hybridppo.evaluate(sys.argv[1], episodes=2, progress=False);"
        "hybridppo.resume(sys.argv[1], total_steps=160, placement='cpu', progress=False)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) == pytest.approx(float(result.agent.parameters.values.double().sum()))


def test_a_checkpoint_from_a_stranger_runs_no_code(run_dir: Path, tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "exploded",)

    for folder in checkpoints.folders(run_dir / "checkpoints"):
        data = pickle.dumps(Bomb())
        (folder / "tensors.safetensors").write_bytes(data)

        def sign(header: dict[str, Any], data: bytes = data) -> None:
            del header["sha256"]
            header["tensors_sha256"] = hashlib.sha256(data).hexdigest()
            header["sha256"] = checkpoints._checksum(header)

        edit(folder / "state.json", sign)
    for use in (resume, hybridppo.load, hybridppo.evaluate):
        with pytest.raises(CheckpointError, match="holds no tensors"):
            use(run_dir)
    assert not (tmp_path / "exploded").exists()


# The best


def test_the_best_checkpoint_is_kept_besides_the_newest(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for step, score in enumerate([None, 5.0, 9.0, 7.0, 9.0, 3.0, 1.0, 2.0], start=1):
        assert run.save_checkpoint(step, {"a": torch.zeros(1)}, {"step": step}, keep=2, score=score)
    folder = tmp_path / "run" / "checkpoints"
    assert [int(path.name) for path in checkpoints.folders(folder)] == [5, 7, 8]  # of equals, the newer
    assert run.load_checkpoint("best").state["step"] == 5
    assert run.load_checkpoint("latest").state["step"] == 8


def test_the_best_is_the_newest_while_none_could_be_judged(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for step in range(1, 5):
        run.save_checkpoint(step, {"a": torch.zeros(1)}, {"step": step}, keep=2)
    assert run.load_checkpoint("best").state["step"] == 4
    assert len(checkpoints.folders(tmp_path / "run" / "checkpoints")) == 2


def test_a_damaged_best_is_passed_over_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    for step, score in enumerate([1.0, 9.0, 5.0], start=1):
        run.save_checkpoint(step, {"a": torch.zeros(1)}, {"step": step}, keep=5, score=score)
    best = tmp_path / "run" / "checkpoints" / f"{2:012d}"
    for file in ("tensors.safetensors", "state.json"):
        damage(best / file, "truncated")
        caplog.clear()
        assert run.load_checkpoint("best").state["step"] == 3
        assert any(str(best / file) in text for text in warnings_in(caplog))


def test_the_best_by_return_can_be_loaded_and_evaluated(tmp_path: Path) -> None:
    path, scores = tmp_path / "run", {}

    def remember(metrics: Metrics) -> None:
        scores[metrics["iteration"]] = metrics["episode_return_mean"] if metrics["episodes"] >= 100 else -math.inf

    # Learns fast, then is ruined by updates far too large.
    config = ppo_config(
        num_envs=8, num_steps=32, num_epochs=1, hidden_sizes=(16,), learning_rate=0.3, anneal_learning_rate=False
    )
    hybridppo.train(
        "CartPole-v1", total_steps=8192, seed=0, placement="cpu", vectorization="sync", progress=False, config=config,
        run_dir=path, checkpoint_seconds=0.0, keep_checkpoints=1, on_iteration=remember,
    )  # fmt: skip
    best = max(scores, key=lambda iteration: (scores[iteration], iteration))
    assert scores[best] > -math.inf
    kept = [
        checkpoints.load(folder).state["runner"]["iteration"] for folder in checkpoints.folders(path / "checkpoints")
    ]
    assert kept == sorted({best, max(scores)})
    assert hybridppo.load(path, checkpoint="best").version == best
    assert hybridppo.load(path).version == max(scores)
    of_best = hybridppo.evaluate(path, checkpoint="best", episodes=5, progress=False)
    assert of_best == hybridppo.evaluate_agent(hybridppo.load(path, "best"), "CartPole-v1", episodes=5, progress=False)
    with pytest.raises(ConfigurationError, match="latest or best, got 'worst'"):
        hybridppo.load(path, checkpoint="worst")  # type: ignore[arg-type]


# A logging backend fails


def test_a_logging_backend_that_fails_is_told_of_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[float] = []

    def log_far_away(metrics: Metrics) -> None:
        if 2 <= metrics["iteration"] <= 3:
            raise ConnectionError("the service is away")
        received.append(metrics["iteration"])
        metrics.clear()  # what a backend does to its copy is its own business

    result = train(run_dir=tmp_path / "run", loggers=[log_far_away])
    assert result.metrics["iteration"] == 4
    assert received == [1, 4]
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4]
    told = warnings_in(caplog)
    assert len(told) == 2
    assert "log_far_away FAILED: ConnectionError: the service is away; training goes on" in told[0]
    assert "works again, after 2 failures" in told[1]


def test_a_logging_backend_that_fails_does_not_hide_an_interruption() -> None:
    def stop(metrics: Metrics) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(loggers=[stop])


def test_a_progress_bar_that_fails_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # a terminal that has gone away
    stream = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("hybridppo.reporting.progress._has_screen", lambda: True)
    result = train(progress=True, evaluation_episodes=2)
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        stream.close()
    assert result.metrics["iteration"] == 4
    assert any("showing the progress FAILED" in text for text in warnings_in(caplog))


# The run directory


def test_a_run_directory_that_exists_is_never_overwritten(run_dir: Path) -> None:
    before = contents(run_dir)
    with pytest.raises(RunDirectoryError, match=f"{run_dir} exists already .* `hybridppo resume {run_dir}`"):
        train(lambda: pytest.fail("made before that"), run_dir=run_dir)
    assert contents(run_dir) == before


def test_a_start_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="num_workers"):
        train(run_dir=tmp_path / "runs" / "run", num_workers=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "given").mkdir()
    with pytest.raises(ConfigurationError, match="num_workers"):
        train(run_dir=tmp_path / "given", num_workers=3)
    assert list(tmp_path.rglob("*")) == [tmp_path / "given"]


def test_metrics_survive_any_value(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    nested = {"a": [1.0, math.nan, {"b": (np.float32(0.5), np.float64("inf"), np.int64(3))}], "c": np.array([1, 2])}
    run.log({"iteration": np.int64(1), "bad": np.float32("nan"), "nested": nested})
    (line,) = lines_of(tmp_path / "run")
    assert line == {"iteration": 1, "bad": None, "nested": {"a": [1.0, None, {"b": [0.5, None, 3]}], "c": [1, 2]}}


def test_keys_that_json_would_change_are_refused_when_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\.counts has the key 3"):
        checkpoints.save(tmp_path / "1", {}, {"counts": {3: 1}})
    with pytest.raises(CheckpointError, match=r"state\.mean is a float32"):
        checkpoints.save(tmp_path / "1", {}, {"mean": np.float32(1.0)})
    assert list(tmp_path.iterdir()) == []


TWO = {"type": "Discrete", "n": 2, "start": 0}
MASKED = {"type": "MaskedObservation", "observation": TWO, "action": TWO}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "3"}, "seed must be a whole number of at least 0, got '3'"),
        ({"total_steps": 0}, "total_steps must be a whole number of at least 1, got 0"),
        ({"vectorization": ["sync"]}, "vectorization must be one of auto, sync, compiled"),
        ({"config": {"gama": 0.9}}, "config: .*gama"),
        ({"config": {"gamma": 2}}, "config: gamma must lie between 0 and 1, got 2"),
        ({"observation_space": {"type": "Box"}}, "observation_space: KeyError"),
        ({"action_space": {"type": "Discrete", "n": -1, "start": 0}}, "action_space: "),
        ({"action_masks": 1}, "action_masks must be True or False, got 1"),
        ({"observation_space": {"type": "MaskedObservation", "action": TWO}}, "observation_space: KeyError"),
        ({"observation_space": {**MASKED, "action": {**TWO, "n": -1}}}, "observation_space: "),
        ({"observation_space": {**MASKED, "action": {**TWO, "n": "2"}}}, "observation_space: "),
        ({"checkpoint_seconds": math.nan}, "checkpoint_seconds must be a number of at least 0, got nan"),
        ({"checkpoint_seconds": 10**400}, "checkpoint_seconds must be a number of at least 0, got 1000"),
    ],
    ids=str,
)
def test_a_damaged_configuration_is_refused_by_field(run_dir: Path, change: dict[str, Any], message: str) -> None:
    edit(run_dir / "config.json", lambda config: config.update(change))
    assert_refused(run_dir, RunDirectoryError, f"config.json is damaged: {message}")


def test_a_configuration_without_a_field_is_refused_by_field(run_dir: Path) -> None:
    edit(run_dir / "config.json", lambda config: config.pop("seed"))
    with pytest.raises(RunDirectoryError, match=r"config\.json is damaged: it has no seed"):
        hybridppo.load(run_dir)


def test_a_configuration_of_before_an_option_has_the_default(run_dir: Path) -> None:
    edit(run_dir / "config.json", lambda config: config.pop("checkpoint_every"))
    assert resume(run_dir).saved
    assert Settings.read(RunDirectory.open(run_dir)).run.checkpoint_every is None


def test_a_run_killed_before_its_first_checkpoint_begins_anew_aloud(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "config.json", run)
    (run / ".config.json.4711.tmp").write_text("{")
    result = resume(run)
    assert result.metrics["iteration"] == 4
    assert torch.equal(result.agent.parameters.values, hybridppo.load(finished).parameters.values.data)
    assert any("ended before its first checkpoint" in text for text in warnings_in(caplog))
    assert not list(run.glob(".*"))


def test_a_run_whose_disk_was_full_before_its_first_checkpoint_begins_anew_aloud(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    with on_a_full_disk(8000):  # enough for all but a checkpoint
        assert not train(run_dir=run).saved
    assert len(lines_of(run)) == 4
    caplog.clear()
    result = resume(run)
    assert result.saved
    assert torch.equal(result.agent.parameters.values, hybridppo.load(finished).parameters.values.data)
    assert [line["iteration"] for line in lines_of(run)] == [1, 2, 3, 4]
    assert f"{run} ended before its first checkpoint was saved: it begins anew" in warnings_in(caplog)


def test_a_run_killed_before_its_first_checkpoint_does_not_begin_anew_without_the_agent_that_it_was_given(
    finished: Path, tmp_path: Path
) -> None:
    given = hybridppo.load(finished)
    train(run_dir=tmp_path / "run", agent=given, config=None)
    (tmp_path / "killed").mkdir()
    shutil.copy(tmp_path / "run" / "config.json", tmp_path / "killed")
    with pytest.raises(RunDirectoryError, match="no file has the agents that it was given: begin a new run with them"):
        resume(tmp_path / "killed")
    assert resume(tmp_path / "run").metrics["iteration"] == 4


def test_a_folder_where_a_run_was_killed_before_it_had_a_configuration_is_free(tmp_path: Path) -> None:
    (tmp_path / ".config.json.4711.tmp").write_text("{")
    assert train(run_dir=tmp_path, iterations=1).metrics["iteration"] == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_checkpoint_is_taken_for_another_when_overlapping(num_workers: int, tmp_path: Path) -> None:
    # The rollout that is sampled ahead may be whole when the iteration before it is saved, and no step is sampled then
    # until the next is. Waiting for it makes that certain.
    placement, path = hybridppo.Mirrored("cpu", "cpu", max_lag=1), tmp_path / "run"
    result = train(
        run_dir=path,
        placement=placement,
        num_workers=num_workers,
        checkpoint_seconds=0.0,
        keep_checkpoints=100,
        on_iteration=lambda metrics: time.sleep(0.1),
    )
    iterations = [checkpoints.load(f).state["runner"]["iteration"] for f in checkpoints.folders(path / "checkpoints")]
    assert iterations == [0, 1, 2, 3, 4]
    assert torch.equal(hybridppo.load(path).parameters.values, result.agent.parameters.values)
