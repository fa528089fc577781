"""Updates in shards: the same however they are divided, and equal to the whole minibatch's up to rounding."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from learner_kinds import KINDS, Kind, marks_of
from ppo_settings import ppo_config
from sampling import collecting
from selection import only_by_default
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss
from hybridppo.distributed.reduce import ShardedBatch, ShardedUpdate
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.placements.placement import SingleDevice
from hybridppo.rollouts import advantages
from hybridppo.rollouts.rollout import Rollout, RolloutParts, in_parts
from hybridppo.runners.process_group import SingleProcess
from hybridppo.system.signals import Interruption, Stopped

CONFIG = ppo_config(
    num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16), learning_rate=1e-3,
    normalize_observations=True, normalize_rewards=True,
)  # fmt: skip
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    only_by_default(
        ("rows", "rows, autograd", "rows, compiled", "gru", "pool"),
        [pytest.param(k, id=n, marks=marks_of(n)) for n, k in KINDS.items()],
        pytest.mark.slow,
    ),
)


def environments_of(config: PPOConfig, kind: Kind) -> Environments:
    options = EnvironmentOptions(vectorization="sync", **kind.options)
    return make_environments("CartPole-v1", config.num_envs, options)


def agent_of(config: PPOConfig = CONFIG, kind: Kind = KINDS["rows"], loss: Any = None) -> PPO:
    environments = environments_of(config, kind)
    spaces = environments.observation_space, environments.action_space
    agent = PPO(*spaces, replace(config, **kind.config), seed=1, loss=loss)
    SingleDevice("cpu").prepare(agent)
    return agent


def rollouts_of(agent: PPO, kind: Kind = KINDS["rows"]) -> Iterator[Rollout]:
    """One after the other, as the agent is at that moment."""
    collect = collecting(agent, environments_of(agent.config, kind), env_seed=3, noise_seed=2)
    while True:
        yield collect().map(torch.clone)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """Also of NaN, as the moments of no rows are."""
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0, equal_nan=True)


class Told(SingleProcess):
    """Connects learners that run one after the other: each gets what a learner of all shards had at the same point."""

    def __init__(self, first: int = 0, said: Iterator[Tensor] | list[Tensor] | None = None) -> None:
        super().__init__()
        self._first = first
        self._said = [] if said is None else said

    def gather_rows(self, rows: Tensor) -> Tensor:
        if isinstance(self._said, list):
            self._said.append(rows.clone())
            return super().gather_rows(rows)
        everything = next(self._said)
        assert_same_bits(rows, everything[self._first : self._first + len(rows)])
        return everything.unsqueeze(0)


def update_of(agent: PPO, group: SingleProcess, first: int = 0) -> ShardedUpdate:
    return ShardedUpdate(agent.parameters, group, first=first, in_order=True)


def share(
    agent: PPO, num_shards: int, *, first: int = 0, said: Any = None, group: Callable[..., SingleProcess] = Told
) -> PPO:
    agent.share(lambda: update_of(agent, group(first, said), first))
    return agent


@EVERY_KIND
@pytest.mark.parametrize("num_learners", only_by_default(("2",), (2, 4)))
def test_whoever_has_which_the_bits_are_the_same(num_learners: int, kind: Kind) -> None:
    said: list[Tensor] = []
    config = replace(CONFIG, target_kl=1e-5)
    alone = share(agent_of(config, kind), 4, said=said)
    sampled = rollouts_of(alone, kind)
    learned = []
    for _ in range(2):
        rollout = in_parts(next(sampled), 4)
        learned.append((rollout, alone.update(rollout)))
    each = 4 // num_learners
    for rank in range(num_learners):
        theirs = iter(said)
        learner = share(agent_of(config, kind), each, first=rank * each, said=theirs)
        for rollout, expected in learned:
            own = RolloutParts(rollout.parts[rank * each : (rank + 1) * each])
            assert learner.update(own) == expected
        assert torch.equal(learner.parameters.values, alone.parameters.values)
        assert next(theirs, None) is None


@EVERY_KIND
def test_whole_batches_in_shards_are_those_of_one_piece_up_to_rounding(kind: Kind) -> None:
    config = replace(CONFIG, num_epochs=3, num_minibatches=1)  # or other rows would come together
    whole, sharded = agent_of(config, kind), share(agent_of(config, kind), 4)
    sampled, before = rollouts_of(whole, kind), whole.parameters.values.detach().clone()
    for _ in range(2):
        rollout = next(sampled)
        ours, theirs = sharded.update(in_parts(rollout, 4)), whole.update(rollout)
        assert ours.keys() == theirs.keys()
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-3, atol=1e-4)
    assert (whole.parameters.values - before).abs().max() > 1e-3
    assert (sharded.parameters.values - whole.parameters.values).abs().max() <= 1e-5
    for name, tensor in whole.state()[0].items():
        torch.testing.assert_close(sharded.state()[0][name], tensor, rtol=1e-3, atol=1e-5)


def test_minibatches_take_every_row_once_and_are_normalised_as_a_whole() -> None:
    agent = share(agent_of(), 4)
    rollout = in_parts(next(rollouts_of(agent)), 4)
    agent.normalization.fit(4)
    batch = agent.batch_of(rollout, agent.loop())
    assert isinstance(batch, ShardedBatch)
    orders, sizes = batch.orders(np.random.default_rng(0), 2), [8, 4, 4]
    assert len(batch) == 16
    for epoch in batch.epochs(orders, sizes, normalizes=True):
        minibatches = list(agent.loop().exchange.minibatches(agent.loop().backend, epoch, sizes))
        assert len(minibatches) == 3
        seen: list[float] = []
        for minibatch in minibatches:
            advantages = np.concatenate([shard.advantages for shard, _ in minibatch])
            assert abs(advantages.mean()) < 1e-5
            assert advantages.std(ddof=1) == pytest.approx(1.0, abs=1e-4)
            assert sum(float(weight) for _, weight in minibatch) == pytest.approx(1.0)
            seen += [value for shard, _ in minibatch for value in shard.log_probs.tolist()]
        assert sorted(seen) == sorted(value for part in batch.own for value in part.log_probs.tolist())
    assert not torch.equal(orders[0][0], orders[1][0])
    assert not torch.equal(orders[0][0], orders[0][1])


def test_shards_of_different_lengths_count_by_their_steps() -> None:
    """One learner has lost rows, and one has lost all of its rows."""
    config = replace(CONFIG, num_minibatches=1, num_epochs=1, normalize_rewards=False)
    whole, sharded = agent_of(config), share(agent_of(config), 4)
    rollout = next(rollouts_of(whole))
    valid = torch.tensor([row for row in range(64) if row % 4 != 3 and not (row % 4 == 1 and row < 40)])
    rollout = replace(rollout, valid_rows=valid)
    expected, found = whole.update(rollout), sharded.update(in_parts(rollout, 4))
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-3, atol=1e-4)
    assert (sharded.parameters.values - whole.parameters.values).abs().max() <= 1e-5
    before = sharded.parameters.values.detach().clone()
    metrics = sharded.update(in_parts(replace(rollout, valid_rows=valid[:0]), 4))
    assert np.isnan(metrics["policy_loss"])
    assert torch.equal(sharded.parameters.values, before)
    assert all(tensor.isfinite().all() for tensor in sharded.state()[0].values())


def loss_with_extra(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    found = ppo_loss(inputs, config, clip_range)
    return replace(found, extra={"squared": inputs.values.square().mean()})


@pytest.mark.parametrize("loss", [None, loss_with_extra])
@pytest.mark.parametrize("kind", ["rows", "pool"])
def test_a_learner_without_rows_learns_what_the_others_do(kind: str, loss: Any) -> None:
    """As one of a policy whose agents are absent in its environments; the first shard has fewer rows than minibatches.

    Then all have rows again.
    """
    config = replace(CONFIG, num_minibatches=4, normalize_rewards=False)
    said: list[Tensor] = []
    alone = share(agent_of(config, KINDS[kind], loss), 4, said=said)
    rollout = next(rollouts_of(alone, KINDS[kind]))
    few = torch.tensor([row for row in range(64) if row % 4 == 1 or row in (0, 4)])
    learned = [in_parts(each, 4) for each in (replace(rollout, valid_rows=few), rollout)]
    expected = [alone.update(each) for each in learned]
    for first in (0, 2):
        theirs = iter(said)
        learner = share(agent_of(config, KINDS[kind], loss), 2, first=first, said=theirs)
        found = [learner.update(RolloutParts(each.parts[first : first + 2])) for each in learned]
        assert found[1] == expected[1]
        assert found[0] == {name: value for name, value in expected[0].items() if first == 0 or name != "squared"}
        assert torch.equal(learner.parameters.values, alone.parameters.values)
        assert next(theirs, None) is None
    assert ("squared" in expected[0]) == (loss is not None)


@pytest.mark.parametrize("kind", ["rows", "gru"])
def test_an_edit_of_the_normalisation_of_advantages_takes_effect(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def edited(advantages: Tensor, *, weights: Any = None, counted: Any = None, sums: Any = None) -> Tensor:
        return torch.zeros_like(advantages)

    agent = share(agent_of(replace(CONFIG, num_epochs=1), KINDS[kind]), 4)
    rollout = in_parts(next(rollouts_of(agent, KINDS[kind])), 4)
    monkeypatch.setattr(advantages.normalize, "__code__", edited.__code__)
    assert agent.update(rollout)["policy_loss"] == 0.0
    monkeypatch.undo()
    assert agent.update(rollout)["policy_loss"] != 0.0


def test_the_number_of_shards_is_part_of_the_arithmetic() -> None:
    def after(num_shards: int) -> Tensor:
        agent = share(agent_of(), num_shards)
        agent.update(in_parts(next(rollouts_of(agent)), num_shards))
        return agent.parameters.values.detach()

    assert not torch.equal(after(2), after(4))


def test_an_update_that_all_are_asked_to_stop_changes_nothing() -> None:
    asks = Interruption()

    class Asking(SingleProcess):
        def gather_rows(self, rows: Tensor) -> Tensor:
            asks.requested |= rows.shape[1] > 100  # of gradients
            return super().gather_rows(rows)

    agent = share(agent_of(), 2, group=lambda *_: Asking())
    rollout = in_parts(next(rollouts_of(agent)), 2)
    agent.should_stop = lambda: asks.requested
    before = {name: tensor.clone() for name, tensor in agent.state()[0].items()}
    with pytest.raises(Stopped):
        agent.update(rollout)
    agent.should_stop = lambda: False
    for name, tensor in agent.state()[0].items():
        if not name.startswith("rewards.returns"):  # room for what is carried on is made before an update
            assert torch.equal(tensor, before[name]), name


def test_moments_are_those_of_all_rows() -> None:
    values = torch.randn(24, 3, generator=torch.Generator().manual_seed(2)) * 5.0 + 7.0
    update = update_of(agent_of(), SingleProcess())
    parts = values.split([4, 15, 5])
    own = [(part.mean(0), part.var(0, correction=0), len(part)) for part in parts]
    mean, variance, number = update.moments("observations", own)
    assert int(number) == 24
    assert torch.allclose(mean, values.mean(0), atol=1e-5)
    assert torch.allclose(variance, values.var(0, correction=0), atol=1e-4)
    nothing = (torch.full((3,), torch.nan), torch.full((3,), torch.nan), 0)
    mean, _, number = update.moments("observations", [*own, nothing])
    assert int(number) == 24
    assert torch.allclose(mean, values.mean(0), atol=1e-5)


def test_a_rollout_cut_into_parts_and_joined_again_is_the_same() -> None:
    for name in ("rows", "gru", "frames"):
        agent = agent_of(kind=KINDS[name])
        rollout = next(rollouts_of(agent, KINDS[name]))
        rollout = replace(rollout, valid_rows=rollout.valid_rows[::2])
        parts = in_parts(rollout, 4)
        assert [part.rewards.shape[1] for part in parts.parts] == [1, 1, 1, 1]
        assert sum(len(part.valid_rows) for part in parts.parts) == len(rollout.valid_rows)
        for what, tensor in parts.whole().columns().items():
            assert torch.equal(tensor, rollout.columns()[what]), what
        assert parts.num_bytes == rollout.num_bytes
        moved = parts.map(partial(torch.add, other=0))
        assert torch.equal(moved.observations, parts.parts[0].observations)
