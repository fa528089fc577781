"""A worker as Ray makes one, without Ray's processes: its actor, when it stops, and what it sends back."""

import pickle
import sys
from dataclasses import replace
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

from hybridppo.distributed.remote import Fill, RemoteActor, RemoteSampler, new_rows

pytestmark = pytest.mark.extras

STEPS = 6


class CapturedError(Exception):
    """Carries what would be needed to start workers."""


def fill(remote: Any, *message: Any) -> Any:
    return pickle.loads(remote.answer(pickle.dumps(("fill", message))))


def capture(work: Work) -> Any:
    raise CapturedError(work)


@pytest.fixture
def share() -> tuple[RemoteActor, Any, np.ndarray[Any, Any]]:
    """One of two workers, the actor's parameters, and noise for its two environments."""
    agent = PPO(*spaces(), ppo_config(num_envs=4, num_steps=STEPS, hidden_sizes=(4,)), seed=0)
    environments = make_environments("CartPole-v1", 4, vectorization="sync")
    plan = RolloutPlan(agent.distribution, np.random.default_rng(0), env_seed=3, num_steps=STEPS)
    with pytest.raises(CapturedError) as captured:
        Workers("CartPole-v1", environments, agent.actor, plan, num_workers=2, transport=capture)
    work: Work = captured.value.args[0]
    remote = RemoteActor()
    kind, about, _ = remote.begin(
        pack({**work.setup, "layout": work.layout, "kind of servant": RemoteSampler}), sys.path, work.shares[1], 5
    )
    assert kind == "done", about
    flat = np.concatenate([array.detach().numpy().reshape(-1) for array in arrays_of(agent.actor)])
    return remote, flat, np.zeros((STEPS, 2, 2), np.float32)


def spaces() -> tuple[Any, Any]:
    env = gym.make("CartPole-v1")
    return env.observation_space, env.action_space


TASK = Fill(attempt=1, version=7, first=0, end=None)


def test_it_acts_by_the_version_that_it_is_asked_for_or_not_at_all(share: Any) -> None:
    remote, flat, noise = share
    kind, text, _ = fill(remote, TASK, None, noise)
    assert (kind, text) == ("error", "it was asked to act with parameters of version 7, and does not have them")
    kind, (task, filled, rows), seconds = fill(remote, TASK, flat, noise)
    assert (kind, task, filled.rows) == ("done", TASK, STEPS)
    assert rows["observations"].shape == (STEPS + 1, 2, 4)
    assert "noise" not in rows
    assert seconds > 0
    assert remote.rows() == STEPS
    ahead = replace(TASK, attempt=2, version=8, end=STEPS)
    message = "it was asked to act with parameters of version 8, and does not have them"
    assert fill(remote, ahead, None, None)[:2] == ("error", message)


def test_a_stop_that_comes_before_its_part_holds_and_those_with_an_end_go_on(share: Any) -> None:
    remote, flat, noise = share
    remote.tell("stop", 1)
    assert fill(remote, TASK, flat, noise)[1][1].rows == 0
    first_half = replace(TASK, attempt=2, end=3)
    remote.tell("stop", 2)
    _, (_, filled, rows), _ = fill(remote, first_half, None, None)
    assert filled.rows == 3
    assert rows["rewards"].shape == (3, 2)
    # A stop of before is none for what was asked for after it.
    rest = replace(TASK, attempt=3, first=3)
    _, (_, filled, rows), _ = fill(remote, rest, None, noise[3:])
    assert filled.rows == STEPS
    assert rows["observations"].shape == (STEPS - 3 + 1, 2, 4)


def test_what_an_environment_raises_is_told_in_its_words(share: Any) -> None:
    remote, flat, noise = share
    kind, text, _ = fill(remote, replace(TASK, first=STEPS + 5), flat, noise)
    assert kind == "error"
    assert "Traceback" in text


def test_only_new_rows_are_sent() -> None:
    class Memory:
        @staticmethod
        def num_sequences(num_steps: int) -> int:
            return -(-num_steps // 4)

    assert new_rows("rewards", 2, 6, None) == slice(2, 6)
    assert new_rows("observations", 2, 6, None) == slice(2, 7)
    assert new_rows("states", 2, 9, Memory) == slice(1, 3)  # type: ignore[arg-type]
