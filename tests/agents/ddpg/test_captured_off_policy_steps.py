"""Recorded gradient steps of DDPG and TD3 against those that are not recorded; on the CPU, recording is pretended."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from pretended_recorder import PretendedRecorder
from torch import Tensor

import hybridppo
from hybridppo import DDPG, TD3, DDPGConfig, DeviceError, TD3Config
from hybridppo.agents.ddpg.gradient_steps import AutogradSteps, CapturedSteps
from hybridppo.rollouts.replay import Transitions

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (3,), np.float32), Box(-2.0, 2.0, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 6), "batch_size": 5, "learning_rate": 1e-2, "fast_updates": False}
CONFIGS = {"ddpg": DDPGConfig(**SMALL), "td3": TD3Config(**SMALL), "td3, by threes": TD3Config(**SMALL, policy_delay=3)}


def agent_of(config: DDPGConfig) -> DDPG:
    return (TD3 if isinstance(config, TD3Config) else DDPG)(OBSERVATIONS, ACTIONS, config, seed=1)


def minibatch(seed: int) -> tuple[Transitions, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn((5, *shape), generator=generator)

    return Transitions(normal(3), normal(2).tanh(), normal(), normal().sigmoid(), normal(3)), 0.3 * normal(2)


def state_of(agent: DDPG) -> list[Tensor]:
    return [tensor.clone() for tensor in agent._changing()]


@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_steps_are_the_plain_ones(name: str) -> None:
    plain, captured, recorder = agent_of(CONFIGS[name]), agent_of(CONFIGS[name]), PretendedRecorder()
    expected, found = AutogradSteps(plain), CapturedSteps(captured, recorder)
    delay = CONFIGS[name].policy_delay
    for i in range(7):
        batch, noise = minibatch(i)
        for steps in (expected, found):
            steps.step(batch, noise, moves_actor=(i + 1) % delay == 0)
        assert all(map(torch.equal, state_of(captured), state_of(plain)))
    kinds = 1 if delay == 1 else 2
    assert recorder.recordings == kinds
    assert found.metrics() == {"graph_recordings": kinds, "graph_replays": 7}
    assert found.metrics() == {"graph_recordings": 0, "graph_replays": 0}


def test_a_minibatch_that_was_given_is_not_written() -> None:
    steps = CapturedSteps(agent_of(CONFIGS["td3"]), PretendedRecorder())
    first, second = minibatch(0), minibatch(1)
    kept = first[0].map(torch.clone), first[1].clone()
    steps.step(*first, moves_actor=False)
    steps.step(*second, moves_actor=True)
    assert torch.equal(first[0].observations, kept[0].observations)
    assert torch.equal(first[1], kept[1])


def test_a_recording_that_does_nothing_is_an_error_and_changes_nothing() -> None:
    def record_nothing(function: Callable[[], None]) -> Callable[[], object]:
        function()
        return lambda: None

    agent = agent_of(CONFIGS["td3"])
    before = state_of(agent)
    with pytest.raises(DeviceError, match=r"made 0 steps of the optimizer instead of 1.*cuda_graphs=False"):
        CapturedSteps(agent, record_nothing).step(*minibatch(0), moves_actor=True)
    assert all(map(torch.equal, state_of(agent), before))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_gpu_graphs_train_as_eager_steps_do(name: str) -> None:
    config = replace(CONFIGS[name], hidden_sizes=(32, 32), batch_size=32, learning_starts=64, buffer_size=2000)
    parameters = []
    for cuda_graphs in (False, True):
        changed = replace(config, cuda_graphs=cuda_graphs)
        result = hybridppo.train(
            "Pendulum-v1", total_steps=300, seed=3, placement="cuda", config=changed, progress=False
        )
        assert ("graph_replays" in result.metrics) == cuda_graphs
        parameters.append(result.agent.parameters.values.detach().cpu())
    torch.testing.assert_close(parameters[1], parameters[0], rtol=1e-3, atol=1e-4)
