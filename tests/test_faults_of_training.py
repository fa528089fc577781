"""Each promise about training itself: `docs/reliability.md` has the list."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from processes import run_python

import hybridppo
from hybridppo import (
    ConfigurationError,
    DeviceError,
    DistributedError,
    Mirrored,
    OutOfMemoryError,
    PPOConfig,
    TrainingError,
)
from hybridppo.agents.registry import explaining_memory
from hybridppo.run_directory.checkpoints import folders, load_latest

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))


def train(env: Any = "CartPole-v1", config: PPOConfig = CONFIG, **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 320, "seed": 3, "placement": "cpu", "vectorization": "sync", "progress": False} | options
    return hybridppo.train(env, config=config, **options)


class EnormousRewards(gym.Env[Any, Any]):
    """Ordinary for `after` steps; from then on, the squares of rewards do not fit into 32 bits."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def __init__(self, after: int = 100, reward: float = 1e38) -> None:
        self.steps, self.after, self.reward = 0, after, reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), self.reward if self.steps > self.after else 1.0, self.steps % 20 == 0, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


# A loss or a gradient that is not finite


@pytest.mark.parametrize("fast_updates", [True, False])
@pytest.mark.parametrize("placement", ["cpu", Mirrored("cpu", "cpu", force_copy=True)], ids=["cpu", "hybrid"])
def test_loss_not_finite_of_a_huge_learning_rate_stops_training(fast_updates: bool, placement: Any) -> None:
    config = ppo_config(**{**CONFIG.to_json(), "learning_rate": 1e30, "fast_updates": fast_updates})
    with pytest.raises(TrainingError) as error:
        train(config=config, placement=placement)
    message = str(error.value)
    assert "training stopped in iteration 1: the first quantity that is not finite is " in message
    assert re.search(r"(policy_loss|value_loss|entropy|grad_norm) in minibatch 2 of epoch 1 \((nan|-?inf)\)", message)
    assert "learning_rate is 1e+30" in message


def test_loss_not_finite_of_a_huge_learning_rate_is_found_before_anything_acts_on_it() -> None:
    # One optimizer step, the last of its update: no loss comes after it, and the next actions would be.
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=1, learning_rate=1e25)
    with pytest.raises(
        TrainingError, match=r"iteration 1: .* is the norm of the parameters after the last optimizer step"
    ):
        train("Pendulum-v1", config)


@pytest.mark.parametrize("fast_updates", [True, False])
def test_loss_not_finite_of_enormous_rewards_leaves_the_last_good_checkpoint(
    tmp_path: Path, fast_updates: bool
) -> None:
    config, path = ppo_config(**{**CONFIG.to_json(), "fast_updates": fast_updates}), tmp_path / "run"
    with pytest.raises(TrainingError, match=r"iteration 7: .* is (a|an) \w+.*rewards or .* not normalised"):
        train(EnormousRewards, config, run_dir=path, checkpoint_seconds=0.0, total_steps=32 * 10)
    newest, checkpoint = load_latest(path / "checkpoints")
    assert newest == folders(path / "checkpoints")[-1]
    assert checkpoint.state["runner"]["iteration"] == 6
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values())
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 6
    resumed = hybridppo.resume(path, env=lambda: EnormousRewards(10**9), progress=False)
    assert resumed.metrics["iteration"] == 10


def test_loss_not_finite_when_overlapping_stops_too(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="iteration 7"):
        train(EnormousRewards, placement=Mirrored("cpu", "cpu", max_lag=1), run_dir=tmp_path / "run")


def test_loss_not_finite_is_one_message_on_the_command_line(tmp_path: Path) -> None:
    arguments = "train CartPole-v1 --total-steps 999 --placement cpu --no-progress --learning-rate 1e30 --run-dir"
    process = run_python("-m", "hybridppo", *arguments.split(), tmp_path / "run")
    assert process.returncode == 1
    lines = process.stderr.strip().splitlines()
    assert lines[-1].startswith("hybridppo: error: training stopped in iteration 1")
    assert "Traceback" not in process.stderr
    assert "Warning" not in process.stderr


def test_ordinary_training_has_finite_losses_of_every_kind() -> None:
    # The check must not mistake what is finite, or what may be none: returns that do not vary explain no variance.
    class Constant(EnormousRewards):
        def __init__(self) -> None:
            super().__init__(after=0, reward=0.0)

    result = train(Constant, ppo_config(num_envs=2, num_steps=16, gamma=0.0, hidden_sizes=(8,)))
    assert result.metrics["iteration"] == 10


# Impossible hyper-parameters (`tests/agents/test_ppo_config.py` tries every field)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": -1e-3}, "learning_rate must be greater than 0, got -0.001"),
        ({"gamma": 1.01}, "gamma must lie between 0 and 1, got 1.01"),
        ({"num_minibatches": 3}, r"num_minibatches must divide num_envs \* num_steps = 4 \* 128 = 512, got 3"),
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_steps": 2**30}, r"num_steps is too large: num_envs \* num_steps must be at most 2147483647"),
        ({"hidden_sizes": (2**40,)}, "hidden_sizes must be a tuple of whole numbers, each from 1 to 2147483647"),
        ({"torch_threads": 10**6}, "torch_threads must be at most 1024, got 1000000"),
        ({"clip_range": 1e39}, "clip_range must be a finite number of 32 bits, got"),
        ({"learning_rate": "linear"}, r"32 bits \(train takes schedules={'learning_rate': ...}\), got 'linear'"),
        ({"clip_range": lambda done: 0.2 * done}, r"schedules={'clip_range': ...}\), got <function"),
        ({"num_epochs": 10**5000}, "num_epochs must be at most 2147483647, got a number of thousands of digits"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else next(iter(value)),
)
def test_impossible_hyper_parameters_are_refused_by_field_and_rule(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ppo_config(**change)


# Devices and memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
@pytest.mark.parametrize("placement", ["cuda", "hybrid", "migrate", "overlap"])
def test_cuda_asked_for_and_not_there_is_an_error_with_the_remedy(placement: str, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="sees no CUDA device: use placement 'cpu', or install"):
        train(placement=placement, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class ExhaustedNetwork(torch.nn.Module):
    """Fails like a GPU without free memory."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total of ...")


def test_gpu_out_of_memory_names_the_fields_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    make_networks = hybridppo.PPO.make_networks

    def with_exhausted_critic(self: hybridppo.PPO, seed: int) -> Any:
        actor, critic = make_networks(self, seed)
        return actor, ExhaustedNetwork(critic)

    monkeypatch.setattr(hybridppo.PPO, "make_networks", with_exhausted_critic)
    with pytest.raises(OutOfMemoryError) as error:
        train(config=ppo_config(num_envs=2, num_steps=512, num_minibatches=64, hidden_sizes=(8,)))
    message = str(error.value)
    assert message.startswith("out of memory: CUDA out of memory. Tried to allocate 20.00 GiB: lower num_envs")


@pytest.mark.parametrize(
    "config",
    [
        ppo_config(hidden_sizes=(2**21, 2**21)),
        ppo_config(num_envs=2, num_steps=2**29, num_minibatches=2**20),
    ],
    ids=["networks", "rollout"],
)
def test_absurd_sizes_on_a_cpu_are_the_same_error(config: PPOConfig, tmp_path: Path) -> None:
    wide = Box(-1.0, 1.0, (4096,))  # so that a rollout takes terabytes

    class Wide(EnormousRewards):
        observation_space = wide if config.num_steps == 2**29 else EnormousRewards.observation_space

        def _observation(self) -> np.ndarray:
            return np.zeros(self.observation_space.shape, np.float32)

    with pytest.raises(OutOfMemoryError, match=r"out of memory: .*: lower num_envs, num_steps, hidden_sizes"):
        train(Wide, config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), DistributedError("learner 1 has run out of memory")])
def test_other_errors_are_not_taken_for_a_want_of_memory(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explaining_memory():
        raise error
    assert raised.value is error


@pytest.mark.gpu
def test_gpu_out_of_memory_really() -> None:
    code = (
        "import torch, hybridppo; torch.cuda.set_per_process_memory_fraction(0.01);"
        "config = hybridppo.PPOConfig(num_envs=64, num_steps=2048, num_minibatches=1, hidden_sizes=(4096, 4096));"
        "hybridppo.train('CartPole-v1', total_steps=10, placement='hybrid', config=config, progress=False)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode != 0
    assert "hybridppo.errors.OutOfMemoryError: out of memory: CUDA out of memory" in process.stderr
    assert "lower num_envs" in process.stderr


NOWHERE_TO_WRITE = """
import os, sys
for name in ("HYBRIDPPO_CACHE_DIR", "HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
    os.environ.pop(name, None)
if sys.argv[1] == "no home":
    import pwd
    def nobody(uid):
        raise KeyError(uid)
    pwd.getpwuid = nobody
else:
    os.environ["HOME"] = sys.argv[1]
import hybridppo
small = dict(hidden_sizes=(8,))
on_policy = dict(num_envs=2, num_steps=32, num_minibatches=2, **small)
td3 = hybridppo.TD3Config(learning_starts=50, batch_size=16, **small)
ways = [(td3, {}), (hybridppo.PPOConfig(**on_policy), {}), (hybridppo.PPOConfig(**on_policy), {"num_workers": 1})]
if sys.argv[1] != "no home":
    ways.append((hybridppo.PPOConfig(**on_policy), {"distributed": "multi:2"}))
for config, options in ways:
    hybridppo.train("Pendulum-v1", total_steps=200, seed=0, config=config, progress=False, **options)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="has a folder that nobody can write to")
@pytest.mark.parametrize("home", ["no home", pytest.param("/proc/nobody", marks=pytest.mark.extras)])
def test_a_training_without_a_run_directory_needs_nowhere_to_write(home: str) -> None:
    """Neither a home folder nor a working directory exists."""
    done = run_python("-c", NOWHERE_TO_WRITE, home, cwd="/proc", warm=False)
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.gpu
def test_cuda_used_before_worker_processes_start_works() -> None:
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
    result = train(placement="hybrid", num_workers=2)
    assert result.metrics["env_steps"] >= 320


def test_threads_used_before_worker_processes_start_do_no_harm() -> None:
    # The twin of CUDA used before: a pool of threads is what a forked process loses, too.
    code = (
        "import torch, hybridppo; torch.set_num_threads(2); a = torch.ones(600, 600); float((a @ a).sum());"
        "config = hybridppo.PPOConfig(num_envs=2, num_steps=16, hidden_sizes=(8,));"
        "result = hybridppo.train('CartPole-v1', total_steps=320, placement='cpu', config=config, progress=False,"
        "                         num_workers=2);"
        "assert result.metrics['env_steps'] >= 320"
    )
    process = run_python("-c", code)
    assert process.returncode == 0, process.stderr
