"""Pictures of Tag: taggers are red, runners blue, and orange where they are tagged; a line is a heading."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE, MARGIN = 480, 16
"""Of a picture, in pixels; and around the square that is played in."""
TAGGER, RUNNER, TAGGED, GROUND, EDGE = (176, 32, 38), (38, 96, 178), (240, 170, 60), (250, 250, 248), (120, 120, 120)
RADIUS = {TAGGER: 6, RUNNER: 4, TAGGED: 5}


def picture(state: Any, taggers: int, side: float) -> NDArray[np.uint8]:
    """`[SIZE, SIZE, 3]`: all that are in the game, those who are tagged, and where those who have left were.

    Args:
        state: the fields, an array of all agents each.
        taggers: how many there are; they come first.
        side: of the square.
    """
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    image[:] = GROUND
    inner = SIZE - 2 * MARGIN
    for line in (MARGIN - 1, SIZE - MARGIN):
        image[MARGIN - 1 : SIZE - MARGIN + 1, line] = image[line, MARGIN - 1 : SIZE - MARGIN + 1] = EDGE
    columns = MARGIN + np.asarray(state.x, np.float64) / side * inner
    rows = SIZE - MARGIN - np.asarray(state.y, np.float64) / side * inner  # y goes up
    is_tagger = np.arange(len(columns)) < taggers
    is_tagged = np.asarray(state.tagged_by) >= 0
    there = np.asarray(state.in_game) != 0
    # Taggers last: whoever is caught lies below.
    for colour, which in (
        (RUNNER, ~is_tagger & there & ~is_tagged), (TAGGED, ~is_tagger & is_tagged), (TAGGER, is_tagger),
    ):  # fmt: skip
        for agent in np.flatnonzero(which):
            _disc(image, rows[agent], columns[agent], RADIUS[colour], colour)
            _heading(image, rows[agent], columns[agent], state.heading_x[agent], state.heading_y[agent], colour)
    return image


def _disc(image: NDArray[np.uint8], row: float, column: float, radius: int, colour: tuple[int, int, int]) -> None:
    top, left = max(int(row) - radius, 0), max(int(column) - radius, 0)
    bottom, right = min(int(row) + radius + 1, SIZE), min(int(column) + radius + 1, SIZE)
    rows, columns = np.mgrid[top:bottom, left:right]
    image[top:bottom, left:right][(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = colour


def _heading(
    image: NDArray[np.uint8], row: float, column: float, x: float, y: float, colour: tuple[int, int, int]
) -> None:
    for far in range(2 * RADIUS[colour] + 1):
        at, along = int(row - far * y), int(column + far * x)
        if 0 <= at < SIZE and 0 <= along < SIZE:
            image[at, along] = colour
