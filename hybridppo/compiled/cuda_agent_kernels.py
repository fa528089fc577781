"""The loops of `agent_kernels.py` as kernels of a GPU: a block of threads for each environment, one for each agent.

Where an environment has more agents than a block has threads, a thread takes several. Between two phases is a barrier:
a phase writes its own agent's fields alone, so that nothing else is needed. The state lies in the memory that a block
has to itself while a step lasts, if it fits, and else where it always is (`held`).

A rollout has a column for each agent of each environment, environment by environment, as on the CPU.
"""

from typing import Any

import numpy as np

from hybridppo.compiled.agent_kernels import end, observe, phase, reset, reward
from hybridppo.compiled.cuda_kernels import act_all, any_of_block, barrier, block, carry, held, num_threads, thread
from hybridppo.compiled.random_numbers import begin_agent

__all__ = ["act_all", "phases", "phases_of_choice", "step_all"]


def begin_episode(state: Any, randoms: Any, present: Any, i: int, observations: Any) -> None:
    """Begin an episode of environment `i` with all agents; `observations` is a row, `[N, obs]`."""
    for agent in range(thread(), len(present), num_threads()):
        present[agent] = True
        begin_agent(randoms[agent], agent)
        reset(agent, state, randoms[agent])
    barrier()
    for agent in range(thread(), len(present), num_threads()):
        observe(agent, state, 0, observations[i * len(present) + agent])


def phases(i: int, state: Any, for_env: Any, randoms: Any, present: Any) -> None:
    """Every phase in turn, for every agent that is there; an action is an array."""
    for agent in range(thread(), len(present), num_threads()):
        if present[agent]:
            phase(agent, state, for_env[i * len(present) + agent], randoms[agent])
    barrier()


def phases_of_choice(i: int, state: Any, for_env: Any, randoms: Any, present: Any) -> None:
    """The same where an action is a single choice."""
    for agent in range(thread(), len(present), num_threads()):
        if present[agent]:
            phase(agent, state, for_env[i * len(present) + agent, 0], randoms[agent])
    barrier()


def step_one(
    state: Any,
    randoms: Any,
    lengths: Any,
    present: Any,
    limit: int,
    t: int,
    i: int,
    for_env: Any,
    observations: Any,
    results: Any,
) -> None:
    """Row `t` of environment `i`: as `agent_kernels.finish_step`, after the phases."""
    rewards, terminated, truncated, absent, finals = results
    time = lengths[i] + 1
    phases(i, state, for_env, randoms, present)
    is_over = any_of_block(thread() == 0 and end(state, time))
    is_cut = limit > 0 and time >= limit
    stays = False
    for agent in range(thread(), len(present), num_threads()):
        n = i * len(present) + agent
        was_there = present[agent]
        absent[t, n] = not was_there
        truncated[t, n] = False
        rewards[t, n] = np.float32(0.0)
        terminated[t, n] = True
        if was_there:
            worth, has_left = reward(agent, state, time)
            has_ended = has_left or is_over
            rewards[t, n] = worth
            terminated[t, n] = has_ended
            if is_cut and not has_ended:
                truncated[t, n] = True
                observe(agent, state, time, finals[t, n])
            if has_ended or is_cut:
                present[agent] = False
            else:
                stays = True
                observe(agent, state, time, observations[t + 1, n])
        if not present[agent]:
            row = observations[t + 1, n]
            for k in range(len(row)):
                row[k] = np.float32(0.0)
    if any_of_block(stays):
        if thread() == 0:
            lengths[i] = time
        return
    if thread() == 0:
        lengths[i] = 0
    for agent in range(thread(), len(present), num_threads()):
        randoms[agent, 2] += 1
    begin_episode(state, randoms, present, i, observations[t + 1])


def step_all(
    states: Any,
    randoms: Any,
    lengths: Any,
    present: Any,
    limit: int,
    t: int,
    for_env: Any,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    absent: Any,
    finals: Any,
) -> None:
    """Row `t` of rollouts `[T, N, ...]`: a step of every environment, and the next row of observations.

    Args:
        states: the environments', `[E]`, with the next three.
        randoms: `[E, A, 4]`.
        lengths: `[E]`, of episodes under way.
        present: `[E, A]`, which agents are there.
        limit: the longest that an episode may be; 0 for none.
        t: the row.
        for_env: `[N, action]`, as environments want them.
        observations: `[T + 1, N, obs]`.
        rewards: `[T, N]`.
        terminated: `[T, N]`.
        truncated: `[T, N]`.
        absent: `[T, N]`, where nobody was there: all else of such a row is 0, and it counts as terminated.
        finals: `[T, N, obs]`, written where an episode is truncated; of no size where none ever is.
    """
    i = block()
    state = held(states[i])
    for agent in range(thread(), present.shape[1], num_threads()):
        carry(agent, states[i], state)
    barrier()
    step_one(
        state, randoms[i], lengths, present[i], limit, t, i, for_env, observations,
        (rewards, terminated, truncated, absent, finals),
    )  # fmt: skip
    for agent in range(thread(), present.shape[1], num_threads()):
        carry(agent, state, states[i])
