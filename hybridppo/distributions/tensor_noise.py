"""Noise and actions as torch tensors that stay on their device, for environments of tensors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical, MultiCategorical
from hybridppo.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.distributions.joint import JointDistribution, leaves_of, outputs_of, typed
from hybridppo.distributions.of_policies import DistributionOfPolicies
from hybridppo.distributions.state_dependent import StateDependentGaussian
from hybridppo.errors import EnvError
from hybridppo.spaces.philox import philox


class TensorActions:
    """Draws actions on the device of an actor's outputs, as `Distribution` does in NumPy.

    Args:
        distribution: the action distribution.
        device: the device of the outputs.

    Raises:
        EnvError: for a distribution that has no form for tensors.
    """

    def __init__(self, distribution: Distribution, device: torch.device) -> None:
        self._distribution = distribution
        self.dtype = torch.int64 if np.issubdtype(distribution.action_dtype, np.integer) else torch.float32
        """Type of a stored action."""
        leaves = leaves_of(distribution)
        self._draws = [_draw_of(leaf) for leaf in leaves]
        self._noise_sizes = [leaf.noise_size for leaf in leaves]
        self.num_words = distribution.noise_size * (2 if _normal in self._draws else 1)
        """Random words for the noise of one action."""
        self._bounds: dict[int, tuple[Tensor, ...]] = {}
        self._starts: dict[int, Tensor] = {}
        for leaf in leaves:
            if isinstance(leaf, MultiCategorical) and leaf.start is not None:
                self._starts[id(leaf)] = torch.as_tensor(leaf.start, device=device)
            if isinstance(leaf, DiagonalGaussian):
                squashing = (leaf.center, leaf.half_width) if isinstance(leaf, SquashedGaussian) else ()
                with np.errstate(over="ignore"):  # a bound that float32 cannot hold becomes infinite
                    found = [np.asarray(array, np.float32) for array in (leaf.low, leaf.high, *squashing)]
                self._bounds[id(leaf)] = tuple(torch.as_tensor(array, device=device) for array in found)

    @classmethod
    def of(cls, distribution: Distribution, device: torch.device) -> "TensorActions | TensorActionsOfPolicies":
        """For one policy, or for several with different action spaces."""
        if isinstance(distribution, DistributionOfPolicies):
            return TensorActionsOfPolicies(distribution, device)
        return cls(distribution, device)

    def noise(self, words: Tensor) -> Tensor:
        """The noise of actions, `[..., noise_size]`, from random 32-bit words, `[..., num_words]` of int64."""
        # The midpoints of 2^23 equal parts of [0, 1]: float32 holds them exactly, and they exclude 0 and 1.
        uniforms = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
        size = self._distribution.noise_size
        halves = uniforms[..., :size], uniforms[..., -size:]  # one word is enough
        parts = zip(*(torch.split(half, self._noise_sizes, -1) for half in halves), strict=True)
        drawn = [draw(first, second) for draw, (first, second) in zip(self._draws, parts, strict=True)]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Random actions `[N, *action_shape]`, as from `Distribution.sample`."""
        return self._sampled(self._distribution, outputs, noise)

    def _sampled(self, distribution: Distribution, outputs: Tensor, noise: Tensor) -> Tensor:
        if isinstance(distribution, Categorical):
            return (outputs + noise).argmax(-1)
        if isinstance(distribution, MultiCategorical):
            logits, leading = outputs + noise, outputs.shape[:-1]
            # [N, count * n] -> [N, count, n]
            tables = [logits[..., run.logits].reshape(*leading, run.num, run.n) for run in distribution.runs]
            return torch.cat([table.argmax(-1) for table in tables], -1)
        if isinstance(distribution, DiagonalGaussian):
            return outputs[..., : distribution.size] + outputs[..., distribution.size :].exp() * noise
        assert isinstance(distribution, JointDistribution)
        drawn = [
            self._sampled(factor.distribution, outputs_of(factor, outputs, torch.cat), noise[..., factor.noise])
            for factor in distribution.factors
        ]
        return torch.cat([part.reshape(*outputs.shape[:-1], -1).to(self.dtype) for part in drawn], -1)

    def to_env(self, actions: Tensor) -> Any:
        """The actions `[N, *action_shape]` in the environments' form, as from `Distribution.to_env`."""
        return self._taken(self._distribution, actions)

    def _taken(self, distribution: Distribution, actions: Tensor) -> Any:
        if isinstance(distribution, Categorical):
            return actions + distribution.start if distribution.start else actions
        if isinstance(distribution, MultiCategorical):
            shaped = actions.reshape(*actions.shape[:-1], *distribution.shape)
            if distribution.start is not None:
                shaped = shaped + self._starts[id(distribution)]
            return shaped.to(torch.int64)
        if isinstance(distribution, DiagonalGaussian):
            low, high, *squashing = self._bounds[id(distribution)]
            numbers = actions.reshape(*actions.shape[:-1], *distribution.shape)
            if squashing:
                center, half_width = squashing
                numbers = center + half_width * numbers.tanh()
            return numbers.clamp(low, high)
        assert isinstance(distribution, JointDistribution)
        return distribution.join([self._taken(part, typed(own, part)) for part, own in distribution.divided(actions)])


class TensorActionsOfPolicies:
    """Like `TensorActions`, for rows of all agents of several policies with different action spaces.

    Args:
        distribution: the joint distribution of the policies.
        device: the device of the outputs.
    """

    def __init__(self, distribution: DistributionOfPolicies, device: torch.device) -> None:
        self._distribution, self._policies = distribution, distribution.distributions
        self._actions = [TensorActions(each, device) for each in self._policies]
        self._agents = [torch.tensor(own, device=device) for own in distribution.agents]
        self._order = torch.cat(self._agents).argsort()
        self.dtype = torch.int64 if np.issubdtype(distribution.action_dtype, np.integer) else torch.float32
        self.num_words = max(each.num_words for each in self._actions)

    def noise(self, words: Tensor) -> Tensor:
        """As `TensorActions.noise`, for `[..., N, num_words]`."""
        drawn = [each.noise(self._own(words, i, each.num_words)) for i, each in enumerate(self._actions)]
        return self._of_all(drawn, self._distribution.noise_size)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Random actions `[N, width]`."""
        drawn = []
        for i, (policy, actions) in enumerate(zip(self._policies, self._actions, strict=True)):
            own = self._own(outputs, i, policy.output_size)
            sampled = actions.sample(own, self._own(noise, i, policy.noise_size))
            drawn.append(sampled.reshape(*own.shape[:-1], -1).to(self.dtype))
        return self._of_all(drawn, *self._distribution.action_shape)

    def to_env(self, actions: Tensor) -> list[Any]:
        """The actions of each of the `A` agents, `[N / A, *action]`, in the environments' form."""
        found: list[Any] = [None] * len(self._order)
        for i, policy in enumerate(self._policies):
            own = self._own(actions, i, math.prod(policy.action_shape))
            own = typed(own.reshape(*own.shape[:-1], *policy.action_shape), policy)
            for number, slot in enumerate(self._distribution.agents[i]):
                found[slot] = self._actions[i].to_env(own[:, number])
        return found

    def _own(self, rows: Tensor, policy: int, size: int) -> Tensor:
        """The first `size` numbers of one policy's rows, `[..., N / A, a, size]`."""
        apart = rows.reshape(*rows.shape[:-2], -1, len(self._order), rows.shape[-1])
        return apart[..., :size].index_select(-2, self._agents[policy])

    def _of_all(self, parts: list[Tensor], width: int) -> Tensor:
        """The rows of all agents, `[..., N, width]`, from those of each policy, filled up with zeros."""
        padded = torch.cat([pad(part, (0, width - part.shape[-1])) for part in parts], -2)
        return padded.index_select(-2, self._order).flatten(-3, -2)


def _draw_of(distribution: Distribution) -> Callable[[Tensor, Tensor], Tensor]:
    # By exact type: a subclass may draw its actions differently.
    if type(distribution) in (Categorical, MultiCategorical):
        return _gumbel
    if type(distribution) in (DiagonalGaussian, SquashedGaussian):
        return _normal
    remedy = "leave use_sde out" if isinstance(distribution, StateDependentGaussian) else "train PPO (PPOConfig)"
    raise EnvError(f"actions of a {type(distribution).__name__} cannot be drawn on tensors: {remedy}")


def _gumbel(first: Tensor, second: Tensor) -> Tensor:
    """Standard Gumbel noise, each from one uniform number."""
    return -(-first.log()).log()


def _normal(first: Tensor, second: Tensor) -> Tensor:
    """Standard normal noise, each from two uniform numbers (Box and Muller, 1958)."""
    return (-2.0 * first.log()).sqrt() * (2.0 * torch.pi * second).cos()


def words(
    key: tuple[int, int], block: int, *, num_steps: int, num_envs: int, num_words: int, device: torch.device, first: int
) -> Tensor:
    """A block of random words, `[num_steps, num_envs, num_words]` of int64, each from 0 to `2**32 - 1`.

    A word does not depend on the size of the block.

    Args:
        key: two words.
        block: number of the block.
        num_steps: number of rows.
        num_envs: number of columns.
        num_words: words for each row and column.
        device: where they are made.
        first: number of the first column.
    """

    def count(size: int, start: int = 0) -> Tensor:
        return torch.arange(start, start + size, device=device)

    steps, envs, groups = count(num_steps)[:, None, None], count(num_envs, first)[:, None], count(-(-num_words // 4))
    four = philox(*key, groups, envs, steps, torch.full_like(groups, block & 0xFFFFFFFF))
    # four words of [T, N, groups] -> [T, N, 4 * groups]
    return torch.stack(four, -1).flatten(-2)[..., :num_words]
