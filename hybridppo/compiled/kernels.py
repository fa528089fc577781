"""The loops around an environment's functions, as they are compiled with them; never called as they stand here.

`take`, `choose`, `reset`, `step` and `observe` stand for what the environment and its actions are: `Definition.sources`
puts those in their place. Everything of a rollout is float32; float64 is only what an environment has in its state. An
environment's rows depend on nothing but its own state, its noise and the parameters: neither on how many are stepped,
nor on who does it.

No loop makes arrays: their callers do. So nobody counts who refers to an array: a count goes up and down with each row
that is taken of one, atomically, which took a quarter of the time of an environment of several agents. An
environment's own functions may make arrays, and are compiled with counts.
"""

from typing import Any

import numpy as np

from hybridppo.compiled.perceptrons import activate, multiply_all, up_to_whole

LOOPS = ("begin_all", "step_all", "rollout")
"""What is called from Python."""


def take(state: Any, action: Any, random: Any) -> tuple[float, bool]:
    """Step one environment: the reward, and whether the episode is over."""
    raise NotImplementedError


def take_choice(state: Any, action: Any, random: Any) -> tuple[float, bool]:
    """The same by a single choice, of an array of one."""
    return step(state, action[0], random)


def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
    """The environment's own."""
    raise NotImplementedError


def reset(state: Any, random: Any) -> None:
    """The environment's own."""
    raise NotImplementedError


def observe(state: Any, out: Any) -> None:
    """The environment's own."""
    raise NotImplementedError


def choose(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """Draw an action from the actor's outputs, and write it also as the environment wants it."""
    raise NotImplementedError


def choose_one(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """Gumbel-max, as `Categorical.sample`; `low` is the space's first number."""
    best, largest = 0, outputs[0] + noise[0]
    for i in range(1, len(noise)):
        perturbed = outputs[i] + noise[i]
        if perturbed > largest:
            best, largest = i, perturbed
    action[0] = best
    for_env[0] = best + low[0]


def choose_several(outputs: Any, noise: Any, action: Any, for_env: Any, scale: Any, low: Any, high: Any) -> None:
    """The same for each of several choices, as `MultiCategorical.sample`; `high` is among how many each is."""
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
    """`mean + std * noise`, as `DiagonalGaussian.sample`; the environment's is clipped."""
    for i in range(len(noise)):
        drawn = outputs[i] + scale[i] * noise[i]
        action[i] = drawn
        for_env[i] = min(max(drawn, low[i]), high[i])


def begin_episode(state: Any, random: Any, observation: Any) -> None:
    """The next episode of one environment."""
    random[2] += 1
    random[3] = 0
    reset(state, random)
    observe(state, observation)


def copy(row: Any, out: Any) -> None:
    """Number by number: a GPU knows no assignment of arrays."""
    for k in range(len(row)):
        out[k] = row[k]


def begin_all(world: Any, observations: Any) -> None:
    """Start every environment anew from its key; `world` as for `rollout`, `observations` `[N, obs]`."""
    states, randoms, lengths, _ = world
    for i in range(len(states)):
        lengths[i] = 0
        reset(states[i], randoms[i])
        observe(states[i], observations[i])


def step_all(
    world: Any,
    first: int,
    end: int,
    actions: Any,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    finals: Any,
) -> None:
    """One step of environments `first` to `end`; `finals` `[N, obs]` is written where an episode is truncated."""
    states, randoms, lengths, limit = world
    for i in range(first, end):
        reward, ended = take(states[i], actions[i], randoms[i])
        lengths[i] += 1
        cut = limit > 0 and lengths[i] >= limit
        rewards[i], terminated[i], truncated[i] = reward, ended, cut
        observe(states[i], observations[i])
        if ended or cut:
            if not ended:
                copy(observations[i], finals[i])
            lengths[i] = 0
            begin_episode(states[i], randoms[i], observations[i])


def rollout(world: Any, first: int, end: int, rows: Any, actor: Any, drawing: Any, scratch: Any) -> None:
    """Steps of environments `first` to `end` with the actor: each environment's rows one after the other.

    Args:
        world: the environments' states `[N]`; `randoms` `[N, 4]`; lengths of episodes under way `[N]`; and the longest
            that an episode may be, 0 for any.
        first: the first environment.
        end: the one to end before.
        rows: observations `[T + 1, N, obs]`, of which the first row is acted on; outputs `[T, N, outputs]`; actions
            `[T, N, action]`; rewards, terminated and truncated `[T, N]`; noise `[T, N, noise]`; and final observations
            `[T, N, obs]`, written where an episode is truncated.
        actor: moments `[2, obs]`, what is taken from observations before the actor has them, and by what they are
            multiplied then, or `[2, 0]` if they stay as they are; weights `[layers, 1 + inputs, outputs]`, as large as
            the largest, in whole tiles, with biases as first rows; the numbers between layers, `[layers + 1]`; and
            whether hidden layers have tanh, and not ReLU.
        drawing: log standard deviations, the last outputs of a Gaussian actor; their exponentials; the first number of
            each choice, or the lower bounds of numbers; and among how many each choice is, or the upper bounds.
        scratch: two blocks of rows for the actor, and an action.
    """
    states, randoms, lengths, limit = world
    observations, outputs, actions, rewards, terminated, truncated, noise, finals = rows
    moments, weights, sizes, is_tanh = actor
    log_std, scale, low, high = drawing
    here, there, for_env = scratch
    num_means, num_rows = sizes[-1], len(here)
    for block in range(first, end, num_rows):  # as many as the actor takes at once
        num = min(num_rows, end - block)
        for t in range(len(rewards)):
            for row in range(num):
                normalize(observations[t, block + row], moments, here[row])
            found = there if outputs_of(here, there, num, weights, sizes, is_tanh) else here
            for row in range(num):
                i = block + row
                for k in range(num_means):
                    outputs[t, i, k] = found[row, k]
                for k in range(len(log_std)):
                    outputs[t, i, num_means + k] = log_std[k]
                choose(found[row], noise[t, i], actions[t, i], for_env, scale, low, high)
                reward, ended = take(states[i], for_env, randoms[i])
                lengths[i] += 1
                cut = limit > 0 and lengths[i] >= limit
                rewards[t, i], terminated[t, i], truncated[t, i] = reward, ended, cut
                observe(states[i], observations[t + 1, i])
                if ended or cut:
                    if not ended:
                        copy(observations[t + 1, i], finals[t, i])
                    lengths[i] = 0
                    begin_episode(states[i], randoms[i], observations[t + 1, i])


def outputs_of(here: Any, there: Any, num_rows: int, weights: Any, sizes: Any, is_tanh: bool) -> bool:
    """Write an actor's outputs for the first rows of `here`, and say whether into `there`; all of a tile is written to.

    What is computed for a row depends on nothing but that row.
    """
    num_layers = len(sizes) - 1
    for layer in range(num_layers):
        bias, width = weights[layer, 0], up_to_whole(sizes[layer + 1])
        multiply_all(here, weights[layer, 1:], there, len(here), sizes[layer], width, bias, 0)
        if layer < num_layers - 1:
            activate(there, num_rows, width, is_tanh)
        here, there = there, here
    return num_layers % 2 == 1


def normalize(row: Any, moments: Any, out: Any) -> None:
    """Numbers of mean 0 and deviation 1, clipped: as `NormalizingActor` has them, bit for bit."""
    if moments.shape[1] == 0:
        for k in range(len(row)):
            out[k] = row[k]
        return
    for k in range(len(row)):
        number = (row[k] - moments[0, k]) * moments[1, k]
        out[k] = max(min(number, np.float32(10.0)), np.float32(-10.0))
