"""What learners check with every message that they exchange."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config

from hybridppo import ConfigurationError, DistributedError, MultiLearner, TD3Config
from hybridppo.agents import PPO
from hybridppo.agents.ddpg.ddpg import TD3
from hybridppo.distributed import launching
from hybridppo.distributed import learners as teams
from hybridppo.distributed.choosing_strategy import strategy_of
from hybridppo.distributed.launching import in_background
from hybridppo.distributed.learners import MultiLearnerStrategy
from hybridppo.distributed.link import is_gone
from hybridppo.environments.in_shards import EnvironmentShards
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.options import RunOptions
from hybridppo.system.signals import Interruption

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
CARTPOLE = gym.make("CartPole-v1")


class Wire:
    """Connects two learners by turns: each message brings back the last one of the other."""

    def __init__(self) -> None:
        self.said: dict[int, bytes] = {}
        self.rank = 0

    def gather(self, data: bytes) -> list[bytes]:
        self.said[self.rank] = data
        return [self.said.get(rank, data) for rank in (0, 1)]


def pair(seeds: tuple[int, int] = (1, 1)) -> tuple[Wire, list[MultiLearnerStrategy]]:
    wire, learners = Wire(), [MultiLearnerStrategy(MultiLearner(2), rank, 5.0) for rank in (0, 1)]
    for learner, seed in zip(learners, seeds, strict=True):
        learner.link = wire  # type: ignore[assignment]
        learner._agent = PPO(
            CARTPOLE.observation_space, CARTPOLE.action_space, ppo_config(hidden_sizes=(4,)), seed=seed
        )
        learner._own = Interruption()
    return wire, learners


def say(wire: Wire, learner: MultiLearnerStrategy, data: bytes) -> list[bytes]:
    wire.rank = learner.rank
    return learner.gather(data)


def test_what_is_said_comes_to_all_in_the_order_of_ranks() -> None:
    wire, (first, second) = pair()
    say(wire, first, b"one")
    assert say(wire, second, b"zwei") == [b"one", b"zwei"]
    assert second._seconds == first._seconds > 0  # the first's clock


def test_learners_that_do_not_hold_the_same_parameters_are_an_error() -> None:
    wire, (first, second) = pair(seeds=(1, 2))
    say(wire, first, b"")
    with pytest.raises(DistributedError, match="after 0 updates learner 1 does not hold the parameters"):
        say(wire, second, b"")


def test_parameters_are_compared_after_each_rollout_and_less_often_with_a_replay_buffer() -> None:
    wire, (first, second) = pair()
    say(wire, first, b"")
    for learner in (first, second):
        learner._agent.version = 1
    with torch.no_grad():
        first._agent.parameters.values.add_(1.0)
    say(wire, first, b"")
    with pytest.raises(DistributedError, match="after 1 updates learner 1 does not hold the parameters"):
        say(wire, second, b"")
    wire, (first, second) = pair()
    for learner in (first, second):
        learner._agent = TD3(BOX, BOX, TD3Config(hidden_sizes=(4,)), seed=1)
    say(wire, first, b"")
    say(wire, second, b"")
    with torch.no_grad():
        first._agent.parameters.values.add_(1.0)
    for version in (1, teams.UPDATES_BETWEEN_CHECKS - 1):
        for learner in (first, second):
            learner._agent.version = version
            say(wire, learner, b"")
    wire.said.clear()
    for learner in (first, second):
        learner._agent.version = version + 1
    say(wire, first, b"")
    with pytest.raises(DistributedError, match="after 100 updates learner 1 does not hold the parameters"):
        say(wire, second, b"")


def test_a_stop_that_one_is_asked_for_is_everyones_and_never_before_it_was_said() -> None:
    wire, (first, second) = pair()
    second._own.requested = True
    assert not first._agreed.requested
    assert not second._agreed.requested
    say(wire, second, b"")
    say(wire, first, b"")
    assert first._agreed.requested
    assert second._agreed.requested


def test_learners_that_were_started_otherwise_are_told_what_differs() -> None:
    teams._require_same({"seed": 1, "sizes": [4, 4]}, {"seed": 1, "sizes": (4, 4)}, 1)
    with pytest.raises(ConfigurationError, match=r"learner 1 .*num_envs is 8, and 4 there"):
        teams._require_same({"num_envs": 4}, {"num_envs": 8}, 1)


def test_each_learner_makes_the_environments_of_its_shards() -> None:
    learner = MultiLearnerStrategy(MultiLearner(2, shards=4), 1, 5.0)
    environments = learner.environments("CartPole-v1", 8, EnvironmentOptions(vectorization="sync"))
    assert isinstance(environments, EnvironmentShards)
    indices = [[each.index for each in part.sub_environments] for part in environments.parts]
    assert indices == [[4, 5], [6, 7]]
    environments.close()


def test_numbers_that_follow_from_others_are_written_down() -> None:
    run = RunOptions(total_steps=1, seed=4, distributed="multi:2")
    settled = MultiLearnerStrategy.of(MultiLearner(2), 5.0).settled(run)
    assert (settled.distributed, settled.seed) == ("multi:2:2", 4)


@pytest.mark.parametrize(("address", "warns"), [("auto", True), (None, False)])
def test_an_address_of_a_training_without_a_distribution_is_a_warning(
    address: str | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strategy_of(RunOptions(64, address=address), 5.0)
    assert ("address=auto has no effect with distributed='local'" in caplog.text) == warns


def test_a_process_is_gone_when_it_has_ended_and_not_before() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not is_gone(process.pid)
    process.communicate(b"\n")
    assert is_gone(process.pid) is (os.name == "posix")


def test_a_learner_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(command: object, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)

    fake = SimpleNamespace(Popen=deaf, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(launching, "subprocess", fake)
    launched = in_background(lambda: launching.Launched(2, 1, bytes(2**20)), 60.0)  # more than a pipe takes
    assert launched.how_it_ended(1) == ""
    launched.close(0.0)
    assert launched.how_it_ended(1) != ""
