"""Symmetry: the policy should take the mirrored action in the mirrored state.

    python examples/symmetry.py

Yu et al., "Learning Symmetric and Low-Energy Locomotion", 2018, the mirror symmetry loss. PPO's loss gets the squared
difference between the policy and its mirror image. In CartPole, a mirror changes all signs, and left for right.
"""

from dataclasses import replace

from torch import Tensor

import hybridppo
from hybridppo import PPOConfig
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss


def symmetric(inputs: LossInputs, config: PPOConfig, clip_range: float | Tensor) -> Loss:
    """PPO's loss, and the asymmetry of the policy."""
    loss = ppo_loss(inputs, config, clip_range)
    mirrored = inputs.agent.actor(-inputs.raw_observations).flip(-1)  # left for right
    error = (inputs.outputs.softmax(-1) - mirrored.softmax(-1)).square().mean()
    return replace(loss, total=loss.total + config.settings["symmetry"] * error, extra={"asymmetry": error})


if __name__ == "__main__":
    result = hybridppo.train("CartPole-v1", total_steps=20_000, loss=symmetric, settings={"symmetry": 1.0})
    print(result.metrics["asymmetry"])
