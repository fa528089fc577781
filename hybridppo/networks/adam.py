"""Adam over flat parameters.

Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from hybridppo.networks.parameters import FlatParameters


class FlatAdam:
    """Adam over one buffer of parameters, with a learning rate for each network in it.

    It calls torch's fused kernel, so its result equals that of `torch.optim.Adam(fused=True)` bit by bit. For small
    networks, the bookkeeping of that class takes three times as long as the kernel.

    Args:
        parameters: the buffer and its gradient.
        learning_rates: the learning rate of each network, by name.
        betas: decay of the first and second moments.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        learning_rates: Mapping[str, float],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self._parameters, self.betas, self.eps = parameters, betas, eps
        values = parameters.values
        self.state: dict[Tensor, dict[str, Tensor]] = {
            values: {
                "step": torch.zeros((), device=values.device),
                "exp_avg": torch.zeros_like(values.data),
                "exp_avg_sq": torch.zeros_like(values.data),
            }
        }
        """`step` and both moments for the flat parameter, as torch's optimizers keep them."""
        self._rates_on_device: dict[str, Tensor] = {}
        self.set_learning_rates(learning_rates)

    def set_learning_rates(self, learning_rates: Mapping[str, float]) -> None:
        """Set the learning rates of the next steps, by network."""
        self.learning_rates = dict(learning_rates)
        self._is_one_rate = len(set(learning_rates.values())) == 1
        for name, rate in self._rates_on_device.items():
            rate.fill_(learning_rates[name])

    def keep_learning_rates_on_device(self) -> None:
        """Keep the rates in a tensor on the device, so that a recorded and replayed step sees a change of the rates.

        This holds until `keep_learning_rates_on_host`, which must be called after the parameters have moved: recordings
        are invalid then, and the kernel refuses rates and parameters on different devices.
        """
        device = self._parameters.values.device
        self._rates_on_device = {
            name: torch.full((), rate, device=device) for name, rate in self.learning_rates.items()
        }

    def keep_learning_rates_on_host(self) -> None:
        """Keep the rates on the host, as at first: each step uses the rates that are set when it is made."""
        self._rates_on_device = {}

    def forget(self, parts: Iterable[slice]) -> None:
        """Set the moments of these parts of the buffer to zero: without a gradient, they then stay as they are."""
        slots = self.state[self._parameters.values]
        for part in parts:
            slots["exp_avg"][part] = slots["exp_avg_sq"][part] = 0.0

    def step(self) -> None:
        """Step along the gradient."""
        step = self.state[self._parameters.values]["step"]
        step.add_(1.0)
        rates: Mapping[str, float | Tensor] = self._rates_on_device or self.learning_rates
        if self._is_one_rate and not self._rates_on_device:  # one kernel for all networks, unless rates may part later
            self._step(None, step, next(iter(rates.values())))
            return
        for name, learning_rate in rates.items():
            self._step(self._parameters.range_of(name), step, learning_rate)

    def _step(self, part: slice | None, step: Tensor, learning_rate: float | Tensor) -> None:
        """Step a part of the parameters; None for all."""
        slots = self.state[self._parameters.values]
        everything = self._parameters.values.data, self._parameters.gradient, slots["exp_avg"], slots["exp_avg_sq"]
        values, gradient, exp_avg, exp_avg_sq = everything if part is None else (tensor[part] for tensor in everything)
        torch._fused_adam_(
            [values], [gradient], [exp_avg], [exp_avg_sq], [], [step],
            lr=learning_rate, beta1=self.betas[0], beta2=self.betas[1], eps=self.eps,
            weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip


class PartAdam(FlatAdam):
    """`FlatAdam` with a step count for each network, for agents that step the actor less often than the critic.

    Args:
        parameters: the buffer and its gradient.
        learning_rates: the learning rate of each network, by name.
    """

    def __init__(self, parameters: FlatParameters, learning_rates: Mapping[str, float]) -> None:
        super().__init__(parameters, learning_rates)
        slots = self.state[parameters.values]
        del slots["step"]
        for name in learning_rates:
            slots[f"step_{name}"] = torch.zeros((), device=parameters.values.device)

    def step(self) -> None:
        """Step all networks."""
        for name in self.learning_rates:
            self.step_part(name)

    def step_part(self, name: str) -> None:
        """Step one network; the parameters and moments of the others stay as they are."""
        step = self.state[self._parameters.values][f"step_{name}"]
        step.add_(1.0)
        rates = self._rates_on_device or self.learning_rates
        self._step(self._parameters.range_of(name), step, rates[name])
