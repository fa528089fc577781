"""Work in portions that a calibration can time: updates of one epoch, rollouts of any length."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from hybridppo.agents import PPO
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout


@contextlib.contextmanager
def single_epoch(agent: PPO) -> Iterator[None]:
    """Within it, the agent's updates are one epoch long."""
    config = agent.config
    agent.config = replace(config, num_epochs=1)
    try:
        yield
    finally:
        agent.config = config


def with_steps(rollout: Rollout, num_steps: int, memory: MemoryLayout | None = None) -> Rollout:
    """A rollout of `num_steps` steps, cut from another, or that one over and over; every row counts as a step.

    Where the actor has a memory, any states before its sequences will do: this is for measuring.
    """
    have, num_envs = rollout.rewards.shape
    times = -(-num_steps // have)

    def repeated(tensor: Tensor) -> Tensor:
        return torch.cat([tensor] * times)[:num_steps]

    last = rollout.observations[-1:] if num_steps == times * have else rollout.observations[num_steps % have :][:1]
    starts = [turn * have * num_envs for turn in range(times)]
    final_rows = torch.cat([rollout.final_rows + start for start in starts])
    states = rollout.states
    if memory is not None and states is not None:
        number = memory.num_sequences(num_steps)
        states = torch.cat([states] * -(-number // len(states)))[:number]
    is_within = final_rows < num_steps * num_envs
    return replace(
        rollout,
        observations=torch.cat((repeated(rollout.observations[:-1]), last)),
        actions=repeated(rollout.actions),
        log_probs=repeated(rollout.log_probs),
        rewards=repeated(rollout.rewards),
        terminated=repeated(rollout.terminated),
        truncated=repeated(rollout.truncated),
        valid_rows=torch.arange(num_steps * num_envs),
        starts=None if rollout.starts is None else repeated(rollout.starts),
        states=states,
        final_rows=final_rows[is_within],
        final_observations=torch.cat([rollout.final_observations] * times)[is_within],
    )
