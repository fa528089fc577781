"""A run's folder that comes from a stranger: nothing outside it changes, and nothing in it blocks or is passed on."""

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config
from run_files import lines_of
from selection import only_by_default

import hybridppo
from hybridppo import HybridPPOError
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.tools.report import watch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows, and pipes are files of POSIX")

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
TD3 = hybridppo.TD3Config(num_envs=2, hidden_sizes=(8,), learning_starts=32, buffer_size=128)
SECRET = "nobody's business"
NUMBERED = "000000000064"


def train(path: Path, config: Any = CONFIG, env: str = "CartPole-v1") -> Path:
    hybridppo.train(
        env, total_steps=128, seed=3, placement="cpu", vectorization="sync", config=config, run_dir=path,
        progress=False, checkpoint_seconds=0.0,
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("strange") / "run")


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's with a file in it, of which nothing may change."""
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "file").write_text(f'{{"secret": "{SECRET}"}}\n')
    before = contents(folder)
    yield folder
    assert {name: data for name, data in contents(folder).items() if name in before} == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def resume(run_dir: Path) -> Any:
    return hybridppo.resume(run_dir, total_steps=256, progress=False)


def once(seconds: float) -> None:
    raise HybridPPOError("the display does not end by itself")


def shown(run_dir: Path) -> None:
    watch(run_dir, out=io.StringIO(), wait=once)


USES: dict[str, Callable[[Path], object]] = {
    "resume": resume,
    "plot": lambda run: hybridppo.plot_runs(run, run.parent / "curves.svg"),
    "report": hybridppo.write_report,
    "watch": shown,
    "evaluate": lambda run: hybridppo.evaluate(run, episodes=1, progress=False),
}
FILES = {
    "config.json": USES,
    "metrics.jsonl": ("resume", "plot", "watch"),
    "evaluations.jsonl": ("resume", "report"),
    "result.json": ("resume", "report", "watch"),
    "placements.json": ("report",),
    "report.html": ("report",),
    "video.mp4": ("report",),
    "lock": ("resume",),
    "lock.json": ("resume",),
    "checkpoints/newest/state.json": ("evaluate", "resume"),
    "checkpoints/newest/tensors.safetensors": ("evaluate", "resume"),
}
"""The files of a run, and what reads or writes them."""
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, others: path.symlink_to(others / "file"),
    "second name": lambda path, others: os.link(others / "file", path),
    "pipe": lambda path, others: os.mkfifo(path),
    "device": lambda path, others: path.symlink_to("/dev/zero"),
    "folder": lambda path, others: path.mkdir(),
}


@pytest.mark.parametrize("kind", only_by_default(("link", "pipe"), KINDS, pytest.mark.slow))
@pytest.mark.parametrize("name", FILES)
def test_what_is_in_the_place_of_a_file_is_neither_followed_nor_waited_for(
    name: str, kind: str, run_dir: Path, others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not name.endswith(".jsonl"):  # curves take most of a page's time, and are of these files alone
        monkeypatch.setattr("hybridppo.tools.report._curves", lambda run: "")
    newest = checkpoints.folders(run_dir / "checkpoints")[-1].name
    path = run_dir / name.replace("newest", newest)
    for use in FILES[name]:
        path.unlink(missing_ok=True)
        KINDS[kind](path, others)
        with suppress(HybridPPOError):
            USES[use](run_dir)
        if use == "report" and (run_dir / "report.html").is_file():
            page = (run_dir / "report.html").read_text()
            assert (run_dir / "report.html").samefile(others / "file") or not re.search(f"{SECRET}|bm9ib2R5", page)
        if path.is_dir():
            path.rmdir()


@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
@pytest.mark.parametrize("name", ["lock", "lock.json"])
def test_a_new_run_destroys_nothing_by_its_lock(name: str, kind: str, tmp_path: Path, others: Path) -> None:
    (tmp_path / "new").mkdir()
    KINDS[kind](tmp_path / "new" / name, others)
    with suppress(HybridPPOError):
        RunDirectory.create(tmp_path / "new", {}).close()


def test_metrics_behind_a_link_are_a_clear_error_before_anything_is_written(run_dir: Path, others: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").symlink_to(others / "file")
    before = contents(run_dir)
    with pytest.raises(HybridPPOError, match="it is a link, and must be a plain file: put one in its place"):
        resume(run_dir)
    assert contents(run_dir) == before


def test_a_backup_by_hard_links_keeps_its_lines(run_dir: Path, tmp_path: Path) -> None:
    os.link(run_dir / "metrics.jsonl", tmp_path / "backup.jsonl")
    before = (tmp_path / "backup.jsonl").read_bytes()
    resume(run_dir)
    assert (tmp_path / "backup.jsonl").read_bytes() == before
    assert len(lines_of(run_dir)) == 8


def test_checkpoints_on_another_disk_go_on_and_leave_what_is_not_theirs(run_dir: Path, others: Path) -> None:
    disk = Path(shutil.copytree(run_dir / "checkpoints", others.parent / "disk"))
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").symlink_to(disk)
    theirs = ("20240101", "202401011230", ".cache.tmp", f".{NUMBERED}.77.tmp", f".{NUMBERED}.removed.tmp")
    for name in (*theirs, checkpoints.folders(disk)[0].name):  # the last is of a checkpoint that somebody has annotated
        (disk / name).mkdir(exist_ok=True)
        (disk / name / "notes.txt").write_text("mine")
    (disk / ".cache.txt.tmp").write_text("mine")
    (disk / f".{NUMBERED}.78.tmp").mkdir()
    (disk / f".{NUMBERED}.78.tmp" / "state.json").write_text("{")
    assert resume(run_dir).metrics["iteration"] == 8
    assert sorted(name for name, data in contents(disk).items() if data == b"mine") == sorted(
        [".cache.txt.tmp", *(f"{name}/notes.txt" for name in (*theirs, NUMBERED))]
    )
    assert not (disk / f".{NUMBERED}.78.tmp").exists()
    assert (run_dir / "checkpoints").is_symlink()
    assert hybridppo.load(run_dir).version == 8
    assert len(checkpoints.folders(disk)) == 4  # the newest three, and that with notes


def test_a_damaged_checkpoint_with_other_files_is_not_moved(run_dir: Path, others: Path) -> None:
    for path in (run_dir / "checkpoints" / "000009999999", others / "000009999999"):
        path.mkdir()
        (path / "state.json").write_text("{")
        (path / "notes.txt").write_text("mine")
    with pytest.raises(HybridPPOError, match="000009999999 is damaged, and is a link or has files of somebody else"):
        resume(run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "000009999999")
    (run_dir / "checkpoints" / "000009999999").symlink_to(others / "000009999999")
    with pytest.raises(HybridPPOError, match="000009999999 is damaged, and is a link or has files of somebody else"):
        resume(run_dir)


@pytest.mark.parametrize("name", ["checkpoints", "replay", "snapshots"])
def test_a_link_into_another_run_is_refused(name: str, run_dir: Path, tmp_path: Path) -> None:
    theirs = Path(shutil.copytree(run_dir, tmp_path / "theirs"))
    shutil.rmtree(run_dir / name, ignore_errors=True)
    (run_dir / name).symlink_to(theirs / name)
    before = contents(theirs)
    with pytest.raises(HybridPPOError, match=f"{name} is a link into another run, {theirs}"):
        resume(run_dir)
    assert contents(theirs) == before


def test_rows_of_a_replay_buffer_leave_other_networks(tmp_path: Path, others: Path) -> None:
    run_dir = train(tmp_path / "td3", TD3, "Pendulum-v1")
    hybridppo.PPO(hybridppo.load(run_dir).observation_space, hybridppo.load(run_dir).action_space).save(others / "mine")
    for name in ("mine.safetensors", "000000009999.safetensors"):
        shutil.copy(others / "mine", others / name)
    disk = Path(shutil.copytree(run_dir / "replay", others, dirs_exist_ok=True))
    shutil.rmtree(run_dir / "replay")
    (run_dir / "replay").symlink_to(disk)
    before = contents(others)
    resume(run_dir)
    kept = ("mine.safetensors", "000000009999.safetensors")
    assert {name: contents(others)[name] for name in kept} == {name: before[name] for name in kept}


@pytest.mark.parametrize("name", [".config.json.5.tmp", ".x.tmp"])
def test_a_folder_that_is_named_like_a_leftover_is_no_leftover(name: str, run_dir: Path, tmp_path: Path) -> None:
    for folder in (run_dir, tmp_path / "new"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine").touch()
    resume(run_dir)
    with pytest.raises(HybridPPOError, match="exists already and is not empty"):
        train(tmp_path / "new")
    assert (run_dir / name / "mine").exists()
    assert (tmp_path / "new" / name / "mine").exists()


@pytest.mark.parametrize("link", ["loggers", "loggers/named.txt"])
def test_loggers_write_no_file_behind_a_link(link: str, run_dir: Path, others: Path) -> None:
    class Named(hybridppo.Logger):
        name = "named"

        def open(self, run: Any, before: str | None) -> str:
            return "id"

        def log(self, env_steps: int, values: dict[str, float]) -> None:
            pass

    (others / "named.txt").write_text("mine")
    if link == "loggers":
        (run_dir / "loggers").symlink_to(others)
    else:
        (run_dir / "loggers").mkdir()
        (run_dir / link).symlink_to(others / "named.txt")
    hybridppo.resume(run_dir, total_steps=256, progress=False, loggers=Named())
    assert (others / "named.txt").read_text() == "mine"
    assert (run_dir / "loggers" / "named.txt").read_text() == ("mine" if link == "loggers" else "id")
