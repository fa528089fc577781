"""A worker as Ray makes one, without Ray's processes: its actor, when it stops, and what it sends back."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hybridppo import PPO
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.pickling import pack
from hybridppo.networks.actors import arrays_of
from hybridppo.rollouts.rollout import MemoryLayout, Rollout
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.runners.workers import Work, Workers

pytest.importorskip("ray")

from ppo_settings import ppo_config

from hybridppo.distributed.ray_actors import RemoteSampler

pytestmark = pytest.mark.extras

STEPS = 6


class CapturedError(Exception):
    """Carries what would be needed to start workers."""


def fill(remote: RemoteSampler, flat: Any, first: int, end: int | None, noise: Any, stops: int = 0) -> Any:
    """The number of rows that are filled, and the new ones."""
    answer, seconds = remote.ask("fill", (1, first, end, stops, 7, flat, noise))
    assert (answer.turn, answer.first, answer.filled.version) == (1, first, 7)
    assert seconds >= 0.0
    return answer.filled.rows, answer.arrays


def capture(work: Work) -> Any:
    raise CapturedError(work)


@pytest.fixture
def share() -> tuple[RemoteSampler, Any, np.ndarray[Any, Any]]:
    """One of two workers, the actor's parameters, and noise for its two environments."""
    agent = PPO(*spaces(), ppo_config(num_envs=4, num_steps=STEPS, hidden_sizes=(4,)), seed=0)
    environments = make_environments("CartPole-v1", 4, vectorization="sync")
    plan = RolloutPlan(agent.distribution, np.random.default_rng(0), env_seed=3, num_steps=STEPS)
    with pytest.raises(CapturedError) as captured:
        Workers(
            "CartPole-v1", environments, agent.actor, plan, num_envs=4, num_workers=2, options=EnvironmentOptions(),
            transport=capture,
        )  # fmt: skip
    work: Work = captured.value.args[0]
    remote = RemoteSampler()
    remote.begin(pack(work.setup), sys.path, work.shares[1], 5)
    flat = np.concatenate([array.detach().numpy().reshape(-1) for array in arrays_of(agent.actor)])
    return remote, flat, np.zeros((STEPS, 2, 2), np.float32)


def spaces() -> tuple[Any, Any]:
    env = gym.make("CartPole-v1")
    return env.observation_space, env.action_space


def test_it_sends_back_the_rows_that_it_has_filled(share: Any) -> None:
    remote, flat, noise = share
    filled, rows = fill(remote, flat, 0, None, noise)
    assert filled == STEPS == remote.rows()
    assert rows["observations"].shape == (STEPS + 1, 2, 4)
    assert not len(rows["noise"])


def test_a_stop_ends_what_is_being_filled_and_not_a_part_with_an_end(
    share: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, flat, noise = share
    step, steps = remote._worker._environments.step, list[int]()

    def stopping(actions: Any) -> Any:
        steps.append(1)
        if len(steps) in (2, 4):
            remote.stop(remote.stops + 1)
        return step(actions)

    monkeypatch.setattr(remote._worker._environments, "step", stopping)
    assert fill(remote, flat, 0, None, noise)[0] == 2
    filled, rows = fill(remote, flat, 2, 5, None)
    assert filled == 5
    assert rows["rewards"].shape == (3, 2)
    # The stop of a part before stops nothing that was begun after it.
    filled, rows = fill(remote, flat, 5, None, noise[5:], stops=2)
    assert filled == STEPS
    assert rows["observations"].shape == (STEPS - 5 + 1, 2, 4)


def test_a_stop_also_ends_what_is_not_begun_yet(share: Any) -> None:
    remote, flat, noise = share
    remote.stop(1)
    filled, rows = fill(remote, flat, 0, None, noise)
    assert filled == 0
    assert rows.keys() == {"noise"}
    assert fill(remote, flat, 0, None, noise, stops=1)[0] == STEPS


def test_only_new_rows_are_sent() -> None:
    numbers = np.arange(10)
    rollout = Rollout(observations=numbers, rewards=numbers, states=numbers[:3], noise=numbers)
    rows = rollout.rows(9, MemoryLayout(state_size=1, sequence_length=4), slice(0), first=2)
    assert {name: own.tolist() for name, own in rows.items()} == {
        "observations": [*range(2, 10)], "rewards": [*range(2, 9)], "states": [1, 2], "noise": []
    }  # fmt: skip
