"""Networks for connect four that see the lines through the cells where the next stones land.

A multilayer perceptron has to learn each of the 69 lines of four by itself: after a million steps of self-play it
still missed half of the moves that block. Here, the same layer sees each column. Its input is the lines through the
cell where a stone would land, and through the cell above: how many have how many stones of either player.
"""

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from hybridppo.networks.actors import MaskedActor
from hybridppo.networks.initialisation import EmptyLinear, initialised
from hybridppo.spaces.observations import ObservationEncoder

ROWS, COLUMNS, WANTED = 6, 7, 4
CELLS = ROWS * COLUMNS
"""Index of a cell outside the board."""
LINES = 13
"""Lines of four through a cell, some of them with cells outside: one downwards, and four in each other direction."""
CODES = 17
"""A line's other cells have a code: own stones + 4 * the other's; 16 if one is outside."""


def other_cells() -> Tensor:
    """The other cells of each line through a cell of the board, or of a row above it: `[49, 13, 3]`."""
    found = torch.full((CELLS + COLUMNS, LINES, WANTED - 1), CELLS)
    for cell in range(CELLS):
        row, column = divmod(cell, COLUMNS)
        # Nothing lies above a cell where a stone lands, so only one vertical line counts: downwards.
        lines = [(1, 0, 0)] + [(*way, at) for way in ((0, 1), (1, 1), (1, -1)) for at in range(WANTED)]
        for line, (down, right, at) in enumerate(lines):
            steps = [step - at for step in range(WANTED) if step != at]
            others = [(row + step * down, column + step * right) for step in steps]
            if all(0 <= r < ROWS and 0 <= c < COLUMNS for r, c in others):
                found[cell, line] = torch.tensor([r * COLUMNS + c for r, c in others])
    return found


class ColumnNetwork(nn.Module):
    """`[..., 91] -> [..., outputs]`, from rows of a board of 6 x 7 x 2 and a mask.

    Args:
        outputs: if there is one for each column, it also has a part that depends on that column alone.
        gain: of the last layers.
        generator: draws the initial weights.
    """

    others: Tensor
    columns: Tensor

    def __init__(self, outputs: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("others", other_cells().flatten(1), persistent=False)
        self.register_buffer("columns", torch.arange(COLUMNS), persistent=False)
        self.column = initialised(EmptyLinear(2 * CODES + 1, 32), 2.0**0.5, generator)
        self.board = initialised(EmptyLinear(32 * COLUMNS, 64), 2.0**0.5, generator)
        self.out = initialised(EmptyLinear(64, outputs), gain, generator)
        self.own = initialised(EmptyLinear(32, 1), gain, generator) if outputs == COLUMNS else None

    @torch.no_grad()
    def features(self, rows: Tensor) -> Tensor:
        """For each column, the number of lines of each code here and above, and whether it is free: `[B, 7, 35]`."""
        number = len(rows)
        stones = rows[:, : 2 * CELLS].view(number, CELLS, 2)
        landing = ROWS - 1 - stones.sum(-1).view(number, ROWS, COLUMNS).sum(1).long()  # -1 if it is full
        above_all = CELLS + self.columns
        here = torch.where(landing >= 0, landing * COLUMNS + self.columns, above_all)
        above = torch.where(landing >= 1, (landing - 1) * COLUMNS + self.columns, above_all)
        seen = self.others[torch.cat((here, above), 1)].view(number, -1)  # [B, 14 * 13 * 3]
        code = torch.cat((stones[..., 0] + 4 * stones[..., 1], stones.new_full((number, 1), CODES - 1)), 1)
        codes = code.gather(1, seen).view(number, 2 * COLUMNS, LINES, WANTED - 1).sum(-1).clamp_(max=CODES - 1)
        counts = stones.new_zeros(number, 2 * COLUMNS, CODES)
        counts.scatter_add_(2, codes.long(), stones.new_ones(1).expand(codes.shape))
        return torch.cat((counts[:, :COLUMNS], counts[:, COLUMNS:], (landing >= 0).float().unsqueeze(-1)), -1)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits of the columns, or a value."""
        columns = self.column(self.features(rows.reshape(-1, rows.shape[-1]))).relu()  # [B, 7, 32]
        outputs: Tensor = self.out(self.board(columns.flatten(1)).relu())
        if self.own is not None:
            outputs = outputs + self.own(columns).squeeze(-1)
        return outputs.view(*rows.shape[:-1], -1)


def networks(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], config: Any, generator: torch.Generator
) -> tuple[nn.Module, nn.Module]:
    """Actor and critic, for `hybridppo.train(..., networks=networks)`."""
    actor = MaskedActor(ColumnNetwork(COLUMNS, 0.01, generator), COLUMNS, ObservationEncoder(observation_space).layout)
    return actor, ColumnNetwork(1, 1.0, generator)
