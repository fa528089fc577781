"""Flat parameters: one buffer, and networks that need not know of it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hybridppo import ConfigurationError
from hybridppo.networks.parameters import FlatAdam, FlatParameters


@pytest.fixture
def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"actor": nn.Linear(3, 2), "critic": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))}


def test_values_are_unchanged_and_in_order(networks: dict[str, nn.Module]) -> None:
    expected = torch.cat([p.detach().flatten().clone() for network in networks.values() for p in network.parameters()])
    flat = FlatParameters(networks)
    assert torch.equal(flat.values.detach(), expected)
    assert torch.equal(torch.cat((flat.of("actor"), flat.of("critic"))), expected)
    assert len(flat.of("actor")) == 3 * 2 + 2


def test_networks_and_buffer_are_one(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    actor = networks["actor"]
    assert isinstance(actor, nn.Linear)
    flat.of("actor").fill_(7.0)
    assert actor.weight.tolist() == [[7.0] * 3] * 2
    with torch.no_grad():
        actor.bias[1] = 9.0
    assert flat.values[7].item() == 9.0


def test_backward_fills_the_flat_gradient(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    loss = networks["actor"](inputs).square().mean() + networks["critic"](inputs).mean()
    parameters = [p for network in networks.values() for p in network.parameters()]
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    flat.gradient.zero_()
    loss.backward()
    assert torch.equal(flat.gradient, torch.cat([gradient.flatten() for gradient in expected]))


def test_an_optimizer_of_the_buffer_steps_the_networks(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    before = flat.values.detach().clone()
    flat.gradient.fill_(1.0)
    torch.optim.SGD([flat.values], lr=0.5).step()
    torch.testing.assert_close(torch.cat([p.flatten() for p in networks["actor"].parameters()]), before[:8] - 0.5)


def test_rebinding_moves_everything_to_another_buffer(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    inputs = torch.ones(1, 3)
    expected = networks["actor"](inputs)
    old, new = flat.values.data, flat.values.data.clone()
    flat.rebind(new)
    old.zero_()
    assert torch.equal(networks["actor"](inputs), expected)
    assert flat.values.data_ptr() == new.data_ptr()
    networks["actor"](inputs).sum().backward()
    # d sum / d weight = the inputs, d sum / d bias = 1; the critic has no part in it
    assert flat.gradient.tolist() == [1.0] * 8 + [0.0] * len(flat.of("critic"))
    flat.of("actor").fill_(2.0)
    assert networks["actor"](inputs).tolist() == [[8.0, 8.0]]


def test_other_types_of_number_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"got torch\.float64: .* torch\.set_default_dtype\(torch\.float32\)"):
        FlatParameters({"actor": nn.Linear(2, 2).double()})


# Gaps


def test_aligned_parameters_begin_at_round_addresses(networks: dict[str, nn.Module]) -> None:
    inputs = torch.ones(1, 3)
    expected = [network(inputs) for network in networks.values()]
    flat = FlatParameters(networks, alignment=4)
    begin = flat.values.data_ptr()
    assert [
        (parameter.data_ptr() - begin) % 16 for network in networks.values() for parameter in network.parameters()
    ] == [0] * 6
    assert flat.range_of("actor") == slice(0, 8 + 4)
    assert flat.range_of("critic") == slice(12, 12 + 12 + 4 + 4 + 4)
    assert all(torch.equal(network(inputs), one) for network, one in zip(networks.values(), expected, strict=True))


def test_gaps_stay_zero(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks, alignment=4)
    adam = FlatAdam(flat, {"actor": 0.1, "critic": 0.2})
    for _ in range(3):
        flat.gradient.zero_()
        (networks["actor"](torch.ones(1, 3)).sum() + networks["critic"](torch.ones(1, 3)).sum()).backward()
        adam.step()
    for tensor in (flat.values.data, flat.gradient, *list(adam.state[flat.values].values())[1:]):
        assert torch.equal(flat.spread(flat.dense(tensor)), tensor)
        assert tensor.count_nonzero() == flat.dense(tensor).count_nonzero() > 0


def test_a_dense_tensor_is_what_it_was_without_gaps(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    values, other = flat.values.detach().clone(), torch.arange(float(len(flat.values)))
    step = torch.tensor(3.0)
    assert flat.dense(other) is other
    assert flat.spread(other) is other
    laid_out = flat.align(4)
    assert torch.equal(flat.dense(flat.values.detach()), values)
    assert torch.equal(flat.dense(laid_out(other)), other)
    assert torch.equal(laid_out(other), flat.spread(other))
    assert laid_out(step) is flat.dense(step) is flat.spread(step) is step
    flat.align(1)
    assert torch.equal(flat.values, values)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_the_networks_of_a_copy_are_views_of_its_buffer(networks: dict[str, nn.Module], copied: Any) -> None:
    flat = FlatParameters(networks)
    own, copy_of_flat = copied((networks, flat))
    with torch.no_grad():
        own["actor"].weight.fill_(7.0)
    assert copy_of_flat.of("actor")[:6].tolist() == [7.0] * 6
    assert 7.0 not in flat.values
    own["actor"](torch.ones(3)).sum().backward()
    assert copy_of_flat.gradient.count_nonzero() == 8


def test_gradients_reach_the_buffer_again_after_another_optimizer(networks: dict[str, nn.Module]) -> None:
    flat = FlatParameters(networks)
    other = torch.optim.SGD(networks["actor"].parameters(), lr=0.0)
    for has_stepped in (False, True):
        other.zero_grad()  # gradients are None, and after another pass the other's
        if has_stepped:
            networks["actor"](torch.ones(3)).sum().backward()
        flat.attach_gradients()
        flat.gradient.zero_()
        networks["actor"](torch.ones(3)).sum().backward()
        assert flat.gradient[:8].tolist() == [1.0] * 8
