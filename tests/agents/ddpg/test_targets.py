"""The critics' targets, against numbers worked out by hand."""

import torch

from hybridppo.agents.ddpg import critic_loss, smoothed, targets


def test_targets_trust_the_lowest_critic() -> None:
    found = targets(
        returns=torch.tensor([1.0, 2.0, 3.0]),
        discounts=torch.tensor([0.5, 0.9, 0.0]),
        next_values=torch.tensor([[4.0, 6.0], [10.0, -10.0], [1e6, 1e6]]),
    )
    torch.testing.assert_close(found, torch.tensor([3.0, -7.0, 3.0]))


def test_smoothing_clips_the_noise_and_then_the_action() -> None:
    found = smoothed(
        actions=torch.tensor([[0.1, -0.9], [0.9, 0.0]]), noise=torch.tensor([[0.2, -0.3], [3.0, -3.0]]), clip=0.5
    )
    torch.testing.assert_close(found, torch.tensor([[0.3, -1.0], [1.0, -0.5]]))


def test_without_noise_nothing_is_smoothed() -> None:
    actions = torch.tensor([[0.1, -0.9]])
    assert torch.equal(smoothed(actions=actions, noise=torch.zeros(1, 2), clip=0.0), actions)


def test_the_loss_is_the_sum_over_critics_of_mean_squared_errors() -> None:
    values, wanted = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([2.0, 4.0])
    # first: (1 + 1) / 2; second: (0 + 1) / 2
    assert critic_loss(values=values, targets=wanted).item() == 1.5
    assert critic_loss(values=values[:, :1], targets=wanted).item() == 1.0
