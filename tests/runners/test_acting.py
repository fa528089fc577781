"""Workers that only step: the main process acts for them, with any network, and for half of them at a time."""

import logging
import threading
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from torch import nn

import hybridppo
from hybridppo import PPO, ConfigurationError, Mirrored, PPOConfig, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runners.acting import Acting, AskingActor, parts_of
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.filling import in_turn
from hybridppo.runners.processes import ASKS, WorkerLostError
from hybridppo.runners.workers import SlowestWorker
from hybridppo.system.signals import Stopped

SMALL = ppo_config(num_envs=4, num_steps=12, num_epochs=1, num_minibatches=2, hidden_sizes=(8,), layer_norm=True)
WAYS: dict[str, dict[str, Any]] = {
    "layer_norm": {},
    "memory": {
        "recurrent": "lstm",
        "recurrent_size": 4,
        "sequence_length": 4,
        "layer_norm": False,
        "activation": "silu",
    },
    "state-dependent noise": {"use_sde": True, "sde_sample_freq": 4},
}


def train(config: PPOConfig = SMALL, env: Any = None, **options: Any) -> hybridppo.TrainResult:
    env = env or ("Pendulum-v1" if config.use_sde else "CartPole-v1")
    arguments: dict[str, Any] = {"total_steps": 3 * config.batch_size, "placement": "cpu", "seed": 0}
    arguments |= {"vectorization": "sync", "progress": False, "num_workers": 0}
    return hybridppo.train(env, config=config, **arguments | options)


@pytest.mark.parametrize(
    ("way", "num_workers"),
    only_by_default(["layer_norm, 3", "state-dependent noise, 2"], [(way, n) for way in WAYS for n in (1, 2, 3)]),
)
def test_the_result_is_that_of_one_process(way: str, num_workers: int) -> None:
    config = replace(SMALL, **WAYS[way])
    expected, found = values_of(train(config)), values_of(train(config, num_workers=num_workers))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_main_process_acts_in_a_thread_while_it_learns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowestWorker, "add", lambda *each: logging.getLogger("hybridppo").warning("slow"))
    placement, config = Mirrored("cpu", "cpu", max_lag=1), replace(SMALL, num_envs=1, num_minibatches=1)
    expected, found = (values_of(train(config, placement=placement, num_workers=number)) for number in (0, 1))
    assert torch.equal(found, expected)  # the actor is called with the same rows
    assert "slow" not in caplog.text  # the seconds of workers that ask have their waits for this process


def test_one_thread_acts_for_all_shards_of_a_process() -> None:
    threads: set[Any] = set()

    def networks(*given: Any) -> Any:
        actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
        actor.register_forward_pre_hook(lambda *called: threads.add(threading.current_thread()))
        return actor, critic

    config, overlap = replace(SMALL, layer_norm=False), Mirrored("cpu", "cpu", max_lag=1)
    train(config, networks=networks, placement=overlap, distributed="multi:1:2", num_workers=2)
    assert len(threads - {threading.main_thread()}) == 1


class RowByRow(nn.Module):
    """Outputs do not depend, to the last bit, on the number of rows."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, rows: Any) -> Any:
        return torch.cat([self.layer(row) for row in rows.reshape(-1, 1, 4)]).reshape(*rows.shape[:-1], -1)


class Telling(gym.Wrapper[Any, Any, Any, Any]):
    """Its infos have the actions."""

    def step(self, action: Any) -> Any:
        *results, info = self.env.step(action)
        return *results, {**info, "action": float(action)}


def short_cartpole() -> Any:
    return Telling(gym.make("CartPole-v1", max_episode_steps=7))


def row_by_row(observations: Any, actions: Any, config: Any, generator: Any) -> Any:
    return RowByRow(2), RowByRow(1)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_groups_change_no_bit_of_a_network_whose_rows_do_not_depend_on_their_number(num_workers: int) -> None:
    options: dict[str, Any] = {"networks": row_by_row, "info_metrics": ("action",), "env": short_cartpole}
    expected, found = (train(num_workers=number, **options) for number in (0, num_workers))
    assert torch.equal(values_of(found), values_of(expected))
    assert found.metrics["info/action"] == expected.metrics["info/action"]


def test_a_rollout_that_is_stopped_goes_on_where_both_halves_of_a_worker_are() -> None:
    config, placement = replace(SMALL, num_envs=5, num_minibatches=1), SingleDevice("cpu")
    environments = make_environments("CartPole-v1", 5, vectorization="sync")
    agent = PPO(environments.observation_space, environments.action_space, config, networks=row_by_row)
    placement.prepare(agent)
    rollouts = []
    for num_stops in (0, 3):
        sampler = make_sampler(
            "CartPole-v1", environments, agent, placement, num_steps=60, num_workers=2, env_seed=0,
            options=EnvironmentOptions(vectorization="sync"), noise=np.random.default_rng(0),
        )  # fmt: skip
        with closing(sampler), placement.sampling(agent) as actor:
            for _ in range(num_stops):
                sampler.sample_async(actor)
                sampler.request_stop()
                with pytest.raises(Stopped):
                    sampler.sample_wait()
                sampler._stop[0] = 0
            rollouts.append(sampler.collect(actor).map(torch.clone))
    for name, column in rollouts[0].columns().items():
        assert torch.equal(column, rollouts[1].columns()[name]), name


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    expected = values_of(train(num_workers=2))
    train(num_workers=2, run_dir=tmp_path / "run", total_steps=SMALL.batch_size)
    states = [path.read_text() for path in (tmp_path / "run" / "checkpoints").glob("*/state.json")]
    assert states
    assert not any('"globals"' in state for state in states)  # the environment draws from its own generator
    resumed = hybridppo.resume(tmp_path / "run", total_steps=3 * SMALL.batch_size, num_workers=2, progress=False)
    assert torch.equal(values_of(resumed), expected)


def test_an_actor_on_a_device_acts_for_workers(second_device: str) -> None:
    expected = values_of(train())
    found = values_of(train(num_workers=2, placement=Mirrored(second_device, "cpu")))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Fatal(gym.Env[Any, Any]):
    """Ends its process in the seventh step of the environment that is reset with an odd seed first."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.is_fatal = 0, seed is not None and seed % 2 == 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.is_fatal and self.steps == 7:
            raise SystemExit(3)
        return np.zeros(2, np.float32), 1.0, self.steps == 10, False, {}


class Linear(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, outputs)

    def forward(self, rows: Any) -> Any:
        return self.layer(rows)


def of_my_own(observations: Any, actions: Any, config: Any, generator: Any) -> Any:
    return Linear(2), Linear(1)


def test_a_network_of_ones_own_needs_its_own_pace() -> None:
    with pytest.raises(ConfigurationError, match=r"workers that sample at their own pace act in NumPy.*or max_lag=1"):
        train(num_workers=2, placement=Mirrored("cpu", "cpu", max_lag=2))


@pytest.mark.parametrize("num_workers", [4, 2])
def test_a_lost_worker_does_not_keep_the_others_waiting(num_workers: int) -> None:
    with pytest.raises(hybridppo.EnvError, match="worker"):
        hybridppo.train(
            Fatal, total_steps=96, config=SMALL, networks=of_my_own, num_workers=num_workers, placement="cpu", seed=0,
            progress=False,
        )  # fmt: skip


def arrays_of(count: int, **sizes: int) -> dict[str, np.ndarray]:
    widths = {"rows": 2, "outputs": 1, "state": 0, "exploration": 0, "perturbation": 0} | sizes
    return {name: np.zeros((count, width), np.float32) for name, width in widths.items()}


class Counting:
    """The sum of a row and its state; the state counts."""

    def __init__(self) -> None:
        self.state: Any = None
        self.calls: list[int] = []

    def __call__(self, rows: Any) -> Any:
        self.calls.append(len(rows))
        self.state = self.state + 1.0
        return rows.sum(1, keepdims=True) + self.state


def test_each_group_is_acted_for_once_all_of_it_ask() -> None:
    parts = parts_of([slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 5)], 1, halves=False)
    arrays, told = arrays_of(5, state=1), []
    acting, actor = Acting(arrays, parts, lambda *each: told.append(each)), Counting()
    acting.begin(actor)
    asked: list[Any] = []
    workers = [
        AskingActor({name: array[part.place] for name, array in arrays.items()}, asked.append, list)
        for (part,) in parts
    ]
    for worker, own in enumerate(workers):
        size = 1 + (worker == 1)
        own.state = np.full((size, 1), 10.0)
        own(np.full((size, 2), float(worker)))
    assert asked == [False] * 4
    assert acting.notes(1, (ASKS, (0, False)))
    acting.act_for([0, 1, 2, 3])
    assert told == []
    assert acting.notes(0, (ASKS, (0, False)))
    acting.act_for([0, 1, 2, 3])
    assert told == [(0, 0), (1, 0)]
    assert arrays["outputs"].ravel().tolist() == [0.0 + 11.0, 2.0 + 11.0, 2.0 + 11.0, 0.0, 0.0]
    assert arrays["state"].ravel().tolist() == [11.0, 11.0, 11.0, 10.0, 10.0]
    acting.notes(3, (ASKS, (1, False)))
    assert not acting.notes(2, WorkerLostError("lost"))  # the others of its group wait no longer
    acting.act_for([0, 1, 3])
    assert told == [(0, 0), (1, 0), (3, 1)]
    assert arrays["outputs"][4, 0] == 6.0 + 11.0
    assert actor.calls == [3, 1]
    workers[0].forget(np.array([True]))
    assert workers[0].state.tolist() == [[0.0]]


def test_the_group_that_has_waited_longer_comes_first() -> None:
    told: list[Any] = []
    acting = Acting(arrays_of(2), parts_of([slice(0, 2)], 1, halves=True), lambda *each: told.append(each))
    acting.begin(lambda rows: rows[:, :1])
    for asking in ((0,), (1, 0), (0, 1)):
        for group in asking:
            acting.notes(0, (ASKS, (group, False)))
        acting.act_for([0])
        assert not acting.waits(0)
    assert told == [(0, group) for group in (0, 1, 0, 1, 0)]


@pytest.mark.parametrize(
    ("bounds", "halves", "expected"),
    [
        # A worker's number, its environments, their group and their places, of two agents each
        ((0, 4), True, [(0, (0, 2), 0, (0, 4)), (0, (2, 4), 1, (4, 8))]),
        ((0, 4), False, [(0, (0, 4), 0, (0, 8))]),
        ((0, 1, 2, 3), True, [(0, (0, 1), 0, (0, 2)), (1, (1, 2), 0, (2, 4)), (2, (2, 3), 1, (4, 6))]),
        ((0, 1, 4), True, [(0, (0, 1), 0, (0, 2)), (1, (1, 3), 0, (2, 6)), (1, (3, 4), 1, (6, 8))]),
    ],
)
def test_environments_are_divided_into_two_groups(bounds: Any, halves: bool, expected: Any) -> None:
    parts = parts_of([slice(*pair) for pair in pairwise(bounds)], 2, halves=halves)
    found = [
        (worker, (part.envs.start, part.envs.stop), part.group, (part.place.start, part.place.stop))
        for worker, own in enumerate(parts)
        for part in own
    ]
    assert found == expected


def test_generators_run_in_turn_until_each_has_ended() -> None:
    seen: list[str] = []

    def steps(name: str, number: int) -> Any:
        for _ in range(number):
            seen.append(name)
            yield
        return name.upper()

    assert in_turn([steps("a", 1), steps("b", 3)], lambda: seen.append("|")) == ["A", "B"]
    assert "".join(seen) == "|ab|b|b|"
