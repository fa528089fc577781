"""Worker processes and overlap: the same rollouts, no leftovers, and clear errors when a process dies."""

import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from processes import worker_processes
from toy_environments import FailingEnv, raise_an_error

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored, PPOConfig, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.processes import SharedArrays

SMALL = ppo_config(num_envs=6, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))


def train(env: Any = "CartPole-v1", config: PPOConfig = SMALL, **options: Any) -> tuple[hybridppo.TrainResult, list]:
    iterations: list[dict[str, float]] = []
    arguments = {"total_steps": 700, "seed": 0, "placement": "cpu", "progress": False} | options
    result = hybridppo.train(env, config=config, **{"on_iteration": iterations.append} | arguments)
    return result, iterations


def parameters_of(result: hybridppo.TrainResult) -> torch.Tensor:
    return result.agent.parameters.values.detach()


def test_one_worker_takes_an_environments_own_vectorised_form_as_it_is() -> None:
    expected, _ = train()
    result, _ = train(num_workers=1)
    assert torch.equal(parameters_of(result), parameters_of(expected))


def test_environments_may_be_made_by_a_function_of_the_main_script() -> None:
    result, _ = train(lambda: gym.make("CartPole-v1"), num_workers=2)
    expected, _ = train(vectorization="sync")
    assert torch.equal(parameters_of(result), parameters_of(expected))


def test_workers_do_not_load_torch() -> None:
    code = "import hybridppo.runners.worker, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_error_when_environments_are_made_comes_through() -> None:
    trainer = os.getpid()

    def make() -> gym.Env:
        if os.getpid() != trainer:
            raise ValueError("only in a worker")
        return gym.make("CartPole-v1")

    with pytest.raises(EnvError, match="only in a worker"):
        train(make, num_workers=2)
    assert not worker_processes()


class Told(gym.Env[Any, Any]):
    """Observations show the environment, by its initial seed, and the step; episode lengths differ."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number, self.steps = seed if seed is not None else self.number, 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.number, self.steps], np.float32), 1.0, False, self.steps == 3 + self.number, {}


@pytest.mark.parametrize("num_workers", [2, 4])
def test_final_observations_belong_to_the_environments_whose_episodes_were_truncated(num_workers: int) -> None:
    environments = make_environments(Told, SMALL.num_envs)
    agent = PPO(environments.observation_space, environments.action_space, SMALL)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    sampler = make_sampler(
        Told, environments, agent, placement, num_steps=SMALL.num_steps, num_workers=num_workers,
        options=EnvironmentOptions(), env_seed=0, noise=np.random.default_rng(0),
    )  # fmt: skip
    with placement.sampling(agent) as actor:
        rollout = sampler.collect(actor)
    sampler.close()
    # Environment n has episodes of 3 + n steps: its last steps, and the observation that came after each.
    ends = [(t, n) for t in range(SMALL.num_steps) for n in range(SMALL.num_envs) if (t + 1) % (3 + n) == 0]
    assert rollout.final_rows.tolist() == [t * SMALL.num_envs + n for t, n in ends]
    assert rollout.final_observations.tolist() == [[n, 3 + n] for _, n in ends]
    assert rollout.truncated.nonzero().tolist() == [[t, n] for t, n in ends]
    assert rollout.observations[:, :, 0].unique(dim=0).tolist() == [list(range(SMALL.num_envs))]


class DrawingGlobally(Told):
    """Observes numbers that it draws from the global generators."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([np.random.random(), random.random()], np.float32), {}  # noqa: NPY002

    def step(self, action: Any) -> Any:
        _, *more = super().step(action)
        return np.array([np.random.random(), random.random()], np.float32), *more  # noqa: NPY002


def test_workers_draw_differently_from_global_generators_and_the_same_in_each_run() -> None:
    def drawn(env_seed: int) -> list[torch.Tensor]:
        environments = make_environments(DrawingGlobally, 2)
        agent = PPO(environments.observation_space, environments.action_space, SMALL)
        placement = SingleDevice("cpu")
        placement.prepare(agent)
        sampler = make_sampler(
            DrawingGlobally, environments, agent, placement, num_steps=SMALL.num_steps, num_workers=2,
            options=EnvironmentOptions(), env_seed=env_seed, noise=np.random.default_rng(0),
        )  # fmt: skip
        with placement.sampling(agent) as actor:
            rollout = sampler.collect(actor)
        sampler.close()
        return list(rollout.observations.clone().unbind(2))

    for ours, again, others in zip(drawn(3), drawn(3), drawn(4), strict=True):
        assert torch.equal(ours, again)
        assert not torch.isclose(ours[:, 0], ours[:, 1]).any()
        assert not torch.isclose(ours, others).any()


@pytest.mark.parametrize("num_workers", [7, -1])
def test_impossible_numbers_of_workers_are_refused(num_workers: int) -> None:
    with pytest.raises(ConfigurationError, match="num_workers"):
        train(num_workers=num_workers)


def test_a_vector_of_a_function_that_cannot_be_divided_says_what_each_process_needs() -> None:
    with pytest.raises(EnvError, match=r"made a vector of 6 environments, and this process needs 3 of them: let it ta"):
        train(lambda: gym.make_vec("CartPole-v1", num_envs=6), num_workers=2)
    result, _ = train(lambda num_envs: gym.make_vec("CartPole-v1", num_envs=num_envs), num_workers=2)
    assert result.metrics["env_steps"] >= 700


class Counted(gym.Wrapper[Any, Any, Any, Any]):
    """Counts its instances in this process."""

    made, open = 0, 0

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        Counted.made += 1
        Counted.open += 1

    def close(self) -> None:
        super().close()
        Counted.open -= 1


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({"num_workers": 2}, 1),  # for its spaces
        ({"placement": Mirrored("cpu", "cpu", max_lag=1)}, 6),  # one worker, which the placement has by itself
        ({"placement": "auto", "num_workers": 2}, None),
        pytest.param({"distributed": "central:2"}, 2, marks=pytest.mark.extras),  # asked whether it divides, too
    ],
    ids=str,
)
def test_the_trainer_keeps_no_environments_beside_those_of_workers(options: dict[str, Any], made: int | None) -> None:
    Counted.made = Counted.open = 0
    open_meanwhile: list[int] = []
    train(Counted, **options, on_iteration=lambda metrics: open_meanwhile.append(Counted.open))
    assert open_meanwhile
    assert not any(open_meanwhile)
    assert made is None or Counted.made == made


def test_a_resumed_run_keeps_no_environments_beside_those_of_workers(tmp_path: Path) -> None:
    train(Counted, num_workers=2, run_dir=tmp_path / "run")
    Counted.made = 0
    hybridppo.resume(tmp_path / "run", env=Counted, total_steps=1400, progress=False)
    assert (Counted.made, Counted.open) == (1, 0)


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2, "vectorization": "sync"}], ids=str)
def test_overlap_lags_by_one_update_and_never_more(options: dict[str, Any]) -> None:
    placement = Mirrored("cpu", "cpu", max_lag=1, verify=True)
    result, iterations = train(placement=placement, total_steps=960, **options)
    assert [metrics["policy_lag"] for metrics in iterations] == [0] + [1] * (len(iterations) - 1)
    assert result.metrics["env_steps"] >= 960
    # The first two rollouts are both of the first parameters; a longer training would begin with the last ones.
    assert placement.counters.publishes == len(iterations)
    assert result.metrics["env_steps"] - 960 < iterations[0]["env_steps"]  # none is sampled in vain
    assert not worker_processes()


def test_overlap_samples_other_networks_in_a_thread() -> None:
    _, iterations = train(placement=Mirrored("cpu", "cpu", max_lag=1), config=replace(SMALL, activation="elu"))
    assert iterations[-1]["policy_lag"] == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_overlap_ends_in_good_order(num_workers: int) -> None:
    with pytest.raises((EnvError, ValueError), match="the motor is stuck"):
        train(partial(FailingEnv, raise_an_error), placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=num_workers)
    assert not worker_processes()


@pytest.mark.parametrize("in_memory", [True, False])
def test_shared_arrays_are_shared_and_have_no_file(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    layout = {"a": ((3, 2), "float32"), "flags": ((5,), "bool"), "empty": ((0,), "float32")}
    ours = SharedArrays(layout)
    assert not list(tmp_path.iterdir())
    here, there = Pipe()
    with here, there:
        ours.send(here)
        theirs = SharedArrays(layout, there)
    ours["a"][:] = np.arange(6).reshape(3, 2)
    theirs["flags"][:] = True
    assert theirs["a"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert ours["flags"].all()
    theirs.close()
    ours.close()
    ours.close()
