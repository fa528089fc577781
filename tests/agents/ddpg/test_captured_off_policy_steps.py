"""Recorded gradient steps of DDPG and TD3 against unrecorded ones; on the CPU, recording is simulated."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from loops import recorded_loop_of
from pretended_recorder import PretendedRecorder
from torch import Tensor

import hybridppo
from hybridppo import DDPG, TD3, DDPGConfig, TD3Config
from hybridppo.agents.ddpg import Backend
from hybridppo.rollouts.replay import Transitions

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (3,), np.float32), Box(-2.0, 2.0, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 6), "batch_size": 5, "learning_rate": 1e-2, "fast_updates": False}
CONFIGS = {"ddpg": DDPGConfig(**SMALL), "td3": TD3Config(**SMALL), "td3, by threes": TD3Config(**SMALL, policy_delay=3)}


def agent_of(config: DDPGConfig) -> DDPG:
    return (TD3 if isinstance(config, TD3Config) else DDPG)(OBSERVATIONS, ACTIONS, config, seed=1)


def minibatch(seed: int) -> Transitions:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn((5, *shape), generator=generator)

    return Transitions(normal(3), normal(2).tanh(), normal(), normal().sigmoid(), normal(3), 0.3 * normal(2))


def state_of(agent: DDPG) -> list[Tensor]:
    return [tensor.clone() for tensor in agent._changing()]


@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_steps_are_the_plain_ones(name: str) -> None:
    config, recorder = CONFIGS[name], PretendedRecorder()
    plain, recorded = agent_of(config), agent_of(config)
    plain.loop(), recorded.loop()  # which bind the target networks
    recorded._loop, _ = recorded_loop_of(recorded, recorder, Backend)
    for i in range(9):
        for agent in (plain, recorded):
            agent.optimizer.set_learning_rates({"actor": 1e-2 / (i + 1), "critic": 1e-2})  # as schedules do
            agent.update([minibatch(i).map(lambda tensor: tensor[None])])
        for found, expected in zip(state_of(recorded), state_of(plain), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    kinds = 1 if config.policy_delay == 1 else 2
    assert recorder.recordings == kinds  # each when it comes back
    metrics = recorded.take_metrics()
    counts = {name: metrics[f"graph_{name}"] for name in ("recordings", "eager_steps", "replays")}
    assert counts == {"recordings": kinds, "eager_steps": kinds, "replays": 9 - kinds}
    assert plain.take_metrics()["policy_loss"] == pytest.approx(metrics["policy_loss"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_gpu_graphs_train_as_eager_steps_do(name: str) -> None:
    config = replace(CONFIGS[name], hidden_sizes=(32, 32), batch_size=32, learning_starts=64, buffer_size=2000)
    parameters = []
    for is_recorded in (False, True):
        changed = replace(config, fast_updates=is_recorded)
        result = hybridppo.train(
            "Pendulum-v1", total_steps=300, seed=3, placement="cuda", config=changed, progress=False
        )
        assert ("graph_replays" in result.metrics) == is_recorded
        parameters.append(result.agent.parameters.values.detach().cpu())
    torch.testing.assert_close(parameters[1], parameters[0], rtol=1e-3, atol=1e-4)
