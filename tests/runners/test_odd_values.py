"""Values that environments may return in several forms, and extremes of float32: accepted as meant, or refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from ppo_settings import ppo_config
from same_bits import values_of
from space_kinds import KINDS
from toy_agents import FaultyAgents, Matching
from toy_environments import FaultyEnv, HighestAllowed

import hybridppo
from hybridppo import EnvError, TrainingError

pytestmark = pytest.mark.filterwarnings("error")

SMALL = ppo_config(num_envs=4, num_steps=12, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16))


def train(env: Any, config: Any = SMALL, **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 150, "seed": 0, "placement": "cpu", "progress": False} | options
    return hybridppo.train(env, config=config, **options)


class Changed(VectorEnv[Any, Any, Any]):
    """A vector environment with steps that `change` may alter."""

    def __init__(self, make: Callable[[], Any], mode: AutoresetMode, change: Callable[[list[Any]], Any]) -> None:
        self._vector, self._change = SyncVectorEnv([make] * 4, autoreset_mode=mode), change
        self.num_envs, self.metadata = 4, self._vector.metadata
        for kind in ("observation_space", "action_space"):
            setattr(self, kind, getattr(self._vector, kind))
            setattr(self, f"single_{kind}", getattr(self._vector, f"single_{kind}"))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return self._vector.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return tuple(self._change(list(self._vector.step(actions))))


# Final observations


def batched(values: Any) -> Any:
    first = next(value for value in values if value is not None)
    whole = [first if value is None else value for value in values]
    if isinstance(first, dict):
        return {key: batched([value[key] for value in whole]) for key in first}
    if isinstance(first, tuple):
        return tuple(batched(list(parts)) for parts in zip(*whole, strict=True))
    return np.stack([np.asarray(value) for value in whole])


def without_infos(result: list[Any]) -> list[Any]:
    return [*result[:4], None]


def with_finals(form: Callable[[Any], Any], result: list[Any]) -> list[Any]:
    if "final_obs" in result[4]:
        result[4]["final_obs"] = form(result[4]["final_obs"])
    return result


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, batched) for name in ("box", "discrete", "multi-discrete", "tuple", "dict, nested")),
        *((name, list) for name in ("box", "multi-binary", "dict, nested", "image and vector")),
    ],
    ids=lambda value: {batched: "a batch", list: "a list"}.get(value, value),
)
def test_final_observations_in_other_forms(name: str, form: Callable[[Any], Any]) -> None:
    same_step = AutoresetMode.SAME_STEP
    config = replace(SMALL, **KINDS[name].config)
    expected = train(partial(SyncVectorEnv, [KINDS[name].make] * 4, autoreset_mode=same_step), config)
    found = train(lambda: Changed(KINDS[name].make, same_step, partial(with_finals, form)), config)
    assert torch.equal(values_of(found), values_of(expected))


@pytest.mark.parametrize("finals", [{}, {"arms": 3}, [], None, np.zeros(2)], ids=str)
def test_final_observations_that_are_none(finals: Any) -> None:
    make = KINDS["dict, nested"].make
    with pytest.raises(EnvError, match=r"infos\['final_obs'\] must have an observation for each of 4"):
        train(lambda: Changed(make, AutoresetMode.SAME_STEP, partial(with_finals, lambda _: finals)))


def test_infos_that_are_none() -> None:
    words = (
        r"environments 0 to 3, .*, failed in step \d+: environments \[.*\] were truncated and reset in the same step, "
        "so that infos..final_obs.. must have an observation for each of 4 environments, and it is None"
    )
    with pytest.raises(EnvError, match=words):
        train(lambda: Changed(KINDS["box"].make, AutoresetMode.SAME_STEP, without_infos))


# Flags


def with_flags(dtype: Any, result: Any) -> Any:
    return [*result[:2], np.asarray(result[2], dtype), np.asarray(result[3], dtype), result[4]]


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        *((mode, np.float32) for mode in AutoresetMode),
        *zip(AutoresetMode, (np.float64, np.int64, np.uint8), strict=True),
    ],
)
def test_flags_of_vectors_that_are_numbers(mode: AutoresetMode, dtype: Any) -> None:
    make = KINDS["box"].make
    expected = train(lambda: SyncVectorEnv([make] * 4, autoreset_mode=mode))
    found = train(lambda: Changed(make, mode, partial(with_flags, dtype)))
    assert torch.equal(values_of(found), values_of(expected))


def numbers_as_flags(value: Any, env: Any, result: Any) -> Any:
    return result if len(result) == 2 else (*result[:2], value(result[2]), value(result[3]), result[4])


FLAGS: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "float32": np.float32, "array": np.asarray}
WAYS = {"in turn": {}, "whole episodes": {"config": replace(SMALL, num_envs=1, episodes_per_rollout=3)}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FLAGS)
def test_flags_that_are_numbers(kind: str, way: str) -> None:
    expected = train(partial(FaultyEnv, partial(numbers_as_flags, bool)), **WAYS[way])
    assert torch.equal(values_of(train(partial(FaultyEnv, partial(numbers_as_flags, FLAGS[kind])), **WAYS[way])),
                       values_of(expected))  # fmt: skip


def wrong_flag(value: float, after: int, env: Any, result: Any) -> Any:
    if len(result) == 5:
        result = (*result[:2], float(result[2]), float(result[3]), result[4])
    return (*result[:3], value, result[4]) if env.steps == after else result


@pytest.mark.parametrize("after", [1, 5])
@pytest.mark.parametrize("value", [np.nan, 0.5])
def test_flags_that_are_neither_true_nor_false(value: float, after: int) -> None:
    words = f"its truncated is {value}, which is neither true nor false"
    for way in WAYS.values():
        with pytest.raises(EnvError, match=f"environment 0 .*{words}"):
            train(partial(FaultyEnv, partial(wrong_flag, value, after)), **way)

    def fail(result: list[Any]) -> list[Any]:
        return [*result[:3], np.full(4, value), result[4]]

    with pytest.raises(EnvError, match=f"truncated is {value}, which is neither true nor false"):
        train(lambda: Changed(KINDS["box"].make, AutoresetMode.DISABLED, fail))


def late_values(step: int, change: Callable[[list[Any]], Any], env: FaultyEnv, result: Any) -> Any:
    """Other values in one step only."""
    return tuple(change(list(result))) if env.steps == step and env.episode_steps else result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [5, 10], ids=["within an episode", "at its end"])
def test_values_that_have_another_form_only_later(step: int, way: str) -> None:
    expected = train(partial(FaultyEnv, lambda env, result: result), **WAYS[way])
    same: list[Callable[[list[Any]], Any]] = [
        lambda result: [result[0].tolist(), *result[1:]],
        lambda result: [result[0][None].astype(np.float64), *result[1:]],
        lambda result: [*result[:2], int(result[2]), np.array([result[3]]), result[4]],
    ]
    for change in same:
        found = train(partial(FaultyEnv, partial(late_values, step, change)), **WAYS[way])
        assert torch.equal(values_of(found), values_of(expected))
    wrong: list[tuple[Callable[[list[Any]], Any], str]] = [
        (lambda result: [*result[:2], 2, *result[3:]], "its terminated is 2, which is neither true nor false"),
        (lambda result: [*result[:3], np.nan, result[4]], "its truncated is nan, which is neither true nor false"),
        (
            lambda result: [*result[:2], "no", *result[3:]],
            "its terminated is not a number or an array of numbers: 'no'",
        ),
        (lambda result: [[0.5], *result[1:]], r"its observation is of shape \(1,\), and that of its space is \(2,\)"),
        (lambda result: [None, *result[1:]], "its observation is not a number or an array of numbers: None"),
    ]
    for change, words in wrong:
        with pytest.raises(EnvError, match=f"environment 0 .* failed in step {step} of its episode, .*: {words}"):
            train(partial(FaultyEnv, partial(late_values, step, change)), **WAYS[way])
    end_with_none = partial(late_values, 10, lambda result: [*result[:2], None, *result[3:]])
    with pytest.raises(EnvError, match=r"environment 0 .*: its terminated is not a number .*: None"):
        train(partial(FaultyEnv, end_with_none), **WAYS[way])


def late_flags(flags: Callable[[Any], Any], steps: list[int], result: list[Any]) -> list[Any]:
    """Other flags than booleans from the fifth step on."""
    steps.append(1)
    return result if len(steps) < 5 else [*result[:2], flags(result[2]), flags(result[3]), result[4]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_flags_of_vectors_that_are_booleans_only_at_first(mode: AutoresetMode) -> None:
    make = KINDS["box"].make
    expected = train(lambda: SyncVectorEnv([make] * 4, autoreset_mode=mode))
    for dtype in (np.float64, np.int8, object):
        late = partial(late_flags, partial(np.asarray, dtype=dtype), [])
        assert torch.equal(values_of(train(lambda late=late: Changed(make, mode, late))), values_of(expected))
    for value in (2, None, np.nan, "no"):
        late = partial(late_flags, lambda flags, value=value: np.asarray([value] * len(flags)), [])
        with pytest.raises(EnvError, match=f"environments 0 to 3, .*in step 5, .*: terminated is {value}, which is ne"):
            train(lambda late=late: Changed(make, mode, late))


def agents_flag(value: Any, env: Any, result: Any) -> Any:
    if len(result) != 5:
        return result
    return (*result[:3], {agent: value(flag) for agent, flag in result[3].items()}, result[4])


def test_flags_of_several_agents() -> None:
    expected = train(partial(FaultyAgents, partial(agents_flag, bool)))
    assert torch.equal(values_of(train(partial(FaultyAgents, partial(agents_flag, float)))), values_of(expected))
    with pytest.raises(EnvError, match="agent 'agent_0': its truncated is nan, which is neither true nor false"):
        train(partial(FaultyAgents, partial(agents_flag, lambda flag: np.nan)))


# Masks


class WithoutAMask(gym.Wrapper[Any, Any, Any, Any]):
    """Its mask is None from some step on."""

    def __init__(self, after: int) -> None:
        super().__init__(HighestAllowed())
        self._left = after

    def reset(self, **options: Any) -> Any:
        return self._without(*self.env.reset(**options))

    def step(self, action: Any) -> Any:
        return self._without(*self.env.step(action))

    def _without(self, *result: Any) -> Any:
        self._left -= 1
        return result if self._left >= 0 else (*result[:-1], {"action_mask": None})


@pytest.mark.parametrize("after", [0, 3])
def test_a_mask_that_is_none(after: int) -> None:
    for on_env_error in ("raise", "restart"):  # which would not help
        with pytest.raises(EnvError, match=r"^environment 0 .* its info has no 'action_mask', or None"):
            train(partial(WithoutAMask, after), action_masks=True, on_env_error=on_env_error)
    report = hybridppo.check_env(partial(WithoutAMask, 0), steps=20)
    assert not any("has an 'action_mask'" in str(finding) for finding in report.findings)


def test_a_mask_of_other_values_than_0_and_1() -> None:
    def add_infinity(env: FaultyEnv, result: Any) -> Any:  # as it is added to logits: only what it forbids is not 0
        return (*result[:-1], {"action_mask": np.array([0.0, -np.inf if env.steps == 5 else 1.0])})

    with pytest.raises(EnvError, match=r"environment 0 .*in step 5 .*: its action mask\[1\] is -inf, and must be 1 if"):
        train(partial(FaultyEnv, add_infinity), action_masks=True)


def test_a_mask_of_an_agent_that_is_none() -> None:
    class Without(Matching):
        def _observe(self, agents: list[str]) -> Any:
            observations, _ = super()._observe(agents)
            return observations, {agent: {"action_mask": None} for agent in agents}

    with pytest.raises(EnvError, match=r"agent 'player 0'.* its info has no 'action_mask', or None"):
        train(Without, action_masks=True)


# Numbers at the ends of float32


class Numbers(gym.Env[Any, Any]):
    """Observations have numbers of a given size at one place, rewards of another size; the rest is small."""

    action_space = Discrete(2)

    def __init__(self, size: float = 1.0, reward: float = 1.0, length: int = 5, space: Any = None) -> None:
        everything = Dict(calm=Box(-np.inf, np.inf, (2,)), wild=Tuple((Box(-np.inf, np.inf, (3,)),)))
        self.observation_space = everything if space is None else space
        self._size, self._reward, self._length = size, reward, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self._seed = seed
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = self.np_random.uniform(-1, 1) * self._reward
        return self._seen(), reward, False, self._steps == self._length, {}

    def _seen(self) -> Any:
        if isinstance(self.observation_space, Box):
            return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(self.observation_space.dtype)
        wild = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        wild[1] *= self._size if self._seed % 4 == 2 else 1.0
        return {"calm": np.zeros(2, np.float32), "wild": (wild,)}


@pytest.mark.parametrize("options", [{}, {"fast_updates": False}, {"recurrent": "gru", "recurrent_size": 4}], ids=str)
@pytest.mark.parametrize("size", [1e20, 3e38])
def test_observations_that_cannot_be_normalised(size: float, options: dict[str, Any]) -> None:
    config = replace(SMALL, normalize_observations=True, **options)
    words = r"in iteration 1: the first .* is the variance of observations\['wild'\]\[0\]\[1\]"
    with pytest.raises(TrainingError, match=rf"{words}, too large .*, or set normalize_observations=False"):
        train(partial(Numbers, size), config)


def test_rewards_that_cannot_be_normalised() -> None:
    with pytest.raises(TrainingError, match=r"in iteration 1: .*the variance of rewards, .*normalize_rewards"):
        train(partial(Numbers, reward=1e25), replace(SMALL, normalize_rewards=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_numbers_that_can_be_normalised(dtype: Any) -> None:
    config = replace(SMALL, normalize_observations=True)
    assert values_of(train(partial(Numbers, 1e18), config)).isfinite().all()


HUGE = 1.7e308


def test_bounds_that_float32_cannot_hold_are_none() -> None:
    huge, endless = (Box(-bound, bound, (2,), np.float64) for bound in (HUGE, np.inf))
    for options in ({}, {"frame_stack": 2}, {"num_workers": 2}):
        some, others = (train(partial(Numbers, space=space), **options) for space in (huge, endless))
        assert torch.equal(values_of(some), values_of(others))
    assert hybridppo.check_env(partial(Numbers, space=huge), steps=50).is_usable


class Moving(Numbers):
    """Actions between huge bounds."""

    action_space = Box(-HUGE, HUGE, (1,), np.float64)


def test_actions_are_not_scaled_to_such_bounds() -> None:
    train(Moving)
    with pytest.raises(EnvError, match="some of its bounds are infinite, or too large for float32"):
        train(Moving, replace(SMALL, squash_actions=True))
    for kind in (hybridppo.DDPGConfig, hybridppo.TD3Config):
        with pytest.raises(EnvError, match="between finite bounds, which float32 can hold"):
            train(partial(Moving, space=Box(-1.0, 1.0, (2,))), kind())


# A batch of one row


ONE = ppo_config(num_envs=1, num_steps=1, num_minibatches=1, normalize_advantage=False, hidden_sizes=(8,))
SINGLE: dict[str, Any] = {
    "a step": ONE,
    "a step, by autograd": replace(ONE, fast_updates=False),
    "a step, with a memory": replace(ONE, recurrent="gru", recurrent_size=4),
    "a step, normalised": replace(ONE, normalize_observations=True, normalize_rewards=True),
    "a pool": replace(ONE, pool_size=2),
    "an episode": replace(ONE, episodes_per_rollout=1),
    "an episode, its advantage normalised": replace(ONE, episodes_per_rollout=1, normalize_advantage=True),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_batch_of_one_row(name: str) -> None:
    result = train(partial(Numbers, length=1), SINGLE[name], total_steps=12)
    assert values_of(result).isfinite().all()
    assert (name == "a pool") != bool(np.isnan(result.metrics["explained_variance"]))
