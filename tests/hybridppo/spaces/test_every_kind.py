"""For every kind of space: where it is sampled and learned changes nothing, and its optimum is learned."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from space_kinds import KINDS, KindOfSpace

import hybridppo
from hybridppo import EnvError, PPOConfig, SingleDevice
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.spaces.kinds import each_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.serialization import space_from_json, space_to_json

SMALL = ppo_config(num_envs=4, num_steps=12, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))
STEPS = 3 * SMALL.batch_size
"""Rollouts end within episodes, and at their ends."""
TO_LEARN = ppo_config(
    num_envs=16, num_steps=32, num_minibatches=4, learning_rate=3e-3, gamma=0.0, gae_lambda=0.0, entropy_coef=0.001,
    clip_range_vf=None,
)  # fmt: skip

VARIANTS = [
    pytest.param(name, masks, id=f"{name}, masked" if masks else name)
    for name, kind in KINDS.items()
    for masks in ((False, True) if kind.has_masks else (False,))
]
MOST = [f"{name}, masked" if kind.has_masks else name for name, kind in KINDS.items()]
every_kind = pytest.mark.parametrize(("name", "masks"), VARIANTS)
most_kinds = pytest.mark.parametrize(("name", "masks"), only_by_default(MOST, VARIANTS, pytest.mark.slow))
SOME = (
    "box", "discrete, masked", "multi-binary, masked", "dict, nested, masked", "squashed tuple, masked",
    "image and vector, masked", "images alone", "items, masked", "image and vector, encoded, masked",
    "image and vector, with a memory, masked",
)  # fmt: skip
some_kinds = pytest.mark.parametrize(("name", "masks"), only_by_default(SOME, VARIANTS))
FEW = (
    "box", "discrete, masked", "squashed tuple, masked", "dict, nested, masked",
    "image and vector, with a memory, masked",
)  # fmt: skip
few_kinds = pytest.mark.parametrize(("name", "masks"), only_by_default(FEW, VARIANTS))


def source_of(kind: KindOfSpace, masks: bool) -> Any:
    return partial(kind.make, masks=True) if masks else kind.make


def train(name: str, masks: bool, config: PPOConfig = SMALL, **options: Any) -> hybridppo.TrainResult:
    kind = KINDS[name]
    arguments: dict[str, Any] = {"env": source_of(kind, masks), "placement": SingleDevice("cpu"), "seed": 0} | options
    return hybridppo.train(
        **{"total_steps": STEPS, **arguments},
        config=replace(config, **kind.config),
        action_masks=masks,
        progress=False,
    )


@cache
def expected_of(name: str, masks: bool) -> hybridppo.TrainResult:
    """A training's result, which is shared and only read."""
    return train(name, masks)


@few_kinds
def test_who_samples_and_where_changes_nothing(name: str, masks: bool) -> None:
    expected = expected_of(name, masks)
    assert not torch.equal(values_of(train(name, masks, seed=1)), values_of(expected))
    # What moves is parameters, whatever the space.
    moves = name in ("box", "image and vector", "image and vector, with a memory")
    ways = WAYS if moves else {WITH_WORKERS: WAYS[WITH_WORKERS]}
    if name == "items":  # the trainer acts for workers, in torch, for other numbers of rows at a time
        torch.testing.assert_close(
            values_of(train(name, masks, num_workers=2)), values_of(expected), rtol=0.0, atol=1e-4
        )
    else:
        assert_same_everywhere(partial(train, name, masks), expected, ways)


@pytest.mark.parametrize("name", only_by_default({name.split(", masked")[0] for name in FEW}, KINDS))
def test_gymnasiums_vector_of_it_changes_nothing(name: str) -> None:
    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([KINDS[name].make] * 4, autoreset_mode=AutoresetMode.DISABLED)

    assert torch.equal(values_of(train(name, False, env=vector)), values_of(expected_of(name, False)))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", ["image and vector", "dict, nested", "multi-discrete"])
def test_every_mode_of_reset(name: str, mode: AutoresetMode) -> None:
    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([KINDS[name].make] * 4, autoreset_mode=mode)

    assert train(name, False, env=vector).metrics["episodes"] >= STEPS // 9


@few_kinds
def test_stopped_and_resumed_it_goes_on_exactly_and_its_agent_acts_once_loaded(
    name: str, masks: bool, tmp_path: Path
) -> None:
    kind, run = KINDS[name], tmp_path / "run"
    whole = train(name, masks, run_dir=run, checkpoint_seconds=0, evaluation_episodes=2)
    assert torch.equal(values_of(whole), values_of(expected_of(name, masks)))
    assert whole.evaluation is not None
    assert whole.evaluation.return_mean <= kind.best
    assert_goes_on_exactly(run, whole, env=source_of(kind, masks))

    agent = hybridppo.load(run)
    env: gym.Env = source_of(kind, masks)()
    for deterministic in (True, False):
        observation, info = env.reset(seed=3)
        state = None
        for _ in range(8):
            action, state = agent.act(observation, deterministic, info.get("action_mask"), state)
            assert env.action_space.contains(action)
            observation, _, _, _, info = env.step(action)


def agent_of(name: str, masks: bool) -> hybridppo.PPO:
    """A fresh agent."""
    env = KINDS[name].make()
    space = MaskedObservation(env.observation_space, env.action_space) if masks else env.observation_space
    return hybridppo.PPO(space, env.action_space, replace(SMALL, **KINDS[name].config), seed=2)


def assert_alike(value: Any, other: Any) -> None:
    """Two actions, or states, are equal up to rounding, whatever their structure."""
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        value, other = tuple(value.values()), tuple(other.values())
    if isinstance(value, tuple):
        for part, own in zip(value, other, strict=True):
            assert_alike(part, own)
    elif value is not None:
        np.testing.assert_allclose(value, other, atol=1e-5)
        assert np.asarray(value).dtype == np.asarray(other).dtype


@every_kind
def test_it_acts_on_a_batch_as_on_each_observation(name: str, masks: bool) -> None:
    agent, env, number = agent_of(name, masks), source_of(KINDS[name], masks)(), 5
    given = [env.reset(seed=seed) for seed in range(number)]
    states: list[Any] = [None] * number
    state = None
    for _ in range(2):
        empty = create_empty_array(env.observation_space, number)
        batch = concatenate(env.observation_space, [observation for observation, _ in given], empty)
        masks_of = [info["action_mask"] for _, info in given] if masks else None
        actions, state = agent.act(batch, action_mask=masks_of, state=state, batch=True)
        pairs = [
            agent.act(observation, action_mask=info.get("action_mask"), state=own)
            for (observation, info), own in zip(given, states, strict=True)
        ]
        states = [own for _, own in pairs]
        each = list(iterate(batch_space(env.action_space, number), actions))
        assert len(each) == number
        for action, (expected, _) in zip(each, pairs, strict=True):
            assert_alike(action, expected)
        assert_alike(state, None if agent.memory is None else np.stack(states))
    drawn, _ = agent.act(batch, False, masks_of, state, batch=True)
    assert all(env.action_space.contains(action) for action in each_of(env.action_space)(drawn))


def test_what_is_no_batch_is_refused() -> None:
    agent, seen = agent_of("image and vector", False), KINDS["image and vector"].make().reset(seed=0)[0]
    with pytest.raises(EnvError, match=r"the 5 observations\['camera'\] must be of shape \(5, 5, 6, 1\)"):
        agent.act({**seen, "lamps": np.zeros((2, 2), np.int8)}, batch=True)
    box = agent_of("box", False)
    with pytest.raises(
        EnvError, match=r"a batch of observations must be of shape \('N', 1, 2\), and is of shape \(1, 2\)"
    ):
        box.act(np.zeros((1, 2), np.float32), batch=True)
    with pytest.raises(EnvError, match=r"of shape \(1, 2\), and is of shape \(3, 1, 2\) \(batch=True is for several\)"):
        box.act(np.zeros((3, 1, 2), np.float32))
    masked, one = agent_of("discrete", True), np.ones(4, np.int8)
    with pytest.raises(EnvError, match=r"the 2 observations must be of shape \(2,\), not \(3,\)"):
        masked.act(np.array([0, 1, -1]), action_mask=[one, one], batch=True)
    with pytest.raises(EnvError, match=r"allows at least one, got array\(\[0"):
        masked.act(np.array([0, 1]), action_mask=[one, 0 * one], batch=True)
    remembering = agent_of("image and vector, with a memory", False)
    empty = create_empty_array(remembering.observation_space, 3)
    with pytest.raises(EnvError, match=r"an array \(3, 64\) of float32"):
        remembering.act(empty, state=np.zeros(64, np.float32), batch=True)


@pytest.mark.parametrize("name", KINDS)
def test_its_space_as_json(name: str) -> None:
    env = KINDS[name].make()
    for space in (env.observation_space, env.action_space):
        as_json = space_to_json(space)
        assert space_from_json(as_json) == space
        assert space_to_json(space_from_json(as_json)) == as_json


@most_kinds
def test_by_hand_is_autograd(name: str, masks: bool) -> None:
    """Every run checks that the two agree; here it is checked over a whole update."""
    results = [
        train(name, masks, replace(SMALL, num_epochs=2, fast_updates=fast), total_steps=SMALL.batch_size)
        for fast in (True, False)
    ]
    is_plain = not any(part in name for part in ("image", "items", "encoded", "memory"))
    forms = [type(result.agent.loop().backend) for result in results]
    assert forms == [NumpyBackend if is_plain else Backend, Backend]
    torch.testing.assert_close(values_of(results[0]), values_of(results[1]), rtol=0.0, atol=2e-4)


@pytest.mark.slow
@every_kind
def test_its_optimum_is_learned(name: str, masks: bool) -> None:
    kind = KINDS[name]
    result = train(name, masks, TO_LEARN, total_steps=kind.learned_in, evaluation_episodes=32)
    assert result.evaluation is not None
    assert result.evaluation.return_mean > kind.best - 0.8


@pytest.mark.slow
def test_without_a_memory_what_must_be_remembered_is_not_learned() -> None:
    """The kind with images, numbers, choices, masks and a memory. Without it, all but the first of 8 are missed."""
    kind = KINDS["image and vector, with a memory"]
    result = hybridppo.train(
        partial(kind.make, masks=True), total_steps=40_000, seed=0, config=TO_LEARN, placement="cpu",
        action_masks=True, evaluation_episodes=32, progress=False,
    )  # fmt: skip
    assert result.evaluation is not None
    assert result.evaluation.return_mean < kind.best - 4.0


@pytest.mark.parametrize("name", ["multi-discrete", "image and vector", "dict, nested", "multi-binary"])
@pytest.mark.parametrize("steps", only_by_default(("600",), (600, 250_000), pytest.mark.slow))
def test_what_a_mask_forbids_is_never_done(name: str, steps: int) -> None:
    """The environments raise an error if it is. The slow ones make a million steps together."""
    result = train(name, True, replace(SMALL, num_steps=50, num_minibatches=4), total_steps=steps)
    assert result.metrics["env_steps"] >= steps
    assert np.isfinite(values_of(result).numpy()).all()
