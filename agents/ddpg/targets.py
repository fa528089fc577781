"""What the critics learn towards. Pure functions of tensors.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning", 2016 (algorithm 1); Fujimoto et al.,
"Addressing Function Approximation Error in Actor-Critic Methods", 2018 (algorithm 1, equations 10 and 14).
"""

from torch import Tensor


def smoothed(*, actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The target actor's actions with clipped noise on them, from -1 to 1.

    Args:
        actions: `[B, d]`, from -1 to 1.
        noise: `[B, d]`.
        clip: how large noise may be.
    """
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def targets(*, returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """`returns + discounts * min over critics of next_values`, `[B]`.

    Args:
        returns: `[B]`, the discounted rewards that were observed.
        discounts: `[B]`, of what followed; 0 where nothing did.
        next_values: `[B, C]`, as each target critic has it.
    """
    return returns + discounts * next_values.amin(-1)


def critic_loss(*, values: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error over the minibatch, summed over critics.

    Args:
        values: `[B, C]`.
        targets: `[B]`.
    """
    return (values - targets.unsqueeze(-1)).square().mean(0).sum()
