"""Curiosity by random network distillation (RND), with a critic and a discount of its own.

    python examples/rnd.py

Burda et al., "Exploration by Random Network Distillation", 2019, sections 2.2 to 2.4. A predictor learns the outputs of
a fixed random network, the target. Its error is the novelty of a state, which is divided by the deviation of the
discounted sums of novelty so far. Returns of novelty do not end with an episode. The policy learns from twice the
advantages of rewards plus those of novelty. The sums begin anew in each rollout, and the predictor learns from all
steps; the paper continues them, and drops some steps.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridppo
from hybridppo.agents.ppo.loss import Loss, LossInputs
from hybridppo.networks.actors import RunningMoments, moments_of
from hybridppo.rollouts.advantages import discounted_sums


class RND(hybridppo.PPO):
    """PPO whose policy also learns from novelty."""

    keeps_final_observations = True

    def make_modules(self) -> Any:
        """The two networks of novelty, a critic of it, and the moments of its sums."""
        modules = {"target": self.mlp(16), "predictor": self.mlp(16), "novelty_critic": self.mlp(1)}
        return {**modules, "moments": RunningMoments()}

    def mlp(self, outputs: int) -> nn.Module:
        """A network for an observation of numbers."""
        (inputs,) = self.observation_space.shape or ()
        return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))

    def novelty(self, observations: Tensor) -> Tensor:
        """The predictor's squared error, `[...]` for observations `[..., row]`."""
        target = self.modules_of["target"](observations).detach()
        return (self.modules_of["predictor"](observations) - target).square().mean(-1)

    def prepared(self, rollout: Any) -> Any:
        """The returns of novelty, and the advantages of both."""
        steps, moments, gamma = super().prepared(rollout), self.modules_of["moments"], self.settings["novelty_gamma"]
        novelty, endless = self.novelty(rollout.next_observations), rollout.without_ends()
        sums = discounted_sums(terms=novelty, decay=torch.full_like(novelty, gamma))
        moments.merge(*moments_of(rollout.steps(sums)))
        rewards = novelty * (moments.variance + 1e-8).rsqrt()
        values, following = self.values(endless, critic=self.modules_of["novelty_critic"])
        own, returns = self.targets(endless, rewards=rewards, values=values, next_values=following, gamma=gamma)
        columns = {"reached": rollout.next_observations, "novelty_returns": returns}
        return steps.with_columns(advantages=2.0 * steps.advantages + own, **columns)

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """PPO's loss, and those of the predictor and of the critic of novelty."""
        loss, novelty = super().loss(inputs, clip_range), self.novelty(inputs.columns["reached"]).mean()
        values = self.modules_of["novelty_critic"](inputs.observations).squeeze(-1)
        error = 0.5 * (values - inputs.columns["novelty_returns"]).square().mean()
        return replace(loss, total=loss.total + novelty + error, extra={"novelty": novelty})


if __name__ == "__main__":
    config, settings = hybridppo.PPOConfig(gamma=0.999, normalize_observations=True), {"novelty_gamma": 0.99}
    result = hybridppo.train("CartPole-v1", total_steps=20_000, agent=RND, config=config, settings=settings)
    print(result.metrics["novelty"])
