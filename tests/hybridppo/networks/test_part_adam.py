"""Adam that steps each network separately: the bits of two torch optimizers."""

import torch
from torch import nn

from hybridppo.networks.parameters import FlatAdam, FlatParameters


def test_parts_are_stepped_as_if_each_had_an_optimizer_of_its_own() -> None:
    torch.manual_seed(0)
    parameters = FlatParameters({"actor": nn.Linear(3, 2), "critic": nn.Linear(4, 5)})
    rates = {"actor": 0.1, "critic": 0.03}
    plain = {name: nn.Parameter(parameters.of(name).clone()) for name in rates}
    optimizers = {name: torch.optim.Adam([plain[name]], lr=rate, fused=True) for name, rate in rates.items()}
    adam = FlatAdam(parameters, rates, apart=True)
    for part in ("critic", "actor", "critic", "critic", "actor"):
        parameters.gradient.normal_()
        adam.step_part(part)
        plain[part].grad = parameters.gradient[parameters.range_of(part)].clone()
        optimizers[part].step()
        assert all(torch.equal(parameters.of(name), plain[name]) for name in rates)
    slots = adam.state[parameters.values]
    assert (slots["step_actor"].item(), slots["step_critic"].item()) == (2, 3)
