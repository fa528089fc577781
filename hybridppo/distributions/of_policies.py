"""The distributions of several policies as one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from typing_extensions import Self

from hybridppo.distributions.base import Distribution, as_dtype, zeros
from hybridppo.distributions.joint import widest_dtype
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.kinds import each_of

if TYPE_CHECKING:
    from torch import Tensor


class DistributionOfPolicies(Distribution):
    """The action distributions of several policies with different action spaces, for rows of all their agents.

    Row `i` belongs to agent `i % A` of an environment. Each policy uses the first numbers of the outputs, noise and
    actions of its rows; the others are zeros.

    Args:
        distributions: the distribution of each policy.
        action_spaces: the action space of each policy.
        agents: for each policy, the indices of its own agents among the `A` of an environment.
    """

    def __init__(
        self,
        distributions: Sequence[Distribution],
        action_spaces: Sequence[gym.Space[Any]],
        agents: Sequence[Sequence[int]],
    ) -> None:
        self.output_size = max(each.output_size for each in distributions)
        self.noise_size = max(each.noise_size for each in distributions)
        self._widths = [int(np.prod(each.action_shape)) for each in distributions]
        self.action_shape = (max(self._widths),)
        self.action_dtype = widest_dtype(distributions)
        self.distributions, self._spaces = list(distributions), list(action_spaces)
        self.agents = [list(own) for own in agents]
        self._num_agents = sum(map(len, agents))
        self._places: Sequence[Any] = self.agents

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """`[*shape, noise]`, where the last of `shape` counts rows."""
        games = *shape[:-1], shape[-1] // self._num_agents
        pairs = zip(self.distributions, self.agents, strict=True)
        drawn = [distribution.draw_noise(generator, (*games, len(own))) for distribution, own in pairs]
        return self._of_all(np.empty((*shape, 0)), drawn, self.noise_size, np.float32)

    @property
    def num_words(self) -> int:  # noqa: D102 - as in the base
        return max(each.num_words for each in self.distributions)

    def noise_from(self, words: Tensor) -> Any:
        """As in the base, for `[..., N, num_words]`."""
        drawn = [each.noise_from(self._own(words, i, each.num_words)) for i, each in enumerate(self.distributions)]
        return self._of_all(words, drawn, self.noise_size, np.float32)

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Random actions `[N, width]`."""
        chosen = [
            each.sample(self._own(outputs, i, each.output_size), self._own(noise, i, each.noise_size))
            for i, each in enumerate(self.distributions)
        ]
        return self._of_all(outputs, chosen, self.action_shape[0], self.action_dtype)

    def mode(self, outputs: Any) -> Any:
        """The deterministic actions `[N, width]`."""
        chosen = [each.mode(self._own(outputs, i, each.output_size)) for i, each in enumerate(self.distributions)]
        return self._of_all(outputs, chosen, self.action_shape[0], self.action_dtype)

    def to_env(self, actions: Any) -> list[Any]:
        """A list of the single actions of all rows; of tensors, of the actions `[N / A, *action]` of each agent."""
        is_host = isinstance(actions, np.ndarray)
        found: list[Any] = [None] * (len(actions) if is_host else self._num_agents)
        for i, (distribution, space) in enumerate(zip(self.distributions, self._spaces, strict=True)):
            own = self._actions_of(actions, i)
            if not is_host:
                for number, slot in enumerate(self.agents[i]):
                    found[slot] = distribution.to_env(own[:, number])
                continue
            batch = distribution.to_env(own.reshape(-1, *distribution.action_shape))
            rows = np.arange(len(actions)).reshape(-1, self._num_agents)[:, self.agents[i]].ravel()
            for row, action in zip(rows.tolist(), each_of(space)(batch), strict=True):
                found[row] = action
        return found

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """`[..., N]`. There is no entropy: each policy learns by its own distribution."""
        lead = outputs.shape[:-1]
        found = outputs.new_empty((*lead[:-1], lead[-1] // self._num_agents, self._num_agents))
        for i, distribution in enumerate(self.distributions):
            own = self._own(outputs, i, distribution.output_size)
            found[..., self._places[i]] = distribution.log_prob(own, self._actions_of(actions, i))
        return found.reshape(lead)

    def on(self, device: Any) -> Self:  # noqa: D102 - as in the base
        import torch

        found = copy(self)
        found.distributions = [each.on(device) for each in self.distributions]
        found._places = [torch.tensor(own, device=device) for own in self.agents]
        return found

    def _own(self, rows: Any, policy: int, size: int) -> Any:
        """The first `size` numbers of one policy's rows, `[..., N / A, a, size]`."""
        apart = rows.reshape(*rows.shape[:-2], -1, self._num_agents, rows.shape[-1])
        return apart[..., self._places[policy], :size]

    def _actions_of(self, actions: Any, policy: int) -> Any:
        """The actions of one policy's agents, `[..., N / A, a, *action]`."""
        distribution, own = self.distributions[policy], self._own(actions, policy, self._widths[policy])
        return as_dtype(own.reshape(*own.shape[:-1], *distribution.action_shape), distribution.action_dtype)

    def _of_all(self, like: Any, parts: Sequence[Any], width: int, dtype: Any) -> Any:
        """The rows of all agents, `[..., N, width]`, from those of each policy, filled up with zeros."""
        found = zeros(like, (*like.shape[:-1], width), dtype)
        apart = found.reshape(*found.shape[:-2], -1, self._num_agents, width)
        for places, part in zip(self._places, parts, strict=True):
            own = as_dtype(part.reshape(*apart.shape[:-2], len(places), -1), dtype)
            apart[..., places, : own.shape[-1]] = own
        return found
