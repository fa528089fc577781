"""Every placement on a simulated device with queues: who waits for what, and that nobody reads unfinished data."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fake_accelerator import Event, FakeAccelerator, Machine, RaceError, Stream, address_of, pretended_accelerator
from ppo_settings import ppo_config
from safetensors.torch import load_file
from same_bits import values_of
from sampling import collecting
from selection import only_by_default
from torch import Tensor

import hybridppo
from hybridppo import PPO, Migrating, Mirrored, PPOConfig, SingleDevice
from hybridppo.agents.ddpg import DDPG
from hybridppo.agents.ppo import ppo
from hybridppo.auto import auto
from hybridppo.auto.auto import Limits, Search
from hybridppo.auto.trials import Training
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.errors import HybridPPOError
from hybridppo.placements import crossing
from hybridppo.placements.placement import Placement
from hybridppo.spaces.observations import ObservationEncoder

CARTPOLE = gym.make("CartPole-v1").observation_space, gym.make("CartPole-v1").action_space
CONFIG = ppo_config(num_envs=2, num_steps=4, num_epochs=1, num_minibatches=2, hidden_sizes=(4,), fast_updates=False)
EPISODES = replace(CONFIG, num_envs=1, episodes_per_rollout=1, num_epochs=1)
PLACEMENTS: dict[str, Any] = {
    "single": SingleDevice,
    "migrate": lambda device: Migrating("cpu", device),
    "hybrid": lambda device: Mirrored("cpu", device, verify=True),
    "hybrid, every second": lambda device: Mirrored("cpu", device, publish_every=2),
    "a replica on the same device": lambda device: Mirrored(device, device, force_copy=True),
    "overlap": lambda device: Mirrored("cpu", device, max_lag=1),
    "overlap on one device": lambda device: Mirrored(device, device, max_lag=1),
}


@pytest.fixture
def machine(second_device: str) -> Iterator[Machine]:
    with pretended_accelerator() as machine:
        yield machine


def train(
    placement: Any, config: PPOConfig = CONFIG, *, env: Any = "CartPole-v1", updates: int = 2, **options: Any
) -> hybridppo.TrainResult:
    if config.episodes_per_rollout is None:
        goal: dict[str, Any] = {"total_steps": updates * config.batch_size}
    else:
        goal = {"total_steps": 10**6, "total_episodes": updates}
    arguments = {**goal, "seed": 0, "num_workers": 0, "vectorization": "sync", "progress": False, **options}
    return hybridppo.train(env, placement=placement, config=config, **arguments)


@cache
def on_the_cpu(name: str, config: PPOConfig) -> Tensor:
    if name.startswith("overlap"):
        return values_of(train(Mirrored("cpu", "cpu", max_lag=1), config))
    return values_of(train(Mirrored("cpu", "cpu", publish_every=1 + ("second" in name), force_copy=True), config))


def agree(found: Tensor, expected: Tensor, *, exactly: bool) -> None:
    if exactly:
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # rates are rounded for the device


# The result, and that there was no race on the way


@pytest.mark.parametrize(
    ("name", "cuda_graphs"),
    only_by_default(
        [f"{name}, {graphs}" for name, graphs in zip(PLACEMENTS, cycle((True, False)))],
        product(PLACEMENTS, (False, True)),
    ),
)
def test_every_placement_waits_for_what_it_reads(name: str, cuda_graphs: bool, machine: Machine) -> None:
    result = train(PLACEMENTS[name](machine.device), replace(CONFIG, cuda_graphs=cuda_graphs))
    agree(values_of(result), on_the_cpu(name, CONFIG), exactly=not cuda_graphs)
    assert bool(machine.graphs) == cuda_graphs


@pytest.mark.parametrize("max_lag", [0, 1])
def test_rollouts_of_workers_are_copied_before_they_are_written_again(max_lag: int, machine: Machine) -> None:
    result = train(Mirrored("cpu", machine.device, max_lag=max_lag), num_workers=2)
    agree(values_of(result), on_the_cpu("overlap" if max_lag else "hybrid", CONFIG), exactly=True)
    assert machine._locked == [] or all(owner is not None for _, _, owner in machine._locked)  # workers' are unlocked


@pytest.mark.parametrize("sampling", ["cpu", "device"])
def test_rollouts_that_grow_while_the_learner_works(sampling: str, machine: Machine) -> None:
    device = machine.device if sampling == "device" else "cpu"
    result = train(Mirrored(device, machine.device, max_lag=1), replace(EPISODES, cuda_graphs=True))
    agree(values_of(result), on_the_cpu("overlap", EPISODES), exactly=False)


@pytest.mark.parametrize("name", ["hybrid", "overlap", "overlap on one device"])
def test_whoever_does_not_wait_is_found(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Untimed:
        seconds = 0.0

        def __init__(self, *devices: torch.device) -> None:
            pass

        def __enter__(self) -> "Untimed":
            return self

        def __exit__(self, *exception: object) -> None:
            pass

    timed = crossing.CopyTimer

    def timer(*devices: torch.device, **options: Any) -> Any:
        """Copies of single steps have one device, and still wait."""
        return Untimed(*devices) if len(devices) > 1 else timed(*devices, **options)

    for module in ("crossing", "placement"):
        monkeypatch.setattr(f"hybridppo.placements.{module}.CopyTimer", timer)
        monkeypatch.setattr(f"hybridppo.placements.{module}.wait_for", lambda *devices: None)
    placement = PLACEMENTS[name](machine.device)
    placement.verify = False  # which waits, too
    with pytest.raises((RaceError, HybridPPOError, ValueError)):
        train(placement)


# What waits


def test_a_step_on_the_device_waits_once(machine: Machine) -> None:
    agent, placement = PPO(*CARTPOLE, CONFIG), SingleDevice(machine.device)
    placement.prepare(agent)
    observations = np.zeros((CONFIG.num_envs, 4), np.float32)
    with placement.sampling(agent) as actor:
        before = machine.waits
        first = actor(observations).copy()
        assert machine.waits == before + 1
        np.testing.assert_array_equal(actor(observations), first)
    assert placement.counters.bytes_copied == 2 * (observations.nbytes + first.nbytes)


@pytest.mark.parametrize("is_locked", [False, True], ids=["ordinary memory", "page-locked"])
def test_an_inference_waits_for_one_event_and_not_for_the_learner(is_locked: bool, machine: Machine) -> None:
    pixels = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    agent, encode = PPO(pixels, CARTPOLE[1], CONFIG), ObservationEncoder(pixels)
    placement = Mirrored(machine.device, machine.device, max_lag=1)
    placement.prepare(agent)
    rows = np.random.default_rng(0).integers(0, 255, (2, *encode.shape)).astype(encode.dtype)
    if is_locked:
        machine.lock(rows.ctypes.data, rows.nbytes)
    with placement.sampling(agent) as actor:
        actor(rows)
        learners, own = machine.streams
        learned = torch.zeros(1, device=machine.device)
        learned.add_(1.0)
        over, num_locked, bytes_before = machine.over[learners], len(machine._locked), placement.counters.bytes_copied
        machine.log.clear()
        outputs = actor(rows)
    assert {stream for _, _, stream in machine.log} == {own}
    operations = [str(operation).removesuffix(".default") for _, operation, _ in machine.log]
    assert operations[:2] == ["aten.empty_strided", "aten.copy_"]
    assert operations[-2:] == ["aten.copy_", "event"]
    assert not {"event", "stream"} & {*operations[:-1]}
    assert over == machine.over[learners] < learners.given  # the learner's work is not waited for
    assert len(machine._locked) == num_locked + (not is_locked)  # one copy to page-locked memory
    assert rows.dtype == np.uint8
    assert placement.counters.bytes_copied - bytes_before == rows.nbytes + outputs.nbytes


def test_acting_for_workers_waits_in_its_own_stream_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    page_locked = FakeAccelerator.page_locked
    monkeypatch.setattr(FakeAccelerator, "page_locked", lambda *each: copies.append(each) or page_locked(*each))
    updates = 3
    train(Mirrored(machine.device, "cpu"), num_workers=2, updates=updates)
    inferences = updates * CONFIG.num_steps * 2  # for a worker each
    assert len(copies) == updates * 2  # for outputs: observations lie in page-locked memory
    copies.clear()
    machine.log.clear()
    train(Mirrored(machine.device, machine.device, max_lag=1), num_workers=2, updates=updates)
    waits = [
        (stream.name, what)
        for thread, what, stream in machine.log
        if isinstance(what, str) and thread.startswith("hybridppo-sampler")
    ]
    assert waits == [("stream 1", "event")] * inferences


def test_a_rollouts_way_to_the_device_waits_once(machine: Machine) -> None:
    # A tensor whose memory is not page-locked would be copied while the host waits.
    agent, placement = PPO(*CARTPOLE, CONFIG), Mirrored("cpu", machine.device)
    placement.prepare(agent)
    rollout = rollout_of(agent, placement)
    before = machine.waits
    there = placement.to_learner(rollout)
    assert machine.waits == before + 1
    for name, tensor in there.columns().items():
        assert tensor.device == machine.device
        assert torch.equal(tensor.cpu(), rollout.columns()[name])


def test_an_error_in_a_copy_is_the_only_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(error: str) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(Event, "synchronize", lambda event: copy("the second error"))
    with pytest.raises(RuntimeError, match="the first error"), crossing.CopyTimer(machine.device):
        copy("the first error")


def waits_of_updates(kind: type[Any], machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on, count how often each update of agents of a kind waits."""
    waits: list[int] = []
    update = kind.update

    def counted(agent: Any, learned_from: Any) -> Any:
        before = machine.waits
        metrics = update(agent, learned_from)
        waits.append(machine.waits - before)
        return metrics

    monkeypatch.setattr(kind, "update", counted)
    return waits


@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("target_kl", [None, 1e9])
def test_an_update_waits_once(
    cuda_graphs: bool, target_kl: float | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = waits_of_updates(ppo.PPO, machine, monkeypatch)
    train(
        Mirrored("cpu", machine.device),
        replace(CONFIG, cuda_graphs=cuda_graphs, target_kl=target_kl, num_epochs=2),
        updates=3,
    )
    expected = 1 if target_kl is None else 3  # and once a pass
    assert (waits[0], waits[2]) == (expected, expected)  # in the second, steps are recorded


class Ragged(gym.Env[Any, Any]):
    """Episodes of three steps, which are not a multiple of a sequence's length."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        self._left = 3
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32), float(action[0]), False, self._left == 0, {}


KINDS_OF_UPDATES: dict[str, tuple[dict[str, Any], int]] = {
    "normalised": ({"normalize_observations": True, "normalize_rewards": True}, 1),
    "a pool": ({"pool_size": 2, "normalize_rewards": True}, 1),
    "squashed": ({"squash_actions": True}, 1),
    "squashed noise of the state": ({"squash_actions": True, "use_sde": True}, 1),
    "a memory": ({"recurrent": "gru", "recurrent_size": 4, "sequence_length": 2}, 2 + 2),
    "a memory, with shorter sequences": ({"recurrent": "lstm", "recurrent_size": 4, "sequence_length": 3}, 2 + 2),
}
"""Configurations, and how often an update of two epochs waits with them."""


@pytest.mark.parametrize(
    ("kind", "cuda_graphs"),
    only_by_default(
        (
            "normalised, True",
            "a pool, False",
            "squashed, False",
            "squashed noise of the state, True",
            "a memory, False",
            "a memory, with shorter sequences, False",
        ),
        # Steps on sequences are not recorded.
        [each for each in product(KINDS_OF_UPDATES, (False, True)) if each[1] is False or "memory" not in each[0]],
    ),
)
def test_updates_of_every_kind_wait_as_often_as_is_said(
    kind: str, cuda_graphs: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, expected = KINDS_OF_UPDATES[kind]
    waits = waits_of_updates(ppo.PPO, machine, monkeypatch)
    config = replace(CONFIG, cuda_graphs=cuda_graphs, num_epochs=2, **fields)
    result = train(Mirrored("cpu", machine.device), config, env=Ragged, updates=4)
    assert waits[-1] == expected
    found = values_of(result)
    monkeypatch.undo()
    expected_values = values_of(train(SingleDevice("cpu"), replace(config, cuda_graphs=False), env=Ragged, updates=4))
    torch.testing.assert_close(found, expected_values, rtol=1e-4, atol=1e-5)  # NumPy's actors, recorded rates
    assert bool(machine.graphs) == cuda_graphs


@pytest.mark.parametrize("kind", ["a memory", "squashed noise of the state"])
def test_states_and_noise_of_workers_go_to_the_device_and_back(kind: str, machine: Machine) -> None:
    config = replace(CONFIG, num_envs=3, num_minibatches=1, **KINDS_OF_UPDATES[kind][0])
    placements = Mirrored(machine.device, machine.device, max_lag=1), Mirrored("cpu", "cpu", max_lag=1)
    found, expected = (
        values_of(train(placement, config, env=Ragged, updates=3, num_workers=workers))
        for placement, workers in zip(placements, (2, 0), strict=True)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("place", "expected", "cuda_graphs"),
    only_by_default(
        ("learner, 0, True", "host, 1, False"),
        [(*place, graphs) for place, graphs in product((("learner", 0), ("host", 1)), (False, True))],
    ),
)
def test_minibatches_of_a_replay_buffer_are_drawn_without_a_wait(
    place: Any, expected: int, cuda_graphs: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = waits_of_updates(DDPG, machine, monkeypatch)
    config = hybridppo.TD3Config(
        num_envs=2, train_frequency=2, gradient_steps=2, batch_size=4, buffer_size=40, learning_starts=8,
        steps_per_iteration=8, n_steps=2, hidden_sizes=(4,), buffer_on=place, fast_updates=False,
        cuda_graphs=cuda_graphs,
    )  # fmt: skip
    arguments: dict[str, Any] = {"total_steps": 32, "seed": 0, "num_workers": 0, "vectorization": "sync"}
    results = [
        hybridppo.train(Ragged, config=config, placement=placement, progress=False, **arguments)
        for placement in (Mirrored("cpu", machine.device), SingleDevice("cpu"))
    ]
    # Recording waits, in the second update; what is moved from the host is copied by the placement, which waits.
    assert waits[2:6] == [expected] * 4
    agree(*map(values_of, results), exactly=not cuda_graphs)  # recorded learning rates are float32
    # A step of the critics alone, and one that the actor's follows; every later one is a replay.
    assert len(machine.graphs) == 2 * cuda_graphs
    assert results[0].metrics.get("graph_replays", 0) == 2 * 2 * cuda_graphs


def test_an_environment_of_tensors_is_stepped_with_its_device_selected(machine: Machine) -> None:
    selected: list[bool] = []

    class Noting(TorchCartPole):
        def step(self, actions: Tensor) -> Any:
            selected.append(machine.is_selected)
            return super().step(actions)

        def reset(self, **options: Any) -> Any:
            selected.append(machine.is_selected)
            return super().reset(**options)

    hybridppo.train(
        Noting, env_kwargs={"device": str(machine.device)}, placement=SingleDevice(machine.device),
        config=CONFIG, total_steps=2 * CONFIG.batch_size, seed=0, progress=False,
    )  # fmt: skip
    assert selected == [True] * (1 + 2 * CONFIG.num_steps)


def test_an_update_that_ends_early_leaves_the_generator_where_the_cpu_does(machine: Machine) -> None:
    config = replace(CONFIG, target_kl=1e-9, num_epochs=4)
    states = [
        train(placement, config).agent.state()[1]["order"]
        for placement in (SingleDevice("cpu"), Mirrored("cpu", machine.device))
    ]
    assert states[0] == states[1]


def test_the_sampler_of_one_device_has_a_queue_of_its_own(machine: Machine) -> None:
    train(Mirrored(machine.device, machine.device, max_lag=1))
    streams = {
        is_sampler: {
            stream for thread, _, stream in machine.log if thread.startswith("hybridppo-sampler") == is_sampler
        }
        for is_sampler in (True, False)
    }
    assert len(streams[True]) == 1
    assert not streams[True] & streams[False]


# Recordings


def test_all_recordings_have_one_stream_and_their_device_selected(machine: Machine) -> None:
    config = replace(CONFIG, cuda_graphs=True, num_minibatches=1)
    environments = make_environments("CartPole-v1", 2)
    agent = hybridppo.PPO(environments.observation_space, environments.action_space, config)
    placement = SingleDevice(machine.device)
    placement.prepare(agent)
    for num_steps in (4, 5) * 2:
        agent.update(placement.to_learner(rollout_of(agent, placement, num_steps)))
    assert len(machine.graphs) == 2
    (stream,) = {graph.stream for graph in machine.graphs}
    assert stream is not machine.streams[0]
    assert {stream for _, _, stream in machine.log} == {machine.streams[0], stream}  # warm-ups have that of recordings
    assert all(graph.operations for graph in machine.graphs)


def test_rates_on_the_device_are_forgotten_with_it(machine: Machine) -> None:
    agent = train(SingleDevice(machine.device), replace(CONFIG, cuda_graphs=True)).agent
    assert agent.optimizer._rates_on_device
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    assert agent.update(rollout_of(agent, placement))["grad_norm"] > 0
    assert not agent.optimizer._rates_on_device


def rollout_of(agent: hybridppo.PPO, placement: Placement, num_steps: int = 8) -> Any:
    environments = make_environments("CartPole-v1", 2, vectorization="sync")
    return collecting(agent, environments, placement, num_steps=num_steps)()


def assert_the_device_is_tried(env: str, config: PPOConfig, machine: Machine, patch: pytest.MonkeyPatch) -> None:
    """By a search with the device as a candidate."""
    patch.setattr(auto, "MAX_SHARE", 100.0)
    patch.setattr(auto, "MAX_SECONDS", 60.0)  # however busy the machine is
    device = str(machine.device)
    found = Search(Training(env, config, EnvironmentOptions()), Limits(10**7, cores=2, accelerator=device))
    found.run()
    assert not any("cuda" in reason or "hybrid" in reason for reason in found.left_out)
    assert {"cpu", "hybrid", "cuda"} <= set(found.trials)


def test_auto_tries_the_device_with_recorded_steps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, cuda_graphs=True, num_steps=4, num_epochs=1)
    assert_the_device_is_tried("CartPole-v1", config, machine, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_OF_UPDATES)
def test_auto_tries_the_device_whatever_is_learned(
    kind: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, num_steps=8, cuda_graphs="memory" not in kind, **KINDS_OF_UPDATES[kind][0])
    assert_the_device_is_tried("Pendulum-v1", config, machine, monkeypatch)


# Gaps between flat parameters


def test_files_know_no_gaps(machine: Machine, tmp_path: Path) -> None:
    machine.alignment = 4
    result = train(Mirrored("cpu", machine.device), run_dir=tmp_path / "gaps")
    assert len(result.agent.parameters.values) > len(values_of(result))
    torch.testing.assert_close(values_of(result), on_the_cpu("hybrid", CONFIG), rtol=1e-5, atol=1e-6)
    train(Mirrored("cpu", "cpu", force_copy=True), run_dir=tmp_path / "none")
    shapes = [
        {name: tensor.shape for name, tensor in load_file(newest(tmp_path / run)).items()} for run in ("gaps", "none")
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("alignments", [(4, 1), (1, 4), (4, 4)])
def test_a_run_goes_on_with_gaps_or_without(alignments: tuple[int, int], machine: Machine, tmp_path: Path) -> None:
    machine.alignment = alignments[0]
    placement = Mirrored("cpu", machine.device, publish_every=2)
    train(placement, run_dir=tmp_path / "run", updates=1)
    machine.alignment = alignments[1]
    result = hybridppo.resume(tmp_path / "run", total_steps=2 * CONFIG.batch_size, placement=placement, progress=False)
    torch.testing.assert_close(values_of(result), on_the_cpu("hybrid, every second", CONFIG), rtol=1e-5, atol=1e-6)


def newest(run_dir: Path) -> Path:
    return max((run_dir / "checkpoints").rglob("*.safetensors"))


# That the pretended device finds what it is to find


@pytest.fixture
def parts(machine: Machine) -> tuple[Machine, Tensor, Stream]:
    tensor = torch.ones(3).to(machine.device)
    return machine, tensor, Stream(machine, "another")


def test_reading_what_another_stream_writes_is_a_race(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, stream = parts
    machine.streams[0].synchronize()
    tensor.add_(1.0)
    with machine.using(stream), pytest.raises(RaceError, match="reads"):
        tensor + 1.0
    stream.wait_stream(machine.streams[0])
    with machine.using(stream):
        tensor + 1.0
    with pytest.raises(RaceError, match="writes"):
        tensor.add_(1.0)
    stream.synchronize()
    tensor.add_(1.0)


def test_memory_that_was_freed_is_new_to_the_next_stream(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, _, stream = parts
    addresses: list[set[int]] = []
    for current in (machine.streams[0], stream):
        with machine.using(current):
            tensors = [torch.empty(3, device=machine.device).copy_(torch.ones(3), non_blocking=True) for _ in range(50)]
        addresses.append({address_of(tensor) for tensor in tensors})
        del tensors
    assert addresses[0] & addresses[1]


def test_page_locked_memory_is_nonsense_until_somebody_waits(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, _ = parts
    host = crossing.accelerator_of(machine.device).page_locked(torch.zeros(3))
    host.copy_(tensor, non_blocking=True)
    assert host.isnan().all()
    machine.streams[0].synchronize()
    assert host.tolist() == [1.0, 1.0, 1.0]


def test_page_locked_memory_must_stay_until_it_was_read(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, _ = parts
    host = crossing.accelerator_of(machine.device).page_locked(torch.zeros(3))
    tensor.copy_(host, non_blocking=True)
    host.fill_(2.0)
    with pytest.raises(RaceError, match="while a copy was reading"):
        machine.streams[0].synchronize()


def test_what_waits_cannot_be_recorded(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, _, stream = parts
    gpu = crossing.accelerator_of(machine.device)
    with (
        gpu.selected(),
        pytest.raises(RuntimeError, match="capturing"),
        gpu.recording(gpu.graph(), pool=None, stream=stream),
    ):
        gpu.wait()
    with pytest.raises(RuntimeError, match="another device"), gpu.recording(gpu.graph(), pool=None, stream=stream):
        pass


def test_a_replay_finds_its_addresses(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, stream = parts
    gpu, graph = (
        crossing.accelerator_of(machine.device),
        crossing.accelerator_of(machine.device).graph(),
    )
    stream.wait_stream(machine.streams[0])
    with gpu.selected(), gpu.recording(graph, pool=None, stream=stream):
        doubled = 2.0 * tensor
    tensor.fill_(5.0)
    graph.replay()
    assert doubled.cpu().tolist() == [10.0, 10.0, 10.0]


def test_what_has_to_be_known_on_the_host_is_waited_for(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, stream = parts
    gpu, mask = crossing.accelerator_of(machine.device), tensor > 0.0
    told: dict[str, Any] = {
        "a number": lambda: float(tensor[0]),
        "a truth": lambda: torch.equal(tensor, tensor),
        "where": lambda: mask.nonzero(),
        "chosen by a mask": lambda: tensor[mask],
        "sent from ordinary memory": lambda: tensor.copy_(torch.ones(3)),
    }
    for name, call in told.items():
        before = machine.waits
        call()
        assert machine.waits == before + 1, name
        stream.wait_stream(machine.streams[0])
        with (
            gpu.selected(),
            pytest.raises(RuntimeError, match="capturing"),
            gpu.recording(gpu.graph(), pool=None, stream=stream),
        ):
            call()
    before = machine.waits
    tensor.index_select(0, torch.zeros(1, dtype=torch.int64).to(machine.device))
    assert machine.waits == before + 1  # that of the copy
    for call in (lambda: tensor.masked_fill(mask, 2.0), lambda: tensor.sort(), lambda: torch.where(mask, tensor, 0.0)):
        call()
    assert machine.waits == before + 1


def test_an_event_that_was_not_waited_for_tells_no_time(parts: tuple[Machine, Tensor, Stream]) -> None:
    machine, tensor, _ = parts
    first, last = Event(), Event()
    first.record(machine.streams[0])
    tensor.add_(1.0)
    last.record(machine.streams[0])
    with pytest.raises(AssertionError, match="has not come to pass"):
        first.elapsed_time(last)
    machine.streams[0].synchronize()
    assert first.elapsed_time(last) == 1.0


def test_placements_know_nothing_of_the_pretended_device() -> None:
    assert "second" not in crossing.accelerator_of.__globals__["KINDS"]
    assert isinstance(SingleDevice("cpu"), Placement)
