"""Rollouts of whole episodes hold exactly what happened, however long the episodes are."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from sampling import collecting, log_probs_of, sampler_of
from torch import nn
from toy_environments import (
    Script,
    ScriptedEnv,
    UndeclaredVector,
    scripted_return,
    scripted_reward,
    scripted_vector,
)

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, PPOConfig
from hybridppo.environments.making import make_environments
from hybridppo.environments.vector import wrap
from hybridppo.interfaces import Metrics
from hybridppo.placements.placement import Mirrored, Placement
from hybridppo.runners import sampler as module
from hybridppo.runners.sampler import Sampler
from hybridppo.system.signals import Stopped

SCRIPT: Script = ((3, "truncated"), (1, "terminated"), (5, "both"), (2, "terminated"), (4, "truncated"))


scripted = partial(ScriptedEnv, SCRIPT)


class UniformActor:
    """An actor with constant outputs; remembers what it saw."""

    version = 7

    def __init__(self, output_size: int = 2) -> None:
        self.seen: list[list[float]] = []
        self._outputs = np.zeros((1, output_size), np.float32)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.seen.append(observations[0].tolist())
        return self._outputs


def make_sampler(
    make: Any = scripted, *, num_episodes: int = 1, noise_seed: int = 0, in_thread: bool = False
) -> Sampler:
    environments = make_environments(make, 1, vectorization="sync")
    return sampler_of(environments, num_episodes=num_episodes, env_seed=100, noise_seed=noise_seed, in_thread=in_thread)


def length_of(episode: int) -> int:
    return SCRIPT[episode % len(SCRIPT)][0]


def test_a_rollout_is_one_whole_episode() -> None:
    sampler, actor = make_sampler(), UniformActor()
    for episode in range(12):
        actor.seen.clear()
        rollout = sampler.collect(actor)
        length, end = SCRIPT[episode % len(SCRIPT)]
        assert rollout.observations[:-1, 0].tolist() == [[episode, step] for step in range(length)]
        assert rollout.observations[-1, 0].tolist() == [episode + 1, 0]  # the next episode has begun
        assert actor.seen == rollout.observations[:-1, 0].tolist()
        assert rollout.rewards[:, 0].tolist() == [scripted_reward(episode, step) for step in range(length)]
        assert rollout.terminated[:, 0].tolist() == [False] * (length - 1) + [end != "truncated"]
        assert rollout.truncated[:, 0].tolist() == [False] * (length - 1) + [end != "terminated"]
        assert rollout.actions.shape == rollout.log_probs.shape == (length, 1)
        assert rollout.valid_rows.tolist() == list(range(length))
        assert rollout.final_rows.tolist() == [length - 1] * (end == "truncated")
        assert rollout.final_observations.tolist() == [[episode, length]] * (end == "truncated")
        assert rollout.version == actor.version


def test_several_episodes_follow_one_another() -> None:
    rollout = make_sampler(num_episodes=5).collect(UniformActor())
    # The row after an end is the next episode's first; truncated episodes need what stood there.
    rows = [(episode, step) for episode in range(5) for step in range(length_of(episode))]
    assert rollout.observations[:, 0].tolist() == [*map(list, rows), [5, 0]]
    assert rollout.rewards[:, 0].tolist() == [scripted_reward(*row) for row in rows]
    assert np.flatnonzero(rollout.terminated).tolist() == [3, 8, 10]
    assert np.flatnonzero(rollout.truncated).tolist() == [2, 8, 14]
    assert rollout.final_rows.tolist() == [2, 14]
    assert rollout.final_observations.tolist() == [[0, 3], [4, 4]]


@pytest.mark.parametrize("in_thread", [False, True])
def test_episodes_longer_than_the_room_for_them_are_whole(in_thread: bool) -> None:
    lengths = (3, module.FIRST_CAPACITY, 3 * module.FIRST_CAPACITY + 5, module.CHUNK, 2)
    script = tuple((length, "terminated") for length in lengths)
    sampler = make_sampler(partial(ScriptedEnv, script), in_thread=in_thread)
    for episode, length in enumerate((*lengths, *lengths)):
        rollout = sampler.collect(UniformActor())
        assert rollout.observations[:-1, 0].tolist() == [[episode, step] for step in range(length)]
        assert rollout.rewards[:, 0].tolist() == [scripted_reward(episode, step) for step in range(length)]
        assert np.flatnonzero(rollout.terminated).tolist() == [length - 1]
    sampler.close()


@pytest.mark.parametrize("length", [3, 2 * module.FIRST_CAPACITY], ids=["short", "longer than the room at first"])
def test_a_rollout_stays_as_it_is_while_the_next_is_sampled(length: int) -> None:
    """As with overlap, which learns from it meanwhile."""
    sampler = make_sampler(partial(ScriptedEnv, ((length, "truncated"),)), in_thread=True)
    rollout = sampler.collect(UniformActor())
    for _ in range(4):
        before = _copied(rollout).columns()
        following = sampler.collect(UniformActor())
        for name, tensor in rollout.columns().items():
            assert torch.equal(tensor, before[name]), name
        assert not torch.equal(rollout.observations, following.observations)
        rollout = following
    sampler.close()


def test_long_episodes_take_fresh_noise_all_along() -> None:
    length = 2 * module.CHUNK
    rollout = make_sampler(partial(ScriptedEnv, ((length, "terminated"),))).collect(UniformActor())
    assert (rollout.actions[: module.CHUNK] != rollout.actions[module.CHUNK :]).any()
    assert rollout.actions.float().mean().item() == pytest.approx(0.5, abs=0.15)


def test_statistics_count_every_episode_once() -> None:
    sampler = make_sampler(num_episodes=2)
    for rollout in range(1, 8):
        sampler.collect(UniformActor())
        returns = [scripted_return(SCRIPT, episode) for episode in range(2 * rollout)]
        assert sampler.counts.statistics.episodes == len(returns)
        assert sampler.counts.statistics.return_mean == pytest.approx(np.mean(returns))
        assert sampler.counts.env_steps == sum(length_of(episode) for episode in range(2 * rollout))


def test_the_environment_gets_the_actions_of_the_rollout() -> None:
    env = ScriptedEnv(((40, "terminated"),), Discrete(3, start=5))
    actions = make_sampler(lambda: env).collect(UniformActor(3)).actions[:, 0]
    assert set(actions.tolist()) == {0, 1, 2}
    assert env.actions == (actions + 5).tolist()


def test_box_actions_and_observations_have_their_spaces_shapes() -> None:
    class Wide(ScriptedEnv):
        observation_space = Box(-np.inf, np.inf, (2, 3), np.float64)

        def _observation(self) -> np.ndarray:
            return np.arange(6.0).reshape(2, 3) + self._step

    env = Wide(((3, "terminated"),), Box(-0.125, 0.125, (2, 2), np.float64))
    rollout = make_sampler(lambda: env).collect(UniformActor(8))
    assert rollout.observations[:-1, 0].tolist() == [[step + i for i in range(6)] for step in range(3)]
    assert rollout.observations.dtype == torch.float32
    assert env.actions[0].shape == (2, 2)
    assert env.actions[0].dtype == np.float64
    np.testing.assert_array_equal(
        np.stack(env.actions).reshape(3, 4), rollout.actions[:, 0].numpy().clip(-0.125, 0.125)
    )


@pytest.mark.parametrize("action_space", [Discrete(3), Box(-1.0, 1.0, (2,), np.float32)], ids=["discrete", "box"])
def test_log_probs_are_those_that_the_first_epoch_would_recompute(action_space: gym.Space[Any]) -> None:
    agent = PPO(ScriptedEnv.observation_space, action_space, ppo_config(num_envs=1, episodes_per_rollout=5))
    generator = torch.Generator().manual_seed(0)
    for parameter in agent.actor.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    environments = make_environments(partial(ScriptedEnv, SCRIPT, action_space), 1)
    rollout = collecting(agent, environments, num_steps=None, num_episodes=5)()
    assert rollout.log_probs.std() > 0.01
    torch.testing.assert_close(rollout.log_probs, log_probs_of(agent, rollout))


class SeedsOf(ScriptedEnv):
    """Remembers the seeds that it was reset with."""

    seeds: list[int | None]

    def __init__(self) -> None:
        super().__init__(SCRIPT)
        self.seeds = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed)


def test_every_episode_has_a_seed_of_its_own() -> None:
    env = SeedsOf()
    sampler = make_sampler(lambda: env, num_episodes=2)
    for _ in range(3):
        sampler.collect(UniformActor())
    assert env.seeds == [100, 101, 102, 103, 104, 105, 106]  # the next episode has begun


def rollouts_of(sampler: Sampler, count: int) -> list[list[Any]]:
    rollouts = [sampler.collect(UniformActor()) for _ in range(count)]
    return [[r.observations.tolist(), r.actions.tolist(), r.rewards.tolist()] for r in map(_copied, rollouts)]


def _copied(rollout: Any) -> Any:
    return rollout.map(torch.clone)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_resumed_sampler_meets_the_episodes_it_would_have_met(in_thread: bool) -> None:
    make = partial(gym.make, "CartPole-v1")
    through = make_sampler(make)
    expected = [_copied(through.collect(UniformActor())) for _ in range(6)]
    sampler = make_sampler(make, in_thread=in_thread)
    for _ in range(3):
        sampler.collect(UniformActor())
    resumed = make_sampler(make, noise_seed=99, in_thread=in_thread)
    assert resumed.load_state(*sampler.state(), env_seed=5) is None
    for other in expected[3:]:
        rollout = resumed.collect(UniformActor())
        assert torch.equal(rollout.observations, other.observations)
        assert torch.equal(rollout.actions, other.actions)
    sampler.close()
    resumed.close()


class Fragile(ScriptedEnv):
    """Fails at a step or a reset: with an exception, or with an observation of another shape."""

    def __init__(self, failing: Any) -> None:
        super().__init__(((3, "terminated"),))
        self._failing = failing

    def _observation(self) -> np.ndarray:
        return self._failing(self._episode, self._step, super()._observation())


def test_a_rollout_that_is_stopped_before_its_first_step_draws_its_noise_once() -> None:
    whole, stopped, actor = make_sampler(noise_seed=3), make_sampler(noise_seed=3), UniformActor()
    stopped._stop[0] = 1
    with pytest.raises(Stopped):
        stopped.collect(actor)
    stopped._stop[0] = 0
    for _ in range(5):
        assert stopped.collect(actor).actions.tolist() == whole.collect(actor).actions.tolist()


def sticks(episode: int, step: int, observation: np.ndarray) -> np.ndarray:
    if (episode, step) == (4, 2):
        raise ValueError("the motor is stuck")
    return observation


def shrinks(episode: int, step: int, observation: np.ndarray) -> np.ndarray:
    return observation[:1] if (episode, step) == (4, 2) else observation


def overflows(episode: int, step: int, observation: np.ndarray) -> np.ndarray:
    return observation + np.array([0, np.inf], np.float32) if (episode, step) == (4, 2) else observation


def begins_wrong(episode: int, step: int, observation: np.ndarray) -> np.ndarray:
    return observation[:1] if (episode, step) == (4, 0) else observation


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("failing", "words"),
    [
        (
            sticks,
            r"environment 0 \(seed 104\) failed in step 2 of its episode, 14 after .* action [01]: .*motor is stuck",
        ),
        (shrinks, r"environment 0 \(seed 104\) failed in step 2 of .* shape \(1,\), and that of its space is \(2,\)"),
        (overflows, r"environment 0 \(seed 104\) failed in step 2 of .* observation\[1\] is inf"),
        (begins_wrong, r"environment 0 \(seed 104\) failed in a reset, 12 steps .* shape \(1,\)"),
    ],
)
def test_an_environment_that_fails_is_named_with_seed_step_and_action(
    failing: Any, words: str, in_thread: bool
) -> None:
    sampler = make_sampler(partial(Fragile, failing), num_episodes=2, in_thread=in_thread)
    for _ in range(1 if failing is begins_wrong else 2):  # the reset of an episode belongs to the rollout before
        sampler.collect(UniformActor())
    with pytest.raises(EnvError, match=words):
        sampler.collect(UniformActor())
    sampler.close()


class NoReward(ScriptedEnv):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, np.nan if tuple(observation) == (1, 2) else 1.0, *rest


def test_a_reward_that_is_no_number_is_refused() -> None:
    sampler = make_sampler(lambda: NoReward(((3, "terminated"),)))
    sampler.collect(UniformActor())
    with pytest.raises(EnvError, match=r"seed 101\) failed in step 2 of its episode.* its reward is nan"):
        sampler.collect(UniformActor())


def test_an_environment_made_anew_begins_its_episode_anew() -> None:
    made: list[ScriptedEnv] = []

    def make() -> ScriptedEnv:
        # One fails in its episode 4, and the one made in its place does not.
        made.append(Fragile(sticks if not made else lambda *values: values[-1]))
        return made[-1]

    sampler = sampler_of(make_environments(make, 1, on_env_error="restart"), num_episodes=3, env_seed=100)
    sampler.collect(UniformActor())
    rollout = sampler.collect(UniformActor())
    assert len(made) == 2
    # Its episode 3, and then what the new environment calls 0 and 1: whole, each of them.
    steps = rollout.observations[:-1, 0][rollout.valid_rows]
    assert steps.tolist() == [[e, s] for e in (3, 0, 1) for s in range(3)]
    assert np.flatnonzero(rollout.terminated[:, 0][rollout.valid_rows]).tolist() == [2, 5, 8]
    assert sampler.counts.statistics.episodes == 6
    assert sampler.counts.env_steps == 18


def test_other_noise_gives_other_actions() -> None:
    make = partial(ScriptedEnv, ((40, "terminated"),))
    actions = [make_sampler(make, noise_seed=seed).collect(UniformActor()).actions.tolist() for seed in (1, 1, 2)]
    assert actions[0] == actions[1] != actions[2]


def test_closing_twice_is_safe() -> None:
    sampler = make_sampler(in_thread=True)
    sampler.collect(UniformActor())
    sampler.close()
    sampler.close()


@pytest.mark.parametrize(
    "environments",
    [
        partial(wrap, scripted_vector([SCRIPT, SCRIPT], AutoresetMode.DISABLED)),
        partial(wrap, UndeclaredVector([SCRIPT]), "next_step"),
        partial(make_environments, "CartPole-v1", 1),
    ],
    ids=["two", "a vector of its own kind", "a vectorised form"],
)
def test_what_cannot_be_stepped_by_itself_is_refused(environments: Any) -> None:
    made = environments()
    with pytest.raises(ConfigurationError, match="num_envs=1"):
        sampler_of(made, num_episodes=1)
    made.close()


# Whole trainings

CONFIG = ppo_config(
    num_envs=1, episodes_per_rollout=1, num_epochs=2, num_minibatches=1, hidden_sizes=(8,), learning_rate=1e-3
)


def train(placement: Placement | str = "cpu", **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 10**6, "total_episodes": 12, "seed": 3, "config": CONFIG, "progress": False} | options
    return hybridppo.train("CartPole-v1", placement=placement, **options)


def parameters(result: hybridppo.TrainResult) -> torch.Tensor:
    return result.agent.parameters.values.detach().cpu()


def test_an_update_follows_each_episode() -> None:
    history: list[Metrics] = []
    result = train(on_iteration=history.append)
    assert [metrics["episodes"] for metrics in history] == list(range(1, 13))
    assert result.agent.version == 12
    assert result.metrics["env_steps"] == pytest.approx(12 * result.metrics["episode_length_mean"])
    assert not result.interrupted


def test_training_ends_with_whichever_limit_comes_first() -> None:
    assert train(total_episodes=None, total_steps=50).metrics["env_steps"] >= 50
    assert train(total_episodes=5, total_steps=50_000).metrics["episodes"] == 5


def test_schedules_follow_the_limit_that_comes_first() -> None:
    rates: list[float] = []
    train(total_episodes=4, on_iteration=lambda metrics: rates.append(metrics["learning_rate"]))
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


@pytest.mark.parametrize("total_episodes", [0, -1, 2.5, True, "8"])
def test_an_impossible_number_of_episodes_is_refused(total_episodes: Any) -> None:
    with pytest.raises(ConfigurationError, match="total_episodes must be a whole number"):
        train(total_episodes=total_episodes)


def test_placements_without_lag_give_the_same_bits() -> None:
    single = train("cpu")
    mirrored = train(Mirrored("cpu", "cpu", force_copy=True, verify=True))
    assert torch.equal(parameters(single), parameters(mirrored))
    assert mirrored.metrics["publishes"] == 12


def test_overlap_is_one_update_behind() -> None:
    history: list[Metrics] = []
    train(Mirrored("cpu", "cpu", max_lag=1), on_iteration=history.append)
    assert [metrics["policy_lag"] for metrics in history] == [0, *[1] * 11]
    assert [metrics["episodes"] for metrics in history] == list(range(1, 13))


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    through = train(total_episodes=12, config=(config := _without_schedules()))
    train(total_episodes=5, config=config, run_dir=tmp_path / "run")
    resumed = hybridppo.resume(tmp_path / "run", total_episodes=12, progress=False)
    assert resumed.metrics["episodes"] == 12
    assert resumed.metrics["env_steps"] == through.metrics["env_steps"]
    assert torch.equal(parameters(resumed), parameters(through))


def _without_schedules() -> PPOConfig:
    return ppo_config(**{**CONFIG.to_json(), "anneal_learning_rate": False})


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_an_environment_with_a_vectorised_form_is_stepped_by_itself(vectorization: Any) -> None:
    assert torch.equal(parameters(train(vectorization=vectorization)), parameters(train()))


def test_a_vector_of_processes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vectorization='auto' or 'sync'"):
        hybridppo.train(
            lambda: gym.vector.AsyncVectorEnv([partial(gym.make, "CartPole-v1")]),
            total_steps=64, placement="cpu", config=CONFIG, progress=False,
        )  # fmt: skip


def test_worker_processes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"num_workers=2 .* episodes_per_rollout"):
        train(num_workers=2)


def test_episodes_are_learned_from_in_equal_minibatches() -> None:
    config = ppo_config(**{**CONFIG.to_json(), "num_minibatches": 7, "episodes_per_rollout": 3})
    assert train(config=config, total_episodes=9).agent.version == 3
