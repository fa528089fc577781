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
from hybridppo.agents.agent import fill_gradient


class PPG(hybridppo.PPO):
    """PPO with an auxiliary phase."""

    def make_networks(self, seed: int) -> Any:
        """PPO's networks, and a memory of observations and returns, whose size depends on the configuration."""
        size, memory = (self.settings["updates_between"], self.config.batch_size), nn.Module()
        memory.register_buffer("observations", torch.zeros(*size, *self.observation_space.shape))
        memory.register_buffer("returns", torch.zeros(size))
        self.modules_of["memory"] = memory
        return super().make_networks(seed)

    def prepared(self, rollout: Any) -> Any:
        """PPO's, which the memory keeps."""
        steps, memory = super().prepared(rollout), self.modules_of["memory"]
        number = self.version % len(memory.returns)
        kept = steps.map(rollout.steps).some(memory.returns.shape[1])  # some repeat if not every row is a step
        memory.observations[number], memory.returns[number] = kept.observations, kept.returns
        return steps

    def update(self, rollout: Any) -> Any:
        """PPO's update, and an auxiliary phase if the memory is full."""
        metrics, memory = super().update(rollout), self.modules_of["memory"]
        if self.version % len(memory.returns) == 0:
            self.auxiliary_phase(memory.observations.flatten(0, 1), memory.returns.flatten())
        return metrics

    def auxiliary_phase(self, observations: Tensor, returns: Tensor) -> None:
        """Six epochs."""
        old, generator = self.actor_network(observations).detach(), torch.Generator().manual_seed(self.version)
        for _ in range(6):
            for rows in torch.randperm(len(returns), generator=generator).split(self.config.samples_per_minibatch):
                fill_gradient(self.parameters, self.auxiliary_loss(observations[rows], returns[rows], old[rows]))
                self.optimizer.step()

    def auxiliary_loss(self, observations: Tensor, returns: Tensor, old: Tensor) -> Tensor:
        """The errors of both predictions, and the divergence of the policy from what it was."""
        kl = self.distribution.kl(old, self.actor_network(observations)).mean()
        auxiliary = self.modules_of["head"](self.actor_network.body(observations))
        values = torch.cat((auxiliary, self.critic_network(observations)), -1)  # [B, 2]
        return 0.5 * (values - returns[:, None]).square().sum(-1).mean() + kl


if __name__ == "__main__":
    parts = {"agent": PPG, "modules": {"head": nn.Linear(64, 1)}, "settings": {"updates_between": 4}}
    result = hybridppo.train("CartPole-v1", total_steps=50_000, config=hybridppo.PPOConfig(num_epochs=1), **parts)
    print(result.metrics["episode_return_mean"])
