"""Shards that stay where they are: minibatches, moments and gradients are those of the whole."""

from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from loops import loop_of
from ppo_settings import ppo_config

from hybridppo.agents import PPO
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.exchanges import RolloutShards, ShardedBatch, moments_of_all
from hybridppo.agents.ppo.loop import Backend, OptimizationLoop
from hybridppo.agents.ppo.loss import normalize

S, N = 3, 10


def shards() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return [
        Batch(draw(N, 4), torch.randint(2, (N,), generator=generator), draw(N), draw(N), draw(N), draw(N))
        for _ in range(S)
    ]


def columns(parts: list[Batch]) -> torch.Tensor:
    return torch.stack([torch.stack((part.values, part.returns, part.advantages)) for part in parts])


def minibatch_of(batch: ShardedBatch, order: torch.Tensor, number: int) -> list[Batch]:
    """The shards of a minibatch, of which there are three."""
    return [list(part.gather(places).split([4, 3, 3]))[number] for part, places in batch.parts(order)]


def test_minibatches_take_every_row_once_and_are_normalised_as_a_whole() -> None:
    parts = shards()
    batch = ShardedBatch(parts, 0, columns(parts))
    assert len(batch) == N
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    seen: list[list[float]] = [[] for _ in range(S)]
    (weighed,) = batch.weighed(order[None], [4, 3, 3], normalizes=True)
    for number in range(3):
        minibatch = minibatch_of(weighed, order, number)
        for i, part in enumerate(minibatch):
            seen[i] += part.log_probs.tolist()
        advantages = torch.cat([part.advantages for part in minibatch])
        assert advantages.mean().abs() < 1e-6
        assert advantages.std() == pytest.approx(1.0, abs=1e-5)
        raw = minibatch_of(batch.weighed(order[None], [4, 3, 3], normalizes=False)[0], order, number)
        expected = normalize(torch.cat([part.advantages for part in raw]))
        assert torch.allclose(advantages, expected)
        places = [  # where in each shard they are: not the same
            [parts[i].log_probs.tolist().index(value) for value in part.log_probs.tolist()]
            for i, part in enumerate(raw)
        ]
        assert places[0] != places[1] != places[2]
    assert [sorted(column) for column in seen] == [sorted(part.log_probs.tolist()) for part in parts]
    # A learner that has one of them sees the same.
    alone = ShardedBatch(parts[1:2], 1, columns(parts)).weighed(order[None], [4, 3, 3], normalizes=True)[0]
    (own,) = minibatch_of(alone, order, 0)
    for name in ("observations", "log_probs", "advantages", "returns"):
        assert torch.equal(getattr(own, name), getattr(minibatch_of(weighed, order, 0)[1], name))
    assert torch.equal(batch.steps().values, torch.cat([part.values for part in parts]))


def test_a_step_is_that_of_the_whole_minibatch() -> None:
    parts = shards()
    config = ppo_config(num_envs=S, num_steps=N, num_minibatches=1, hidden_sizes=(8,), fast_updates=False)

    def agent() -> PPO:
        return PPO(Box(-1.0, 1.0, (4,)), Discrete(2), config, seed=0)

    one, whole = agent(), agent()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    exchange = RolloutShards(one.parameters, 0, S, lambda rows: rows)
    found = OptimizationLoop(one, Backend(one), exchange).epoch(
        ShardedBatch(parts, 0, columns(parts)), order, [5, 5], 0.2
    )
    joined = Batch.joined(parts)
    starts = [i * (N // S) for i in range(S)]
    rows = torch.cat([i * N + (half + starts[i]) % N for half in order.split(5) for i in range(S)])
    expected = loop_of(whole).epoch(joined, rows, [5 * S, 5 * S], 0.2)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(one.parameters.values, whole.parameters.values, atol=1e-6)


def test_moments_are_those_of_all_rows() -> None:
    values = torch.randn(6 * 4, 3, generator=torch.Generator().manual_seed(2)) * 5.0 + 7.0  # [T * N, 3], N of 2 shards
    table = values.view(6, 2, 2, 3)
    given: list[Any] = []

    def exchange(rows: torch.Tensor) -> torch.Tensor:
        given.append(rows)
        return rows

    mean, variance, number = moments_of_all(2, 2, exchange)(values)
    assert number == 24
    assert torch.allclose(mean, values.mean(0), atol=1e-5)
    assert torch.allclose(variance, values.var(0, correction=0), atol=1e-4)
    # What a shard says does not depend on who else's columns are beside its own.
    alone: list[Any] = []
    moments_of_all(1, 2, lambda rows: alone.append(rows) or rows.expand(2, -1, -1))(table[:, 1].flatten(0, 1))
    assert torch.equal(alone[0][0], given[0][1])
