"""The recipes for clusters run the commands that they should; the programs of a cluster are stand-ins."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

import hybridppo
from hybridppo.commands.main import parse_command
from hybridppo.commands.train import Resume, Train

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "examples" / "cluster").glob("*.sh"))
PROGRAMS = {
    "hybridppo": 'printf "%s\\n" "$@" > hybridppo.args',
    "torchrun": 'while [ "$1" != -m ]; do shift; done; shift; program=$1; shift; exec "$program" "$@"',
    "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -w ] || [ "$1" = --exclude ] && shift; shift; done; exec "$@"',
    "scontrol": "echo node1; echo node2",
    "ray": "exit 0",
}
"""Stand-ins for each program of a cluster, as shell scripts."""
VARIABLES = {
    "SLURM_JOB_NAME": "job",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_CPUS_PER_TASK": "16",
    "SLURM_ARRAY_JOB_ID": "7",
    "SLURM_ARRAY_TASK_ID": "3",
}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None or os.name != "posix", reason="needs bash")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    return {**os.environ, **VARIABLES, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_there_are_recipes() -> None:
    assert len(RECIPES) == 4


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_and_then_resumes(recipe: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    def command() -> Train | Resume:
        arguments = [str(recipe), "CartPole-v1", "--num-envs", "64"]
        subprocess.run(["bash", *arguments], cwd=tmp_path, env=environment, check=True, timeout=60)
        return parse_command((tmp_path / "hybridppo.args").read_text().splitlines())

    first = command()
    assert isinstance(first, Train)
    assert first.run_dir is not None
    (tmp_path / first.run_dir).mkdir(parents=True)
    second = command()
    assert isinstance(second, Resume)
    assert second.run_dir == first.run_dir


@pytest.mark.parametrize("name", ["slurm_one_node", "slurm_array", "slurm_ray"])
def test_the_signal_before_the_time_limit_reaches_the_training(
    name: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "ready")
    body = "trap 'exit 130' USR1\necho > ready\nwhile true; do sleep 0.05; done"
    (tmp_path / "bin" / "hybridppo").write_text(f"#!/bin/bash\n{body}\n")
    recipe = ROOT / "examples" / "cluster" / f"{name}.sh"
    with subprocess.Popen(["bash", str(recipe), "CartPole-v1"], cwd=tmp_path, env=environment) as job:
        (tmp_path / "ready").read_text()  # returns when the training has begun
        deadline = time.monotonic() + 60
        while psutil.Process(job.pid).status() != psutil.STATUS_SLEEPING:  # the script may not wait for it yet
            assert time.monotonic() < deadline
        job.send_signal(signal.SIGUSR1)
        assert job.wait(timeout=60) == 130


def test_the_citation_has_the_version() -> None:
    assert f"version: {hybridppo.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
