"""How worker processes start: from any process, with the trainer's imports, and within a time limit."""

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ppo_settings import ppo_config
from processes import run_python, start_python, wait_until, worker_processes, workers_of

import hybridppo
from hybridppo import EnvError
from hybridppo.runners import processes

pytestmark = pytest.mark.cold_workers  # started as they are elsewhere

SMALL = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16,))
TRAIN = """
import sys
import gymnasium as gym, numpy as np
import hybridppo

class Small(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}

def train(env=Small):
    config = hybridppo.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(16,))
    options = {"total_steps": 32, "seed": 0, "placement": "cpu", "progress": False, "num_workers": 2}
    return hybridppo.train(env, config=config, **options).metrics["env_steps"]
"""
HANGS = """
import os, time
if "HANG" in os.environ:
    time.sleep(600)
"""


@pytest.mark.extras
def test_a_class_of_the_main_script_is_found_from_a_process_of_a_pool(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{TRAIN}\nif __name__ == '__main__':\n    import multiprocessing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as processes:\n"
        "        print(processes.apply(train))\n"
    )
    assert run_python(script, check=True, timeout=120).stdout.strip() == "32"


class Importing(gym.Env[Any, Any]):
    """Observes nothing; fails in a process that lacks the trainer's imports."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(2)

    def __init__(self, path: list[str], python_path: str | None) -> None:
        import secrets

        assert sys.path == path
        assert os.environ.get("PYTHONPATH") == python_path
        assert "token_hex" in dir(secrets)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        # Torch is imported anew in a learner.
        pytest.param({"distributed": "multi:2"}, marks=pytest.mark.extras),
        {"evaluate_every": 32, "evaluate_async": True},
    ],
    ids=str,
)
def test_workers_import_what_their_trainer_imports(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets.py").write_text("raise ImportError('this is not the standard library')")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "tempfile.py").write_text("raise ImportError('this is not the standard library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder] + [str(tmp_path / "packages")])
    path, python_path = list(sys.path), os.environ.get("PYTHONPATH")
    arguments: dict[str, Any] = {"total_steps": 64, "seed": 0, "placement": "cpu", "progress": False, **options}
    hybridppo.train(lambda: Importing(path, python_path), config=SMALL, **arguments)


@pytest.mark.parametrize("error", [ConnectionRefusedError, EOFError])
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"evaluate_every": 32, "evaluate_async": True}], ids=str)
def test_an_environment_without_its_server_is_no_lost_trainer(error: type[Exception], options: dict[str, Any]) -> None:
    trainer = os.getpid()

    class Remote(Importing):
        def __init__(self) -> None:
            if os.getpid() != trainer:
                raise error("no simulator at port 2000")

    with pytest.raises(EnvError, match=rf"\d .* failed: (.|\n)*{error.__name__}: no simulator at port 2000"):
        hybridppo.train(Remote, total_steps=64, config=SMALL, seed=0, placement="cpu", progress=False, **options)


def hang_at_start(tmp_path: Path, environment: Any) -> None:
    """Let every further Python process hang before it does anything."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))


def test_a_worker_that_never_connects_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {"HANG": "1"}
    hang_at_start(tmp_path, environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes, "SECONDS_TO_START", 0.2)
    with pytest.raises(EnvError, match=r"worker 0 \(environments 0 to 0\) has not connected within 0\.3 s of "):
        hybridppo.train(
            "CartPole-v1", total_steps=64, config=SMALL, num_workers=2, worker_timeout=0.3, placement="cpu",
            progress=False,
        )  # fmt: skip
    assert not worker_processes()


def test_a_worker_whose_trainer_is_gone_ends_without_a_word() -> None:
    code = "from hybridppo.runners.processes import answer_trainer; answer_trainer(print)"
    ours, theirs = Pipe()
    ours.close()
    process = subprocess.run([sys.executable, "-c", code], stdin=theirs.fileno(), capture_output=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("options", ["num_workers=2", "distributed='multi:2'"])
def test_a_signal_ends_the_wait_for_a_worker_that_never_connects(options: str, tmp_path: Path) -> None:
    environment = dict(os.environ)
    hang_at_start(tmp_path, environment)
    run_dir = tmp_path / "run"
    code = (
        "import os, hybridppo\nfrom hybridppo.runners import processes\nfrom hybridppo.system import signals\n"
        "signals.SECONDS_TO_COME = 0.2\nprocesses.LocalProcesses.seconds_between_looks = 0.05\n"
        "os.environ['HANG'] = '1'\n"
        "config = hybridppo.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2)\n"
        f"hybridppo.train('CartPole-v1', total_steps=64, config=config, placement='cpu', progress=False, "
        f"run_dir={str(run_dir)!r}, {options})"
    )
    process = start_python("-c", code, env=environment, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: workers_of(process.pid), process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt: stopped, while" in errors
    assert "was still starting" in errors
    assert not run_dir.exists()
