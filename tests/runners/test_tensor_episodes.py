"""Statistics of tensors equal those of arrays."""

from typing import Any

import numpy as np
import pytest
import torch

from hybridppo.runners.counts import EpisodeStatistics
from hybridppo.runners.device_sampler import TensorStatistics

CPU = torch.device("cpu")


def count(statistics: TensorStatistics, *block: Any) -> None:
    statistics.read(statistics.measured(*map(torch.from_numpy, block)).tolist())


@pytest.mark.parametrize("has_others", [False, True], ids=["steps alone", "rows that are no steps"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize(("num_steps", "num_envs", "window"), [(7, 5, 100), (1, 3, 2), (16, 8, 10)])
def test_statistics_are_those_of_arrays(
    num_steps: int, num_envs: int, window: int, share: float, has_others: bool
) -> None:
    generator = np.random.default_rng(1)
    expected, found = EpisodeStatistics(num_envs, window), TensorStatistics(num_envs, CPU, window)
    for block in range(12):
        rewards = generator.standard_normal((num_steps, num_envs)).astype(np.float32)
        ended = generator.random((num_steps, num_envs)) < share
        valid = generator.random((num_steps, num_envs)) < (0.8 if has_others else 1.0)
        ended &= valid
        expected.add(rewards, ended, valid)
        count(found, rewards, ended, valid)
        if block == 5:
            expected.drop_running()
            found.drop_running()
        if block == 8:  # to a file and back
            saved, found = found.state(), TensorStatistics(num_envs, CPU, window)
            found.load_state(saved)
        one, other = expected.state(), found.state()
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_equal(
        (found.episodes, found.length_mean, found.score is None),
        (expected.episodes, expected.length_mean, expected.score is None),
    )
