"""Sampling by several processes, here threads that tell each other what those would: one rollout, and one state."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from learner_kinds import KINDS, Kind
from ppo_settings import ppo_config

from hybridppo.agents import PPO
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.samplers.shared import SharedSampler

SIZE, NUM_ENVS, NUM_STEPS = 2, 4, 16
TIMEOUT = 60.0


def cut_short() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1", max_episode_steps=21)


class Meeting:
    """Where all bring what they have to say."""

    def __init__(self) -> None:
        self._said: list[bytes] = [b""] * SIZE
        self._barrier = threading.Barrier(SIZE)

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(data: bytes) -> list[bytes]:
            self._said[rank] = data
            self._barrier.wait(TIMEOUT)
            found = list(self._said)
            self._barrier.wait(TIMEOUT)
            return found

        return gather


def options_of(kind: Kind) -> EnvironmentOptions:
    return EnvironmentOptions(vectorization="sync", **kind.options)


def agent_of(kind: Kind) -> PPO:
    environments = make_environments(cut_short, 1, options_of(kind))
    config = replace(ppo_config(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(8,)), **kind.config)
    agent = PPO(environments.observation_space, environments.action_space, config, seed=1)
    SingleDevice("cpu").prepare(agent)
    environments.close()
    return agent


def alone(kind: Kind, agent: PPO) -> Sampler:
    return Sampler(
        make_environments(cut_short, NUM_ENVS, options_of(kind)), agent.distribution, num_steps=NUM_STEPS, env_seed=3,
        noise=np.random.default_rng(2), memory=agent.memory,
    )  # fmt: skip


def shared(kind: Kind, agent: PPO, rank: int, meeting: Meeting) -> SharedSampler:
    share = NUM_ENVS // SIZE
    return SharedSampler(
        make_environments(cut_short, share, options_of(kind), first=rank * share), agent.distribution, rank=rank,
        num_processes=SIZE, num_steps=NUM_STEPS, env_seed=3, noise=np.random.default_rng(2),
        gather=meeting.of(rank), memory=agent.memory,
    )  # fmt: skip


def sampled(sampler: BaseSampler, agent: PPO) -> dict[str, Any]:
    with SingleDevice("cpu").sampling(agent) as actor:
        rollout: Rollout = sampler.collect(actor)
    return {name: tensor.clone() for name, tensor in rollout.tensors().items()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("name", ["rows", "gru", "frames"])
def test_a_rollout_and_what_is_saved_are_those_of_one_process_and_either_goes_on_with_them(name: str) -> None:
    kind = KINDS[name]
    agent, meeting = agent_of(kind), Meeting()
    one = alone(kind, agent)
    first, second = sampled(one, agent), sampled(one, agent)
    assert len(first["final_rows"]) + len(second["final_rows"]) > 0
    tensors, state = one.state()
    third = sampled(one, agent)

    def of_rank(rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
        agent = agent_of(kind)  # whose actor remembers, so each has its own
        sampler = shared(kind, agent, rank, meeting)
        assert_same(sampled(sampler, agent), first)
        assert_same(sampled(sampler, agent), second)
        saved, told = sampler.state()
        assert_same(saved, tensors)
        assert_same(sampled(sampler, agent), third)
        sampler.load_state(tensors, state, env_seed=3)
        assert_same(sampled(sampler, agent), third)
        sampler.close()
        return saved, told

    with ThreadPoolExecutor(SIZE) as pool:
        (saved, told), _ = [each.result(TIMEOUT) for each in [pool.submit(of_rank, rank) for rank in range(SIZE)]]
    assert one.load_state(saved, told, env_seed=3) is None
    assert_same(sampled(one, agent), third)
    one.close()
