"""The precision in which CUDA devices multiply; the switches exist without a device."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import DeviceError, evaluation, running
from hybridppo.agents import agent
from hybridppo.agents.ppo import by_autograd
from hybridppo.networks.modes import float32_products, require

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")


def switches() -> list[str]:
    backends: Any = torch.backends
    return [backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision, backends.cuda.matmul.fp32_precision]


def test_float32_is_float32_in_convolutions_too() -> None:
    before = switches()
    assert before[0] == "tf32"  # torch's own default, which this is about
    with float32_products("fp32", CPU, GPU):
        assert switches() == ["ieee"] * 3
        assert not torch.backends.cuda.matmul.allow_tf32
    assert switches() == before
    assert torch.backends.cudnn.allow_tf32


def test_tf32_is_for_products_and_convolutions() -> None:
    before = switches()
    context = float32_products("tf32", GPU)
    with context:
        assert switches() == ["tf32"] * 3
    assert switches() == before


def test_the_switches_are_put_back_after_an_error() -> None:
    before, error = switches(), KeyError("what went wrong")
    with pytest.raises(KeyError), float32_products("tf32", GPU):
        raise error
    assert switches() == before


def test_what_else_is_not_rounded_stays_float32_beside_bfloat16() -> None:
    with float32_products("bf16", GPU):
        assert switches() == ["ieee"] * 3


def test_nothing_is_switched_for_a_cpu() -> None:
    before = switches()
    with float32_products("tf32", CPU):
        assert switches() == before


def test_a_cpu_has_no_tf32() -> None:
    with pytest.raises(DeviceError, match=r"'tf32' was asked for, but cpu has no tensor cores .*use precision='fp32'"):
        require("tf32", CPU)
    with pytest.raises(DeviceError, match="'tf32'"):
        hybridppo.train(
            "CartPole-v1", total_steps=8, placement="cpu", config=ppo_config(precision="tf32"), progress=False
        )


def test_training_evaluating_updating_and_acting_say_what_they_multiply_in(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []

    def noted(module: Any) -> Any:
        def float32_products_noted(precision: Any, *devices: torch.device) -> Any:
            said.append((module.__name__.rpartition(".")[2], precision))
            assert devices
            assert all(device == CPU for device in devices)
            return float32_products(precision, *devices)

        return float32_products_noted

    for module in (running, by_autograd, evaluation, agent):
        monkeypatch.setattr(module, "float32_products", noted(module))
    config = ppo_config(num_envs=2, num_steps=4, hidden_sizes=(4,), fast_updates=False)
    result = hybridppo.train(
        "CartPole-v1", total_steps=8, placement="cpu", config=config, evaluation_episodes=1, progress=False
    )
    assert said == [("running", "fp32"), ("by_autograd", "fp32"), ("evaluation", "fp32")]
    result.agent.act(np.zeros(4, np.float32))
    assert said[-1] == ("agent", "fp32")
    assert isinstance(result.agent.action_space, gym.spaces.Discrete)
