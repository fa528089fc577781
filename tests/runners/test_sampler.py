"""Rollouts hold exactly what happened, in every autoreset mode; episode ends above all."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from sampling import collecting, log_probs_of, sampler_of
from torch import Tensor, nn
from toy_environments import (
    MODES,
    Script,
    ScriptedRow,
    scripted_reward,
    scripted_rows,
    scripted_vector,
)

from hybridppo.agents import PPO
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.vector import wrap
from hybridppo.rollouts.advantages import gae, next_values
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.sampler import Sampler
from hybridppo.system.signals import Stopped

SCRIPTS: tuple[Script, ...] = (
    ((3, "truncated"), (2, "terminated"), (5, "both"), (1, "truncated")),
    ((1, "truncated"), (1, "terminated"), (1, "both"), (5, "truncated")),
    ((4, "truncated"), (4, "truncated"), (3, "terminated")),
    ((2, "both"), (6, "truncated"), (1, "terminated")),
)
NUM_ENVS, NUM_STEPS, NUM_ROLLOUTS = len(SCRIPTS), 4, 16

in_every_mode = pytest.mark.parametrize("mode", MODES)


class FixedActor:
    """The same outputs for the same observations; remembers every observation it saw."""

    version = 7

    def __init__(self, output_size: int) -> None:
        self.seen: list[np.ndarray] = []
        self._output_size = output_size

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.seen.append(observations.copy())
        return np.sin(observations.sum(1, keepdims=True) + np.arange(self._output_size)).astype(np.float32)


class UniformActor(FixedActor):
    """An actor with constant outputs."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.zeros((len(observations), self._output_size), dtype=np.float32)


class DyadicCritic(nn.Module):
    """`episode / 2 + step + 3`: with powers of two as discounts, all arithmetic on it is exact."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations @ torch.tensor([0.5, 1.0]) + 3.0


def make_sampler(vector: Any, num_steps: int = NUM_STEPS, noise_seed: int = 0) -> tuple[Sampler, FixedActor]:
    environments = wrap(vector)
    sampler = sampler_of(environments, num_steps=num_steps, noise_seed=noise_seed)
    return sampler, FixedActor(distribution_for(environments.action_space).output_size)


def collect_with_expectation(
    mode: AutoresetMode, actor: FixedActor | None = None
) -> Iterator[tuple[Rollout, list[list[ScriptedRow]]]]:
    """Consecutive rollouts, each with the rows it must hold, `rows[t][n]`."""
    sampler, own = make_sampler(scripted_vector(SCRIPTS, mode))
    rows = [scripted_rows(script, mode) for script in SCRIPTS]
    for _ in range(NUM_ROLLOUTS):
        yield sampler.collect(actor or own), [[next(of_env) for of_env in rows] for _ in range(NUM_STEPS)]


def field(rows: list[list[ScriptedRow]], name: str) -> np.ndarray:
    """`[T, N, ...]`."""
    return np.array([[getattr(row, name) for row in of_step] for of_step in rows])


# What a rollout holds


def test_a_rollout_written_out_by_hand() -> None:
    script: Script = ((2, "truncated"), (1, "terminated"))
    expected = {
        # mode: observations as (episode, steps done), rewards, valid rows, final rows
        AutoresetMode.NEXT_STEP: ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)], [1, 2, 0, 11, 0], [0, 1, 3], []),
        AutoresetMode.SAME_STEP: (
            [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)],
            [1, 2, 11, 21, 22],
            [0, 1, 2, 3, 4],
            [1, 4],
        ),
    }
    expected[AutoresetMode.DISABLED] = expected[AutoresetMode.SAME_STEP]
    for mode, (observations, rewards, valid_rows, final_rows) in expected.items():
        sampler, actor = make_sampler(scripted_vector([script], mode), num_steps=5)
        rollout = sampler.collect(actor)
        assert [tuple(observation) for observation in rollout.observations[:, 0].tolist()] == observations
        assert rollout.rewards[:, 0].tolist() == rewards
        assert rollout.valid_rows.tolist() == valid_rows
        assert rollout.final_rows.tolist() == final_rows
        assert rollout.final_observations.tolist() == [[0, 2], [2, 2]][: len(final_rows)]


def test_the_scripts_end_episodes_at_every_row() -> None:
    for mode in MODES:
        found: dict[str, set[int]] = {"truncated": set(), "terminated": set(), "both": set()}
        for _, rows in collect_with_expectation(mode):
            terminated, truncated = field(rows, "terminated"), field(rows, "truncated")
            found["truncated"] |= set(np.nonzero(truncated & ~terminated)[0].tolist())
            found["terminated"] |= set(np.nonzero(terminated & ~truncated)[0].tolist())
            found["both"] |= set(np.nonzero(terminated & truncated)[0].tolist())
        assert found == {end: set(range(NUM_STEPS)) for end in found}


@in_every_mode
def test_rows_are_exact_and_their_observations_those_acted_upon(mode: AutoresetMode) -> None:
    actor, last = FixedActor(2), None
    for rollout, rows in collect_with_expectation(mode, actor):
        for name in ("rewards", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(rollout, name), field(rows, name.removesuffix("s")), name)
        np.testing.assert_array_equal(rollout.observations[:-1], field(rows, "observation"))
        np.testing.assert_array_equal(rollout.observations[:-1], actor.seen)
        np.testing.assert_array_equal(rollout.valid_rows, np.flatnonzero(field(rows, "is_step")))
        assert rollout.valid_rows.dtype == torch.int64
        assert last is None or torch.equal(rollout.observations[0], last)
        last = rollout.observations[-1].clone()
        actor.seen.clear()


@in_every_mode
def test_every_truncated_step_finds_its_true_final_observation(mode: AutoresetMode) -> None:
    for rollout, rows in collect_with_expectation(mode):
        following = rollout.observations[1:].clone()
        following.view(-1, 2)[rollout.final_rows] = rollout.final_observations
        truncated = field(rows, "truncated") & ~field(rows, "terminated")
        np.testing.assert_array_equal(following[truncated], field(rows, "following")[truncated])
        if mode is AutoresetMode.NEXT_STEP:
            assert len(rollout.final_rows) == 0
        else:
            np.testing.assert_array_equal(rollout.final_rows, np.flatnonzero(truncated))


@in_every_mode
def test_nothing_is_bootstrapped_where_both_flags_are_set(mode: AutoresetMode) -> None:
    for rollout, rows in collect_with_expectation(mode):
        both = field(rows, "terminated") & field(rows, "truncated")
        assert not set(rollout.final_rows.tolist()) & set(np.flatnonzero(both).tolist())
        advantages = advantages_of(rollout, DyadicCritic())
        values = DyadicCritic()(rollout.observations[:-1])
        assert torch.equal(advantages[both], rollout.rewards[both] - values[both])


@in_every_mode
def test_only_real_steps_are_counted(mode: AutoresetMode) -> None:
    vector = scripted_vector(SCRIPTS, mode)
    sampler, actor = make_sampler(vector)
    for _ in range(NUM_ROLLOUTS):
        before = sampler.counts.env_steps
        rollout = sampler.collect(actor)
        assert sampler.counts.env_steps - before == len(rollout.valid_rows)
    assert sampler.counts.env_steps == sum(len(env.actions) for env in vector.envs)


@in_every_mode
def test_statistics_are_of_whole_episodes(mode: AutoresetMode) -> None:
    sampler, actor = make_sampler(scripted_vector(SCRIPTS, mode))
    returns: list[float] = []
    lengths: list[int] = []
    running = np.zeros((2, NUM_ENVS))
    rows = [scripted_rows(script, mode) for script in SCRIPTS]
    for _ in range(NUM_ROLLOUTS):
        sampler.collect(actor)
        for _ in range(NUM_STEPS):
            for env, of_env in enumerate(rows):
                row = next(of_env)
                running[:, env] += row.reward, row.is_step
                if row.terminated or row.truncated:
                    returns.append(running[0, env])
                    lengths.append(running[1, env])
                    running[:, env] = 0
        assert sampler.counts.statistics.episodes == len(returns)
        assert sampler.counts.statistics.return_mean == pytest.approx(np.mean(returns))
        assert sampler.counts.statistics.length_mean == pytest.approx(np.mean(lengths))


def test_a_rollout_carries_its_actors_version() -> None:
    sampler, actor = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP))
    assert sampler.collect(actor).version == actor.version


# Advantages, end to end

GAMMA = GAE_LAMBDA = 0.5


def advantages_of(rollout: Rollout, critic: nn.Module) -> Tensor:
    values = critic(rollout.observations)
    following = next_values(
        values=values, final_rows=rollout.final_rows, final_values=critic(rollout.final_observations)
    )
    return gae(
        rewards=rollout.rewards,
        values=values[:-1],
        next_values=following,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
    )


def true_advantages(script: Script, num_episodes: int) -> dict[tuple[int, int], float]:
    """For each (episode, step), worked out one step at a time from the end of each episode."""

    def value(episode: int, step: int) -> float:
        return episode / 2 + step + 3

    advantages: dict[tuple[int, int], float] = {}
    for episode in range(num_episodes):
        length, end = script[episode % len(script)]
        advantage = 0.0
        for step in reversed(range(length)):
            is_terminal = step + 1 == length and end != "truncated"
            following = 0.0 if is_terminal else value(episode, step + 1)
            delta = scripted_reward(episode, step) + GAMMA * following - value(episode, step)
            advantage = delta + GAMMA * GAE_LAMBDA * advantage
            advantages[episode, step] = advantage
    return advantages


@in_every_mode
def test_advantages_are_those_worked_out_by_hand(mode: AutoresetMode) -> None:
    # Three rollouts, so that episodes cross from one to the next; a step's advantage depends on where the
    # rollout is cut unless its episode ends in the same rollout, so only such steps are compared.
    num_steps = 16
    sampler, actor = make_sampler(scripted_vector(SCRIPTS, mode), num_steps=num_steps)
    true = [true_advantages(script, num_episodes=60) for script in SCRIPTS]
    compared = 0
    for _ in range(3):
        rollout = sampler.collect(actor)
        advantages = advantages_of(rollout, DyadicCritic())
        ended = rollout.terminated | rollout.truncated
        for row in rollout.valid_rows.tolist():
            step, env = divmod(row, NUM_ENVS)
            if ended[step:, env].any():
                episode, step_of_episode = rollout.observations[step, env].int().tolist()
                assert advantages[step, env].item() == true[env][episode, step_of_episode]
                compared += 1
    assert compared >= 0.85 * sampler.counts.env_steps


def test_advantages_are_the_same_in_every_mode() -> None:
    found: dict[AutoresetMode, dict[tuple[int, ...], float]] = {mode: {} for mode in MODES}
    for mode in MODES:
        sampler, actor = make_sampler(scripted_vector(SCRIPTS, mode), num_steps=64)
        rollout = sampler.collect(actor)
        advantages = advantages_of(rollout, DyadicCritic()).flatten()
        ended = (rollout.terminated | rollout.truncated).flip(0).cummax(0).values.flip(0)  # now or later
        for row in rollout.valid_rows.tolist():
            step, env = divmod(row, NUM_ENVS)
            if ended[step, env]:
                found[mode][(env, *rollout.observations[step, env].int().tolist())] = advantages[row].item()
    slowest = found[AutoresetMode.NEXT_STEP]  # some of its rows went to resets: it got less far
    assert len(slowest) > 100
    for mode in MODES:
        assert {key: found[mode][key] for key in slowest} == slowest


def test_an_advantage_cut_by_the_rollouts_end_bootstraps_from_what_follows() -> None:
    sampler, actor = make_sampler(scripted_vector([((100, "terminated"),)], AutoresetMode.SAME_STEP), num_steps=2)
    advantages = advantages_of(sampler.collect(actor), DyadicCritic())[:, 0].tolist()
    last = 2.0 + GAMMA * 5.0 - 4.0
    assert advantages == [1.0 + GAMMA * 4.0 - 3.0 + GAMMA * GAE_LAMBDA * last, last]


# Actions


@pytest.mark.parametrize("action_space", [Discrete(3), Box(-1.0, 1.0, (2,), np.float32)], ids=["discrete", "box"])
def test_log_probs_are_those_of_the_actor(action_space: gym.Space[Any]) -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP, action_space=action_space)
    environments = wrap(vector)
    agent = PPO(environments.observation_space, action_space, ppo_config(num_envs=NUM_ENVS, num_steps=NUM_STEPS))
    torch.manual_seed(0)
    for parameter in agent.actor.parameters():
        nn.init.normal_(parameter, std=0.2)
    rollout = collecting(agent, environments)()
    assert rollout.log_probs.std() > 0.01
    torch.testing.assert_close(rollout.log_probs, log_probs_of(agent, rollout))


def test_the_environment_gets_the_actions_of_the_rollout() -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP, action_space=Discrete(4))
    sampler, actor = make_sampler(vector, num_steps=40)
    actions = sampler.collect(actor).actions
    assert set(actions.flatten().tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(actions.T, [env.actions for env in vector.envs])


def test_discrete_actions_are_counted_from_start() -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP, action_space=Discrete(3, start=5))
    sampler, actor = make_sampler(vector, num_steps=40)
    actions = sampler.collect(actor).actions
    assert set(actions.flatten().tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(actions.T + 5, [env.actions for env in vector.envs])


def test_box_actions_are_clipped_for_the_environment_alone() -> None:
    space = Box(np.array([-0.5, -np.inf], np.float32), np.array([0.25, np.inf], np.float32))
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP, action_space=space)
    sampler, actor = make_sampler(vector, num_steps=40)
    actions = sampler.collect(actor).actions.numpy()
    received = np.stack([env.actions for env in vector.envs], axis=1)
    assert actions[..., 0].min() < -0.5
    assert actions[..., 0].max() > 0.25
    assert received.dtype == np.float32
    np.testing.assert_array_equal(received[..., 0], actions[..., 0].clip(-0.5, 0.25))
    np.testing.assert_array_equal(received[..., 1], actions[..., 1])


def test_box_actions_have_the_spaces_shape() -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP, action_space=Box(-9.0, 9.0, (2, 3), np.float64))
    sampler, actor = make_sampler(vector)
    actions = sampler.collect(actor).actions
    assert actions.shape == (NUM_STEPS, NUM_ENVS, 6)
    assert vector.envs[0].actions[0].shape == (2, 3)
    assert vector.envs[0].actions[0].dtype == np.float64
    np.testing.assert_array_equal(vector.envs[0].actions[0].flatten(), actions[0, 0])


# Noise


def actions_of(noise_seed: int, num_rollouts: int = 2) -> np.ndarray:
    sampler, actor = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP), noise_seed=noise_seed)
    return np.concatenate([sampler.collect(actor).actions.numpy().copy() for _ in range(num_rollouts)])


def test_the_same_noise_gives_the_same_actions() -> None:
    np.testing.assert_array_equal(actions_of(noise_seed=1), actions_of(noise_seed=1))


def test_other_noise_gives_other_actions() -> None:
    assert (actions_of(noise_seed=1) != actions_of(noise_seed=2)).any()


def test_each_rollout_draws_fresh_noise() -> None:
    first, second = np.split(actions_of(noise_seed=1), 2)
    assert (first != second).any()


def test_sampling_leaves_global_generators_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    actions_of(noise_seed=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


@in_every_mode
def test_a_resumed_sampler_brings_what_the_other_would_have_brought(mode: AutoresetMode) -> None:
    vector = partial(scripted_vector, SCRIPTS, mode)
    sampler, actor = make_sampler(vector())
    sampler.collect(actor)
    resumed, _ = make_sampler(vector(), noise_seed=99)
    assert resumed.load_state(*sampler.state(), env_seed=1) is None
    for _ in range(NUM_ROLLOUTS):
        rollout, other = resumed.collect(UniformActor(2)), sampler.collect(UniformActor(2))
        for name, tensor in other.columns().items():
            assert torch.equal(rollout.columns()[name], tensor), name
        assert resumed.counts.env_steps == sampler.counts.env_steps
        assert resumed.counts.statistics.state() == sampler.counts.statistics.state()


class StoppingActor(UniformActor):
    """Asks the sampler to stop when it has acted this many times."""

    def __init__(self, sampler: Sampler, after: int) -> None:
        super().__init__(2)
        self._sampler, self._left = sampler, after

    def __call__(self, observations: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self._sampler.request_stop()
        return super().__call__(observations)


@in_every_mode
@pytest.mark.parametrize("rows", range(1, NUM_STEPS))
def test_a_rollout_that_was_broken_off_is_gone_on_with(mode: AutoresetMode, rows: int) -> None:
    vector = partial(scripted_vector, SCRIPTS, mode)
    through, sampler, actor = make_sampler(vector())[0], make_sampler(vector())[0], UniformActor(2)
    through.collect(actor)
    sampler.collect(actor)
    with pytest.raises(Stopped):
        sampler.collect(StoppingActor(sampler, after=rows))
    resumed, _ = make_sampler(vector(), noise_seed=99)
    before = through.counts.env_steps
    assert resumed.load_state(*sampler.state(), env_seed=1) is None
    assert resumed.counts.env_steps == before
    # In a rollout of its own after the first, so many rows of each environment, but for those that are resets.
    so_far = [islice(scripted_rows(script, mode), NUM_STEPS, NUM_STEPS + rows) for script in SCRIPTS]
    assert resumed.steps_sampled == before + sum(row.is_step for row in chain.from_iterable(so_far))
    expected = {name: tensor.clone() for name, tensor in through.collect(actor).columns().items()}
    rollout = resumed.collect(actor)
    assert all(torch.equal(rollout.columns()[name], tensor) for name, tensor in expected.items())
    assert resumed.steps_sampled == resumed.counts.env_steps == through.counts.env_steps
    assert resumed.counts.statistics.state() == through.counts.statistics.state()
    expected = {name: tensor.clone() for name, tensor in through.collect(actor).columns().items()}
    rollout = resumed.collect(actor)
    assert all(torch.equal(rollout.columns()[name], tensor) for name, tensor in expected.items())


def broken_off() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of a sampler that has filled two rows of a rollout, with final observations in them."""
    sampler, _ = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.DISABLED))
    with pytest.raises(Stopped):
        sampler.collect(StoppingActor(sampler, after=2))
    return sampler.state()


def test_a_rollout_that_was_broken_off_has_what_the_next_test_alters() -> None:
    tensors, state = broken_off()
    assert state["under_way"]["filled"] == 2
    assert state["under_way"]["final_rows"] == [[0, 1]]
    assert tensors["buffer.final_observations"].tolist() == [[0, 1]]
    sampler, _ = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.DISABLED))
    assert sampler.load_state(tensors, state, env_seed=1) is None


@pytest.mark.parametrize("rows", [[[2, 1]], [[-1, 1]], [[0, NUM_ENVS]], [[0, -1]], [[True, 1]], [[0, 1.0]]], ids=str)
def test_final_observations_of_rows_that_there_are_not_are_refused(rows: Any) -> None:
    tensors, state = broken_off()
    state["under_way"]["final_rows"] = rows
    sampler, _ = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.DISABLED))
    with pytest.raises(ValueError, match=r"there is no step .* of environment"):
        sampler.load_state(tensors, state, env_seed=1)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("buffer.final_observations", torch.zeros(1, 1)),
        ("buffer.final_observations", torch.zeros(1, 2, dtype=torch.float64)),
        ("buffer.rewards", torch.zeros(1, NUM_ENVS)),
        ("buffer.rewards", torch.zeros(2, NUM_ENVS, dtype=torch.float64)),
        ("buffer.observations", torch.zeros(2, NUM_ENVS, 2)),
        ("observation", torch.zeros(NUM_ENVS, 1)),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(name: str, tensor: Tensor) -> None:
    tensors, state = broken_off()
    sampler, _ = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.DISABLED))
    with pytest.raises(ValueError, match="of shape"):
        sampler.load_state({**tensors, name: tensor}, state, env_seed=1)


@pytest.mark.parametrize("name", ["valid_rows", "final_rows"])
def test_a_rollout_of_rows_that_there_are_not_is_refused(name: str) -> None:
    sampler, actor = make_sampler(scripted_vector(SCRIPTS, AutoresetMode.DISABLED))
    rollout = sampler.collect(actor)
    observations = rollout.final_observations[:1]
    for row, is_one in ((0, True), (NUM_STEPS * NUM_ENVS - 1, True), (NUM_STEPS * NUM_ENVS, False), (-1, False)):
        rows = {"final_rows": torch.tensor([0]), "final_observations": observations, name: torch.tensor([row])}
        if is_one:
            sampler.own_parts(replace(rollout, **rows))
        else:
            with pytest.raises(ValueError, match=f"{name} are not all of {NUM_STEPS * NUM_ENVS} rows"):
                sampler.own_parts(replace(rollout, **rows))


# Memory


def test_closing_twice_is_safe() -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP)
    sampler, _ = make_sampler(vector)
    sampler.close()
    sampler.close()
    assert vector.closed
