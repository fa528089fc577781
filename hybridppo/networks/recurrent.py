"""Recurrent networks: a cell, followed by an ordinary network of its output.

The arithmetic is that of `nn.LSTM` and `nn.GRU`. The state of a cell begins with its output `h`; it is zero at the
start of an episode. `numpy_actors.py` acts with the same parameters.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.numpy_actors import NumpyTwin, twin_within
from hybridppo.spaces.rows import RowLayout
from hybridppo.system.devices import sent

Recurrent = Literal["lstm", "gru"]

FORGET_BIAS = 1.0
"""Initial bias of an LSTM's forget gate, so that it remembers until it has learned to forget (Jozefowicz et al., 2015,
"An Empirical Exploration of Recurrent Network Architectures", section 2)."""


class Cell(nn.Module):
    """A recurrent cell. The state begins with the output; torch's functions, which it calls, know no episodes.

    Args:
        inputs: `I`.
        size: `H`, the length of the output.
        generator: draws the weights, which are orthogonal for each gate.
    """

    num_gates: ClassVar[int]
    num_states: ClassVar[int]
    """The length of the state in multiples of `H`."""
    kind: ClassVar[Recurrent]
    """Its name in the configuration, and of torch's function for all steps at once."""

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, self.num_states * size
        self.weight_input, self.weight_state = (
            nn.Parameter(torch.empty(self.num_gates * size, width)) for width in (inputs, size)
        )
        for weight in (self.weight_input, self.weight_state):
            for gate in torch.split(weight.data, size):
                nn.init.orthogonal_(gate, 1.0, generator=generator)
        self.bias = nn.Parameter(torch.zeros(self.num_gates * size))

    def parameters_of_torch(self) -> list[Tensor]:
        """The weights of inputs and state and both biases, as arguments of torch's functions."""
        raise NotImplementedError

    def step(self, inputs: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The state after a step, `[B, state_size]`, of inputs `[B, I]` and the state before it."""
        raise NotImplementedError

    def states(self, inputs: Tensor, state: Tensor, starts: Tensor) -> Tensor:
        """The states after each step, `[T, B, state_size]`.

        Args:
            inputs: `[T, B, I]`.
            state: `[B, state_size]`, before the first step.
            starts: `[T, B]` bool, where the state is reset before the step.
        """
        parameters = self.parameters_of_torch()
        keeps = (~starts).to(inputs.dtype).unsqueeze(-1)
        states = []
        for of_step, keep in zip(inputs.unbind(0), keeps.unbind(0), strict=True):
            state = self.step(of_step, state * keep, parameters)
            states.append(state)
        return torch.stack(states)

    def outputs(self, inputs: Tensor, state: Tensor) -> Tensor:
        """All outputs, `[T, B, H]`, for inputs `[T, B, I]` and the state before the first, `[B, state_size]`."""
        first = tuple(part.unsqueeze(0).contiguous() for part in state.chunk(self.num_states, -1))
        outputs: Tensor = getattr(torch, self.kind)(
            inputs, first if len(first) > 1 else first[0], self.parameters_of_torch(), has_biases=True, num_layers=1,
            dropout=0.0, train=torch.is_grad_enabled(), bidirectional=False, batch_first=False,
        )[0]  # fmt: skip
        return outputs


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000).

    The state is `[h, c]`. Parameters differ from those of `nn.LSTM` in two ways: gates are in the order input, forget,
    output, cell, so that the sigmoids are contiguous, and each gate has one bias, because torch always adds its two.
    """

    num_gates, num_states, kind = 4, 2, "lstm"

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__(inputs, size, generator)
        self.bias.data[size : 2 * size] = FORGET_BIAS

    def parameters_of_torch(self) -> list[Tensor]:  # noqa: D102 - as in the base
        ordered = []
        for tensor in (self.weight_input, self.weight_state, self.bias):
            first_gates, output, cell = torch.split(tensor, [2 * self.size, self.size, self.size])
            ordered.append(torch.cat((first_gates, cell, output)))
        return _in_one_piece(*ordered, torch.zeros_like(self.bias))

    def step(self, inputs: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> Tensor:  # noqa: D102
        return torch.cat(torch.lstm_cell(inputs, state.chunk(2, -1), *parameters), -1)


class GRU(Cell):
    """Gated recurrent unit (Cho et al., 2014, with the reset gate after the product, as in torch and cuDNN).

    Gates are in the order reset, update, new; the state is `h`. Unlike in `nn.GRU`, only the last gate has two biases,
    because in the others they are added.
    """

    num_gates, num_states, kind = 3, 1, "gru"

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__(inputs, size, generator)
        self.bias_state = nn.Parameter(torch.zeros(size))

    def parameters_of_torch(self) -> list[Tensor]:  # noqa: D102 - as in the base
        bias_state = torch.cat((torch.zeros_like(self.bias[: 2 * self.size]), self.bias_state))
        return _in_one_piece(self.weight_input, self.weight_state, self.bias, bias_state)

    def step(self, inputs: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> Tensor:  # noqa: D102
        return torch.gru_cell(inputs, state, *parameters)


CELLS: dict[Recurrent, type[Cell]] = {"lstm": LSTM, "gru": GRU}


class Segments:
    """Sequences cut at episode starts. Torch's layers, which do not know episodes, take each segment as a column.

    Columns are padded to the longest segment; results in the padding are not used.

    Args:
        starts: `[L, S]` bool, which steps of the sequences are the first of an episode.
        device: device of the sequences.
    """

    def __init__(self, starts: NDArray[np.bool_], device: torch.device) -> None:
        self._starts, self._device = starts, device

    @cached_property
    def _cut(self) -> tuple[tuple[int, int], Tensor, Tensor, Tensor]:
        """The shape of the columns, the places of steps, and the sequences and columns that begin with a state."""
        starts, begins = self._starts, self._starts.copy()
        begins[0] = True
        # Counted column by column.
        segments = begins.T.cumsum().reshape(begins.T.shape).T - 1
        steps = np.arange(len(starts))[:, None]
        steps = steps - np.maximum.accumulate(np.where(begins, steps, 0))  # since the start of the segment
        shape = int(steps.max()) + 1, int(segments[-1, -1]) + 1
        places = sent((steps * shape[1] + segments).ravel(), self._device)
        # Only the first segment of a sequence begins with a state, unless it begins an episode.
        goes_on = sent(np.flatnonzero(~starts[0]), self._device)
        return shape, places, goes_on, sent(segments[0, ~starts[0]], self._device)

    def outputs(self, cell: Cell, inputs: Tensor, state: Tensor) -> Tensor:
        """The outputs of a cell, `[L, S, H]`.

        Args:
            cell: the cell.
            inputs: `[L, S, I]`.
            state: `[S, state_size]`, before the first step of each sequence.
        """
        (longest, number), places, goes_on, first = self._cut
        padded = inputs.new_zeros((longest * number, inputs.shape[-1])).index_copy(0, places, inputs.flatten(0, 1))
        before = state.new_zeros((number, cell.state_size))
        before = before.index_copy(0, first, state.index_select(0, goes_on))
        found = cell.outputs(padded.view(longest, number, -1), before)
        return found.flatten(0, 1).index_select(0, places).view(*inputs.shape[:2], -1)


class RecurrentNetwork(nn.Module):
    """`[T, B, *row]` to `[T, B, outputs]`, with a recurrent state.

    Args:
        features: computes the inputs of the cell from rows, `[..., *row] -> [..., I]`; None if rows are the inputs.
        cell: the cell.
        network: takes the output of the cell, `[..., H]`, followed by the mask if rows have one.
        layout: the layout of a row.
        mask_size: length of the mask, the last numbers of a row.
    """

    def __init__(
        self, features: nn.Module | None, cell: Cell, network: nn.Module, layout: RowLayout, mask_size: int
    ) -> None:
        super().__init__()
        self.features, self.cell, self.network = features, cell, network
        self.layout, self.mask_size = layout, mask_size

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the states after each step, `[T, B, state_size]`: to act and to evaluate.

        Args:
            observations: `[T, B, *row]`.
            state: `[B, state_size]`, before the first step.
            starts: `[T, B]` bool, which observations are the first of an episode: the state is reset there.
        """
        after = self.cell.states(self._inputs(observations), state, starts)
        return self.network(self._remembered(observations, after[..., : self.cell.size])), after

    def of_sequences(self, observations: Tensor, state: Tensor, segments: Segments) -> Tensor:
        """The outputs of `forward` for all steps at once, to learn: gradients reach back to each segment's start."""
        hidden = segments.outputs(self.cell, self._inputs(observations), state)
        return self.network(self._remembered(observations, hidden))

    def numpy_twin(self) -> NumpyTwin | None:
        """The twin of its network, behind its cell."""
        twin = twin_within(self.network)
        if twin is None or twin.encoded is not None:
            return None
        make = getattr(self.features, "encoded_twin", None)
        encoded = None if make is None else make(twin.activation)
        if self.features is not None and encoded is None:
            return None
        return replace(twin, cell=self.cell.kind, cell_size=self.cell.size, encoded=encoded, columns=None)

    def _inputs(self, observations: Tensor) -> Tensor:
        return observations if self.features is None else self.features(observations)

    def _remembered(self, observations: Tensor, hidden: Tensor) -> Tensor:
        """The inputs of the network, `[..., H + mask_size]`."""
        if not self.mask_size:
            return hidden
        mask = self.layout.numbers(observations)[..., self.layout.num_numbers - self.mask_size :]
        return torch.cat((hidden, mask), dim=-1)


def cell_of(network: nn.Module) -> Cell | None:
    """The recurrent cell of a network of this library, normalised or not; None if it has none."""
    inner = network if isinstance(network, RecurrentNetwork) else getattr(network, "network", None)
    return inner.cell if isinstance(inner, RecurrentNetwork) else None


def _in_one_piece(*parameters: Tensor) -> list[Tensor]:
    """Copies that are contiguous with each other in memory, as cuDNN needs them."""
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
