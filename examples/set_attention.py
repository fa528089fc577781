"""Attention over a set: a policy that chooses one of several items, whatever their order.

    python examples/set_attention.py

Lee et al., "Set Transformer", 2019, section 3.1: self-attention without positions, here with one head. The actor gives
each item its logit, and the critic averages over the items: if items change places, logits change places with them, and
the value stays. In the environment, the agent must choose the point that is nearest to the middle of all points.
Networks of one's own act in torch, so that worker processes (`num_workers=2`) are refused.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import hybridppo


class Nearest(gym.Env[Any, Any]):
    """Six points in the plane; the reward is 1 for the one that is nearest to their mean."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (6, 2))
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: D102 - gymnasium's
        super().reset(seed=seed)
        self.points = self.np_random.uniform(-1.0, 1.0, (6, 2)).astype(np.float32)
        return self.points, {}

    def step(self, action: Any) -> Any:  # noqa: D102 - gymnasium's
        nearest = np.linalg.norm(self.points - self.points.mean(0), axis=1).argmin()
        return self.points, float(action == nearest), True, False, {}


class SetNetwork(nn.Module):
    """A number for each item, `[B, items]`, or their mean, `[B, 1]`."""

    def __init__(self, shape: tuple[int, ...], is_pooled: bool) -> None:
        super().__init__()
        self.shape, self.is_pooled = shape, is_pooled
        self.embed, self.head = nn.Linear(shape[-1], 64), nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.queries_keys_values = nn.Linear(64, 3 * 64)

    def forward(self, rows: Tensor) -> Tensor:
        """The numbers for rows `[B, items * numbers]`."""
        items = self.embed(rows.unflatten(-1, self.shape))  # [B, items * numbers] -> [B, items, 64]
        items = items + scaled_dot_product_attention(*self.queries_keys_values(items).chunk(3, -1))
        found: Tensor = self.head(items).squeeze(-1)
        return found.mean(-1, keepdim=True) if self.is_pooled else found


def networks(observation_space: Any, action_space: Any, config: Any, generator: torch.Generator) -> Any:
    """The actor and the critic."""
    return SetNetwork(observation_space.shape, False), SetNetwork(observation_space.shape, True)


if __name__ == "__main__":
    result = hybridppo.train(Nearest, total_steps=30_000, networks=networks)
    print(result.metrics["episode_return_mean"])
