"""Environments over Ray, stepped from one process: its bits, and if one is lost, one clear error or a new worker."""

import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from same_bits import counted, values_of
from short_runs import trainer
from stop_after import interrupt_at
from toy_agents import ScriptedAgents

import hybridppo
from hybridppo import EnvError, Environments, Mirrored, SingleLearnerFine

pytest.importorskip("ray")

from clusters import shared_cluster
from failing import failing, killed, raising, silent, stopped
from ppo_settings import ppo_config

pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

CONFIG = ppo_config(num_envs=5, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3)
STEPS = 5 * 16 * 4
OVERLAP = partial(Mirrored, "cpu", "cpu", max_lag=1)
"""A new placement for each training, because placements count."""
train = trainer(CONFIG, STEPS, vectorization="sync")
SCRIPTS = [[(3, "terminated"), (2, "truncated")], [(5, "truncated"), (0, ""), (1, "terminated")]]


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> None:
    shared_cluster()


class Joint(gym.Env[Any, Any]):
    """Observations and actions of several parts; the reward is the sum of the action. Only `here` may have torch."""

    def __init__(self, here: int) -> None:
        assert os.getpid() == here or "torch" not in sys.modules
        self.observation_space = Dict({"place": Box(-9, 9, (2,)), "room": Discrete(3)})
        self.action_space = Tuple((Discrete(3), Box(-1, 1, (2,))))

    def _seen(self) -> Any:
        return {"place": self.np_random.uniform(-1, 1, 2).astype(np.float32), "room": int(self.np_random.integers(3))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._seen(), float(action[0]) + float(action[1].sum()), False, self._steps == 7, {}


def test_workers_may_have_all_the_time_they_need() -> None:
    result = train(distributed=SingleLearnerFine(1), worker_timeout=math.inf, total_steps=80)
    assert result.metrics["env_steps"] == 80


@pytest.mark.parametrize(
    ("env", "distributed", "options"),
    [
        ("CartPole-v1", SingleLearnerFine(2), {}),
        ("CartPole-v1", Environments(3), {"placement": OVERLAP}),
        (partial(Joint, os.getpid()), Environments(2), {"config": replace(CONFIG, normalize_observations=True)}),
        (partial(ScriptedAgents, SCRIPTS), SingleLearnerFine(2), {"clip_rewards": True}),
        ("CartPole-v1", SingleLearnerFine(2), {"config": replace(CONFIG, recurrent="lstm", sequence_length=8)}),
        ("CartPole-v1", SingleLearnerFine(2), {"frame_stack": 3}),
    ],
    ids=["in turns", "overlapping", "joint spaces without torch", "several agents", "recurrent", "stacks of frames"],
)  # fmt: skip
def test_any_number_of_environment_workers_gives_the_bits_of_one_process(
    env: Any, distributed: Any, options: dict[str, Any]
) -> None:
    alone = train(env, num_workers=0, **options)
    assert alone.metrics["episodes"] > 0
    several = train(env, distributed=distributed, **options)
    assert torch.equal(values_of(several), values_of(alone))
    assert counted(several.metrics) == counted(alone.metrics)


def test_what_was_stopped_goes_on_locally_and_the_other_way_round_to_the_same_bits(tmp_path: Path) -> None:
    whole = train()

    run_dir, more = tmp_path / "run", {"progress": False, "on_interrupt": "return"}
    assert train(distributed="fine:3", run_dir=run_dir, on_iteration=interrupt_at(1)).interrupted
    assert hybridppo.resume(run_dir, distributed="local", on_iteration=interrupt_at(2), **more).interrupted
    last = hybridppo.resume(run_dir, distributed="environments:2", **more)
    assert torch.equal(values_of(last), values_of(whole))
    assert counted(last.metrics) == counted(whole.metrics)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (killed, {}, r"environment worker \d \(environments \d to \d\), process \d+ of \S+ is lost: ActorDiedError"),
        (silent, {"worker_timeout": 3.0}, r"environment worker \d .* has made no step for 3 s.*--worker-timeout"),
        (raising, {}, r"environment worker \d .* failed: environment \d \(seed \d+\) failed .*no more of this"),
    ],
    ids=["killed", "silent", "raising"],
)
def test_a_worker_that_is_lost_ends_the_training_in_one_error_and_what_was_saved_goes_on(
    what: Callable[[], None], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    env = failing(what, tmp_path / "mark")
    with pytest.raises(EnvError) as lost:
        train(env, distributed=SingleLearnerFine(2), run_dir=tmp_path / "run", **options)
    assert re.search(message, str(lost.value), re.DOTALL), str(lost.value)
    result = hybridppo.resume(tmp_path / "run", env=env, distributed="local", progress=False)
    assert result.metrics["env_steps"] == STEPS


@pytest.mark.parametrize(
    ("what", "timeout"),
    [
        pytest.param(killed, 60.0, id="killed"),
        pytest.param(silent, 3.0, id="silent", marks=pytest.mark.slow),
        pytest.param(stopped, 3.0, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_another_takes_the_place_of_a_worker_that_is_lost_where_that_is_asked_for(
    what: Callable[[], None], timeout: float, tmp_path: Path
) -> None:
    seen: list[dict[str, float]] = []
    result = train(
        failing(what, tmp_path / "mark"), distributed="fine:2", on_env_error="restart", worker_timeout=timeout,
        on_iteration=seen.append, total_steps=2 * STEPS,
    )  # fmt: skip
    assert result.metrics["env_restarts"] in (2, 3)  # the environments of one worker
    gained = [b["env_steps"] - a["env_steps"] for a, b in pairwise(seen)]
    assert min(gained) < 5 * 16 == max(gained)  # rows of episodes that were dropped are no steps
