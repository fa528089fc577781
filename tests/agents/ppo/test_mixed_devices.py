"""The way from a rollout to the loss and the optimizer's step, on `cuda` tensors without memory.

If torch was built for CUDA, it computes their shapes and refuses to mix devices, without a driver.
Gradients are left out: the autograd engine asks the driver.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from loops import loop_of, recorded_loop_of
from ppo_settings import ppo_config
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hybridppo.agents import PPO, PPOConfig
from hybridppo.networks.parameters import FlatAdam, FlatParameters
from hybridppo.rollouts.advantages import explained_variance
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.masks import MaskedObservation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this build of torch knows no CUDA tensors"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there: it says more"),
]

CONFIG = ppo_config(num_envs=2, num_steps=8, num_minibatches=2, hidden_sizes=(8,))
VECTOR = Box(-1.0, 1.0, (3,), np.float32)
SPACES: dict[str, tuple[Any, gym.Space[Any]]] = {
    "discrete": (VECTOR, Discrete(3)),
    "continuous": (VECTOR, Box(-1.0, 1.0, (2,), np.float32)),
    "images": (Box(0, 255, (36, 36, 3), np.uint8), Discrete(3)),
    "masks": (MaskedObservation(VECTOR, 3), Discrete(3)),
}


class LossError(Exception):
    """Raised when the loss is reached."""


@pytest.fixture(autouse=True)
def without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(tensor: Tensor) -> None:
        assert tensor.device == torch.device("cuda:0")
        raise LossError

    monkeypatch.setattr(Tensor, "backward", refuse)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def make(kind: str, config: PPOConfig = CONFIG) -> tuple[PPO, Rollout]:
    """An agent on the device, and a rollout of ones beside it."""
    observation_space, action_space = SPACES[kind]
    agent = PPO(observation_space, action_space, config)
    for module in (*agent.actor.modules(), *agent.critic.modules()):  # what says where it is cannot move
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, device="cuda:0"))
    agent.parameters = FlatParameters({"actor": agent.actor, "critic": agent.critic}, alignment=4)
    agent.optimizer = FlatAdam(agent.parameters, agent._learning_rates())
    steps, envs = config.num_steps, config.num_envs
    row, dtype = agent._encode.shape, torch.uint8 if kind == "images" else torch.float32

    def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.ones(shape, dtype=dtype, device="cuda:0")

    flag = torch.bool
    rollout = Rollout(
        observations=ones(steps + 1, envs, *row, dtype=dtype),
        actions=ones(steps, envs, 2) if kind == "continuous" else ones(steps, envs, dtype=torch.int64),
        log_probs=ones(steps, envs),
        rewards=ones(steps, envs),
        terminated=ones(steps, envs, dtype=flag),
        truncated=ones(steps, envs, dtype=flag),
        valid_rows=ones(steps * envs - 1, dtype=torch.int64),
        final_rows=ones(2, dtype=torch.int64),
        final_observations=ones(2, *row, dtype=dtype),
        version=0,
    )
    return agent, rollout


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", SPACES)
def test_all_that_the_loss_is_made_of_is_on_the_device(kind: str, precision: Any) -> None:
    agent, rollout = make(kind, ppo_config(**{**CONFIG.to_json(), "precision": precision}))
    steps = loop_of(agent)
    batch = agent.batch_of(rollout, steps)
    assert {tensor.device for tensor in batch.columns().values()} == {torch.device("cuda:0")}
    assert len(batch.returns) == 15
    with pytest.raises(LossError):
        steps.epoch(batch, [7, 8], 0.2)
    assert explained_variance(values=batch.values, returns=batch.returns).device == torch.device("cuda:0")
    assert agent._squared_norm().device == torch.device("cuda:0")


@pytest.mark.parametrize("critic_learning_rate", [None, 1e-3])
def test_all_that_the_optimizer_steps_is_on_the_device(critic_learning_rate: float | None) -> None:
    agent, _ = make("discrete", ppo_config(**{**CONFIG.to_json(), "critic_learning_rate": critic_learning_rate}))
    agent.optimizer.step()  # with rates on the device, torch knows no shapes of what it gives
    agent.optimizer.keep_learning_rates_on_device()
    assert {rate.device for rate in agent.optimizer._rates_on_device.values()} == {torch.device("cuda:0")}
    agent.anneal(0.5)


def test_all_that_is_recorded_is_on_the_device() -> None:
    agent, rollout = make("continuous")
    recorded: list[Any] = []
    steps, step = recorded_loop_of(agent, recorded.append)  # type: ignore[arg-type]
    batch = agent.batch_of(rollout, steps)
    with pytest.raises(LossError):
        steps.epoch(batch, [7, 8], 0.2)
    with pytest.raises(TypeError):  # what was "recorded" cannot be replayed
        step._recorded(batch)
    with pytest.raises(LossError):
        recorded[0]()


def test_a_mixture_is_found() -> None:
    agent, rollout = make("discrete")
    agent.critic.register_forward_pre_hook(lambda module, inputs: (inputs[0] + torch.ones(3),))
    with pytest.raises(RuntimeError, match="device"):
        agent.batch_of(rollout, loop_of(agent))
