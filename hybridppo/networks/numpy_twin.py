"""The NumPy twin of an actor: describes it apart from its parameters, so that it can be made in NumPy.

Worker processes and all placements that sample on the CPU use it, because for small networks most of torch's time is
overhead. Workers use this file without torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

import numpy as np

from hybridppo.distributions.state_dependent import VARIANCE_EPSILON
from hybridppo.networks.numpy_layers import CellTwin, EncodedTwin, NumpyEncoder, NumpyNormalizer, NumpyRecurrentActor
from hybridppo.networks.numpy_mlp import ArrayActor, NumpyActivation, NumpyActor
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import RowLayout

Agents = Sequence[Sequence[int]]
Layouts = Sequence[RowLayout] | None
"""For each policy, the layout of its rows, if policies take other rows; else None."""


@dataclass(frozen=True)
class NumpyTwin:
    """Describes the actor that parameters belong to."""

    activation: NumpyActivation
    """Activation of every hidden layer."""
    mask_size: int = 0
    """Length of the mask, the last numbers of a row."""
    encoded: EncodedTwin | None = None
    """What precedes the hidden layers: convolutions, or separate layers of the parts of a row; else None."""
    columns: Any = field(default_factory=lambda: slice(None), compare=False)
    """The numbers of a row that the hidden layers see, as an index; None if they see something else."""
    cell: CellTwin | None = None
    """The recurrent cell, if the actor has one; else None."""
    normalizes: RowLayout | None = None
    """Layout of a row, if rows are normalised first; else None."""
    explores: bool = False
    """Whether exploration depends on the state: the first parameter then belongs to the noise."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """The actor, from its arrays in the order of `networks.actors.arrays_of`."""
        own, before = list(parameters), list[Callable[[Array], Array]]()
        if self.normalizes is not None:
            *own, mean, variance = parameters
            before.append(NumpyNormalizer(self.normalizes, mean, variance))
        # The log standard deviations of a Gaussian actor are first; behind a cell, `NumpyActor` finds them.
        free = [own.pop(0)] if self.cell is None and len(own) % 2 else []
        rest, mask_end = iter(own), None
        if self.encoded is not None:
            before.append(NumpyEncoder(self.encoded, rest, self.activation))
            mask_end = self.encoded.mask_end
        actor: ArrayActor
        if self.cell is not None:
            cell = list(islice(rest, self.cell.num_arrays))
            network = NumpyActor(list(rest), self.activation, self.mask_size)
            actor = NumpyRecurrentActor(self.cell, cell, network, self.mask_size, mask_end, before)
        elif self.explores:
            actor = NumpyExploringActor(NumpyActor(list(rest), self.activation, before=before), free[0])
        else:
            actor = NumpyActor([*free, *rest], self.activation, self.mask_size, mask_end, before)
        actor.parameters, actor.version = parameters, version
        return actor


@dataclass(frozen=True)
class PoliciesTwin:
    """Describes the actors of several policies, which act as one."""

    twins: tuple[NumpyTwin, ...]
    num_arrays: tuple[int, ...]
    """Number of parameter arrays of each actor."""
    agents: Agents
    layouts: Layouts = None

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """Like `NumpyTwin.actor`."""
        ends = list(accumulate(self.num_arrays))
        parts = [parameters[end - count : end] for end, count in zip(ends, self.num_arrays, strict=True)]
        actors = [twin.actor(part) for twin, part in zip(self.twins, parts, strict=True)]
        state_sizes = [0 if twin.cell is None else twin.cell.state_size for twin in self.twins]
        actor = NumpyPoliciesActor(actors, self.agents, self.layouts, state_sizes)
        actor.parameters, actor.version = parameters, version
        return actor


def twin_within(module: Any) -> NumpyTwin | None:
    """The twin of a part of a network; None if it has none."""
    make: Callable[[], NumpyTwin | None] = getattr(module, "numpy_twin", lambda: None)
    return make()


class NumpyExploringActor(ArrayActor):
    """Means and log standard deviations, and the perturbation by a noise matrix.

    The outputs for an observation do not depend on the number of observations: each sum over features is of one row, in
    an order that follows from the number of features alone.

    Args:
        actor: gives the means and the features.
        log_std: log standard deviations of the entries of a matrix, `[d, L]`; copied.
    """

    def __init__(self, actor: NumpyActor, log_std: Array) -> None:
        self._actor = actor
        self._scale: Array = np.exp(log_std)
        self._variance: Array = self._scale * self._scale
        self._matrices: Array | None = None
        self.perturbation: Array = np.zeros((0, len(log_std)), np.float32)
        """The noise that the last call added, `[N, d]`; reused by the next call."""
        self._outputs = np.zeros((0, 2 * len(log_std)), np.float32)

    def explore(self, noise: Array) -> None:
        """Use standard normal noise `[N, d * L]` for the next calls."""
        self._matrices = noise.reshape(len(noise), *self._scale.shape) * self._scale

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, 2 * d]`; the result is reused by the next call."""
        means = self._actor(observations)
        num_rows, size = means.shape
        if len(self._outputs) != num_rows:
            self._outputs = np.empty((num_rows, 2 * size), np.float32)
            self._products = np.empty((num_rows, *self._scale.shape), np.float32)
            self.perturbation = np.zeros((num_rows, size), np.float32)
        features = self._actor.features[:, None, :]
        products, log_std = self._products, self._outputs[:, size:]
        self._outputs[:, :size] = means
        # [N, 1, L] and [d, L] -> [N, d, L] -> [N, d]
        np.multiply(features * features, self._variance, out=products)
        log_std[:] = np.float32(0.5) * np.log(products.sum(-1) + np.float32(VARIANCE_EPSILON))
        if self._matrices is not None and len(self._matrices) == num_rows:
            np.multiply(features, self._matrices, out=products)
            np.add.reduce(products, axis=-1, out=self.perturbation)
        return self._outputs


class NumpyPoliciesActor(ArrayActor):
    """`networks.actors.PoliciesActor` in NumPy: the actors of several policies as one.

    Args:
        actors: the actor of each policy.
        agents: for each policy, which of the `A` agents of an environment are its own.
        layouts: as for `PoliciesActor`.
        state_sizes: for each policy, the numbers in the state of its actor; 0 without a memory.
    """

    def __init__(
        self, actors: Sequence[Any], agents: Agents, layouts: Layouts = None, state_sizes: Sequence[int] = ()
    ) -> None:
        self.actors, self.agents, self._layouts = actors, agents, layouts
        self._num_agents = sum(map(len, agents))
        parts = zip(actors, agents, state_sizes, strict=False)
        self._remembering = [(actor, own, size) for actor, own, size in parts if size]
        self._state_size, self._num_envs = max(state_sizes, default=0), 0

    @property
    def state(self) -> Array:
        """`[N, state_size]`, a copy; the state of each policy comes first in its rows, and then zeros."""
        state = np.zeros((self._num_envs, self._num_agents, self._state_size), np.float32)
        for actor, own, size in self._remembering:
            state[:, own, :size] = actor.state.reshape(-1, len(own), size)
        return state.reshape(-1, self._state_size)

    @state.setter
    def state(self, state: Array) -> None:
        apart = state.reshape(-1, self._num_agents, self._state_size)
        self._num_envs = len(apart)
        for actor, own, size in self._remembering:
            actor.state = apart[:, own, :size].reshape(-1, size)

    def forget(self, envs: Array) -> None:
        """Set the state of some rows, `[N]` bool, to zero."""
        apart = envs.reshape(-1, self._num_agents)
        for actor, own, _ in self._remembering:
            actor.forget(apart[:, own].ravel())

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; row `i` belongs to agent `i % A`."""
        rows = observations.reshape(-1, self._num_agents, *observations.shape[1:])
        found: list[Array] = []
        for number, (actor, own) in enumerate(zip(self.actors, self.agents, strict=True)):
            taken = rows[:, own].reshape(-1, *observations.shape[1:])
            found.append(actor(taken if self._layouts is None else self._layouts[number].own(taken)).copy())
        outputs = np.zeros((len(rows), self._num_agents, max(part.shape[-1] for part in found)), np.float32)
        for own, part in zip(self.agents, found, strict=True):
            outputs[:, own, : part.shape[-1]] = part.reshape(len(rows), len(own), -1)
        return outputs.reshape(len(observations), -1)
