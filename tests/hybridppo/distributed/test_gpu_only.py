"""Learners with a device each: the bits of one process, whatever is asked of all, and what they refuse."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_settings import ppo_config
from same_bits import counted
from selection import only_by_default
from stop_after import interrupt_at

import hybridppo
from hybridppo import ConfigurationError, DeviceError, DistributedError, GPUOnly, Mirrored, SingleDevice
from hybridppo.environments.torch_cartpole import TorchCartPole

CONFIG = ppo_config(
    num_envs=8, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3,
    normalize_observations=True, normalize_rewards=True, target_kl=1e-5, fast_updates=False,
)  # fmt: skip
STEPS = 4 * CONFIG.batch_size


def make(num_envs: int, device: str = "cpu") -> TorchCartPole:
    return TorchCartPole(num_envs, device, episode_length=20)


def train(distributed: Any, env: Any = make, **options: Any) -> Any:
    arguments = {
        "total_steps": STEPS, "seed": 5, "config": CONFIG, "placement": "cpu", "progress": False,
        "on_interrupt": "return", **options,
    }  # fmt: skip
    return hybridppo.train(env, distributed=distributed, **arguments)


def assert_same(one: Any, other: Any) -> None:
    for name, tensor in one.agent.state()[0].items():
        assert torch.equal(other.agent.state()[0][name].cpu(), tensor.cpu()), name
    assert counted(one.metrics) == counted(other.metrics)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not torch.distributed.is_initialized()


def test_one_shard_is_the_local_training_bit_for_bit() -> None:
    assert_same(train(GPUOnly(1)), train("local"))


def test_any_number_of_learners_gives_the_same_bits(tmp_path: Path) -> None:
    alone = train(GPUOnly(1, shards=2))
    several = train(GPUOnly(2), run_dir=tmp_path / "run", evaluation_episodes=8)
    assert_same(alone, several)
    assert alone.metrics["episodes"] > 0
    assert several.metrics["env_steps"] == STEPS
    assert len(several.evaluation.returns) == 8
    # What was written goes on with another number of learners.
    longer = hybridppo.resume(
        tmp_path / "run", env=make, total_steps=2 * STEPS, distributed="gpu:1:2", progress=False
    )  # fmt: skip
    assert longer.metrics["env_steps"] == 2 * STEPS
    loaded = hybridppo.load(tmp_path / "run")
    assert torch.equal(loaded.parameters.values, longer.agent.parameters.values)


@pytest.mark.extras
def test_four_learners_and_two_give_the_bits_of_one() -> None:
    alone = train(GPUOnly(1, shards=4))
    for learners in (2, 4):
        assert_same(alone, train(GPUOnly(learners, shards=4)))


def test_shards_on_another_device_give_the_same_bits(second_device: str) -> None:
    assert_same(train(GPUOnly(1, shards=2)), train(GPUOnly(1, shards=2), placement=SingleDevice(second_device)))


@pytest.mark.extras
@pytest.mark.parametrize("reduce", ["shards", "all_reduce"])
def test_learners_on_another_device_give_the_bits_of_one_on_the_cpu(reduce: Any, second_device: str) -> None:
    expected = train(GPUOnly(1, shards=2))
    policy = GPUOnly(2, reduce=reduce)
    found = train(policy, placement=SingleDevice(second_device), imports="second_device_everywhere")
    if reduce == "shards":
        assert_same(expected, found)
    else:
        assert torch.allclose(found.agent.parameters.values.cpu(), expected.agent.parameters.values, atol=1e-5)


@pytest.mark.extras
def test_learners_fed_by_cpu_samplers_learn_on_another_device(second_device: str, tmp_path: Path) -> None:
    """With overlap and a worker each; stopped, and resumed by one learner on the CPU."""

    def options(device: str) -> dict[str, Any]:
        placement = Mirrored("cpu", device, max_lag=1)
        config = replace(CONFIG, num_envs=4)
        return {"env": "CartPole-v1", "placement": placement, "vectorization": "sync", "config": config}

    expected = train("multi:1:2", **options("cpu"))
    stopped = train(
        "multi:2:2", imports="second_device_everywhere", run_dir=tmp_path / "run", on_iteration=interrupt_at(2),
        **options(second_device),
    )  # fmt: skip
    assert stopped.interrupted
    resumed = hybridppo.resume(
        tmp_path / "run", distributed="multi:1:2", placement=Mirrored("cpu", "cpu", max_lag=1), progress=False
    )  # fmt: skip
    assert torch.equal(resumed.agent.parameters.values, expected.agent.parameters.values)


def test_evaluations_make_their_environments_on_the_learners_device(second_device: str) -> None:
    devices: list[str] = []

    def make_there(num_envs: int, device: str) -> TorchCartPole:
        devices.append(device)
        return make(num_envs, device)

    result = train(
        GPUOnly(1), make_there, placement=SingleDevice(second_device), total_steps=2 * CONFIG.batch_size,
        evaluate_every=CONFIG.batch_size, evaluation_episodes=4,
    )  # fmt: skip
    assert devices == [second_device] * 3  # of the training, of evaluations meanwhile, and of the last
    assert result.evaluation is not None
    assert result.metrics["evaluation_env_steps"] == 2 * CONFIG.batch_size


@pytest.mark.parametrize("kind", only_by_default(("pool",), ("pool", "not normalised")))
def test_a_pool_is_divided_likewise(kind: str, second_device: str) -> None:
    changes: dict[str, Any] = {
        "pool": {"pool_size": 2},
        "not normalised": {"normalize_advantage": False, "normalize_rewards": False},
    }[kind]
    config = replace(CONFIG, **changes)
    alone = train(GPUOnly(1, shards=2), config=config)
    assert_same(alone, train(GPUOnly(1, shards=2), config=config, placement=SingleDevice(second_device)))


def test_more_shards_see_more_episodes_of_other_seeds() -> None:
    one, two = train(GPUOnly(1)), train(GPUOnly(1, shards=2))
    assert not torch.equal(one.agent.parameters.values, two.agent.parameters.values)
    assert (one.agent.parameters.values - two.agent.parameters.values).abs().max() < 0.1


@pytest.mark.parametrize(
    ("before", "after"),
    [("gpu:1:2", "gpu:1:2"), pytest.param("gpu:2:2", "gpu:1:2", marks=pytest.mark.extras)],
)
def test_a_run_that_is_stopped_and_resumed_is_none_that_was_not(
    before: str, after: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = train(before, config=replace(CONFIG, anneal_learning_rate=True))
    stopped = train(before, run_dir=tmp_path / "run", on_iteration=interrupt_at(2))
    assert stopped.interrupted
    assert stopped.metrics["iteration"] in (2, 3)
    result = hybridppo.resume(tmp_path / "run", env=make, distributed=after, progress=False)
    assert_same(expected, result)
    caplog.set_level("INFO")
    longer = hybridppo.resume(tmp_path / "run", env=make, distributed="gpu:1:4", progress=False, total_steps=2 * STEPS)
    assert longer.metrics["env_steps"] == 2 * STEPS
    assert "new episodes: the run was in 2 shards and is now in 4 shards, which also cut its minibatches" in caplog.text


class Failing(TorchCartPole):
    """Fails in its tenth step, in the shard that begins with one."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        super().__init__(num_envs, device)
        self._calls = 0

    def step(self, actions: Any) -> Any:
        self._calls += 1
        if self._calls == 10:
            raise RuntimeError("out of order")
        return super().step(actions)


@pytest.mark.extras
def test_a_learner_that_fails_ends_all_with_its_reason() -> None:
    with pytest.raises((DistributedError, hybridppo.EnvError), match="out of order"):
        train(GPUOnly(2), Failing)


def elsewhere(num_envs: int, device: str) -> TorchCartPole:
    return TorchCartPole(num_envs, "meta")


def no_tensors(device: str) -> Any:
    return hybridppo.make_env("CartPole-v1")


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("CartPole-v1", {}, "these are others .*: use distributed='multi:1' for those"),
        (TorchCartPole(8), {}, r"batched environments \(TorchCartPole\) that are there already cannot be divided"),
        (elsewhere, {}, "are on meta, and this learner samples on cpu: let the function take device, and make them"),
        (no_tensors, {}, r"these are others \(SubEnvironments\): use distributed='multi:1'"),
        (make, {"env_kwargs": {"device": "cpu"}}, "env_kwargs has a device, and each learner has its own"),
        (make, {"config": replace(CONFIG, num_envs=7, num_minibatches=1)}, "a multiple of the 2 shards, got 7"),
        (make, {"config": replace(CONFIG, cuda_graphs=True)}, "cuda_graphs=True does not work"),
        (make, {"num_workers": 1}, "num_workers must be a multiple of the 2 shards"),
        (make, {"num_workers": 2}, "num_workers=1 does not work with batched environments"),
        (
            make,
            {"placement": Mirrored("cpu", "cpu")},
            "each learner samples and learns on its own device, got Mirrored",
        ),
    ],
)
def test_what_cannot_be_spread_is_refused(env: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train("gpu:1:2", env, **options)


def test_devices_that_are_not_there_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() < 2:
        with pytest.raises(DeviceError, match=r"gpu:2 needs 2 CUDA devices, and torch .* sees [01]: take as many"):
            train(GPUOnly(2), placement="auto")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigurationError, match="gpu:2 has 2 learners, torchrun started 1"):
        train(GPUOnly(2))


def test_learners_and_shards_must_divide() -> None:
    with pytest.raises(ConfigurationError, match="shards must be a multiple of learners = 2, got 3"):
        GPUOnly(2, shards=3)
