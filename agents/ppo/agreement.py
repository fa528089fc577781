"""Two forms of the optimizer step must have one gradient: the loss that is written is the loss that is descended."""

from typing import Any, Protocol

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.agents.ppo.sequences import SequenceBatch
from hybridppo.errors import TrainingError
from hybridppo.networks.parameters import FlatParameters

ROWS = 64
"""As many as it takes to meet every case of the formulas often."""
CLIP_RANGE = 0.2
"""Any will do."""
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
"""Of the norm of a gradient. Rounding differs by a thousandth of that; whoever changes a formula changes more."""


class ByHand(Protocol):
    """A form whose gradient is written out."""

    written_in: str | None

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """Fill the parameters' gradient over a minibatch; `STATISTICS` but the last."""
        ...


def require_same_gradient(
    plain: AutogradSteps,
    by_hand: ByHand,
    parameters: FlatParameters,
    batch: Batch | SequenceBatch,
    config: PPOConfig,
) -> None:
    """Refuse gradients by hand that are not those of the loss as it is written; nothing is changed but the gradient.

    Raises:
        TrainingError: with what differs, and the two files.
    """
    rows = _telling(batch, plain, config)
    expected_statistics = plain.gradient(rows, CLIP_RANGE)
    expected = parameters.gradient.clone()
    found_statistics = by_hand.gradient(rows, CLIP_RANGE)
    found, tolerance = parameters.gradient, TOLERANCE[config.precision]
    if not bool(torch.isfinite(expected).all() and torch.isfinite(found).all()):
        return  # which the update itself finds, and says what was not finite
    for network in ("actor", "critic"):
        part = parameters.range_of(network)
        if _differ(found[part], expected[part], tolerance):
            _refuse(f"the gradient of the {network}", by_hand)
    for name, one, other in zip(STATISTICS, found_statistics, expected_statistics, strict=False):
        if _differ(one.reshape(1), other.reshape(1), tolerance):
            _refuse(f"{name} ({float(one):g} by hand, {float(other):g} by autograd)", by_hand)


def _telling(batch: Batch | SequenceBatch, plain: AutogradSteps, config: PPOConfig) -> Any:
    """Some observations and actions of a batch, with other numbers beside them: ones that meet every case.

    In a first minibatch no ratio has moved and no value is clipped, and where rewards are all alike, normalised
    advantages are rounding errors. Here half of the ratios and of the values lie well beyond their limits, on either
    side, and none near one. Returns above a value lie further from it than those below: where few rows come over and
    over, their gradients would else cancel out, and what was left were the rounding errors of a low precision.
    """
    rows = batch.some(ROWS)
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


def _differ(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).norm() > tolerance * expected.norm() + 1e-5)


def _refuse(what: str, by_hand: ByHand) -> None:
    raise TrainingError(
        f"{what} is not the same in the two forms of the optimizer step: by autograd, from the loss in "
        f"agents/ppo/loss.py and agents/ppo/losses.py, and by hand, in {by_hand.written_in}. If you changed a "
        "formula, change it in both, or take autograd alone: train(..., loss=my_loss), or fast_updates=False "
        "(--no-fast-updates)"
    )
