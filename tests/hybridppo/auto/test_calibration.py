"""Calibration measures everything that predictions need, within its time, and disturbs nothing."""

import dataclasses
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from toy_environments import ScriptedEnv

from hybridppo import PPO, PPOConfig, SingleDevice
from hybridppo.auto import bench, calibration, forms
from hybridppo.auto.auto import work_of
from hybridppo.auto.calibration import calibrate
from hybridppo.auto.figures import Calibration, Work
from hybridppo.auto.portions import with_steps
from hybridppo.auto.timing import stable_median
from hybridppo.environments.making import make_environments
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.system.threads import limit_threads

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
FOREVER = 10**9

# Medians over a handful of samples, from a clock that stands still


class Clock:
    """Goes on by what is measured."""

    def __init__(self, samples: list[float]) -> None:
        self.now, self.samples, self.taken = 0.0, iter(samples), 0

    def measure(self) -> float:
        sample = next(self.samples)
        self.now, self.taken = self.now + sample, self.taken + 1
        return sample

    def __call__(self) -> float:
        return self.now


def median_of(samples: list[float], seconds: float) -> tuple[float, int]:
    clock = Clock(samples)
    return stable_median(clock.measure, seconds, clock=clock), clock.taken


def test_equal_samples_are_stable_at_once() -> None:
    assert median_of([0.1] * 10, 100.0) == (0.1, 3)


def test_scattered_samples_are_repeated_until_the_median_is_known() -> None:
    samples = [1e-6, 2e-6] * 1000
    median, taken = median_of(samples, 1e6)
    # quartiles 1 apart around 1.5: 0.93 / sqrt(n) <= 0.03 * 1.5 from about 427 on
    assert 420 <= taken <= 435
    assert 1e-6 <= median <= 2e-6


def test_an_outlier_counts_for_nothing() -> None:
    assert median_of([1e-3, 50e-3, 1e-3, 1e-3, 1e-3], 1e6)[0] == 1e-3


def test_when_time_is_over_the_median_is_taken_as_it_is() -> None:
    assert median_of([0.001, 0.005, 0.003, 0.009], 0.008) == (0.003, 3)
    assert median_of([4.0, 5.0], 0.0) == (4.0, 1)


def test_no_median_takes_longer_than_half_a_second() -> None:
    assert median_of([0.125, 0.25, 0.5, 1.0], 1e6) == (0.25, 3)


# What is measured


def work(env: Any = "Acrobot-v1", config: PPOConfig = CONFIG, total_steps: int = FOREVER, **changes: Any) -> Work:
    environments = make_environments(env, config.num_envs)
    try:
        found = work_of(environments, config, total_steps=total_steps, num_workers=None)
    finally:
        environments.close()
    return dataclasses.replace(found, **changes)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples of each: whether a median is stable is not the matter."""

    def three(measure: Callable[[], float], seconds: float) -> float:
        return sorted(measure() for _ in range(3))[1]

    monkeypatch.setattr(bench, "stable_median", three)
    monkeypatch.setattr(forms, "stable_median", three)


@pytest.mark.usefixtures("quick")
def test_everything_is_measured_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS_WORTH_THREADS", 60.0)  # so that threads are none of it, however busy it is here
    figures = calibrate("Acrobot-v1", work(cores=2), CONFIG).figures
    assert figures is not None
    assert set(figures.step) == {4, 2}
    assert 0 < figures.action < figures.step[4]
    assert set(figures.update) == {1}
    assert figures.update[1] > 0
    assert figures.accelerator is None
    assert "publish" not in figures.assumed


@pytest.mark.usefixtures("quick")
def test_updates_from_a_pool_are_measured_with_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    update = PPO.update

    def noted(agent: PPO, rollout: Rollout) -> Any:
        metrics = update(agent, rollout)
        seen.append(metrics["pool_rollouts"])
        return metrics

    monkeypatch.setattr(PPO, "update", noted)
    config = dataclasses.replace(CONFIG, pool_size=3)
    figures = calibrate("CartPole-v1", work(config=config, cores=1), config).figures
    assert figures is not None
    assert set(seen) == {3.0}


@pytest.mark.usefixtures("quick")
def test_workers_are_tried_where_they_may_be_the_best() -> None:
    class Slow(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            time.sleep(0.001)
            return np.zeros(3, np.float32), 0.0, False, False, {}

    figures = calibrate(Slow, work(Slow, cores=2), CONFIG).figures
    assert figures is not None
    assert figures.assumed == ()
    assert figures.worker_start > 0
    assert figures.slowdown >= 1.0


@pytest.mark.usefixtures("quick")
def test_environments_with_one_generator_are_never_divided() -> None:
    found = work("CartPole-v1", cores=2)
    assert not found.splits
    figures = calibrate("CartPole-v1", found, CONFIG).figures
    assert figures is not None
    assert set(figures.step) == {4}
    assert "worker_start" in figures.assumed


@pytest.mark.usefixtures("quick")
def test_an_accelerator_is_measured_by_its_twin_on_the_cpu() -> None:
    figures = calibrate("CartPole-v1", work("CartPole-v1"), CONFIG, accelerator="cpu").figures
    assert figures is not None
    found = figures.accelerator
    assert found is not None
    assert found.device == "cpu"
    assert min(found.action, found.update, found.publish, found.move, found.transfer, found.remainder) > 0
    assert found.crossing == 0.0


@pytest.mark.usefixtures("quick")
def test_an_accelerator_that_fails_is_left_out_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench.Mirrored, "to_learner", fail)
    result = calibrate("CartPole-v1", work("CartPole-v1"), CONFIG, accelerator="cpu")
    assert result.figures is not None
    assert result.figures.accelerator is None
    assert result.left_out == ["placements on cpu: CUDA out of memory"]
    assert "placement auto: left out placements on cpu: CUDA out of memory" in caplog.text


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("any_threads", [False, True])
def test_more_threads_are_tried_where_steps_are_long(any_threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS_WORTH_THREADS", 0.0)
    threads: list[int] = []
    for module in (calibration, bench):
        monkeypatch.setattr(module, "limit_threads", recording(threads, limit_threads))
    figures = calibrate("CartPole-v1", work("CartPole-v1", cores=4), CONFIG, any_threads=any_threads).figures
    assert figures is not None
    assert set(figures.update) == ({1, 2, 4} if any_threads else {1, 4})
    assert threads == ([1, 2, 4] if any_threads else [1, 4])


def recording(calls: list[int], function: Any) -> Any:
    def recorded(argument: int) -> Any:
        calls.append(argument)
        return function(argument)

    return recorded


# Within its time


def test_a_run_of_few_iterations_is_not_measured() -> None:
    found = work(total_steps=29 * CONFIG.batch_size)  # of two minibatches each
    result = calibrate("no environment is made", found, CONFIG)
    assert result == Calibration(left_out=["all: a run of 29 iterations is too short to measure"])


@pytest.mark.usefixtures("quick")
def test_a_run_of_few_long_iterations_is_measured() -> None:
    config = dataclasses.replace(CONFIG, num_steps=256, num_minibatches=32)
    result = calibrate("Acrobot-v1", work(config=config, total_steps=2 * config.batch_size, cores=1), config)
    assert set(result.stages) >= {"steps", "updates"}


def test_environments_that_take_long_to_make_are_not_made_again() -> None:
    result = calibrate("no environment is made", work(), CONFIG, seconds_to_make=30.0)
    assert result == Calibration(left_out=["all: to make the environments once more would take 30 s"])


@pytest.mark.usefixtures("quick")
def test_workers_are_left_out_where_they_take_too_long() -> None:
    found = work(total_steps=2000 * CONFIG.batch_size, cores=2)
    result = calibrate("Acrobot-v1", found, CONFIG, max_share=0.01)
    assert result.figures is None or "worker_start" in result.figures.assumed
    assert result.left_out


@pytest.mark.parametrize("recurrent", [None, "lstm"])
def test_long_steps_are_counted_in_few(recurrent: Any) -> None:
    steps: list[int] = []

    class Counted(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(((5, "truncated"),))

        def step(self, action: Any) -> Any:
            steps.append(1)
            time.sleep(0.005)
            return super().step(action)

    config = dataclasses.replace(CONFIG, num_envs=2, num_steps=1000, num_minibatches=1, recurrent=recurrent)
    result = calibrate(Counted, work(Counted, config, 100 * 2000, cores=1), config)
    assert result.figures is not None
    # A rollout has 2000 steps and takes 10 s: of 100 of these, calibration may take 5 s.
    assert 0 < len(steps) < 1000


# Rollouts as long as an update needs


@pytest.mark.parametrize("num_steps", [3, 8, 11, 24])
def test_a_rollout_is_repeated_and_cut(num_steps: int) -> None:
    rollout = sampled(8)
    other = with_steps(rollout, num_steps)
    assert other.rewards.shape == (num_steps, 2)
    assert other.observations.shape == (num_steps + 1, 2, rollout.observations.shape[-1])
    assert torch.equal(other.valid_rows, torch.arange(2 * num_steps))
    for t in range(num_steps):
        assert torch.equal(other.observations[t], rollout.observations[t % 8])
        assert torch.equal(other.actions[t], rollout.actions[t % 8])
    # Episodes of 5 steps are cut short at steps 4, 4 + 8, 4 + 16, of both environments.
    ends = [t for t in range(num_steps) if t % 8 == 4]
    assert other.final_rows.tolist() == [2 * t + env for t in ends for env in range(2)]
    assert len(other.final_observations) == len(other.final_rows)


def sampled(num_steps: int) -> Rollout:
    environments = make_environments(partial(ScriptedEnv, ((5, "truncated"),)), 2)
    agent = PPO(environments.observation_space, environments.action_space, CONFIG)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    noise = np.random.default_rng(0)
    sampler = Sampler(environments, agent.distribution, num_steps=num_steps, env_seed=0, noise=noise)
    with placement.sampling(agent) as actor:
        return sampler.collect(actor)


# Nothing is disturbed


@pytest.fixture
def counted() -> dict[str, list[int]]:
    return {"made": [], "closed": []}


@pytest.mark.usefixtures("quick")
def test_environments_are_its_own_and_closed_again(counted: dict[str, list[int]]) -> None:
    class Counted(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(((5, "truncated"),))
            counted["made"].append(id(self))

        def close(self) -> None:
            counted["closed"].append(id(self))

    found = work(Counted, cores=2)
    for calls in counted.values():
        calls.clear()
    calibrate(Counted, found, CONFIG)
    assert len(counted["made"]) >= CONFIG.num_envs
    assert sorted(set(counted["made"])) == sorted(set(counted["closed"]))


@pytest.mark.usefixtures("quick")
def test_environments_may_draw_from_global_generators() -> None:
    class Careless(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(((5, "truncated"),))

        def step(self, action: Any) -> Any:
            random.random()
            np.random.random()  # noqa: NPY002
            torch.rand(1)
            return super().step(action)

    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002

    before = states()
    calibrate(Careless, work(Careless, cores=1), CONFIG)
    assert states() == before


# Forms of the update with other bits


def measured_forms(changes: dict[str, dict[str, Any]], *, can_afford: bool = True) -> tuple[dict[str, Any], list[str]]:
    """What is found of made-up forms, and what was asked whether there is time for it."""
    asked: list[str] = []
    environments = make_environments("CartPole-v1", CONFIG.num_envs)
    agent = PPO(environments.observation_space, environments.action_space, CONFIG, seed=0)
    SingleDevice("cpu").prepare(agent)
    sampler = Sampler(
        environments, agent.distribution, num_steps=CONFIG.num_steps, env_seed=0, noise=np.random.default_rng(0)
    )
    with SingleDevice("cpu").sampling(agent) as actor:
        rollout = sampler.collect(actor)
    sampler.close()

    def can(seconds: float, what: str) -> bool:
        asked.append(what)
        return can_afford

    really = forms._seconds

    def seconds(agent: PPO, rollout: Any) -> float:
        assert really(agent, rollout) > 0.0
        return 0.5 if agent.config.fast_updates else 2.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "_seconds", seconds)
        patch.setattr(forms, "_forms", lambda config: changes)
        patch.setattr(forms, "SECONDS_TO_LOAD", {"compiled_updates": 0.0, "fast_updates": 0.0})
        patch.setattr(forms, "_is_compiled", lambda agent: False)

        def make_agent(config: PPOConfig) -> PPO:
            made = agent.like(config)
            SingleDevice("cpu").prepare(made)
            return made

        found = forms.measured_forms(agent, make_agent, rollout, update=1.0, cores=2, can_afford=can, left=lambda: 1.0)
    return found, asked


@pytest.mark.usefixtures("quick")
def test_other_forms_of_the_update_are_timed_with_one_thread_and_with_all() -> None:
    found, asked = measured_forms({"fast_updates=False": {"fast_updates": False}})
    assert list(found) == ["fast_updates=False", "fast_updates=False and torch_threads=2"]
    assert [figures.threads for figures in found.values()] == [1, 2]
    assert [figures.update for figures in found.values()] == [4.0, 4.0]  # as autograd were so much slower
    assert asked[0] == "fast_updates=False"


def test_forms_that_are_not_compiled_yet_or_take_too_long_are_not_timed() -> None:
    assert measured_forms({"compiled_updates=True": {"compiled_updates": True}})[0] == {}
    assert measured_forms({"fast_updates=False": {"fast_updates": False}}, can_afford=False)[0] == {}


def test_only_forms_that_this_machine_has_and_nobody_asked_for_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for has in (False, True):
        monkeypatch.setattr(forms, "has_numba", lambda has=has: has)
        monkeypatch.setattr(forms, "supports_bf16", lambda device, has=has: has)
        expected = ["compiled_updates=True", "precision='bf16'"] if has else []
        assert list(forms._forms(CONFIG)) == expected
    assert list(forms._forms(dataclasses.replace(CONFIG, compiled_updates=True))) == ["precision='bf16'"]
    assert not forms._forms(dataclasses.replace(CONFIG, precision="bf16"))
