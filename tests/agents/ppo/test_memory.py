"""Agents with a memory: the cells, the state where episodes end, and what is learned from."""

from dataclasses import replace
from functools import partial
from itertools import cycle, product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from loops import loop_of
from ppo_settings import ppo_config
from sampling import sampler_of
from selection import only_by_default
from stop_after import assert_stopped_update_changes_nothing
from torch import Tensor, nn
from toy_agents import Matching, ScriptedAgents, TakingTurns
from toy_environments import (
    MODES,
    DelayedCopy,
    FaultyEnv,
    HighestAllowed,
    ScriptedEnv,
    TMaze,
    scripted_vector,
)  # fmt: skip

import hybridppo
from hybridppo import ConfigurationError, Mirrored, PPOConfig, SingleDevice
from hybridppo.agents import PPO
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.loss import Loss, LossInputs
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import EnvError
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.networks.recurrent import GRU, LSTM, Segments
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.assembly import make_sampler
from hybridppo.system.signals import Stopped

CELLS = ("lstm", "gru")
every_cell = pytest.mark.parametrize("cell", CELLS)
BOTH = (True, False)

SMALL = ppo_config(
    num_envs=4, num_steps=12, num_minibatches=2, num_epochs=2, hidden_sizes=(8, 8), recurrent="lstm", recurrent_size=6,
    sequence_length=5, learning_rate=1e-2,
)  # fmt: skip
SCRIPTS = (
    ((3, "truncated"), (2, "terminated"), (5, "both"), (1, "truncated")),
    ((1, "truncated"), (1, "terminated"), (1, "both"), (5, "truncated")),
    ((4, "truncated"), (4, "truncated"), (3, "terminated")),
    ((2, "both"), (6, "truncated"), (1, "terminated")),
)


def randomised(agent: PPO, seed: int = 2) -> PPO:
    """An agent whose parameters are not the initial ones, which would make every action equally probable."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        agent.parameters.values.add_(0.3 * torch.randn(agent.parameters.values.shape, generator=generator))
    return agent


# Cells


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_torch_is_told_whenever_gradients_are_wanted(cell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # cuDNN has no gradients otherwise, and networks are in eval mode even in updates.
    computed, told = getattr(torch, cell), list[bool]()

    def note(*arguments: Any, train: bool, **options: Any) -> Any:
        told.append(train)
        assert train == torch.is_grad_enabled()
        return computed(*arguments, train=train, **options)

    monkeypatch.setattr(torch, cell, note)
    config = ppo_config(
        recurrent=cell, recurrent_size=4, sequence_length=8, num_envs=2, num_steps=16, num_minibatches=2
    )
    hybridppo.train("CartPole-v1", config=config, total_steps=64, placement="cpu", progress=False)
    assert True in told


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_cell_is_torchs(cell: str) -> None:
    ours: Any = {"lstm": LSTM, "gru": GRU}[cell](3, 4, torch.Generator().manual_seed(0))
    theirs: Any = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell](3, 4)
    # torch has an LSTM's gates in the order input, forget, cell, output; ours has the three sigmoids together.
    order = [0, 1, 3, 2] if cell == "lstm" else [0, 1, 2]

    def in_its_order(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.split(4)[i] for i in order])

    with torch.no_grad():
        ours.bias.add_(torch.randn(ours.bias.shape))
        theirs.weight_ih.copy_(in_its_order(ours.weight_input))
        theirs.weight_hh.copy_(in_its_order(ours.weight_state))
        theirs.bias_ih.copy_(in_its_order(ours.bias))
        theirs.bias_hh.zero_()
        if cell == "gru":
            ours.bias_state.add_(torch.randn(4))
            theirs.bias_hh[8:] = ours.bias_state
    inputs, state = torch.randn(5, 3), torch.randn(5, ours.state_size)
    expected = theirs(inputs, state.split(4, dim=1) if cell == "lstm" else state)
    found = ours.step(inputs, state, ours.parameters_of_torch())
    torch.testing.assert_close(found, torch.cat(expected, dim=1) if cell == "lstm" else expected)
    torch.testing.assert_close(ours.outputs(inputs[None], state)[0], found[:, :4])


def test_an_lstm_remembers_at_first() -> None:
    bias = LSTM(3, 4, torch.Generator().manual_seed(0)).bias
    assert bias.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


BOX, MASKED = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(4)
SPACES: dict[str, tuple[gym.Space, gym.Space]] = {
    "discrete": (BOX, gym.spaces.Discrete(3)),
    "continuous": (BOX, gym.spaces.Box(-1.0, 1.0, (2,))),
    "image": (gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), gym.spaces.Discrete(3)),
    "image and numbers": (
        gym.spaces.Dict(image=gym.spaces.Box(0, 255, (36, 36, 1), np.uint8), numbers=BOX),
        gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1.0, 1.0, (2,)))),
    ),
}


def observations_of(space: gym.Space, num_steps: int, num_envs: int) -> np.ndarray:
    from hybridppo.spaces.observations import ObservationEncoder

    encode = ObservationEncoder(space)
    space.seed(5)
    rows = [encode.one(space.sample()) for _ in range(num_steps * num_envs)]
    return np.stack(rows).reshape(num_steps, num_envs, *encode.shape)


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("spaces", SPACES)
@every_cell
def test_numpys_actor_is_torchs(cell: Any, spaces: str, normalises: bool) -> None:
    observation_space, action_space = SPACES[spaces]
    config = replace(SMALL, recurrent=cell, normalize_observations=normalises)
    agent = randomised(PPO(observation_space, action_space, config, seed=1))
    observations = observations_of(observation_space, 4, 11)
    if normalises and agent.normalization.observations is not None:
        normalizer = agent.normalization.observations
        normalizer.merge(*normalizer.moments_of(torch.from_numpy(observations[0])))
    form = twin_of(agent.actor)
    assert form is not None
    actor: Any = form.actor([array.numpy() for array in arrays_of(agent.actor)])
    state = torch.randn(11, config.memory.state_size, generator=torch.Generator().manual_seed(3))
    starts = torch.zeros(4, 11, dtype=torch.bool)
    starts[2, 3:5] = True
    with torch.no_grad():
        expected, states = agent.actor(torch.from_numpy(observations), state, starts)
    actor.state = state.numpy()
    one_by_one = [form.actor([array.numpy() for array in arrays_of(agent.actor)]) for _ in range(11)]
    for i, single in enumerate(one_by_one):
        single.state = state[i : i + 1].numpy()
    for step in range(4):
        actor.forget(starts[step].numpy())
        found = actor(observations[step])
        torch.testing.assert_close(torch.from_numpy(found), expected[step], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(torch.from_numpy(actor.state), states[step], rtol=1e-3, atol=1e-4)
        for i, single in enumerate(one_by_one):  # the same bits, whoever else is there
            single.forget(starts[step, i : i + 1].numpy())
            np.testing.assert_array_equal(single(observations[step, i : i + 1])[0], found[i])


# What is learned from


def rollouts_of(config: PPOConfig, env: Any, number: int, **options: Any) -> tuple[PPO, list[Rollout]]:
    """An agent, and what it sampled without learning."""
    made = make_environments(env, config.num_envs, EnvironmentOptions(**options))
    agent = randomised(PPO(made.observation_space, made.action_space, config, seed=1))
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    sampler = make_sampler(
        env, made, agent, placement, num_steps=config.num_steps, num_episodes=config.episodes_per_rollout,
        num_workers=0, options=EnvironmentOptions(**options), env_seed=0, noise=np.random.default_rng(0),
    )  # fmt: skip
    rollouts = []
    try:
        for _ in range(number):
            with placement.sampling(agent) as actor:
                rollouts.append(sampler.collect(actor).map(torch.clone))
    finally:
        sampler.close()
    return agent, rollouts


def batch_of(agent: PPO, steps: Any, rollout: Rollout) -> Batch:
    agent.critic_memory.fit(rollout.rewards.shape[1])
    batch: Batch = agent.batch_of(rollout, loop_of(agent, steps))
    return batch


@pytest.mark.parametrize("recurrent", [None, "lstm"])
def test_a_column_of_a_subclass_follows_its_rows(recurrent: Any) -> None:
    class Marking(PPO):
        def prepared(self, *arguments: Any, **options: Any) -> Batch:
            steps = super().prepared(*arguments, **options)
            return steps.with_columns(marks=torch.stack((steps.log_probs, steps.values), -1))

        def loss(self, inputs: LossInputs, clip_range: Any) -> Loss:
            assert [*inputs.columns] == ["marks"]
            assert torch.equal(inputs.columns["marks"][:, 1], inputs.old_values)
            return super().loss(inputs, clip_range)

    agent, (rollout,) = rollouts_of(replace(SMALL, recurrent=recurrent), partial(TMaze, 3), 1)
    marking = Marking(agent.observation_space, agent.action_space, agent.config, seed=1)
    if marking.critic_memory is not None:
        marking.critic_memory.fit(rollout.rewards.shape[1])
    batch = marking.batch_of(rollout, marking.loop())
    orders = batch.orders(np.random.default_rng(0), 2)
    sizes = marking.minibatch_sizes(batch)
    for epoch in batch.epochs(orders, sizes, normalizes=True):
        for minibatch in epoch.split(sizes):
            steps: Any = minibatch.steps()
            assert torch.equal(steps.marks, torch.stack((steps.log_probs, steps.values), -1))
    marking.update(rollout)


def in_turns(scripts: Any = SCRIPTS[:3]) -> Any:
    return TakingTurns(ScriptedAgents(scripts))


WAYS: dict[str, tuple[PPOConfig, Any, dict[str, Any]]] = {
    **{mode.value: (SMALL, partial(scripted_vector, SCRIPTS, mode), {}) for mode in MODES},
    "one by one": (SMALL, partial(ScriptedEnv, SCRIPTS[0]), {}),
    "masks": (SMALL, HighestAllowed, {"action_masks": True}),
    "agents in turn": (replace(SMALL, num_steps=25), lambda: TakingTurns(Matching()), {}),
    "whole episodes": (
        replace(SMALL, num_envs=1, episodes_per_rollout=3, num_minibatches=1), partial(ScriptedEnv, SCRIPTS[0]), {}
    ),
    "sequences of one step": (replace(SMALL, sequence_length=1), partial(TMaze, 3), {}),
    "sequences longer than a rollout": (replace(SMALL, sequence_length=50), partial(TMaze, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "way"),
    only_by_default(
        [*(f"{cell}, {way}" for cell, way in zip(cycle(CELLS), WAYS)), *(f"{cell}, masks" for cell in CELLS)],
        product(CELLS, WAYS),
    ),
)
def test_the_learner_sees_what_the_actor_remembered(cell: Any, way: str) -> None:
    """Before the agent has changed, every action is as probable to the learner as when it was taken."""
    config, env, options = WAYS[way]
    agent, rollouts = rollouts_of(replace(config, recurrent=cell), env, 5, **options)
    num_starts = 0
    for rollout in rollouts:
        batch = batch_of(agent, Backend, rollout)
        steps = batch.steps()
        assert len(steps) == len(rollout.valid_rows)
        found = Backend(agent).log_probs(batch)
        torch.testing.assert_close(batch.only_steps(found), steps.log_probs, rtol=0.0, atol=2e-6)
        num_starts += int(rollout.starts.sum())
    assert num_starts > 5
    assert batch.starts is not None
    states = torch.zeros_like(batch.actor_states)
    forgotten = batch.with_columns(actor_states=states, starts=np.zeros_like(batch.starts))
    found = Backend(agent).log_probs(forgotten)
    moved = (batch.only_steps(found) - steps.log_probs).abs().max()
    assert way == "whole episodes" or float(moved) > 1e-3  # it does see it


@pytest.mark.parametrize("mode", MODES)
@every_cell
def test_values_are_those_of_one_long_pass_over_each_episode(cell: Any, mode: Any) -> None:
    """This also holds across rollouts, and for the final observation of an episode that was cut short."""
    agent, rollouts = rollouts_of(replace(SMALL, recurrent=cell), partial(scripted_vector, SCRIPTS, mode), 4)
    agent.critic_memory.critic_state = torch.zeros_like(agent.critic_memory.critic_state)
    agent.critic_memory.fit(4)
    state = torch.zeros(4, SMALL.memory.state_size if cell == "lstm" else 6)
    for rollout in rollouts:
        values, final_values = agent.critic_memory.values(
            agent.critic_network, rollout.observations, rollout.final_observations, rollout
        )
        starts = torch.cat((rollout.starts, torch.zeros(1, 4, dtype=torch.bool)))
        finals = {}
        with torch.no_grad():
            for step, rows in enumerate(rollout.observations):
                found, after = agent.critic(rows[None], state, starts[step : step + 1])
                torch.testing.assert_close(values[step], found[0, :, 0], rtol=1e-4, atol=1e-5)
                if step < SMALL.num_steps:
                    state = after[0]
                    for k, row in enumerate(rollout.final_rows.tolist()):
                        if row // 4 == step:
                            env = row % 4
                            seen = rollout.final_observations[k][None, None]
                            finals[k], _ = agent.critic(seen, state[env : env + 1], torch.zeros(1, 1, dtype=torch.bool))
        for k, final in finals.items():
            torch.testing.assert_close(final_values[k], final[0, 0, 0], rtol=1e-4, atol=1e-5)
        assert len(finals) == len(rollout.final_rows)
        agent.critic_memory.learned()


@pytest.mark.parametrize(
    ("cell", "num_steps"),
    only_by_default(("lstm, 1", "gru, 1", "lstm, 2", "gru, 2", "lstm, 6"), product(CELLS, (1, 2, 6, 25))),
)
def test_values_of_agents_in_turn_are_those_of_one_long_pass(cell: Any, num_steps: int) -> None:
    """Over each agent's own observations, also for steps that were open when a rollout ended."""
    config = replace(SMALL, recurrent=cell, num_steps=12 * num_steps, num_envs=1, num_minibatches=1)
    agent, rollouts = rollouts_of(config, in_turns, 5 if num_steps < 25 else 2)
    agent.critic_memory.fit(3)
    size, num_cut = config.memory.state_size, 0
    actors, critics = torch.zeros(3, 1, size), torch.zeros(3, 1, size)
    for rollout in rollouts:
        values, final_values = agent.critic_memory.values(
            agent.critic_network, rollout.observations, rollout.final_observations, rollout
        )
        assert rollout.turns is not None
        assert rollout.states is not None
        finals = {row: k for k, row in enumerate(rollout.final_rows.tolist())}
        num_rows = len(rollout.rewards)
        ended = rollout.terminated | rollout.truncated
        for column, turns in enumerate(rollout.turns[0].tolist()):
            for step in range(turns):  # the last may be open
                row = rollout.observations[step, column][None, None]
                starts = rollout.starts[step, column] if step < num_rows else ended[step - 1, column]
                starts = starts.view(1, 1)
                if step % config.sequence_length == 0 and step < num_rows:
                    state = rollout.states[step // config.sequence_length, column]
                    torch.testing.assert_close(state, torch.where(starts[0], 0.0, actors[column])[0])
                with torch.no_grad():
                    _, actors[column] = agent.actor(row, actors[column], starts)
                    found, critics[column] = agent.critic(row, critics[column], starts)
                torch.testing.assert_close(values[step, column], found[0, 0, 0], rtol=1e-4, atol=1e-5)
                if (k := finals.get(3 * step + column)) is not None:
                    num_cut += step == turns - 2 and not bool(starts)
                    seen = rollout.final_observations[k][None, None]
                    with torch.no_grad():
                        final, _ = agent.critic(seen, critics[column], torch.zeros(1, 1, dtype=torch.bool))
                    torch.testing.assert_close(final_values[k], final[0, 0, 0], rtol=1e-4, atol=1e-5)
        agent.critic_memory.learned()
        torch.testing.assert_close(agent.critic_memory.critic_state, critics[:, 0], rtol=1e-4, atol=1e-5)
    assert num_cut or num_steps == 1


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@every_cell
def test_turns_of_a_parallel_environment_are_remembered_like_its_steps(cell: Any, end: str) -> None:
    """Rewards, ends, states before each sequence, and values; the last step of a rollout may be open."""
    script = [[(5, end)], [(5, end)]]
    config = replace(SMALL, recurrent=cell)
    agent, parallel = rollouts_of(config, partial(ScriptedAgents, script), 4)
    twin, turns = rollouts_of(replace(config, num_steps=2 * config.num_steps), partial(in_turns, script), 4)
    assert torch.equal(agent.parameters.values, twin.parameters.values)
    for each in (agent, twin):
        each.critic_memory.fit(8)
    for expected, found in zip(parallel, turns, strict=True):
        number = len(found.rewards)
        assert number in (config.num_steps - 1, config.num_steps)
        for name in ("observations", "rewards", "terminated", "starts"):
            assert torch.equal(getattr(found, name)[:number], getattr(expected, name)[:number]), name
        torch.testing.assert_close(found.states, expected.states, rtol=0.0, atol=0.0)
        values = [
            each.critic_memory.values(each.critic_network, rollout.observations, rollout.final_observations, rollout)[0]
            for each, rollout in ((agent, expected), (twin, found))
        ]
        num_values = min(map(len, values)) - (number == config.num_steps)
        torch.testing.assert_close(values[1][:num_values], values[0][:num_values])
        for each in (agent, twin):
            each.critic_memory.learned()
        torch.testing.assert_close(twin.critic_memory.critic_state, agent.critic_memory.critic_state)


class StopsAt:
    """A flag that reads 0 this many times, and then 1."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __getitem__(self, index: int) -> int:
        self._left -= 1
        return int(self._left < 0)


@pytest.mark.parametrize("paused_at", [1, 6, 11, 23])
def test_turns_that_are_paused_and_loaded_go_on_with_what_they_remembered(paused_at: int) -> None:
    config = replace(SMALL, num_steps=25)
    made = make_environments(lambda: TakingTurns(Matching()), config.num_envs)
    agent = randomised(PPO(made.observation_space, made.action_space, config, seed=1))

    def sampler() -> Any:
        environments = make_environments(lambda: TakingTurns(Matching()), config.num_envs)
        return sampler_of(environments, agent.distribution, num_steps=config.num_steps, memory=agent.memory)

    placement = SingleDevice("cpu")
    placement.prepare(agent)
    whole, paused, loaded = sampler(), sampler(), sampler()
    with placement.sampling(agent) as actor:
        whole.collect(actor)
        expected = whole.collect(actor)
        paused.collect(actor)
        paused._environments.stop = StopsAt(paused_at)
        with pytest.raises(Stopped):
            paused.collect(actor)
        paused._environments.stop = bytearray(1)
        assert loaded.load_state(*paused.state(), env_seed=0) is None
        found = loaded.collect(actor)
    for name, tensor in expected.columns().items():
        if name != "states":  # some have no steps
            assert torch.equal(found.columns()[name], tensor), name
    batches = [batch_of(agent, Backend, rollout) for rollout in (expected, found)]
    assert torch.equal(batches[0].actor_states, batches[1].actor_states)
    for each in (whole, paused, loaded):
        each.close()


def test_rows_that_are_no_steps_change_nothing() -> None:
    """The contents of unused rows do not matter."""
    agent, rollouts = rollouts_of(SMALL, partial(scripted_vector, SCRIPTS, MODES[0]), 2)
    batch = batch_of(agent, Backend, rollouts[-1])
    assert not batch.valid.all()
    expected = Backend(agent).gradient(batch, 0.2)
    gradient = agent.parameters.gradient.clone()
    other = batch.map(torch.clone)
    for column in (other.log_probs, other.values, other.advantages, other.returns):
        column[torch.from_numpy(~batch.valid)] = 1e6
    found = Backend(agent).gradient(other, 0.2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(agent.parameters.gradient, gradient)


SEGMENTS: dict[str, tuple[int, int, list[tuple[int, int]]]] = {
    "no start": (6, 3, []),
    "starts in the middle": (6, 3, [(2, 0), (5, 0), (1, 2)]),
    "starts at the beginning": (6, 3, [(0, 1), (0, 2)]),
    "a start in every step": (4, 2, [(step, column) for step in range(4) for column in range(2)]),
    "one step": (1, 3, [(0, 1)]),
    "one sequence": (9, 1, [(3, 0), (4, 0)]),
}


@pytest.mark.parametrize(("spaces", "recurrent_size"), [("discrete", 6), ("image and numbers", 1)])
@pytest.mark.parametrize("case", SEGMENTS)
@every_cell
def test_segments_are_what_is_computed_step_by_step(cell: Any, case: str, spaces: str, recurrent_size: int) -> None:
    """Outputs and gradients of sequences that begin with states carried over."""
    num_steps, num_columns, begin = SEGMENTS[case]
    config = replace(SMALL, recurrent=cell, recurrent_size=recurrent_size)
    actor: Any = randomised(PPO(*SPACES[spaces], config, seed=1)).actor_network
    rows = torch.from_numpy(observations_of(SPACES[spaces][0], num_steps, num_columns))
    state = torch.randn(num_columns, config.memory.state_size, generator=torch.Generator().manual_seed(3))
    starts = torch.zeros(num_steps, num_columns, dtype=torch.bool)
    for step, column in begin:
        starts[step, column] = True
    weights = torch.randn(num_steps, num_columns, 1, generator=torch.Generator().manual_seed(4))
    found = {}
    for way in ("step by step", "segments"):
        if way == "segments":
            outputs = actor.of_sequences(rows, state, Segments(starts.numpy(), rows.device))
        else:
            outputs = actor(rows, state, starts)[0]
        gradients = torch.autograd.grad((weights * outputs).sum(), list(actor.parameters()), allow_unused=True)
        found[way] = outputs, [gradient for gradient in gradients if gradient is not None]
    torch.testing.assert_close(found["segments"], found["step by step"], rtol=1e-4, atol=1e-4)


def test_a_gradient_reaches_back_to_the_first_step_of_a_sequence() -> None:
    actor: Any = randomised(PPO(BOX, gym.spaces.Discrete(3), SMALL, seed=1)).actor_network
    rows = torch.randn(5, 2, 3, requires_grad=True)
    starts = np.zeros((5, 2), np.bool_)
    starts[2, 1] = True
    outputs = actor.of_sequences(rows, torch.zeros(2, SMALL.memory.state_size), Segments(starts, rows.device))
    outputs[-1].sum().backward()
    reached = rows.grad.abs().sum(-1) > 0.0
    assert reached.tolist() == [[True, False], [True, False], [True, True], [True, True], [True, True]]


# Training


def train(config: PPOConfig = SMALL, env: Any = "CartPole-v1", **options: Any) -> Any:
    arguments = {"total_steps": 48 * 5, "seed": 0, "placement": SingleDevice("cpu"), "vectorization": "sync"}
    return hybridppo.train(env, config=config, progress=False, **{**arguments, **options})


@pytest.mark.parametrize(
    ("lost", "normalizes"),
    only_by_default(("0, True", "7, False", "11, True", "12, False"), product((0, 7, 11, 12), BOTH)),
)
def test_sequences_without_a_step_are_left_out(lost: int, normalizes: bool) -> None:
    """With minibatches of one sequence, and columns whose first rows are not steps."""
    config = replace(SMALL, num_minibatches=12, normalize_advantage=normalizes)
    agent, rollouts = rollouts_of(config, partial(TMaze, 3), 1)
    rollout = replace(rollouts[0], valid_rows=torch.tensor([row for row in range(48) if row % 4 or row >= 4 * lost]))
    metrics = agent.update(rollout)
    assert all(np.isfinite(value) for value in metrics.values())
    assert agent.parameters.values.isfinite().all()


def test_a_rollout_without_a_step_teaches_nothing_and_ends_nothing() -> None:
    config = replace(SMALL, normalize_observations=True, normalize_rewards=True)
    agent, rollouts = rollouts_of(config, partial(TMaze, 3), 2)
    before = agent.parameters.values.detach().clone()
    metrics = agent.update(replace(rollouts[0], valid_rows=torch.zeros(0, dtype=torch.int64)))
    assert torch.equal(agent.parameters.values, before)
    assert np.isnan(metrics["policy_loss"])
    assert all(tensor.isfinite().all() for tensor in agent.state()[0].values())
    assert np.isfinite(agent.update(rollouts[1])["policy_loss"])


@pytest.mark.parametrize(
    "distributed",
    ["local", pytest.param("multi:2", marks=pytest.mark.slow), pytest.param("central:2", marks=pytest.mark.extras)],
)
def test_restarts_and_agents_that_leave_end_no_training(distributed: str) -> None:
    # Minibatches of a single sequence; of two, one for each of two learners.
    config = replace(SMALL, num_steps=16, sequence_length=4, num_minibatches=8 if distributed == "multi:2" else 16)
    options: Any = {"config": config, "total_steps": 64 * 2, "distributed": distributed, "vectorization": "auto"}
    faulty = partial(FaultyEnv, failing_now_and_then, 10)
    result = train(env=faulty, on_env_error="restart", **options)
    assert result.metrics["env_restarts"] > 0
    if distributed == "local":
        result = train(env=partial(ScriptedAgents, [[(16, "terminated")], [(1, "terminated")]]), **options)
        assert np.isfinite(result.metrics["policy_loss"])


def failing_now_and_then(env: FaultyEnv, result: Any) -> Any:
    if env.steps % 19 == 18:
        raise RuntimeError("stuck")
    return result


def test_an_update_that_is_stopped_changes_nothing() -> None:
    agent, rollouts = rollouts_of(replace(SMALL, normalize_rewards=True), partial(TMaze, 3), 2)
    agent.update(rollouts[0])
    assert_stopped_update_changes_nothing(agent, rollouts[1], after=3)


@every_cell
def test_acting_step_by_step_is_what_evaluation_does(cell: Any) -> None:
    agent = train(replace(SMALL, recurrent=cell)).agent
    env = gym.make("CartPole-v1")
    found = []
    for episode in range(3):
        observation, _ = env.reset(seed=episode)
        state, total, is_over = None, 0.0, False
        while not is_over:
            action, state = agent.act(observation, state=state)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, is_over = total + float(reward), terminated or truncated
        found.append(total)

    class Numbered(gym.Wrapper):
        def reset(self, **options: Any) -> Any:
            return self.env.reset(seed=next(numbers))

    numbers = iter(range(100))
    evaluation = hybridppo.evaluate_agent(agent, lambda: Numbered(gym.make("CartPole-v1")), episodes=3, progress=False)
    assert sorted(evaluation.returns) == sorted(found)


def test_forgetting_is_never_silent() -> None:
    agent = train().agent
    observation = np.zeros(4, np.float32)
    with pytest.raises(EnvError, match=r"is recurrent, .*action, state = agent.act"):
        agent.act(observation)
    _, state = agent.act(observation, state=None)
    assert state.shape == (12,)
    assert state.dtype == np.float32
    for wrong in (state[:3], state.astype(np.float64), np.full(12, np.nan, np.float32), 3):
        with pytest.raises(EnvError, match="state must be what the last call of act returned"):
            agent.act(observation, state=wrong)
    plain = PPO(BOX, gym.spaces.Discrete(2), ppo_config())
    assert plain.act(BOX.sample(), state=None)[1] is None
    with pytest.raises(EnvError, match="state must be None for an agent that is not recurrent"):
        plain.act(BOX.sample(), state=state)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a cell that there is not": ({"recurrent": "rnn"}, "recurrent must be None or one of lstm, gru, got 'rnn'"),
    "no size": ({"recurrent_size": 0}, "recurrent_size must be at least 1"),
    "no steps": ({"sequence_length": 0}, "sequence_length must be at least 1"),
    "more minibatches than sequences": ({"num_minibatches": 32, "num_steps": 16}, "must be at most the sequences of a"),
    "graphs": ({"cuda_graphs": True}, "cuda_graphs does not work with recurrent: leave one out"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(ConfigurationError, match=message):
        replace(SMALL, **options)


def test_networks_of_ones_own_have_none() -> None:
    def networks(*_: Any) -> Any:
        return nn.Linear(4, 2), nn.Linear(4, 1)

    with pytest.raises(ConfigurationError, match="recurrent='lstm' is for the library's networks"):
        train(networks=networks)


# Learning


@pytest.mark.slow
@pytest.mark.parametrize("env", [partial(TMaze, 10), partial(DelayedCopy, 10)], ids=["t-maze", "delayed copy"])
@every_cell
def test_what_must_be_remembered_is_learned(cell: Any, env: Any) -> None:
    config = ppo_config(  # nothing is discounted on its way back, and gradients go through whole episodes
        num_envs=16, num_steps=64, num_epochs=8, num_minibatches=8, learning_rate=1e-3, anneal_learning_rate=True,
        gamma=1.0, gae_lambda=1.0, clip_range_vf=None, recurrent=cell, recurrent_size=128, sequence_length=64,
        hidden_sizes=(64,),
    )  # fmt: skip
    result = hybridppo.train(
        env, total_steps=90_000, seed=0, config=config, placement=Mirrored("cpu", "cpu"), progress=False,
        evaluation_episodes=100,
    )  # fmt: skip
    assert result.evaluation.return_mean > 0.95
