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

from torch import Tensor

import hybridppo
from hybridppo.agents.ppo.loss import Loss, LossInputs


class KLPenalty(hybridppo.PPO):
    """PPO with another loss and a coefficient that follows the divergence."""

    beta = 1.0

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss without clipping, and the penalty."""
        loss = super().loss(inputs, math.inf)
        kl = self.distribution.kl(inputs.old_outputs, inputs.outputs).mean()
        return replace(loss, total=loss.total + self.beta * kl, extra={"kl": kl})

    def after_update(self, rollout: Any, metrics: Any) -> Any:
        """The coefficient of the next update."""
        target = self.settings["kl_target"]
        self.beta *= 2.0 if metrics["kl"] > 1.5 * target else 0.5 if metrics["kl"] < target / 1.5 else 1.0
        return {"beta": self.beta}

    def extra_state(self) -> Any:
        """The coefficient, which is saved with the agent."""
        return {"beta": self.beta}

    def load_extra_state(self, state: Any) -> None:
        """Restore the result of `extra_state`."""
        self.beta = state["beta"]


if __name__ == "__main__":
    settings = {"kl_target": 0.01}
    result = hybridppo.train("CartPole-v1", total_steps=20_000, agent=KLPenalty, settings=settings)
    print(result.metrics["kl"], result.metrics["beta"])
