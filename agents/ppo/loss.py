"""The loss of PPO on a minibatch, its terms, and the statistics of an optimizer step.

    policy_loss - entropy_coef * mean(entropy) + value_coef * value_loss

Change the loss here. A custom loss is a function like `ppo_loss`, for `hybridppo.train(..., loss=my_loss)`, or a method
of a subclass, `PPO.loss`. Autograd differentiates both. Numbers that a loss changes, such as an adaptive coefficient,
are buffers of a module (`train(..., modules=...)`), and are saved with the agent.

For the library's own loss, small networks on a CPU learn by the gradient that `by_numpy.py` computes by hand. At
the start of every run it is compared with autograd's (`ppo.py`): if you change a formula only here, a warning says
so, and autograd is used.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details after Huang et al., "The 37
Implementation Details of Proximal Policy Optimization", 2022.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hybridppo._lazy import showing_fields
from hybridppo.agents.ppo.config import SCHEDULABLE, PPOConfig
from hybridppo.errors import ConfigurationError, shown

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
"""The statistics of an optimizer step, in order; `grad_norm` is the norm before clipping."""


TAKEN = (
    *STATISTICS, *SCHEDULABLE, "explained_variance", "iteration", "env_steps", "seconds", "steps_per_second",
    "episodes", "episode_return_mean", "episode_length_mean", "env_restarts", "policy_lag", "publishes", "bytes_copied",
    "seconds_sampling", "seconds_learning", "seconds_copying", "seconds_other", "seconds_overlapped",
)  # fmt: skip
"""Names of other metrics, which `Loss.extra` must not use."""


@showing_fields
@dataclass(frozen=True)
class LossInputs:
    """The input of a loss: a minibatch and the present outputs of actor and critic. Shapes are `[B]` unless stated."""

    observations: Tensor
    """The input of the networks, `[B, *row]`: normalised, if that is configured."""
    raw_observations: Tensor
    """The observations in the environment's own units, `[B, *row]`, as `agent.actor` takes them."""
    actions: Tensor
    """`[B, *action]`."""
    outputs: Tensor
    """The actor's present outputs, `[B, outputs]`, which define the distribution."""
    log_ratio: Tensor
    """The present log-probability of the action, minus that when it was taken. With a pool or a decoupled correction of
    lag, minus that before the update; the advantages have a factor for the rest."""
    advantages: Tensor
    """Normalised in each minibatch (`rollouts/advantages.py`) if `normalize_advantage` is True."""
    entropy: Tensor
    """Entropy of the action distribution, in nats."""
    values: Tensor
    """The critic's present values."""
    old_values: Tensor
    """The critic's values before the update."""
    returns: Tensor
    """The targets of the values."""
    old_outputs: Any
    """The actor's outputs before the update, `[B, outputs]`; None for the library's own loss."""
    agent: Any
    """The agent, with its `distribution`, its networks (`actor_network`, `critic_network`) and `modules_of`."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """The columns `[B, ...]` that a subclass of PPO adds in `prepared`, and those of `step_infos`, by name."""


class InputsOfMinibatch(LossInputs):
    """Inputs of which some are taken from a minibatch only if a loss reads them."""

    @classmethod
    def of(cls, take: Callable[[str], Any], **given: Any) -> "InputsOfMinibatch":
        """Inputs with the given fields; `take` returns the value of any other field."""
        inputs = cls.__new__(cls)
        vars(inputs).update(given, _take=take)
        return inputs

    def __getattr__(self, name: str) -> Any:
        """A field that was not read before."""
        if name not in LossInputs.__annotations__:
            return super().__getattribute__(name)  # raises the usual error
        found = vars(self)[name] = self._take(name)
        return found


@showing_fields
@dataclass(frozen=True)
class Loss:
    """A loss and its terms, all scalars. Terms of a custom loss, except the total, may be numbers."""

    total: Tensor
    """The loss that is differentiated."""
    policy: Tensor
    value: Tensor
    entropy: Tensor
    """The mean entropy."""
    extra: Mapping[str, Tensor | float] = field(default_factory=dict)
    """Scalars that are logged as metrics by name, as means over the minibatches."""


LossFunction = Callable[[LossInputs, PPOConfig, Any], Loss]
"""A loss: `ppo_loss` or a custom one. It takes the present clip range, which may be annealed, last."""


def checked(loss: Any, like: Tensor) -> Loss:
    """The result of a custom loss, with scalars of the type and device of `like` for terms that are numbers.

    Raises:
        ConfigurationError: if it is not a `Loss`, a term is not a scalar, or the total has no gradient.
    """
    if not isinstance(loss, Loss):
        raise ConfigurationError(f"a loss must return a Loss (of hybridppo.agents.ppo.loss), got {shown(loss)}")
    terms: dict[str, Any] = {}
    for name in ("total", "policy", "value", "entropy"):
        term: Any = getattr(loss, name)
        if not isinstance(term, Tensor):
            terms[name] = term = like.new_full((), term)
        if term.ndim:
            raise ConfigurationError(f"{name} of a loss must be a scalar, got {list(term.shape)}: take its mean")
    found: Loss = replace(loss, **terms) if terms else loss
    if not found.total.requires_grad:
        raise ConfigurationError(
            "total of a loss must be computed from outputs of the networks (log_ratio, entropy, values), and has no "
            "gradient: it is a number, or detached"
        )
    return found


def ppo_loss(inputs: LossInputs, config: PPOConfig, clip_range: float | Tensor) -> Loss:
    """The clipped surrogate, the value loss and the entropy bonus (Schulman et al., 2017, equation 9).

    Args:
        inputs: a minibatch.
        config: the agent's hyperparameters; numbers with a schedule have their present values.
        clip_range: the present clip range: a number, or a scalar on the minibatch's device; with a pool `[B]`.
    """
    policy = policy_loss(log_ratio=inputs.log_ratio, advantages=inputs.advantages, clip_range=clip_range)
    if config.clip_range_vf is None:
        value = value_loss(values=inputs.values, returns=inputs.returns)
    else:
        value = clipped_value_loss(
            values=inputs.values, returns=inputs.returns, old_values=inputs.old_values, clip_range=config.clip_range_vf
        )
    entropy = inputs.entropy.mean()
    return Loss(policy - config.entropy_coef * entropy + config.value_coef * value, policy, value, entropy)


def without_padding(inputs: LossInputs, counted: Tensor) -> LossInputs:
    """Inputs of `ppo_loss` whose rows that do not count add nothing to any of its sums; `counted` is `[B]` bool."""

    def only(tensor: Tensor, otherwise: Any = 0.0) -> Tensor:
        return torch.where(counted, tensor, otherwise)

    return replace(
        inputs,
        log_ratio=only(inputs.log_ratio),
        advantages=only(inputs.advantages),
        entropy=only(inputs.entropy),
        values=only(inputs.values, inputs.returns),
        old_values=only(inputs.old_values, inputs.returns),
    )


def policy_loss(*, log_ratio: Tensor, advantages: Tensor, clip_range: float | Tensor) -> Tensor:
    """The clipped surrogate (2017, equation 7), negated so that it is minimised; a scalar.

    Args:
        log_ratio: `[B]`, the present log-probability of the action minus that when it was taken.
        advantages: `[B]`.
        clip_range: how far the ratio may leave 1 before its gradient becomes zero; a number, or a scalar on the same
            device.
    """
    ratio = log_ratio.exp()
    bounds: Any = (1.0 - clip_range, 1.0 + clip_range)
    clipped = ratio.clamp(*bounds)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def value_loss(*, values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of the critic, a scalar; arguments are `[B]`.

    The half follows the original implementation and CleanRL. stable-baselines3 has none: its `vf_coef=0.5` is
    `value_coef=1.0` here.
    """
    return 0.5 * (values - returns).square().mean()


def clipped_value_loss(*, values: Tensor, returns: Tensor, old_values: Tensor, clip_range: float) -> Tensor:
    """The value loss with the change from `old_values` clipped (detail 9); arguments are `[B]`.

    The larger of the clipped and the unclipped error counts, as in the original implementation.
    """
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square()).mean()


def approx_kl(log_ratio: Tensor) -> Tensor:
    """An unbiased, low-variance estimate of KL(old, new) from `[B]` log-ratios, a scalar.

    `E[(r - 1) - log r]`, estimator k3 of Schulman, "Approximating KL Divergence", 2020.
    """
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(log_ratio: Tensor, clip_range: float | Tensor) -> Tensor:
    """The share of `[B]` samples with a ratio outside the clip range, a scalar."""
    return ((log_ratio.exp() - 1.0).abs() > clip_range).to(log_ratio.dtype).mean()
