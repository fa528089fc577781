"""Gradients in shards: the same whoever computes which, and the unsharded one up to rounding."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.sharded_steps import ShardedSteps
from hybridppo.environments.making import make_environments
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler

CONFIG = ppo_config(
    num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16), learning_rate=1e-3
)
CARTPOLE = gym.make("CartPole-v1")
FORMS = pytest.mark.parametrize("fast_updates", [True, False], ids=["by hand", "autograd"])


def agent_of(config: PPOConfig) -> PPO:
    agent = PPO(CARTPOLE.observation_space, CARTPOLE.action_space, config, seed=1)
    SingleDevice("cpu").prepare(agent)
    return agent


def rollout_of(agent: PPO) -> Rollout:
    config, noise = agent.config, np.random.default_rng(2)
    environments = make_environments("CartPole-v1", config.num_envs, vectorization="sync")
    sampler = Sampler(environments, agent.distribution, num_steps=config.num_steps, env_seed=3, noise=noise)
    with SingleDevice("cpu").sampling(agent) as actor:
        return sampler.collect(actor)


def one_learner(rows: Tensor) -> Tensor:
    return rows


def share(agent: PPO, **options: Any) -> PPO:
    agent.spread = lambda form: ShardedSteps(agent, form, **options)
    return agent


@FORMS
def test_a_hundred_updates_in_shards_are_those_of_whole_minibatches_up_to_rounding(fast_updates: bool) -> None:
    config = replace(CONFIG, fast_updates=fast_updates, num_epochs=1)
    whole, sharded = agent_of(config), share(agent_of(config), num_shards=4, mine=slice(None), exchange=one_learner)
    rollout, before = rollout_of(whole), whole.parameters.values.detach().clone()
    for _ in range(100):
        ours, theirs = sharded.update(rollout), whole.update(rollout)
        assert ours.keys() == theirs.keys()
    moved = whole.parameters.values - before
    assert moved.abs().max() > 0.01
    assert (sharded.parameters.values - whole.parameters.values).abs().max() <= 3e-6
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-3, atol=1e-5)


@FORMS
@pytest.mark.parametrize("num_learners", [2, 4])
def test_whoever_computes_which_the_bits_are_the_same(num_learners: int, fast_updates: bool) -> None:
    """Learners by turns: each exchange is given what the learner of all shards had at the same place."""
    config = replace(CONFIG, fast_updates=fast_updates)
    exchanged: list[Tensor] = []

    def kept(rows: Tensor) -> Tensor:
        exchanged.append(rows.clone())
        return rows

    alone = share(agent_of(config), num_shards=4, mine=slice(None), exchange=kept)
    rollout = rollout_of(alone)
    expected = alone.update(rollout)
    each = 4 // num_learners
    for rank in range(num_learners):
        mine = slice(rank * each, (rank + 1) * each)
        theirs = iter(exchanged)

        def exchange(rows: Tensor, mine: slice, theirs: Any) -> Tensor:
            everything = next(theirs)
            assert torch.equal(rows, everything[mine])
            return everything

        learner = share(agent_of(config), num_shards=4, mine=mine, exchange=partial(exchange, mine=mine, theirs=theirs))
        assert learner.update(rollout) == expected
        assert torch.equal(learner.parameters.values, alone.parameters.values)
        assert next(theirs, None) is None
    assert len(exchanged) == config.num_epochs * config.num_minibatches


def test_the_number_of_shards_is_part_of_the_arithmetic_and_their_order_too() -> None:
    def after(num_shards: int, exchange: Any = one_learner) -> Tensor:
        agent = share(agent_of(CONFIG), num_shards=num_shards, mine=slice(None), exchange=exchange)
        agent.update(rollout_of(agent))
        return agent.parameters.values.detach()

    assert not torch.equal(after(2), after(4))
    assert not torch.equal(after(4), after(4, lambda rows: rows.flip(0)))


def test_a_shard_without_steps_counts_for_nothing() -> None:
    agent = share(agent_of(CONFIG), num_shards=64, mine=slice(None), exchange=one_learner)
    agent.update(rollout_of(agent))  # of minibatches of 32
    assert agent.parameters.values.isfinite().all()


def test_no_step_is_made_where_all_are_asked_to_stop() -> None:
    from hybridppo.interruption import Stopped

    stops = []

    def exchange(rows: Tensor) -> Tensor:
        stops.append(True)
        return rows

    agent = share(agent_of(CONFIG), num_shards=2, mine=slice(None), exchange=exchange)
    agent.should_stop = lambda: bool(stops)
    rollout, before = rollout_of(agent), agent.parameters.values.detach().clone()
    with pytest.raises(Stopped):
        agent.update(rollout)
    assert len(stops) == 1
    assert torch.equal(agent.parameters.values, before)
