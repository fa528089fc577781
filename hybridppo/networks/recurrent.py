"""Networks with a memory: a recurrent cell, and an ordinary network of what it remembers.

The state of a cell begins with its output `h`; zeros are the state at an episode's start. Weights are in the order in
which `numpy_forms/recurrent.py` has them.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from hybridppo.networks.rows import numbers_of
from hybridppo.spaces.rows import RowLayout

Recurrent = Literal["lstm", "gru"]

FORGET_BIAS = 1.0
"""Of an LSTM at first: it remembers until it has learned to forget (Jozefowicz et al., 2015, "An Empirical Exploration
of Recurrent Network Architectures", section 2)."""


class Cell(Protocol):
    """A recurrent cell."""

    size: int
    """`H`, numbers in its output."""
    state_size: int
    """Numbers in its state."""

    def project(self, inputs: Tensor) -> Tensor:
        """What of inputs `[..., I]` does not depend on the state, `[..., gates]`: for many steps at once."""
        ...

    def advance(self, projected: Tensor, state: Tensor) -> Tensor:
        """The state after a step, `[B, state_size]`, from that before it."""
        ...


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000).

    Gates are in the order input, forget, output, cell; its state is `[h, c]`.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, 2 * size
        self.weight_input, self.weight_state = _orthogonal(4, size, inputs, generator)
        self.bias = nn.Parameter(torch.zeros(4 * size))
        with torch.no_grad():
            self.bias[size : 2 * size] = FORGET_BIAS

    def project(self, inputs: Tensor) -> Tensor:
        """`[..., I] -> [..., 4 * H]`."""
        return nn.functional.linear(inputs, self.weight_input, self.bias)

    def advance(self, projected: Tensor, state: Tensor) -> Tensor:
        """`[B, 4 * H]` and `[B, 2 * H]` to `[B, 2 * H]`."""
        hidden, cell = torch.split(state, self.size, dim=-1)
        gates = projected + hidden @ self.weight_state.t()
        three, new = torch.split(gates, [3 * self.size, self.size], dim=-1)
        let_in, keep, let_out = torch.split(three.sigmoid(), self.size, dim=-1)
        cell = keep * cell + let_in * new.tanh()
        return torch.cat((let_out * cell.tanh(), cell), dim=-1)


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al., 2014, with the reset gate after the product, as cuDNN has it).

    Gates are in the order reset, update, new; its state is `h`.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size, self.state_size = size, size
        self.weight_input, self.weight_state = _orthogonal(3, size, inputs, generator)
        self.bias = nn.Parameter(torch.zeros(3 * size))
        self.bias_state = nn.Parameter(torch.zeros(size))

    def project(self, inputs: Tensor) -> Tensor:
        """`[..., I] -> [..., 3 * H]`."""
        return nn.functional.linear(inputs, self.weight_input, self.bias)

    def advance(self, projected: Tensor, state: Tensor) -> Tensor:
        """`[B, 3 * H]` and `[B, H]` to `[B, H]`."""
        two, new = torch.split(projected, [2 * self.size, self.size], dim=-1)
        two_of_state, new_of_state = torch.split(state @ self.weight_state.t(), [2 * self.size, self.size], dim=-1)
        reset, update = torch.split((two + two_of_state).sigmoid(), self.size, dim=-1)
        new = (new + reset * (new_of_state + self.bias_state)).tanh()
        after: Tensor = new + update * (state - new)
        return after


CELLS: dict[Recurrent, Callable[[int, int, torch.Generator], LSTM | GRU]] = {"lstm": LSTM, "gru": GRU}


def state_size(recurrent: Recurrent, size: int) -> int:
    """Numbers in the state of a cell of this size."""
    return {"lstm": 2 * size, "gru": size}[recurrent]


class RecurrentNetwork(nn.Module):
    """`[T, B, *row]` to `[T, B, outputs]`, with a memory of what came before.

    Args:
        features: what the cell sees of rows, `[..., *row] -> [..., I]`; None for their numbers as they are.
        cell: the memory.
        network: of what the cell gives, `[..., H]`, with the mask after it, where rows have one.
        layout: what a row is.
        mask_size: how many of the last numbers of a row are a mask.
    """

    def __init__(
        self, features: nn.Module | None, cell: LSTM | GRU, network: nn.Module, layout: RowLayout, mask_size: int
    ) -> None:
        super().__init__()
        self.features, self.cell, self.network = features, cell, network
        self.layout, self.mask_size = layout, mask_size

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs, and the states after each step, `[T, B, state_size]`.

        Args:
            observations: `[T, B, *row]`.
            state: `[B, state_size]`, before the first step.
            starts: `[T, B]` bool, which observations are the first of an episode: nothing from before is remembered.
        """
        projected = self.cell.project(observations if self.features is None else self.features(observations))
        keeps = (~starts).to(projected.dtype).unsqueeze(-1)
        states = []
        for of_step, keep in zip(projected.unbind(0), keeps.unbind(0), strict=True):
            state = self.cell.advance(of_step, state * keep)
            states.append(state)
        after = torch.stack(states)
        return self.network(self.remembered(observations, after)), after

    def remembered(self, observations: Tensor, states: Tensor) -> Tensor:
        """What the network sees, `[..., H + mask_size]`."""
        hidden = states[..., : self.cell.size]
        if not self.mask_size:
            return hidden
        mask = numbers_of(observations, self.layout)[..., self.layout.num_numbers - self.mask_size :]
        return torch.cat((hidden, mask), dim=-1)


def _orthogonal(
    num_gates: int, size: int, inputs: int, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights for inputs and for the state, each gate's orthogonal by itself."""
    weights = []
    for width in (inputs, size):
        weight = torch.empty(num_gates * size, width)
        for gate in torch.split(weight, size):
            nn.init.orthogonal_(gate, 1.0, generator=generator)
        weights.append(nn.Parameter(weight))
    return weights[0], weights[1]
