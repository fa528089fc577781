"""What learners check, and the environments of each."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo import Auto, ConfigurationError, DistributedError, GPUOnly, MultiLearner
from hybridppo.agents import PPO
from hybridppo.distributed import learners
from hybridppo.distributed.learners import MultiLearnerStrategy
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.reporting.callbacks import TrainingRun
from hybridppo.runners.process_group import SingleProcess
from hybridppo.runners.sharded_sampler import EnvironmentShards
from hybridppo.settings import RunOptions

CARTPOLE = gym.make("CartPole-v1")


class Pair(SingleProcess):
    """A group of two, each of which calls by turns and gets what the other has said before."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self.said.append(value)
        return self.said


def test_learners_that_do_not_hold_the_same_parameters_are_an_error_of_a_placement_that_verifies() -> None:
    config = ppo_config(hidden_sizes=(4,))
    group, agents = Pair(), [PPO(CARTPOLE.observation_space, CARTPOLE.action_space, config, seed=i) for i in (1, 1, 2)]
    verify = learners.VerifyLearners(group)
    for agent in agents[:2]:
        verify.on_rollout(TrainingRun(agent, {}))
    with pytest.raises(DistributedError, match="learner 2 does not hold the parameters"):
        verify.on_rollout(TrainingRun(agents[2], {}))


def test_learners_that_were_started_otherwise_are_told_what_differs() -> None:
    learners._require_same({"seed": 1, "sizes": [4, 4]}, {"seed": 1, "sizes": [4, 4]}, 1)
    with pytest.raises(ConfigurationError, match=r"learner 1 .*num_envs is 8, and 4 there"):
        learners._require_same({"num_envs": 4}, {"num_envs": 8}, 1)


def test_each_learner_makes_the_environments_of_its_shards() -> None:
    learner = MultiLearnerStrategy(MultiLearner(2, shards=4), 5.0, rank=1)
    environments = learner.environments("CartPole-v1", 8, EnvironmentOptions(vectorization="sync"))
    assert isinstance(environments, EnvironmentShards)
    indices = [[each.index for each in part.sub_environments] for part in environments.parts]
    assert indices == [[4, 5], [6, 7]]
    environments.close()


def test_numbers_that_follow_from_others_are_written_down() -> None:
    run = RunOptions(total_steps=1, seed=4, distributed="multi:2")
    settled = MultiLearnerStrategy(MultiLearner(2), 5.0).settled(run)
    assert (settled.distributed, settled.seed) == ("multi:2:2", 4)


@pytest.mark.parametrize("policy", [MultiLearner(2), GPUOnly(2)])
def test_auto_may_not_overlap_what_is_not_measured(policy: MultiLearner) -> None:
    with pytest.raises(ConfigurationError, match=rf"Auto\(max_lag=1\) does not work with distributed={policy}"):
        MultiLearnerStrategy(policy, 5.0).placement(Auto(max_lag=1))


@pytest.mark.parametrize("distributed", ["multi:1:2", pytest.param("central:2:1", marks=pytest.mark.extras)])
def test_auto_takes_the_cpu_and_one_thread_for_several_processes(distributed: str, tmp_path: Path) -> None:
    config = ppo_config(num_envs=4, num_steps=16, num_minibatches=2, hidden_sizes=(8,), torch_threads=None)
    result = hybridppo.train(
        "CartPole-v1", total_steps=128, config=config, placement="auto", distributed=distributed, progress=False,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.agent.config.torch_threads == 1
    table = json.loads((tmp_path / "run" / "placements.json").read_text())
    assert table["line"].startswith(f"cpu with distributed={distributed}, for which nothing is measured")
