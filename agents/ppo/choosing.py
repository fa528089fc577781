"""Chooses the backend of an agent, and compares gradients by hand with those of the loss."""

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend, Objective
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.networks.parameters import FlatParameters

logger = logging.getLogger(__name__)

ROWS = 64
"""Rows of the comparison: enough to cover every case of the formulas many times."""
CLIP_RANGE = 0.2
"""Clip range of the comparison; any value would do."""
TOLERANCE = 1e-3
"""Tolerated relative error of a gradient. Rounding causes a thousandth of it, and a changed formula more than it."""
LARGEST = 3.0
"""Largest absolute value of observations and actions in the comparison."""


def backend_for(objective: Objective, *, by_hand: bool) -> type[Backend]:
    """The fastest backend."""
    if by_hand and objective.config.compiled_updates:
        from hybridppo.agents.ppo.by_numba import CompiledBackend

        if CompiledBackend.supports(objective):
            return CompiledBackend
    return NumpyBackend if by_hand and NumpyBackend.supports(objective) else Backend


def reference(objective: Objective) -> Backend:
    """Autograd without rounding of products."""
    return backend_for(objective, by_hand=False)(_exact(objective))


def has_gradient_of_the_loss(objective: Objective, kind: type[Backend], batch: Any) -> bool:
    """Whether a hand-written backend computes the gradient of the loss; if not, a warning says so."""
    agent, limit = objective.agent, objective.config.clip_range_vf or 1.0
    now, agent.current = agent.current, objective.config  # a schedule may begin at 0, where formulas have edges
    try:
        what = difference(reference(objective), kind(_exact(objective)), agent.parameters, batch, limit)
    finally:
        agent.current = now
    if what is not None:
        logger.warning(
            "%s differs between the two forms of the optimizer step: by autograd, from the loss in "
            "agents/ppo/loss.py, and by hand, in %s. This training uses autograd, which is slower. If you changed a "
            "formula, change it in both, or take autograd alone: train(..., loss=my_loss), or fast_updates=False "
            "(--no-fast-updates)", what, kind.written_in,
        )  # fmt: skip
    return what is None


def difference(plain: Backend, by_hand: Backend, parameters: FlatParameters, batch: Any, limit: float) -> str | None:
    """The first difference between a hand-written backend and autograd, in words; None if they agree.

    They are compared in float32, with parameters, observations and actions of about 1, because with small deviations
    or large values, rounding would make equal formulas differ. The call changes only the gradient.

    Args:
        plain: autograd, in float32.
        by_hand: the hand-written backend, in float32.
        parameters: the parameters of both.
        batch: a batch, some of whose rows are used.
        limit: how far a value may move, like `clip_range_vf`.
    """
    before, generator = parameters.values.detach().clone(), torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():  # activations and log standard deviations are then about 1 at most
            for parameter in parameters.everything():
                inputs = parameter.shape[1:].numel() if parameter.dim() > 1 else 100
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(1, inputs) ** 0.5)
        rows = _covering_every_case(batch, plain, limit)
        expected_statistics = _gradient(plain, rows)
        expected = parameters.gradient.clone()
        found_statistics = _gradient(by_hand, rows)
    finally:
        parameters.values.data.copy_(before)
    for network in ("actor", "critic"):
        part = parameters.range_of(network)
        if _differ(parameters.gradient[part], expected[part]):
            return f"the gradient of the {network}"
    for name, one, other in zip(STATISTICS, found_statistics, expected_statistics, strict=False):
        if _differ(one.reshape(1), other.reshape(1)):
            return f"{name} ({float(one):g} by hand, {float(other):g} by autograd)"
    return None


def _gradient(backend: Backend, rows: Batch) -> Tensor:
    (minibatch,) = backend.minibatches(rows, [len(rows)])
    return torch.as_tensor(backend.gradient(minibatch, CLIP_RANGE))


def _exact(objective: Objective) -> Objective:
    """The same objective, for backends that do not round products."""
    return replace(objective, config=replace(objective.config, precision="fp32"))


def _covering_every_case(batch: Any, plain: Backend, limit: float) -> Batch:
    """A batch with these observations and actions, whose other columns cover every case of the formulas.

    In a first minibatch, no ratio has moved and no value is clipped; if rewards are all equal, normalised advantages
    are rounding errors. In the returned batch, half of the ratios and of the values are well beyond their limits, on
    both sides, and no ratio is near a limit. Returns above a value are further from it than returns below it: if few
    rows repeat, their gradients would otherwise cancel and leave only rounding errors.
    """
    rows: Batch = batch.some(ROWS).made()  # whose numbers become at most about 1; choices stay valid choices
    rows = rows.map(lambda each: each.nan_to_num().clamp(-LARGEST, LARGEST) if each.is_floating_point() else each)
    cases = torch.arange(len(rows), device=rows.device)

    def alternating(every: int) -> Tensor:
        return 1.0 - 2.0 * ((cases // every) % 2).to(torch.float32)

    is_beyond = (cases % 2).to(torch.float32)
    log_probs, values = plain.log_probs(rows), plain.values(rows.observations)
    return rows.with_columns(
        log_probs=log_probs + alternating(2) * (0.05 + 0.75 * is_beyond),
        values=values + 3.0 * limit * is_beyond * alternating(4),
        advantages=alternating(8) + 0.01 * cases,
        returns=values + (1.0 + 10.0 * limit) * (2.5 * alternating(16) + 1.5),
    )


def _differ(found: Tensor, expected: Tensor) -> bool:
    # Written so that NaN counts as a difference.
    return not bool((found - expected).norm() <= TOLERANCE * expected.norm() + 1e-5)
