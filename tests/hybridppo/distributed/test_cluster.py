"""Which Ray cluster a training uses, and who may connect to it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import run_python, start_python
from run_files import lines_of
from test_learners import free_port

from hybridppo import ConfigurationError
from hybridppo.distributed.ray_strategy import _require_joined
from hybridppo.run_directory.checkpoints import load_latest

CODE = """
import sys
from hybridppo.distributed.ray_strategy import RayStrategy
from hybridppo.settings import SingleLearnerCoarse
from hybridppo.errors import HybridPPOError
try:
    with RayStrategy(SingleLearnerCoarse(2), sys.argv[1] or None):
        import ray
        print("joined", ray.get_runtime_context().gcs_address)
except HybridPPOError as error:
    print(error)
"""


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379"])
def test_an_address_of_the_cluster_that_was_joined_already_is_taken(address: str | None) -> None:
    _require_joined("127.0.0.1:6379", address)


@pytest.mark.parametrize("address", ["127.0.0.1:6380", "10.0.0.1:6379", "local"])
def test_an_address_of_another_cluster_than_was_joined_is_an_error_that_says_both(address: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"joined the Ray cluster at 127.0.0.1:6379 .* is '{address}': leave"):
        _require_joined("127.0.0.1:6379", address)


def without_auth(**variables: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("RAY_")}, **variables}


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, str]]:
    """A cluster of another process that requires a token: its address and the token."""
    pytest.importorskip("ray")
    address, token = f"127.0.0.1:{free_port()}", "a" * 64
    started = [
        "start",
        "--head",
        "--block",
        "--num-cpus=2",
        "--object-store-memory=100000000",
        "--include-dashboard=false",
    ]
    command = ["-c", "from ray.scripts.scripts import main; main()", *started, f"--port={address.partition(':')[2]}"]
    variables = without_auth(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token, RAY_USAGE_STATS_ENABLED="0")
    process = start_python(*command, warm=False, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        while "Ray runtime started" not in (line := process.stdout.readline()):
            assert line, f"exit code {process.wait()}"
        yield address, token
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.extras
@pytest.mark.parametrize(
    "named",
    ["by argument", "by RAY_ADDRESS"],
)
def test_the_cluster_that_was_named_is_joined_with_its_token(head: tuple[str, str], named: str) -> None:
    address, token = head
    variables = {"RAY_ADDRESS": address} if named == "by RAY_ADDRESS" else {}
    variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    done = run_python("-c", CODE, "" if "RAY_ADDRESS" in variables else address, env=without_auth(**variables))
    assert done.stdout.rpartition(":")[2].strip() == address.rpartition(":")[2], done.stdout + done.stderr
    assert done.stdout.startswith("joined")
    assert "no token" not in done.stderr


@pytest.mark.extras
def test_a_cluster_that_asks_for_a_token_lets_nobody_in_without_and_the_error_has_rays_cause(head: Any) -> None:
    done = run_python("-c", CODE, head[0], env=without_auth())
    assert f"Ray does not answer at {head[0]}" in done.stdout
    assert "AuthenticationError" in done.stdout
    assert "RAY_AUTH_MODE=token" in done.stdout
    assert "Traceback" not in done.stdout


PRIORITIES = """
import os
from hybridppo.distributed.ray_strategy import RayStrategy
from hybridppo.settings import SingleLearnerCoarse
with RayStrategy(SingleLearnerCoarse(1), "local"):
    import ray
    print("niceness", ray.get(ray.remote(lambda: os.nice(0)).remote()) - os.nice(0))
"""


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="priorities of POSIX")
def test_workers_of_a_cluster_that_is_started_here_have_the_priority_of_other_programs() -> None:
    pytest.importorskip("ray")
    done = run_python("-c", PRIORITIES, env=without_auth(), check=True)
    assert "niceness 0\n" in done.stdout


TRAINING = """
import sys, psutil, hybridppo
from hybridppo.distributed import ray_workers
ray_workers.SECONDS_TO_COME_BACK = 0.0
def kill(metrics):
    if metrics["iteration"] == 3:
        next(each for each in psutil.Process().children() if each.name() == sys.argv[1]).kill()
config = hybridppo.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=1, hidden_sizes=(8,))
try:
    hybridppo.train("CartPole-v1", total_steps=10**9, config=config, distributed=sys.argv[2], placement="cpu",
                    run_dir=sys.argv[3], progress=False, on_iteration=kill, checkpoint_seconds=1e6,
                    on_env_error="restart")
except hybridppo.HybridPPOError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.extras
@pytest.mark.parametrize(("dies", "distributed"), [("raylet", "fine:2"), ("gcs_server", "central:2")])
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's processes have other names")
def test_the_death_of_rays_own_processes_is_one_error_that_names_ray_and_all_iterations_are_saved(
    dies: str, distributed: str, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    path = tmp_path / "run"
    done = run_python("-c", TRAINING, dies, distributed, path, env=without_auth())
    assert "DistributedError Ray's" in done.stdout, done.stdout + done.stderr
    assert f"{dies}" in done.stdout
    assert f"go on with `hybridppo resume {path}`" in done.stdout
    assert load_latest(path / "checkpoints")[1].state["runner"]["iteration"] == lines_of(path)[-1]["iteration"] >= 3
    assert not (path / "lock.json").exists()
