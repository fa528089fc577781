"""Learning from a pool of rollouts: its arithmetic, what it keeps, and that a pool of one rollout is PPO."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loops import loop_of
from ppo_settings import ppo_config
from sampling import collecting
from stop_after import assert_stopped_update_changes_nothing

import hybridppo
from hybridppo import ConfigurationError, Mirrored, PPOConfig, SingleDevice
from hybridppo.agents import PPO
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.agents.ppo.loss import policy_loss
from hybridppo.agents.ppo.older_policies import Pool
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.rollouts.advantages import gae, vtrace

CONFIG = ppo_config(
    num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,), learning_rate=1e-2, pool_size=3,
    anneal_learning_rate=False,
)  # fmt: skip


def test_vtrace_by_hand() -> None:
    """Two steps: the first is now half as probable, the second three times, so its weight is cut to 1."""
    column = lambda *numbers: torch.tensor(numbers).view(-1, 1)  # noqa: E731
    advantages, returns = vtrace(
        rewards=column(1.0, 2.0),
        values=column(0.5, 1.0),
        next_values=column(1.0, 4.0),
        weights=column(0.5, 3.0),
        terminated=column(False, False),
        truncated=column(False, True),
        gamma=0.9,
        gae_lambda=0.8,
    )
    last = 2.0 + 0.9 * 4.0 - 1.0
    first = 1.0 + 0.9 * 1.0 - 0.5 + 0.9 * 0.8 * 1.0 * last
    torch.testing.assert_close(advantages, column(first, last))
    torch.testing.assert_close(returns, column(0.5 + 0.5 * first, 1.0 + 1.0 * last))


def test_vtrace_cuts_what_became_improbable() -> None:
    zero = torch.zeros(2, 1, dtype=torch.bool)
    ones = torch.ones(2, 1)
    weights = torch.tensor([[1.0], [0.25]])
    advantages, _ = vtrace(
        rewards=ones, values=0 * ones, next_values=0 * ones, weights=weights, terminated=zero, truncated=zero,
        gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    torch.testing.assert_close(advantages, torch.tensor([[1.25], [1.0]]))


def test_vtrace_of_ones_own_policy_is_gae() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values, following = (torch.randn(40, 3, generator=generator) for _ in range(3))
    terminated, truncated = (torch.rand(40, 3, generator=generator) < 0.1 for _ in range(2))
    given: dict[str, Any] = {
        "rewards": rewards, "values": values, "next_values": following, "terminated": terminated,
        "truncated": truncated, "gamma": 0.97, "gae_lambda": 0.9,
    }  # fmt: skip
    advantages, returns = vtrace(weights=torch.ones(40, 3), **given)
    assert torch.equal(advantages, gae(**given))
    assert torch.equal(returns, values + advantages)


def test_the_surrogate_is_the_papers() -> None:
    """`min(r * A, clip(r, w - c, w + c) * A)`, of every sample."""
    generator = torch.Generator().manual_seed(0)
    now, before, acted, advantages = (torch.randn(200, generator=generator) for _ in range(4))
    rows = torch.zeros(200, 1)
    weights = (before - acted).exp()
    batch = Batch(
        observations=rows, actions=rows, log_probs=before, values=now, advantages=advantages, returns=now,
        weights=weights, shares=torch.full((200,), 0.5),
    )  # fmt: skip
    (epoch,) = batch.epochs(torch.arange(200)[None], [100, 100], normalizes=False)
    found = policy_loss(
        log_ratio=now - batch.log_probs,
        advantages=epoch.advantages,
        clip_range=batch.clip_range(0.2),
    )
    ratio = (now - acted).exp()
    clipped = ratio.clamp(weights - 0.1, weights + 0.1)
    torch.testing.assert_close(found, -torch.minimum(ratio * advantages, clipped * advantages).mean())


def test_advantages_are_normalised_as_they_are_weighed() -> None:
    weights, advantages = torch.tensor([1.0, 2.0, 0.5, 1.0]), torch.tensor([1.0, -1.0, 3.0, 2.0])
    rows = torch.zeros(4, 1)
    columns = dict.fromkeys(("log_probs", "values", "returns", "weights", "shares"), weights)
    batch = Batch(observations=rows, actions=rows, advantages=advantages, **columns)
    (epoch,) = batch.epochs(torch.arange(4)[None], [4], normalizes=True)
    found = epoch.advantages
    mean = float((weights * advantages).sum() / weights.sum())
    deviation = float(np.std([1.0, -2.0, 1.5, 2.0], ddof=1))
    expected = [w * (a - mean) / deviation for w, a in zip(weights.tolist(), advantages.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert abs(float(found.sum())) < 1e-5


def agent_and_rollouts(config: PPOConfig, number: int, learns: bool = True) -> tuple[PPO, list[Any], list[Any]]:
    made = make_environments("CartPole-v1", config.num_envs, EnvironmentOptions(vectorization="sync"))
    agent = PPO(made.observation_space, made.action_space, config, seed=1)
    collect, rollouts, metrics = collecting(agent, made), [], []
    for _ in range(number):
        rollouts.append(collect())
        if learns:
            metrics.append(agent.update(rollouts[-1]))
            rollouts[-1] = rollouts[-1].map(torch.clone)
    made.close()
    return agent, rollouts, metrics


def test_the_newest_rollouts_are_kept_and_nothing_else() -> None:
    agent, rollouts, metrics = agent_and_rollouts(CONFIG, 5)
    assert [m["pool_rollouts"] for m in metrics] == [1.0, 2.0, 3.0, 3.0, 3.0]
    assert isinstance(agent._pool, Pool)
    kept = [one.rollout() for one in agent._pool._kept]
    assert [one.version for one in kept] == [4, 3]
    for ours, theirs in zip(kept, (rollouts[4], rollouts[3]), strict=True):
        for name, tensor in theirs.columns().items():
            assert torch.equal(getattr(ours, name), tensor)
    batch = agent.batch_of(rollouts[4], loop_of(agent))
    assert len(batch) == 3 * 32


def test_each_rollout_is_weighed_by_who_took_its_actions() -> None:
    agent, rollouts, _ = agent_and_rollouts(replace(CONFIG, learning_rate=0.1), 4)
    steps = loop_of(agent)
    batch = agent.batch_of(rollouts[3], steps)
    now, rows = steps.backend.log_probs(batch), slice(32, 64)
    torch.testing.assert_close(batch.log_probs, now)
    torch.testing.assert_close(batch.weights[rows], (now[rows] - rollouts[3].log_probs.flatten()).exp())
    assert float((batch.weights - 1.0).abs().max()) > 0.01
    # Of versions 3, 3 and 2, for the version 4: they lie 2, 2 and 3 updates from the next.
    torch.testing.assert_close(batch.shares, torch.full((96,), 3 / 7))


@pytest.mark.parametrize("normalizes", [True, False])
@pytest.mark.parametrize("rows", [96, 4096])
def test_the_gradient_by_hand_is_that_of_the_loss(normalizes: bool, rows: int) -> None:
    """Of actions that are now far more and far less probable, in one block and in several."""
    config = replace(CONFIG, normalize_advantage=normalizes, clip_range_vf=0.1)
    agent, rollouts, _ = agent_and_rollouts(config, 3)
    plain, by_hand = Backend(agent), NumpyBackend(agent)
    by_hand._block_size = 1000
    generator = torch.Generator().manual_seed(0)
    batch = agent.batch_of(rollouts[2], loop_of(agent))
    batch = batch.gather(torch.randint(len(batch), (rows,), generator=generator))
    noise = lambda: torch.randn(rows, generator=generator)  # noqa: E731
    batch = batch.with_columns(
        log_probs=batch.log_probs + 0.3 * noise(), values=batch.values + 0.2 * noise(), advantages=noise(),
        weights=(0.8 * noise()).exp(), shares=torch.full((rows,), 0.5),
    )  # fmt: skip
    expected_statistics = plain.gradient(batch, 0.3)
    expected = agent.parameters.gradient.clone()
    (minibatch,) = by_hand.minibatches(batch, [rows])
    found_statistics = torch.as_tensor(by_hand.gradient(minibatch, 0.3))
    torch.testing.assert_close(agent.parameters.gradient, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found_statistics, expected_statistics, rtol=1e-4, atol=1e-6)
    assert 0.2 < float(found_statistics[-1]) < 0.8  # clipped, and not


def test_by_hand_and_by_autograd_it_learns_the_same_but_for_rounding() -> None:
    by_hand, _, found = agent_and_rollouts(CONFIG, 4)
    plain, _, expected = agent_and_rollouts(replace(CONFIG, fast_updates=False), 4)
    assert type(by_hand.loop().backend) is NumpyBackend
    assert type(plain.loop().backend) is Backend
    torch.testing.assert_close(by_hand.parameters.values, plain.parameters.values, rtol=0.0, atol=1e-4)
    assert found[-1] == pytest.approx(expected[-1], rel=1e-2, abs=1e-3)


def test_one_that_learns_from_the_first_rollout_alone_is_ppo_but_for_rounding() -> None:
    pooled, _, metrics = agent_and_rollouts(CONFIG, 1)
    plain, _, expected = agent_and_rollouts(replace(CONFIG, pool_size=1, fast_updates=False), 1)
    torch.testing.assert_close(pooled.parameters.values, plain.parameters.values, rtol=0.0, atol=1e-5)
    for name, value in expected[0].items():
        assert metrics[0][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_the_rate_is_lowered_where_an_update_goes_too_far() -> None:
    wild, _, metrics = agent_and_rollouts(replace(CONFIG, learning_rate=0.5, clip_range=0.01), 3)
    assert metrics[-1]["total_variation"] > 0.01
    assert wild._pool.rate == pytest.approx(1.03**-3)
    wild.anneal(0.5)
    assert wild.optimizer.learning_rates["actor"] == pytest.approx(0.5 / 1.03**3)
    assert wild.optimizer.learning_rates["critic"] == pytest.approx(0.5)
    calm, _, metrics = agent_and_rollouts(replace(CONFIG, learning_rate=1e-6), 3)
    assert 0.0 < metrics[-1]["total_variation"] < 0.01
    assert calm._pool.rate == 1.0


def test_an_update_that_is_stopped_keeps_nothing() -> None:
    agent, rollouts, _ = agent_and_rollouts(CONFIG, 3)
    assert_stopped_update_changes_nothing(agent, rollouts[0], after=2)


def test_a_loss_of_ones_own_is_given_the_clip_range_of_each_row() -> None:
    seen: list[Any] = []

    def loss(inputs: Any, config: PPOConfig, clip_range: Any) -> Any:
        from hybridppo.agents.ppo.loss import ppo_loss

        seen.append(clip_range)
        return ppo_loss(inputs, config, clip_range)

    result = hybridppo.train(
        "CartPole-v1", total_steps=96, seed=0, config=CONFIG, placement="cpu", progress=False, loss=loss,
        vectorization="sync",
    )  # fmt: skip
    assert result.metrics["pool_rollouts"] == 3.0
    assert seen[-1].shape == (48,)


def test_overlap_makes_the_newest_rollout_an_older_one() -> None:
    history: list[Any] = []
    hybridppo.train(
        "CartPole-v1", total_steps=32 * 6, seed=0, config=CONFIG, placement=Mirrored("cpu", "cpu", max_lag=1),
        progress=False, vectorization="sync", on_iteration=history.append,
    )  # fmt: skip
    assert history[-1]["policy_lag"] == 1
    assert history[-1]["pool_rollouts"] == 3.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_size": 65}, "pool_size must be at most 64, got 65"),
        ({"pool_size": 2, "recurrent": "lstm"}, "pool_size does not work with recurrent"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ppo_config(**options)


def test_kept_rollouts_are_loaded_to_where_the_agent_is(second_device: str) -> None:
    config = replace(CONFIG, pool_size=2, fast_updates=False)
    here = hybridppo.train("CartPole-v1", config=config, total_steps=64, placement="cpu", seed=0, progress=False).agent
    there = here.like(config, seed=1)
    SingleDevice(second_device).prepare(there)
    there.load_state(*here.state())
    assert {buffer.device.type for buffer in there._pool.buffers()} == {"second"}
    for name, tensor in here.state()[0].items():
        assert torch.equal(there.state()[0][name].cpu(), tensor), name
