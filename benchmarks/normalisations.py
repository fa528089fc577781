"""Other ways to normalise, which `defaults.py` compares with the library's.

Each changes the library's classes in this process, and is no option of the library.

- `before`: the statistics change before an update instead of after it. The policy acts next with the statistics that it
  learned with.
- `first`: the same for the first rollout alone, so that no update learns from observations that are not normalised.
- `frozen`: as `first`, and the statistics stay as they are after 20,000 steps.
- `steady-observations`: as `first`. Later, networks compute the same as before when statistics change, because their
  first layers make up for it. `kept` is the same without `first`.
- `steady-rewards`: the critic's last layer makes up for the new scale of rewards, as in PopArt (van Hasselt et al.,
  2016).
- `least-D`: at least `D**2` is added to variances, so that no number is enlarged by more than `1 / D`.
- `centred` only subtracts the mean; `scaled` only divides by the deviation.
- `enlarged`: as the library, but numbers with a deviation of 1 to 5 keep their scale. `doubled`: twice the scale.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hybridppo.agents.ppo.batch import Normalization
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.networks import actors, numpy_actors
from hybridppo.networks.numpy_actors import EPSILON

Scale = Callable[[Any], Any]
"""The factor of numbers with these standard deviations, as NumPy arrays."""
FROZEN_AFTER = 20_000
"""Steps after which the statistics of `frozen` stay as they are."""


def learned_early(*, only_first: bool = False, most: int | None = None) -> None:
    """Let the statistics of observations change before an update: before each, or only before the first."""
    batch_of, learned = PPO.batch_of, Normalization.learned
    done: list[bool] = []

    def new_batch_of(self: PPO, rollout: Any, loop: Any) -> Any:
        observations = self.normalization.observations
        done[:] = [observations is not None and not (only_first and int(observations.moments.count))]
        if done[0]:
            learned(self.normalization, rollout.parts, loop.exchange.moments)
        return batch_of(self, rollout, loop)

    def new_learned(self: Normalization, parts: Sequence[Any], together: Any) -> None:
        is_full = most is not None and self.observations is not None and int(self.observations.moments.count) >= most
        if not done[0] and not is_full:
            learned(self, parts, together)

    PPO.batch_of, Normalization.learned = new_batch_of, new_learned


def of_updates(function: Callable[[Any], None]) -> None:
    """Call a function with the agent at the start of each of its updates."""
    batch_of = PPO.batch_of

    def new_batch_of(self: PPO, rollout: Any, loop: Any) -> Any:
        function(self)
        return batch_of(self, rollout, loop)

    PPO.batch_of = new_batch_of


def steady_observations(*, early: bool = True) -> None:
    """Let networks compute the same as before when statistics of observations change, after the first rollout."""
    if early:
        learned_early(only_first=True)
    learned, agent = Normalization.learned, list[Any]()
    of_updates(lambda updated: agent.insert(0, updated))

    @torch.no_grad()
    def new_learned(self: Normalization, parts: Sequence[Any], together: Any) -> None:
        if self.observations is None:
            return
        moments = self.observations.moments
        mean, scale = moments.mean.clone(), (moments.variance + actors.EPSILON).rsqrt()
        is_first = not int(moments.count)
        learned(self, parts, together)
        if is_first:
            return
        for network in (agent[0].actor_network, agent[0].critic_network):
            first = _linear(network)[0]
            first.bias.add_(first.weight @ (scale * (moments.mean - mean)))
            first.weight.mul_(scale * (moments.variance + actors.EPSILON).sqrt())

    Normalization.learned = new_learned


def steady_rewards() -> None:
    """Let the critic's values keep their meaning when the scale of rewards changes, after the first rollout."""
    rewarded, agent = Normalization.rewarded, list[Any]()
    of_updates(lambda updated: agent.insert(0, updated))

    @torch.no_grad()
    def new_rewarded(self: Normalization, parts: Sequence[Any], together: Any) -> Sequence[Any]:
        if self.rewards is None:
            return rewarded(self, parts, together)
        moments = self.rewards.moments
        deviation, is_first = (moments.variance + EPSILON).sqrt(), not int(moments.count)
        found = rewarded(self, parts, together)
        if not is_first:
            last, ratio = _linear(agent[0].critic_network)[-1], deviation * (moments.variance + EPSILON).rsqrt()
            last.weight.mul_(ratio)
            last.bias.mul_(ratio)
        return found

    Normalization.rewarded = new_rewarded


def _linear(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


def with_variance(least: float) -> None:
    """Add a number to the variances of observations, not of rewards."""
    actors.EPSILON = numpy_actors.EPSILON = least


def shaped(scale: Scale, *, centred: bool = True) -> None:
    """Multiply numbers of observations by `scale` of their deviations, after their mean was subtracted if `centred`."""
    of_numpy = numpy_actors.NumpyNormalizer.__init__

    def forward(self: actors.ObservationNormalizer, rows: torch.Tensor) -> torch.Tensor:
        deviation = (self.moments.variance + actors.EPSILON).sqrt()
        numbers = self.layout.numbers(rows)
        numbers = (numbers - self.moments.mean if centred else numbers) * torch.as_tensor(scale(deviation.numpy()))
        return self.layout.replaced(rows, numbers.clamp_(-actors.LIMIT, actors.LIMIT))

    def new_of_numpy(self: Any, layout: Any, mean: Any, variance: Any) -> None:
        of_numpy(self, layout, mean if centred else np.zeros_like(mean), variance)
        self._scale = scale(np.sqrt(variance + np.float32(numpy_actors.EPSILON))).astype(np.float32)

    actors.ObservationNormalizer.forward = forward
    numpy_actors.NumpyNormalizer.__init__ = new_of_numpy


NORMALISATIONS: dict[str, Callable[[], None]] = {
    "before": learned_early,
    "first": lambda: learned_early(only_first=True),
    "frozen": lambda: learned_early(only_first=True, most=FROZEN_AFTER),
    "steady-observations": steady_observations,
    "kept": lambda: steady_observations(early=False),
    "steady-rewards": steady_rewards,
    "least-0.1": lambda: with_variance(0.01),
    "least-0.3": lambda: with_variance(0.1),
    "least-1": lambda: with_variance(1.0),
    "centred": lambda: shaped(np.ones_like),
    "scaled": lambda: shaped(np.reciprocal, centred=False),
    "enlarged": lambda: shaped(lambda deviation: np.where(deviation < 1, 1 / deviation, np.minimum(1, 5 / deviation))),
    "doubled": lambda: shaped(lambda deviation: 2 / deviation),
}
"""What changes the library, by name."""
