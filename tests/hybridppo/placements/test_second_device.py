"""Everything that learns, under every placement, on a device whose tensors the CPU cannot reach (second_device.py).

    pytest tests/hybridppo/placements/test_second_device.py

Results are the CPU's bit for bit, and a tensor on the wrong device is an error. To add a placement, an agent or a kind
of observation or action, add a line to `PLACEMENTS` or `WORKS`.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import second_device as second
import torch
from handmade_agents import OBSERVATIONS, HandmadeAgent
from ppo_settings import ppo_config
from same_bits import assert_same, state_of
from selection import only_by_default
from stop_after import interrupt_at_call
from torch import Tensor, nn
from toy_agents import Matching
from toy_environments import Catch, HighestAllowed, ScriptedEnv, short_pendulum

import hybridppo
from hybridppo import DeviceError, Migrating, Mirrored, PPOConfig, SingleDevice, TrainingError
from hybridppo.agents import PPO
from hybridppo.agents.agent import OptimizationLoop
from hybridppo.agents.ppo import ppo as ppo_module
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.agents.recorded_step import RecordedStep
from hybridppo.auto.auto import PlacementOptions
from hybridppo.distributions.categorical import Categorical
from hybridppo.networks.actors import twin_of
from hybridppo.networks.parameters import bind
from hybridppo.placements import crossing
from hybridppo.placements.crossing import Crossing, available_device
from hybridppo.placements.placement import Placement, placement_from_settings
from hybridppo.run_directory.checkpoints import load_latest

PLACEMENTS: dict[str, Callable[[str, str], Placement]] = {
    "single": lambda here, there: SingleDevice(there),
    "migrating": lambda here, there: Migrating(here, there, force_copy=True),
    "migrating, sampling there": lambda here, there: Migrating(there, here, force_copy=True),
    "mirrored": lambda here, there: Mirrored(here, there, force_copy=True, verify=True),
    "mirrored, sampling there": lambda here, there: Mirrored(there, here, force_copy=True, verify=True),
    "mirrored on one": lambda here, there: Mirrored(there, there, force_copy=True),
    "every second": lambda here, there: Mirrored(here, there, force_copy=True, publish_every=2),
    "overlapping": lambda here, there: Mirrored(here, there, max_lag=1),
    "overlapping, sampling there": lambda here, there: Mirrored(there, here, max_lag=1),
}
"""Functions of the CPU's name and the second device's. With the CPU for both, they give the expected results."""

SMALL = ppo_config(
    num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-2, fast_updates=False
)


@dataclass(frozen=True)
class Work:
    """What is learned, and with which configuration."""

    env: Any
    config: PPOConfig = SMALL
    options: dict[str, Any] = field(default_factory=dict)


WORKS = {
    "discrete actions": Work("CartPole-v1"),
    "Gaussian actions": Work(short_pendulum),
    "images": Work(Catch),
    "masks": Work(HighestAllowed, options={"action_masks": True}),
    "whole episodes": Work(
        lambda: HighestAllowed(observation_space=gym.spaces.Box(0.0, 1.0, (2,))),
        replace(SMALL, num_envs=1, episodes_per_rollout=2),
        {"action_masks": True},
    ),
    "agents that leave": Work(partial(Matching, masks=True), options={"action_masks": True}),
    "final observations": Work(lambda: ScriptedEnv(((3, "truncated"), (5, "terminated")))),
    "normalised": Work(
        short_pendulum, replace(SMALL, normalize_observations=True, normalize_rewards=True)
    ),
    "a memory": Work(
        lambda: ScriptedEnv(((3, "truncated"), (5, "terminated"))),
        replace(SMALL, recurrent="lstm", recurrent_size=4, sequence_length=3, normalize_observations=True),
    ),
    "another memory": Work(Catch, replace(SMALL, recurrent="gru", recurrent_size=4, sequence_length=8)),
    "noise of the state": Work(short_pendulum, replace(SMALL, use_sde=True, sde_sample_freq=3, log_std_init=-1.0)),
    "stacks of frames": Work(short_pendulum, replace(SMALL, normalize_observations=True), {"frame_stack": 3}),
    "stacks of images": Work(Catch, options={"frame_stack": 2}),
    "a shared trunk": Work(Catch, replace(SMALL, shared_trunk=True, convolutions="impala", layer_norm=True)),
    "other settings": Work(
        "CartPole-v1",
        replace(
            SMALL, num_epochs=2, critic_learning_rate=1e-3, anneal_clip_range=True, clip_range_vf=None, target_kl=1e-3,
            normalize_advantage=False, activation="relu",
        ),
    ),
}  # fmt: skip
ITERATIONS = 3
HERE = "cpu"


def train(work: Work, placement: Placement, **options: Any) -> tuple[Any, list[Any]]:
    """A short run by turns, in this process and thread, and its metrics by iteration, without times and copies."""
    history: list[Any] = []
    arguments = {"total_steps": ITERATIONS * 16, "vectorization": "sync", "num_workers": 0, **work.options, **options}
    result = hybridppo.train(
        work.env,
        seed=3,
        placement=placement,
        config=work.config,
        progress=False,
        on_interrupt="return",
        on_iteration=lambda metrics: history.append(
            {k: v for k, v in metrics.items() if "second" not in k and k not in ("publishes", "bytes_copied")}
        ),
        **arguments,
    )
    return result, history


@pytest.fixture(autouse=True)
def _acting_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's actors round differently from torch's, and there are none on the second device."""
    monkeypatch.setattr(crossing, "twin_of", lambda network: None)


# The result


LATE = ("every second", "overlapping", "overlapping, sampling there")
"""Placements that sample with older parameters; all others give the same result."""


@cache
def on_the_cpu(work: str, placement: str) -> tuple[Any, list[Any]]:
    return train(WORKS[work], PLACEMENTS[placement](HERE, HERE), evaluation_episodes=2)


SAMPLED_IN_THEIR_OWN_WAY = (
    "Gaussian actions", "images", "masks", "normalised", "a memory", "noise of the state", "stacks of frames",
    "stacks of images",
)  # fmt: skip


def combinations() -> Iterator[Any]:
    """The first work under every placement; of the others, the default tests try what learns or samples there."""
    for work, placement in product(WORKS, PLACEMENTS):
        is_quick = work == next(iter(WORKS)) or placement == "migrating"
        is_quick |= placement == "mirrored, sampling there" and work in SAMPLED_IN_THEIR_OWN_WAY
        yield pytest.param(work, placement, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("work", "placement"), list(combinations()))
def test_training_and_evaluation_give_what_they_give_on_the_cpu(work: str, placement: str, second_device: str) -> None:
    made = PLACEMENTS[placement](HERE, second_device)
    result, history = train(WORKS[work], made, evaluation_episodes=2)
    expected, expected_history = on_the_cpu(work, placement if placement in LATE else "single")
    assert result.agent.parameters.values.device == made.learning_device
    if "memory" in work:  # torch's kernels of recurrent layers on a CPU round in another way
        torch.testing.assert_close(state_of(result.agent), state_of(expected.agent), rtol=1e-3, atol=1e-5)
        for metrics, expected_metrics in zip(history, expected_history, strict=True):
            assert metrics == pytest.approx(expected_metrics, rel=1e-3, abs=1e-5, nan_ok=True)
    else:
        assert_same(state_of(result.agent), state_of(expected.agent))
        np.testing.assert_equal(history, expected_history)  # until an episode has ended, its mean is not a number
    assert result.evaluation == expected.evaluation


@pytest.mark.parametrize("work", WORKS)
def test_agents_act_and_load_on_the_cpu(work: str, tmp_path: Path, second_device: str) -> None:
    # One update, and whole episodes as long as they take: what is learned is looked at above.
    agent = train(WORKS[work], SingleDevice(second_device), total_steps=16, run_dir=tmp_path / "run")[0].agent
    loaded = hybridppo.load(tmp_path / "run")
    assert {tensor.device for tensor in loaded.state()[0].values()} == {torch.device(HERE)}
    assert_same(loaded.state()[0], state_of(agent))
    make = WORKS[work].env
    env = gym.make(make) if isinstance(make, str) else make()
    if "frame_stack" in WORKS[work].options:
        env = hybridppo.FrameStack(env, WORKS[work].options["frame_stack"])
    observation, info = env.reset(seed=0)
    space = env.action_space
    if not isinstance(env, gym.Env):  # of several agents: one of them
        name = env.agents[0]
        observation, info, space = observation[name], info[name], env.action_space(name)
    mask, state = info.get("action_mask"), None
    for _ in range(2):
        action, following = agent.act(observation, action_mask=mask, state=state)
        again, same = loaded.act(observation, action_mask=mask, state=state)
        np.testing.assert_array_equal(action, again)
        if following is not None:  # a device's cell may add in another order than the CPU's
            np.testing.assert_allclose(following, same, rtol=1e-5)
        state = following
    assert space.contains(agent.act(observation, False, mask, state)[0])


@pytest.mark.parametrize("placement", ["mirrored", "overlapping"])
def test_worker_processes_sample_for_a_learner_there(
    placement: str, monkeypatch: pytest.MonkeyPatch, second_device: str
) -> None:
    monkeypatch.setattr(crossing, "twin_of", twin_of)  # workers have no other
    result, history = train(WORKS["discrete actions"], PLACEMENTS[placement](HERE, second_device), num_workers=1)
    expected, expected_history = train(WORKS["discrete actions"], PLACEMENTS[placement](HERE, HERE), num_workers=1)
    assert_same(state_of(result.agent), state_of(expected.agent))
    np.testing.assert_equal(history, expected_history)


def test_recorded_steps_leave_nothing_on_the_cpu(monkeypatch: pytest.MonkeyPatch, second_device: str) -> None:
    # Replayed by being run again: there are no graphs here, but all that a graph would hold.
    monkeypatch.setattr(ppo_module, "recorder_for", lambda agent: lambda step: step)
    work = WORKS["other settings"]
    result, expected = (train(work, Mirrored(HERE, device))[0].agent for device in (second_device, HERE))
    assert isinstance(result.loop().whole_step, RecordedStep)
    assert_same(state_of(result), state_of(expected))


def test_divergence_is_explained_there(second_device: str) -> None:
    work = Work("CartPole-v1", replace(SMALL, learning_rate=1e30))
    messages = []
    for device in (second_device, HERE):
        with pytest.raises(TrainingError, match="the first quantity that is not finite") as raised:
            train(work, Mirrored(HERE, device))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


# What crosses


def test_crossings_are_counted(second_device: str) -> None:
    counted = {}
    for name, make in PLACEMENTS.items():
        placement = make(HERE, second_device)
        actor = train(WORKS["discrete actions"], placement)[0].agent.actor
        counted[name] = placement.counters.publishes, placement.counters.bytes_copied
        assert placement.counters.seconds_copying > 0
    model = sum(parameter.nbytes for parameter in actor.parameters())
    # Of 8 steps in 2 environments: a state of 4 numbers for the actor, 2 logits back.
    steps = ITERATIONS * 8 * 2 * 4 * (4 + 2)
    # Observations and the last; actions of 8 bytes, log-probabilities and rewards of 4, two ends, a row's number of 8.
    rollouts = ITERATIONS * (9 * 2 * 4 * 4 + 8 * 2 * (8 + 4 + 4 + 1 + 1 + 8))
    assert counted == {
        "single": (0, steps + rollouts),
        "migrating": (3, 6 * model + rollouts),
        "migrating, sampling there": (3, 6 * model + steps),
        "mirrored": (3, 3 * model + rollouts),
        "mirrored, sampling there": (3, 3 * model + steps),
        "mirrored on one": (3, 3 * model + steps + rollouts),
        "every second": (2, 2 * model + rollouts),
        "overlapping": (3, 3 * model + rollouts),  # the last for the rollout of a longer training
        "overlapping, sampling there": (3, 3 * model + steps),
    }


def test_the_host_waits_for_the_device(second_device: str) -> None:
    device = torch.device(second_device)
    agent, placement = HandmadeAgent(), Mirrored(HERE, device)
    placement.prepare(agent)
    before = second.Module.waits
    with placement.learning(agent):
        pass
    assert second.Module.waits == before + 1
    agent.change()
    with placement.sampling(agent):
        assert second.Module.waits == before + 2  # the published parameters are there
    Crossing(device, placement.counters).to_host(torch.zeros(1, device=device))
    assert second.Module.waits == before + 3


# Agents made by hand


def sampled(placement: Placement) -> list[np.ndarray]:
    """The actor's outputs between changes; the agent must be whole after each."""
    torch.manual_seed(0)
    agent, outputs = HandmadeAgent(), []
    placement.prepare(agent)
    parameters = list(agent.actor.parameters())
    for _ in range(4):
        with placement.sampling(agent) as actor:
            outputs.append(actor(OBSERVATIONS).copy())
        agent.change()
        assert {tensor.device for tensor in agent.tensors()} == {placement.learning_device}
    assert all(one is other for one, other in zip(agent.actor.parameters(), parameters, strict=True))
    return outputs


@pytest.mark.parametrize("name", PLACEMENTS)
def test_parameters_and_buffers_reach_the_sampler_and_the_agent_stays_whole(name: str, second_device: str) -> None:
    placement = PLACEMENTS[name](HERE, second_device)
    every, outputs, expected = getattr(placement, "publish_every", 1), sampled(placement), sampled(SingleDevice(HERE))
    assert not any((one == other).any() for one, other in pairwise(expected))
    for i, output in enumerate(outputs):
        np.testing.assert_array_equal(output, expected[i - i % every])


def test_migrating_brings_home_what_changed_also_when_sampling_fails(second_device: str) -> None:
    agent, placement = HandmadeAgent(), Migrating(HERE, second_device)
    placement.prepare(agent)
    with placement.sampling(agent):
        assert {tensor.device.type for tensor in agent.actor.state_dict().values()} == {"cpu"}
        agent.actor.scale += 4.0  # as a normalisation would
    with pytest.raises(ZeroDivisionError), placement.sampling(agent):
        raise ZeroDivisionError
    assert agent.actor.scale.item() == 5.0
    agent.change()
    assert {str(tensor.device) for tensor in agent.tensors()} == {second_device}


def test_what_a_tensor_is_bound_to_stays_what_it_is(second_device: str) -> None:
    tensors = [torch.ones(2), nn.Parameter(torch.ones(2))]
    for tensor in tensors:
        storage = torch.zeros(2, device=second_device)
        bind(tensor, storage)
        tensor.data += 1.0
        assert str(tensor.device) == str(storage.device) == second_device
        assert tensor.tolist() == storage.tolist() == [1.0, 1.0]
    assert [(isinstance(tensor, nn.Parameter), tensor.requires_grad) for tensor in tensors] == [
        (False,) * 2,
        (True,) * 2,
    ]


def test_parameters_go_there_and_back(second_device: str) -> None:
    agent = HandmadeAgent()
    parameters, before = list(agent.actor.parameters()), agent.parameters.values.detach().clone()
    for device in (second_device, HERE):
        SingleDevice(device).prepare(agent)
        assert {str(tensor.device) for tensor in agent.tensors()} == {device}
        agent.parameters.values.data.mul_(2.0)  # which all views show
        assert torch.equal(agent.actor.linear.weight.cpu(), agent.parameters.of("actor")[:4].view(2, 2).cpu())
        agent.actor(torch.ones(1, 2, device=device)).sum().backward()
        assert agent.parameters.gradient.count_nonzero() == 6
    assert torch.equal(agent.parameters.values.detach(), 4.0 * before)
    assert all(one is other for one, other in zip(agent.actor.parameters(), parameters, strict=True))


# Stopping and resuming


STOPS = {"in a rollout": (Categorical, "sample", 11), "in an update": (OptimizationLoop, "step", 4)}
"""For each stop, a method and the number of its call with a signal; both are in the second iteration."""
LATER = (OptimizationLoop, "step", 1)
ROUTES: dict[str, list[str]] = {  # the placements before and after a stop
    **{name: [name, name] for name in PLACEMENTS},
    "there, here": ["mirrored", "cpu"],
    "here, there": ["cpu", "mirrored"],
    "there, here, there": ["single", "cpu", "migrating"],
}
MAKERS: dict[str, Any] = {**PLACEMENTS, "cpu": lambda here, there: SingleDevice(here)}
SAVED = ("actor", "critic", "optimizer", "sampler")


def assert_saved_alike(run_dir: Path, expected: Path) -> None:
    found, wanted = (load_latest(path / "checkpoints")[1] for path in (run_dir, expected))
    assert_same(*({n: t for n, t in one.tensors.items() if n.partition(".")[0] in SAVED} for one in (found, wanted)))
    assert found.state["agent"] == wanted.state["agent"]
    assert found.state["sampler"]["noise"] == wanted.state["sampler"]["noise"]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory, second_device: str) -> Callable[[str], Path]:
    """The directory of a run with a placement, on the CPU alone."""

    @cache
    def run_dir(name: str) -> Path:
        path = tmp_path_factory.mktemp(name) / "expected"
        train(WORKS["discrete actions"], MAKERS[name](HERE, HERE), run_dir=path)
        return path

    return run_dir


SOME_STOPS = [f"{route}, {stop}" for route, stop in zip(ROUTES, cycle(STOPS), strict=False)]
"""Each route with one stop, and each stop with half of the routes."""


@pytest.mark.parametrize(
    ("route", "stop"),
    only_by_default(
        SOME_STOPS, [pytest.param(*each, id=", ".join(each)) for each in product(ROUTES, STOPS)], pytest.mark.slow
    ),
)
def test_a_run_that_is_stopped_and_resumed_is_none_that_was_not(
    route: str, stop: str, tmp_path: Path, second_device: str, never_stopped: Callable[[str], Path]
) -> None:
    work, placements = WORKS["discrete actions"], [MAKERS[name](HERE, second_device) for name in ROUTES[route]]
    for i, placement in enumerate(placements):
        with pytest.MonkeyPatch.context() as patch:
            if i < len(placements) - 1:
                interrupt_at_call(patch, *(STOPS[stop] if i == 0 else LATER))
            if i == 0:
                result, _ = train(work, placement, run_dir=tmp_path / "run")
            else:
                result = hybridppo.resume(tmp_path / "run", placement=placement, progress=False, on_interrupt="return")
        assert result.interrupted == (i < len(placements) - 1)
    assert result.agent.parameters.values.device == placements[-1].learning_device
    assert_saved_alike(tmp_path / "run", never_stopped(ROUTES[route][0]))


# What is left behind is an error


def leave_the_rollout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "to_learner", lambda self, rollout: rollout)


def leave_a_part_of_the_rollout(patch: pytest.MonkeyPatch) -> None:
    move = Placement.to_learner
    patch.setattr(Placement, "to_learner", lambda self, rollout: replace(move(self, rollout), rewards=rollout.rewards))


def leave_the_moments(patch: pytest.MonkeyPatch) -> None:
    prepare = Placement.prepare

    def forget(self: Placement, agent: PPO) -> None:
        moments = dict(agent.optimizer.state[agent.parameters.values])
        prepare(self, agent)
        agent.optimizer.state[agent.parameters.values] = moments

    patch.setattr(Placement, "prepare", forget)


def leave_the_observations_of_the_sampler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Crossing, "to_device", lambda self, rows: torch.from_numpy(rows))


def take_the_actions_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Crossing, "to_host", lambda self, tensor, into=None: tensor)


def look_at_parameters_by_numpy(patch: pytest.MonkeyPatch) -> None:
    norm = PPO._squared_norm
    patch.setattr(PPO, "_squared_norm", lambda self: norm(self) + float(self.parameters.gradient.numpy().sum()))


def take_steps_by_numpy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ppo_module, "backend_for", lambda agent, by_hand: NumpyBackend)


def shuffle_on_the_host(patch: pytest.MonkeyPatch) -> None:
    def where_it_is(data: Any, **options: Any) -> torch.Tensor:
        return data if isinstance(data, torch.Tensor) else torch.from_numpy(data)

    patch.setattr(torch, "as_tensor", where_it_is)


MISTAKES = {
    function.__name__.replace("_", " "): function
    for function in (
        leave_the_rollout, leave_a_part_of_the_rollout, leave_the_moments, leave_the_observations_of_the_sampler,
        take_the_actions_as_they_are, look_at_parameters_by_numpy, take_steps_by_numpy, shuffle_on_the_host,
    )
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_that_a_forced_copy_does_not_show(
    mistake: str, monkeypatch: pytest.MonkeyPatch, second_device: str
) -> None:
    MISTAKES[mistake](monkeypatch)
    train(WORKS["discrete actions"], Mirrored(HERE, HERE, force_copy=True))
    with pytest.raises(RuntimeError, match=r"must be on second:0|numpy"):
        train(WORKS["discrete actions"], SingleDevice(second_device))


def test_a_buffer_that_is_left_behind_is_an_error(monkeypatch: pytest.MonkeyPatch, second_device: str) -> None:
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    for device in (HERE, second_device):
        agent = HandmadeAgent()
        SingleDevice(device).prepare(agent)
        if device != HERE:
            with pytest.raises(RuntimeError, match="must be on second:0"):
                agent.change()
        else:
            agent.change()


def test_a_mirror_that_got_nothing_is_found(monkeypatch: pytest.MonkeyPatch, second_device: str) -> None:
    agent, placement = HandmadeAgent(), Mirrored(HERE, second_device, verify=True)
    placement.prepare(agent)
    agent.change()
    monkeypatch.setattr(Tensor, "copy_", lambda self, *args, **kwargs: self)
    with pytest.raises(DeviceError, match="on cpu differs from the actor on second:0 in 'scale' after publishing"):
        placement.sampling(agent).__enter__()


# The device by name


def test_the_device_is_taken_by_name(second_device: str) -> None:
    assert available_device("second") == torch.device("second")
    assert available_device(second_device) == torch.device(second_device)
    placement = PlacementOptions("hybrid", learning_device=second_device).resolve()
    assert placement_from_settings(placement.settings()).learning_device == torch.device(second_device)
    assert placement.pin_for is None


def test_a_device_beyond_the_last_is_an_error(second_device: str) -> None:
    with pytest.raises(DeviceError, match=r"'second:1' was asked for, but this machine has 1 of this type"):
        SingleDevice("second:1")


def test_a_precision_that_is_not_known_of_the_device_is_an_error(second_device: str) -> None:
    work = Work("CartPole-v1", replace(SMALL, precision="bf16"))
    with pytest.raises(DeviceError, match="'bf16' was asked for, but second:0 has no support for it here"):
        train(work, SingleDevice(second_device))


# The device itself


def test_tensors_of_both_devices_are_never_mixed(second_device: str) -> None:
    there, here = torch.ones(2, device=second_device), torch.ones(2)
    mixtures: list[Callable[[], object]] = [
        lambda: there + here,
        lambda: here + there,
        lambda: here.add_(there),
        lambda: torch.stack((there, here)),
        lambda: torch.stack((there[0], here[0])),
        lambda: there[torch.tensor([0])],
        lambda: nn.Linear(2, 1)(there),
        lambda: torch.where(there > 0, there, here),
        lambda: setattr(here, "data", there),
    ]
    for mixture in mixtures:
        with pytest.raises(RuntimeError):
            mixture()
    assert (there * here[0] + 1).tolist() == [2.0, 2.0]  # numbers are of every device


def test_nothing_there_is_an_array(second_device: str) -> None:
    tensor = torch.ones(2, device=second_device)
    for attempt in (lambda: tensor.numpy(), lambda: np.asarray(tensor), lambda: np.square(tensor)):
        with pytest.raises((RuntimeError, TypeError), match="numpy"):
            attempt()
    assert (tensor.tolist(), tensor.sum().item(), float(tensor[0]), repr(tensor)) == (
        [1.0, 1.0], 2.0, 1.0, "second:tensor([1., 1.])"
    )  # fmt: skip


def test_copies_between_the_devices_share_no_memory_and_views_do(second_device: str) -> None:
    here = torch.zeros(4)
    there = here.to(second_device)
    back = there.cpu()
    here += 1.0
    there[1:3].view(2, 1).add_(5.0)
    assert (here.tolist(), there.tolist(), back.tolist()) == ([1.0] * 4, [0.0, 5.0, 5.0, 0.0], [0.0] * 4)
    assert back.copy_(there) is back
    assert back.tolist() == there.tolist() == torch.arange(4, device=second_device).mul(0).add(there).tolist()
    other = copy.deepcopy(nn.Parameter(there))
    other.data += 1.0
    assert isinstance(other, nn.Parameter)
    assert there.tolist() == back.tolist()


def test_a_layer_may_have_the_devices_name(second_device: str) -> None:
    module = nn.Module()
    module.add_module(second.NAME, nn.Linear(1, 1))
    assert isinstance(getattr(module, second.NAME), nn.Linear)
