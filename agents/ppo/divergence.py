"""Errors for a loss or a gradient that is not finite. The parameters are unusable by then."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.agents.ppo.normalization import Normalization
from hybridppo.errors import TrainingError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.on_tensors import numbers_of


def divergence(
    iteration: int, config: PPOConfig, rollout: Rollout, batch: Batch, epochs: list[Tensor], parameters: Tensor
) -> TrainingError:
    """The error with the name of the first quantity that is not finite, in the order of computation.

    Args:
        iteration: the number of the iteration, from 1.
        config: the settings, which may be the cause.
        rollout: the rollout of the update.
        batch: the batch made of it.
        epochs: for each epoch, the statistics of its minibatches, `[M, len(STATISTICS)]`.
        parameters: `[P]`, after the last optimizer step.
    """
    what = next(_quantities(rollout, batch, epochs, parameters), "the sum of a statistic over the minibatches")
    rewards, observations = _extremes(rollout.rewards), _extremes(batch.inputs)
    return TrainingError(
        f"training stopped in iteration {iteration}: the first quantity that is not finite is {what}. Usual causes: "
        f"a learning rate that is too large (learning_rate is {config.learning_rate:g}), rewards that are not "
        f"normalised (here from {rewards}), observations that are not (here from {observations}). "
        "The parameters are lost, and nothing of them was saved: fix the cause, and start anew or from the last "
        "checkpoint, which was written before"
    )


def too_large(
    iteration: int, normalization: Normalization, rollout: Rollout, encode: ObservationEncoder
) -> TrainingError:
    """The error for moments that are too large, with the largest number of the rollout that counts."""
    rewards, observations = rollout.rewards[..., None], normalization.observations
    are_steps = torch.zeros_like(rewards).view(-1).index_fill_(0, rollout.valid_rows, 1.0).view_as(rewards)
    if observations is not None and not bool(observations.moments.variance.isfinite().all()):
        kind, numbers = "observation", numbers_of(rollout.observations[:-1], encode.layout)
        sizes = numbers.abs() * are_steps * ~observations.moments.variance.isfinite()
    else:
        kind, numbers, sizes = "reward", rewards, rewards.abs() * are_steps
    step, column, number = map(int, np.unravel_index(int(sizes.argmax()), sizes.shape))
    name = encode.names[number] if kind == "observation" else ""
    return TrainingError(
        f"training stopped in iteration {iteration}: {kind}{name} is {float(numbers[step, column, number]):g} in step "
        f"{step} of the rollout, of environment {column} (of agent {column} of all, if environments have several). The "
        f"variance of such numbers is too large for float32, and normalize_{kind}s=True needs it: give smaller "
        f"ones, or set normalize_{kind}s=False. The last checkpoint was written before"
    )


def _quantities(rollout: Rollout, batch: Batch, epochs: list[Tensor], parameters: Tensor) -> Iterator[str]:
    rows = rollout.rewards.flatten().index_select(0, rollout.valid_rows)
    for name, tensor in (
        ("an observation", batch.inputs),
        ("a reward", rows),
        ("a log-probability of an action, from the actor's outputs while sampling", batch.log_probs),
        ("a value, from the critic", batch.values),
        ("an advantage, from rewards and values", batch.advantages),
        ("a return, from rewards and values", batch.returns),
    ):
        if not bool(tensor.isfinite().all()):
            yield f"{name} ({_worst(tensor)})"
    for number, epoch in enumerate(epochs, start=1):
        for row, column in (~epoch.isfinite()).nonzero().tolist():
            value = float(epoch[row, column])
            yield f"{STATISTICS[column]} ({value:g}) in minibatch {row + 1} of epoch {number}"
    if not bool(torch.dot(parameters, parameters).isfinite()):
        yield f"the norm of the parameters after the last optimizer step ({_worst(parameters)} among them)"


def _worst(tensor: Tensor) -> str:
    """A value that is not finite, else the largest."""
    bad = tensor[~tensor.isfinite()]
    return f"{float(bad[0]) if len(bad) else float(tensor.abs().max()):g}"


def _extremes(tensor: Tensor) -> str:
    finite = tensor[tensor.isfinite()]
    return f"{float(finite.min()):g} to {float(finite.max()):g}" if finite.numel() else "none that is finite"
