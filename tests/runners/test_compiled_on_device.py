"""Rollouts of compiled environments on a device, sampled by a stand-in for its kernels."""

import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hybridppo
from hybridppo import Mirrored, SingleDevice
from hybridppo.agents import PPO
from hybridppo.errors import DeviceError, EnvError
from hybridppo.placements.crossing import Counters, Crossing, torch_actor
from hybridppo.runners import filling
from hybridppo.runners.sampler import Sampler
from hybridppo.system.signals import Stopped

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

import second_device as second  # noqa: E402
from compiled_catch import Catch  # noqa: E402
from compiled_hunt import Hunt  # noqa: E402
from compiled_kinds import Choices, Numbers  # noqa: E402
from cuda_stand_in import TwinLauncher, noise_of  # noqa: E402
from ppo_settings import ppo_config  # noqa: E402
from pretended_recorder import PretendedRecorder  # noqa: E402

from hybridppo.agents.policies import Policies, PoliciesConfig  # noqa: E402
from hybridppo.compiled import cuda_building  # noqa: E402
from hybridppo.environments.making import make_environments  # noqa: E402
from hybridppo.environments.on_device import EnvironmentsOnDevice  # noqa: E402
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions  # noqa: E402
from hybridppo.interfaces import has_policies  # noqa: E402
from hybridppo.runners.device_sampler import DeviceSampler  # noqa: E402
from hybridppo.runners.sampler import LocalFiller, RolloutPlan  # noqa: E402

ENVIRONMENTS: dict[str, Any] = {
    "CartPole-v1": "CartPole-v1",
    "Pendulum-v1": "Pendulum-v1",
    "Catch": Catch,
    "Choices": Choices,
    "Hunt": Hunt,
    "Numbers": Numbers,
}
NUM_ENVS, NUM_STEPS = 3, 40


@pytest.fixture(autouse=True)
def stand_in(second_device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(cuda_building.LAUNCHERS, second.NAME, TwinLauncher)
    monkeypatch.setattr(TwinLauncher, "launches", 0)
    return second_device


class AsOnDevice(Sampler):
    """Samples on the host with the noise that a device would draw."""

    def _begin(self) -> Any:
        seed, buffer = self._plan.noise.integers(2**32, size=2), self._buffers[0]
        is_choice = np.dtype(self._plan.distribution.action_dtype) != np.float32
        for t, row in enumerate(buffer.noise):
            row[:] = noise_of(seed, t, *row.shape, is_choice=is_choice)
        return buffer


def agent_for(environments: Any, observes: Any = "own") -> PPO:
    config = ppo_config(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(8,), critic_observes=observes)
    return PPO(environments.observation_space, environments.action_space, config, seed=3)


def agent_of_policies(environments: Any) -> Policies:
    """An agent for each kind of agents, each with parameters of its own."""
    config = ppo_config(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(8,))
    of_each = PoliciesConfig(dict.fromkeys(environments.definition.policies, config))
    return Policies(
        environments.observation_space, environments.action_space, of_each.with_agents(environments.agents), seed=3
    )


def agent_of_critics(environments: Any) -> Policies:
    """An agent for each kind of agents; each has a critic with other observations."""
    config = ppo_config(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(8,))
    each = {"hunter": replace(config, critic_observes="all"), "prey": replace(config, critic_observes="state")}
    of_each = PoliciesConfig(each).with_agents(environments.agents)
    return Policies(environments.observation_space, environments.action_space, of_each, seed=3)


CRITICS: dict[str, tuple[Any, Any]] = {
    "all": ("all", partial(agent_for, observes="all")),
    "the state": ("state", partial(agent_for, observes="state")),
    "each something else": (
        {name: "all" if name.startswith("hunter") else "state" for name in Hunt.agents}, agent_of_critics
    ),
}  # fmt: skip


def made(env: Any, observes: Any) -> Any:
    options = EnvironmentOptions() if observes == "own" else CriticsOptions(critic_observes=observes)
    return make_environments(env, NUM_ENVS, options, vectorization="compiled")


def device_sampler(
    env: Any,
    device: str,
    num_steps: int = NUM_STEPS,
    record: Any = None,
    agent_for: Any = agent_for,
    observes: Any = "own",
) -> tuple[DeviceSampler, Any]:
    environments: Any = made(env, observes)
    agent = agent_for(environments)
    SingleDevice(device).prepare(agent)
    distribution: Any = agent.distribution
    on_device = EnvironmentsOnDevice(environments, distribution, torch.device(device), num_steps=num_steps)
    plan = RolloutPlan(distribution, np.random.default_rng(1), env_seed=5, num_steps=num_steps)
    sampler = DeviceSampler(on_device, plan, record)
    if has_policies(agent):
        sampler.counts.count_by_policy(agent.columns)
    return sampler, torch_actor(agent.actor, Crossing(torch.device(device), Counters()), 4)


def host_sampler(env: Any, agent_for: Any = agent_for, observes: Any = "own") -> tuple[Sampler, Any]:
    environments: Any = made(env, observes)
    agent = agent_for(environments)
    plan = RolloutPlan(agent.distribution, np.random.default_rng(1), env_seed=5, num_steps=NUM_STEPS)
    sampler = AsOnDevice(LocalFiller(environments, plan), plan)
    if has_policies(agent):
        sampler.counts.count_by_policy(agent.columns)
    return sampler, torch_actor(agent.actor, Crossing(torch.device("cpu"), Counters()), 4)


def on_host(rollout: Any) -> dict[str, Tensor]:
    """Copies of its tensors, because its arrays are filled again."""
    return {name: tensor.cpu().clone() for name, tensor in rollout.columns().items()}


def assert_same(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert tensor.dtype == others[name].dtype, name
        torch.testing.assert_close(tensor, others[name], rtol=0.0, atol=0.0, msg=f"{name} differs")


@pytest.mark.parametrize("name", CRITICS)
def test_critics_see_what_they_see_on_the_host(name: str, stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    observes, agent_for = CRITICS[name]
    ours, acting = device_sampler(Hunt, stand_in, agent_for=agent_for, observes=observes)
    theirs, acting_there = host_sampler(Hunt, agent_for, observes)
    num_finals = 0
    for _ in range(3):
        rollout, expected = on_host(ours.collect(acting)), on_host(theirs.collect(acting_there))
        torch.testing.assert_close(rollout.pop("log_probs"), expected.pop("log_probs"), rtol=0.0, atol=1e-6)
        assert_same(rollout, expected)
        num_finals += len(expected["final_rows"])
        assert ours.state()[1] == theirs.state()[1]
    assert num_finals > 20


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_rollouts_are_what_the_host_samples_with_the_same_noise(
    name: str, stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    ours, acting = device_sampler(ENVIRONMENTS[name], stand_in)
    theirs, acting_there = host_sampler(ENVIRONMENTS[name])
    ended = 0
    for _ in range(4):
        rollout, expected = ours.collect(acting), theirs.collect(acting_there)
        assert {tensor.device.type for tensor in rollout.columns().values()} == {second.NAME}
        assert rollout.version == expected.version == 4
        assert_same(on_host(rollout), on_host(expected))
        assert (ours.counts.env_steps, ours.steps_sampled) == (theirs.counts.env_steps, theirs.steps_sampled)
        state, state_there = ours.state()[1], theirs.state()[1]
        assert state == state_there
        ended += int((expected.terminated | expected.truncated).sum())
    assert ours.counts.statistics.episodes > 0 or name == "Pendulum-v1"
    assert ended > 0 or name == "Pendulum-v1"


def test_nothing_crosses_before_the_rollout_is_filled(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, acting = device_sampler(Hunt, stand_in)
    crossings: list[Any] = []
    compute = second._compute

    def counted(operation: Any, *args: Any, **kwargs: Any) -> Any:
        results = compute(operation, *args, **kwargs)
        tensors = [one for one in (*args, results) if isinstance(one, Tensor)]
        crosses = len({isinstance(tensor, second.SecondTensor) for tensor in tensors}) == 2
        is_number = operation is torch.ops.aten._local_scalar_dense.default
        if (crosses and operation in second._CROSSINGS) or is_number:
            crossings.append(operation)
        return results

    sampler.collect(acting)
    monkeypatch.setattr(second, "_compute", counted)
    sampler.sample_async(acting)
    sampler.wait()
    assert len(crossings) == 1  # the seed of its noise, before the first row
    assert TwinLauncher.launches == 2 * 2 * NUM_STEPS
    crossings.clear()
    sampler.sample_wait()
    assert len(crossings) <= 3  # what was counted, and how many rows there are


def test_every_placement_that_samples_there_gives_the_same(stand_in: str) -> None:
    def trained(placement: Any) -> tuple[Tensor, Any]:
        config = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
        result = hybridppo.train(
            Catch, vectorization="compiled", placement=placement, config=config, total_steps=192, seed=3, progress=False
        )
        return result.agent.parameters.values.detach().cpu().clone(), result.metrics

    alone, metrics = trained(SingleDevice(stand_in))
    assert TwinLauncher.launches == 2 * 48
    assert metrics["bytes_copied"] == 0
    mirrored, metrics = trained(Mirrored(stand_in, stand_in, force_copy=True))
    assert metrics["publishes"] > 0
    apart, metrics = trained(Mirrored(stand_in, "cpu"))
    assert metrics["bytes_copied"] > 0
    assert TwinLauncher.launches == 3 * 2 * 48
    torch.testing.assert_close(mirrored, alone, rtol=0.0, atol=0.0)
    assert apart.shape == alone.shape
    torch.testing.assert_close(apart, alone, rtol=1e-5, atol=1e-6)  # other forms of the same update


# Rows that are recorded


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_replays_fill_what_rows_one_by_one_do(name: str, stand_in: str) -> None:
    record = PretendedRecorder()
    plain, acting = device_sampler(ENVIRONMENTS[name], stand_in)
    recorded, acting_there = device_sampler(ENVIRONMENTS[name], stand_in, record=record)
    for _ in range(4):
        assert_same(on_host(recorded.collect(acting_there)), on_host(plain.collect(acting)))
        assert recorded.state()[1] == plain.state()[1]
    assert record.recordings == 3  # of 16, 16 and 8 rows


def test_a_recording_is_of_parameters_in_one_place(stand_in: str) -> None:
    record = PretendedRecorder()
    sampler, acting = device_sampler("CartPole-v1", stand_in, record=record)
    places = [acting.addresses(), [1], [2], [2], acting.addresses()]
    for place in places:
        acting.addresses = lambda place=place: place
        sampler.collect(acting)
    assert record.recordings == 6  # of two places; where parameters are elsewhere each time, none is worth its while


def test_recorded_rows_that_are_broken_off_go_on(stand_in: str) -> None:
    whole, acting = device_sampler(Hunt, stand_in)
    expected = [on_host(whole.collect(acting)) for _ in range(2)]
    sampler, acting = device_sampler(Hunt, stand_in, record=PretendedRecorder())
    assert_same(on_host(sampler.collect(acting)), expected[0])
    rows: Any = sampler._recorded
    fill = rows.fill

    def stopping(t: int, place: Any) -> int:
        if t == 16:
            sampler.request_stop()
        return int(fill(t, place))

    rows.fill = stopping
    with pytest.raises(Stopped):
        sampler.collect(acting)
    assert sampler._unfinished.filled == 32
    tensors, state = sampler.state()
    other, acting = device_sampler(Hunt, stand_in, record=PretendedRecorder())
    assert other.load_state(tensors, state, env_seed=99) is None
    assert_same(on_host(other.collect(acting)), expected[1])


def test_a_recording_that_fills_nothing_is_an_error(stand_in: str) -> None:
    def empty(function: Any) -> Any:
        function()
        return lambda: None

    sampler, acting = device_sampler("CartPole-v1", stand_in, record=empty)
    with pytest.raises(DeviceError, match="rows 0 to 15 of a rollout were recorded as a CUDA graph"):
        sampler.collect(acting)


@pytest.mark.parametrize("env", [Hunt, Choices], ids=str)
def test_a_rollout_that_was_broken_off_goes_on_elsewhere_as_if_it_had_not_been(
    env: Any, stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, acting = device_sampler(env, stand_in)
    whole.collect(acting)
    expected, next_expected = on_host(whole.collect(acting)), on_host(whole.collect(acting))

    sampler, acting = device_sampler(env, stand_in)
    sampler.collect(acting)
    launch, stop_at = TwinLauncher.launch, TwinLauncher.launches + 2 * 11

    def stopping(self: Any, *arguments: Any) -> None:
        launch(self, *arguments)
        if TwinLauncher.launches == stop_at:
            sampler.request_stop()

    monkeypatch.setattr(TwinLauncher, "launch", stopping)
    with pytest.raises(Stopped):
        sampler.collect(acting)
    assert sampler.is_paused
    tensors, state = sampler.state()
    assert state["under_way"]["filled"] == 11
    other, acting = device_sampler(env, stand_in)
    assert other.load_state(tensors, state, env_seed=99) is None
    assert other.steps_sampled == sampler.steps_sampled > other.counts.env_steps
    assert_same(on_host(other.collect(acting)), expected)
    assert_same(on_host(other.collect(acting)), next_expected)
    assert statistics_of(other) == statistics_of(whole)

    on_the_host, _ = host_sampler(env)
    problem = on_the_host.load_state(tensors, state, env_seed=99)
    assert problem is not None
    assert "not on the host" in problem
    damaged = {**state, "under_way": {**state["under_way"], "noise_seed": [1]}}
    with pytest.raises(ValueError, match="noise_seed"):
        other.load_state(tensors, damaged, env_seed=99)


def statistics_of(sampler: DeviceSampler) -> dict[str, Any]:
    found: dict[str, Any] = sampler.state()[1]["statistics"]
    return found


@pytest.mark.parametrize("env", [Hunt, Choices], ids=str)
def test_what_was_saved_on_a_device_goes_on_on_the_host_and_back(
    env: Any, stand_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    whole, acting = device_sampler(env, stand_in)
    expected = [on_host(whole.collect(acting)) for _ in range(3)]
    sampler, acting = device_sampler(env, stand_in)
    sampler.collect(acting)
    host, acting_there = host_sampler(env)
    assert host.load_state(*sampler.state(), env_seed=99) is None
    assert_same(on_host(host.collect(acting_there)), expected[1])
    back, acting = device_sampler(env, stand_in)
    assert back.load_state(*host.state(), env_seed=99) is None
    assert_same(on_host(back.collect(acting)), expected[2])
    assert statistics_of(back) == statistics_of(whole)


def test_a_rollout_under_way_on_the_host_is_not_ended_on_a_device(stand_in: str) -> None:
    host, acting = host_sampler(Hunt)
    host.sample_async(acting)
    host.request_stop()
    host.pause()
    tensors, state = host.state()
    assert state["under_way"] is not None
    sampler, _ = device_sampler(Hunt, stand_in)
    assert sampler.load_state(tensors, state, env_seed=1) is None  # without a step, it begins in another way
    state["under_way"]["filled"] = 1
    assert "not on a device" in str(sampler.load_state(tensors, state, env_seed=1))


def test_a_run_resumed_is_the_run_that_was_not_stopped(stand_in: str, tmp_path: Path) -> None:
    fixed: Any = {"anneal_learning_rate": False, "anneal_clip_range": False}
    config = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,), **fixed)
    options: dict[str, Any] = {
        "vectorization": "compiled", "placement": SingleDevice(stand_in), "config": config, "seed": 3,
        "progress": False,
    }  # fmt: skip
    whole = hybridppo.train(Catch, total_steps=256, **options)
    hybridppo.train(Catch, total_steps=128, run_dir=tmp_path / "run", **options)
    resumed = hybridppo.resume(tmp_path / "run", env=Catch, total_steps=256, progress=False)
    ours, theirs = (result.agent.parameters.values.cpu() for result in (resumed, whole))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)
    assert resumed.metrics["episode_return_mean"] == whole.metrics["episode_return_mean"]


def test_what_is_not_finite_is_named(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, acting = device_sampler(Hunt, stand_in)
    step = TwinLauncher.step_all

    def spoiling(self: Any, *arguments: Any) -> None:
        step(self, *arguments)
        arguments[7][5, 8, 2] = np.nan  # observations

    monkeypatch.setattr(TwinLauncher, "step_all", spoiling)
    with pytest.raises(EnvError, match=r"environment 1, agent 'prey_1': observation\[2\] is nan"):
        sampler.collect(acting)


@pytest.mark.parametrize("is_absent", [True, False])
def test_zeros_of_absent_agents_are_not_out_of_bounds(
    is_absent: bool, stand_in: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sampler, acting = device_sampler(Hunt, stand_in)
    read, ones = sampler._read, np.ones(sampler._encode.layout.num_numbers, np.float32)

    def spoiled(version: int) -> Any:
        block: Any = sampler._block
        block.observations.fill_(1.5)
        block.observations[-2:, 0] = 0.0
        block.absent[-1] = False
        block.absent[-1, 0] = is_absent
        return read(version)

    monkeypatch.setattr(sampler._encode, "bounds", (ones, 2 * ones))
    monkeypatch.setattr(sampler, "_read", spoiled)
    sampler.collect(acting)
    said = [record.getMessage() for record in caplog.records if "bounds" in record.getMessage()]
    assert [message.partition(",")[0] for message in said] == ["observation[0] was 0.0"] * (not is_absent)


@pytest.mark.parametrize(
    ("config", "placement", "reason"),
    [({"recurrent": "gru"}, {}, "the actor is recurrent"), ({}, {"max_lag": 1}, "sampling and learning overlap")],
)
def test_what_a_device_cannot_sample_crosses_and_is_warned_of(
    config: Any, placement: Any, reason: str, stand_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    where: Any = Mirrored(stand_in, stand_in, **placement) if placement else SingleDevice(stand_in)
    settings = ppo_config(num_envs=2, num_steps=8, num_minibatches=1, hidden_sizes=(4,), **config)
    with caplog.at_level(logging.WARNING):
        hybridppo.train(
            Catch, vectorization="compiled", placement=where, config=settings, total_steps=32, progress=False
        )
    assert TwinLauncher.launches == 0
    assert f"stepped on the CPU, with copies to {stand_in} and back in each step, because {reason}" in caplog.text


@pytest.mark.parametrize("env", [Hunt, Numbers], ids=str)
def test_a_policy_for_each_kind_samples_what_it_does_on_the_host(env: Any, stand_in: str) -> None:
    """This also holds for its counts, and from a saved state."""
    ours, actor = device_sampler(env, stand_in, agent_for=agent_of_policies)
    theirs, their_actor = host_sampler(env, agent_of_policies)

    def compare(sampler: Any) -> None:
        rollout, expected = on_host(sampler.collect(actor)), on_host(theirs.collect(their_actor))
        # Over as many numbers, torch's threads round the last of some otherwise than one thread does.
        torch.testing.assert_close(rollout.pop("log_probs"), expected.pop("log_probs"), rtol=0.0, atol=1e-6)
        assert_same(rollout, expected)

    for _ in range(3):
        compare(ours)
    for name, policy in theirs.counts.by_policy.items():
        found = ours.counts.by_policy[name]
        assert found.agent_steps == policy.agent_steps > 0
        assert found.statistics.episodes == policy.statistics.episodes
        assert found.statistics.return_mean == pytest.approx(policy.statistics.return_mean, nan_ok=True)
        assert found.statistics.length_mean == pytest.approx(policy.statistics.length_mean, nan_ok=True)
    assert ours.counts.env_steps == theirs.counts.env_steps == 3 * NUM_ENVS * NUM_STEPS
    other, _ = device_sampler(env, stand_in, agent_for=agent_of_policies)
    assert other.load_state(*ours.state(), env_seed=99) is None
    compare(other)


def test_several_policies_train_there_and_go_on(stand_in: str, tmp_path: Path) -> None:
    settings = ppo_config(
        num_envs=2, num_steps=8, num_minibatches=1, hidden_sizes=(4,), anneal_learning_rate=False,
        anneal_clip_range=False,
    )  # fmt: skip
    configs = {"hunter": settings, "prey": settings}
    options: dict[str, Any] = {"config": configs, "placement": SingleDevice(stand_in), "seed": 1, "progress": False}
    whole: Any = hybridppo.train(Hunt, total_steps=64, **options)
    assert TwinLauncher.launches == 2 * 32
    hybridppo.train(Hunt, total_steps=32, run_dir=tmp_path / "run", **options)
    resumed: Any = hybridppo.resume(tmp_path / "run", env=Hunt, total_steps=64, progress=False)
    for kind, agent in whole.agents.items():
        ours = resumed.agents[kind].parameters.values.cpu()
        torch.testing.assert_close(ours, agent.parameters.values.cpu(), rtol=0.0, atol=0.0)


class FakeCuda:
    """`numba.cuda`, as far as a launcher uses it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.streams: list[int] = []
        self.gpus: Any = self

    def __getitem__(self, index: int) -> "FakeCuda":
        self.calls.append(("select", index))
        return self

    def __enter__(self) -> None:
        self.calls.append("selected")

    def __exit__(self, *exception: object) -> None:
        self.calls.append("left")

    def external_stream(self, handle: int) -> tuple[str, int]:
        self.streams.append(handle)
        return "stream", handle

    def as_cuda_array(self, tensor: Any) -> Any:
        self.calls.append("array")
        return SimpleNamespace(view=lambda dtype: ("view", dtype))


def test_kernels_go_to_torchs_stream_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, launched = FakeCuda(), []

    class Kernel:
        def __getitem__(self, configuration: Any) -> Any:
            return lambda *arguments: launched.append((configuration, arguments, cuda.calls[-1]))

    module = SimpleNamespace(__file__="/nowhere/a.py", step=Kernel())
    monkeypatch.setattr(cuda_building, "_numba_cuda", lambda device: cuda)
    monkeypatch.setattr(cuda_building, "cuda_module", lambda definition: (module, {"step_all": "step"}, None))
    monkeypatch.setattr(cuda_building, "say", lambda what: None)
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream if device.index == 1 else None)
    launcher = cuda_building.CudaLauncher(Catch, torch.device("cuda:1"))
    assert launcher.array(torch.zeros(1), Catch.state) == ("view", Catch.state)
    launcher.launch("step_all", 5, 128, "a", 3)
    assert launched == [((5, 128, ("stream", 77)), ("a", 3), "selected")]
    assert cuda.calls == [("select", 1), "selected", "array", "left", ("select", 1), "selected", "left"]
    # What is prepared for a launch is kept: another stream alone needs another.
    launcher.launch("step_all", 5, 128, "b", 4)
    stream.cuda_stream = 78
    launcher.launch("step_all", 5, 128, "c", 5)
    assert [arguments for _, arguments, _ in launched] == [("a", 3), ("b", 4), ("c", 5)]
    assert [configuration[2] for configuration, *_ in launched] == [("stream", 77), ("stream", 77), ("stream", 78)]
    assert cuda.streams == [77, 78]


@pytest.fixture
def without_driver() -> None:
    from numba import cuda

    if cuda.is_available():
        pytest.skip("there is a driver")


def test_without_a_compiler_for_the_device_the_error_says_what_to_do(without_driver: None) -> None:
    with pytest.raises(DeviceError, match=r"pip install 'numba-cuda\[cu13\]'.*placement 'hybrid'"):
        cuda_building.CudaLauncher(Catch, torch.device("cuda:0"))


def test_a_numba_that_newer_numpy_breaks_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import cuda

    class WithoutRowStack:
        def find_spec(self, name: str, *rest: object) -> None:
            if name == "numba.cuda.cudaimpl":
                raise AttributeError("module 'numpy' has no attribute 'row_stack'")

    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.delattr(cuda, "cudaimpl", raising=False)
    monkeypatch.delitem(sys.modules, "numba.cuda.cudaimpl", raising=False)
    monkeypatch.setattr(sys, "meta_path", [WithoutRowStack(), *sys.meta_path])
    with pytest.raises(DeviceError, match=r"NumPy .* \(module 'numpy' has no attribute 'row_stack'\): .*numpy<2\.5"):
        cuda_building.CudaLauncher(Catch, torch.device("cuda:0"))
