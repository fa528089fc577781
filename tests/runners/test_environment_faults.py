"""The promises for environments that misbehave, a section for each. The faults are real ones."""

import ctypes
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from ppo_settings import ppo_config
from processes import worker_processes
from sampling import sampler_of
from selection import only_by_default
from toy_agents import FaultyAgents
from toy_environments import MODES, FaultyEnv, IdentityDiscrete, ScriptedEnv, UndeclaredVector

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.environments.vector import wrap
from hybridppo.rollouts.advantages import gae, next_values
from hybridppo.runners import filling, processes
from hybridppo.runners.counts import rows_broken_off
from hybridppo.runners.sampler import Sampler
from hybridppo.system import seeds
from hybridppo.system.seeds import seed_of

NUM_ENVS = 6
SMALL = ppo_config(num_envs=NUM_ENVS, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
FIRST_SEED = seed_of(0, "environments")
"""Seed of the reset of environment 0 in a training with seed 0."""

in_process_and_in_workers = pytest.mark.parametrize("num_workers", [0, 2], ids=["in-process", "workers"])


def train(env: Any, **options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": 700, "seed": 0, "placement": "cpu", "progress": False, "config": SMALL} | options
    return hybridppo.train(env, **arguments)


def at(index: int, step: int, fault: Callable[..., Any]) -> Callable[[FaultyEnv, Any], Any]:
    """One environment of a training with seed 0 has `fault` at one step of its life; 0 is a reset before the first."""

    def look(env: FaultyEnv, result: Any) -> Any:
        is_now = env.seed == FIRST_SEED + index and env.steps == step and (env.episode_steps > 0 or step == 0)
        return fault(result) if is_now else result

    return look


def stick(result: Any) -> Any:
    raise ValueError("the motor is stuck")


def leave(result: Any) -> Any:
    sys.exit()


def with_observation(observation: Any) -> Callable[[Any], Any]:
    return lambda result: (observation, *result[1:])


def with_reward(reward: Any) -> Callable[[Any], Any]:
    return lambda result: (result[0], reward, *result[2:])


class WatchedActor:
    """Acts at random, and remembers whether all it saw was finite."""

    version = 0

    def __init__(self) -> None:
        self.has_seen_finite_only = True

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.has_seen_finite_only &= bool(np.isfinite(observations).all())
        return np.zeros((len(observations), 2), np.float32)


def collect(environments: Environments, num_steps: int = 40) -> WatchedActor:
    actor = WatchedActor()
    sampler = sampler_of(environments, num_steps=num_steps, env_seed=FIRST_SEED)
    try:
        sampler.collect(actor)
    finally:
        assert actor.has_seen_finite_only
        sampler.close()
    return actor


def vector_of(fault: Callable[..., Any], mode: AutoresetMode, num_envs: int = 3, **options: Any) -> SyncVectorEnv:
    """Gymnasium's own vector, as a user's function might make it."""
    return SyncVectorEnv([partial(FaultyEnv, fault, **options)] * num_envs, autoreset_mode=mode)


# An action mask with nothing allowed


def forbid(result: Any) -> Any:
    return (*result[:-1], {"action_mask": np.zeros(2, np.int8)})


def allow(result: Any) -> Any:
    return (*result[:-1], {"action_mask": np.array([0, 1], np.int8)})


def masked(index: int, step: int) -> Callable[[FaultyEnv, Any], Any]:
    """All actions are allowed except at one step of one environment, see `at`."""
    fault = at(index, step, forbid)

    def look(env: FaultyEnv, result: Any) -> Any:
        return fault(env, allow(result))

    return look


WAYS_TO_STEP = {"in-process": {}, "workers": {"num_workers": 2}}


@pytest.mark.parametrize("way", WAYS_TO_STEP)
def test_action_mask_with_nothing_allowed(way: str) -> None:
    words = (
        f"environment 4 (seed {FIRST_SEED + 4}) failed in step 3 of its episode, 23 after the first reset, action 1: "
        "its action mask allows no action, and the episode has not ended"
    )
    with pytest.raises(EnvError, match=re.escape(words)):
        train(partial(FaultyEnv, masked(4, 23)), action_masks=True, **WAYS_TO_STEP[way])


def test_action_mask_with_nothing_allowed_in_a_reset() -> None:
    words = f"environment 4 (seed {FIRST_SEED + 4}) failed in a reset, 0 steps after the first: its action mask allows"
    with pytest.raises(EnvError, match=re.escape(words)):
        train(partial(FaultyEnv, masked(4, 0)), action_masks=True)


def test_action_mask_with_nothing_allowed_in_whole_episodes() -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=3, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    with pytest.raises(EnvError, match=r"failed in step 3 of its episode, 3 after .*allows no action, and the episode"):
        train(partial(FaultyEnv, masked(0, 3)), action_masks=True, config=config)


def test_action_mask_with_nothing_allowed_and_the_environment_made_anew() -> None:
    result = train(partial(FaultyEnv, masked(4, 23)), action_masks=True, on_env_error="restart")
    assert result.metrics["env_restarts"] == 1


# `step` or `reset` raises


@in_process_and_in_workers
def test_step_raises(num_workers: int) -> None:
    with pytest.raises(EnvError) as raised:
        train(partial(FaultyEnv, at(4, 23, stick)), num_workers=num_workers)
    words = str(raised.value)
    where = f"environment 4 (seed {FIRST_SEED + 4}) failed in step 3 of its episode, 23 after the first reset, action "
    assert where in words
    assert words[words.index(where) + len(where)] in "01"
    assert "ValueError: the motor is stuck" in words
    # The original traceback; cloudpickle 3.1.3 replaces the names of files.
    assert 'test_environment_faults.py", line' in words or 'File "<dynamic-code>", line' in words
    assert "in stick\n" in words
    assert words.startswith("worker 1 (environments 3 to 5) failed: " if num_workers else "environment 4")


def test_reset_raises() -> None:
    def stick_in_third_reset(env: FaultyEnv, result: Any) -> Any:
        return stick(result) if env.seed == FIRST_SEED + 1 and env.steps == 20 and env.episode_steps == 0 else result

    with pytest.raises(EnvError) as raised:
        train(partial(FaultyEnv, stick_in_third_reset))
    words = str(raised.value)
    assert f"environment 1 (seed {FIRST_SEED + 1}) failed in a reset, 20 steps after the first: ValueError" in words
    assert "in stick\n" in words


def test_step_raises_and_the_last_checkpoint_is_kept(tmp_path: Path) -> None:
    fault = at(0, 40, stick)  # in the third rollout
    with pytest.raises(EnvError, match="the motor is stuck"):
        train(partial(FaultyEnv, fault), run_dir=tmp_path / "run", checkpoint_seconds=1e-9)
    agent = hybridppo.load(tmp_path / "run")
    assert agent.version == 2


@pytest.mark.parametrize("mode", MODES)
def test_step_raises_in_a_vector_that_the_user_made(mode: AutoresetMode) -> None:
    environments = wrap(vector_of(at(1, 5, stick), mode), first=6)
    where = (
        rf"environments 6 to 8, a SyncVectorEnv \(seed {FIRST_SEED}\), failed in step 5, with actions \[[01], [01], "
    )
    with pytest.raises(EnvError, match=where + r"[01]\]: ValueError: the motor is stuck") as raised:
        collect(environments)
    assert "in stick\n" in str(raised.value)


@in_process_and_in_workers
def test_step_calls_sys_exit(num_workers: int) -> None:
    where = rf"environment 4 \(seed {FIRST_SEED + 4}\) failed in step 3 of its episode, 23 after .*, action [01]"
    source = partial(FaultyEnv, at(4, 23, leave))
    with pytest.raises(EnvError, match=where + r": SystemExit: .*it called sys.exit\(\) .*: return terminated=True"):
        train(source, num_workers=num_workers)
    assert train(source, num_workers=num_workers, on_env_error="restart").metrics["env_restarts"] == 1


def test_reset_and_close_call_sys_exit(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EnvError, match="failed in a reset, 0 steps after the first: SystemExit"):
        train(partial(FaultyEnv, at(1, 0, leave)))

    class Closing(FaultyEnv):
        def close(self) -> None:
            sys.exit(3)

    assert train(partial(Closing, lambda env, result: result)).metrics["env_steps"] >= 700
    assert "could not be closed" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_that_the_user_made_calls_sys_exit(mode: AutoresetMode) -> None:
    for step, when in ((5, "in step 5"), (0, "in their reset")):
        with pytest.raises(EnvError, match=f"failed {when}.*: SystemExit"):
            collect(wrap(vector_of(at(1, step, leave), mode)))


def test_ctrl_c_in_an_environment_is_no_failure() -> None:
    def interrupt(result: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(partial(FaultyEnv, at(1, 5, interrupt)), on_env_error="restart")


@pytest.mark.parametrize("mode", MODES)
def test_reset_raises_in_a_vector_that_the_user_made(mode: AutoresetMode) -> None:
    with pytest.raises(EnvError, match="failed in their reset: ValueError: the motor is stuck"):
        collect(wrap(vector_of(at(1, 0, stick), mode)))


def test_an_env_error_in_the_reset_of_a_vector_is_raised_as_it_is() -> None:
    def refuse(result: Any) -> Any:
        raise EnvError("the door is locked")

    with pytest.raises(EnvError, match=r"^the door is locked$"):
        collect(wrap(vector_of(at(1, 0, refuse), AutoresetMode.NEXT_STEP)))


# on_env_error="restart"


def hand_made(rows: str) -> np.ndarray:
    """A `[T, 1]` bool array from a row of dots and crosses."""
    return np.array([[mark == "x"] for mark in rows])


@pytest.mark.parametrize(
    ("ended", "broken_off", "rows"),
    [
        ("......", "...x..", "xxxx.."),
        (".x....", "...x..", "..xx.."),
        (".x..x.", "...x..", "..xx.."),
        ("......", "x....x", "xxxxxx"),
        (".x....", "x....x", "x.xxxx"),
        ("......", "......", "......"),
    ],
)
def test_restart_drops_the_rows_of_the_broken_off_episode_alone(ended: str, broken_off: str, rows: str) -> None:
    found = rows_broken_off(hand_made(ended), hand_made(broken_off))
    np.testing.assert_array_equal(found, hand_made(rows))


def failing_once(steps: int, index: int = 1) -> Callable[[FaultyEnv, Any], Any]:
    """Raises after this many steps of an environment whose seed comes from the sampler: one that was not restarted."""
    return at(index, steps, stick)


def restarting_sampler(fault: Any, num_steps: int = 8, num_envs: int = 3, **options: Any) -> Sampler:
    source = partial(FaultyEnv, fault, **options)
    environments = make_environments(source, num_envs, on_env_error="restart")
    return sampler_of(environments, num_steps=num_steps, env_seed=FIRST_SEED)


def test_restart_drops_the_partial_episode_and_counts_it(caplog: pytest.LogCaptureFixture) -> None:
    # Episodes of 5 steps, rollouts of 8. Environment 1 raises in its 14th step, the 4th of its episode: row 5 of the
    # second rollout. Its episode began in row 2 of it.
    sampler = restarting_sampler(failing_once(14), length=5)
    actor = WatchedActor()
    first = sampler.collect(actor)
    assert len(first.valid_rows) == 24
    rollout = sampler.collect(actor)
    lost = {2 * 3 + 1, 3 * 3 + 1, 4 * 3 + 1, 5 * 3 + 1}
    assert rollout.valid_rows.tolist() == [row for row in range(24) if row not in lost]
    assert sampler.counts.env_restarts == 1
    assert sampler.counts.env_steps == 48 - 4
    assert sampler.counts.statistics.episodes == 3 * 3 - 1  # after 16 steps each
    assert rollout.terminated[5].tolist() == [False, True, False]
    assert "environment 1 " in caplog.text
    assert "the motor is stuck" in caplog.text
    assert "The environment is restarted" in caplog.text
    # The new one's first episode begins in row 6, and ends 5 steps later: row 2 of the third rollout.
    rollout = sampler.collect(actor)
    assert len(rollout.valid_rows) == 24
    assert np.flatnonzero(rollout.truncated[:, 1]).tolist() == [2, 7]
    assert sampler.counts.statistics.length_mean == 5.0
    assert sampler.counts.statistics.return_mean == 5.0
    sampler.close()


def test_restart_forgets_what_an_episode_gained_in_rollouts_before() -> None:
    sampler = restarting_sampler(failing_once(12), length=20)
    for _ in range(5):
        sampler.collect(WatchedActor())
    # 40 steps each: two episodes of two environments; of the other, 12 steps, and one of 20.
    assert sampler.counts.statistics.episodes == 5
    assert sampler.counts.statistics.length_mean == sampler.counts.statistics.return_mean == 20.0
    sampler.close()


def test_restart_lets_nothing_of_the_broken_off_episode_into_an_advantage() -> None:
    sampler = restarting_sampler(failing_once(6), length=4)
    rollout = sampler.collect(WatchedActor())
    agent = PPO(Box(-1, 1, (2,)), Discrete(2), ppo_config(num_envs=3, num_steps=8))

    def advantages(rewards: Any) -> Any:
        values = agent.critic(rollout.observations).squeeze(-1)
        following = next_values(
            values=values, final_rows=rollout.final_rows, final_values=agent.critic(rollout.final_observations)[:, 0]
        )
        return gae(
            rewards=rewards, values=values[:-1], next_values=following, terminated=rollout.terminated,
            truncated=rollout.truncated, gamma=0.99, gae_lambda=0.95,
        )  # fmt: skip

    lost = [row for row in range(24) if row not in rollout.valid_rows.tolist()]
    assert lost == [13, 16]  # steps 5 and 6: rows 4 and 5
    spoiled = rollout.rewards.clone()
    spoiled.view(-1)[lost] = 1e6
    difference = (advantages(spoiled) - advantages(rollout.rewards)).flatten()
    assert (difference[lost] != 0).all()
    assert (difference[rollout.valid_rows] == 0).all()
    sampler.close()


def test_restart_after_an_episode_drops_nothing() -> None:
    def stick_in_a_reset(env: FaultyEnv, result: Any) -> Any:
        is_now = env.seed == FIRST_SEED + 1 and env.steps == 5 and env.episode_steps == 0
        return stick(result) if is_now else result

    sampler = restarting_sampler(stick_in_a_reset, length=5)
    rollout = sampler.collect(WatchedActor())
    assert len(rollout.valid_rows) == 24
    assert sampler.counts.env_restarts == 1
    assert sampler.counts.statistics.episodes == 3
    sampler.close()


def test_restart_in_the_first_reset_is_counted_when_the_next_episode_begins() -> None:
    sampler = restarting_sampler(at(1, 0, stick), num_steps=4, length=5)
    rollout = sampler.collect(WatchedActor())
    assert len(rollout.valid_rows) == 12
    resumed = restarting_sampler(at(1, 0, stick), num_steps=4, length=5)
    assert resumed.load_state(*sampler.state(), env_seed=0) is None
    for each in (sampler, resumed):
        assert len(each.collect(WatchedActor()).valid_rows) == 12
        assert each.counts.env_restarts == 1
        assert each.counts.statistics.return_mean == 5.0
        each.close()


@pytest.mark.parametrize(
    "fault",
    [with_reward(math.nan), with_observation(np.array([np.inf, 0.0], np.float32)), with_observation(np.zeros(3))],
    ids=["reward", "observation", "shape"],
)
def test_restart_where_a_value_cannot_be_used(fault: Any) -> None:
    sampler = restarting_sampler(at(1, 6, fault), length=20)
    actor = WatchedActor()
    rollout = sampler.collect(actor)
    assert actor.has_seen_finite_only
    assert rollout.rewards.isfinite().all()
    assert rollout.observations.isfinite().all()
    assert sampler.counts.env_restarts == 1
    assert len(rollout.valid_rows) == 24 - 6
    sampler.close()


@pytest.mark.parametrize(
    ("placement", "num_workers"),
    [("cpu", 0), ("cpu", 2), (Mirrored("cpu", "cpu", max_lag=1), 0)],
    ids=["by turns", "workers", "overlapping"],
)
def test_restart_trains_on(placement: Any, num_workers: int, tmp_path: Path) -> None:
    source = partial(FaultyEnv, at(4, 23, stick))
    options = {"placement": placement, "num_workers": num_workers, "on_env_error": "restart"}
    result = train(source, run_dir=tmp_path / "run", **options)
    assert result.metrics["env_restarts"] == 1
    assert result.metrics["env_steps"] >= 700
    assert (result.metrics["env_steps"] + 3) % (NUM_ENVS * SMALL.num_steps) == 0  # the failing step is the third lost
    assert json.loads((tmp_path / "run" / "config.json").read_text())["on_env_error"] == "restart"
    resumed = hybridppo.resume(tmp_path / "run", total_steps=1400, env=source, progress=False)
    assert resumed.metrics["env_restarts"] >= 1
    assert resumed.metrics["env_steps"] >= 1400


def test_restart_gives_the_same_however_many_workers_there_are() -> None:
    source = partial(FaultyEnv, at(4, 23, stick))
    results = [train(source, num_workers=num_workers, on_env_error="restart") for num_workers in (0, 3)]
    first, *others = [result.agent.parameters.values.detach() for result in results]
    assert all(np.array_equal(first, other) for other in others)


def test_restart_of_whole_episodes() -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, num_minibatches=1, hidden_sizes=(8,))

    def stick_twice(env: FaultyEnv, result: Any) -> Any:
        # Episodes of 10 steps. Reset with the seed of the fourth: in its middle, and when it is reset again.
        is_fourth = env.seed == FIRST_SEED + 3
        return stick(result) if is_fourth and env.episode_steps in (4, 0) and made_anew(env) else result

    broken: list[int] = []

    def made_anew(env: FaultyEnv) -> bool:
        if env.episode_steps == 4:
            broken.append(env.steps)
        return env.episode_steps == 4

    result = train(partial(FaultyEnv, stick_twice), config=config, total_steps=100, on_env_error="restart")
    assert broken == [34]
    assert result.metrics["env_restarts"] == 1
    assert result.metrics["env_steps"] == 100
    assert result.metrics["episodes"] == 10
    assert result.metrics["episode_return_mean"] == 10.0


def test_restart_again_and_again_is_an_error() -> None:
    with pytest.raises(EnvError, match=r"4 failures in a row, the last: environment 0 .*the motor is stuck"):
        train(
            partial(FaultyEnv, lambda env, result: stick(result) if env.steps == 3 else result), on_env_error="restart"
        )
    with pytest.raises(EnvError, match=r"4 failures in a row, the last: environment 0 .*the motor is stuck"):
        train(partial(FaultyEnv, lambda env, result: stick(result)), on_env_error="restart")


def test_restart_of_what_fails_now_and_then_is_no_error() -> None:
    # Fails in every second episode: each failure follows a whole one.
    def fault(env: FaultyEnv, result: Any) -> Any:
        return stick(result) if env.steps == 15 else result

    result = train(partial(FaultyEnv, fault), on_env_error="restart", total_steps=2000)
    assert result.metrics["env_restarts"] > 4 * NUM_ENVS


def test_restart_with_no_step_left_is_an_error() -> None:
    # The only environment fails in the last step of every rollout.
    sampler = restarting_sampler(lambda env, result: stick(result) if env.steps == 128 else result, 128, 1, length=999)
    with pytest.raises(EnvError, match="in 4 rollouts in a row, every episode was broken off"):
        sampler.collect(WatchedActor())
    sampler.close()


def test_restart_with_no_step_left_samples_again() -> None:
    sampler = restarting_sampler(failing_once(8, index=0), 8, 1, length=999)
    rollout = sampler.collect(WatchedActor())
    assert rollout.valid_rows.tolist() == list(range(8))
    assert sampler.counts.env_steps == 8
    assert sampler.counts.env_restarts == 1
    sampler.close()


def test_restart_in_an_evaluation_counts_whole_episodes_alone() -> None:
    failed: list[int] = []

    def fail_once(env: FaultyEnv, result: Any) -> Any:
        if env.steps == 7 and not failed:
            failed.append(1)
            return stick(result)
        return result

    agent = PPO(Box(-1, 1, (2,)), Discrete(2), SMALL)
    evaluation = hybridppo.evaluate_agent(
        agent, partial(FaultyEnv, fail_once), episodes=7, on_env_error="restart", progress=False
    )
    assert failed
    assert evaluation.returns == (10.0,) * 7
    assert evaluation.lengths == (10,) * 7


def test_restart_takes_copies_where_there_is_a_vectorised_form() -> None:
    environments = make_environments("CartPole-v1", 2, on_env_error="restart")
    assert isinstance(environments, SubEnvironments)


def test_restart_of_what_the_library_does_not_make_is_refused() -> None:
    vector = partial(vector_of, lambda env, result: result, AutoresetMode.NEXT_STEP, NUM_ENVS)
    with pytest.raises(ConfigurationError, match="a SyncVectorEnv that a function makes: let it make one"):
        train(vector, on_env_error="restart")
    with pytest.raises(ConfigurationError, match="on_env_error must be one of raise, restart, got 'ignore'"):
        train("CartPole-v1", on_env_error="ignore")


# A worker process is killed, or dies in native code; `step` hangs

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def die(result: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_native_code(result: Any) -> Any:
    ctypes.string_at(0)


def hang(result: Any) -> Any:
    while True:
        signal.pause()


@posix
@pytest.mark.cold_workers  # how a child of this process ends
@pytest.mark.parametrize(
    ("fault", "how"),
    only_by_default(
        ("native code",),
        [pytest.param(die, "SIGKILL", id="killed"), pytest.param(die_in_native_code, "SIGSEGV", id="native code")],
    ),
)
def test_worker_killed_or_dead_in_native_code_is_named_with_its_signal(fault: Any, how: str) -> None:
    with pytest.raises(EnvError, match=rf"worker 1 \(environments 3 to 5\) has died: killed by {how}"):
        train(partial(FaultyEnv, at(4, 23, fault)), num_workers=2)
    assert not worker_processes()


@posix
def test_worker_killed_is_noticed_while_another_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_CLOSE", 0.1)

    def fault(env: FaultyEnv, result: Any) -> Any:
        return at(4, 3, die)(env, at(0, 1, hang)(env, result))  # the first would keep its worker for ever

    with pytest.raises(EnvError, match=r"worker 1 .* has died: killed by SIGKILL"):
        train(partial(FaultyEnv, fault), num_workers=2)
    assert not worker_processes()


@posix
@pytest.mark.parametrize(("fault", "num_workers"), [(die, 1), (die, 2), (hang, 2)])
def test_worker_killed_or_hung_is_replaced_with_restart(
    fault: Any, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = partial(FaultyEnv, at(4, 23, fault))
    result = train(source, num_workers=num_workers, on_env_error="restart", worker_timeout=0.5)
    lost = NUM_ENVS // num_workers
    assert result.metrics["env_restarts"] == lost
    # All that the worker had sampled of the second rollout is lost; where that is everything, it is sampled again.
    assert (result.metrics["env_steps"] + (lost * SMALL.num_steps) % 96) % 96 == 0
    assert result.metrics["env_steps"] >= 700
    assert result.metrics["episode_length_mean"] == result.metrics["episode_return_mean"] == 10.0
    how = "killed by SIGKILL" if fault is die else "has made no step for 0.5 s, after 6 of its rollout"
    assert how in caplog.text
    assert not worker_processes()


@posix
@pytest.mark.parametrize(
    ("placement", "saves"),
    [("cpu", True), (Mirrored("cpu", "cpu", max_lag=1), False)],
    ids=["by turns, at a checkpoint", "overlapping"],
)
def test_worker_killed_between_rollouts_is_replaced_with_restart(placement: Any, saves: bool, tmp_path: Path) -> None:
    victims = iter((3, 5))

    def kill(metrics: Any) -> None:
        if metrics["iteration"] in (3, 5):
            processes = worker_processes()
            assert len(processes) == 2
            processes[next(victims) % 2].send_signal(signal.SIGKILL)
            gone, _ = psutil.wait_procs(processes, timeout=0.01)
            while not gone:
                gone, _ = psutil.wait_procs(processes, timeout=0.01)

    options = {"run_dir": tmp_path / "run", "checkpoint_seconds": 1e-9} if saves else {}
    result = train(
        partial(FaultyEnv, lambda env, result: result), placement=placement, num_workers=2, on_env_error="restart",
        on_iteration=kill, **options,
    )  # fmt: skip
    assert result.metrics["env_restarts"] == NUM_ENVS
    assert result.metrics["episode_length_mean"] == result.metrics["episode_return_mean"] == 10.0
    assert not worker_processes()


@posix
def test_worker_killed_is_replaced_by_one_whose_environments_take_seeds_that_none_had(tmp_path: Path) -> None:
    """Otherwise, all replaced environments would sample the same episodes, or repeat what went wrong."""
    seeds = tmp_path / "seeds"

    class Noted(FaultyEnv):
        def __init__(self) -> None:
            super().__init__(at(0, 5, stick))  # and is restarted before its worker is killed

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if seed is not None:
                with seeds.open("a") as file:  # each line in one write, whichever process it is of
                    file.write(f"{seed}\n")
            return super().reset(seed=seed)

    victims: list[psutil.Process] = []

    def kill(metrics: Any) -> None:
        # Of the first two workers one after the other, and then the one in place of the first.
        seen = {process.pid: process for process in worker_processes()}
        if len(victims) < 2:
            first = [process for process in seen.values() if process in begun] or list(seen.values())
            begun.extend(first)
            victims.append(first[0])
        elif len(victims) == 2:
            victims.append(next(process for process in seen.values() if process not in begun))
        else:
            return
        victims[-1].kill()
        victims[-1].wait(timeout=60)

    begun: list[psutil.Process] = []
    result = train(Noted, num_workers=2, on_env_error="restart", on_iteration=kill)
    assert result.metrics["env_restarts"] == 3 * NUM_ENVS // 2 + 1
    found = [int(line) for line in seeds.read_text().split()]
    assert len(found) == len(set(found)) == NUM_ENVS + 3 * NUM_ENVS // 2 + 1
    assert not worker_processes()


@posix
def test_worker_killed_again_and_again_is_an_error() -> None:
    def fault(env: FaultyEnv, result: Any) -> Any:
        return die(result) if env.steps == 3 else result

    with pytest.raises(EnvError, match=r"lost 4 times in a row, .* killed by SIGKILL"):
        train(partial(FaultyEnv, fault), num_workers=1, on_env_error="restart")
    assert not worker_processes()


@posix
def test_step_hangs_and_the_worker_is_named() -> None:
    where = r"worker 1 \(environments 3 to 5\) has made no step for 0\.5 s, after 6 of its rollout: .*worker_timeout"
    with pytest.raises(EnvError, match=where):
        train(partial(FaultyEnv, at(4, 23, hang)), num_workers=2, worker_timeout=0.5)
    assert not worker_processes()


@posix
def test_the_first_reset_hangs_and_the_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_START", 0.6)
    with pytest.raises(EnvError, match=r"worker 0 \(environments 0 to 5\) has made no step for 0\.6 s, after 0 of"):
        train(partial(FaultyEnv, at(4, 0, hang)), num_workers=1, worker_timeout=0.3)
    assert not worker_processes()


def test_slow_steps_are_no_hang() -> None:
    def fault(env: FaultyEnv, result: Any) -> Any:
        time.sleep(0.01)  # a rollout of 96 steps takes longer than the timeout
        return result

    train(partial(FaultyEnv, fault), num_workers=1, worker_timeout=0.6, total_steps=96)


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan])
def test_step_hangs_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="worker_timeout must be positive"):
        train("CartPole-v1", worker_timeout=timeout)


# NaN or infinite observation or reward


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (with_observation(np.array([0.5, np.nan], np.float32)), "its observation[1] is nan"),
        (with_observation(np.array([-np.inf, 0.5], np.float32)), "its observation[0] is -inf"),
        (with_observation(np.array([0.5, np.inf], np.float32)), "its observation[1] is inf"),
        (with_reward(math.nan), "its reward is nan"),
        (with_reward(-math.inf), "its reward is -inf"),
    ],
    ids=["nan", "-inf", "inf", "reward nan", "reward -inf"],
)
def test_nan_or_infinite_observation_or_reward(fault: Any, words: str) -> None:
    for step, when in ((1, "step 1 of its episode"), (17, "step 7 of its episode")):
        with pytest.raises(EnvError) as raised:
            train(partial(FaultyEnv, at(2, step, fault)))
        message = str(raised.value)
        assert f"environment 2 (seed {FIRST_SEED + 2}) failed in {when}, {step} after the first reset" in message
        assert words in message


def test_nan_observation_never_reaches_the_networks() -> None:
    bad = with_observation(np.array([0.5, np.nan], np.float32))
    for step in (0, 1, 7, 10, 20):  # 10 and 20 are final observations
        with pytest.raises(EnvError, match=r"observation.*nan"):
            collect(make_environments(partial(FaultyEnv, at(1, step, bad)), 3))
        for mode in MODES:
            with pytest.raises(EnvError, match=r"observation.*nan"):
                collect(wrap(vector_of(at(1, step, bad), mode)))


def test_nan_observation_in_a_reset() -> None:
    def fault(env: FaultyEnv, result: Any) -> Any:
        return ((np.array([np.nan, 0.0], np.float32)), {}) if env.steps == 20 and env.episode_steps == 0 else result

    with pytest.raises(EnvError, match=r"environment 0 .* in a reset, 20 steps after the first: its observation\[0\]"):
        collect(make_environments(partial(FaultyEnv, fault), 3))


@pytest.mark.parametrize("mode", MODES)
def test_nan_observation_in_a_vector_that_the_user_made(mode: AutoresetMode) -> None:
    bad = with_observation(np.array([0.5, np.nan], np.float32))
    with pytest.raises(EnvError, match=r"failed in step 7: the observation of environment 8: observation\[1\] is nan"):
        collect(wrap(vector_of(at(2, 7, bad), mode), first=6))


@pytest.mark.parametrize("mode", MODES)
def test_nan_reward_in_a_vector_that_the_user_made(mode: AutoresetMode) -> None:
    for step in (1, 7, 40):
        words = rf"failed in step {step}: the reward of environment 8: reward is nan"
        with pytest.raises(EnvError, match=words):
            collect(wrap(vector_of(at(2, step, with_reward(math.nan)), mode, length=99), first=6))


WIDE = Box(-np.inf, np.inf, (2,), np.float64)
BEYOND = {
    "observation": (WIDE, (0.0, 0.0), with_observation(np.array([0.0, 1e39])), r"observation\[1\]"),
    "first": (WIDE, (0.0, 0.0), with_observation(np.array([0.0, 1e39])), r"observation\[1\]"),
    "part": (
        Dict(room=Discrete(2), speed=WIDE),
        {"room": 1, "speed": (0.0, 0.0)},
        with_observation({"room": 1, "speed": np.array([0.0, 1e39])}),
        r"observation\['speed'\]\[1\]",
    ),
    "reward": (WIDE, (0.0, 0.0), with_reward(1e39), "its reward"),
}


@pytest.mark.parametrize("where", [*BEYOND, "vector", "agent"])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_number_beyond_float32_is_shown_as_it_was_returned(where: str) -> None:
    space, usual, fault, name = BEYOND.get(where, BEYOND["observation"])
    make = partial(FaultyEnv, at(0, 0 if where == "first" else 3, fault), observation_space=space, good=usual)
    source: Any = make
    if where == "vector":
        source = partial(SyncVectorEnv, [make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    if where == "agent":
        change = {"agent_0": np.array([0.0, 1e39, 0.0]), "agent_1": np.zeros(3)}
        source = partial(FaultyAgents, lambda env, result: (change, *result[1:]) if env.steps == 3 else result)
        name = r"agent 'agent_0': its observation\[1\]"
    with pytest.raises(EnvError, match=rf"{name} is 1e\+39, and the largest number of float32 is 3.4e\+38"):
        train(source, config=replace(SMALL, num_envs=2))


def test_large_finite_observations_are_no_fault() -> None:
    largest = np.finfo(np.float32).max
    space = Box(-np.inf, np.inf, (64,), np.float32)
    fault = at(0, 3, with_observation(np.full(64, largest, np.float32)))
    collect(make_environments(partial(FaultyEnv, fault, observation_space=space, good=(0.0,) * 64), 1))


# Wrong observation shape, dtype or range; reward of shape (1,)


@pytest.mark.parametrize("step", [0, 1], ids=["first reset", "first step"])
@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(3, np.float32), "its observation is of shape (3,), and that of its space is (2,)"),
        (np.zeros(1, np.float32), "its observation is of shape (1,), and that of its space is (2,)"),
        ([[0.0, 0.0], [0.0]], "its observation is not an array"),
        (None, "its observation is not a number or an array of numbers: None"),
        ("left", "its observation is not a number or an array of numbers: 'left'"),
    ],
    ids=["shape", "shape that would be broadcast", "ragged", "none", "text"],
)
def test_wrong_observation(observation: Any, words: str, step: int) -> None:
    with pytest.raises(EnvError) as raised:
        train(partial(FaultyEnv, at(3, step, with_observation(observation))))
    assert f"environment 3 (seed {FIRST_SEED + 3}) failed in " in str(raised.value)
    assert words in str(raised.value)


def test_wrong_observation_dtype_where_casting_would_lose_something() -> None:
    source = partial(FaultyEnv, at(0, 1, with_observation(np.array([1.5, 2.0]))), good=(1, 2))
    with pytest.raises(
        EnvError, match="its observation is of float64 and has numbers that are not whole, but its space is of int64"
    ):
        collect(make_environments(partial(source, observation_space=Box(-9, 9, (2,), np.int64)), 2))


@pytest.mark.parametrize("observation", [4, -1, 1.5, np.array([1, 2])])
def test_wrong_observation_of_a_discrete_space(observation: Any) -> None:
    source = partial(FaultyEnv, at(0, 1, with_observation(observation)), observation_space=Discrete(4), good=1)
    with pytest.raises(EnvError, match=r"its observation (is|must be)"):
        collect(make_environments(source, 2))


def test_wrong_observation_shape_later_on() -> None:
    source = partial(FaultyEnv, at(1, 7, with_observation(np.zeros(1, np.float32))))
    with pytest.raises(EnvError, match=r"environment 1 .* step 7 .* of shape \(1,\)"):
        collect(make_environments(source, 2))


@pytest.mark.parametrize(("number", "words"), [(0.5, "not whole"), (300, "must be bytes")])
def test_an_image_of_other_numbers_later_on_is_refused_and_not_cut_to_bytes(number: float, words: str) -> None:
    good, image = np.zeros((8, 8, 1), np.uint8), np.full((8, 8, 1), number)
    source = partial(FaultyEnv, at(1, 7, with_observation(image)), observation_space=Box(0, 255, good.shape, np.uint8))
    with pytest.raises(EnvError, match=f"environment 1 .* step 7 .*{words}"):
        collect(make_environments(partial(source, good=good), 2))


@pytest.mark.parametrize(
    ("reward", "words"),
    [(None, "its reward is not a number"), ("much", "its reward is not a number"), (np.ones(2), "must be one number")],
)
def test_wrong_reward(reward: Any, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        collect(make_environments(partial(FaultyEnv, at(1, 1, with_reward(reward))), 2))


def test_wrong_number_of_values() -> None:
    with pytest.raises(EnvError, match="its step returned a tuple of 4 instead of the five values of gymnasium"):
        collect(make_environments(partial(FaultyEnv, at(1, 1, lambda result: result[:4])), 2))
    with pytest.raises(EnvError, match="its reset did not return two values"):
        collect(make_environments(partial(FaultyEnv, at(1, 0, lambda result: result[0])), 2))


class AsOthersWriteIt(gym.Wrapper[Any, Any, Any, Any]):
    """The same numbers in other forms, all of which can be cast without loss."""

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        return observation.astype(np.float64).tolist(), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return (
            observation[None].astype(np.float64),
            np.array([reward]),
            np.array([terminated]),
            np.int64(truncated),
            info,
        )


@in_process_and_in_workers
def test_reward_of_shape_1_and_whatever_else_can_be_cast_is(num_workers: int) -> None:
    plain = train(partial(gym.make, "CartPole-v1"), num_workers=num_workers)
    cast = train(lambda: AsOthersWriteIt(gym.make("CartPole-v1")), num_workers=num_workers)
    assert np.array_equal(cast.agent.parameters.values.detach(), plain.agent.parameters.values.detach())
    assert cast.metrics["episode_return_mean"] == plain.metrics["episode_return_mean"]


def test_whole_observations_of_a_discrete_space_are_cast() -> None:
    source = partial(FaultyEnv, lambda env, result: result, observation_space=Discrete(4, start=2))
    for good in (3, 3.0, np.int32(3), np.array(3), np.array([3])):
        environments = make_environments(partial(source, good=good), 2)
        environments.reset(0)
        for _ in range(3):
            assert environments.step(np.zeros(2, np.int64))[0].tolist() == [[0, 1, 0, 0]] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o, r, *rest: (o[:, :1], r, *rest), r"the 3 observations must be of shape \(3, 2\), not \(3, 1\)"),
        (lambda o, r, *rest: (o, r[:, None], *rest), r"rewards must be an array of 3 numbers, and is of .* \(3, 1\)"),
        (lambda o, r, *rest: (o, r.tolist(), *rest), r"rewards must be an array of 3 numbers, and is \[1.0"),
        (lambda *values: values[:4], "its step returned a tuple of 4 instead of the five values of gymnasium.vector"),
    ],
    ids=["shape", "reward shape", "reward list", "four values"],
)
def test_wrong_values_of_a_vector_that_the_user_made(change: Any, words: str) -> None:
    class Changed(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            return change(*super().step(actions))

    make = partial(FaultyEnv, lambda env, result: result)
    with pytest.raises(EnvError, match=words):
        collect(wrap(Changed([make] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)))


class OwnVector(VectorEnv[Any, Any, Any]):
    """A vector whose results are lists, as beginners write it."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_envs = 2
        self.single_observation_space, self.single_action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, **options: Any) -> Any:
        return [[0.5, 0.25]] * 2, {}

    def step(self, actions: Any) -> Any:
        return [[0.5, 0.25]] * 2, np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}


def test_observations_of_a_vector_may_be_lists() -> None:
    environments = make_environments(OwnVector, 2)
    assert environments.reset(0).tolist() == [[0.5, 0.25]] * 2
    assert environments.step(np.zeros(2, np.int64))[0].tolist() == [[0.5, 0.25]] * 2


def test_a_vector_that_resets_to_observations_alone_or_lacks_a_space_is_told_what_to_return_or_set() -> None:
    class Alone(OwnVector):
        def reset(self, **options: Any) -> Any:
            return np.zeros((2, 2), np.float32)

    class Batched(OwnVector):
        def __init__(self) -> None:
            self.num_envs, self.observation_space, self.action_space = 2, Box(-1.0, 1.0, (2, 2)), Discrete(2)

    with pytest.raises(EnvError, match=r"did not return two values"):
        make_environments(Alone, 2).reset(0)
    with pytest.raises(EnvError, match=r"Batched must have .* has none: set self.single_observation_space in its __in"):
        make_environments(Batched, 2)


def test_the_traceback_of_an_environment_begins_in_its_own_code() -> None:
    with pytest.raises(EnvError, match=r"in <lambda>\n(.*\n)*ZeroDivisionError: division by zero$") as raised:
        collect(make_environments(partial(FaultyEnv, at(1, 1, lambda result: 1 / 0)), 2))
    assert "sub_environments.py" not in str(raised.value)


# The environments of one vector differ in spaces, or a space is not supported


@pytest.mark.parametrize("differs", ["observation", "action"])
def test_environments_differ_in_spaces(differs: str) -> None:
    made: list[FaultyEnv] = []

    def make() -> FaultyEnv:
        made.append(FaultyEnv(lambda env, result: result))
        if len(made) == 3:
            made[-1].observation_space = Box(-2.0, 2.0, (2,)) if differs == "observation" else Box(-1.0, 1.0, (2,))
            made[-1].action_space = Discrete(3) if differs == "action" else Discrete(2)
        return made[-1]

    words = rf"the 6 environments differ: the {differs} space of environment 0 is .*, that of environment 2 is "
    with pytest.raises(EnvError, match=words):
        train(make)


def test_environments_differ_in_spaces_from_those_of_a_worker() -> None:
    trainer = os.getpid()

    def make() -> FaultyEnv:
        return FaultyEnv(lambda env, result: result, observation_space=Box(-1.0, 1.0, (2 + (os.getpid() != trainer),)))

    words = r"the 6 environments differ: the observation space of those made in the trainer is Box.*\(2,\).*\(3,\)"
    with pytest.raises(EnvError, match=words):
        train(make, num_workers=1)
    assert not worker_processes()


@pytest.mark.parametrize("on_env_error", ["raise", "restart"])
def test_unsupported_space_is_an_error_when_built(on_env_error: Any) -> None:
    source = partial(FaultyEnv, lambda env, result: result, observation_space=gym.spaces.Dict())
    with pytest.raises(EnvError, match=r"observation space Dict\(\) is not supported: it has no parts"):
        train(source, on_env_error=on_env_error)


# No autoreset mode, both ends at once


def test_no_autoreset_mode_declared_names_the_option() -> None:
    with pytest.raises(EnvError, match=r"set autoreset_mode \(--autoreset-mode\) to next_step, same_step or disabled"):
        train(lambda: UndeclaredVector([((3, "both"),)] * NUM_ENVS))


@pytest.mark.parametrize("kind", ["in turn", *MODES], ids=str)
def test_terminated_wins_where_both_are_true(kind: Any) -> None:
    source = partial(ScriptedEnv, ((3, "both"),))
    environments = make_environments(source, 1) if kind == "in turn" else wrap(
        SyncVectorEnv([source], autoreset_mode=kind)
    )  # fmt: skip
    sampler = sampler_of(environments, num_steps=3)
    rollout = sampler.collect(WatchedActor())
    sampler.close()
    assert rollout.terminated[2, 0]
    assert rollout.truncated[2, 0]
    assert len(rollout.final_rows) == 0
    values = torch.full((4, 1), 100.0)
    advantages = gae(
        rewards=rollout.rewards, values=values[:-1], next_values=values[1:], terminated=rollout.terminated,
        truncated=rollout.truncated, gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert advantages[:, 0].tolist() == [1.0 + 2.0 + 3.0 - 100.0, 2.0 + 3.0 - 100.0, 3.0 - 100.0]


# An environment that cannot be pickled for worker processes


class Holder:
    """Holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def make(self) -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")


def unpicklable_sources() -> Iterator[tuple[str, Any]]:
    lock = threading.Lock()
    holder = Holder({"inner": [1, Holder(lock)]})

    def with_default(held: Any = holder) -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    yield "env's variable 'lock' is a lock", lambda: (lock, gym.make("CartPole-v1"))[1]
    yield "env's variable 'holder'.held['inner'][1].held is a lock", lambda: (holder, gym.make("CartPole-v1"))[1]
    yield "a default value of env.held['inner'][1].held is a lock", with_default
    yield "env.__self__.held['inner'][1].held is a lock", holder.make
    yield "env.args[0].held['inner'][1].held is a lock", partial(lambda held: gym.make("CartPole-v1"), holder)
    yield "env.keywords['held'].held is a lock", partial(lambda held: gym.make("CartPole-v1"), held=Holder(lock))


@pytest.mark.parametrize(("words", "source"), list(unpicklable_sources()))
def test_cannot_be_pickled_names_the_attribute(words: str, source: Any) -> None:
    train(source, total_steps=1)  # in this process
    with pytest.raises(EnvError) as raised:
        train(source, num_workers=2)
    assert f"the environment cannot be sent to worker processes: {words}, which cannot be pickled" in str(raised.value)
    assert "with num_workers=0" in str(raised.value)
    assert not worker_processes()


class SetsTheProcess(IdentityDiscrete):
    """Changes the working directory and torch's default type."""

    def step(self, action: Any) -> Any:
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        return super().step(action)


def test_what_an_environment_sets_in_the_process_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(filling, "_WARNED_OF", set())
    agent = train(SetsTheProcess, run_dir="run").agent
    hybridppo.evaluate_agent(agent, SetsTheProcess, episodes=1, progress=False)
    assert torch.get_default_dtype() == torch.float32  # which agents are made with
    assert caplog.text.count("the environment set the") == 2
    assert (tmp_path / "run" / "result.json").exists()


class DrawsGlobally(IdentityDiscrete):
    """Its rewards come from a global generator."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return observation, np.random.random(), *others  # noqa: NPY002 - that is the fault


@pytest.mark.parametrize(("env", "num_workers", "warns"), [
    (DrawsGlobally, 0, True), (DrawsGlobally, 1, False), (IdentityDiscrete, 0, False),
])  # fmt: skip
def test_draws_that_the_seed_does_not_reach_are_warned_of_once(
    env: Any, num_workers: int, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seeds, "_WARNED_OR_SEEDED", set())
    config = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,))
    hybridppo.train(
        env, total_steps=96, seed=0, placement="cpu", config=config, num_workers=num_workers, progress=False
    )
    assert caplog.text.count("global generator, so the seed does not fix the result") == warns


def test_draws_in_an_evaluation_are_warned_of_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = hybridppo.PPO(DrawsGlobally().observation_space, DrawsGlobally().action_space)
    monkeypatch.setattr(seeds, "_WARNED_OR_SEEDED", set())
    hybridppo.evaluate_agent(agent, DrawsGlobally, episodes=2, progress=False)
    assert caplog.text.count("global generator, so the seed does not fix the result") == 1
