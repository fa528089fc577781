"""Episodes are counted by tensors exactly as by the host."""

import numpy as np
import pytest
import torch

from hybridppo.rollouts.episodes import EpisodeStatistics
from hybridppo.rollouts.episodes_on_device import EpisodesOnDevice


@pytest.mark.parametrize(("num_steps", "num_envs", "window"), [(1, 1, 4), (7, 3, 100), (16, 5, 3)])
def test_blocks_are_counted_as_on_the_host(num_steps: int, num_envs: int, window: int) -> None:
    generator = np.random.default_rng(num_steps)
    host = EpisodeStatistics(num_envs, window)
    taking, device = EpisodeStatistics(num_envs, window), EpisodesOnDevice(num_envs, torch.device("cpu"), window)
    for share in (0.0, 0.3, 0.9, 0.05, 1.0):
        rewards = generator.normal(size=(num_steps, num_envs)).astype(np.float32)
        valid = generator.random((num_steps, num_envs)) < 0.8
        ended = (generator.random((num_steps, num_envs)) < share) & valid
        host.add(rewards, ended, valid)
        count, *latest = device.add(*map(torch.from_numpy, (rewards, ended, valid))).tolist()
        known = min(int(count), window)
        returns, lengths = latest[:known][::-1], latest[window : window + known][::-1]
        taking.take(int(count), returns, [int(length) for length in lengths])
        taking.running = device.running_return.numpy(), device.running_length.numpy()
        assert taking.state() == host.state()
    assert host.episodes >= 2
