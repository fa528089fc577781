"""Two forms of the optimizer step must have one gradient: the loss that is written is the loss that is descended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.networks.parameters import FlatParameters

ROWS = 64
"""As many as it takes to meet every case of the formulas often."""
CLIP_RANGE = 0.2
"""Any will do."""
TOLERANCE = 1e-3
"""Of the norm of a gradient. Rounding differs by a thousandth of that; whoever changes a formula changes more."""
LARGEST = 3.0
"""Of observations and actions that are compared."""


class ByHand(Protocol):
    """A form whose gradient is written out."""

    written_in: str | None

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """Fill the parameters' gradient over a minibatch; `STATISTICS` but the last."""
        ...


def difference(
    plain: AutogradSteps,
    by_hand: ByHand,
    parameters: FlatParameters,
    batch: Batch,
    config: PPOConfig,
) -> str | None:
    """What a form by hand computes otherwise than autograd, in words; None if both agree.

    Compared is in float32, with parameters, observations and actions of about 1, whatever the agent has: with small
    deviations or large values, the same formulas give numbers that rounding drives apart. Nothing is changed but the
    gradient.

    Args:
        plain: by autograd, in float32.
        by_hand: likewise in float32.
        parameters: of both.
        batch: some of whose rows are taken.
        config: of the agent.
    """
    with _standardised(parameters):
        rows = _telling(batch, plain, config)
        expected_statistics = plain.gradient(rows, CLIP_RANGE)
        expected = parameters.gradient.clone()
        found_statistics = by_hand.gradient(rows, CLIP_RANGE)
    for network in ("actor", "critic"):
        part = parameters.range_of(network)
        if _differ(parameters.gradient[part], expected[part]):
            return f"the gradient of the {network}"
    for name, one, other in zip(STATISTICS, found_statistics, expected_statistics, strict=False):
        if _differ(one.reshape(1), other.reshape(1)):
            return f"{name} ({float(one):g} by hand, {float(other):g} by autograd)"
    return None


@contextmanager
def _standardised(parameters: FlatParameters) -> Iterator[None]:
    """Within it, the parameters are random: activations and logarithms of deviations are about 1 at most."""
    before, generator = parameters.values.detach().clone(), torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in parameters.everything():
                inputs = parameter.shape[1:].numel() if parameter.dim() > 1 else 100
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(1, inputs) ** 0.5)
        yield
    finally:
        parameters.values.data.copy_(before)


def _telling(batch: Batch, plain: AutogradSteps, config: PPOConfig) -> Any:
    """Some observations and actions of a batch, with other numbers beside them: ones that meet every case.

    In a first minibatch no ratio has moved and no value is clipped, and where rewards are all alike, normalised
    advantages are rounding errors. Here half of the ratios and of the values lie well beyond their limits, on either
    side, and none near one. Returns above a value lie further from it than those below: where few rows come over and
    over, their gradients would else cancel out, and rounding errors would be left.
    """
    rows = batch.some(ROWS).made().map(_bounded)
    steps = rows.steps()
    cases = torch.arange(len(steps), device=steps.returns.device)

    def alternating(every: int) -> Tensor:
        return 1.0 - 2.0 * ((cases // every) % 2).to(torch.float32)

    is_beyond = (cases % 2).to(torch.float32)
    log_probs, values = plain.log_probs_and_values(rows)
    limit = config.clip_range_vf or 1.0
    return rows.with_columns(
        log_probs=log_probs + alternating(2) * (0.05 + 0.75 * is_beyond),
        values=values + 3.0 * limit * is_beyond * alternating(4),
        advantages=alternating(8) + 0.01 * cases,
        returns=values + (1.0 + 10.0 * limit) * (2.5 * alternating(16) + 1.5),
    )


def _bounded(numbers: Tensor) -> Tensor:
    """Numbers of about 1; choices stay among those that there are."""
    return numbers.nan_to_num().clamp(-LARGEST, LARGEST) if numbers.is_floating_point() else numbers


def _differ(found: Tensor, expected: Tensor) -> bool:
    # Written so that numbers that are not finite differ.
    return not bool((found - expected).norm() <= TOLERANCE * expected.norm() + 1e-5)
