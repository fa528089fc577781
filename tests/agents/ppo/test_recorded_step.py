"""Recorded optimizer steps against unrecorded ones; on the CPU, recording is simulated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from loops import loop_of, recorded_loop_of
from ppo_settings import ppo_config
from pretended_recorder import PretendedRecorder

import hybridppo
from hybridppo.agents import PPO, PPOConfig, recorded_step
from hybridppo.agents.agent import Exchange
from hybridppo.agents.ppo import ppo as ppo_module
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.loss import ppo_loss
from hybridppo.agents.recorded_step import padded_size
from hybridppo.errors import DeviceError
from hybridppo.rollouts.advantages import gae

SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "continuous": gym.spaces.Box(-1.0, 1.0, (2,)),
}


def own_loss(*arguments: Any) -> Any:
    return ppo_loss(*arguments)


def make_agent(space: gym.Space, config: PPOConfig) -> PPO:
    return PPO(gym.spaces.Box(-np.inf, np.inf, (4,)), space, config, seed=1)


def make_batch(agent: PPO, size: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    discrete = isinstance(agent.action_space, gym.spaces.Discrete)
    return Batch(
        observations=torch.randn(size, 4, generator=generator),
        actions=torch.randint(3, (size,), generator=generator)
        if discrete
        else torch.randn(size, 2, generator=generator),
        log_probs=torch.randn(size, generator=generator) - 1.0,
        values=torch.randn(size, generator=generator),
        advantages=torch.randn(size, generator=generator),
        returns=torch.randn(size, generator=generator),
    )


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("critic_learning_rate", [None, 1e-3])
def test_replayed_steps_are_the_plain_ones(kind: str, critic_learning_rate: float | None) -> None:
    config = ppo_config(hidden_sizes=(8,), learning_rate=1e-2, critic_learning_rate=critic_learning_rate)
    plain, captured = make_agent(SPACES[kind], config), make_agent(SPACES[kind], config)
    recorder = PretendedRecorder()
    expected, (found, _) = loop_of(plain), recorded_loop_of(captured, recorder)
    order = np.random.default_rng(0)
    for i in range(6):  # rates and ranges fall, sizes come again
        for agent in (plain, captured):
            agent.anneal(i / 6)
            agent.version = i
        size = 30 + i % 2
        epoch = make_batch(plain, size, seed=i).gather(torch.from_numpy(order.permutation(size)))
        arguments = (epoch, [10, size - 20, 10], 0.2 / (i + 1))
        # Rates and ranges are rounded to float32 for the device.
        torch.testing.assert_close(found.epoch(*arguments), expected.epoch(*arguments), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(captured.parameters.values, plain.parameters.values, rtol=1e-5, atol=1e-6)
    assert recorder.recordings == 2  # of 10 rows and of 11
    for name, tensor in plain.state()[0].items():
        torch.testing.assert_close(captured.state()[0][name], tensor, rtol=1e-5, atol=1e-6)


def counts_of(sizes: Sequence[int], epochs: int = 1) -> dict[str, float]:
    """Counts of recordings and replays after an update of each size, with one minibatch per epoch."""
    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    steps, _ = recorded_loop_of(agent, PretendedRecorder())
    for size in sizes:
        for _ in range(epochs):
            steps.epoch(make_batch(agent, size), [size], 0.2)
        agent.version += 1
    return {name.removeprefix("graph_"): count for name, count in steps.metrics().items()}


def test_padded_sizes_are_few_and_the_usual_one_is_among_them() -> None:
    sizes = {size: padded_size(size, 1_000) for size in range(1, 3_000)}
    assert all(size <= found <= max(size, 1.25 * size) for size, found in sizes.items())
    assert sizes[1_000] == 1_000
    assert sizes[900] == 1_000  # instead of 1024
    assert [size for size in sorted(set(sizes.values())) if 100 < size < 2_000] == [
        112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1_000, 1_024, 1_280, 1_536, 1_792
    ]  # fmt: skip


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    "settings", [{}, {"clip_range_vf": 0.1, "pool_size": 3}], ids=["usual", "clipped values, pool"]
)
def test_padded_minibatches_make_the_steps_of_those_without_padding(kind: str, settings: dict[str, Any]) -> None:
    config = ppo_config(hidden_sizes=(8,), learning_rate=1e-2, entropy_coef=0.1, **settings)
    plain, padded = make_agent(SPACES[kind], config), make_agent(SPACES[kind], config)
    recorder = PretendedRecorder()
    expected, (found, step) = loop_of(plain), recorded_loop_of(padded, recorder, usual_size=32)
    for i, size in enumerate([29, 32, 28, 30, 32, 25, 31, 28]):
        batch = make_batch(plain, size, seed=i)
        if config.pool_size > 1:
            shares = torch.full((size,), 0.5)
            batch = batch.with_columns(weights=torch.rand(size) + 0.5, shares=shares)
        plain.version = padded.version = i
        arguments = (batch, [size], 0.2)
        torch.testing.assert_close(found.epoch(*arguments), expected.epoch(*arguments), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(padded.parameters.values, plain.parameters.values, rtol=1e-4, atol=1e-5)
    assert recorder.recordings == 3  # of 32 rows, of up to 32, and of up to 28
    assert step.metrics() == {"graph_recordings": 3, "graph_replays": 5, "graph_eager_steps": 3}


def test_rows_of_padding_may_be_anything_finite() -> None:
    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    backend, batch = Backend(agent), make_batch(agent, 6)
    expected = backend.gradient(batch, 0.2), agent.parameters.gradient.clone()
    padded = batch.padded(8)
    padded.returns[6:], padded.log_probs[6:], padded.advantages[6:], padded.values[6:] = 1e9, -1e9, 1e9, -1e9
    torch.testing.assert_close(backend.gradient(padded, 0.2), expected[0])
    torch.testing.assert_close(agent.parameters.gradient, expected[1])


@pytest.mark.parametrize(
    ("options", "is_padded"), [({}, True), ({"loss": own_loss}, False)], ids=["the library's", "an own loss"]
)
def test_minibatches_of_the_librarys_loss_alone_are_padded(
    options: dict[str, Any], is_padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppo_module, "recorder_for", lambda agent: PretendedRecorder())
    config = ppo_config(hidden_sizes=(8,), fast_updates=False)
    agent = PPO(gym.spaces.Box(-1.0, 1.0, (4,)), SPACES["discrete"], config, **options)
    step = agent.loop().whole_step
    assert step._recorded_size(config.samples_per_minibatch - 1) == config.samples_per_minibatch - (not is_padded)


def test_a_size_is_recorded_when_it_comes_back() -> None:
    assert counts_of([5, 6, 5, 7, 5], epochs=2) == {"recordings": 1, "replays": 4, "eager_steps": 6}


def test_sizes_that_never_come_back_are_not_recorded() -> None:
    assert counts_of(range(5, 105)) == {"recordings": 0, "replays": 0, "eager_steps": 100}


def test_sizes_beyond_the_last_recording_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that made room would take the workspace of the others with it.
    monkeypatch.setattr(recorded_step, "MAX_RECORDINGS", 2)
    assert counts_of([5, 6, 7, 5, 6, 7, 5]) == {"recordings": 2, "replays": 3, "eager_steps": 4}


def test_counts_are_those_of_an_update() -> None:
    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    steps, _ = recorded_loop_of(agent, PretendedRecorder())
    steps.epoch(make_batch(agent, 5), [5], 0.2)
    assert steps.metrics()["graph_eager_steps"] == 1
    assert set(steps.metrics().values()) == {0}


def test_steps_are_not_changed_by_being_recorded() -> None:
    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    _, step = recorded_loop_of(agent, PretendedRecorder())
    before = agent.parameters.values.detach().clone()
    step._recorded(make_batch(agent, 5), (0.2,))
    assert torch.equal(agent.parameters.values, before)
    assert agent.optimizer.state[agent.parameters.values]["step"] == 0


def test_a_recording_that_does_nothing_is_an_error() -> None:
    def record_nothing(function: Callable[[], None]) -> Callable[[], object]:
        function()
        return lambda: None

    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    _, step = recorded_loop_of(agent, record_nothing)
    with pytest.raises(DeviceError, match=r"made 0 steps of the optimizer instead of 1.*fast_updates=False"):
        step._recorded(make_batch(agent, 5), (0.2,))


class OwnPPO(PPO):
    """A subclass, whose steps may do anything."""


def falling(progress: float) -> float:
    return 1e-2 * (1.0 - progress)


@pytest.mark.parametrize(
    ("settings", "options", "is_recorded"),
    [
        ({}, {}, True),
        ({"schedules": "learning_rate=linear"}, {"schedules": {"clip_range": falling}}, True),
        ({}, {"advantages": lambda **steps: gae(**steps)}, True),
        ({"fast_updates": False}, {}, False),
        ({"recurrent": "lstm"}, {}, False),
        ({"num_envs": 1, "episodes_per_rollout": 2, "num_minibatches": None}, {}, True),
        ({"schedules": "entropy_coef=linear"}, {}, False),
        ({}, {"schedules": {"value_coef": falling}}, False),
        ({}, {"loss": own_loss}, False),
        ({"cuda_graphs": True}, {"loss": own_loss}, True),
    ],
)
def test_what_is_known_to_be_the_same_on_every_minibatch_is_recorded(
    settings: dict[str, Any], options: dict[str, Any], is_recorded: bool
) -> None:
    spaces = gym.spaces.Box(-1.0, 1.0, (4,)), SPACES["discrete"]
    agent = PPO(*spaces, ppo_config(anneal_learning_rate=False, **settings), **options)
    assert agent.records_graphs is is_recorded


def test_a_subclass_and_shared_updates_are_not_recorded_by_themselves() -> None:
    spaces = gym.spaces.Box(-1.0, 1.0, (4,)), SPACES["discrete"]
    assert not OwnPPO(*spaces, ppo_config()).records_graphs
    agent = PPO(*spaces, ppo_config())
    agent.share(lambda: Exchange())
    assert not agent.records_graphs
    agent.share(None)
    assert agent.records_graphs


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("env", "total_steps", "settings"),
    [
        ("CartPole-v1", 8 * 64 * 6, {}),
        ("Pendulum-v1", 8 * 64 * 6, {}),
        ("CartPole-v1", 600, {"num_envs": 1, "episodes_per_rollout": 2, "num_minibatches": 2}),
    ],
    ids=["resets", "one size", "episodes"],
)
def test_gpu_graphs_train_as_eager_steps_do(env: str, total_steps: int, settings: dict[str, Any]) -> None:
    config = replace(ppo_config(num_envs=8, num_steps=64, hidden_sizes=(32, 32)), **settings)
    parameters, replays = [], []
    for is_recorded in (False, True):
        changed = replace(config, fast_updates=is_recorded)
        result = hybridppo.train(env, total_steps=total_steps, seed=3, placement="cuda", config=changed, progress=False)
        parameters.append(result.agent.parameters.values.detach().cpu())
        replays.append(result.metrics.get("graph_replays", 0))
    assert replays[0] == 0 < replays[1]
    torch.testing.assert_close(parameters[1], parameters[0], rtol=1e-3, atol=1e-4)


def test_an_eager_step_leaves_no_graph_of_gradients_behind() -> None:
    # A node of it that lived on would draw the stream that it was made in, which records nothing, into a recording.
    agent = make_agent(SPACES["discrete"], ppo_config(hidden_sizes=(8,)))
    (steps, _), weight = recorded_loop_of(agent, PretendedRecorder()), next(agent.actor.parameters())
    kept = []

    def mark(module: torch.nn.Module, inputs: object, outputs: torch.Tensor) -> None:
        kept.append(outputs)
        torch.autograd.graph.get_gradient_edge(weight).node.metadata["mark"] = True

    def is_marked() -> bool:
        return "mark" in torch.autograd.graph.get_gradient_edge(weight).node.metadata

    agent.actor.register_forward_hook(mark)
    statistics = steps.epoch(make_batch(agent, 5), [5], 0.2)
    assert not statistics.requires_grad
    assert is_marked()  # somebody holds the outputs
    kept.clear()
    assert not is_marked()
