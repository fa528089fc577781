"""The policies: their names, and what is refused before a training begins."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, DistributedError, MultiLearner
from hybridppo.distributed.ray_strategy import RayStrategy
from hybridppo.settings import POLICIES, Distributed, distributed_from

EVERY: dict[str, Distributed] = {
    "local": hybridppo.Local(),
    "coarse:8": hybridppo.SingleLearnerCoarse(samplers=8),
    "fine:2": hybridppo.SingleLearnerFine(env_workers=2),
    "environments:3": hybridppo.Environments(workers=3),
    "multi": hybridppo.MultiLearner(),
    "multi:2": hybridppo.MultiLearner(learners=2),
    "multi:2:4": hybridppo.MultiLearner(learners=2, shards=4),
    "multi:2:4:all_reduce": hybridppo.MultiLearner(learners=2, shards=4, reduce="all_reduce"),
    "multi:2:all_reduce": hybridppo.MultiLearner(learners=2, reduce="all_reduce"),
    "gpu:2:4": hybridppo.GPUOnly(learners=2, shards=4),
    "central:2": hybridppo.Central(learners=2),
    "central:2:0": hybridppo.Central(learners=2, max_lag=0),
}
CONFIG = ppo_config(num_envs=4, num_steps=8, hidden_sizes=(4,))


@pytest.mark.parametrize(("text", "policy"), EVERY.items())
def test_every_policy_has_a_text(text: str, policy: Distributed) -> None:
    assert str(policy) == text
    assert distributed_from(text) == distributed_from(policy) == policy


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", POLICIES.values(), ids=POLICIES)
def test_the_documents_list_every_policy(kind: type[Distributed]) -> None:
    policy = kind(*[{"samplers": 8, "env_workers": 8, "workers": 8, "learners": 4}[f.name] for f in fields(kind)[:1]])
    lines = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"| `{policy!r}` | `{policy}` | ") for line in lines)


def test_there_is_one_of_each_kind() -> None:
    assert {type(policy) for policy in EVERY.values()} == set(POLICIES.values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("ray:2", "unknown distributed='ray:2': use one of local, coarse"),
        ("multi:two", "written multi:LEARNERS:SHARDS.*'multi:two'"),
        ("multi:2:4:8", "written multi:LEARNERS:SHARDS:REDUCE"),
        ("multi:2:sum", "written multi:LEARNERS:SHARDS:REDUCE"),
        ("central", "central needs learners: central:2"),
        ("central:2:1:1", "written central:LEARNERS:MAX_LAG"),
        ("multi:0", "learners must be a whole number of at least 1, got 0"),
        ("multi:2:3", "shards must be a multiple of learners = 2, got 3"),
        ("coarse", "coarse needs samplers: coarse:2"),
        (2, "must be a policy or its text"),
    ],
)
def test_what_is_no_policy_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        distributed_from(wrong)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"num_envs": 3, "num_steps": 16}, {}, "num_envs must be a multiple of the 2 shards, got 3"),
        (
            {"num_envs": 4, "num_steps": 8, "num_minibatches": 16},
            {"distributed": "multi:4"},
            "num_minibatches must be at most the rows of a shard, 8, with distributed=multi:4, got 16",
        ),
        (
            {"recurrent": "gru", "num_steps": 64, "num_minibatches": 4},
            {"distributed": "multi:4"},
            "num_minibatches must be at most the sequences of a shard, 2, with distributed=multi:4, got 4",
        ),
        ({"pool_size": 2}, {"distributed": "central:2"}, "pool_size=2 does not work with distributed=central:2:1: use"),
        ({"num_envs": 1, "episodes_per_rollout": 1}, {}, "episodes_per_rollout=1 does not work"),
        ({}, {"distributed": "multi"}, "give a number of learners to start"),
        ({}, {"address": "auto", "distributed": "local"}, "does not work with distributed=local: leave it out"),
        (
            {},
            {"address": "auto"},
            "address='auto' does not work with distributed=multi:2: use distributed='local', or leave it out",
        ),
        (
            {"num_envs": 3, "num_steps": 16},
            {"distributed": "central:2"},
            "num_envs must be a multiple of the 2 learner",
        ),
        ({"num_envs": 6}, {"distributed": "central:3"}, "num_minibatches must be a multiple of the 3 learners.*got 4"),
        (
            {},
            {"num_workers": 2, "distributed": "central:2"},
            "num_workers=2 does not work with distributed=central:2:1.*or leave it out",
        ),
        (
            {},
            {"info_metrics": ("x",), "distributed": "central:2"},
            "info_metrics=.* does not work with distributed=central:2:1",
        ),
        (
            {},
            {"distributed": "central:2", "placement": hybridppo.Mirrored("cpu", "cpu", max_lag=1)},
            "by turns on CPU",
        ),
        ({}, {"distributed": "central:2", "config": hybridppo.TD3Config()}, "gradients of PPO only, got TD3Config"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_anything_is_started(
    config: dict[str, object], options: dict[str, object], message: str
) -> None:
    of_ppo = ppo_config(**{"num_envs": 4, **config})
    options = {"total_steps": 64, "distributed": MultiLearner(2), "config": of_ppo, **options}
    with pytest.raises(ConfigurationError, match=message):
        hybridppo.train("CartPole-v1", **options)


@pytest.mark.parametrize("distributed", ["coarse:2", "fine:2", "environments:2"])
@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"num_envs": 1}, {}, r"(samplers|env_workers|workers) must be at most num_envs = 1, got 2"),
        ({"num_envs": 4}, {"num_workers": 2}, "num_workers=2 does not work with distributed=.*:2"),
        ({"num_envs": 4}, {"address": 7}, "address must be auto or HOST:PORT, got 7"),
    ],
)
def test_what_cannot_be_had_over_ray_is_refused_before_it_is_started(
    distributed: str, config: dict[str, int], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hybridppo.train("CartPole-v1", total_steps=64, config=ppo_config(**config), distributed=distributed, **options)


@pytest.mark.parametrize("distributed", ["coarse:2", "fine:2", "environments:2"])
def test_without_ray_its_policies_say_how_to_get_it(distributed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=rf"{distributed} needs Ray.*pip install '\.\[ray\]'"):
        hybridppo.train("CartPole-v1", total_steps=64, config=CONFIG, distributed=distributed)


def test_ray_that_does_not_start_in_time_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup.")  # a plain one, as Ray does

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(DistributedError, match=r"Ray could not be started on this machine .*timed out during startup"):
        RayStrategy(hybridppo.SingleLearnerCoarse(2), None).__enter__()


@pytest.mark.parametrize("distributed", ["central:2", "coarse:2"])
def test_a_vector_that_is_seeded_as_a_whole_is_refused(distributed: str) -> None:
    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)

    with pytest.raises(ConfigurationError, match="a SyncVectorEnv is seeded and stepped as a whole"):
        hybridppo.train(vector, total_steps=64, config=CONFIG, distributed=distributed)


def test_one_learner_needs_no_process_and_says_so_in_its_settings(tmp_path: Path) -> None:
    result = hybridppo.train(
        "CartPole-v1", total_steps=64, config=CONFIG, distributed=MultiLearner(1), run_dir=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert result.saved
    assert json.loads((tmp_path / "run" / "config.json").read_text())["distributed"] == "multi:1:1"
    # An agent that has trained in shards goes on without them.
    result = hybridppo.train("CartPole-v1", total_steps=64, agent=result.agent, placement="cpu", progress=False)
    assert result.metrics["env_steps"] >= 64
    assert result.agent.loop().exchange.is_alone


def test_the_old_name_of_the_argument_names_the_new_one() -> None:
    with pytest.raises(TypeError, match=r"'distribution': did you mean distributed='local'\?"):
        hybridppo.train("CartPole-v1", total_steps=64, **{"distribution": "local"})
