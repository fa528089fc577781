"""The error if a training reaches numbers that are not finite."""

from dataclasses import replace
from typing import Any

import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config

from hybridppo import PPO
from hybridppo.agents.agent import diverged
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.rollouts.rollout import Rollout

INF = float("inf")


def message(**changes: Any) -> str:
    names = ("log_probs", "values", "advantages", "returns", "actions")
    batch = Batch(observations=torch.tensor([[-2.0], [0.5], [0.0], [1.0]]), **{name: torch.zeros(4) for name in names})
    nothing, flags, rows = torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool), torch.arange(4)
    rewards = torch.tensor([[-3.0, 7.0], [0.0, 0.0]])
    rollout = Rollout(torch.zeros(3, 2, 1), nothing, nothing, rewards, flags, flags, rows, rows[:0], nothing, version=0)
    of_rollout = {name: tensor for name, tensor in changes.items() if name in ("rewards", "valid_rows")}
    of_batch = {name: tensor for name, tensor in changes.items() if name not in of_rollout}
    epochs = [torch.zeros(2, len(STATISTICS)), torch.zeros(2, len(STATISTICS))]
    epochs[1][0, STATISTICS.index("value_loss")] = INF
    agent = PPO(Box(-1.0, 1.0, (1,)), Discrete(2), ppo_config())
    quantities = agent._quantities(replace(rollout, **of_rollout), batch.with_columns(**of_batch), epochs)
    return str(diverged("in iteration 7", quantities, agent.config))


def test_the_first_that_is_not_finite_is_named() -> None:
    assert (
        "in iteration 7: the first quantity that is not finite is value_loss in minibatch 1 of epoch 2 (inf)."
        in message()
    )
    assert "an advantage, from rewards and values (-inf)." in message(advantages=torch.tensor([1.0, -INF, 0.0, 0.0]))


def test_rows_that_are_no_steps_are_not_blamed() -> None:
    rewards = torch.tensor([[1.0, INF], [1.0, 1.0]])
    assert "is a reward (inf)" in message(rewards=rewards)
    assert "is a reward" not in message(rewards=rewards, valid_rows=torch.tensor([0, 2, 3]))
