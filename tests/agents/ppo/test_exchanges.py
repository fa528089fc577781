"""Gradients in shards: the same whoever computes which, and the unsharded one up to rounding."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from learner_kinds import KINDS, Kind
from loops import record_steps
from ppo_settings import ppo_config
from pretended_recorder import PretendedRecorder
from selection import only_by_default
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo import loss as loss_module
from hybridppo.agents.ppo.exchanges import MinibatchShards, RolloutShards, ShardedRollout, num_columns
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler

CONFIG = ppo_config(
    num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16), learning_rate=1e-3
)
EVERY = slice(None)
BY_SO_MANY = pytest.mark.parametrize(
    ("num_learners", "kind"),
    only_by_default(
        ("4-rows", "2-rows, autograd", "2-gru", "2-lstm, autograd", "2-frames", "2-pool"),
        (pytest.param(size, kind, id=f"{size}-{name}") for size in (2, 4) for name, kind in KINDS.items()),
    ),
)
SOME_BY_DEFAULT = pytest.mark.parametrize(
    "kind", only_by_default(("rows", "rows, autograd"), (pytest.param(kind, id=name) for name, kind in KINDS.items()))
)


def environments_of(config: PPOConfig, kind: Kind) -> Environments:
    options = EnvironmentOptions(vectorization="sync", **kind.options)
    return make_environments("CartPole-v1", config.num_envs, options)


def agent_of(config: PPOConfig, kind: Kind = KINDS["rows"]) -> PPO:
    environments = environments_of(config, kind)
    agent = PPO(environments.observation_space, environments.action_space, replace(config, **kind.config), seed=1)
    SingleDevice("cpu").prepare(agent)
    return agent


def rollouts_of(agent: PPO, kind: Kind = KINDS["rows"]) -> Iterator[Rollout]:
    """One after the other, as the agent is then."""
    noise = np.random.default_rng(2)
    sampler = Sampler(
        environments_of(agent.config, kind), agent.distribution, num_steps=agent.config.num_steps, env_seed=3,
        noise=noise, memory=agent.memory,
    )  # fmt: skip
    while True:
        with SingleDevice("cpu").sampling(agent) as actor:
            rollout = sampler.collect(actor)
        yield rollout.map(torch.clone)


def rollout_of(agent: PPO) -> Rollout:
    return next(rollouts_of(agent))


class Wire:
    """To the learners of all shards that `seen` has had the rows of, and back."""

    def __init__(self, num_shards: int, seen: Callable[[list[Tensor]], list[Tensor]] = lambda rows: rows) -> None:
        self._num_rows, self._seen = num_shards, seen
        self._rows: list[Tensor] = []

    def for_rows_of(self, agent: PPO) -> "Wire":
        self._rows = list(torch.zeros(self._num_rows, num_columns(agent.parameters)).unbind())
        return self

    def to_fill(self) -> list[Tensor]:
        return self._rows

    def filled(self) -> list[Tensor]:
        return self._seen(self._rows)


def share(agent: PPO, num_shards: int, mine: slice = EVERY, **wire: Any) -> PPO:
    exchange = Wire(len(range(num_shards)[mine]), **wire).for_rows_of(agent)
    agent.share(lambda: MinibatchShards(agent.parameters, exchange, num_shards=num_shards, mine=mine))
    return agent


@SOME_BY_DEFAULT
def test_many_updates_in_shards_are_those_of_whole_minibatches_up_to_rounding(kind: Kind) -> None:
    config = replace(CONFIG, num_epochs=1)
    whole, sharded = agent_of(config, kind), share(agent_of(config, kind), num_shards=4)
    rollout, before = next(rollouts_of(whole, kind)), whole.parameters.values.detach().clone()
    for _ in range(40):
        ours, theirs = sharded.update(rollout), whole.update(rollout)
        assert ours.keys() == theirs.keys()
    moved = whole.parameters.values - before
    assert moved.abs().max() > 0.01
    assert (sharded.parameters.values - whole.parameters.values).abs().max() <= 3e-6
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-3, atol=1e-5)


@BY_SO_MANY
def test_whoever_computes_which_the_bits_are_the_same(num_learners: int, kind: Kind) -> None:
    """Learners by turns: each exchange is given what the learner of all shards had at the same place."""
    exchanged: list[list[Tensor]] = []

    def kept(rows: list[Tensor]) -> list[Tensor]:
        exchanged.append([row.clone() for row in rows])
        return rows

    alone = share(agent_of(CONFIG, kind), num_shards=4, seen=kept)
    sampled = rollouts_of(alone, kind)
    learned = [(rollout, alone.update(rollout)) for rollout in (next(sampled), next(sampled))]
    each = 4 // num_learners
    for rank in range(num_learners):
        mine = slice(rank * each, (rank + 1) * each)
        theirs = iter(exchanged)

        def compared(rows: list[Tensor], mine: slice, theirs: Iterator[list[Tensor]]) -> list[Tensor]:
            everything = next(theirs)
            assert all(map(torch.equal, rows, everything[mine]))
            return everything

        learner = share(
            agent_of(CONFIG, kind), num_shards=4, mine=mine, seen=partial(compared, mine=mine, theirs=theirs)
        )
        for rollout, expected in learned:
            assert learner.update(rollout) == expected
        assert torch.equal(learner.parameters.values, alone.parameters.values)
        assert next(theirs, None) is None
    of_gradients = 2 * CONFIG.num_epochs * CONFIG.num_minibatches
    if kind.config.keys() <= {"fast_updates"}:
        assert len(exchanged) == 2 + of_gradients  # one of each update brings the critic's values
    assert len(exchanged) >= 2 + of_gradients


WAYS = {
    **{name: lambda agent: agent for name in ("alone", "compiled")},
    "recorded": lambda agent: recorded(agent),
    "sharded": lambda agent: share(agent, num_shards=3),
    "sharded on devices": lambda agent: with_shards_of_rollouts(agent),
}


def recorded(agent: PPO) -> PPO:
    record_steps(agent, PretendedRecorder())
    return agent


def with_shards_of_rollouts(agent: PPO) -> PPO:
    agent.share(lambda: RolloutShards(agent.parameters, 0, 1, lambda rows: rows))
    return agent


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, kind) for way in ("alone", "sharded") for kind in KINDS),
        pytest.param("compiled", "rows", marks=pytest.mark.extras),
        ("recorded", "rows, autograd"),
        ("sharded on devices", "rows, autograd"),
    ],
)
def test_an_edit_of_the_normalisation_of_advantages_takes_effect_everywhere(
    way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edited(advantages: Tensor, *, weights: Tensor | None = None, counted: Tensor | None = None) -> Tensor:
        return torch.zeros_like(advantages)

    config = replace(CONFIG, num_epochs=1, compiled_updates=way == "compiled")
    agent = WAYS[way](agent_of(config, KINDS[kind]))
    rollout = next(rollouts_of(agent, KINDS[kind]))
    if way == "sharded on devices":
        rollout = ShardedRollout.of([rollout])
    monkeypatch.setattr(loss_module.normalize, "__code__", edited.__code__)
    assert agent.update(rollout)["policy_loss"] == 0.0
    monkeypatch.undo()
    assert agent.update(rollout)["policy_loss"] != 0.0


def test_values_of_more_rows_than_there_are_parameters_come_in_pieces() -> None:
    config = replace(CONFIG, hidden_sizes=(), num_steps=64)  # 15 parameters, and 5 numbers that are measured
    exchanges = []
    sharded = share(agent_of(config), num_shards=3, seen=lambda rows: exchanges.append(len(rows[0])) or rows)
    rollout = rollout_of(sharded)
    rows = rollout.observations.flatten(0, 1)
    steps = sharded.loop()
    assert torch.equal(
        steps.values(rows), torch.cat([steps.backend.values(part) for part in rows.tensor_split([86, 173])])
    )
    assert len(rows) == 260
    assert exchanges == [20] * 5
    assert steps.values(rows[:0]).shape == (0,)


def test_the_number_of_shards_is_part_of_the_arithmetic_and_their_order_too() -> None:
    def after(num_shards: int, **wire: Any) -> Tensor:
        agent = share(agent_of(CONFIG), num_shards, **wire)
        agent.update(rollout_of(agent))
        return agent.parameters.values.detach()

    assert not torch.equal(after(2), after(4))
    assert not torch.equal(after(4), after(4, seen=lambda rows: rows[::-1]))


def test_a_shard_without_steps_counts_for_nothing() -> None:
    agent = share(agent_of(CONFIG), num_shards=64)
    agent.update(rollout_of(agent))  # of minibatches of 32
    assert agent.parameters.values.isfinite().all()


def test_no_step_is_made_where_all_are_asked_to_stop() -> None:
    from hybridppo.system.interruption import Stopped

    stops: list[bool] = []
    agent = share(agent_of(CONFIG), num_shards=2, seen=lambda rows: stops.append(True) or rows)
    agent.should_stop = lambda: len(stops) == 2
    rollout, before = rollout_of(agent), agent.parameters.values.detach().clone()
    with pytest.raises(Stopped):
        agent.update(rollout)
    assert len(stops) == 2  # values, and one minibatch
    assert torch.equal(agent.parameters.values, before)
