"""PPO-Lagrangian: a limit on the mean cost of a step, with a critic of costs and a multiplier that is learned.

    python examples/ppo_lagrangian.py

Ray, Achiam and Amodei, "Benchmarking Safe Exploration in Deep Reinforcement Learning", 2019, the Lagrangian methods.
Costs have values, advantages and returns of their own. The policy learns from the advantages of rewards minus those of
costs times the multiplier, divided by 1 + multiplier as in the authors' code. Here, a step costs 1 if the cart
is faster than 0.2 after it, and the mean cost may be 0.1; the paper limits the cost of an episode.
"""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

import hybridppo
from hybridppo.agents.ppo.loss import Loss, LossInputs


class WithCost(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole whose info has the cost of each step."""

    def step(self, action: Any) -> Any:  # noqa: D102 - gymnasium's
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "cost": float(abs(observation[1]) > 0.2)}


def make() -> Any:
    """The environment."""
    return WithCost(gym.make("CartPole-v1"))


class CostCritic(nn.Sequential):
    """The values of costs `[..., 1]`, and the multiplier, which is saved with them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        self.register_buffer("multiplier", torch.tensor(0.0))


class PPOLagrangian(hybridppo.PPO):
    """PPO whose policy also learns from costs."""

    def make_modules(self) -> Any:
        """The critic of costs."""
        return {"costs": CostCritic()}

    def prepared(self, rollout: Any) -> Any:
        """The multiplier's step, the returns of costs, and the advantages of both."""
        steps, critic = super().prepared(rollout), self.modules_of["costs"]
        costs = rollout.infos["cost"]
        excess = rollout.steps(costs).mean() - self.settings["cost_limit"]
        critic.multiplier.add_(self.settings["multiplier_rate"] * excess).clamp_(min=0.0)
        values, following = self.values(rollout, critic=critic)
        own, returns = self.targets(rollout, rewards=costs, values=values, next_values=following)
        both = (steps.advantages - critic.multiplier * own) / (1.0 + critic.multiplier)
        return steps.with_columns(advantages=both, cost_returns=returns)

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """PPO's loss, and that of the critic of costs."""
        loss, critic = super().loss(inputs, clip_range), self.modules_of["costs"]
        error = 0.5 * (critic(inputs.observations).squeeze(-1) - inputs.columns["cost_returns"]).square().mean()
        extra = {"cost": inputs.columns["cost"].mean(), "multiplier": critic.multiplier}
        return replace(loss, total=loss.total + self.current.value_coef * error, extra=extra)


if __name__ == "__main__":
    settings = {"cost_limit": 0.1, "multiplier_rate": 0.1}
    result = hybridppo.train(make, total_steps=100_000, agent=PPOLagrangian, settings=settings, step_infos=("cost",))
    print(result.metrics["cost"], result.metrics["multiplier"])
