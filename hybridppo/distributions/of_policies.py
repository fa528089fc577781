"""The distributions of several policies as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.joint import typed
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.registry import each_of

if TYPE_CHECKING:
    from torch import Tensor


class DistributionOfPolicies:
    """The action distributions of several policies with different action spaces, for rows of all their agents.

    Row `i` belongs to agent `i % A` of an environment. Each policy uses the first numbers of the outputs, noise and
    actions of its rows; the others are zeros.

    Args:
        distributions: the distribution of each policy.
        action_spaces: the action space of each policy.
        agents: for each policy, the indices of its own agents among the `A` of an environment.
    """

    free_size = mask_size = 0

    def __init__(
        self,
        distributions: Sequence[Distribution],
        action_spaces: Sequence[gym.Space[Any]],
        agents: Sequence[Sequence[int]],
    ) -> None:
        self.output_size = max(each.output_size for each in distributions)
        self.noise_size = max(each.noise_size for each in distributions)
        self._widths = [int(np.prod(each.action_shape)) for each in distributions]
        self.action_shape: tuple[int, ...] = (max(self._widths),)
        are_choices = all(np.issubdtype(each.action_dtype, np.integer) for each in distributions)
        self.action_dtype: Any = np.int64 if are_choices else np.float32
        self.distributions, self._spaces = list(distributions), list(action_spaces)
        self.agents = [list(own) for own in agents]
        self._num_agents = sum(map(len, agents))

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """`[*shape, noise]`, where the last of `shape` counts rows."""
        noise = np.zeros((*shape, self.noise_size), np.float32)
        parts = noise.reshape(*shape[:-1], -1, self._num_agents, self.noise_size)
        for distribution, own in zip(self.distributions, self.agents, strict=True):
            part = (*parts.shape[:-2], len(own))
            parts[..., own, : distribution.noise_size] = distribution.draw_noise(generator, part)
        return noise

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Random actions `[N, width]`."""
        return self._of_all(outputs, lambda i, each, own: each.sample(own, self._own(noise, i, each.noise_size)))

    def mode(self, outputs: Array) -> Array:
        """The most probable actions `[N, width]`."""
        return self._of_all(outputs, lambda i, each, own: each.mode(own))

    def _of_all(self, outputs: Array, choose: Callable[[int, Distribution, Array], Array]) -> Array:
        """The actions that are chosen for each policy from its own outputs, in the rows of its agents."""
        actions = np.zeros((len(outputs), *self.action_shape), self.action_dtype)
        apart = actions.reshape(-1, self._num_agents, actions.shape[-1])
        for number, (distribution, agents) in enumerate(zip(self.distributions, self.agents, strict=True)):
            chosen = choose(number, distribution, self._own(outputs, number, distribution.output_size))
            apart[:, agents, : self._widths[number]] = chosen.reshape(len(apart), len(agents), -1)
        return actions

    def to_env(self, actions: Array) -> list[Any]:
        """A list of the single actions of all rows."""
        singles: list[Any] = [None] * len(actions)
        for number, (distribution, space) in enumerate(zip(self.distributions, self._spaces, strict=True)):
            own = self._own(actions, number, self._widths[number]).astype(distribution.action_dtype, copy=False)
            batch = distribution.to_env(own.reshape(-1, *distribution.action_shape))
            rows = np.arange(len(actions)).reshape(-1, self._num_agents)[:, self.agents[number]].ravel()
            for row, action in zip(rows.tolist(), each_of(space)(batch), strict=True):
                singles[row] = action
        return singles

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """`[..., N]`."""
        lead = outputs.shape[:-1]
        found = outputs.new_empty((*lead[:-1], lead[-1] // self._num_agents, self._num_agents))
        for number, distribution in enumerate(self.distributions):
            own = self._own(outputs, number, distribution.output_size)
            chosen = self._own(actions, number, self._widths[number])
            chosen = typed(chosen.reshape(*chosen.shape[:-1], *distribution.action_shape), distribution)
            found[..., self.agents[number]] = distribution.log_prob(own, chosen)
        return found.reshape(lead)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Raise an error: each policy learns by its own distribution."""
        raise NotImplementedError("each policy has a distribution of its own to learn by")

    def _own(self, rows: Any, number: int, size: int) -> Any:
        """The first `size` numbers of one policy's rows, `[..., N / A, a, size]`."""
        apart = rows.reshape(*rows.shape[:-2], -1, self._num_agents, rows.shape[-1])
        return apart[..., self.agents[number], :size]
