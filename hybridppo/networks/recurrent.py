"""Recurrent networks: a cell, followed by an ordinary network of its output.

The arithmetic is that of `nn.LSTM` and `nn.GRU`, or of a minGRU. The state of a cell begins with its output `h`; it is
zero at the start of an episode. `numpy_recurrent.py` acts with the same parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.numpy_layers import CellTwin
from hybridppo.networks.numpy_twin import NumpyTwin, twin_within
from hybridppo.spaces.on_tensors import numbers_of
from hybridppo.spaces.rows import RowLayout
from hybridppo.system.devices import sent

Recurrent = Literal["lstm", "gru", "mingru"]

FORGET_BIAS = 1.0
"""Initial bias of an LSTM's forget gate, so that it remembers until it has learned to forget (Jozefowicz et al., 2015,
"An Empirical Exploration of Recurrent Network Architectures", section 2)."""


class _CellOfTorch(nn.Module):
    """A cell that torch has, too, which knows no episodes."""

    parameters_of_torch: Callable[[], list[Tensor]]
    step: Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]
    outputs: Callable[[Tensor, Tensor], Tensor]
    state_size: int

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

    def of_sequences(self, inputs: Tensor, state: Tensor, segments: "Segments") -> Tensor:
        """The outputs of all steps of sequences, `[L, S, H]`, with gradients.

        Args:
            inputs: `[L, S, I]`.
            state: `[S, state_size]`, before the first step of each sequence.
            segments: the sequences cut at episode starts.
        """
        return segments.outputs(self, inputs, state)


class LSTM(_CellOfTorch):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000).

    The state is `[h, c]`. Parameters differ from those of `nn.LSTM` in two ways: gates are in the order input, forget,
    output, cell, so that the sigmoids are contiguous, and each gate has one bias, because torch always adds its two.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, 2 * size
        self.weight_input, self.weight_state = _orthogonal(4, size, inputs, generator)
        self.bias = nn.Parameter(torch.zeros(4 * size))
        with torch.no_grad():
            self.bias[size : 2 * size] = FORGET_BIAS

    def parameters_of_torch(self) -> list[Tensor]:
        """The weights of inputs and state and both biases, as arguments of torch's functions."""
        ordered = []
        for tensor in (self.weight_input, self.weight_state, self.bias):
            first_gates, output, cell = torch.split(tensor, [2 * self.size, self.size, self.size])
            ordered.append(torch.cat((first_gates, cell, output)))
        return _in_one_piece(*ordered, torch.zeros_like(self.bias))

    def step(self, inputs: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The state after a step, `[B, 2 * H]`, of inputs `[B, I]` and the state before it."""
        return torch.cat(torch.lstm_cell(inputs, state.chunk(2, -1), *parameters), -1)

    def outputs(self, inputs: Tensor, state: Tensor) -> Tensor:
        """All outputs, `[T, B, H]`, for inputs `[T, B, I]` and the state before the first, `[B, 2 * H]`."""
        hidden, cell = (part.unsqueeze(0).contiguous() for part in state.chunk(2, -1))
        return torch.lstm(
            inputs, (hidden, cell), self.parameters_of_torch(), has_biases=True, num_layers=1, dropout=0.0,
            train=torch.is_grad_enabled(), bidirectional=False, batch_first=False,
        )[0]  # fmt: skip


class GRU(_CellOfTorch):
    """Gated recurrent unit (Cho et al., 2014, with the reset gate after the product, as in torch and cuDNN).

    Gates are in the order reset, update, new; the state is `h`. Unlike in `nn.GRU`, only the last gate has two biases,
    because in the others they are added.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, size
        self.weight_input, self.weight_state = _orthogonal(3, size, inputs, generator)
        self.bias = nn.Parameter(torch.zeros(3 * size))
        self.bias_state = nn.Parameter(torch.zeros(size))

    def parameters_of_torch(self) -> list[Tensor]:
        """As `LSTM.parameters_of_torch`."""
        bias_state = torch.cat((torch.zeros_like(self.bias[: 2 * self.size]), self.bias_state))
        return _in_one_piece(self.weight_input, self.weight_state, self.bias, bias_state)

    def step(self, inputs: Tensor, state: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """As `LSTM.step`, with states `[B, H]`."""
        return torch.gru_cell(inputs, state, *parameters)

    def outputs(self, inputs: Tensor, state: Tensor) -> Tensor:
        """As `LSTM.outputs`."""
        return torch.gru(
            inputs, state.unsqueeze(0), self.parameters_of_torch(), has_biases=True, num_layers=1, dropout=0.0,
            train=torch.is_grad_enabled(), bidirectional=False, batch_first=False,
        )[0]  # fmt: skip


class MinGRU(nn.Module):
    """Minimal gated recurrent unit (Feng et al., 2024, "Were RNNs All We Needed?", section 3.1).

    The gate depends on the inputs only, so all gates of a sequence are one product; a multiplication and an addition
    for each number are left for the loop over time. The state is `h`.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, size
        weights, (first, last) = [torch.empty(size, inputs) for _ in range(2)], UPDATE_BIASES
        for weight in weights:
            nn.init.orthogonal_(weight, 1.0, generator=generator)
        self.weight_input = nn.Parameter(torch.cat(weights))
        self.bias = nn.Parameter(torch.cat((torch.linspace(first, last, size), torch.zeros(size))))

    def states(self, inputs: Tensor, state: Tensor, starts: Tensor) -> Tensor:
        """As for an LSTM, with states `[B, H]`."""
        gates = nn.functional.linear(inputs, self.weight_input, self.bias)
        update, new = gates.chunk(2, -1)
        update = update.sigmoid()
        keep = (1.0 - update).masked_fill(starts.unsqueeze(-1), 0.0)
        return linear_recurrence(keep, update * new, state)

    def of_sequences(self, inputs: Tensor, state: Tensor, segments: "Segments") -> Tensor:
        """As `LSTM.of_sequences`. Sequences are not cut: at the start of an episode, the state is multiplied by 0."""
        return self.states(inputs, state, segments.starts)


UPDATE_BIASES = (2.0, -4.0)
"""Initial biases of a minGRU's update gates, from the first unit to the last: they remember 1 to 55 steps."""


class _LinearRecurrence(torch.autograd.Function):
    """`h[t] = keep[t] * h[t - 1] + new[t]`; its gradient is such a recurrence backwards in time."""

    @staticmethod
    def forward(ctx: Any, keep: Tensor, new: Tensor, state: Tensor) -> Tensor:
        """The states `[T, B, H]`."""
        states = torch.empty_like(new)
        before = state
        for keep_now, new_now, after in zip(keep.unbind(0), new.unbind(0), states.unbind(0), strict=True):
            torch.addcmul(new_now, keep_now, before, out=after)
            before = after
        ctx.save_for_backward(keep, states, state)
        return states

    @staticmethod
    def backward(ctx: Any, *of_states: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of `keep` and `new`; the state before the first step has none."""
        keep, states, state = ctx.saved_tensors
        of_new = of_states[0].clone(memory_format=torch.contiguous_format)
        steps, keeps = of_new.unbind(0), keep.unbind(0)
        for t in range(len(steps) - 2, -1, -1):
            steps[t].addcmul_(steps[t + 1], keeps[t + 1])
        of_keep = torch.empty_like(of_new)
        torch.mul(of_new[0], state, out=of_keep[0])
        torch.mul(of_new[1:], states[:-1], out=of_keep[1:])
        return of_keep, of_new, None


def linear_recurrence(keep: Tensor, new: Tensor, state: Tensor) -> Tensor:
    """`h[t] = keep[t] * h[t - 1] + new[t]`, `[T, B, H]`, from a state `[B, H]` without gradient.

    For 32 steps of 8 sequences of 64 numbers on a CPU, forward and backward took an eighth of the time of a scan in log
    space (Feng et al., 2024, appendix B): each step is one operation on data in the cache. It is also exact where
    `keep` is 0, which has no logarithm.
    """
    if len(keep) == 1:  # a single step, as in exports
        return torch.addcmul(new, keep, state)
    found: Tensor = _LinearRecurrence.apply(keep, new, state)  # type: ignore[no-untyped-call]
    return found


Cell = LSTM | GRU | MinGRU
CELLS: dict[Recurrent, Callable[[int, int, torch.Generator], Cell]] = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU}


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
    def starts(self) -> Tensor:
        """`[L, S]` bool, on the device of the sequences."""
        return sent(self._starts, self._device)

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

    def outputs(self, cell: _CellOfTorch, inputs: Tensor, state: Tensor) -> Tensor:
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
        hidden = self.cell.of_sequences(self._inputs(observations), state, segments)
        outputs: Tensor = self.network(self._remembered(observations, hidden))
        return outputs

    def numpy_twin(self) -> NumpyTwin | None:
        """The twin of its network, behind its cell."""
        twin = twin_within(self.network)
        if twin is None or twin.encoded is not None:
            return None
        make = getattr(self.features, "encoded_twin", None)
        encoded = None if make is None else make(twin.activation)
        if self.features is not None and encoded is None:
            return None
        kind: Any = next(kind for kind, made in CELLS.items() if type(self.cell) is made)
        return replace(twin, cell=CellTwin(kind, self.cell.size), encoded=encoded, columns=None)

    def _inputs(self, observations: Tensor) -> Tensor:
        return observations if self.features is None else self.features(observations)

    def _remembered(self, observations: Tensor, hidden: Tensor) -> Tensor:
        """The inputs of the network, `[..., H + mask_size]`."""
        if not self.mask_size:
            return hidden
        mask = numbers_of(observations, self.layout)[..., self.layout.num_numbers - self.mask_size :]
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


def _orthogonal(
    num_gates: int, size: int, inputs: int, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights for inputs and for the state, orthogonal for each gate."""
    weights = []
    for width in (inputs, size):
        weight = torch.empty(num_gates * size, width)
        for gate in torch.split(weight, size):
            nn.init.orthogonal_(gate, 1.0, generator=generator)
        weights.append(nn.Parameter(weight))
    return weights[0], weights[1]
