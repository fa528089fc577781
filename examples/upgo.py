"""UPGO: advantages that follow a trajectory as long as it goes better than expected.

    python examples/upgo.py

Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", 2019, the section on
upgoing policy updates. The return of a step goes on with that of the next one if the next step was at least as good as
the critic's value, and else with the value alone. The critic learns the usual returns. AlphaStar adds the loss of these
advantages to another one; here, they replace the usual advantages.
"""

from typing import Any

import torch
from torch import Tensor

import hybridppo
from hybridppo.rollouts.advantages import gae


def upgo(*, gae_lambda: float, **steps: Any) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[T, N]`; the arguments are those of `gae`."""
    was_good = (gae(gae_lambda=0.0, **steps) >= 0.0).float()
    next_was_good = torch.cat((was_good[1:], torch.ones_like(was_good[:1])))
    returns = gae(gae_lambda=gae_lambda, **steps) + steps["values"]
    return gae(gae_lambda=1.0, next_weights=next_was_good, **steps), returns


if __name__ == "__main__":
    result = hybridppo.train("CartPole-v1", total_steps=20_000, advantages=upgo)
    print(result.metrics["episode_return_mean"])
