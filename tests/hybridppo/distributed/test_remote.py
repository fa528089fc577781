"""A worker as Ray makes one, without Ray's processes: its actor, when it stops, and what it sends back."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hybridppo import PPO
from hybridppo.environments.making import make_environments
from hybridppo.environments.pickling import pack
from hybridppo.networks.actors import arrays_of
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.runners.workers import Work, Workers

pytest.importorskip("ray")

from ppo_settings import ppo_config

from hybridppo.distributed.ray_actors import RemoteSampler, new_rows

pytestmark = pytest.mark.extras

STEPS = 6


class CapturedError(Exception):
    """Carries what would be needed to start workers."""


def fill(remote: RemoteSampler, attempt: int, flat: Any, first: int, end: int | None, noise: Any) -> Any:
    """The number of rows that are filled, and the new ones."""
    (answered, filled, rows), seconds = remote.ask("fill", (attempt, 7, flat, first, end, noise))
    assert (answered, filled.version) == (attempt, 7)
    assert seconds >= 0.0
    return filled.rows, rows


def capture(work: Work) -> Any:
    raise CapturedError(work)


@pytest.fixture
def share() -> tuple[RemoteSampler, Any, np.ndarray[Any, Any]]:
    """One of two workers, the actor's parameters, and noise for its two environments."""
    agent = PPO(*spaces(), ppo_config(num_envs=4, num_steps=STEPS, hidden_sizes=(4,)), seed=0)
    environments = make_environments("CartPole-v1", 4, vectorization="sync")
    plan = RolloutPlan(agent.distribution, np.random.default_rng(0), env_seed=3, num_steps=STEPS)
    with pytest.raises(CapturedError) as captured:
        Workers("CartPole-v1", environments, agent.actor, plan, num_workers=2, transport=capture)
    work: Work = captured.value.args[0]
    remote = RemoteSampler()
    remote.begin(pack({**work.setup, "layout": work.layout}), sys.path, work.shares[1], 5)
    flat = np.concatenate([array.detach().numpy().reshape(-1) for array in arrays_of(agent.actor)])
    return remote, flat, np.zeros((STEPS, 2, 2), np.float32)


def spaces() -> tuple[Any, Any]:
    env = gym.make("CartPole-v1")
    return env.observation_space, env.action_space


def test_it_sends_back_the_rows_that_it_has_filled(share: Any) -> None:
    remote, flat, noise = share
    filled, rows = fill(remote, 1, flat, 0, None, noise)
    assert filled == STEPS == remote.rows()
    assert rows["observations"].shape == (STEPS + 1, 2, 4)
    assert "noise" not in rows


def test_a_stop_that_comes_before_its_part_holds_and_those_with_an_end_go_on(share: Any) -> None:
    remote, flat, noise = share
    remote.stop(1)
    assert fill(remote, 1, flat, 0, None, noise)[0] == 0
    remote.stop(2)
    filled, rows = fill(remote, 2, flat, 0, 3, None)
    assert filled == 3
    assert rows["rewards"].shape == (3, 2)
    # A stop of before is none for what was asked for after it.
    filled, rows = fill(remote, 3, flat, 3, None, noise[3:])
    assert filled == STEPS
    assert rows["observations"].shape == (STEPS - 3 + 1, 2, 4)


def test_only_new_rows_are_sent() -> None:
    class Memory:
        @staticmethod
        def num_sequences(num_steps: int) -> int:
            return -(-num_steps // 4)

    assert new_rows("rewards", 2, 6, None) == slice(2, 6)
    assert new_rows("observations", 2, 6, None) == slice(2, 7)
    assert new_rows("states", 2, 9, Memory) == slice(1, 3)  # type: ignore[arg-type]
