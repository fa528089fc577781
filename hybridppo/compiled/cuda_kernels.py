"""The loops of `kernels.py` as kernels of a GPU, a thread for each environment; never called as they stand here.

A kernel is the CPU's own loop for one environment, so that there is one source for both. What differs is who draws an
action: the actor's outputs come from torch, and their noise is drawn by counting, from (seed of the rollout, row,
column, which number), in the thread that needs it.

`number`, `block`, `thread`, `num_threads`, `barrier`, `any_of_block`, `held` and `carry` stand for what a GPU has: the
module that `cuda_building.py` writes defines them, and nothing else names Numba's CUDA.
"""

from typing import Any

import numpy as np

from hybridppo.compiled import kernels
from hybridppo.compiled.kernels import choose
from hybridppo.compiled.random_numbers import philox

HALF, PART = np.float32(0.5), np.float32(2.0**-23)
MINUS_TWO, CIRCLE = np.float32(-2.0), np.float32(2.0 * np.pi)


def number() -> int:
    """Which of all threads this is."""
    raise NotImplementedError


def block() -> int:
    """Which block of threads this one is of."""
    raise NotImplementedError


def thread() -> int:
    """Which of its block this thread is."""
    raise NotImplementedError


def num_threads() -> int:
    """How many threads a block has."""
    raise NotImplementedError


def barrier() -> None:
    """Go on when all threads of the block have come here, and see what they have written."""
    raise NotImplementedError


def any_of_block(truth: bool) -> bool:
    """A barrier, and whether the truth held for any thread of the block."""
    raise NotImplementedError


def held(state: Any) -> Any:
    """A state that the block has to itself while a step lasts; if it has no room for one, the environment's own."""
    raise NotImplementedError


def carry(agent: int, source: Any, target: Any) -> None:
    """Copy all fields of one agent, if the block has a state to itself."""
    raise NotImplementedError


GIVEN = (number, block, thread, num_threads, barrier, any_of_block, held, carry)


def act_all(
    seed: Any, t: int, outputs: Any, noise: Any, actions: Any, for_env: Any, scales: Any, low: Any, high: Any
) -> None:
    """Draw the actions of row `t`, a thread for each column.

    Args:
        seed: `[2]`, of the rollout's noise, in halves of 32 bits.
        t: the row.
        outputs: `[T, N, outputs]`, the actor's.
        noise: `[N, noise]`, written.
        actions: `[T, N, action]`, as drawn.
        for_env: `[N, action]`, as environments want them.
        scales: `[N, numbers]`, the standard deviations of numbers; not looked at for choices.
        low: the first number of each choice, or the lower bounds of numbers.
        high: among how many each choice is, or the upper bounds.
    """
    n = number()
    if n < len(noise):
        draw(noise[n], int(seed[0]), int(seed[1]), t, n)
        choose(outputs[t, n], noise[n], actions[t, n], for_env[n], scales[n], low, high)


def step_all(
    states: Any,
    randoms: Any,
    lengths: Any,
    limit: int,
    t: int,
    for_env: Any,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    finals: Any,
) -> None:
    """Row `t` of rollouts `[T, N, ...]`: a step of every environment, and the next row of observations.

    `finals` `[T, N, obs]`, of any `T` where no episode is ever truncated, is written where one is.
    """
    i = number()
    if i < len(states):
        kernels.step_all(
            (states, randoms, lengths, limit), i, i + 1, for_env, observations[t + 1], rewards[t], terminated[t],
            truncated[t], finals[min(t, len(finals) - 1)],
        )  # fmt: skip


def draw(noise: Any, low: int, high: int, t: int, column: int) -> None:
    """The noise of one action."""
    raise NotImplementedError


def draw_for_choices(noise: Any, low: int, high: int, t: int, column: int) -> None:
    """Standard Gumbel numbers, four from one count."""
    for first in range(0, len(noise), 4):
        words = philox(low, high, first, t, column, 0)
        for k in range(min(4, len(noise) - first)):
            noise[first + k] = -np.log(-np.log(fraction(words[k])))


def draw_for_numbers(noise: Any, low: int, high: int, t: int, column: int) -> None:
    """Standard normal numbers (Box and Muller, 1958), two from one count."""
    for first in range(0, len(noise), 2):
        a, b, _, _ = philox(low, high, first, t, column, 0)
        radius, angle = np.sqrt(MINUS_TWO * np.log(fraction(a))), CIRCLE * fraction(b)
        noise[first] = radius * np.cos(angle)
        if first + 1 < len(noise):
            noise[first + 1] = radius * np.sin(angle)


def fraction(word: int) -> Any:
    """A number of float32 between 0 and 1, and neither, of 23 bits of a word."""
    return (np.float32(word >> 9) + HALF) * PART
