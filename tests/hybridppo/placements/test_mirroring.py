"""What is copied between devices, and what a mirror restores from a file."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config

from hybridppo import PPO, Mirrored

CONFIG = ppo_config(num_envs=2, num_steps=8, hidden_sizes=(8,), activation="elu")


def prepared(**options: Any) -> tuple[Mirrored, PPO]:
    placement, agent = Mirrored("cpu", "cpu", **options), PPO(Box(-1, 1, (3,)), Discrete(2), CONFIG)
    placement.prepare(agent)
    with placement.sampling(agent):  # publishes
        return placement, agent


def test_what_stays_on_the_host_does_not_cross() -> None:
    placement, agent = prepared()
    with placement.sampling(agent) as actor:  # elu: by torch, not by NumPy
        actor(np.zeros((2, 3), np.float32))
    counters = placement.counters
    assert (counters.bytes_copied, counters.seconds_copying, counters.seconds_crossing) == (0, 0.0, 0.0)


def test_what_was_counted_is_counted_on() -> None:
    placement, _ = prepared(force_copy=True)
    counters = placement.counters
    counters.publishes, counters.bytes_copied, counters.seconds_copying, counters.seconds_crossing = 3, 500, 0.25, 0.125
    after, _ = prepared(force_copy=True)
    after.load_state(*placement.state())
    assert after.counters == counters


@pytest.mark.parametrize("shape", [(1,), (2, 2)])
def test_a_replica_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    placement, agent = prepared(force_copy=True)
    tensors, state = placement.state()
    before = agent.parameters.values.detach().clone()
    with pytest.raises(ValueError, match=r"replica\.0 is of shape"):
        placement.load_state({**tensors, "replica.0": torch.ones(shape)}, state)
    assert torch.equal(agent.parameters.values, before)
