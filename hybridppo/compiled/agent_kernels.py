"""The loops around an environment of several agents, as `kernels.py` has them around one of a single agent.

`phase`, `reset`, `reward`, `end` and `observe` stand for the environment's own, and `phases` is written out with a
loop for each of its phases. Agents are numbered through all kinds, and each kind has a block of rows of its own:
`[T, E, A_k, ...]` for its `A_k` agents in each of `E` environments. Blocks come in tuples, one for each kind, and do
not tell whether kinds share a policy. They are views of one rollout.

What is written of an environment depends on nothing but its own state, noise, and the parameters.

Arguments that the loops share:

world: the environments' states `[E]`; `randoms` `[E, A, 4]`; lengths of episodes under way `[E]`; which agents are
    there, `[E, A]`; the first agent of each kind and how many there are, `[K + 1]`; and the longest that an episode may
    be, 0 for any.
results: of each kind, rewards, terminated, truncated and absent `[T, E, A_k]`, and final observations
    `[T, E, A_k, obs]`, written where an episode is truncated. Where nobody was there, all else of a row is 0, and it
    counts as terminated.
row: an observation to write in.
"""

from typing import Any

import numpy as np

from hybridppo.compiled.kernels import choose, normalize, outputs_of
from hybridppo.compiled.random_numbers import begin_agent

LOOPS = ("begin_all", "step_all", "rollout")
"""What is called from Python."""


def phase(agent: int, state: Any, action: Any, random: Any) -> None:
    """One of the environment's own, for one agent."""
    raise NotImplementedError


def reset(agent: int, state: Any, random: Any) -> None:
    """The environment's own."""
    raise NotImplementedError


def reward(agent: int, state: Any, time: int) -> tuple[float, bool]:
    """The environment's own: what the step was worth to an agent, and whether it leaves."""
    raise NotImplementedError


def end(state: Any, time: int) -> bool:
    """The environment's own: whether the episode is over, for all."""
    raise NotImplementedError


def never(state: Any, time: int) -> bool:
    """The `end` of an environment that has none."""
    return False


def observe(agent: int, state: Any, time: int, out: Any) -> None:
    """The environment's own."""
    raise NotImplementedError


def phases(state: Any, actions: Any, randoms: Any, present: Any) -> None:
    """Every phase in turn, for every agent that is there; an action is an array."""
    for agent in range(len(present)):
        if present[agent]:
            phase(agent, state, actions[agent], randoms[agent])


def phases_of_choice(state: Any, actions: Any, randoms: Any, present: Any) -> None:
    """The same where an action is a single choice."""
    for agent in range(len(present)):
        if present[agent]:
            phase(agent, state, actions[agent, 0], randoms[agent])


def copy(row: Any, out: Any) -> None:
    """Numbers lie side by side in `row`, so that an environment writes them fast, and in `out` as it comes."""
    for k in range(len(row)):
        out[k] = row[k]


def begin_episode(
    state: Any, randoms: Any, present: Any, kinds: Any, observations: Any, t: int, i: int, row: Any
) -> None:
    """Begin an episode with all agents: row `t` of environment `i` of each kind's observations."""
    for agent in range(len(present)):
        present[agent] = True
        begin_agent(randoms[agent], agent)
        reset(agent, state, randoms[agent])
    for kind in range(len(observations)):
        rows = observations[kind]
        for agent in range(kinds[kind], kinds[kind + 1]):
            observe(agent, state, 0, row)
            copy(row, rows[t, i, agent - kinds[kind]])


def begin_all(world: Any, observations: Any, row: Any) -> None:
    """Start every environment anew from its key; `observations` `[1, E, A_k, obs]` of each kind."""
    states, randoms, lengths, present, kinds, _ = world
    for i in range(len(states)):
        lengths[i] = 0
        begin_episode(states[i], randoms[i], present[i], kinds, observations, 0, i, row)


def finish_step(world: Any, t: int, i: int, observations: Any, results: Any, row: Any) -> None:
    """What follows the phases of environment `i` in row `t`: rewards, ends, the next observations, a next episode."""
    states, all_randoms, lengths, all_present, kinds, limit = world
    rewards, terminated, truncated, absent, finals = results
    state, randoms, present = states[i], all_randoms[i], all_present[i]
    lengths[i] += 1
    time = lengths[i]
    is_over = end(state, time)
    is_cut = limit > 0 and time >= limit
    left = 0
    for kind in range(len(observations)):
        next_rows, of_rewards, final_rows = observations[kind][t + 1, i], rewards[kind][t, i], finals[kind][t, i]
        of_terminated, of_truncated, of_absent = terminated[kind][t, i], truncated[kind][t, i], absent[kind][t, i]
        for agent in range(kinds[kind], kinds[kind + 1]):
            j = agent - kinds[kind]
            was_there = present[agent]
            of_absent[j] = not was_there
            of_truncated[j] = False
            of_rewards[j] = np.float32(0.0)
            of_terminated[j] = True
            if was_there:
                worth, has_left = reward(agent, state, time)
                has_ended = has_left or is_over
                of_rewards[j] = worth
                of_terminated[j] = has_ended
                if is_cut and not has_ended:
                    of_truncated[j] = True
                    observe(agent, state, time, row)
                    copy(row, final_rows[j])
                if has_ended or is_cut:
                    present[agent] = False
                else:
                    left += 1
                    observe(agent, state, time, row)
                    copy(row, next_rows[j])
            if not present[agent]:
                next_rows[j] = np.float32(0.0)
    if left == 0:
        lengths[i] = 0
        for agent in range(len(present)):
            randoms[agent, 2] += 1
        begin_episode(state, randoms, present, kinds, observations, t + 1, i, row)


def step_all(world: Any, first: int, end: int, actions: Any, observations: Any, results: Any, row: Any) -> None:
    """One step of environments `first` to `end` by actions `[E, A, action]`, into blocks of one row.

    Observations are written as the second of two rows.
    """
    states, randoms, _, present, _, _ = world
    for i in range(first, end):
        phases(states[i], actions[i], randoms[i], present[i])
        finish_step(world, 0, i, observations, results, row)


def rollout(world: Any, first: int, end: int, rows: Any, results: Any, actors: Any, bounds: Any, scratch: Any) -> None:
    """Steps of environments `first` to `end` with an actor for each kind: each environment's rows one after the other.

    Args:
        world: see above.
        first: the first environment.
        end: the one to end before.
        rows: of each kind, observations `[T + 1, E, A_k, obs]`, of which the first row is acted on; outputs
            `[T, E, A_k, outputs]`; actions `[T, E, A_k, action]`; and noise `[T, E, A_k, noise]`.
        results: see above.
        actors: of each kind's actor, moments, weights, sizes and whether it has tanh, as for `kernels.rollout`; log
            standard deviations, and their exponentials.
        bounds: the first number of each choice and among how many it is, or the bounds of numbers.
        scratch: actions of all agents `[A, action]`; two blocks of rows for an actor, and whose they are; and a `row`.
    """
    states, randoms, _, present, kinds, _ = world
    observations, outputs, actions, noise = rows
    moments, weights, sizes, is_tanh, log_std, scale = actors
    low, high = bounds
    for_env, here, there, who, row = scratch
    for i in range(first, end):
        for t in range(len(noise[0])):
            for kind in range(len(weights)):
                of_kind = observations[kind][t, i], outputs[kind][t, i], actions[kind][t, i], noise[kind][t, i]
                actor = moments[kind], weights[kind], sizes[kind], is_tanh[kind], log_std[kind], scale[kind]
                act(present[i], kinds[kind], kinds[kind + 1], of_kind, actor, low, high, for_env, here, there, who)
            phases(states[i], for_env, randoms[i], present[i])
            finish_step(world, t, i, observations, results, row)


def act(
    present: Any,
    first: int,
    end: int,
    rows: Any,
    actor: Any,
    low: Any,
    high: Any,
    for_env: Any,
    here: Any,
    there: Any,
    who: Any,
) -> None:
    """The actions of agents `first` to `end` of an environment, who have one actor, in one row: a tile at once."""
    observations, outputs, actions, noise = rows
    moments, weights, sizes, is_tanh, log_std, scale = actor
    num = 0
    for agent in range(first, end):
        j = agent - first
        if present[agent]:
            normalize(observations[j], moments, here[num])
            who[num] = agent
            num += 1
        else:
            outputs[j] = np.float32(0.0)
            actions[j] = 0
        if num == len(here) or (num > 0 and agent == end - 1):
            found = there if outputs_of(here, there, num, weights, sizes, is_tanh) else here
            for row in range(num):
                j = who[row] - first
                given = outputs[j]
                for k in range(sizes[-1]):
                    given[k] = found[row, k]
                for k in range(len(log_std)):
                    given[sizes[-1] + k] = log_std[k]
                choose(found[row], noise[j], actions[j], for_env[who[row]], scale, low, high)
            num = 0
