"""The error if a training reaches numbers that are not finite."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from ppo_settings import ppo_config

from hybridppo.agents.ppo.loss import STATISTICS, divergence
from hybridppo.rollouts.rollout import Rollout

INF = float("inf")


def message(**changes: Any) -> str:
    tensors = {name: torch.zeros(4) for name in ("log_probs", "values", "advantages", "returns")}
    batch = SimpleNamespace(observations=torch.tensor([[-2.0], [0.5], [0.0], [1.0]]), **tensors)
    rollout = SimpleNamespace(rewards=torch.tensor([[-3.0, 7.0], [0.0, 0.0]]), valid_rows=torch.arange(4))
    rollout.steps = partial(Rollout.steps, rollout)
    epochs = [torch.zeros(2, len(STATISTICS)), torch.zeros(2, len(STATISTICS))]
    for name, tensor in changes.items():
        setattr(rollout if name in ("rewards", "valid_rows") else batch, name, tensor)
    batch.inputs = batch.observations
    epochs[1][0, STATISTICS.index("value_loss")] = INF
    return str(divergence(7, ppo_config(), rollout, batch, epochs, torch.zeros(3)))


def test_the_first_that_is_not_finite_is_named_with_where_it_was() -> None:
    first = "in iteration 7: the first quantity that is not finite is value_loss (inf) in minibatch 1 of epoch 2."
    assert first in message()
    assert "an advantage, from rewards and values (-inf)." in message(advantages=torch.tensor([1.0, -INF]))


def test_what_there_was_is_said_from_the_least_to_the_largest() -> None:
    assert "(here from -3 to 7), observations that are not (here from -2 to 1)" in message()
    assert "(here from -3 to 2)" in message(rewards=torch.tensor([[-3.0, INF], [2.0, float("nan")]]))
    assert "(here from none that is finite)" in message(rewards=torch.full((2, 2), float("nan")))


def test_rows_that_are_no_steps_are_not_blamed() -> None:
    rewards = torch.tensor([[1.0, INF], [1.0, 1.0]])
    assert "is a reward (inf)" in message(rewards=rewards)
    assert "is a reward" not in message(rewards=rewards, valid_rows=torch.tensor([0, 2, 3]))
