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
from hybridppo.networks import modes
from hybridppo.networks.modes import ByOneDNN, float32_products, require, rounding

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


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")
@pytest.mark.parametrize("columns", [slice(None), slice(3, 259)], ids=["whole", "a view of columns"])
def test_large_layers_give_the_same_by_onednn(columns: slice) -> None:
    draw = torch.Generator().manual_seed(0)
    wide = torch.randn((2, 20, 300), generator=draw)
    inputs = (wide[..., columns] if columns.start else wide[..., :256].contiguous()).requires_grad_()
    weight = (torch.randn((512, 256), generator=draw) / 16.0).requires_grad_()
    bias = torch.randn(512, generator=draw).requires_grad_()

    def results() -> list[torch.Tensor]:
        outputs = torch.nn.functional.linear(inputs, weight, bias)
        first = torch.autograd.grad(outputs.tanh().sum(), [inputs, weight, bias], create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in first), [inputs, weight, bias])
        return [outputs, *first, *second]

    plain = results()
    with ByOneDNN():
        fast = results()
    assert "_Product" in type(fast[0].grad_fn.next_functions[0][0]).__name__  # behind the view
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * float(other.detach().abs().max()))


def test_other_layers_are_computed_as_they_were() -> None:
    layer, numbers = torch.nn.Linear(8, 8), torch.randn(3, 8)
    large = torch.nn.Linear(256, 512)
    rows = torch.randn(32, 2, 256)
    with ByOneDNN():
        assert torch.equal(layer(numbers), torch.nn.functional.linear(numbers, layer.weight, layer.bias))
        assert torch.equal(large(rows[0]), torch.nn.functional.linear(rows[0], large.weight, large.bias))  # few rows
        assert large(rows[:0]).shape == (0, 2, 512)
        assert torch.func.vmap(large)(rows).shape == (32, 2, 512)
        with pytest.raises(RuntimeError, match="dtype"):
            large(rows.double())


def test_only_large_networks_on_a_cpu_use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "has_onednn", lambda: True)
    small, large = torch.nn.Linear(256, 256), torch.nn.Linear(256, 512)
    assert rounding("fp32", CPU, [small, large]) is ByOneDNN
    assert rounding("fp32", CPU, [small]) is not ByOneDNN
    assert rounding("fp32", GPU, [large]) is not ByOneDNN
