"""The optimizer step of PPO that is compiled: the terms of `loss.py`, their gradients, clipping and Adam.

Python never calls these functions; `by_numba.py` compiles and calls them.
"""

import math
from typing import Any

import numpy as np

from hybridppo.compiled import perceptrons
from hybridppo.networks.numpy_actors import FORBIDDEN

LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
CLIP_RANGE, CLIP_RANGE_VF, ENTROPY_COEF, VALUE_COEF, MAX_GRAD_NORM = range(5)
ACTOR_RATE, CRITIC_RATE, BETA_1, BETA_2, EPS, STEP = range(5, 11)
"""Indices of the settings."""
NUM_SETTINGS = 11
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, GRAD_NORM = range(6)
"""Indices of the statistics, as in `loss.STATISTICS`."""
ACTOR, CRITIC = range(2)
"""The networks, in the order of their parameters."""
LINE = 16
"""Distance between the signals of two threads, which puts them into separate cache lines."""
GONE, NUM_SIGNALS = 2 * LINE, 3 * LINE
LOOKS = 2**12
"""Number of checks, within some microseconds, before a waiting thread yields its core."""


def take_steps(
    parameters: Any, batch: Any, starts: Any, own: int, end: int, signals: Any, norms: Any, form: Any, settings: Any,
    scratch: Any, statistics: Any,
) -> None:  # fmt: skip
    """An optimizer step on each of some minibatches in turn, with its `STATISTICS`.

    Two threads may share the work, one with the actor and one with the critic: they exchange only the norm of the whole
    gradient. The result is bit-for-bit that of one thread.

    Args:
        parameters: `[P]` each: the parameters, the actor's before the critic's; their gradient, written; and Adam's
            first and second moments.
        batch: observations `[B, obs]`; actions `[B, actions]`, float32 even for choices; and log-probabilities, values,
            advantages to learn from, and returns, `[B]` each.
        starts: `[S + 1]`, the first row of each minibatch, and the end of the last.
        own: the first network of this thread.
        end: the index after its last one.
        signals: `[NUM_SIGNALS]`, zeros, by which both threads wait for each other; at `GONE`, whether one has failed.
        norms: `[2, 2]`, the squared norms that both exchange; two places are used alternately, because one thread may
            write while the other still reads.
        form: the networks and the actions, see below.
        settings: `[NUM_SETTINGS]`; includes the number of steps, which is increased.
        scratch: blocks `[L + 4, block, *]`, the last of which is one row; squares `[3 * L, *, *]`; and vectors `[2 * L
            + 1, 1, *]`, the last of which is zeros.
        statistics: `[S, 6]`, written.

    `form` is: `[2, L + 1]`, the sizes of the layers of actor and critic; `[2, L, 2]`, where their weights and biases
    begin among the parameters; `[3]`, where each network begins among them, and their number; `[C, 2]`, the size and
    the action column of each choice; `[d]`, the action columns that are numbers; where the log standard deviations of
    those begin among the parameters; how many of the last numbers of an observation are a mask of the first outputs;
    and whether hidden layers have tanh (else ReLU).
    """
    values, gradient, exp_avg, exp_avg_sq = parameters
    bounds, sums = form[2], np.empty(statistics.shape[1])
    for minibatch in range(len(starts) - 1):
        first, size, squares = starts[minibatch], starts[minibatch + 1] - starts[minibatch], norms[minibatch % 2]
        fill_gradient(values, gradient, batch, first, first + size, size, own, end, form, settings, scratch, sums)
        for network in range(own, end):
            squares[network] = squared_norm(gradient[bounds[network] : bounds[network + 1]])
            for k in range(GRAD_NORM):
                if (k == VALUE_LOSS) == (network == CRITIC):
                    statistics[minibatch, k] = sums[k] / size
        if end - own == 1 and not meet(signals, own, minibatch + 1):
            return
        settings[STEP] += 1.0
        norm = math.sqrt(squares[ACTOR] + squares[CRITIC])
        if own == ACTOR:
            statistics[minibatch, GRAD_NORM] = np.float32(norm)
        scale = np.float32(1.0)
        if norm + 1e-6 > settings[MAX_GRAD_NORM]:
            scale = np.float32(settings[MAX_GRAD_NORM] / (norm + 1e-6))
        for network in range(own, end):
            part = slice(bounds[network], bounds[network + 1])
            perceptrons.adam(
                values[part], gradient[part], exp_avg[part], exp_avg_sq[part], scale, settings[ACTOR_RATE + network],
                settings[BETA_1], settings[BETA_2], settings[EPS], settings[STEP],
            )  # fmt: skip


def meet(signals: Any, mine: int, count: int) -> bool:
    """Wait until the other of two threads is here for the `count`th time, too; False if it failed."""
    perceptrons.tell_number(signals, LINE * mine, count)
    looks = 0
    while perceptrons.number_told(signals, LINE * (1 - mine)) < count:
        if perceptrons.number_told(signals, GONE) != 0:
            return False
        looks += 1
        if looks % LOOKS == 0:
            perceptrons.give_way()
    return True


def fill_gradient(
    values: Any, gradient: Any, batch: Any, start: int, stop: int, size: int, own: int, end: int, form: Any,
    settings: Any, scratch: Any, sums: Any,
) -> None:  # fmt: skip
    """Write the gradient of the loss of rows `start` to `stop` of a minibatch of `size`, and the statistics' sums.

    There is at least one row. The parts of `gradient` and `sums` `[6]` that belong to networks `own` to `end` are
    written. Other arguments are as of `take_steps`.
    """
    observations, actions, log_probs, old_values, advantages, returns = batch
    sizes, offsets, _, choices, numbers, free, mask_size, is_tanh = form
    blocks, squares, vectors = scratch
    num_layers, block = sizes.shape[1] - 1, blocks.shape[1]
    up, down, weights = squares[:num_layers], squares[num_layers : 2 * num_layers], squares[2 * num_layers :]
    biases, bias_gradients, nothing = vectors[:num_layers], vectors[num_layers:-1], vectors[-1]
    deltas = blocks[num_layers + 1 :]
    outputs, d_outputs = blocks[num_layers], deltas[(num_layers - 1) % 2]
    d_free = deltas[2, 0]
    sums[:] = 0.0
    for network in range(own, end):
        d_free[:] = np.float32(0.0)
        weights[:] = np.float32(0.0)
        bias_gradients[:] = np.float32(0.0)
        of_network = sizes[network]
        perceptrons.pack(values, of_network, offsets[network], up, down, biases)
        for first in range(start, stop, block):
            some = slice(first, min(first + block, stop))
            rows = observations[some]
            gather(rows, blocks[0], perceptrons.up_to_whole(of_network[0]))
            perceptrons.forward(of_network, up, biases, blocks, len(rows), is_tanh)
            if network == ACTOR:
                mask(rows, outputs, mask_size)
                policy_loss(
                    outputs, d_outputs, d_free, values[free : free + len(numbers)], actions[some], log_probs[some],
                    advantages[some], choices, numbers, size, settings, sums,
                )  # fmt: skip
            else:
                value_loss(outputs, d_outputs, old_values[some], returns[some], size, settings, sums)
            perceptrons.backward(of_network, down, blocks, deltas, weights, bias_gradients, nothing, len(rows), is_tanh)
        perceptrons.write_gradient(gradient, of_network, offsets[network], weights, bias_gradients)
        if network == ACTOR:
            for k in range(len(numbers)):
                gradient[free + k] = d_free[k]


def gather(rows: Any, out: Any, width: int) -> None:
    """Copy rows, padded with zeros."""
    for r in range(len(rows)):
        for k in range(rows.shape[1]):
            out[r, k] = rows[r, k]
        for k in range(rows.shape[1], width):
            out[r, k] = np.float32(0.0)


def mask(rows: Any, outputs: Any, mask_size: int) -> None:
    """Forbid the logits of masked actions."""
    first = rows.shape[1] - mask_size
    for r in range(len(rows)):
        for k in range(mask_size):
            if rows[r, first + k] == 0.0:
                outputs[r, k] = np.float32(FORBIDDEN)


def policy_loss(
    outputs: Any, d_outputs: Any, d_free: Any, log_stds: Any, actions: Any, log_probs: Any, advantages: Any,
    choices: Any, numbers: Any, size: int, settings: Any, sums: Any,
) -> None:  # fmt: skip
    """The clipped surrogate, the entropy bonus and their gradients, for some rows of a minibatch of `size`.

    It overwrites the outputs: those of choices by log-probabilities, those of numbers by the noise of the actions.
    """
    low, high = np.float32(1.0 - settings[CLIP_RANGE]), np.float32(1.0 + settings[CLIP_RANGE])
    share, d_entropy = np.float32(-1.0 / size), np.float32(-settings[ENTROPY_COEF] / size)
    num_logits, num_numbers = 0, len(numbers)
    for choice in range(len(choices)):
        num_logits += choices[choice, 0]
    num_outputs = num_logits + num_numbers
    scale_sum, precisions = np.float32(0.0), np.empty(num_numbers, np.float32)
    for k in range(num_numbers):
        scale_sum += log_stds[k]
        precisions[k] = math.exp(-log_stds[k])
    constant = scale_sum + np.float32(LOG_SQRT_TWO_PI * num_numbers)
    entropy_of_numbers = constant + np.float32(0.5) * np.float32(num_numbers)
    for r in range(len(actions)):
        log_prob, entropy = add_choices(outputs, d_outputs, r, actions, choices, -constant, entropy_of_numbers)
        log_prob = add_numbers(outputs, r, actions, num_logits, numbers, precisions, log_prob)
        sums[ENTROPY] += entropy
        d_log_prob = surrogate(log_prob - log_probs[r], advantages[r], low, high, share, sums)
        through_choices(outputs, d_outputs, r, actions, choices, d_log_prob, d_entropy)
        through_numbers(outputs, d_outputs, d_free, r, num_logits, precisions, d_log_prob, d_entropy)
        for k in range(num_outputs, perceptrons.up_to_whole(num_outputs)):
            d_outputs[r, k] = np.float32(0.0)


def add_choices(
    outputs: Any, d_outputs: Any, r: int, actions: Any, choices: Any, log_prob: Any, entropy: Any
) -> tuple[Any, Any]:
    """Add the choices of a row to its log-probability and to its entropy.

    Logits become log-probabilities, and `d_outputs` probabilities.
    """
    first = 0
    for choice in range(len(choices)):
        n, chosen = choices[choice, 0], first + int(actions[r, choices[choice, 1]])
        largest = outputs[r, first]
        for k in range(first + 1, first + n):
            largest = max(largest, outputs[r, k])
        total = np.float32(0.0)
        for k in range(first, first + n):
            outputs[r, k] -= largest
            d_outputs[r, k] = math.exp(outputs[r, k])
            total += d_outputs[r, k]
        log_total, part = np.float32(math.log(total)), np.float32(1.0) / total
        for k in range(first, first + n):
            outputs[r, k] -= log_total
            d_outputs[r, k] *= part
            entropy -= d_outputs[r, k] * outputs[r, k]
        log_prob += outputs[r, chosen]
        first += n
    return log_prob, entropy


def add_numbers(outputs: Any, r: int, actions: Any, first: int, numbers: Any, precisions: Any, log_prob: Any) -> Any:
    """Add the numbers of a row to its log-probability. Their means, from output `first` on, become noise."""
    for k in range(len(numbers)):
        noise = (actions[r, numbers[k]] - outputs[r, first + k]) * precisions[k]
        outputs[r, first + k] = noise
        log_prob -= np.float32(0.5) * noise * noise
    return log_prob


def surrogate(log_ratio: Any, advantage: Any, low: Any, high: Any, share: Any, sums: Any) -> Any:
    """Add a row to the sums of the statistics; return the gradient of its log-probability."""
    ratio = np.float32(math.exp(log_ratio))
    clipped = min(max(ratio, low), high)
    free, bounded = ratio * advantage, clipped * advantage
    sums[POLICY_LOSS] -= min(free, bounded)
    sums[APPROX_KL] += np.float32(math.expm1(log_ratio)) - log_ratio
    sums[CLIP_FRACTION] += ratio != clipped
    # d policy_loss / d log_prob = -ratio * advantage / B, unless clipping makes it 0
    return share * free if free <= bounded else share * np.float32(0.0) * free


def through_choices(
    outputs: Any, d_outputs: Any, r: int, actions: Any, choices: Any, d_log_prob: Any, d_entropy: Any
) -> None:
    """Replace the probabilities of a row's choices by the gradients of their logits."""
    first = 0
    for choice in range(len(choices)):
        n, chosen = choices[choice, 0], first + int(actions[r, choices[choice, 1]])
        own = np.float32(0.0)
        for k in range(first, first + n):
            own -= d_outputs[r, k] * outputs[r, k]
        for k in range(first, first + n):
            # d log p[a] / d logit[k] = [k = a] - p[k];  d H / d logit[k] = -p[k] * (log p[k] + H)
            prob = d_outputs[r, k]
            d_outputs[r, k] = -d_log_prob * prob - d_entropy * prob * (outputs[r, k] + own)
        d_outputs[r, chosen] += d_log_prob
        first += n


def through_numbers(
    outputs: Any, d_outputs: Any, d_free: Any, r: int, first: int, precisions: Any, d_log_prob: Any, d_entropy: Any
) -> None:
    """Write the gradients of a row's means, and add to those of the log standard deviations."""
    for k in range(len(precisions)):
        # d log p / d mean = noise / std;  d log p / d log_std = noise^2 - 1;  d H / d log_std = 1
        noise = outputs[r, first + k]
        d_outputs[r, first + k] = d_log_prob * noise * precisions[k]
        d_free[k] += d_log_prob * (noise * noise - np.float32(1.0)) + d_entropy


OF_A_ROW = (add_choices, add_numbers, surrogate, through_choices, through_numbers)
"""The parts of `policy_loss`, which are compiled into it."""


def value_loss(
    outputs: Any, d_outputs: Any, old_values: Any, returns: Any, size: int, settings: Any, sums: Any
) -> None:
    """Half the squared errors of the critic, clipped if configured (0 or above), and their gradients."""
    limit, share = np.float32(settings[CLIP_RANGE_VF]), np.float32(settings[VALUE_COEF] / size)
    for r in range(len(returns)):
        value, old, wanted = outputs[r, 0], old_values[r], returns[r]
        error = value - wanted
        squared, d_value = error * error, error
        if limit >= np.float32(0.0):
            moved = value - old
            clipped_error = old + min(max(moved, -limit), limit) - wanted
            clipped_squared = clipped_error * clipped_error
            # The gradient is 0 if the value is clipped and its clipped error is the larger. (Within the limits, both
            # errors are equal only up to rounding.)
            if abs(moved) > limit and squared < clipped_squared:
                d_value = np.float32(0.0)
            squared = max(squared, clipped_squared)
        sums[VALUE_LOSS] += 0.5 * squared
        d_outputs[r, 0] = share * d_value
        for k in range(1, perceptrons.up_to_whole(1)):
            d_outputs[r, k] = np.float32(0.0)


def squared_norm(gradient: Any) -> Any:
    """The sum of squares."""
    total = np.float32(0.0)
    for k in range(len(gradient)):
        total += gradient[k] * gradient[k]
    return total


def critic_values(values: Any, observations: Any, form: Any, scratch: Any, out: Any) -> None:
    """The critic's values `[B]`; `form` and `scratch` as for `take_steps`."""
    sizes, offsets, is_tanh = form[0][CRITIC], form[1][CRITIC], form[-1]
    blocks, squares, vectors = scratch
    num_layers, block = len(sizes) - 1, blocks.shape[1]
    up, biases = squares[:num_layers], vectors[:num_layers]
    perceptrons.pack(values, sizes, offsets, up, squares[num_layers:], biases)
    for first in range(0, len(observations), block):
        rows = observations[first : first + block]
        gather(rows, blocks[0], perceptrons.up_to_whole(sizes[0]))
        perceptrons.forward(sizes, up, biases, blocks, len(rows), is_tanh)
        for r in range(len(rows)):
            out[first + r] = blocks[num_layers, r, 0]
