"""Phasic policy gradient (PPG): after every few updates, the policy's network learns values in an auxiliary phase.

    python examples/ppg.py

Cobbe et al., "Phasic Policy Gradient", 2021, algorithm 1. In the auxiliary phase, a further head on the actor's hidden
layers predicts the returns of the last updates, while a divergence keeps the policy as it is; the critic learns the
same returns again. The paper has a phase after every 32 updates, and here it is after every 4, because the training is
short.
"""

from typing import Any

import torch
from torch import Tensor, nn

import hybridppo


class PPG(hybridppo.PPO):
    """PPO with an auxiliary phase."""

    def make_modules(self) -> Any:
        """The head, and a memory of observations and returns."""
        if self.config.recurrent is not None:
            raise hybridppo.ConfigurationError("the auxiliary phase has no sequences: leave recurrent out")
        size, memory = (self.settings["updates_between"], self.config.batch_size), nn.Module()
        space: Any = self.observation_space
        memory.register_buffer("observations", torch.zeros(*size, *space.shape))
        memory.register_buffer("returns", torch.zeros(size))
        return {"head": nn.Linear(self.config.hidden_sizes[-1], 1), "memory": memory}

    def prepared(self, rollout: Any) -> Any:
        """PPO's, which the memory keeps."""
        steps, memory = super().prepared(rollout), self.modules_of["memory"]
        number = self.version % len(memory.returns)
        kept = steps.map(rollout.steps).some(memory.returns.shape[1])  # some repeat if not every row is a step
        memory.observations[number], memory.returns[number] = kept.observations, kept.returns
        return steps

    def after_update(self, rollout: Any, metrics: Any) -> Any:
        """An auxiliary phase if the memory is full: six epochs."""
        memory = self.modules_of["memory"]
        if (self.version + 1) % len(memory.returns) != 0:
            return None
        rows = memory.observations.flatten(0, 1)
        columns = {"rows": rows, "returns": memory.returns.flatten(), "old": self.actor_network(rows).detach()}
        return {"auxiliary_loss": self.optimize(self.auxiliary_loss, columns, num_epochs=6, minibatch_size=64)}

    def auxiliary_loss(self, rows: Tensor, returns: Tensor, old: Tensor) -> Tensor:
        """The errors of both predictions, and the divergence of the policy from what it was."""
        kl = self.distribution.kl(old, self.actor_network(rows)).mean()
        predictions = self.modules_of["head"](self.actor_network.body(rows))
        values = torch.cat((predictions, self.critic_network(rows)), -1)  # [B, 2]
        return 0.5 * (values - returns[:, None]).square().sum(-1).mean() + kl


if __name__ == "__main__":
    config, settings = hybridppo.PPOConfig(num_epochs=1), {"updates_between": 4}
    result = hybridppo.train("CartPole-v1", total_steps=50_000, agent=PPG, config=config, settings=settings)
    print(result.metrics["episode_return_mean"])
