"""What tests compare of trainings: parameters, and the metrics that no clock has a part in."""

from collections.abc import Mapping
from typing import Any

import hybridppo

MEASURED = ("seconds", "steps_per_second", "bytes_copied")


def values_of(result: hybridppo.TrainResult) -> Any:
    """The parameters of all agents, `[number]`, a copy."""
    import torch

    return torch.cat([agent.parameters.dense(agent.parameters.values.data).cpu() for agent in result.agents.values()])


def counted(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are the same on every machine and for every placement."""
    return {name: value for name, value in metrics.items() if not name.startswith(MEASURED)}


def state_of(agent: Any) -> dict[str, Any]:
    """Parameters, buffers and moments, on the CPU, copies."""
    return {name: tensor.detach().cpu().clone() for name, tensor in agent.state()[0].items()}


def assert_same_agents(one: Any, other: Any, about: str = "") -> None:
    """With the same bits in all that they save."""
    assert_same(state_of(one), state_of(other), about)


def assert_same(some: Mapping[str, Any], others: Mapping[str, Any], about: str = "") -> None:
    """Tensors by name, with the same bits."""
    import torch

    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), f"{name} {about}"
