"""Counter-based random numbers: each depends only on seed, environment, episode and number of the draw.

They come from Philox (`distributions/base.py`) and are the same in Python and Numba. `random` is an environment's `[4]`
int64: its key (the seed of the run plus the number of the environment) in two halves of 32 bits, the episode, and the
number of draws in it.
"""

import math
from typing import Any

from numpy.typing import NDArray

from hybridppo.distributions.base import philox

NUM_WORDS = 4
"""Length of `random`."""


def unit(high: int, low: int) -> float:
    """A number in `[0, 1)` of 53 random bits from two words."""
    return ((high >> 5) * 67108864.0 + (low >> 6)) / 9007199254740992.0


def uniform(random: NDArray[Any], low: float, high: float) -> float:
    """The environment's next random number between `low` and `high`."""
    episode, draw = int(random[2]), int(random[3])
    random[3] = draw + 1
    a, b, _, _ = philox(
        int(random[0]), int(random[1]), draw & 0xFFFFFFFF, draw >> 32, episode & 0xFFFFFFFF, episode >> 32
    )
    return low + (high - low) * unit(a, b)


def integers(random: NDArray[Any], n: int) -> int:
    """The environment's next random whole number from 0 to `n - 1`."""
    return int(uniform(random, 0.0, 1.0) * n)


def normal(random: NDArray[Any]) -> float:
    """The environment's next standard normal number (Box and Muller, 1958)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(random, 0.0, 1.0)))
    return radius * math.cos(2.0 * math.pi * uniform(random, 0.0, 1.0))


def begin(random: NDArray[Any], seed: int) -> None:
    """Set the numbers of one environment, `[4]`, to the start of its first episode."""
    random[:] = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, 0, 0


def begin_agent(random: NDArray[Any], agent: int) -> None:
    """Set an agent's numbers, `[4]`, to the start of an episode; each agent counts its draws from its own start."""
    random[3] = agent << 32
