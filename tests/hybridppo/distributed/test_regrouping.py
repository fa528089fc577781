"""A lost learner: another group continues from the last checkpoint, and ends with the bits of an undisturbed run."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from failing import failing, failing_loss, killed, silent
from gymnasium.spaces import Box
from learner_kinds import KINDS
from ppo_settings import ppo_config

import hybridppo
from hybridppo import DistributedError, MultiLearner, PPOConfig, TD3Config
from hybridppo.distributed import learners
from hybridppo.distributed.learners import Losses
from hybridppo.errors import LearnerLostError
from hybridppo.run_directory.directory import RunDirectory

CONFIG = ppo_config(
    num_envs=4, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3,
    normalize_observations=True,
)  # fmt: skip


def train(env: Any, size: int, config: PPOConfig | TD3Config = CONFIG, **options: Any) -> hybridppo.TrainResult:
    return hybridppo.train(
        env, total_steps=4 * 32 * 5, config=config, seed=5, placement="cpu", progress=False, on_interrupt="return",
        distributed=MultiLearner(size, shards=2), on_env_error="restart", **options,
    )  # fmt: skip


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_the_update_of_a_learner_that_is_killed_or_silent_is_done_again_by_another_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = None
    for what, timeout, said in ((killed, 60.0, "killed by SIGKILL"), (silent, 4.0, "did not answer for 4 s")):
        mark = tmp_path / f"{what.__name__}.mark"
        env, run_dir = failing(what, mark), tmp_path / what.__name__
        iterations: list[int] = []
        several = train(
            env, 2, run_dir=run_dir, checkpoint_seconds=0.0, worker_timeout=timeout,
            on_iteration=lambda metrics, to=iterations: to.append(metrics["iteration"]),
        )  # fmt: skip
        assert mark.exists()  # it was lost in its second rollout
        assert said in caplog.text
        assert "go on from the checkpoint of 128 steps" in caplog.text
        assert iterations == [1, 2, 3, 4, 5]  # each of them once
        assert not torch.distributed.is_initialized()
        expected = train(env, 1) if expected is None else expected  # where nothing of the kind happens
        assert torch.equal(several.agent.parameters.values, expected.agent.parameters.values)
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 5


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("name", ["rows", "gru"])
def test_of_an_update_in_the_midst_of_which_a_learner_is_killed_nothing_stays(name: str, tmp_path: Path) -> None:
    loss = failing_loss(killed, 10, tmp_path / "mark")  # in the midst of the third update of four steps
    config = replace(CONFIG, normalize_rewards=True, **KINDS[name].config)
    several = train("CartPole-v1", 2, config, run_dir=tmp_path / "run", checkpoint_seconds=0.0, loss=loss)
    assert (tmp_path / "mark").exists()
    expected = train("CartPole-v1", 1, config, loss=loss)
    assert torch.equal(several.agent.parameters.values, expected.agent.parameters.values)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("name", ["gru", "frames", "pool"])
def test_what_is_remembered_stacked_or_kept_is_taken_over_with_the_checkpoint(name: str, tmp_path: Path) -> None:
    env, options = failing(killed, tmp_path / "mark"), KINDS[name].options
    config = replace(CONFIG, **KINDS[name].config)
    several = train(env, 2, config, run_dir=tmp_path / "run", checkpoint_seconds=0.0, **options)
    assert (tmp_path / "mark").exists()
    expected = train(env, 1, config, **options)
    assert torch.equal(several.agent.parameters.values, expected.agent.parameters.values)


def with_numbers(make: Callable[[], Any]) -> Callable[[], Any]:
    """Environments with two choices; the right one is the sign of a number."""
    return lambda: gym.wrappers.TransformAction(make(), lambda number: int(number[0] > 0.0), Box(-1.0, 1.0, (1,)))


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_replay_buffer_is_taken_over_with_the_checkpoint(tmp_path: Path) -> None:
    env = with_numbers(failing(killed, tmp_path / "mark"))
    config = TD3Config(
        num_envs=4, batch_size=8, buffer_size=400, learning_starts=64, steps_per_iteration=128, hidden_sizes=(8,)
    )
    several = train(env, 2, config, run_dir=tmp_path / "run", checkpoint_seconds=0.0)
    assert (tmp_path / "mark").exists()
    expected = train(env, 1, config)
    assert torch.equal(several.agent.parameters.values, expected.agent.parameters.values)
    assert several.metrics["replay_size"] == expected.metrics["replay_size"]


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_without_a_run_directory_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(DistributedError, match="learner 1 of 2 has died: killed by SIGKILL"):
        train(failing(killed, tmp_path / "mark"), 2)


def test_losses_are_counted_as_far_as_no_checkpoint_lies_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybridppo.train(
        "CartPole-v1", total_steps=128, config=CONFIG, seed=5, placement="cpu", progress=False, run_dir=tmp_path / "run"
    )
    steps = [128, 128, 256, 256, 256, 256]
    monkeypatch.setattr(learners, "rewind_to", lambda directory, checkpoint: steps.pop(0))
    lost, losses = LearnerLostError("learner 1"), Losses()
    loaded: list[int] = []
    job: Any = SimpleNamespace(
        agent=SimpleNamespace(load_state=lambda tensors, state: loaded.append(state["version"])),
        settings=SimpleNamespace(environment=SimpleNamespace(restarts=True)),
        interruption=SimpleNamespace(requested=False),
        directory=RunDirectory.open(tmp_path / "run"),
    )
    monkeypatch.setattr(learners, "replace", lambda job, **changes: changes)
    for _ in range(5):
        assert losses.next(job, lost, may=True)["checkpoint"] is not None
    assert loaded == [2] * 5  # the checkpoint's version, whatever the agent had become
    with pytest.raises(LearnerLostError, match="4 times in a row without a checkpoint between: learner 1"):
        losses.next(job, lost, may=True)
    for changes in ({"may": False}, {}):
        job.settings.environment.restarts = "may" in changes
        with pytest.raises(LearnerLostError, match=r"^learner 1$"):
            Losses().next(job, lost, **{"may": True, **changes})
