"""What NumPy needs to know of an actor, beside its parameters, to stand in for it.

Free of torch, for worker processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.networks.numpy_forms.actor import NumpyActivation, NumpyActor
from hybridppo.networks.numpy_forms.encoders import EncodedForm, NumpyEncoded
from hybridppo.networks.numpy_forms.exploring import NumpyExploringActor
from hybridppo.networks.numpy_forms.images import NumpyFeatures, num_convolution_arrays
from hybridppo.networks.numpy_forms.normalizing import NormalizingActor
from hybridppo.networks.numpy_forms.recurrent import CellForm, NumpyRecurrentActor
from hybridppo.spaces.rows import RowLayout

Array = NDArray[Any]
Agents = Sequence[Sequence[int]]
Sizes = Sequence[tuple[int, int]]
"""Of each policy, how many numbers of a row it takes, and how many outputs it gives."""


def most_outputs(sizes: Sizes) -> int:
    """The outputs of the policy that gives most."""
    return max(outputs for _, outputs in sizes)


class NumpyFeaturesActor:
    """An MLP after what is made of rows, as a sampler sees them: host arrays in, host arrays out.

    Args:
        before: makes the inputs of the MLP of rows.
        mlp: what follows.
        parameters: all that this was made of.
    """

    def __init__(self, before: NumpyFeatures | NumpyEncoded, mlp: NumpyActor, parameters: Sequence[Array]) -> None:
        self.parameters, self.version = parameters, mlp.version
        self._before, self._mlp = before, mlp

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`; the result is reused by the next call."""
        return self._mlp(self._before(observations))

    @property
    def features(self) -> Array:
        """As `NumpyActor.features`."""
        return self._mlp.features


class NumpyPoliciesActor:
    """What `networks.of_policies.PoliciesActor` is: the actors of several policies as one.

    Args:
        actors: of the policies.
        agents: of each policy, which of the `A` agents of an environment are its own.
        sizes: as there.
        parameters: all that these were made of.
    """

    def __init__(
        self,
        actors: Sequence[Callable[[Array], Array]],
        agents: Agents,
        sizes: Sizes | None = None,
        parameters: Sequence[Array] = (),
        version: int = 0,
    ) -> None:
        self.parameters, self.version = parameters, version
        self.actors, self.agents, self._sizes = actors, agents, sizes
        self._num_agents = sum(map(len, agents))

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`, where row `i` is of agent `i % A`."""
        rows = observations.reshape(-1, self._num_agents, *observations.shape[1:])
        outputs: Array | None = None
        for number, (actor, own) in enumerate(zip(self.actors, self.agents, strict=True)):
            taken = rows[:, own].reshape(-1, *observations.shape[1:])
            if self._sizes is not None:
                taken = taken[:, : self._sizes[number][0]]
            found = actor(taken)
            if outputs is None:
                width = found.shape[-1] if self._sizes is None else most_outputs(self._sizes)
                outputs = np.zeros((len(rows), self._num_agents, width), np.float32)
            outputs[:, own, : found.shape[-1]] = found.reshape(len(rows), len(own), -1)
        assert outputs is not None  # there is a policy at least
        return outputs.reshape(len(observations), -1)


OwnActor = NumpyActor | NumpyFeaturesActor | NumpyRecurrentActor | NumpyExploringActor


@dataclass(frozen=True)
class NumpyForm:
    """Which actor the parameters are of."""

    activation: NumpyActivation
    """Of every hidden layer."""
    mask_size: int = 0
    """How many of the last numbers of a row say which of the first outputs are allowed."""
    layout: RowLayout | None = None
    """What a row is, where something is made of it before the hidden layers: of its images, or of each part."""
    encoded: EncodedForm | None = None
    """Its parts, where they have layers of their own."""
    cell: CellForm | None = None
    """The memory before it, if it has one."""
    normalizes: RowLayout | None = None
    """What a row is, where it is normalised first."""
    explores: bool = False
    """Whether its exploration depends on the state: its first parameter is of the noise."""

    def actor(self, parameters: Sequence[Array], version: int = 0) -> OwnActor | NormalizingActor:
        """The actor, with its arrays as `networks.forms.arrays_of` gives them."""
        if self.normalizes is not None:
            *own, mean, variance = parameters
            return NormalizingActor(self._actor(own, version), parameters, self.normalizes, mean, variance)
        return self._actor(parameters, version)

    def _actor(self, parameters: Sequence[Array], version: int) -> OwnActor:
        if self.cell is not None:
            return self._recurrent_actor(self.cell, parameters, version)
        if self.explores:
            return NumpyExploringActor(self._of_means(parameters[1:], version), parameters[0], parameters)
        return self._of_means(parameters, version)

    def _of_means(self, parameters: Sequence[Array], version: int) -> NumpyActor | NumpyFeaturesActor:
        start = len(parameters) % 2  # after the log standard deviations of a Gaussian actor
        before, num_arrays, mask_end = self._before(parameters[start:])
        rest = [*parameters[:start], *parameters[start + num_arrays :]]
        mlp = NumpyActor(rest, self.activation, version, self.mask_size, mask_end)
        return mlp if before is None else NumpyFeaturesActor(before, mlp, parameters)

    def _recurrent_actor(self, cell: CellForm, parameters: Sequence[Array], version: int) -> NumpyRecurrentActor:
        before, start, mask_end = self._before(parameters)
        end = start + {"lstm": 3, "gru": 4, "mingru": 2}[cell.kind]
        network = NumpyActor(parameters[end:], self.activation, version, self.mask_size)
        return NumpyRecurrentActor(cell, parameters[start:end], network, parameters, self.mask_size, before, mask_end)

    def _before(self, parameters: Sequence[Array]) -> tuple[NumpyFeatures | NumpyEncoded | None, int, int | None]:
        """What is made of rows first, of the first of these parameters.

        Returns:
            It, or None; the number of its parameters; and after which of what it gives a mask ends, None for the last.
        """
        if self.encoded is not None:
            end = self.encoded.num_arrays
            return NumpyEncoded(self.encoded, parameters[:end], self.activation), end, None
        if self.layout is not None:
            end = num_convolution_arrays(self.layout.images)
            return NumpyFeatures(self.layout, parameters[:end]), end, self.layout.num_numbers
        return None, 0, None


@dataclass(frozen=True)
class PoliciesForm:
    """The forms of several policies' actors, which act as one."""

    forms: tuple[NumpyForm, ...]
    num_arrays: tuple[int, ...]
    """Of each, how many of the parameters are its own."""
    agents: Agents
    sizes: Sizes | None = None

    def actor(self, parameters: Sequence[Array], version: int = 0) -> NumpyPoliciesActor:
        """As `NumpyForm.actor`."""
        ends = list(accumulate(self.num_arrays))
        parts = [parameters[end - count : end] for end, count in zip(ends, self.num_arrays, strict=True)]
        actors = [form.actor(part, version) for form, part in zip(self.forms, parts, strict=True)]
        return NumpyPoliciesActor(actors, self.agents, self.sizes, parameters, version)
