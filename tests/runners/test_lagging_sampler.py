"""Sampling without waiting: every step is handed out once, from whichever worker is first, with exact column ends.

Shares in this process stand in for workers, and fill when a script says so. What depends on clocks in a
training does not here.
"""

import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from processes import worker_processes
from selection import only_by_default
from toy_agents import Matching, TakingTurns, Unlike
from toy_environments import FailingEnv, kill_this_process

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored, PPOConfig, TD3Config
from hybridppo.agents.ppo.batch import RewardNormalizer
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import HybridPPOError
from hybridppo.networks.modes import supports_bf16
from hybridppo.placements.crossing import Counters, Crossing, sampling_actor
from hybridppo.rollouts.advantages import vtrace
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.runners.filling import Filled
from hybridppo.runners.lagging_sampler import LaggingSampler, Part, steps_of_a_part
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.runners.worker import Worker, parameters_of
from hybridppo.runners.workers import SlowestWorker, Transport, Work
from hybridppo.system.signals import Stopped

LENGTH = 7
"""Steps of an episode, which is truncated and terminated by turns."""


class Counting(gym.Env[Any, Any]):
    """Observes its number, its episode and the step in it; the reward is the number of steps so far."""

    observation_space = gym.spaces.Box(-1.0, 1e6, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.number, self.episode, self.total = seed % 1000, -1, 0
        self.episode, self.step_of_episode = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.step_of_episode, self.total = self.step_of_episode + 1, self.total + 1
        ends = self.step_of_episode == LENGTH
        is_truncated = self.episode % 2 == 0
        return self._observation(), float(self.total), ends and not is_truncated, ends and is_truncated, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.step_of_episode], np.float32)


def vector() -> SyncVectorEnv:
    """Four of them, which spend a row on each reset."""
    return SyncVectorEnv([Counting] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)


class Trading(gym.Env[Any, Any]):
    """Episodes of five steps, with the number of the step in its info."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {"profit": float(self.steps)}


class Flaky(Trading):
    """Fails in every seventh episode."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.episodes % 7 == 0 and self.steps == 3:
            raise ValueError("the motor is stuck")
        return super().step(action)


class AfterSomeSteps:
    """A flag that is seen a few steps after it was set."""

    def __init__(self, flag: bytearray, steps: int = 5) -> None:
        self._flag, self._left = flag, steps

    def __getitem__(self, index: int) -> int:
        self._left -= self._flag[index]
        return int(self._left < 0)


class Scripted(Transport):
    """Workers in this process; `order` says, again and again, which of them answers next.

    A worker begins what it is asked for as soon as it has answered all before.
    """

    order: Sequence[int] = (0, 1)
    lost: int | None = None
    """A worker that is lost when it is looked at next,"""
    lost_when_asked: int | None = None
    """or when it is asked for more."""

    seconds_between_looks, asks_for_rows = 1.0, False

    def __init__(self, work: Work) -> None:
        super().__init__("worker", work.shares, work.setup["options"])
        self.work = work
        self.buffers = [Rollout.in_memory(work.setup["layout"], work.pin_for) for _ in range(work.num_buffers)]
        self.stop = bytearray(1)
        self._served: dict[int, Worker] = {}
        self._asked: dict[int, deque[Any]] = {}
        self._acts_by: dict[int, Any] = {}
        self._published: Any = None
        self._next = 0

    @property
    def workers(self) -> list[int]:
        return list(self._served)

    def start(self, worker: int, env_seed: int) -> None:
        self._served[worker] = Worker(self.work.setup, self.work.shares[worker], env_seed)
        self._asked[worker] = deque([("ready", None)])

    def publish(self, parameters: Sequence[Any], version: int) -> None:
        flat = np.concatenate([each.reshape(-1) for each in parameters])
        self._published = parameters_of(flat, self.work.setup["shapes"]), version

    def fill(self, worker: int, turn: int, first: int, end: int | None = None) -> None:
        if worker == type(self).lost_when_asked:
            type(self).lost_when_asked = None
            raise WorkerLostError(f"worker {worker} has died")
        self.ask(worker, "fill", (turn, first, end))

    def ask(self, worker: int, kind: str, value: Any) -> None:
        if not self._asked[worker]:
            self._acts_by[worker] = self._published
        self._asked[worker].append((kind, value))

    def wait(self, workers: Sequence[int], seconds: float, together: bool) -> Sequence[int]:
        if seconds == 0.0:  # nothing is there before somebody waits for it
            return []
        starting = [worker for worker in workers if self._asked[worker][0][0] == "ready"]
        while not starting:
            worker = self.order[self._next % len(self.order)]
            self._next += 1
            if worker in workers:
                return [worker]
        return starting

    def receive(self, worker: int) -> tuple[Any, float]:
        if worker == type(self).lost:
            type(self).lost = None
            raise WorkerLostError(f"worker {worker} has died")
        kind, value = self._asked[worker].popleft()
        if kind == "ready":
            return None, 0.0
        acts_by, self._acts_by[worker] = self._acts_by[worker], self._published
        share = self._served[worker]
        if kind != "fill":
            return [share.answer(kind, arguments) for arguments in value], 0.0
        turn, first, end = value
        flag: Any = AfterSomeSteps(self.stop)
        return share.fill(self.buffers[turn].of(share.columns), *acts_by, flag, first, end), 1.0

    def rows(self, worker: int) -> int:
        return self._next

    def silence(self, worker: int, rows: int, timeout: float) -> str:
        raise AssertionError("each answers")

    def kill(self, worker: int) -> None:
        self._served[worker].close()

    def close(self) -> None:
        for share in self._served.values():
            share.close()


NUM_STEPS, NUM_ENVS, GAMMA = 32, 4, 0.9


class Case:
    """A sampler of scripted workers, and an actor whose version goes up."""

    def __init__(self, order: Sequence[int] = (0, 1), env: Any = Counting, **options: Any) -> None:
        self.transport = type("OfThisCase", (Scripted,), {"order": order})
        self.agent = PPO(Counting.observation_space, Counting.action_space, ppo_config(hidden_sizes=(8,)))
        discounts = np.full(NUM_ENVS, GAMMA, np.float32)
        settings = {"max_lag": 3, "drops": True, "num_workers": 2, "discounts": lambda: discounts} | options
        made = EnvironmentOptions(vectorization="auto", on_env_error=settings.pop("on_env_error", "raise"))
        plan = RolloutPlan(
            self.agent.distribution, np.random.default_rng(0), env_seed=0, num_steps=NUM_STEPS,
            memory=settings.pop("memory", None), discounts=settings.pop("discounts"),
        )  # fmt: skip
        self.sampler = LaggingSampler(
            plan, source=env, template=make_environments(env, NUM_ENVS, made), network=self.agent.actor, options=made,
            num_envs=settings.pop("num_envs", NUM_ENVS), transport=self.transport, **settings,
        )  # fmt: skip

    def publish(self, version: int) -> None:
        crossing = Crossing(torch.device("cpu"), Counters())
        self.sampler.sample_async(sampling_actor(self.agent.actor, crossing, version))

    def rollout(self, version: int) -> Rollout:
        """The next rollout, which this version learns from; a copy, as its arrays are filled again."""
        self.publish(version)
        found = self.sampler.sample_wait()
        self.publish(version)
        return found.map(torch.clone)

    def rollouts(self, number: int) -> list[Rollout]:
        return [self.rollout(version) for version in range(number)]


def steps_of(rollouts: Sequence[Rollout]) -> dict[int, list[int]]:
    """For each environment, the numbers of the steps that were handed out."""
    found: dict[int, list[int]] = {}
    for rollout in rollouts:
        envs = rollout.observations[:-1, :, 0].flatten()[rollout.valid_rows]
        for env, reward in zip(envs.tolist(), rollout.rewards.flatten()[rollout.valid_rows].tolist(), strict=True):
            found.setdefault(int(env), []).append(int(reward))
    return found


ORDERS = {
    "by turns": (0, 1),
    "one after the other": (0, 0, 0, 0, 1, 1, 1, 1),
    "one is slow": (0,) * 7 + (1,),
    "the other is slow": (1,) * 5 + (0,),
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_step_is_given_away_once(order: str) -> None:
    case = Case(ORDERS[order])
    found = steps_of(case.rollouts(6))
    for env, steps in found.items():
        assert sorted(steps) == list(range(1, len(steps) + 1)), f"environment {env}"
    assert sum(map(len, found.values())) == 6 * NUM_STEPS * NUM_ENVS == case.sampler.counts.env_steps
    if "slow" in order:
        counts = [len(found[env]) for env in sorted(found)]
        assert max(counts) >= 3 * min(counts) > 0  # the slow one has its part, and no more


@pytest.mark.parametrize("order", ORDERS)
def test_what_follows_a_step_is_its_own_environments_or_bootstrapped(order: str) -> None:
    for rollout in Case(ORDERS[order]).rollouts(5):
        after = rollout.observations[1:].clone()
        after.flatten(0, 1)[rollout.final_rows] = rollout.final_observations
        before, ended = rollout.observations[:-1], rollout.terminated | rollout.truncated
        goes_on = ~rollout.terminated
        # A step leads to the next of the same episode, whatever is in the row below.
        expected = before + torch.tensor([0.0, 0.0, 1.0])
        assert torch.equal(after[goes_on], expected[goes_on])
        is_end = before[..., 2] == LENGTH - 1
        is_terminated = is_end & (before[..., 1] % 2 == 1)
        assert torch.equal(rollout.terminated, is_terminated)
        # Where no episode ended and it is truncated, steps of another environment or of later follow.
        below = rollout.observations[1:-1]
        assert torch.equal(rollout.observations[1:][:-1][~ended[:-1]], below[~ended[:-1]])
        assert torch.equal(expected[:-1][~ended[:-1]], below[~ended[:-1]])
        is_cut = ended & ~is_end
        assert not is_cut[-1].any()  # the end of a column is bootstrapped anyway


@pytest.mark.parametrize("order", ORDERS)
def test_returns_follow_the_environment_and_not_the_column(order: str) -> None:
    normalizer = RewardNormalizer()
    for rollout in Case(ORDERS[order]).rollouts(6):
        assert rollout.returns_so_far is not None
        step, reward = rollout.observations[:-1, :, 2].numpy(), rollout.rewards.numpy()
        # Each reward is 1 more than the one before.
        expected = sum(np.where(back <= step, GAMMA**back * (reward - back), 0.0) for back in range(LENGTH))
        np.testing.assert_allclose(rollout.returns_so_far, expected, rtol=1e-5)
        _, (mean, _, number) = normalizer.gathered(rollout, GAMMA)
        assert (float(mean), int(number)) == (pytest.approx(np.mean(expected), rel=1e-5), np.size(expected))


class Passing:
    """Two agents in turn get 1 for each action, and observe their number of actions; games differ in length."""

    possible_agents = ("a", "b")
    number = 0

    def observation_space(self, agent: str) -> Any:
        return Counting.observation_space

    def action_space(self, agent: str) -> Any:
        return Counting.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.number = self.number if seed is None else seed % 1000
        self.agents, self.agent_selection = ["a", "b"], "a"
        self._acted, self._gained = {"a": 0, "b": 0}, {"a": 0.0, "b": 0.0}

    def last(self) -> Any:
        agent = self.agent_selection
        seen = np.array([self.number, 0, self._acted[agent]], np.float32)
        return seen, self._gained[agent], self._acted["b"] == 3 + self.number, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if action is None:
            self.agents.remove(agent)
        else:
            self._acted[agent] += 1
            self._gained[agent] = 1.0
        self.agent_selection = "b" if agent == "a" else "a"


@pytest.mark.parametrize("order", ORDERS)
def test_returns_of_agents_that_take_turns_follow_the_agent(order: str) -> None:
    discounts = np.tile([GAMMA, GAMMA / 2], NUM_ENVS).astype(np.float32)
    normalizer, case = RewardNormalizer(), Case(ORDERS[order], env=Passing, discounts=lambda: discounts)
    for rollout in case.rollouts(6):
        assert rollout.returns_so_far is not None
        rows = rollout.valid_rows
        steps = rollout.observations[: len(rollout.rewards), :, 2].flatten()[rows].numpy()
        gamma = np.where(rows.numpy() % 2, GAMMA / 2, GAMMA)
        expected = (1.0 - gamma ** (steps + 1.0)) / (1.0 - gamma)
        np.testing.assert_allclose(rollout.returns_so_far.flatten()[rows], expected, rtol=1e-5)
        _, (mean, _, number) = normalizer.gathered(rollout, GAMMA)
        assert (float(mean), int(number)) == (pytest.approx(np.mean(expected), rel=1e-5), len(rows))


def test_rows_of_resets_are_no_steps() -> None:
    case = Case((0,), env=vector, num_workers=1)
    rollouts = case.rollouts(4)
    found = steps_of(rollouts)
    assert sorted(found) == [0, 1, 2, 3]
    for steps in found.values():
        assert sorted(steps) == list(range(1, len(steps) + 1))
    assert (
        sum(len(rollout.valid_rows) for rollout in rollouts) == case.sampler.counts.env_steps < 4 * NUM_STEPS * NUM_ENVS
    )
    assert case.sampler.counts.statistics.length_mean == LENGTH


def test_episodes_are_counted_as_they_were_played() -> None:
    case = Case(ORDERS["one is slow"])
    found = steps_of(case.rollouts(6))
    assert case.sampler.counts.statistics.episodes == sum(len(steps) // LENGTH for steps in found.values())
    assert case.sampler.counts.statistics.length_mean == LENGTH


def test_each_row_has_the_version_that_acted_and_the_log_probability_of_it() -> None:
    case = Case(ORDERS["one is slow"])
    versions = []
    for version in range(8):
        with torch.no_grad():
            for parameter in case.agent.actor.parameters():
                parameter.add_(0.1)
        state = {name: tensor.clone() for name, tensor in case.agent.actor.state_dict().items()}
        versions.append(state)
        rollout = case.rollout(version)
        assert rollout.versions is not None
        assert rollout.version == int(rollout.versions.min())
        assert version - rollout.version <= 3
        for acted in rollout.versions.unique().tolist():
            case.agent.actor.load_state_dict(versions[acted])
            rows = rollout.versions == acted
            outputs = case.agent.actor(rollout.observations[:-1][rows])
            expected = case.agent.distribution.log_prob(outputs, rollout.actions[rows])
            torch.testing.assert_close(rollout.log_probs[rows], expected.detach(), rtol=1e-4, atol=1e-5)
        case.agent.actor.load_state_dict(state)
    assert case.sampler.metrics["policy_lag_mean"] > 0.0


def test_steps_that_are_too_old_are_dropped_and_counted() -> None:
    case = Case(ORDERS["by turns"])
    case.rollout(0)
    later = case.rollout(9)  # whatever was begun before is nine updates old
    assert later.version == 9
    dropped = case.sampler.steps_dropped
    assert dropped > 0
    assert case.sampler.counts.env_steps == 2 * NUM_STEPS * NUM_ENVS + dropped
    assert case.sampler.metrics["steps_dropped"] == dropped
    assert case.sampler.counts.statistics.length_mean == LENGTH  # which dropped steps are part of


def test_an_agent_with_a_replay_buffer_learns_from_all() -> None:
    case = Case(ORDERS["by turns"], drops=False)
    case.rollout(0)
    assert case.rollout(9).version == 0
    assert case.sampler.steps_dropped == 0


def test_what_the_oldest_parameters_acted_is_given_away_first() -> None:
    sampler = Case().sampler
    for number, (worker, version) in enumerate([(0, 3), (1, 1), (0, 3), (1, 2)]):
        part = Part(worker, number, np.zeros(16, np.int64), is_asked=True)
        sampler._take(deque([part]), Filled(16, [], version, None), 1.0)
    assert [(part.worker, part.number) for part in sampler._done] == [(1, 1), (1, 3), (0, 0), (0, 2)]


def test_those_that_are_fast_are_never_idle_while_the_learner_waits() -> None:
    case = Case((0,) * 30 + (1,))
    case.publish(0)
    rollout = case.sampler.sample_wait()
    # As many parts as the fast one has room for, before the slow one is waited for.
    assert set(rollout.observations[:, :, 0].unique().tolist()) == {0.0, 1.0}


def test_a_pause_stops_within_a_part_and_nothing_is_lost() -> None:
    case = Case(ORDERS["by turns"])
    before = case.rollouts(2)
    case.sampler.pause()
    assert case.sampler.is_paused
    sampled = case.sampler.steps_sampled
    assert sampled >= case.sampler.counts.env_steps
    case.publish(2)
    assert not case.sampler.is_paused
    found = steps_of([*before, *(case.rollout(version) for version in (2, 3, 4))])
    for steps in found.values():
        assert sorted(steps) == list(range(1, len(steps) + 1))


def test_a_stop_is_seen_and_what_is_there_stays() -> None:
    case = Case(ORDERS["by turns"])
    before = case.rollouts(1)
    case.sampler.request_stop()

    def until_stopped() -> None:
        while True:
            case.publish(1)
            before.append(case.sampler.sample_wait().map(torch.clone))

    with pytest.raises(Stopped):
        until_stopped()
    case.sampler.pause()  # as the checkpoint does
    found = steps_of([*before, *(case.rollout(version) for version in (1, 2))])
    for steps in found.values():
        assert sorted(steps) == list(range(1, len(steps) + 1))


def test_a_checkpoint_counts_what_was_not_given_away_as_dropped() -> None:
    case = Case(ORDERS["one is slow"])
    case.rollouts(3)
    case.sampler.pause()
    given, sampled = case.sampler.counts.env_steps, case.sampler.steps_sampled
    tensors, state = case.sampler.state()
    assert state["env_steps"] == sampled
    assert state["steps_dropped"] == sampled - given
    assert case.sampler.counts.env_steps == given  # in this process it goes on
    again = Case(ORDERS["by turns"])
    assert again.sampler.load_state(tensors, state, env_seed=5) is None
    assert (again.sampler.counts.env_steps, again.sampler.steps_dropped) == (sampled, sampled - given)
    assert not again.sampler.is_under_way
    found = steps_of([again.rollout(3)])
    total = sum(steps[0] - 1 for steps in found.values())
    assert total == sampled  # each environment goes on after its last step, given away or not
    again.rollouts(2)
    assert again.sampler.counts.statistics.length_mean == LENGTH


@pytest.mark.parametrize("when", ["lost", "lost_when_asked"])
def test_a_worker_that_is_lost_is_replaced_and_its_unfinished_steps_are_dropped(when: str) -> None:
    case = Case(ORDERS["by turns"], on_env_error="restart")
    before = case.rollouts(2)
    setattr(case.transport, when, 1)
    after = [case.rollout(version) for version in (2, 3, 4)]
    assert case.sampler.counts.env_restarts == NUM_ENVS // 2
    found = steps_of([*before, *after])
    for env in (0, 1):
        assert sorted(found[env]) == list(range(1, len(found[env]) + 1))
    assert len(found) > NUM_ENVS  # the new ones have other seeds
    assert case.sampler.counts.statistics.length_mean == LENGTH


def test_a_worker_that_is_lost_ends_the_training_if_nobody_asked_for_others() -> None:
    case = Case(ORDERS["by turns"])
    case.transport.lost = 0
    with pytest.raises(EnvError, match="worker 0 has died"):
        case.rollouts(2)


def test_parts_are_few_and_not_too_short() -> None:
    assert [steps_of_a_part(steps) for steps in (1, 5, 16, 31, 32, 128, 500, 509, 512, 2048)] == [
        1, 5, 16, 31, 16, 16, 100, 509, 64, 256,
    ]  # fmt: skip


# The correction


def lagging_rollout(agent: PPO, versions: bool) -> Rollout:
    steps, envs = agent.config.num_steps, agent.config.num_envs
    generator = torch.Generator().manual_seed(0)
    observations = torch.randn((steps + 1, envs, 3), generator=generator)
    actions = torch.randint(2, (steps, envs), generator=generator)
    log_probs = -0.2 - torch.rand((steps, envs), generator=generator)
    return Rollout(
        observations=observations, actions=actions, log_probs=log_probs,
        rewards=torch.randn((steps, envs), generator=generator),
        terminated=torch.rand((steps, envs), generator=generator) < 0.1,
        truncated=torch.zeros((steps, envs), dtype=torch.bool),
        valid_rows=torch.arange(steps * envs), final_rows=torch.zeros(0, dtype=torch.int64),
        final_observations=torch.zeros((0, 3)), version=0,
        versions=torch.zeros((steps, envs), dtype=torch.int64) if versions else None,
    )  # fmt: skip


def agent_of(**settings: Any) -> PPO:
    space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    return PPO(
        space, gym.spaces.Discrete(2), ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, **settings)
    )


@pytest.mark.parametrize("correction", ["vtrace", "decoupled", "none"])
def test_returns_and_advantages_are_corrected_by_vtrace_if_that_is_asked_for(correction: str) -> None:
    agent = agent_of(lag_correction=correction)
    rollout = lagging_rollout(agent, versions=True)
    batch, plain = (agent.batch_of(each, agent.loop()) for each in (rollout, lagging_rollout(agent, versions=False)))
    acted = rollout.log_probs.flatten()
    if correction == "none":
        assert torch.equal(batch.log_probs, acted)
        assert torch.equal(batch.advantages, plain.advantages)
        return
    with torch.no_grad():
        outputs = agent.actor(rollout.observations[:-1])
        values = agent.critic(rollout.observations).squeeze(-1)
        now = agent.distribution.log_prob(outputs, rollout.actions)
    if correction == "vtrace":
        assert torch.equal(batch.log_probs, acted)  # the ratio is to those that acted
        assert batch.weights is None
    else:
        torch.testing.assert_close(batch.log_probs, now.flatten())  # the ratio is to those before the update
        torch.testing.assert_close(batch.weights, (now.flatten() - acted).exp().clamp(max=1.0))
    assert batch.clip_range(0.2) == 0.2
    advantages, returns = vtrace(
        rewards=rollout.rewards, values=values[:-1], next_values=values[1:],
        weights=(now - rollout.log_probs).exp(), terminated=rollout.terminated, truncated=rollout.truncated,
        gamma=agent.config.gamma, gae_lambda=agent.config.gae_lambda,
    )  # fmt: skip
    torch.testing.assert_close(batch.advantages, advantages.flatten())
    torch.testing.assert_close(batch.returns, returns.flatten())
    assert not torch.allclose(batch.advantages, plain.advantages)


COMPILED = pytest.param({"compiled_updates": True}, marks=pytest.mark.extras)


@pytest.mark.parametrize("form", [{}, {"fast_updates": False}, COMPILED], ids=str)
def test_a_decoupled_update_begins_with_the_gradient_of_impala(form: dict[str, Any]) -> None:
    """`min(1, p / m) * A * grad(log p)`, however far the ratio of the policy to the one that acted is from 1."""
    agent = agent_of(normalize_advantage=False, value_coef=0.0, lag_correction="decoupled", **form)
    batch, loop = agent.batch_of(lagging_rollout(agent, versions=True), agent.loop()), agent.loop()
    assert ((batch.weights < 0.8) & (batch.advantages < 0)).any()  # which clipping around the other policy leaves out
    orders, sizes = torch.arange(16)[None], [16]
    (weighed,) = batch.epochs(orders, sizes, False)
    with loop.backend.updating():
        (minibatch,) = loop.backend.minibatches(weighed, sizes)
        _, _, _, kl, clipped = loop.backend.gradient(minibatch, 0.2)
    assert abs(float(kl)) < 1e-6
    assert float(clipped) == 0.0
    log_probs = agent.distribution.log_prob(agent.actor(batch.observations), batch.actions)
    expected = torch.autograd.grad(
        -(batch.weights * batch.advantages * log_probs).mean(), list(agent.actor.parameters())
    )
    found = agent.parameters.gradient[agent.parameters.range_of("actor")]
    torch.testing.assert_close(found, torch.cat([each.flatten() for each in expected]), rtol=1e-3, atol=1e-5)


def test_old_actions_count_for_less_by_hand() -> None:
    """Actions are now half as probable in one environment as when they were taken, and twice in the other."""
    agent = agent_of(lag_correction="decoupled")
    rollout = lagging_rollout(agent, versions=True)
    with torch.no_grad():
        now = agent.distribution.log_prob(agent.actor(rollout.observations[:-1]), rollout.actions)
    ratios = torch.tensor([0.5, 2.0]).expand(now.shape)  # of the two environments
    batch = agent.batch_of(replace(rollout, log_probs=now - ratios.log()), agent.loop())
    torch.testing.assert_close(batch.weights.view(now.shape), torch.tensor([0.5, 1.0]).expand(now.shape))
    (weighed,) = batch.epochs(torch.arange(16)[None], [16], False)
    torch.testing.assert_close(weighed.advantages, batch.advantages * batch.weights)


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="lag_correction must be one of vtrace, decoupled, none"):
        PPOConfig(lag_correction="impala")  # type: ignore[arg-type]


# Trainings


SMALL = ppo_config(num_envs=4, num_steps=32, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
LAGGING = Mirrored("cpu", "cpu", max_lag=3)


def train(env: Any = "CartPole-v1", **options: Any) -> tuple[hybridppo.TrainResult, list[dict[str, float]]]:
    history: list[dict[str, float]] = []
    arguments = {"total_steps": 6 * 128, "seed": 0, "placement": LAGGING, "config": SMALL, "progress": False} | options
    look = arguments.pop("on_iteration", None)

    def note(metrics: dict[str, float]) -> None:
        history.append(metrics)
        if look is not None:
            look(metrics)

    return hybridppo.train(env, on_iteration=note, **arguments), history


def test_a_training_learns_from_every_step_and_says_how_old_they_were() -> None:
    result, history = train(num_workers=2)
    assert result.metrics["env_steps"] >= 6 * 128
    assert all(metrics["policy_lag_mean"] <= metrics["policy_lag"] <= 3 for metrics in history)
    assert 0.0 < history[-1]["samplers_busy"] <= 1.0
    assert not worker_processes()


KINDS: dict[str, dict[str, Any]] = {
    "an off-policy agent": {
        "env": "Pendulum-v1",
        "config": TD3Config(num_envs=2, hidden_sizes=(8,), learning_starts=16, steps_per_iteration=64),
    },
    "stacks of frames": {"env": "Pendulum-v1", "frame_stack": 2},
    "noise of the state": {"env": "Pendulum-v1", "config": replace(SMALL, use_sde=True, sde_sample_freq=4)},
    "a pool": {"config": replace(SMALL, pool_size=2)},
    "bf16": {"config": replace(SMALL, precision="bf16")},
    "plain updates": {"config": replace(SMALL, fast_updates=False)},
    "resets that are rows": {"env": vector, "num_workers": 1},
    "agents that leave": {"env": Matching},
    "agents that take turns": {"env": lambda: TakingTurns(Matching())},
    "several policies": {"env": Unlike, "config": {"sign": SMALL, "pointer": SMALL}},
    "infos": {"env": Trading, "info_metrics": ("profit",)},
    "restarts": {"env": Flaky, "on_env_error": "restart"},
}


NO_BF16 = pytest.mark.skipif(not supports_bf16(torch.device("cpu")), reason="this processor does not multiply bfloat16")


BY_DEFAULT = (
    "an off-policy agent", "stacks of frames", "resets that are rows", "agents that take turns", "several policies",
    "infos", "restarts",
)  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    only_by_default(
        BY_DEFAULT,
        [pytest.param(kind, marks=NO_BF16 if kind == "bf16" else ()) for kind in KINDS],
    ),
)
def test_every_kind_of_training_may_lag(kind: str) -> None:
    result, history = train(**{"num_workers": 2, **KINDS[kind]})
    if kind != "an off-policy agent":  # which learns from older steps, too, if a worker is slow
        assert max(metrics["policy_lag"] for metrics in history) <= 3
    assert result.metrics["env_steps"] >= 6 * 128
    assert (history[-1]["env_restarts"] > 0) == (kind == "restarts")
    if kind == "infos":
        assert 1.0 <= history[-1]["info/profit"] <= 5.0
    for agent in result.agents.values():
        assert torch.isfinite(agent.parameters.values).all()


@pytest.mark.slow
def test_several_learners_may_lag_each_with_workers_of_its_own(tmp_path: Path) -> None:
    learners = hybridppo.MultiLearner(learners=2)
    _, history = train(distributed=learners, run_dir=tmp_path / "run", num_workers=None)
    assert max(metrics["policy_lag"] for metrics in history) <= 3
    assert hybridppo.resume(tmp_path / "run", total_steps=10 * 128, progress=False).metrics["env_steps"] >= 10 * 128


class Blocked(Counting):
    """The first process whose tenth step comes waits until it is allowed to go on."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._is_first = folder, None

    def step(self, action: Any) -> Any:
        if self._is_first is None:
            try:
                (self._folder / "taken").touch(exist_ok=False)
            except FileExistsError:
                self._is_first = False
            else:
                self._is_first = True
        if self._is_first and self.total == 10:
            with (self._folder / "go on").open() as pipe:  # opens when somebody opens it to write
                pipe.read()
        return super().step(action)


@pytest.mark.skipif(os.name != "posix", reason="a named pipe")
def test_an_environment_that_is_stuck_does_not_hold_up_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go on")
    seen: list[float] = []

    def look(metrics: dict[str, float]) -> None:
        seen.append(metrics["env_steps"])
        if metrics["iteration"] == 4:  # which came without a step of the one that is stuck
            with (tmp_path / "go on").open("w"):
                pass

    result, _ = train(
        partial(Blocked, tmp_path), num_workers=4, total_steps=10 * 128, on_iteration=look, vectorization="sync"
    )
    assert len(seen) >= 10
    assert result.metrics["env_steps"] >= 10 * 128


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_run_that_is_told_to_end_is_saved_and_goes_on(tmp_path: Path) -> None:
    def look(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    result, _ = train(
        num_workers=2, run_dir=tmp_path / "run", on_iteration=look, on_interrupt="return", total_steps=10 * 128
    )
    assert result.interrupted
    sampler = load_latest(tmp_path / "run" / "checkpoints")[1].state["sampler"]
    result = hybridppo.resume(tmp_path / "run", progress=False)
    assert result.metrics["env_steps"] >= 10 * 128
    assert result.metrics["steps_dropped"] >= sampler["steps_dropped"]
    assert not worker_processes()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_killed_worker_is_replaced_if_that_is_asked_for() -> None:
    result, _ = train(
        partial(FailingEnv, kill_this_process, after=60), num_workers=2, on_env_error="restart", total_steps=4 * 128
    )
    assert result.metrics["env_restarts"] > 0
    assert result.metrics["env_steps"] >= 4 * 128


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a memory": ({"config": ppo_config(num_envs=4, num_steps=32, recurrent="lstm")}, "recurrent does not work with"),
    "no workers": ({"num_workers": 0}, "num_workers=0 does not work with max_lag=3"),
    "uneven shares": ({"num_workers": 3}, "num_envs=4 must be a multiple of num_workers=3 with max_lag=3"),
    "whole episodes": (
        {"config": ppo_config(num_envs=1, episodes_per_rollout=2)},
        "max_lag=3 does not work with rollouts of whole episodes",
    ),
    "several steps of a target": (
        {"env": "Pendulum-v1", "config": TD3Config(num_envs=2, n_steps=3), "num_workers": 2},
        "n_steps=3 does not work with max_lag=3",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_lag_is_refused(what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(HybridPPOError, match=message):
        train(**options)


# What the slowest costs, if workers wait


def test_what_the_slowest_worker_costs_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    slowest = SlowestWorker(3, lambda worker: f"worker {worker}")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            slowest.add((1.0, 10.0, 2.0))
    (message,) = caplog.messages
    assert message.startswith("worker 1 took 50 s for 5 rollouts and a usual worker 10 s, which waited for 80 % of")
    assert "placement=Auto(max_lag=2) or more (--placement auto --max-lag 2)" in message


@pytest.mark.parametrize("seconds", [(1.0, 1.8, 1.0), (0.001, 0.01, 0.001)])
def test_what_costs_little_is_not_logged(seconds: Sequence[float], caplog: pytest.LogCaptureFixture) -> None:
    slowest = SlowestWorker(3, str)
    for _ in range(20):
        slowest.add(seconds)
    assert not caplog.messages
