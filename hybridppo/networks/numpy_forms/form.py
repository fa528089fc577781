"""Describes an actor, apart from its parameters, so that it can be made in NumPy.

Workers use this file without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from hybridppo.networks.numpy_forms.actor import ArrayActor, NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.encoders import EncodedForm, NumpyEncoded, NumpyFeaturesActor
from hybridppo.networks.numpy_forms.exploring import NumpyExploringActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, num_convolution_arrays
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.networks.numpy_forms.recurrent import CellForm, NumpyRecurrentActor
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import RowLayout

Agents = Sequence[Sequence[int]]
Sizes = Sequence[tuple[RowLayout, int]]
"""For each policy, the layout of its rows, and the number of its outputs."""


def most_outputs(sizes: Sizes) -> int:
    """The largest number of outputs of a policy."""
    return max(outputs for _, outputs in sizes)


class NumpyPoliciesActor(ArrayActor):
    """`networks.of_policies.PoliciesActor` in NumPy: the actors of several policies as one.

    Args:
        actors: the actor of each policy.
        agents: for each policy, which of the `A` agents of an environment are its own.
        sizes: as for `PoliciesActor`.
        state_sizes: for each policy, the numbers in the state of its actor; 0 without a memory.
    """

    def __init__(
        self, actors: Sequence[Any], agents: Agents, sizes: Sizes | None = None, state_sizes: Sequence[int] = ()
    ) -> None:
        self.actors, self.agents, self._sizes = actors, agents, sizes
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
        outputs: Array | None = None
        for number, (actor, own) in enumerate(zip(self.actors, self.agents, strict=True)):
            taken = rows[:, own].reshape(-1, *observations.shape[1:])
            if self._sizes is not None:
                taken = self._sizes[number][0].own(taken)
            found = actor(taken)
            if outputs is None:
                width = found.shape[-1] if self._sizes is None else most_outputs(self._sizes)
                outputs = np.zeros((len(rows), self._num_agents, width), np.float32)
            outputs[:, own, : found.shape[-1]] = found.reshape(len(rows), len(own), -1)
        assert outputs is not None  # there is at least one policy
        return outputs.reshape(len(observations), -1)


@dataclass(frozen=True)
class NumpyForm:
    """Describes the actor that parameters belong to."""

    activation: NumpyActivation
    """Activation of every hidden layer."""
    mask_size: int = 0
    """Length of the mask, the last numbers of a row."""
    layout: RowLayout | None = None
    """Layout of a row, if convolutions or encoders precede the hidden layers; else None."""
    encoded: EncodedForm | None = None
    """The parts of a row, if they have separate layers; else None."""
    cell: CellForm | None = None
    """The recurrent cell, if the actor has one; else None."""
    normalizes: RowLayout | None = None
    """Layout of a row, if rows are normalised first; else None."""
    explores: bool = False
    """Whether exploration depends on the state: the first parameter then belongs to the noise."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """The actor, from its arrays in the order of `networks.forms.arrays_of`."""
        if self.normalizes is None:
            actor = self._actor(parameters)
        else:
            *own, mean, variance = parameters
            actor = NormalizingActor(self._actor(own), self.normalizes, mean, variance)
        actor.parameters, actor.version = parameters, version
        return actor

    def _actor(self, parameters: Sequence[Array]) -> ArrayActor:
        if self.cell is not None:
            return self._recurrent_actor(self.cell, parameters)
        if self.explores:
            return NumpyExploringActor(self._of_means(parameters[1:]), parameters[0])
        return self._of_means(parameters)

    def _of_means(self, parameters: Sequence[Array]) -> NumpyActor | NumpyFeaturesActor:
        start = len(parameters) % 2  # after the log standard deviations of a Gaussian actor
        before, num_arrays, mask_end = self._before(parameters[start:])
        rest = [*parameters[:start], *parameters[start + num_arrays :]]
        mlp = NumpyActor(rest, self.activation, self.mask_size, mask_end)
        return mlp if before is None else NumpyFeaturesActor(before, mlp)

    def _recurrent_actor(self, cell: CellForm, parameters: Sequence[Array]) -> NumpyRecurrentActor:
        before, start, mask_end = self._before(parameters)
        end = start + {"lstm": 3, "gru": 4, "mingru": 2}[cell.kind]
        network = NumpyActor(parameters[end:], self.activation, self.mask_size)
        return NumpyRecurrentActor(cell, parameters[start:end], network, self.mask_size, before, mask_end)

    def _before(self, parameters: Sequence[Array]) -> tuple[NumpyFeatures | NumpyEncoded | None, int, int | None]:
        """The layers before the MLP, made from the first of these parameters.

        Returns:
            The layers, or None; the number of their parameter arrays; and the index after the mask in their output,
            None if the mask is last.
        """
        if self.encoded is not None:
            end, num_numbers = self.encoded.num_arrays, self.encoded.layout.num_numbers
            has_mask_inside = self.encoded.end == num_numbers
            encoded = NumpyEncoded(self.encoded, parameters[:end], self.activation)
            return encoded, end, num_numbers if has_mask_inside else None
        if self.layout is not None:
            end = num_convolution_arrays(self.layout.images)
            return NumpyFeatures(self.layout, parameters[:end]), end, self.layout.num_numbers
        return None, 0, None


@dataclass(frozen=True)
class PoliciesForm:
    """Describes the actors of several policies, which act as one."""

    forms: tuple[NumpyForm, ...]
    num_arrays: tuple[int, ...]
    """Number of parameter arrays of each actor."""
    agents: Agents
    sizes: Sizes | None = None

    def actor(self, parameters: Sequence[Array], version: int = 0) -> ArrayActor:
        """Like `NumpyForm.actor`."""
        ends = list(accumulate(self.num_arrays))
        parts = [parameters[end - count : end] for end, count in zip(ends, self.num_arrays, strict=True)]
        actors = [form.actor(part) for form, part in zip(self.forms, parts, strict=True)]
        state_sizes = [0 if form.cell is None else form.cell.state_size for form in self.forms]
        actor = NumpyPoliciesActor(actors, self.agents, self.sizes, state_sizes)
        actor.parameters, actor.version = parameters, version
        return actor
