"""The networks of actors and critics, layers that they share, running moments, and actors of several policies as one.

Moments are buffers, so they are moved, mirrored and saved like all buffers. Their owner updates them once per update,
never while the parameters act: actor and learner then see the same numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.distributions.state_dependent import VARIANCE_EPSILON
from hybridppo.networks.modes import float32_linear
from hybridppo.networks.numpy_actors import EPSILON, FORBIDDEN, LIMIT, NumpyTwin, PoliciesTwin, twin_within
from hybridppo.spaces.rows import RowLayout


class Network(nn.Module):
    """An actor or a critic, `[..., *row] -> [..., outputs]`: a body, a last layer, and what an actor adds.

    A forbidden logit is replaced by one so low that its probability and its gradient are 0 (Huang and Ontanon, "A
    closer look at invalid action masking in policy gradient algorithms", section 3). Log standard deviations are
    parameters that depend on no observation, and follow the outputs.

    With state-dependent exploration, they follow from the features instead, and pass no gradient to them (as with
    `learn_features=False`, the default of stable-baselines3): the features are learned for the means alone.

    Args:
        body: all layers but the last, `[..., *row] -> [..., L]`; may be shared with the critic.
        head: the last layer, `L` to `n`.
        layout: the layout of a row; None for numbers alone.
        mask_size: length of the mask, the last numbers of a row, which belongs to as many first outputs.
        log_std: initial log standard deviations, `[d]`, or for exploration those of the entries of a noise matrix,
            `[d, L]`; None for none.
    """

    def __init__(
        self,
        body: nn.Module,
        head: nn.Linear,
        *,
        layout: RowLayout | None = None,
        mask_size: int = 0,
        log_std: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.body, self.head, self.mask_size = body, head, mask_size
        self._layout = RowLayout(0) if layout is None else layout
        self.log_std = None if log_std is None else nn.Parameter(log_std)
        self.explores = log_std is not None and log_std.ndim == 2
        """Whether exploration depends on the state."""

    def forward(self, observations: Tensor, matrices: Tensor | None = None) -> Tensor:
        """The outputs; with noise matrices `[..., d, L]` also the perturbations, `[..., 3 * d]` in all."""
        features = self.body(observations)
        outputs = self.finished(self.head(features), observations)
        if self.log_std is None or not self.explores:
            return outputs
        fixed = features.detach().float()
        # Var(sum over l of features[l] * matrix[i, l]) = sum over l of features[l]^2 * exp(2 * log_std[i, l])
        variance = float32_linear(fixed.square(), (2.0 * self.log_std).exp())
        outputs = torch.cat((outputs, 0.5 * (variance + VARIANCE_EPSILON).log()), dim=-1)
        if matrices is None:
            return outputs
        return torch.cat((outputs, (fixed.unsqueeze(-2) * matrices).sum(-1)), dim=-1)

    def finished(self, outputs: Tensor, observations: Tensor) -> Tensor:
        """The last layer's outputs with forbidden logits replaced, followed by the log standard deviations."""
        if self.mask_size:
            forbidden = self._layout.numbers(observations)[..., -self.mask_size :] == 0.0
            logits, others = outputs[..., : self.mask_size], outputs[..., self.mask_size :]
            logits = logits.masked_fill(forbidden, FORBIDDEN)
            outputs = torch.cat((logits, others), dim=-1) if others.shape[-1] else logits
        if self.log_std is None or self.explores:
            return outputs
        return torch.cat((outputs, self.log_std.expand(*outputs.shape[:-1], -1)), dim=-1)

    def numpy_twin(self) -> NumpyTwin | None:
        """The twin of its body, with a mask or exploration."""
        twin = twin_within(self.body)
        return None if twin is None else replace(twin, mask_size=self.mask_size, explores=self.explores)

    def scaled(self, noise: Tensor) -> Tensor:
        """Noise matrices `[N, d, L]` from standard normal noise `[N, d * L]`."""
        assert self.log_std is not None  # it explores
        return noise.view(-1, *self.log_std.shape) * self.log_std.exp()


def exploring_actor_of(network: Any) -> Network | None:
    """The network of this library whose exploration depends on the state, within another or not; None if none does."""
    inner = getattr(network, "network", network)
    return inner if isinstance(inner, Network) and inner.explores else None


class SharedTrunk(nn.Module):
    """All layers before the last ones of actor and critic. Within `once`, an input passes through them only once."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._keeps = False
        self._kept: tuple[Tensor, Tensor] | None = None

    def forward(self, observations: Tensor) -> Tensor:
        """`[..., *row] -> [..., features]`."""
        if not self._keeps:
            return self.network(observations)
        if self._kept is None or self._kept[0] is not observations:
            self._kept = observations, self.network(observations)
        return self._kept[1]

    def numpy_twin(self) -> NumpyTwin | None:
        """The twin of its layers."""
        return twin_within(self.network)

    @contextmanager
    def once(self) -> Iterator[None]:
        """A context in which the same tensor passes through only once; gradients of both networks add up there."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps, self._kept = False, None


def shared_trunk_of(network: nn.Module) -> SharedTrunk | None:
    """The shared trunk within a network; None if it has none."""
    return next((module for module in network.modules() if isinstance(module, SharedTrunk)), None)


Moments = tuple[Tensor, Tensor, Any]
"""Mean, variance and number of some rows. The number may be a tensor, so that nothing waits for the device."""


class RunningMoments(nn.Module):
    """Mean and variance of all rows added so far, `[*shape]` each; 0 and 1 at first.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    mean: Tensor
    """`[*shape]`."""
    variance: Tensor
    """`[*shape]`."""
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
    """Normalises numbers of rows to mean 0 and deviation 1, clipped to +-10; choices, items and images stay unchanged.

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
        numbers = given = self.layout.numbers(rows)
        if numbers.shape[-1] != len(mean):
            mean, scale = (moment.repeat(numbers.shape[-1] // len(mean)) for moment in (mean, scale))
        numbers = numbers - mean
        numbers.mul_(scale).clamp_(-LIMIT, LIMIT)
        for start, items in self.layout.items:  # numbers of characters and of nodes exceed the limit
            place = slice(start, start + items.size)
            numbers[..., place] = given[..., place]
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


class PoliciesActor(nn.Module):
    """`[N, obs] -> [N, outputs]`: row `i` belongs to agent `i % A` of an environment and passes through its policy.

    Args:
        actors: the actor of each policy.
        agents: for each policy, the indices of its own agents among the `A` of an environment.
        layouts: for each policy, the layout of its rows, if policies take other rows; else None.
    """

    def __init__(
        self, actors: Sequence[nn.Module], agents: Sequence[Sequence[int]], layouts: Sequence[RowLayout] | None = None
    ) -> None:
        super().__init__()
        self.layouts = layouts
        self.actors = nn.ModuleList(actors)
        self.agents = tuple(tuple(of_policy) for of_policy in agents)
        self.num_agents = sum(map(len, self.agents))
        """`A`."""
        for number, of_policy in enumerate(self.agents):
            self.register_buffer(f"_agents_{number}", torch.tensor(of_policy, dtype=torch.int64), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """The outputs of all rows in their order."""
        return self.outputs_by(lambda number, rows: self.actors[number](rows), observations)

    def outputs_by(self, act: Callable[[int, Tensor], Tensor], observations: Tensor) -> Tensor:
        """The outputs of all rows, filled up with zeros; `act` takes the number of a policy and its rows."""
        found = []
        for number in range(len(self.actors)):
            rows = self.rows_of(number, observations)
            found.append(act(number, rows if self.layouts is None else self.layouts[number].own(rows)))
        outputs = found[0].new_zeros((len(observations), max(own.shape[-1] for own in found)))
        for number, own in enumerate(found):
            self.put(outputs, number, own)
        return outputs

    def numpy_twin(self) -> PoliciesTwin | None:
        """The twin of all its actors, if each has one."""
        twins = [twin for twin in map(twin_within, self.actors) if twin is not None]
        if len(twins) < len(self.actors):
            return None
        num_arrays = tuple(len(arrays_of(actor)) for actor in self.actors)
        return PoliciesTwin(tuple(twins), num_arrays, self.agents, self.layouts)

    def twin_arrays(self) -> list[Tensor]:
        """The arrays of all its actors."""
        return [array for actor in self.actors for array in arrays_of(actor)]

    def rows_of(self, number: int, rows: Tensor) -> Tensor:
        """The rows of one policy."""
        apart = rows.view(-1, self.num_agents, *rows.shape[1:])
        return apart.index_select(1, self.get_buffer(f"_agents_{number}")).flatten(0, 1)

    def put(self, rows: Tensor, number: int, own: Tensor) -> None:
        """Write the first numbers of one policy's rows."""
        apart, agents = rows.view(-1, self.num_agents, rows.shape[1]), self.get_buffer(f"_agents_{number}")
        apart[..., : own.shape[-1]].index_copy_(1, agents, own.view(len(apart), len(agents), -1))


def actors_of(network: nn.Module) -> list[nn.Module]:
    """The actors of several policies; or the network itself, if it is the actor of one policy."""
    return list(network.actors) if isinstance(network, PoliciesActor) else [network]


def arrays_of(network: Any) -> list[Tensor]:
    """The arrays of its NumPy twin: its parameters, and the moments of its normalisation."""
    make = getattr(network, "twin_arrays", None)
    return [parameter.detach() for parameter in network.parameters()] if make is None else make()


KNOWN = (nn.Linear, nn.Conv2d, nn.Tanh, nn.ReLU, nn.Identity, nn.ModuleList)
"""Modules of torch that a network with a twin may have, by exact type: a subclass may compute something else."""


def twin_of(network: nn.Module) -> NumpyTwin | PoliciesTwin | None:
    """The NumPy twin of a network on a CPU; None if it has none.

    Networks of this library have one if their hidden layers use tanh or ReLU, and if they have no hooks.
    """
    modules = list(network.modules())
    if any(type(each) not in KNOWN and not type(each).__module__.startswith("hybridppo.") for each in modules):
        return None
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules):
        return None
    make: Callable[[], NumpyTwin | PoliciesTwin | None] = getattr(network, "numpy_twin", lambda: None)
    return make()


def mlp_twin(network: nn.Module) -> NumpyTwin:
    """The twin of a network that has one and belongs to one policy."""
    twin = twin_of(network)
    assert isinstance(twin, NumpyTwin)
    return twin
