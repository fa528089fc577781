"""What the networks of connect four see, by hand."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
connect_four_networks = pytest.importorskip("connect_four_networks")


def features(own: list[tuple[int, int]], other: list[tuple[int, int]]) -> torch.Tensor:
    board = torch.zeros(1, 6, 7, 2)
    for who, stones in enumerate((own, other)):
        for row, column in stones:
            board[0, row, column, who] = 1.0
    network = connect_four_networks.ColumnNetwork(7, 1.0, torch.Generator())
    found: torch.Tensor = network.features(torch.cat((board.flatten(1), torch.ones(1, 7)), 1))
    return found[0]


def test_three_in_a_row_are_a_code_of_the_column_that_wins() -> None:
    found = features(own=[(5, 0), (5, 1), (5, 2)], other=[(4, 0), (4, 1), (4, 2)])
    here, above = found[:, :17], found[:, 17:34]
    assert here[:, 3].tolist() == [0, 0, 0, 1, 0, 0, 0]  # three of its own: column 3 wins
    assert above[:, 12].tolist() == [0, 0, 0, 1, 0, 0, 0]  # and the other one wins on top of it
    assert here[:, 12].sum() == 0
    assert found[:, 34].tolist() == [1] * 7


def test_a_column_of_three_is_seen_from_above() -> None:
    found = features(own=[(5, 6)], other=[(5, 0), (4, 0), (3, 0)])
    assert found[:, 12].tolist() == [1, 0, 0, 0, 0, 0, 0]
    # Three lines are on the board: downwards, and two empty ones to the right: across and falling.
    assert found[0, :17].tolist() == [2, *[0] * 11, 1, *[0] * 3, 10]


def test_a_full_column_has_no_lines() -> None:
    full = [(row, 2) for row in range(6)]
    found = features(own=full[::2], other=full[1::2])
    assert found[2, [16, 33, 34]].tolist() == [13, 13, 0]
    assert found[3, 34] == 1
