"""Random faults: whichever process of whichever policy is lost, and when, the run goes on and nothing is left behind.

HYBRIDPPO_FAULTS is their number (default 6); the first two run with the extras, the others are slow.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import hybridppo
from hybridppo import DistributedError, EnvError, Mirrored

pytest.importorskip("ray")

from clusters import shared_cluster
from ppo_settings import ppo_config
from processes import living_copies

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

CONFIG = ppo_config(num_envs=4, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8))
ITERATIONS = 25
OPTIONS: dict[str, Any] = {
    "config": CONFIG, "seed": 5, "total_steps": 4 * 32 * ITERATIONS, "progress": False, "vectorization": "sync",
}  # fmt: skip
POLICIES = ("coarse:2", "coarse:2 overlapping", "fine:2", "environments:2", "multi:2", "central:2")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> None:
    shared_cluster()


def workers() -> list[psutil.Process]:
    """Processes of samplers, environment workers and learners."""
    found = list(living_copies())
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        if any(name in command for name in ("ray::Remote", "hybridppo.learner_process")):
            found.append(child)
    return found


def placement(policy: str) -> Any:
    return Mirrored("cpu", "cpu", max_lag=1) if "overlapping" in policy else "cpu"


SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(int(os.environ.get("HYBRIDPPO_FAULTS", "6")))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_run_is_lost_and_nothing_is_left_behind(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    policy = POLICIES[seed % len(POLICIES)]
    distributed, is_multi = policy.partition(" ")[0], policy.startswith("multi")
    is_central = policy.startswith("central")  # whose bits are nobody's
    what = chance.choice((signal.SIGKILL, signal.SIGSTOP))
    restarts = not is_multi and chance.random() < 0.5
    iteration, delay = chance.randint(1, ITERATIONS - 5), chance.uniform(0.0, 0.1)
    is_time, hit = threading.Event(), []

    def strike() -> None:
        is_time.wait()
        time.sleep(delay)
        hit.append(chance.choice(sorted(workers(), key=lambda process: process.pid)))
        hit[0].send_signal(what)

    def look(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == iteration:
            is_time.set()

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    run_dir, has_new_episodes = tmp_path / "run", False
    try:
        result = hybridppo.train(
            "CartPole-v1", placement=placement(policy), distributed=distributed, run_dir=run_dir, on_iteration=look,
            on_env_error="restart" if restarts else "raise", worker_timeout=5.0, checkpoint_seconds=0.3, **OPTIONS,
        )  # fmt: skip
    except (EnvError, DistributedError) as error:
        assert not restarts
        has_new_episodes = "with new episodes" in str(error)
        other = "multi:1:2" if is_multi else "local"
        result = hybridppo.resume(run_dir, distributed=other, progress=False)
    thread.join()
    assert (run_dir / "result.json").exists()
    if is_central or has_new_episodes:  # a lost worker's episodes
        assert result.metrics["env_steps"] >= OPTIONS["total_steps"]
    elif result.metrics["env_restarts"] == 0:
        whole = hybridppo.train(
            "CartPole-v1", placement=placement(policy), distributed="multi:1:2" if is_multi else "local", **OPTIONS
        )
        assert torch.equal(result.agent.parameters.values, whole.agent.parameters.values)
    else:
        assert restarts
    _, alive = psutil.wait_procs([*hit, *workers()], timeout=30)
    assert alive == []
