"""PPO with an adaptive KL penalty in place of clipping.

    python examples/kl_penalty.py

Schulman et al., "Proximal Policy Optimization Algorithms", 2017, section 4. The ratio is not clipped. The loss has the
divergence between the policies before the update and now, times a coefficient. An update doubles the coefficient if the
divergence was above 1.5 times its target, and halves it below the target divided by 1.5. The divergence is the mean
over all minibatches of the update; the paper measures it once after the update.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridppo
from hybridppo.agents.ppo.loss import Loss, LossInputs


class Coefficient(nn.Module):
    """A number that is saved with the agent."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(value))


class KLPenalty(hybridppo.PPO):
    """PPO with another loss and a coefficient that follows the divergence."""

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss without clipping, and the penalty."""
        loss, beta = super().loss(inputs, math.inf), self.modules_of["beta"].value
        kl = self.distribution.kl(inputs.old_outputs, inputs.outputs).mean()
        return replace(loss, total=loss.total + beta * kl, extra={"kl": kl, "beta": beta})

    def update(self, rollout: Any) -> Any:
        """An update, and the coefficient of the next one."""
        metrics, target, beta = super().update(rollout), self.settings["kl_target"], self.modules_of["beta"].value
        beta *= 2.0 if metrics["kl"] > 1.5 * target else 0.5 if metrics["kl"] < target / 1.5 else 1.0
        return metrics


if __name__ == "__main__":
    parts = {"agent": KLPenalty, "modules": {"beta": Coefficient(1.0)}}
    result = hybridppo.train("CartPole-v1", total_steps=20_000, settings={"kl_target": 0.01}, **parts)
    print(result.metrics["kl"], result.metrics["beta"])
