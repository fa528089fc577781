"""Running moments, and networks of observations that are normalised by them.

Moments are buffers, so they are moved, mirrored and saved like all buffers. Their owner updates them once per update,
never while the parameters act: actor and learner then see the same numbers.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.numpy_actors import EPSILON, LIMIT, NumpyTwin, twin_within
from hybridppo.spaces.rows import RowLayout

Moments = tuple[Tensor, Tensor, Any]
"""Mean, variance and number of some rows. The number may be a tensor, so that nothing waits for the device."""


class RunningMoments(nn.Module):
    """Mean and variance of all rows added so far, `[*shape]` each; 0 and 1 at first.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        # On the device like the other buffers, so that an addition waits for nothing.
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def merge(self, mean: Tensor, variance: Tensor, number: Any) -> None:
        """Add `number` rows with this mean and variance; 0 rows change nothing."""
        if isinstance(number, int) and not number:
            return
        share = number / (self.count + number).clamp(min=1).to(torch.float32)
        difference = mean - self.mean
        # A variance instead of a sum of squares: it stays accurate however many rows are added.
        spread = variance - self.variance + (1.0 - share) * difference * difference
        self.variance.add_(share * spread)
        self.mean.add_(share * difference)
        self.count.add_(number)


def moments_of(values: Tensor) -> Moments:
    """Mean, variance and number of rows `[B, *shape]`."""
    mean = values.mean(0)
    return mean, (values - mean).square_().mean(0), len(values)


def joint_moments(means: Tensor, variances: Tensor, numbers: Tensor) -> Moments:
    """The moments of all rows together, from those of `S` parts.

    Args:
        means: `[S, ...]`.
        variances: `[S, ...]`.
        numbers: `[S]`, the rows of each part; the moments of a part without rows do not count.
    """
    counts = numbers.view(-1, *[1] * (means.ndim - 1))
    shares = counts / numbers.sum().clamp(min=1)
    means, variances = (torch.where(counts > 0, moments, 0.0) for moments in (means, variances))
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean).square())).sum(0), numbers.sum().to(torch.int64)


class ObservationNormalizer(nn.Module):
    """Normalises the numbers of rows to mean 0 and deviation 1, clipped to +-10; choices and images stay unchanged.

    Args:
        layout: the layout of a row.
        measured: `[num_numbers]`, which numbers are quantities and not part of a choice or a mask; if rows are stacks
            of frames, the numbers of one frame, whose moments all frames share.
    """

    def __init__(self, layout: RowLayout, measured: NDArray[Any]) -> None:
        super().__init__()
        self.moments = RunningMoments(len(measured))
        self.layout = layout
        ends = np.flatnonzero(np.diff(np.concatenate(([1], measured, [1]))))
        self._choices = [slice(*run) for run in ends.reshape(-1, 2).tolist()]

    def forward(self, rows: Tensor) -> Tensor:
        """`[..., *row] -> [..., *row]`."""
        mean, scale = self.moments.mean, (self.moments.variance + EPSILON).rsqrt()
        numbers = self.layout.numbers(rows)
        if numbers.shape[-1] != len(mean):
            mean, scale = (moment.repeat(numbers.shape[-1] // len(mean)) for moment in (mean, scale))
        numbers = numbers - mean
        numbers.mul_(scale).clamp_(-LIMIT, LIMIT)
        return self.layout.replaced(rows, numbers)

    def moments_of(self, rows: Tensor) -> Moments:
        """The moments of rows `[B, *row]`."""
        return moments_of(self.layout.numbers(rows))

    def merge(self, mean: Tensor, variance: Tensor, number: Any) -> None:
        """Add `number` rows with this mean and variance, `[num_numbers]` each."""
        self.moments.merge(mean, variance, number)
        for choice in self._choices:
            self.moments.mean[choice] = 0.0
            self.moments.variance[choice] = 1.0


class NormalizedNetwork(nn.Module):
    """`[..., *row] -> [..., outputs]`: a network behind a normaliser, which actor and critic share."""

    def __init__(self, normalizer: ObservationNormalizer, network: nn.Module) -> None:
        super().__init__()
        self.normalizer, self.network = normalizer, network

    def forward(self, observations: Tensor, *memory: Tensor) -> Any:
        """The network's outputs for normalised observations."""
        return self.network(self.normalizer(observations), *memory)

    def numpy_twin(self) -> NumpyTwin | None:
        """The twin of its network, which normalises."""
        twin = twin_within(self.network)
        return None if twin is None else replace(twin, normalizes=self.normalizer.layout)

    def twin_arrays(self) -> list[Tensor]:
        """Its parameters, then mean and variance."""
        moments = self.normalizer.moments
        return [*(parameter.detach() for parameter in self.parameters()), moments.mean, moments.variance]
