"""Environments that step in parts, as they are ready: rollouts are those of environments that step together."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from in_parts import InParts, in_parts
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from same_bits import values_of
from sampling import sampler_of
from toy_environments import Script, ScriptedEnv, scripted_vector

import hybridppo
from hybridppo import ConfigurationError, EnvError, Mirrored
from hybridppo.environments.making import make_environments
from hybridppo.environments.vector import AsynchronousEnvironments, wrap
from hybridppo.runners.asynchronous import first_common_row, to_send
from hybridppo.system.signals import Stopped

SCRIPTS: tuple[Script, ...] = (
    ((3, "truncated"), (2, "terminated"), (5, "both"), (1, "truncated")),
    ((1, "truncated"), (1, "terminated"), (1, "both"), (5, "truncated")),
    ((4, "truncated"), (4, "truncated"), (3, "terminated")),
    ((2, "both"), (6, "truncated"), (1, "terminated")),
)
MODES = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
CONFIG = ppo_config(num_envs=4, num_steps=12, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


class Wave:
    """Outputs that follow from the observation alone, whatever others are asked for beside it."""

    version = 1

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.sin(observations.sum(1, keepdims=True) + np.arange(2)).astype(np.float32)


def scripted(mode: AutoresetMode, batch_size: Any = 2, order: int | None = 0) -> InParts:
    return in_parts([partial(ScriptedEnv, script) for script in SCRIPTS], mode, batch_size, order)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("batch_size", "order"), [(2, 0), (2, 1), (2, None), (1, 2), (1, None)])
def test_rollouts_are_those_of_environments_that_step_together(
    mode: AutoresetMode, batch_size: int, order: Any
) -> None:
    vector = scripted(mode, batch_size, order)
    together, apart = (sampler_of(wrap(each), num_steps=7) for each in (scripted_vector(SCRIPTS, mode), vector))
    for _ in range(5):
        expected, found = together.collect(Wave()), apart.collect(Wave())
        for name, column in expected.columns().items():
            assert torch.equal(found.columns()[name], column), name
        assert torch.equal(found.valid_rows, expected.valid_rows)
        assert torch.equal(found.final_rows, expected.final_rows)
        assert apart._environments.heartbeat == [7]
    assert apart.counts.state() == together.counts.state()
    assert vector.queue == []
    assert vector.parts[: 4 // batch_size] != [[*range(first, first + batch_size)] for first in range(0, 4, batch_size)]


def test_a_rollout_that_is_broken_off_goes_on() -> None:
    class Stopping(Wave):
        """Stops the sampler at some call."""

        calls = 0

        def __call__(self, observations: np.ndarray) -> np.ndarray:
            self.calls += 1
            if self.calls == 5:
                apart.request_stop()
            return super().__call__(observations)

    expected = sampler_of(wrap(scripted_vector(SCRIPTS, MODES[1])), num_steps=40).collect(Wave())
    apart = sampler_of(wrap(scripted(MODES[1], order=None)), num_steps=40)
    with pytest.raises(Stopped):
        apart.collect(Stopping())
    assert 0 < apart.steps_sampled < 100
    apart._stop[0] = 0
    found = apart.collect(Wave())
    assert all(torch.equal(found.columns()[name], column) for name, column in expected.columns().items())


@pytest.mark.parametrize("seed", range(20))
def test_the_last_environments_find_others_to_be_returned_with(seed: int) -> None:
    """Whichever are returned: at random, or always those that have the fewest steps left."""
    drawn = random.Random(seed)
    batch_size = drawn.randint(1, 4)
    num_envs, num_steps = batch_size * drawn.randint(2, 4), drawn.randint(1, 12)
    rows, under_way, end = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_), num_steps
    stops_at, most = drawn.randrange(2 * num_steps), 0
    for turn in range(10**6):
        if turn >= stops_at:
            end = min(end, first_common_row(rows, under_way, batch_size))
        envs = to_send(end - rows, under_way, batch_size)
        under_way[envs] = True
        if len(envs):
            continue
        if not under_way.any():
            break
        ready = [*np.flatnonzero(under_way)]
        assert len(ready) >= batch_size
        drawn.shuffle(ready)
        if seed % 2:
            ready.sort(key=lambda env: -rows[env])
        rows[ready[:batch_size]] += 1
        under_way[ready[:batch_size]] = False
        most = max(most, int(rows.max() - rows.min()))
    assert (rows == end).all()
    assert end <= num_steps


class Walk(gym.Env[Any, Any]):
    """Moves by the action; its info has where it is."""

    def __init__(self, is_continuous: bool = False) -> None:
        self.observation_space = Box(-9.0, 9.0, (2,))
        self.action_space = Box(-1.0, 1.0, (1,)) if is_continuous else Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(), 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place, self.steps = self.place + 0.1 * float(np.sum(action)), self.steps + 1
        return self._seen(), -abs(self.place), False, self.steps == 5, {"cost": self.place}

    def _seen(self) -> np.ndarray:
        return np.array([self.place, self.steps / 5], np.float32)


WAYS: dict[str, dict[str, Any]] = {
    "lstm": {"config": replace(CONFIG, recurrent="lstm", recurrent_size=4, sequence_length=4)},
    "noise for several steps": {"config": replace(CONFIG, use_sde=True, sde_sample_freq=4), "is_continuous": True},
    "overlap": {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_training_is_that_of_environments_that_step_together(way: str, mode: AutoresetMode) -> None:
    options = {"config": CONFIG, "total_steps": 3 * 48, "placement": "cpu", "seed": 0, "progress": False} | WAYS[way]
    makes = [partial(Walk, options.pop("is_continuous", False))] * 4
    together = hybridppo.train(lambda: SyncVectorEnv(makes, autoreset_mode=mode), **options)
    apart = hybridppo.train(lambda: in_parts(makes, mode, 2), **options)
    assert torch.equal(values_of(apart), values_of(together))


@pytest.mark.parametrize("mode", MODES)
def test_infos_are_those_of_environments_that_step_together(mode: AutoresetMode) -> None:
    rollouts, sums = [], []
    for vector in (SyncVectorEnv([Walk] * 4, autoreset_mode=mode), in_parts([Walk] * 4, mode, 2)):
        environments = wrap(vector)
        environments.measure_infos(["cost"], ["cost"])
        sampler = sampler_of(environments, num_steps=12)
        rollouts.append(sampler.collect(Wave()))
        sums.append(sampler.infos.metrics())
    assert torch.equal(rollouts[0].infos["cost"], rollouts[1].infos["cost"])
    assert sums[0] == pytest.approx(sums[1])  # in another order, a sum is rounded otherwise


def carts(batch_size: Any = 2) -> InParts:
    return InParts([CartPoleVectorEnv(1) for _ in range(4)], batch_size)


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {"config": CONFIG, "total_steps": 4 * 48, "placement": "cpu", "seed": 0}
    expected = hybridppo.train(carts, run_dir=tmp_path / "run", checkpoint_seconds=0, progress=False, **options)
    remove_last_checkpoint(tmp_path / "run")
    again = hybridppo.resume(tmp_path / "run", env=carts, progress=False)
    assert torch.equal(values_of(again), values_of(expected))


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (0, "batch_size must be a whole number of at least 1, got 0"),
        (1.5, "batch_size must be a whole number of at least 1, got 1.5"),
        (3, "batch_size must divide the 4 environments of a vector, got 3"),
        (8, "batch_size must divide the 4 environments of a vector, got 8"),
    ],
)
def test_a_bad_batch_size_is_refused(batch_size: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrap(carts(batch_size))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(EnvError, match="steps in parts, and must reset itself"):
        wrap(scripted(AutoresetMode.DISABLED))
    for options in ({"placement": "cpu", "num_workers": 2}, {"placement": Mirrored("cpu", "cpu", max_lag=2)}):
        with pytest.raises(ConfigurationError, match="does not work with asynchronous environments"):
            hybridppo.train(carts, total_steps=96, config=CONFIG, progress=False, **options)


@pytest.mark.parametrize("envs", [[0, 0], [0, 3], [0], [0, 4], [-4, 1], None])
def test_environments_that_got_no_action_are_not_received(envs: Any) -> None:
    class Confused(InParts):
        def recv(self) -> Any:
            *step, infos = super().recv()
            return *step, infos | {"env_id": np.array(envs)} if envs else None

    environments = wrap(Confused([CartPoleVectorEnv(1) for _ in range(4)], 2))
    assert isinstance(environments, AsynchronousEnvironments)
    environments.reset(0)
    environments.send(np.zeros(3, np.int64), np.arange(3))
    with pytest.raises(EnvError, match=r"recv must return 2 of the environments that got actions, \[0, 1, 2\], and"):
        environments.receive()


def test_a_fault_names_its_environment_and_its_step() -> None:
    class Nan(Walk):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            return (np.full(2, np.nan, np.float32), *result[1:]) if self.steps == 3 else result

    environments = wrap(in_parts([Walk, Walk, Walk, Nan], MODES[0], 2, None), first=10)
    with pytest.raises(
        EnvError, match=r"failed in steps? .*3: the observation of environment 13: observation.* is nan"
    ):
        sampler_of(environments, num_steps=8).collect(Wave())


def test_evaluations_step_all_together() -> None:
    environments = make_environments(carts, 4, own_number=True)
    assert not environments.is_asynchronous
