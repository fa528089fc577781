"""Which form of the optimizer steps an agent takes, and whether a form by hand has the gradient of the loss."""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridppo.agents.ppo.agreement import difference
from hybridppo.agents.ppo.captured_steps import CapturedSteps
from hybridppo.agents.ppo.numpy_steps import NumpySteps
from hybridppo.agents.ppo.optimizer_steps import AutogradSteps
from hybridppo.agents.ppo.recurrent_steps import RecurrentSteps
from hybridppo.system.accelerator import accelerator_of

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO

logger = logging.getLogger(__name__)


def fastest_form(agent: "PPO", *, by_hand: bool) -> Callable[["PPO"], Any]:
    """The fastest form for where the parameters are now; one that is written out by hand if those are wanted."""
    config = agent.config
    if agent.memory is not None:
        return RecurrentSteps
    if by_hand and config.compiled_updates:
        from hybridppo.agents.ppo.compiled_steps import CompiledSteps

        if CompiledSteps.supports(agent):
            return CompiledSteps
    if by_hand and NumpySteps.supports(agent):
        return NumpySteps
    if config.cuda_graphs and accelerator_of(agent.parameters.values.device).is_asynchronous:
        return CapturedSteps
    return AutogradSteps


def plain_steps(agent: "PPO") -> AutogradSteps:
    """The plain form, which rounds no products."""
    exact = _exact(agent)
    return AutogradSteps(exact) if agent.memory is None else RecurrentSteps(exact)


def has_gradient_of_the_loss(agent: "PPO", form: Callable[["PPO"], Any], batch: Any) -> bool:
    """Whether a form by hand computes the gradient of the loss as it is written; if not, a warning says so."""
    by_hand = form(_exact(agent))
    what = difference(plain_steps(agent), by_hand, agent.parameters, batch, agent.config)
    if what is not None:
        logger.warning(
            "%s is not the same in the two forms of the optimizer step: by autograd, from the loss in "
            "agents/ppo/loss.py and agents/ppo/losses.py, and by hand, in %s. This training takes autograd, which is "
            "slower. If you changed a formula, change it in both, or take autograd alone: train(..., loss=my_loss), or "
            "fast_updates=False (--no-fast-updates)", what, by_hand.written_in,
        )  # fmt: skip
    return what is None


def _exact(agent: "PPO") -> "PPO":
    """The same agent for forms that round nothing."""
    exact = copy.copy(agent)
    exact.config = replace(agent.config, precision="fp32")
    return exact
