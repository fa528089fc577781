"""Which backend computes an agent's gradients, and whether one that is written out by hand has that of the loss."""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hybridppo.agents.ppo.loop import Backend, Exchange, OptimizationLoop, Optimized
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.agents.ppo.numpy_backend import NumpyBackend, NumpyNetworks
from hybridppo.agents.ppo.numpy_memory import NumpyMemory
from hybridppo.agents.ppo.recorded_step import RecordedStep
from hybridppo.agents.ppo.recurrent_steps import RecurrentSteps
from hybridppo.networks.parameters import FlatParameters
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import GraphRecorder, Record

logger = logging.getLogger(__name__)

ROWS = 64
"""That are compared, or with a memory sequences: as many as it takes to meet every case of the formulas often."""
CLIP_RANGE = 0.2
"""Any will do."""
TOLERANCE = 1e-3
"""Of the norm of a gradient. Rounding differs by a thousandth of that; whoever changes a formula changes more."""
LARGEST = 3.0
"""Of observations and actions that are compared."""


def make_loop(agent: Optimized, exchange: Exchange, *, by_hand: bool) -> OptimizationLoop:
    """The loop with the fastest backend for where the parameters are now; by hand only if that is wanted."""
    backend, record = backend_for(agent, by_hand=by_hand)(agent), recorder_for(agent)
    loop = OptimizationLoop(agent, backend, exchange)
    if record is None or type(backend) is not Backend:
        return loop
    return OptimizationLoop(agent, backend, exchange, RecordedStep(loop, agent, record))


def backend_for(agent: Optimized, *, by_hand: bool) -> type[Backend]:
    """The fastest backend."""
    if agent.config.recurrent is not None:
        return NumpyMemory if by_hand and NumpyMemory.supports(agent) else RecurrentSteps
    if by_hand and agent.config.compiled_updates:
        from hybridppo.agents.ppo.compiled_backend import CompiledBackend

        if CompiledBackend.supports(agent):
            return CompiledBackend
    if agent.config.torch_compile and not (by_hand and NumpyBackend.supports(agent)):
        from hybridppo.agents.ppo.torch_compiled import TorchCompiled

        return TorchCompiled
    by_numpy: tuple[type[NumpyBackend | NumpyNetworks], ...] = (NumpyBackend, NumpyNetworks) if by_hand else ()
    return next((kind for kind in by_numpy if kind.supports(agent)), Backend)


def recorder_for(agent: Optimized) -> Record | None:
    """What records steps as CUDA graphs, if that is asked for and possible."""
    accelerator = accelerator_of(agent.parameters.values.device)
    return GraphRecorder(accelerator) if agent.config.cuda_graphs and accelerator.is_asynchronous else None


def reference(agent: Optimized) -> Backend:
    """Autograd that rounds no products."""
    return backend_for(agent, by_hand=False)(_exact(agent))


def has_gradient_of_the_loss(agent: Optimized, kind: type[Backend], batch: Any) -> bool:
    """Whether a backend by hand computes the gradient of the loss as it is written; if not, a warning says so."""
    what = difference(reference(agent), kind(_exact(agent)), agent.parameters, batch, agent.config.clip_range_vf or 1.0)
    if what is not None:
        logger.warning(
            "%s is not the same in the two forms of the optimizer step: by autograd, from the loss in "
            "agents/ppo/loss.py, and by hand, in %s. This training takes autograd, which is slower. If you changed a "
            "formula, change it in both, or take autograd alone: train(..., loss=my_loss), or fast_updates=False "
            "(--no-fast-updates)", what, kind.written_in,
        )  # fmt: skip
    return what is None


def difference(plain: Backend, by_hand: Backend, parameters: FlatParameters, batch: Any, limit: float) -> str | None:
    """What a backend by hand computes otherwise than autograd, in words; None if both agree.

    They are compared in float32, with parameters, observations and actions of about 1, whatever the agent has: with
    small deviations or large values, rounding would drive the same formulas apart. Only the gradient is changed.

    Args:
        plain: by autograd, in float32.
        by_hand: likewise in float32.
        parameters: of both.
        batch: some of whose rows are taken.
        limit: of values, the configuration's or another.
    """
    with _standardised(parameters):
        rows = _telling(batch, plain, limit)
        expected_statistics = _gradient(plain, rows)
        expected = parameters.gradient.clone()
        found_statistics = _gradient(by_hand, rows)
    for network in ("actor", "critic"):
        part = parameters.range_of(network)
        if _differ(parameters.gradient[part], expected[part]):
            return f"the gradient of the {network}"
    for name, one, other in zip(STATISTICS, found_statistics, expected_statistics, strict=False):
        if _differ(one.reshape(1), other.reshape(1)):
            return f"{name} ({float(one):g} by hand, {float(other):g} by autograd)"
    return None


def _gradient(backend: Backend, rows: Any) -> Tensor:
    everything = torch.arange(len(rows), device=rows.steps().returns.device)
    (minibatch,) = backend.minibatches(rows, everything, [len(rows)])
    return torch.as_tensor(backend.gradient(minibatch, CLIP_RANGE))


def _exact(agent: Optimized) -> Optimized:
    """The same agent for backends that round nothing."""
    exact = copy.copy(agent)
    exact.config = replace(agent.config, precision="fp32")
    return exact


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


def _telling(batch: Any, plain: Backend, limit: float) -> Any:
    """Some observations and actions of a batch, with other numbers beside them: ones that meet every case.

    In a first minibatch no ratio has moved and no value is clipped, and where rewards are all alike, normalised
    advantages are rounding errors. Here half of the ratios and of the values lie well beyond their limits, on either
    side, and none near one. Returns above a value lie further from it than those below: where few rows come over and
    over, their gradients would else cancel out, and rounding errors would be left.
    """
    rows = batch.some(ROWS).made().map(_bounded)
    returns = rows.steps().returns
    cases = torch.arange(len(returns), device=returns.device)

    def alternating(every: int) -> Tensor:
        return 1.0 - 2.0 * ((cases // every) % 2).to(torch.float32)

    is_beyond = (cases % 2).to(torch.float32)
    log_probs, values = plain.log_probs_and_values(rows)
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
