"""What is said of memory where there is none left."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from hybridppo import PPO, OutOfMemoryError, PPOConfig
from hybridppo.agents.ppo.memory import explaining_memory, memory_needs
from hybridppo.spaces.observations import ObservationEncoder

CONFIG = PPOConfig(num_envs=3, num_steps=16, num_minibatches=4, hidden_sizes=(16, 8))


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (5,)), Discrete(7), Box(0, 255, (40, 40, 3), np.uint8)], ids=["vector", "discrete", "image"]
)
def test_the_networks_need_four_copies_of_their_parameters(space: Box) -> None:
    """Their values, gradients, and both of Adam's moments."""
    agent = PPO(space, Discrete(3), CONFIG)
    needs = memory_needs(CONFIG, ObservationEncoder(space), 3)
    # What is said is rough: it takes the last layer of both networks for one.
    assert next(iter(needs.values())) == pytest.approx(4 * 4 * agent.parameters.values.numel(), rel=0.1)


def test_rollouts_and_minibatches_by_hand() -> None:
    of_networks, of_rollout, of_minibatch = memory_needs(CONFIG, ObservationEncoder(Box(-1, 1, (5,))), 3).values()
    hidden = 2 * (5 * 16 + 16 + 16 * 8 + 8)
    assert of_networks == 4 * 4 * (hidden + 9 * 4)
    # Of each of 48 rows: the observation, 3 numbers for each of 3 actions, reward and the like, the critic's layers.
    assert of_rollout == 48 * 4 * (5 + 3 * 3 + 4 + 24)
    assert of_minibatch == 12 * 4 * (5 + 4 * 24)


def test_rollouts_of_images_are_bytes_and_their_values_come_in_parts() -> None:
    space = Box(0, 255, (40, 40, 3), np.uint8)
    _, of_rollout, _ = memory_needs(CONFIG, ObservationEncoder(space), 3).values()
    assert of_rollout == 48 * (40 * 40 * 3 + 4 * (3 * 3 + 4))


@pytest.mark.parametrize(
    ("num_envs", "said"),
    [(1, r"a rollout \(num_envs \* num_steps\) 62.5 KiB"), (10**6, r"a rollout \(num_envs \* num_steps\) 59.6 GiB")],
)
def test_sizes_are_said_in_units_that_one_can_read(num_envs: int, said: str) -> None:
    config = PPOConfig(num_envs=num_envs, num_steps=128, hidden_sizes=(64, 37))
    with pytest.raises(OutOfMemoryError, match=said), explaining_memory(config, Box(-1, 1, (8,)), Discrete(4)):
        raise MemoryError
