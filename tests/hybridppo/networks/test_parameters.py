"""Flat parameters: one buffer, and networks that do not know."""

import pytest
import torch
from torch import nn

from hybridppo.networks.parameters import FlatParameters


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
    with pytest.raises(TypeError, match="float64"):
        FlatParameters({"actor": nn.Linear(2, 2).double()})
