"""Hidden layers in NumPy, forward and backward, against torch's autograd."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from hybridppo.agents.ppo.by_numpy import MOST_KEPT, HiddenLayers

WIDTHS = (5, 7, 4, 3)
STACK = 2


def parameters(widths: tuple[int, ...] = WIDTHS) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """One weight `[S, outputs, inputs]` and one bias `[S, 1, outputs]` per layer."""
    generator = np.random.default_rng(0)
    pairs = list(pairwise(widths))
    weights = [generator.normal(size=(STACK, outs, ins)).astype(np.float32) for ins, outs in pairs]
    return weights, [generator.normal(size=(STACK, 1, outs)).astype(np.float32) for _, outs in pairs]


def by_torch(weights: Any, biases: Any, activation: str, inputs: np.ndarray, last: np.ndarray) -> dict[str, Any]:
    """Activations, and gradients of the sum of the last activations times `last`."""
    parts = [torch.tensor(array, requires_grad=True) for array in (*weights, *biases)]
    rows, activations = torch.from_numpy(inputs).expand(STACK, *inputs.shape[-2:]), []
    for weight, bias in zip(parts[: len(weights)], parts[len(weights) :], strict=True):
        rows = rows @ weight.transpose(1, 2) + bias
        rows = rows.tanh() if activation == "tanh" else rows.relu()
        activations.append(rows.detach().numpy())
    (rows * torch.from_numpy(last)).sum().backward()
    gradients = [part.grad.numpy() for part in parts if part.grad is not None]
    return {"activations": activations, "parameters": gradients}


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("own_inputs", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_they_are_what_torch_computes(activation: Any, own_inputs: bool) -> None:
    weights, biases = parameters()
    layers = HiddenLayers(weights, biases, activation)
    generator = np.random.default_rng(1)
    for size in (6, 2, 9, 6):  # in memory of another size, too large, too small, and seen before
        inputs = generator.normal(size=(STACK, size, 5) if own_inputs else (size, 5)).astype(np.float32)
        last = generator.normal(size=(STACK, size, 3)).astype(np.float32)
        expected = by_torch(weights, biases, activation, inputs, last)
        activations = layers.forward(inputs)
        agree(activations, expected["activations"])
        layers.gradient_buffer(size)[:] = last
        found = [np.full_like(array, np.nan) for array in (*weights, *biases)]
        layers.backward(inputs, activations, found[:3], found[3:])
        agree(found, expected["parameters"])


def test_memory_is_kept_from_call_to_call_and_does_not_grow_with_the_number_of_sizes() -> None:
    layers = HiddenLayers(*parameters(), "tanh")
    first = layers.forward(np.ones((8, 5), np.float32))
    again = layers.forward(np.ones((8, 5), np.float32))
    assert all(one is other for one, other in zip(first, again, strict=True))
    for size in range(1, 100):
        layers.forward(np.ones((1 + size % 70, 5), np.float32))
    assert len(layers._kept) <= MOST_KEPT
