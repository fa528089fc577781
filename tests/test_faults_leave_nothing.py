"""However a training ends, it leaves no process, thread, handle or file: `docs/reliability.md` has the list."""

import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ppo_settings import ppo_config
from processes import start_python, started_processes, still_alive, wait_until
from selection import only_by_default
from toy_environments import FailingEnv, raise_an_error

import hybridppo
from hybridppo import EnvError, Mirrored, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runners.assembly import make_sampler

ROOT = Path(__file__).parents[1]
CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
WAYS: dict[str, dict[str, Any]] = {
    "in this process": {},
    "in workers": {"num_workers": 2},
    "overlapping, in a worker": {"placement": Mirrored("cpu", "cpu", max_lag=1)},
    "overlapping, in a thread": {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
}


OVERLAP = "--placement overlap --sampling-device cpu --learning-device cpu"
ENDINGS = ("done", "an error in an environment", "an error of the caller")
SOME_ENDINGS = (
    "in this process, an error in an environment",
    "in workers, an error of the caller",
    "in workers, an error in an environment",
    "overlapping, in a worker, done",
    "overlapping, in a thread, an error of the caller",
)


def train(env: Any = "CartPole-v1", **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 200, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False} | options
    return hybridppo.train(env, **options)


def held() -> dict[str, Any]:
    gc.collect()
    me = psutil.Process()
    return {
        "processes": sorted(process.pid for process in started_processes()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "handles": me.num_fds(),
        "in memory": sorted(str(path) for path in Path("/dev/shm").glob(f"hybridppo-{me.pid}-*")),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="counts handles as Linux does")
@pytest.mark.parametrize(
    ("way", "ending"), only_by_default(SOME_ENDINGS, [(way, end) for way in WAYS for end in ENDINGS], pytest.mark.slow)
)
def test_nothing_stays_when_a_training_ends(way: str, ending: str, tmp_path: Path) -> None:
    def once(number: int) -> None:
        run_dir = tmp_path / str(number)
        if ending == "done":
            train(run_dir=run_dir, **WAYS[way])
        elif ending == "an error of the caller":

            def fail(metrics: Any) -> None:
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                train(run_dir=run_dir, on_iteration=fail, **WAYS[way])
        else:
            with pytest.raises((EnvError, ValueError), match="the motor is stuck"):
                train(partial(FailingEnv, raise_an_error), run_dir=run_dir, **WAYS[way])

    once(0)  # what is made once for all, as a resource tracker, is made here
    before = held()
    once(1)
    wait_until(lambda: held() == before, what=f"as before: {before} and {held()}", seconds=10.0)


@pytest.mark.parametrize("way", WAYS)
def test_close_twice_or_after_a_crash_is_safe(way: str) -> None:
    options = {"placement": SingleDevice("cpu"), "num_workers": None, "vectorization": "auto"} | WAYS[way]
    placement = options["placement"]

    def sampler_of(env: Any) -> Any:
        environments = make_environments(env, CONFIG.num_envs, vectorization=options["vectorization"])
        agent = hybridppo.PPO(environments.observation_space, environments.action_space, CONFIG)
        placement.prepare(agent)
        sampler = make_sampler(
            env,
            environments,
            agent,
            placement,
            num_steps=CONFIG.num_steps,
            num_workers=options["num_workers"],
            options=EnvironmentOptions(vectorization=options["vectorization"]),
            env_seed=0,
            noise=np.random.default_rng(0),
        )
        return sampler, agent, environments

    before = started_processes()
    sampler, _, environments = sampler_of("CartPole-v1")
    sampler.close()
    sampler.close()
    environments.close()
    environments.close()
    sampler, agent, environments = sampler_of(partial(FailingEnv, raise_an_error, 5))
    with pytest.raises((EnvError, ValueError), match="the motor is stuck"), placement.sampling(agent) as actor:
        sampler.collect(actor)
    sampler.close()
    sampler.close()
    environments.close()
    started = started_processes() - before
    assert not [process for process in started if "resource_tracker" not in str(process.cmdline())]


STUCK = """
import sys, time
from pathlib import Path
import gymnasium as gym
import hybridppo

class Stuck(gym.Wrapper):
    def step(self, action):
        Path(sys.argv[1]).touch()
        time.sleep(1e6)

hybridppo.train(
    lambda: Stuck(gym.make("CartPole-v1")),
    total_steps=100,
    placement="cpu",
    num_workers=1,
    config=hybridppo.PPOConfig(num_envs=2, num_steps=8),
    progress=False,
)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nobody tells a process there that its parent has ended")
def test_a_killed_trainer_leaves_no_worker_that_is_stuck_in_a_step(tmp_path: Path) -> None:
    mark = tmp_path / "stepping"
    # The functions that make environments are passed on by value: sys.argv is the worker's own.
    script = tmp_path / "script.py"
    script.write_text(STUCK.replace("sys.argv[1]", repr(str(mark))))
    trainer = start_python(script)
    workers: list[psutil.Process] = []
    try:
        wait_until(mark.exists, trainer)
        workers = psutil.Process(trainer.pid).children(recursive=True)
        trainer.kill()
        trainer.wait()
        assert len(workers) == 1
        assert not still_alive(workers, 30.0)
    finally:
        trainer.kill()
        for process in workers:
            if process.is_running():
                process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and at sessions")
@pytest.mark.parametrize(
    ("way", "when"),
    only_by_default(
        ("--num-workers 2, while they sample", f"{OVERLAP}, while workers start"),
        [(way, when) for way in ("--num-workers 2", OVERLAP) for when in ("while workers start", "while they sample")],
        pytest.mark.slow,
    ),
)
def test_a_killed_trainer_leaves_no_process_and_no_file(way: str, when: str, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = tmp_path / "run"
    arguments = f"train CartPole-v1 --total-steps 1000000000 --placement cpu {way} --num-envs 2 --no-progress --run-dir"
    trainer = start_python(
        "-m",
        "hybridppo",
        *arguments.split(),
        run,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    mine = psutil.Process(trainer.pid)
    workers: list[psutil.Process] = []

    def have_begun() -> bool:
        workers[:] = mine.children(recursive=True)
        metrics = run / "metrics.jsonl"
        return bool(workers) and (when == "while workers start" or (metrics.exists() and metrics.stat().st_size > 0))

    try:
        wait_until(have_begun, trainer)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        assert workers
        assert not still_alive(workers, 20.0)
    finally:
        for process in [*workers, mine]:
            if process.is_running():
                process.kill()
    assert list(temporary.rglob("*")) == []
    assert list(Path("/dev/shm").glob(f"hybridppo-{trainer.pid}-*")) == []


KILLED = """
import sys, time
from processes import start_python, started_processes

trainer = start_python(*sys.argv[2:], warm=sys.argv[1] == "warm")
time.sleep(1e6)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX")
@pytest.mark.slow  # it sees what the tests do, not the library
@pytest.mark.parametrize("how", ["warm", "from nothing"])
def test_tests_that_are_killed_leave_no_trainer_behind(how: str, tmp_path: Path) -> None:
    (tmp_path / "tests.py").write_text(KILLED)
    arguments = "-m hybridppo train CartPole-v1 --total-steps 1000000000 --placement cpu --no-progress --run-dir"
    own = {name: value for name, value in os.environ.items() if not name.startswith("WARM")}  # and none that is shared
    environment = {**own, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests" / "helpers")))}
    tests = subprocess.Popen(
        [sys.executable, str(tmp_path / "tests.py"), how, *arguments.split(), str(tmp_path / "run")], env=environment
    )
    trainers: list[psutil.Process] = []
    try:
        wait_until((tmp_path / "run" / "metrics.jsonl").exists, tests)
        trainers = psutil.Process(tests.pid).children(recursive=True)
        tests.kill()
        tests.wait()
        assert len(trainers) == (2 if how == "warm" else 1)  # the warm one, and its copy
        assert not still_alive(trainers, 30.0)
    finally:
        tests.kill()
        for process in trainers:
            if process.is_running():
                process.kill()


@pytest.mark.extras
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux counts it")
def test_a_short_soak_grows_nothing(tmp_path: Path) -> None:
    soak = runpy.run_path(str(ROOT / "tests" / "tools" / "soak.py"))
    result = soak["soak"](20, 10, "cpu", tmp_path / "run")
    assert soak["is_steady"](result), result


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux counts it")
@pytest.mark.parametrize("placement", ["cpu", "workers", "overlap"])
def test_a_soak_of_two_thousand_iterations_grows_nothing(placement: str) -> None:
    run_tool("soak.py", "--placement", placement)


def run_tool(name: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "tests" / "tools" / name), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the chaos script is of Linux")
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("--faults 50", id="placements"),
        pytest.param("--faults 12 --kinds learners --iterations 60 --hang-seconds 120", id="learners"),
    ],
)
def test_random_faults_lose_nothing(flags: str, tmp_path: Path) -> None:
    run_tool("chaos.py", *flags.split(), "--folder", str(tmp_path))
