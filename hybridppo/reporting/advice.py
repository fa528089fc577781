"""What the last metrics of a training tell that its return does not, and what to try."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

LITTLE_EXPLAINED = 0.1
"""Of the variance of returns: below, the critic is next to no help."""
ITERATIONS_TO_LEARN = 20
"""Before so many, that is no wonder."""
ALIKE = 0.01
"""Returns whose range is a smaller part of them leave a critic nothing to explain."""


def advice(metrics: Mapping[str, float], config: Any, evaluation: Sequence[float] | None = None) -> list[str]:
    """Sentences for whoever has trained, none where all is well.

    Args:
        metrics: of the last iteration.
        config: of the agent.
        evaluation: returns of episodes with the most probable actions, where there were such.
    """
    found = []
    explained = metrics.get("explained_variance", math.nan)
    is_long = metrics.get("iteration", 0) >= ITERATIONS_TO_LEARN
    if explained < LITTLE_EXPLAINED and is_long and not _are_alike(evaluation):
        remedies = {
            "normalize_rewards=True (--normalize-rewards)": not config.normalize_rewards,
            "clip_range_vf=None (--clip-range-vf None), where returns are large": config.clip_range_vf is not None,
            "normalize_observations=True (--normalize-observations)": not config.normalize_observations,
            "a larger learning rate for the critic (critic_learning_rate)": config.critic_learning_rate is None,
        }
        what = "; ".join([remedy for remedy, is_left in remedies.items() if is_left][:2])
        found.append(
            f"the critic explains next to nothing of the returns (explained_variance {explained:.2f}), and without it "
            f"PPO learns slowly. Try {what or 'more steps'}"
        )
    sampled = metrics.get("episode_return_mean", math.nan)
    if evaluation and math.isfinite(sampled):
        mean = sum(evaluation) / len(evaluation)
        if sampled - mean > 0.5 * max(abs(sampled), abs(mean), 1e-9):
            found.append(
                f"the most probable actions give {mean:.1f}, where sampled ones gave {sampled:.1f}: the policy still "
                "needs its randomness. Train for more steps, or evaluate and act with deterministic=False "
                "(--no-deterministic)"
            )
    return found


def _are_alike(returns: Sequence[float] | None) -> bool:
    """As those of an agent that always reaches the most there is to have."""
    return returns is not None and len(returns) > 0 and max(returns) - min(returns) <= ALIKE * max(map(abs, returns))
