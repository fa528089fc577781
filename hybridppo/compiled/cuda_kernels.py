"""The loops of `kernels.py` as kernels of a GPU; Python never calls these functions.

A step has the same source as on the CPU. A thread has an environment with a single agent. An environment with several
agents has a block of threads, with a thread for each agent; with more agents than threads in a block, a thread has
several. There is a barrier between two phases: a phase writes only its own agent's fields. The state of several agents
is in the shared memory of its block during a step, if it fits (`held`). Unlike on the CPU, torch computes the actor's
outputs, and the noise of an action is counted from (seed of the rollout, row, column, number) in the thread that needs
it.

`cuda_building.py` writes the calls of functions without a body, and is the only file that names Numba's CUDA.
"""

from typing import Any

import numpy as np

from hybridppo.compiled.kernels import barrier, choose, num_agents, num_threads, observe, take_step, thread
from hybridppo.distributions.base import philox

HALF, PART = np.float32(0.5), np.float32(2.0**-23)
MINUS_TWO, CIRCLE = np.float32(-2.0), np.float32(2.0 * np.pi)


def number() -> int:
    """The index of this thread among all."""
    raise NotImplementedError


def environment() -> int:
    """The environment of this thread."""
    raise NotImplementedError


def held(state: Any) -> Any:
    """A state in the shared memory of the block; the environment's own if there is no room."""
    raise NotImplementedError


def carry(agent: int, source: Any, target: Any) -> None:
    """Copy all fields of one agent, if the block has its own state."""
    raise NotImplementedError


def act_all(
    seed: Any, t: int, outputs: Any, noise: Any, actions: Any, for_env: Any, scales: Any, low: Any, high: Any
) -> None:
    """Draw the actions of row `t`, with a thread for each column.

    Args:
        seed: `[2]`, seed of the rollout's noise, in halves of 32 bits.
        t: the row.
        outputs: `[T, N, outputs]`, the actor's outputs.
        noise: `[N, noise]`, written.
        actions: `[T, N, action]`, as drawn.
        for_env: `[N, action]`, as the environments take them.
        scales: `[N, numbers]`, standard deviations of numbers; not used for choices.
        low: the first number of each choice, or the lower bounds of numbers.
        high: the size of each choice, or the upper bounds.
    """
    n = number()
    if n < len(noise):
        draw(noise[n], int(seed[0]), int(seed[1]), t, n)
        choose(outputs[t, n], noise[n], actions[t, n], for_env[n], scales[n], low, high)


def step_all(
    states: Any, randoms: Any, lengths: Any, present: Any, limit: int, t: int, for_env: Any, observations: Any,
    rewards: Any, terminated: Any, truncated: Any, absent: Any, finals: Any,
) -> None:  # fmt: skip
    """A step of every environment: row `t` of a rollout, and the next row of observations.

    Arguments are those of `kernels.py`, one by one; `for_env` `[N, action]` are actions as environments take them, and
    `finals` may have any size if episodes are never truncated.
    """
    i = environment()
    if i < len(states):
        state = held(states[i])
        for agent in range(thread(), num_agents(), num_threads()):
            carry(agent, states[i], state)
        barrier()
        rows = observations, rewards, terminated, truncated, absent, finals
        take_step(
            state, (states, randoms, lengths, present, limit), t, i, for_env, i * num_agents(), rows, observations[t, 0]
        )
        for agent in range(thread(), num_agents(), num_threads()):
            carry(agent, state, states[i])


def look(agent: int, state: Any, time: int, row: Any, out: Any) -> None:
    """Observe into the rollout, as `kernels.look`."""
    for k in range(len(out)):
        out[k] = np.float32(np.nan)
    observe(agent, state, time, out)


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
    """A float32 between 0 and 1, both excluded, from 23 bits of a word."""
    return (np.float32(word >> 9) + HALF) * PART
