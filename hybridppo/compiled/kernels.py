"""The loops around an environment's functions that are compiled with them; Python never calls these functions.

The agents of an environment are numbered through all kinds; a single agent is agent 0 of the only kind. A rollout has a
column for each agent of each environment: agent `a` of environment `i` is column `n = i * A + a` of `N = E * A`.

A step is written once: for the CPU and for a GPU, whose threads share the agents of an environment; for one agent and
for several. Functions without a body stand for the differences: `Definition.gathered` writes their calls. Rollouts are
float32; only the state of an environment may have float64. The results of an environment depend on its own state, its
noise and the parameters only, not on the number of environments or the division among threads.

Loops do not allocate arrays; their callers do. So references need not be counted: atomic counting for each row that is
taken of an array took a quarter of the time of an environment with several agents. An environment's own functions may
allocate arrays, and are compiled with counts.

Arguments of several loops:

world: the environments' states `[E]`; `randoms` `[E, A, 4]`; lengths of running episodes `[E]`; which agents are
present, `[E, A]`; and the largest length of an episode, 0 for no limit.
rows: observations `[T + 1, N, obs]`; rewards, terminated, truncated and absent `[T, N]`; and final observations `[T, N,
obs]`, written if an episode is truncated but not terminated. Rows of absent agents are 0 otherwise, and count as
terminated.
row: a buffer for an observation.
"""

from typing import Any, TypeGuard

import numpy as np

from hybridppo.compiled import perceptrons
from hybridppo.compiled.perceptrons import CONTRACTED, forward
from hybridppo.compiled.random_numbers import begin_agent
from hybridppo.compiled.sources import Texts
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.spaces.arrays import Array


def num_agents() -> int:
    """The number of agents of an environment, `A`, a constant."""
    raise NotImplementedError


def thread() -> int:
    """The number of this thread among those that share an environment; 0 on the CPU."""
    raise NotImplementedError


def num_threads() -> int:
    """The number of threads that share an environment."""
    raise NotImplementedError


def barrier() -> None:
    """Wait for all these threads, and see what they have written."""
    raise NotImplementedError


def any_of_block(truth: bool) -> bool:
    """A barrier; returns whether `truth` is True in any of these threads."""
    raise NotImplementedError


ON_CPU: Texts = {thread: "0", num_threads: "1", barrier: "None", any_of_block: "truth"}
"""Calls of these functions on the CPU."""


def given(action: Any) -> Any:
    """An action as the environment's functions take it: an array, or a number for a single choice."""
    raise NotImplementedError


def reset(agent: int, state: Any, random: Any) -> None:
    """Begin an agent's episode."""
    raise NotImplementedError


def phase(agent: int, state: Any, action: Any, random: Any) -> None:
    """One of the phases of a step, for one agent."""
    raise NotImplementedError


def reward(agent: int, state: Any, action: Any, random: Any, time: int) -> tuple[float, bool]:
    """An agent's reward after the phases, and whether it leaves. For a single agent, the whole step."""
    raise NotImplementedError


def end(state: Any, time: int) -> bool:
    """Whether the episode ends for all agents."""
    raise NotImplementedError


def is_truncated(is_cut: bool, has_ended: bool) -> bool:
    """Whether an episode that is cut counts as truncated: in gymnasium also if it ended, in PettingZoo not."""
    raise NotImplementedError


def observe(agent: int, state: Any, time: int, out: Any) -> None:
    """Write an agent's observation."""
    raise NotImplementedError


def phases(state: Any, actions: Any, first: int, randoms: Any, present: Any) -> None:
    """Every phase in turn, for every present agent."""
    for agent in range(thread(), num_agents(), num_threads()):
        if present[agent]:
            phase(agent, state, given(actions[first + agent]), randoms[agent])
    barrier()


OF_AGENTS: Texts = {
    reset: "reset(agent, state, random)",
    reward: "reward(agent, state, time)",
    end: "end(state, time)",
    is_truncated: "is_cut and not has_ended",
    observe: "observe(agent, state, time, out)",
}
OF_ONE: Texts = {
    reset: "reset(state, random)",
    phases: "None",
    reward: "step(state, action, random)",
    end: "False",
    is_truncated: "is_cut",
    observe: "observe(state, out)",
}
"""Calls of these functions with several agents and with one, by the environment's own functions."""


def choose(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """Draw an action from the actor's outputs; write it as drawn, and as the environment takes it."""
    raise NotImplementedError


def choose_among(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """Gumbel-max for each choice, as `Categorical.sample`; `low` has their first numbers, and `high` their sizes."""
    logit = 0
    for choice in range(len(low)):
        best, largest = 0, outputs[logit] + noise[logit]
        for i in range(1, high[choice]):
            perturbed = outputs[logit + i] + noise[logit + i]
            if perturbed > largest:
                best, largest = i, perturbed
        action[choice] = best
        for_env[choice] = best + low[choice]
        logit += high[choice]


def choose_numbers(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """`mean + std * noise`, as `DiagonalGaussian.sample`; the environment's action is clipped."""
    for i in range(len(noise)):
        drawn = outputs[i] + scale[i] * noise[i]
        action[i] = drawn
        for_env[i] = min(max(drawn, low[i]), high[i])


def look(agent: int, state: Any, time: int, row: Any, out: Any) -> None:
    """Observe into `row`, which is contiguous and therefore fast, and copy it to `out`.

    Numbers that are not written are NaN, which is refused later.
    """
    for k in range(len(row)):
        row[k] = np.float32(np.nan)
    observe(agent, state, time, row)
    for k in range(len(row)):
        out[k] = row[k]


def begin_episode(state: Any, randoms: Any, present: Any, t: int, i: int, observations: Any, row: Any) -> None:
    """Begin an episode of environment `i` with all agents, whose observations are row `t`."""
    for agent in range(thread(), num_agents(), num_threads()):
        present[agent] = True
        begin_agent(randoms[agent], agent)
        reset(agent, state, randoms[agent])
    barrier()
    for agent in range(thread(), num_agents(), num_threads()):
        look(agent, state, 0, row, observations[t, i * num_agents() + agent])


def take_step(state: Any, world: Any, t: int, i: int, actions: Any, first: int, rows: Any, row: Any) -> None:
    """Row `t` of environment `i`, and the next observations; the actions of its agents begin at `first`."""
    _, all_randoms, lengths, all_present, limit = world
    observations, rewards, terminated, truncated, absent, finals = rows
    randoms, present, time = all_randoms[i], all_present[i], lengths[i] + 1
    phases(state, actions, first, randoms, present)
    is_over = any_of_block(thread() == 0 and end(state, time))
    is_cut = limit > 0 and time >= limit
    stays = False
    for agent in range(thread(), num_agents(), num_threads()):
        n = i * num_agents() + agent
        was_there = present[agent]
        absent[t, n] = not was_there
        truncated[t, n] = False
        rewards[t, n] = np.float32(0.0)
        terminated[t, n] = True
        if was_there:
            worth, has_left = reward(agent, state, given(actions[first + agent]), randoms[agent], time)
            has_ended = has_left or is_over
            rewards[t, n] = worth
            terminated[t, n] = has_ended
            truncated[t, n] = is_truncated(is_cut, has_ended)
            if is_cut and not has_ended:
                look(agent, state, time, row, finals[t, n])
            if has_ended or is_cut:
                present[agent] = False
            else:
                stays = True
                look(agent, state, time, row, observations[t + 1, n])
        if not present[agent]:
            empty = observations[t + 1, n]
            for k in range(len(empty)):
                empty[k] = np.float32(0.0)
    if any_of_block(stays):
        if thread() == 0:
            lengths[i] = time
        return
    if thread() == 0:
        lengths[i] = 0
    for agent in range(thread(), num_agents(), num_threads()):
        randoms[agent, 2] += 1
    begin_episode(state, randoms, present, t + 1, i, observations, row)


def begin_all(world: Any, first: int, end: int, observations: Any, row: Any) -> None:
    """Restart environments `first` to `end` from their keys, and write the first row of observations."""
    states, randoms, lengths, present, _ = world
    for i in range(first, end):
        lengths[i] = 0
        begin_episode(states[i], randoms[i], present[i], 0, i, observations, row)


def step_all(world: Any, first: int, end: int, actions: Any, rows: Any, row: Any) -> None:
    """One step of environments `first` to `end` by actions `[N, action]`, into row 0."""
    for i in range(first, end):
        take_step(world[0][i], world, 0, i, actions, i * num_agents(), rows, row)


def rollout(world: Any, first: int, end: int, rows: Any, acted: Any, actors: Any, bounds: Any, scratch: Any) -> None:
    """All rows of environments `first` to `end`, with an actor for each kind of agents.

    Args:
        world: see above.
        first: the first environment.
        end: the index after the last one.
        rows: see above; the first row of observations is given.
        acted: outputs `[T, N, outputs]`; actions `[T, N, action]`; and noise `[T, N, noise]`.
        actors: the first agent of each kind and the number of agents, `[K + 1]`; and for the actor of each kind:
            moments `[2, inputs]`, which are subtracted from observations and multiplied with them, or `[2, 0]` for no
            normalisation; weights `[L, inputs, outputs]`, as large as the largest in whole tiles; biases `[L, 1,
            outputs]`; the sizes of the layers, `[L + 1]`; whether hidden layers have tanh (else ReLU); log standard
            deviations, the last outputs of a Gaussian actor; and their exponentials.
        bounds: the first number of each choice, or the lower bounds of numbers; and the size of each choice, or the
            upper bounds.
        scratch: actions `[B * A, action]` of the environments of a block; the rows of each layer of an actor,
            `[L + 1, rows, *]`, and their columns, `[rows]`; and a `row`.
    """
    kinds, moments, weights, biases, sizes, is_tanh, log_std, scale = actors
    for_env, row = scratch[0], scratch[3]
    at_once = len(for_env) // num_agents()
    for block in range(first, end, at_once):
        num = min(at_once, end - block)
        for t in range(len(acted[0])):
            for kind in range(len(weights)):
                layers, drawn = (moments[kind], weights[kind], biases[kind]), (log_std[kind], scale[kind])
                actor = layers, sizes[kind], is_tanh[kind], drawn
                act(world[3], block, num, kinds[kind], kinds[kind + 1], t, rows[0], acted, actor, bounds, scratch)
            for i in range(num):
                take_step(world[0][block + i], world, t, block + i, for_env, i * num_agents(), rows, row)


def act(
    present: Any, block: int, num: int, first: int, end: int, t: int, observations: Any, acted: Any, actor: Any,
    bounds: Any, scratch: Any,
) -> None:  # fmt: skip
    """The actions of agents `first` to `end`, which share an actor, of `num` environments from `block` on, in tiles."""
    outputs, actions, noise = acted
    (moments, weights, biases), sizes, is_tanh, (log_std, scale) = actor
    low, high = bounds
    for_env, blocks, who, _ = scratch
    count = 0
    for i in range(block, block + num):
        for agent in range(first, end):
            n = i * num_agents() + agent
            if present[i, agent]:
                normalize(observations[t, n], moments, sizes[0], blocks[0, count])
                who[count] = n
                count += 1
            else:
                outputs[t, n] = np.float32(0.0)
                actions[t, n] = 0
            if count == len(who) or (count > 0 and agent == end - 1 and i == block + num - 1):
                forward(sizes, weights, biases, blocks, count, is_tanh)
                found = blocks[len(sizes) - 1]
                for row in range(count):
                    n = who[row]
                    given = outputs[t, n]
                    for k in range(sizes[-1]):
                        given[k] = found[row, k]
                    for k in range(len(log_std)):
                        given[sizes[-1] + k] = log_std[k]
                    choose(found[row], noise[t, n], actions[t, n], for_env[n - block * num_agents()], scale, low, high)
                count = 0


def normalize(row: Any, moments: Any, num_inputs: int, out: Any) -> None:
    """Normalise the actor's inputs, the first of a row, to mean 0 and deviation 1 and clip, as `NumpyNormalizer`."""
    if moments.shape[1] == 0:
        for k in range(num_inputs):
            out[k] = row[k]
        return
    for k in range(num_inputs):
        number = (row[k] - moments[0, k]) * moments[1, k]
        out[k] = max(min(number, np.float32(10.0)), np.float32(-10.0))


LOOPS: Texts = {
    begin_all: "u(world, i, i, f[:, :, :], f[::1])",
    step_all: "u(world, i, i, action[:, :], rows, f[::1])",
    rollout: (
        "u(world, i, i, rows, group(f[:, :, :], action[:, :, :], f[:, :, :]), group(i[::1], each(f[:, ::1]), "
        "each(f[:, :, ::1]), each(f[:, :, ::1]), each(i[::1]), b[::1], each(f[::1]), each(f[::1])), "
        "group(action[::1], action[::1]), group(action[:, ::1], f[:, :, ::1], i[::1], f[::1]))"
    ),
}
"""The functions that Python calls, with their types, so that they are compiled when the module is loaded."""
# Functions that are called for each row with many arrays are inlined: passing the arrays takes as long as a step of an
# environment.
DECORATORS: Texts = {
    **dict.fromkeys((__name__, perceptrons.__name__), "uncounted"),
    **CONTRACTED,
    **dict.fromkeys((take_step, act, look), "inlined"),
    **{
        loop: f'numba.njit({signature}, cache=True, nogil=True, error_model="numpy", _nrt=False)'
        for loop, signature in LOOPS.items()
    },
}
"""The functions of both files do not allocate arrays, so their references are not counted."""


FusedDistribution = Categorical | DiagonalGaussian
"""Distributions whose actions the loops draw."""


def is_drawn(distribution: Distribution) -> TypeGuard[FusedDistribution]:
    """Whether compiled loops draw actions from a distribution."""
    return type(distribution) in (Categorical, DiagonalGaussian)


def bounds_of(distribution: FusedDistribution) -> tuple[Array, Array]:
    """The bounds of numbers; or the first number and the size of each choice."""
    if isinstance(distribution, DiagonalGaussian):
        low, high = (np.ascontiguousarray(bound, np.float32) for bound in (distribution.low, distribution.high))
        return low, high
    sizes = np.array(distribution.sizes, np.int64)
    return np.broadcast_to(distribution.start, distribution.shape).reshape(sizes.shape).copy(), sizes
