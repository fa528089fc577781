"""Adam over flat parameters of which each network is stepped by itself."""

from collections.abc import Mapping

import torch

from hybridppo.networks.adam import FlatAdam
from hybridppo.networks.parameters import FlatParameters


class PartAdam(FlatAdam):
    """`FlatAdam` with a count of steps for each network, for agents whose actor is stepped less often than the critic.

    Args:
        parameters: the buffer, and its gradient.
        learning_rates: by network; every network's.
    """

    def __init__(self, parameters: FlatParameters, learning_rates: Mapping[str, float]) -> None:
        super().__init__(parameters, learning_rates)
        slots = self.state[parameters.values]
        del slots["step"]
        for name in learning_rates:
            slots[f"step_{name}"] = torch.zeros((), device=parameters.values.device)

    def step(self) -> None:
        """Step every network along its gradient."""
        for name in self.learning_rates:
            self.step_part(name)

    def step_part(self, name: str) -> None:
        """Step one network along its gradient; the others stay, and so do their moments."""
        slots, part = self.state[self._parameters.values], self._parameters.range_of(name)
        tensors = (self._parameters.values.data, self._parameters.gradient, slots["exp_avg"], slots["exp_avg_sq"])
        slots[f"step_{name}"].add_(1.0)
        rates = self._rates_on_device or self.learning_rates
        self._step([tensor[part] for tensor in tensors], slots[f"step_{name}"], rates[name])
