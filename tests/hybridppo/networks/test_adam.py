from typing import Any

import pytest
import torch
from torch import nn

from hybridppo.networks.parameters import FlatAdam, FlatParameters


def make_parameters() -> FlatParameters:
    torch.manual_seed(0)
    return FlatParameters({"actor": nn.Linear(3, 5), "critic": nn.Linear(3, 2)})


def test_the_steps_are_those_of_torch_to_the_last_bit() -> None:
    ours, theirs = make_parameters(), make_parameters()
    adam = FlatAdam(ours, {"actor": 1e-2, "critic": 1e-2}, eps=1e-5)
    reference = torch.optim.Adam([theirs.values], lr=1e-2, eps=1e-5, fused=True)
    for i in range(5):
        gradient = torch.randn(ours.values.shape)
        ours.gradient.copy_(gradient)
        theirs.gradient.copy_(gradient)
        if i == 3:
            adam.set_learning_rates({"actor": 1e-3, "critic": 1e-3})
            reference.param_groups[0]["lr"] = 1e-3
        adam.step()
        reference.step()
        assert torch.equal(ours.values, theirs.values)
    for name, slot in reference.state[theirs.values].items():
        assert torch.equal(adam.state[ours.values][name], slot)


def test_networks_may_have_rates_of_their_own() -> None:
    ours, theirs = make_parameters(), make_parameters()
    adam = FlatAdam(ours, {"actor": 1e-3, "critic": 1e-2}, betas=(0.8, 0.9), eps=1e-5)
    parts = [nn.Parameter(theirs.of(name).clone()) for name in ("actor", "critic")]
    groups = [{"params": [part], "lr": rate} for part, rate in zip(parts, (1e-3, 1e-2), strict=True)]
    reference = torch.optim.Adam(groups, betas=(0.8, 0.9), eps=1e-5)
    for _ in range(5):
        gradient = torch.randn(ours.values.shape)
        ours.gradient.copy_(gradient)
        for part, name in zip(parts, ("actor", "critic"), strict=True):
            part.grad = gradient[ours.range_of(name)].clone()
        adam.step()
        reference.step()
    torch.testing.assert_close(ours.values.data, torch.cat([part.data for part in parts]), rtol=1e-5, atol=1e-6)
    assert adam.state[ours.values]["step"] == 5


class NotedRates:
    """Notes the learning rate of each step of torch's kernel, and steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates: list[object] = []
        self._step = torch._fused_adam_
        monkeypatch.setattr(torch, "_fused_adam_", self)

    def __call__(self, *arguments: Any, lr: Any, **keywords: Any) -> None:
        self.rates.append(lr)
        self._step(*arguments, lr=lr, **keywords)


def test_a_replayed_step_would_see_a_change_of_rates_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, adam = NotedRates(monkeypatch), FlatAdam(make_parameters(), {"actor": 0.5, "critic": 0.5})
    adam.keep_learning_rates_on_device()
    adam.step()
    recorded = list(noted.rates)
    adam.set_learning_rates({"actor": 0.25, "critic": 0.125})
    adam.step()
    assert all(isinstance(rate, torch.Tensor) for rate in recorded)
    assert all(rate is again for rate, again in zip(recorded, noted.rates[len(recorded) :], strict=True))
    assert recorded == [0.25, 0.125]  # one for each network, although both were equal while the step was recorded


def test_rates_on_the_device_are_forgotten_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, adam = NotedRates(monkeypatch), FlatAdam(make_parameters(), {"actor": 0.5, "critic": 0.5})
    adam.keep_learning_rates_on_device()
    adam.keep_learning_rates_on_host()
    adam.step()
    assert isinstance(noted.rates[0], float)


def test_the_first_step_is_the_learning_rate_against_the_sign_of_the_gradient() -> None:
    parameters = FlatParameters({"actor": nn.Linear(1, 1), "critic": nn.Linear(1, 1)})
    before = parameters.values.detach().clone()
    parameters.gradient.copy_(torch.tensor([3.0, -0.5, 2.0, -7.0]))
    FlatAdam(parameters, {"actor": 0.1, "critic": 0.2}, eps=0.0).step()
    moved = (parameters.values.detach() - before).tolist()
    assert moved == pytest.approx([-0.1, 0.1, -0.2, 0.2], rel=1e-4)
