"""Advice at the end of a training, from its last metrics."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybridppo.system.messages import shown_number

LITTLE_EXPLAINED = 0.1
"""If the explained variance of returns is below this, the critic hardly helps."""
LARGE_ERROR = 10.0
"""If the root mean squared error of values is above this, its gradient drowns the actor's."""
ITERATIONS_TO_LEARN = 20
"""Before this, a poor critic is normal."""
ENOUGH_EPISODES = 5
"""Means over fewer episodes differ by chance."""


def advice(metrics: Mapping[str, float], config: Any, evaluation: Sequence[float] | None = None) -> list[str]:
    """Sentences of advice that is certain to apply.

    Args:
        metrics: metrics of the last iteration.
        config: the agent's settings.
        evaluation: returns of episodes with the most probable actions, if there were any.
    """
    found = []
    explained, error = metrics.get("explained_variance", math.nan), metrics.get("value_loss", math.nan)
    is_long = metrics.get("iteration", 0) >= ITERATIONS_TO_LEARN
    # If returns hardly vary, as in a solved task, the critic has nothing to explain, and its error is small.
    if is_long and explained < LITTLE_EXPLAINED and error > 0.5 * LARGE_ERROR**2:
        remedies = {
            "normalize_rewards=True (--normalize-rewards)": not config.normalize_rewards,
            "clip_range_vf=None (--clip-range-vf None)": config.clip_range_vf is not None,
        }
        if what := "; ".join(remedy for remedy, is_left in remedies.items() if is_left):
            found.append(
                f"the critic explains next to nothing of the returns (explained_variance {explained:.2f}), and is off "
                f"by {math.sqrt(2.0 * error):.0f} (root mean square): the returns are large. Try {what}"
            )
    if metrics.get("gradient_steps") == 0:
        steps = f"{metrics['env_steps']:,} steps are within learning_starts, {config.learning_starts:,}"
        found.append(
            f"nothing was learned: {steps}. Raise total_steps (--total-steps), or lower learning_starts "
            "(--learning-starts)"
        )
    sampled = metrics.get("episode_return_mean", math.nan)
    if evaluation and len(evaluation) >= ENOUGH_EPISODES and math.isfinite(sampled):
        mean = sum(evaluation) / len(evaluation)
        variance = sum((value - mean) ** 2 for value in evaluation) / (len(evaluation) - 1)
        gap = sampled - mean
        if gap > max(0.5 * max(abs(sampled), abs(mean), 1e-9), 3.0 * math.sqrt(variance / len(evaluation))):
            found.append(
                f"the most probable actions give {shown_number(mean)}, where sampled ones gave {shown_number(sampled)} "
                "during training. Evaluate with deterministic=False (--no-deterministic): if that gives about "
                f"{shown_number(sampled)}, the policy still needs its randomness, so train for more steps or act with "
                "deterministic=False"
            )
    return found
