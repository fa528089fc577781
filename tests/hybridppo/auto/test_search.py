"""Which candidates are tried and which is chosen, with made-up seconds for each; and what a real trial does."""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from ppo_settings import ppo_config
from toy_environments import ScriptedEnv

from hybridppo import DDPGConfig, PPOConfig, TD3Config
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.auto import auto, trials
from hybridppo.auto.auto import Limits, Search, limits_of
from hybridppo.auto.trials import Candidate, Training, Trial, shortened
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.system.signals import Stopped

CONFIG = ppo_config(num_envs=8, num_steps=32, num_epochs=2, num_minibatches=4, hidden_sizes=(8,))
LIMITS = Limits(total_steps=10**7, cores=8, splits=True)
Seconds = Callable[[Candidate], tuple[float, float]]


def training(env: Any = "CartPole-v1", config: Any = CONFIG) -> Training:
    return Training(env, config, EnvironmentOptions())


def searched(
    seconds: Seconds, limits: Limits = LIMITS, config: Any = CONFIG, *, start: float = 0.1
) -> tuple[Candidate, Search]:
    """The result of a search in which an iteration samples and learns for `seconds(candidate)`."""

    def try_out(self: Training, candidate: Candidate, *limits: float) -> Trial:
        sampling, learning = seconds(candidate)
        return Trial(candidate, sampling, learning, 0.0, start if candidate.num_workers else 0.0, 256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "try_out", try_out)
        patch.setattr(auto, "is_cuda_awake", lambda: True)
        found = Search(training(config=config), limits)
        return found.run(), found


def steps_are_slow(candidate: Candidate) -> tuple[float, float]:
    """Workers divide sampling, and overlap hides it."""
    sampling = 0.08 / max(1, candidate.num_workers)
    return (max(0.0, sampling - 0.01) if candidate.max_lag else sampling), 0.01


def learning_is_slow(candidate: Candidate) -> tuple[float, float]:
    return 0.01, {"cuda": 0.02}.get(candidate.device, 0.2 / candidate.torch_threads)


def test_workers_are_doubled_as_long_as_that_pays() -> None:
    chosen, found = searched(steps_are_slow)
    assert chosen == Candidate("cpu", num_workers=8)
    assert [label for label in found.trials if "overlap" not in label] == [
        "cpu", "cpu, 2 workers", "cpu, 4 workers", "cpu, 8 workers"
    ]  # fmt: skip


def test_what_cannot_gain_is_not_tried() -> None:
    _, found = searched(lambda candidate: (1e-4, 0.01))
    assert list(found.trials) == ["cpu"]  # all sampling in no time would gain less than the margin


def test_workers_that_gain_nothing_are_no_reason_to_try_more() -> None:
    chosen, found = searched(lambda candidate: (0.1, 0.001))
    assert chosen == Candidate("cpu")
    assert list(found.trials) == ["cpu", "cpu, 2 workers"]


def test_within_the_margin_the_simpler_one_is_taken() -> None:
    chosen, _ = searched(lambda candidate: (0.1 if candidate.num_workers == 0 else 0.098, 0.001))
    assert chosen == Candidate("cpu")


def test_workers_must_pay_for_their_start() -> None:
    few = replace(LIMITS, total_steps=256 * 100)
    assert searched(steps_are_slow, few, start=0.1)[0].num_workers > 0
    assert searched(steps_are_slow, few, start=20.0)[0].num_workers == 0


@pytest.mark.parametrize(
    "changes", [{"splits": False}, {"has_workers": False}, {"num_workers": 0}, {"cores": 1}], ids=str
)
def test_environments_stay_together_if_they_must(changes: dict[str, Any]) -> None:
    chosen, found = searched(steps_are_slow, replace(LIMITS, **changes))
    assert chosen == Candidate("cpu")
    assert all(trial.candidate.num_workers <= 1 for trial in found.trials.values())


def test_workers_that_only_step_must_be_allowed_because_they_round_differently() -> None:
    limits = replace(LIMITS, has_workers=False)
    chosen, found = searched(steps_are_slow, limits)
    assert chosen == Candidate("cpu")
    assert f"workers: {auto.ROUNDS}" in found.table(chosen)["left_out"]
    chosen, found = searched(steps_are_slow, replace(limits, any_threads=True))
    assert chosen.num_workers == 8
    assert f"workers: {auto.ROUNDS}" not in found.table(chosen)["left_out"]


def test_bfloat16_is_named_and_never_chosen() -> None:
    limits, offer = replace(LIMITS, could_round=True, accelerator="cuda"), f"bf16: {auto.BF16}"
    chosen, found = searched(lambda candidate: (0.1, 0.1), limits)
    assert offer in found.table(chosen)["left_out"]
    for seconds in (lambda candidate: (0.1, 1e-3), lambda candidate: (0.1, 0.1 if candidate.device == "cpu" else 0.01)):
        chosen, found = searched(seconds, limits)
        assert offer not in found.table(chosen)["left_out"]  # no learning on the CPU to shorten


@pytest.mark.parametrize(
    ("shape", "changes", "pays"),
    [
        ((84, 84, 4), {}, True),
        ((84, 84, 4), {"precision": "bf16"}, False),
        ((36, 36, 3), {}, False),
        ((3,), {"hidden_sizes": (1024, 1024)}, True),
        ((3,), {}, False),
    ],
    ids=str,
)
def test_bfloat16_is_for_large_images_and_wide_layers(
    shape: tuple[int, ...], changes: dict[str, Any], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> gym.Env[Any, Any]:
        space = Box(0, 255, shape, np.uint8) if len(shape) == 3 else Box(-1.0, 1.0, shape, np.float32)
        return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda seen: np.zeros(shape), space)

    config = replace(CONFIG, **changes)
    with closing(make_environments(make, 1, EnvironmentOptions())) as environments:
        spaces = environments.observation_space, environments.action_space
        of_agent = replace(training(make, config), agent=PPO(*spaces, replace(config, precision="fp32"), seed=0))
        for supported in (True, False):
            monkeypatch.setattr(auto, "supports_bf16", lambda device, supported=supported: supported)
            assert limits_of(of_agent, environments, total_steps=1).could_round is (pays and supported)


def test_an_actor_on_a_device_may_have_workers() -> None:
    def seconds(candidate: Candidate) -> tuple[float, float]:
        return (0.1 if candidate.name == "cuda" else 1.0) / max(1, candidate.num_workers), 0.01

    limits = replace(LIMITS, accelerator="cuda", has_workers=False)
    assert searched(seconds, limits)[0] == Candidate("cuda", "cuda")
    assert searched(seconds, replace(limits, any_threads=True))[0] == Candidate("cuda", "cuda", 8)
    assert searched(seconds, replace(limits, num_workers=3))[0] == Candidate("cuda", "cuda", 3)


def test_a_network_that_only_torch_can_compute_overlaps_in_a_thread() -> None:
    limits = replace(LIMITS, has_workers=False, max_lag=1)
    chosen, _ = searched(lambda candidate: (0.1 * (candidate.max_lag == 0), 0.1), limits)
    assert chosen == Candidate("overlap", max_lag=1)


def test_a_number_of_workers_that_was_asked_for_is_obeyed() -> None:
    chosen, found = searched(steps_are_slow, replace(LIMITS, num_workers=3))
    assert chosen == Candidate("cpu", num_workers=3)
    assert {trial.candidate.num_workers for trial in found.trials.values()} == {3}


def test_overlap_is_taken_only_if_it_is_allowed() -> None:
    one_generator = replace(LIMITS, splits=False)
    seconds = {"cpu": (0.1, 0.1), "overlap": (0.001, 0.11)}
    chosen, found = searched(lambda candidate: seconds[candidate.name], one_generator)
    assert chosen == Candidate("cpu")
    assert list(found.trials) == ["cpu"]
    chosen, found = searched(lambda candidate: seconds[candidate.name], replace(one_generator, max_lag=1))
    assert chosen == Candidate("overlap", num_workers=1, max_lag=1)
    assert found.line() == (
        "overlap, 1 worker, 111 ms an iteration (sampling 1 ms, learning 110 ms, copying 0 s); cpu 200 ms"
    )


def test_overlap_needs_a_core_of_its_own() -> None:
    _, found = searched(lambda candidate: (0.1, 0.1), replace(LIMITS, max_lag=1, cores=1, splits=False))
    assert list(found.trials) == ["cpu"]


def test_threads_are_taken_only_if_they_are_left_open_and_steps_are_long() -> None:
    chosen, found = searched(learning_is_slow, replace(LIMITS, any_threads=True))
    assert chosen.torch_threads == 8
    chosen, found = searched(learning_is_slow)
    assert chosen.torch_threads == 1
    _, found = searched(lambda candidate: (1e-5, 1e-3), replace(LIMITS, any_threads=True))
    assert list(found.trials) == ["cpu"]  # eight optimizer steps of 0.1 ms


def test_another_device_learns_if_that_pays() -> None:
    limits = replace(LIMITS, accelerator="cuda")
    chosen, found = searched(learning_is_slow, limits)
    assert (chosen.name, chosen.device) == ("hybrid", "cuda")
    assert {"hybrid", "cuda"} <= set(found.trials)
    assert searched(lambda candidate: (0.01, 0.01 if candidate.device == "cpu" else 0.02), limits)[0].name == "cpu"
    chosen, _ = searched(learning_is_slow, replace(limits, max_lag=1, splits=False))
    assert chosen.name in ("hybrid", "overlap")


def test_overlap_is_tried_with_each_device_that_learns() -> None:
    seconds = {"cpu": (0.09, 0.12), "overlap on cuda, 1 worker": (0.01, 0.08)}
    limits = replace(LIMITS, accelerator="cuda", splits=False, max_lag=1)
    found, search = searched(lambda candidate: seconds.get(candidate.label, (1.0, 1.0)), limits)
    assert found.label == "overlap on cuda, 1 worker"
    assert list(search.trials) == ["cpu", "hybrid", "cuda", "overlap, 1 worker", "overlap on cuda, 1 worker"]


def test_sampling_on_a_device_that_draws_other_noise_is_not_chosen_by_a_stopwatch() -> None:
    faster = {"cpu": 0.1, "hybrid": 0.09, "cuda": 0.001}
    limits = replace(LIMITS, accelerator="cuda", splits=False)
    assert searched(lambda candidate: (faster[candidate.name], 0.0), limits)[0].name == "cuda"
    chosen, found = searched(lambda candidate: (faster[candidate.name], 0.0), replace(limits, draws_on_device=True))
    assert (chosen.name, "cuda" in found.trials) == ("hybrid", False)


def test_a_candidate_that_fails_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    def seconds(candidate: Candidate) -> tuple[float, float]:
        if candidate.name == "hybrid":
            raise RuntimeError("no memory left there")
        return 0.0, {"cpu": 0.1, "cuda": 0.03}[candidate.device]

    chosen, found = searched(seconds, replace(LIMITS, accelerator="cuda", splits=False))
    assert chosen.name == "cuda"
    assert found.left_out == ["hybrid: RuntimeError: no memory left there"]
    assert "left out hybrid" in caplog.text


def test_there_is_no_trial_without_time_for_it() -> None:
    _, found = searched(steps_are_slow, replace(LIMITS, seconds_to_make=3.9))
    assert list(found.trials) == ["cpu"]
    assert "too much for this run" in found.left_out[0]


@pytest.mark.parametrize(
    ("config", "limits", "reason"),
    [
        (CONFIG, replace(LIMITS, total_steps=2560), "a run of 80 optimizer steps is too short to measure"),
        (
            TD3Config(num_envs=1, learning_starts=100),
            replace(LIMITS, total_steps=500),
            "a run of 400 optimizer steps is too short to measure",
        ),
        (CONFIG, replace(LIMITS, seconds_to_make=60.0), "to make the environments once more would take 60 s"),
        (
            replace(CONFIG, num_envs=1, episodes_per_rollout=2),
            LIMITS,
            "rollouts of whole episodes have no length to go by",
        ),
    ],
)  # fmt: skip
def test_nothing_is_tried_if_it_cannot_pay(config: Any, limits: Limits, reason: str) -> None:
    chosen, found = searched(steps_are_slow, limits, config)
    assert (chosen, found.trials) == (Candidate("cpu"), {})
    assert found.line() == f"cpu; not measured (all: {reason})"


def test_a_run_that_is_too_short_for_other_trials_says_so() -> None:
    many_epochs, ten_iterations = replace(CONFIG, num_epochs=50), replace(LIMITS, total_steps=256 * 10)
    chosen, found = searched(lambda candidate: (0.2, 0.05), ten_iterations, many_epochs)
    assert (chosen, list(found.trials)) == (Candidate("cpu"), ["cpu"])
    assert found.line().endswith("; all others: a run of about 2.5 s is too short")


# Real trials


def test_shorter_iterations_have_minibatches_of_the_same_size() -> None:
    small, times = shortened(replace(CONFIG, target_kl=0.01), 0.5)
    assert isinstance(small, PPOConfig)
    assert (small.num_steps, small.num_minibatches, small.samples_per_minibatch, times) == (
        16,
        2,
        CONFIG.samples_per_minibatch,
        2.0,
    )
    assert small.target_kl is None
    uneven = replace(CONFIG, num_envs=3, num_steps=20, num_minibatches=12)  # of 5 rows: three of them are 5 steps
    small, times = shortened(uneven, 0.1)
    assert isinstance(small, PPOConfig)
    assert (small.num_steps, small.num_minibatches, times) == (5, 3, 4.0)
    recurrent = replace(CONFIG, recurrent="lstm", sequence_length=16)
    assert shortened(recurrent, 0.0)[0].num_steps == 16
    assert shortened(CONFIG, 1.0)[1] == 1.0
    turns, times = shortened(DDPGConfig(num_envs=2, steps_per_iteration=1000), 0.3)
    assert (turns.num_steps, times) == (1, 500.0)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("cpu"),
        Candidate("cpu", num_workers=2),
        Candidate("overlap", num_workers=1, max_lag=1),
        Candidate("hybrid"),
        Candidate("migrate"),
    ],
    ids=lambda candidate: candidate.label,
)
def test_a_trial_trains_as_the_candidate_says(candidate: Candidate) -> None:
    found = training("Acrobot-v1").try_out(candidate, 0.0, 0.5)
    assert found.candidate is candidate
    assert found.steps == CONFIG.batch_size
    assert min(found.sampling, found.learning) > 0.0
    assert (found.copying > 0.0) == (candidate.name != "cpu")
    assert found.iteration == found.sampling + found.learning + found.copying
    assert found.to_json()["label"] == candidate.label


@pytest.mark.parametrize(
    ("learning", "expected"),
    [
        ([(9.0, 1, 2), (1.0, 0, 0), (8.0, 1, 0), (3.0, 0, 0)], 2.0),
        ([(9.0, 0, 8), (7.0, 2, 4), (5.0, 1, 1)], 5.0),  # a trial too short for all sizes of minibatches
    ],
)
def test_a_trial_counts_the_updates_with_the_fewest_steps_that_are_not_replayed(
    learning: list[tuple[float, int, int]], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {
            "seconds_sampling": 1.0, "seconds_learning": seconds, "seconds_copying": 0.0,
            "graph_recordings": recordings, "graph_eager_steps": eager,
        }
        for seconds, recordings, eager in learning
    ]  # fmt: skip

    class Runner:
        def iterate(self) -> dict[str, float]:
            return rows.pop(0)

    monkeypatch.setattr(trials, "Runner", lambda *arguments, **options: Runner())
    monkeypatch.setattr(trials, "_iterations", lambda config: (0, len(learning)))
    assert training().try_out(Candidate("cpu"), 0.0).learning == expected


@pytest.mark.parametrize(
    ("env", "config"),
    [
        ("CartPole-v1", replace(CONFIG, recurrent="gru", recurrent_size=4, sequence_length=8)),
        ("Pendulum-v1", TD3Config(num_envs=2, hidden_sizes=(8,), batch_size=8)),
        ("Pendulum-v1", DDPGConfig(num_envs=1, hidden_sizes=(8,), batch_size=8)),
    ],
    ids=["memory", "td3", "ddpg"],
)  # fmt: skip
def test_a_trial_trains_any_agent(env: str, config: Any) -> None:
    found = training(env, config).try_out(Candidate("cpu"), 0.0)
    assert min(found.sampling, found.learning) > 0.0
    wanted = config.batch_size if isinstance(config, PPOConfig) else config.steps_per_iteration
    assert 0.8 * wanted < found.steps <= wanted  # the row after an episode's end is no step in CartPole's own vector


def test_updates_from_a_pool_are_measured_with_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    update = PPO.update

    def noted(agent: PPO, rollout: Any) -> Any:
        metrics = update(agent, rollout)
        seen.append(metrics["pool_rollouts"])
        return metrics

    monkeypatch.setattr(PPO, "update", noted)
    training(config=replace(CONFIG, pool_size=3)).try_out(Candidate("cpu"), 0.0)
    assert seen == [1.0, 2.0, 3.0, 3.0]  # the last alone is timed


class Counted(ScriptedEnv):
    made: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__(((5, "truncated"),))
        self.made.append(id(self))

    def step(self, action: Any) -> Any:
        random.random()
        np.random.random()  # noqa: NPY002
        torch.rand(1)
        return super().step(action)

    def close(self) -> None:
        self.closed.append(id(self))


def test_a_trial_leaves_nothing_behind() -> None:
    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002

    Counted.made.clear()
    Counted.closed.clear()
    before = states()
    training(Counted).try_out(Candidate("cpu"), 0.0)
    assert states() == before
    assert len(Counted.made) == CONFIG.num_envs
    assert sorted(Counted.made) == sorted(Counted.closed)


def test_a_trial_that_takes_too_long_is_broken_off() -> None:
    steps: list[float] = []

    class Slow(PPO):
        def loss(self, inputs: Any, clip_range: Any) -> Any:
            steps.append(time.perf_counter())
            time.sleep(0.05)
            return super().loss(inputs, clip_range)

    agent = Slow(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), CONFIG)
    with pytest.raises(Stopped):
        replace(training(), agent=agent).try_out(Candidate("cpu"), 0.0, 1.0, time.perf_counter() - 1.0)
    assert steps == []

    def seconds(candidate: Candidate) -> tuple[float, float]:
        if candidate.torch_threads == 4:
            raise Stopped
        return 0.01, 0.2 / candidate.torch_threads

    chosen, found = searched(seconds, replace(LIMITS, any_threads=True, splits=False))
    assert chosen.torch_threads == 2
    assert found.left_out == ["cpu, 4 threads: it took all the time that was left"]


def test_a_search_finds_that_workers_pay() -> None:
    class Sleeping(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            import time

            time.sleep(0.003)
            return np.zeros(3, np.float32), 0.0, False, False, {}

    found = Search(training(Sleeping), replace(LIMITS, cores=2))
    assert found.run() == Candidate("cpu", num_workers=2)
    assert found.trials["cpu, 2 workers"].start > 0.0
