"""Log-probabilities in the precision of the optimizer steps.

Actions are drawn in float32. If the steps round products, as "bf16" does, the same parameters give them other
log-probabilities, and rounding would count as a change of the policy: by the more, the smaller deviations are.
"""

from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from hybridppo.agents.ppo.forms import plain_steps

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO

AnyBatch = TypeVar("AnyBatch")


@torch.no_grad()
def as_steps_see_it(agent: "PPO", batch: AnyBatch, steps: Any, *, is_current: bool) -> AnyBatch:
    """The batch with the log-probabilities that its actions had for the optimizer steps.

    Args:
        agent: whose batch it is.
        batch: with the log-probabilities of the policy that acted.
        steps: of this update.
        is_current: whether the parameters that acted are those that the agent has now. The log-probabilities of older
            ones are corrected by what rounding makes of those of today's.
    """
    rows: Any = batch
    if agent.config.precision == "fp32" or not len(rows):
        return batch
    sizes, columns = agent.minibatch_sizes(rows), rows.steps()
    log_probs = steps.log_probs_of(rows, sizes)
    if not is_current:
        log_probs = columns.log_probs + log_probs - plain_steps(agent).log_probs_of(rows, sizes)
    return cast(AnyBatch, rows.with_columns(log_probs, columns.values, columns.advantages, columns.returns))


def log_probs_now(agent: "PPO", batch: Any, steps: Any) -> Tensor:
    """The log-probabilities of a batch's actions by the parameters as they are now, comparable with its own."""
    if agent.config.precision == "fp32":
        found: Tensor = steps.log_probs(batch.observations, batch.actions)
        return found
    return cast(Tensor, steps.log_probs_of(batch, agent.minibatch_sizes(batch)))
