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

    def make_modules(self) -> Any:
        """The coefficient, which begins at 1."""
        return {"beta": Coefficient(1.0)}

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss without clipping, and the penalty."""
        loss, beta = super().loss(inputs, math.inf), self.modules_of["beta"].value
        kl = self.distribution.kl(inputs.old_outputs, inputs.outputs).mean()
        return replace(loss, total=loss.total + beta * kl, extra={"kl": kl})

    def after_update(self, rollout: Any, metrics: Any) -> Any:
        """The coefficient of the next update."""
        beta, target = self.modules_of["beta"].value, self.settings["kl_target"]
        beta *= 2.0 if metrics["kl"] > 1.5 * target else 0.5 if metrics["kl"] < target / 1.5 else 1.0
        return {"beta": beta}


if __name__ == "__main__":
    settings = {"kl_target": 0.01}
    result = hybridppo.train("CartPole-v1", total_steps=20_000, agent=KLPenalty, settings=settings)
    print(result.metrics["kl"], result.metrics["beta"])
