"""Fills rows of environments that step as they are ready: each has its own row, and all end with the same one.

The rollout is that of environments that step together, whatever their order. It is so bit for bit if the actor's
outputs for an observation do not depend on the number of observations, which holds in NumPy; products of matrices in
torch may differ in their last bit.
"""

from typing import Any

import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.environments.vector import AsynchronousEnvironments
from hybridppo.rollouts.rollout import FinalObservations, Rollout
from hybridppo.spaces.arrays import Array


def fill_as_ready(
    environments: AsynchronousEnvironments, distribution: Distribution, memory: Any, buffer: Rollout, actor: Any,
    stop: Any, first: int, end: int, heartbeat: Any,
) -> tuple[int, FinalObservations]:  # fmt: skip
    """As `Stepper.fill`: act for environments as they are ready, until all have filled their rows `first` to `end`.

    A recurrent actor has an `EpisodeMemory`.
    """
    batch_size, under_way = environments.batch_size, environments.under_way
    rows = np.full(environments.num_envs, first)
    """The row of each environment's next step, or of the one that is under way."""
    noise_row: Any = distribution.noise_row
    finals: FinalObservations = []
    while True:
        if stop[0]:
            end = min(end, first_common_row(rows, under_way, batch_size))
        envs = to_send(end - rows, under_way, batch_size)
        if len(envs):
            at = rows[envs], envs
            observations, noise = buffer.observations[at], buffer.noise[noise_row(at[0]), envs]
            if distribution.explores:
                actor.explore(noise)
            if memory is None:
                outputs = actor(observations)
            else:
                outputs = memory.act(actor, observations, at, buffer.starts, buffer.states)
            actions = distribution.sample(outputs, actor.perturbation if distribution.explores else noise)
            buffer.outputs[at], buffer.actions[at] = outputs, actions
            environments.send(distribution.to_env(actions), envs)
        elif under_way.any():
            envs, (observations, rewards, terminated, truncated, indices, final_observations) = environments.receive()
            at = rows[envs], envs
            buffer.observations[at[0] + 1, envs], buffer.rewards[at] = observations, rewards
            buffer.terminated[at], buffer.truncated[at] = terminated, truncated
            finals += [(int(at[0][i]), int(envs[i]), each) for i, each in zip(indices, final_observations, strict=True)]
            if memory is not None:
                memory.note_ends(envs, terminated | truncated)
            rows[envs] += 1
            heartbeat[0] = int(rows.min())
        else:
            break
    environments.check_rewards(buffer.rewards[first:end])
    return end, sorted(finals, key=lambda final: final[:2])


def to_send(left: Array, under_way: Array, batch_size: int) -> Array:
    """The environments to act for now, at most `batch_size`: those with the most steps left first.

    A vector returns `batch_size` environments at a time, so that the last ones could wait for others in vain. This
    cannot happen while as many steps are left as `batch_size` times those of the environment with the most, whose
    parts then all find enough others. Each part without such an environment uses up `batch_size` of the surplus; so no
    more environments may be under way than the surplus has, or than are one part.

    Args:
        left: `[N]`, how many steps each still has to make, with the one that is under way.
        under_way: `[N]`, which have got actions.
        batch_size: environments of a part, which divides the sum of `left`.
    """
    surplus = int(left.sum()) - batch_size * int(left.max())
    room = max(batch_size, surplus) - np.count_nonzero(under_way)
    ready = np.flatnonzero(~under_way & (left > 0))
    return ready[np.argsort(-left[ready], kind="stable")][: min(room, batch_size)]


def first_common_row(rows: Array, under_way: Array, batch_size: int) -> int:
    """The first row with which all can end: then the surplus of `to_send` is not less than what is under way."""
    others = len(rows) - batch_size
    needed = rows.sum() - batch_size * rows.min() + np.count_nonzero(under_way)
    return max(-int(-needed // others), int((rows + under_way).max()))
