"""The optimizer step of DDPG and TD3 that is compiled: targets, gradients, Adam, and target networks.

Python never calls these functions; `compiled_backend.py` compiles and calls them. A minibatch always has two shards,
whose gradients are added: with one thread or two, the result has the same bits.
"""

from typing import Any

import numpy as np

from hybridppo.compiled.adam import adam
from hybridppo.compiled.meeting import meet
from hybridppo.compiled.perceptrons import (
    backward,
    forward,
    matrices,
    multiply_all,
    pack_down,
    pack_up,
    pass_down,
    tanh_all,
    up_to_whole,
    write_gradient,
)

NOISE_CLIP, TAU, BETA_1, BETA_2, EPS, ACTOR_RATE, CRITIC_RATE, ACTOR_STEP, CRITIC_STEP = range(9)
"""Indices of the settings."""
NUM_SETTINGS = 9
NUM_SHARDS = 2
BOTH = 2
"""Value of `part` for both shards."""


def take_step(
    parameters: Any, batch: Any, moves_actor: bool, part: int, signals: Any, form: Any, settings: Any, packed: Any,
    shards: Any, statistics: Any,
) -> None:  # fmt: skip
    """A step of the critics on a minibatch, and if it is due one of the actor and of the target networks.

    Args:
        parameters: `[P]` each: the parameters, the actor's before the critics'; their gradient, written; Adam's first
            and second moments; and the parameters of the target networks.
        batch: observations `[B, obs]`; actions `[B, d]`, from -1 to 1; returns `[B]`, the discounted rewards of the
            steps; discounts `[B]`, of the next observations; the next observations, `[B, obs]`; and noise `[B, d]`, for
            the actions of targets.
        moves_actor: whether the actor makes a step, too.
        part: the shard of this thread, or `BOTH`.
        signals: where two threads wait for each other, see `meet`.
        form: `[2, L + 1]`, the sizes of the layers of the actor and of each of `C` critics; `[1 + C, L, 2]`, where
            weights and biases begin; and whether hidden layers have tanh (else ReLU).
        settings: `[NUM_SETTINGS]`; the caller counts the steps.
        packed: scratch of both threads: `[(2 + 2 * C) * L, *, *]`, weights of the actor, the critics, and their targets
            for `forward`; `[(1 + C) * L, *, *]`, those for `backward`; `[*, *]`, the weights of actions in the first
            critic's first layer; and `[(2 + 2 * C) * L, 1, *]`, biases.
        shards: scratch of each of two shards: blocks `[2, 2 * (L + 3), block, *]`; weights `[2, L, *, *]`; vectors `[2,
            L + 1, 1, *]`, the last of which is zeros; actions `[2, B, d]`; targets `[2, B]`; gradients `[2, P]`, zeros
            between parameters; and sums `[2, 3]`.
        statistics: `[3]`, added to.
    """
    values, target = parameters[0], parameters[4]
    gradients, sums = shards[5], shards[6]
    num_critics, size = len(form[1]) - 1, len(batch[2])
    critics, end = form[1][1, 0, 0], len(values)  # the range of their parameters
    pack_critics(values, target, part, form, packed)
    if part != BOTH and not meet(signals, part, 1):
        return
    for shard in range(NUM_SHARDS):
        if part in (shard, BOTH):
            rows, scratch = rows_of(shard, size), scratch_of(shards, shard)
            find_targets(batch, rows, form, settings[NOISE_CLIP], packed, scratch)
            differentiate_critics(values, batch, rows, size, form, packed, scratch)
    if part != BOTH and not meet(signals, part, 2):
        return
    middle = (critics + end) // 2
    first, last = critics if part != 1 else middle, end if part != 0 else middle
    descend(parameters, gradients, first, last, CRITIC_RATE, CRITIC_STEP, settings)
    if part != 1:
        statistics[0] += np.float32((sums[0, 0] + sums[1, 0]) / size)
        statistics[1] += np.float32((sums[0, 1] + sums[1, 1]) / (size * num_critics))
    if not moves_actor or (part != BOTH and not meet(signals, part, 3)):
        return

    pack_actor(values, part, form, packed, batch[1].shape[1])
    if part != BOTH and not meet(signals, part, 4):
        return
    for shard in range(NUM_SHARDS):
        if part in (shard, BOTH):
            differentiate_actor(values, batch[0][rows_of(shard, size)], size, form, packed, scratch_of(shards, shard))
    if part != BOTH and not meet(signals, part, 5):
        return
    half = critics // 2
    own_first, own_last = 0 if part != 1 else half, critics if part != 0 else half
    descend(parameters, gradients, own_first, own_last, ACTOR_RATE, ACTOR_STEP, settings)
    tau = np.float32(settings[TAU])
    follow(values[own_first:own_last], target[own_first:own_last], tau)
    follow(values[first:last], target[first:last], tau)
    if part != 1:
        statistics[2] -= np.float32((sums[0, 2] + sums[1, 2]) / size)


def rows_of(shard: int, size: int) -> slice:
    """The rows of a minibatch in a shard."""
    return slice(shard * size // NUM_SHARDS, (shard + 1) * size // NUM_SHARDS)


def scratch_of(shards: Any, shard: int) -> Any:
    """The scratch memory of a shard."""
    blocks, weights, vectors, acted, targets, gradients, sums = shards
    return blocks[shard], weights[shard], vectors[shard], acted[shard], targets[shard], gradients[shard], sums[shard]


def pack_critics(values: Any, target: Any, part: int, form: Any, packed: Any) -> None:
    """Lay out the weights for the critics' step: critics and all target networks; each part has half of them."""
    sizes, offsets, _ = form
    up, down, _, biases = packed
    num_layers, num_critics = sizes.shape[1] - 1, len(offsets) - 1
    for job in range((1 + 2 * num_critics) * num_layers):
        if part in (job % 2, BOTH):
            network, layer = 1 + job // num_layers, job % num_layers
            own = slice(network * num_layers, (network + 1) * num_layers)
            if network <= num_critics:
                pack_up(values, sizes[1], offsets[network], layer, up[own], biases[own])
                pack_down(values, sizes[1], offsets[network], layer, down[own])
            else:
                of = network - num_critics - 1
                pack_up(target, sizes[min(of, 1)], offsets[of], layer, up[own], biases[own])


def pack_actor(values: Any, part: int, form: Any, packed: Any, num_actions: int) -> None:
    """Lay out the weights for the actor's step: the actor and the first critic, of whose inputs only actions matter."""
    sizes, offsets, _ = form
    up, down, inward, biases = packed
    num_layers = sizes.shape[1] - 1
    for job in range(2 * num_layers + 1):
        if part in (job % 2, BOTH):
            network, layer = job // num_layers, job % num_layers
            own = slice(network * num_layers, (network + 1) * num_layers)
            if network < 2:
                pack_up(values, sizes[network], offsets[network], layer, up[own], biases[own])
                pack_down(values, sizes[network], offsets[network], layer, down[own])
            else:
                weight, _ = matrices(values, sizes[1], offsets[1], 0)
                for o in range(len(weight)):
                    for k in range(num_actions):
                        inward[o, k] = weight[o, sizes[0, 0] + k]


def find_targets(batch: Any, rows: slice, form: Any, clip: float, packed: Any, scratch: Any) -> None:
    """The targets of the critics for the rows of a shard; the formulas are in `backend.py`."""
    sizes, offsets, is_tanh = form
    up, biases = packed[0], packed[3]
    blocks, acted, targets = scratch[0], scratch[3], scratch[4]
    returns, discounts, next_observations, noise = batch[2][rows], batch[3][rows], batch[4][rows], batch[5][rows]
    num_layers, num_critics, block, limit = sizes.shape[1] - 1, len(offsets) - 1, blocks.shape[1], np.float32(clip)
    num_actions, one = noise.shape[1], np.float32(1.0)
    outputs = blocks[num_layers]
    own = slice((1 + num_critics) * num_layers, (2 + num_critics) * num_layers)
    for start in range(0, len(returns), block):
        num_rows = min(block, len(returns) - start)
        put(next_observations[start : start + num_rows], blocks[0], 0, up_to_whole(sizes[0, 0]))
        forward(sizes[0], up[own], biases[own], blocks, num_rows, is_tanh)
        for r in range(num_rows):
            tanh_all(outputs[r], num_actions)
            for k in range(num_actions):
                moved = outputs[r, k] + min(max(noise[start + r, k], -limit), limit)
                acted[start + r, k] = min(max(moved, -one), one)
    for critic in range(num_critics):
        network = 2 + num_critics + critic
        own = slice(network * num_layers, (network + 1) * num_layers)
        for start in range(0, len(returns), block):
            some = slice(start, min(start + block, len(returns)))
            num_rows = some.stop - start
            put_both(next_observations[some], acted[some], blocks[0], sizes[1, 0])
            forward(sizes[1], up[own], biases[own], blocks, num_rows, is_tanh)
            for r in range(num_rows):
                value = outputs[r, 0]
                if critic == 0 or value < targets[start + r] or value != value:  # keeps NaN
                    targets[start + r] = value
    for row in range(len(returns)):
        targets[row] = discounts[row] * targets[row] + returns[row]


def differentiate_critics(
    values: Any, batch: Any, rows: slice, size: int, form: Any, packed: Any, scratch: Any
) -> None:
    """Add a shard of a minibatch of `size` to the gradient of the critics' loss."""
    observations, actions, sizes, offsets, is_tanh = batch[0][rows], batch[1][rows], form[0][1], form[1], form[2]
    up, down, _, biases = packed
    blocks, weights, vectors, _, targets, gradient, sums = scratch
    num_layers, num_rows_at_once = len(sizes) - 1, blocks.shape[1]
    outputs, deltas = blocks[num_layers], blocks[num_layers + 1 : num_layers + 3]
    d_outputs, share = deltas[(num_layers - 1) % 2], np.float32(2.0) / np.float32(size)
    sums[:2] = 0.0
    for network in range(1, len(offsets)):
        own = slice(network * num_layers, (network + 1) * num_layers)
        clear(vectors, weights, len(observations))
        for start in range(0, len(observations), num_rows_at_once):
            some = slice(start, min(start + num_rows_at_once, len(observations)))
            num_rows = some.stop - start
            put_both(observations[some], actions[some], blocks[0], sizes[0])
            forward(sizes, up[own], biases[own], blocks, num_rows, is_tanh)
            for r in range(num_rows):
                error = outputs[r, 0] - targets[start + r]
                sums[0] += error * error
                sums[1] += outputs[r, 0]
                d_outputs[r, : up_to_whole(1)] = np.float32(0.0)
                d_outputs[r, 0] = error * share  # d / d value of the mean squared error
            backward(
                values, sizes, offsets[network], down[own], blocks, deltas, weights, vectors, vectors[num_layers],
                num_rows, start == 0, is_tanh,
            )  # fmt: skip
        write_gradient(gradient, sizes, offsets[network], weights, vectors)


def differentiate_actor(values: Any, observations: Any, size: int, form: Any, packed: Any, scratch: Any) -> None:
    """Add a shard to the gradient of the actor's loss, the negative value of the first critic."""
    sizes, offsets, is_tanh = form
    up, down, inward, biases = packed
    blocks, weights, vectors, acted, _, gradient, sums = scratch
    num_layers, num_rows_at_once = sizes.shape[1] - 1, blocks.shape[1]
    num_actions, one, share = acted.shape[1], np.float32(1.0), np.float32(-1.0 / size)
    actor, critic = blocks[: num_layers + 3], blocks[num_layers + 3 :]
    means, d_means = actor[num_layers], actor[num_layers + 1 + (num_layers - 1) % 2]
    deltas, nothing = critic[num_layers + 1 :], vectors[num_layers]
    own = slice(num_layers, 2 * num_layers)
    sums[2] = 0.0
    clear(vectors, weights, len(observations))
    for start in range(0, len(observations), num_rows_at_once):
        num_rows = min(num_rows_at_once, len(observations) - start)
        some = observations[start : start + num_rows]
        put(some, actor[0], 0, up_to_whole(sizes[0, 0]))
        forward(sizes[0], up[:num_layers], biases[:num_layers], actor, num_rows, is_tanh)
        for r in range(num_rows):
            tanh_all(means[r], num_actions)
        put_both(some, means[:, :num_actions], critic[0], sizes[1, 0])
        forward(sizes[1], up[own], biases[own], critic, num_rows, is_tanh)
        for r in range(num_rows):
            sums[2] += critic[num_layers, r, 0]
            deltas[(num_layers - 1) % 2, r, : up_to_whole(1)] = np.float32(0.0)
            deltas[(num_layers - 1) % 2, r, 0] = share
        for above in range(num_layers - 1):
            layer = num_layers - 1 - above
            pass_down(values, sizes[1], offsets[1], layer, down[own], critic, deltas, nothing, num_rows, is_tanh)
        columns = up_to_whole(num_actions)
        multiply_all(deltas[0], inward, d_means, up_to_whole(num_rows), sizes[1, 1], columns, nothing, 0)
        for r in range(num_rows):
            for k in range(num_actions):  # d tanh(z) / dz = 1 - tanh(z)^2
                d_means[r, k] *= one - means[r, k] * means[r, k]
        backward(
            values, sizes[0], offsets[0], down[:num_layers], actor, actor[num_layers + 1 :], weights, vectors, nothing,
            num_rows, start == 0, is_tanh,
        )  # fmt: skip
    write_gradient(gradient, sizes[0], offsets[0], weights, vectors)


def clear(vectors: Any, weights: Any, num_rows: int) -> None:
    """Set the gradient to zero if a shard has no rows."""
    if num_rows == 0:
        vectors[:] = np.float32(0.0)
        weights[:] = np.float32(0.0)


def put(rows: Any, out: Any, first: int, end: int) -> None:
    """Copy rows into columns from `first` on, and zeros up to `end`."""
    for r in range(len(rows)):
        for k in range(rows.shape[1]):
            out[r, first + k] = rows[r, k]
        for k in range(first + rows.shape[1], end):
            out[r, k] = np.float32(0.0)


def put_both(observations: Any, actions: Any, out: Any, width: int) -> None:
    """Copy the critics' inputs."""
    put(observations, out, 0, observations.shape[1])
    put(actions[: len(observations)], out, observations.shape[1], up_to_whole(width))


def descend(parameters: Any, gradients: Any, first: int, end: int, rate: int, step: int, settings: Any) -> None:
    """A step of Adam on some parameters, along the sum of the gradients of both shards."""
    values, gradient, exp_avg, exp_avg_sq, _ = parameters
    slopes, one, other = gradient[first:end], gradients[0, first:end], gradients[1, first:end]
    for k in range(len(slopes)):
        slopes[k] = one[k] + other[k]
    adam(
        values[first:end], slopes, exp_avg[first:end], exp_avg_sq[first:end], np.float32(1.0),
        settings[rate], settings[BETA_1], settings[BETA_2], settings[EPS], settings[step],
    )  # fmt: skip


def follow(values: Any, target: Any, tau: Any) -> None:
    """Move the target networks towards the networks."""
    for k in range(len(target)):
        target[k] += tau * (values[k] - target[k])
