"""The loss of PPO: what an optimizer step descends on a minibatch.

    policy_loss - entropy_coef * mean(entropy) + value_coef * value_loss

This is the place to change it; its terms are in `losses.py`. A loss of one's own is a function like `ppo_loss`, for
`hybridppo.train(..., loss=my_loss)`, or a method of a subclass, `PPO.loss`. Either is differentiated by autograd.

Where nobody has one, small networks on a CPU learn by the gradient that `numpy_passes.py` writes out by hand. At the
start of every run both are computed once and compared: if a formula was changed here alone, a warning says so, and
autograd is taken.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.losses import clipped_value_loss, policy_loss, value_loss


@dataclass(frozen=True)
class LossInputs:
    """What a loss is made of: a minibatch as actor and critic see it now. All are `[B]`."""

    log_ratio: Tensor
    """The log-probability of the action now, less that when it was taken."""
    advantages: Tensor
    """Normalised by `losses.normalize`, if `normalize_advantage` says so."""
    entropy: Tensor
    """Of the action distribution, in nats."""
    values: Tensor
    """The critic's, now."""
    old_values: Tensor
    """The critic's, before the update."""
    returns: Tensor
    """What the values should be."""


@dataclass(frozen=True)
class Loss:
    """A loss and its terms, scalars."""

    total: Tensor
    """What is differentiated."""
    policy: Tensor
    value: Tensor
    entropy: Tensor
    """The mean entropy."""


class LossFunction(Protocol):
    """A loss, `ppo_loss` or one's own."""

    def __call__(self, inputs: LossInputs, config: PPOConfig, clip_range: float | Tensor) -> Loss:
        """The loss on one minibatch; `clip_range` is that of this update, which may be annealed."""
        ...


def ppo_loss(inputs: LossInputs, config: PPOConfig, clip_range: float | Tensor) -> Loss:
    """The clipped surrogate, the value loss and the entropy bonus (Schulman et al., 2017, equation 9)."""
    policy = policy_loss(log_ratio=inputs.log_ratio, advantages=inputs.advantages, clip_range=clip_range)
    if config.clip_range_vf is None:
        value = value_loss(values=inputs.values, returns=inputs.returns)
    else:
        value = clipped_value_loss(
            values=inputs.values,
            returns=inputs.returns,
            old_values=inputs.old_values,
            clip_range=config.clip_range_vf,
        )
    entropy = inputs.entropy.mean()
    return Loss(policy - config.entropy_coef * entropy + config.value_coef * value, policy, value, entropy)
