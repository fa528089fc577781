"""A worker whose work is done in this process until it is there: the same rollouts, whenever it takes over."""

from concurrent.futures import Future
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from ppo_settings import ppo_config

from hybridppo import PPO, EnvError, Mirrored, PPOConfig, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.registration import has_all_in_its_state
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.workers import meanwhile
from hybridppo.runners.workers.meanwhile import Meanwhile

SMALL = ppo_config(num_envs=3, num_steps=24, num_minibatches=2, hidden_sizes=(16, 16))
ROLLOUTS = 7


class Unsaved(CartPoleEnv):
    """CartPole with something that cannot be saved."""

    def reset(self, **options: Any) -> Any:
        self.numbers = (number for number in range(10))
        return super().reset(**options)


class Gate:
    """A start that is over when it has been asked about so often, and then really."""

    def __init__(self, started: "Future[None]", looks: int) -> None:
        self._started, self._looks = started, looks

    def done(self) -> bool:
        self._looks -= 1
        if self._looks < 0:
            self._started.result(timeout=120)
        return self._started.done()

    def result(self) -> None:
        self._started.result()


class Gated(Meanwhile):
    """One whose worker is there when the test wants it to be."""

    looks = 0

    def start(self, worker: int, env_seed: int) -> None:
        super().start(worker, env_seed)
        assert self._started is not None
        self._started = Gate(self._started, self.looks)  # type: ignore[assignment]

    @property
    def has_taken_over(self) -> bool:
        return self._here is None


def sampler_of(
    env: Any, config: PPOConfig, placement: Any, agent: PPO, options: EnvironmentOptions, **arguments: Any
) -> BaseSampler:
    return make_sampler(
        env, make_environments(env, config.num_envs, options), agent, placement, num_steps=config.num_steps,
        options=options, env_seed=3, noise=np.random.default_rng(0), **arguments,
    )  # fmt: skip


def rollouts_of(sampler: BaseSampler, placement: Any, agent: PPO) -> list[dict[str, torch.Tensor]]:
    found = []
    try:
        for _ in range(ROLLOUTS):
            with placement.sampling(agent) as actor:
                rollout = sampler.collect(actor)
            found.append({name: tensor.clone() for name, tensor in rollout.tensors().items()})
    finally:
        sampler.close()
    return found


def prepared(env: Any, config: PPOConfig, options: EnvironmentOptions) -> tuple[PPO, SingleDevice]:
    environments = make_environments(env, config.num_envs, options)
    agent, placement = PPO(environments.observation_space, environments.action_space, config), SingleDevice("cpu")
    environments.close()
    placement.prepare(agent)
    return agent, placement


def assert_same(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.keys() == theirs.keys()
        for name in theirs:
            assert torch.equal(mine[name], theirs[name]), f"{name} of rollout {number}"


CASES = {
    "vectorised": ("CartPole-v1", SMALL, EnvironmentOptions()),
    "numbers": ("Pendulum-v1", SMALL, EnvironmentOptions()),
    "frames": ("Pendulum-v1", SMALL, EnvironmentOptions(frame_stack=3)),
    "memory": ("CartPole-v1", ppo_config(num_envs=3, num_steps=24, num_minibatches=3, recurrent="gru",
                                         recurrent_size=8), EnvironmentOptions(vectorization="sync")),
    "noise that depends on the state": (
        "Pendulum-v1", ppo_config(num_envs=3, num_steps=24, use_sde=True, sde_sample_freq=5), EnvironmentOptions()
    ),
    "several wrappers": ("MountainCar-v0", SMALL, EnvironmentOptions()),
    "tables": ("Taxi-v4", SMALL, EnvironmentOptions(action_masks=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_whenever_the_worker_takes_over_rollouts_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, config, options = CASES[name]
    monkeypatch.setattr(meanwhile, "ROWS_AT_ONCE", 8)
    agent, placement = prepared(env, config, options)
    expected = rollouts_of(sampler_of(env, config, placement, agent, options, num_workers=0), placement, agent)
    for looks in (2, 0) if name == "vectorised" else (2,):  # in the middle of a rollout, and before the first step
        made: list[Gated] = []

        def transport(work: Any, looks: int = looks, made: list[Gated] = made) -> Gated:
            made.append(gated(env, config, options, looks)(work))
            return made[0]

        sampler = sampler_of(env, config, placement, agent, options, num_workers=1, transport=transport)
        assert not made[0].has_taken_over
        found = rollouts_of(sampler, placement, agent)
        assert made[0].has_taken_over
        assert_same(found, expected)


def test_the_worker_takes_over_what_was_restarted_or_loaded() -> None:
    env, config, options = CASES["numbers"]
    agent, placement = prepared(env, config, options)
    found = []
    for arguments in ({"num_workers": 0}, {"num_workers": 1, "transport": gated(env, config, options, 4)}):
        other = sampler_of(env, config, placement, agent, options, num_workers=0)
        with placement.sampling(agent) as actor:
            other.collect(actor)
        tensors, state = other.state()
        other.close()
        sampler = sampler_of(env, config, placement, agent, options, **arguments)
        assert sampler.load_state(tensors, state, env_seed=9) is None
        tensors, state = sampler.state()
        found.append((rollouts_of(sampler, placement, agent), state["environments"], tensors["observation"]))
    assert_same(found[1][0], found[0][0])
    assert found[1][1] == found[0][1]
    assert torch.equal(found[1][2], found[0][2])


def gated(env: Any, config: PPOConfig, options: EnvironmentOptions, looks: int) -> Any:
    def transport(work: Any) -> Gated:
        made = Gated(work, make_environments(env, config.num_envs, options))
        made.looks = looks
        return made

    return transport


def test_environments_that_cannot_move_are_an_error_that_says_what_to_do() -> None:
    agent, placement = prepared(Unsaved, SMALL, EnvironmentOptions())
    transport = gated(Unsaved, SMALL, EnvironmentOptions(), 2)
    sampler = sampler_of(
        Unsaved, SMALL, placement, agent, EnvironmentOptions(), num_workers=1, transport=transport
    )  # fmt: skip
    with pytest.raises(EnvError, match=r"cannot go on where the environments are: .*Set num_workers=1"):
        rollouts_of(sampler, placement, agent)


@pytest.mark.cold_workers  # processes are looked for among those of this one
def test_a_training_that_ends_before_the_worker_is_there_leaves_nothing() -> None:
    agent, placement = prepared("CartPole-v1", SMALL, EnvironmentOptions())
    transport = gated("CartPole-v1", SMALL, EnvironmentOptions(), 10**6)
    before = {child.pid for child in psutil.Process().children()}
    sampler = sampler_of(
        "CartPole-v1", SMALL, placement, agent, EnvironmentOptions(), num_workers=1, transport=transport
    )  # fmt: skip
    assert {child.pid for child in psutil.Process().children()} > before
    with placement.sampling(agent) as actor:
        sampler.collect(actor)
    sampler.close()
    sampler.close()
    assert {child.pid for child in psutil.Process().children()} == before


def fails_elsewhere(pid: int) -> Any:
    """An environment that only one process can make."""
    if psutil.Process().pid != pid:
        raise RuntimeError("the licence is for one process")
    return gym.make("CartPole-v1")


def test_a_worker_that_cannot_start_is_an_error() -> None:
    env = partial(fails_elsewhere, psutil.Process().pid)
    agent, placement = prepared(env, SMALL, EnvironmentOptions())
    sampler = sampler_of(
        env, SMALL, placement, agent, EnvironmentOptions(), num_workers=1,
        transport=gated(env, SMALL, EnvironmentOptions(), 1),
    )  # fmt: skip
    with pytest.raises(EnvError, match=r"worker 0 .* the licence is for one process"):
        rollouts_of(sampler, placement, agent)


@pytest.mark.parametrize(
    ("env", "options", "begins_here"),
    [
        ("Pendulum-v1", {}, True),
        ("Pendulum-v1", {"num_workers": 1}, False),
        ("Pendulum-v1", {"options": EnvironmentOptions(on_env_error="restart")}, False),
        (partial(gym.make, "Pendulum-v1"), {}, False),
    ],
    ids=["by itself", "asked for", "replaced when lost", "of one's own"],
)
def test_only_a_worker_that_nobody_has_asked_for_need_not_be_waited_for(
    env: Any, options: dict[str, Any], begins_here: bool
) -> None:
    """What was asked to be in a process of its own, may fail, or may have more than its state, is never in this one."""
    agent, _ = prepared("Pendulum-v1", SMALL, EnvironmentOptions())
    placement = Mirrored("cpu", "cpu", max_lag=1)
    placement.prepare(agent)
    arguments = {"num_workers": None, "options": EnvironmentOptions()} | options
    sampler = make_sampler(
        env, make_environments(env, 3, arguments["options"]), agent, placement,
        num_steps=SMALL.num_steps, env_seed=0, noise=np.random.default_rng(0), **arguments,
    )  # fmt: skip
    try:
        assert isinstance(sampler._transport, Meanwhile) == begins_here  # type: ignore[attr-defined]
    finally:
        sampler.close()


class Own(gym.Env[Any, Any]):
    """One that nobody knows."""


def test_only_the_state_of_gymnasiums_own_environments_is_known_to_be_all() -> None:
    gym.register("tests/Own-v0", entry_point=Own)
    try:
        assert has_all_in_its_state("CartPole-v1")
        assert has_all_in_its_state("Taxi-v4")
        assert not has_all_in_its_state("LunarLander-v3")
        assert not has_all_in_its_state("tests/Own-v0")
        assert not has_all_in_its_state(Own)
        assert not has_all_in_its_state(lambda: gym.make("CartPole-v1"))
    finally:
        del gym.registry["tests/Own-v0"]
