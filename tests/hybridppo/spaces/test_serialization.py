"""Every space that trains is saved, loaded, resumed and exported."""

import inspect
import json
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from exports import require_onnx
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from selection import only_by_default

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import are_same, space_from_json, space_to_json
from hybridppo.tools.numpy_policy import Policy

DTYPES = (
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32,
    np.float64, np.longdouble,
)  # fmt: skip
LOW, HIGH = np.array([0.1, -np.inf], np.float32), np.array([np.inf, 1.7], np.float32)
IMAGE = Box(0, 255, (5, 6, 1), np.uint8)


def discrete_of_32_bits() -> Discrete:
    if "dtype" in inspect.signature(Discrete).parameters:
        return Discrete(3, start=2, dtype=np.int32)
    return Discrete(3, start=2)  # older releases of gymnasium have 64 bits only


BOTH: dict[str, gym.Space[Any]] = {
    "one number": Box(-1.0, 1.0, (1,)),
    "no axis": Box(-1.0, 1.0, ()),
    "two axes": Box(-2.0, 0.1, (2, 2)),
    "infinite": Box(-np.inf, np.inf, (2,), np.float64),
    "half-bounded": Box(LOW, HIGH),
    "extended precision": Box(np.longdouble("0.1"), np.longdouble("0.7"), (2,), np.longdouble),
    "numbers like an image": Box(0.0, 1.0, (5, 6, 1)),
    "nothing": Box(-1.0, 1.0, (0,)),
    "discrete": Discrete(3),
    "discrete with a start": Discrete(3, start=-5),
    "discrete of 32 bits": discrete_of_32_bits(),
    "multi-discrete": MultiDiscrete([2, 3]),
    "multi-discrete of two axes": MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-2, 3]]),
    "multi-discrete of 8 bits": MultiDiscrete([2, 3], dtype=np.int8, start=[1, -1]),
    "multi-binary": MultiBinary(3),
    "multi-binary of a list": MultiBinary([3]),
    "multi-binary of two axes": MultiBinary([2, 3]),
    "dict": Dict(z=Discrete(2), a=Box(-1.0, 1.0, (2,))),
    "nested": Dict(b=Tuple((Discrete(2, start=1), Box(0.0, 1.0, ()))), a=Dict(c=MultiBinary(2), d=MultiDiscrete([2]))),
    "keys that are numbers": Dict({2: Discrete(2), 1: Box(0.0, 1.0, (2,))}),
    "keys of NumPy": Dict({np.str_("b"): Discrete(2), np.str_("a"): Discrete(3)}),
    "keys that are tuples": Dict({("b", 1): Discrete(2), ("a", (0, 2)): Box(0.0, 1.0, (2,))}),
}
OBSERVATIONS = {
    **BOTH,
    **{f"bounded {np.dtype(dtype)}": Box(0, 1, (2,), dtype) for dtype in DTYPES},
    "the largest whole numbers": Box(-(2**63), 2**63 - 1, (2,), np.int64),
    "the largest of all": Box(0, 2**64 - 1, (2,), np.uint64),
    "truths of three axes": Box(0, 1, (5, 6, 1), np.bool_),
    "truths in a dict": Dict(a=Box(0, 1, (2,), np.bool_), b=Discrete(2)),
    "a byte": Box(0, 255, (), np.uint8),
    "image": IMAGE,
    "image with channels first": Box(0, 255, (1, 5, 6), np.uint8),
    "image with bounds of its own": Box(
        np.arange(30, dtype=np.uint8).reshape(5, 6, 1), np.full((5, 6, 1), 255, np.uint8), dtype=np.uint8
    ),
    "image and numbers": Dict(camera=IMAGE, speed=Box(-1.0, 1.0, (2,)), gear=Discrete(3)),
    "images": Tuple((IMAGE, Box(0, 255, (2, 7, 8), np.uint8))),
}
ACTIONS = {**BOTH, **{f"bounded {np.dtype(dtype)}": Box(0, 1, (2,), dtype) for dtype in DTYPES[9:]}}
CASES = [
    *(pytest.param(space, space, id=f"both: {name}") for name, space in BOTH.items()),
    *(
        pytest.param(space, Discrete(2), id=f"observed: {name}")
        for name, space in OBSERVATIONS.items()
        if name not in BOTH
    ),
    *(
        pytest.param(Box(-1.0, 1.0, (2,)), space, id=f"done: {name}")
        for name, space in ACTIONS.items()
        if name not in BOTH
    ),
]

IN_FILES_ALONE = (
    "both: discrete", "both: multi-discrete", "both: multi-binary", "both: multi-binary of a list",
    "both: keys of NumPy", "observed: truths of three axes", "observed: image with channels first",
)  # fmt: skip
"""Spaces that are trained like another; `test_every_space_is_the_same_from_json` tests what is their own."""
CHOSEN = [
    str(case.id)
    for case in CASES
    if str(case.id) not in IN_FILES_ALONE
    and ("bounded " not in str(case.id) or str(case.id).split()[-1] in ("bool", "float16"))
]
"""Two of the types of bounded numbers that are read and written in ways of their own."""


def member(space: gym.Space[Any], generator: np.random.Generator) -> Any:
    """A member of a space; there are more kinds than gymnasium can draw from."""
    if isinstance(space, Dict):
        return {key: member(part, generator) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(member(part, generator) for part in space.spaces)
    if not isinstance(space, Box):
        space.seed(int(generator.integers(2**31)))
        return space.sample()
    low, high = (np.clip(bound.astype(np.float64), -50.0, 50.0) for bound in (space.low, space.high))
    return np.asarray(generator.uniform(low, high)).astype(space.dtype)


class Drawn(gym.Env[Any, Any]):
    """Random observations, episodes of five steps; an action outside its space is an error."""

    def __init__(self, observations: "gym.Space[Any]", actions: "gym.Space[Any]") -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return member(self.observation_space, self.np_random), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self._steps += 1
        return member(self.observation_space, self.np_random), 1.0, False, self._steps == 5, {}


def test_every_space_is_the_same_from_json() -> None:
    low, high = np.array([0.1, -np.inf, -np.pi]), np.array([np.inf, 1e30, np.pi])
    bounds = Box(low, high, dtype=np.float64), Box(-(2**40), 2**40, (1,), np.int64), Box(-0.1, 0.1, (2,), np.float16)
    for space in (*OBSERVATIONS.values(), *ACTIONS.values(), *bounds):
        as_json = space_to_json(space)
        again = space_from_json(json.loads(json.dumps(as_json, allow_nan=False)))
        assert space_to_json(again) == as_json
        assert are_same(space, again)
        assert again.dtype == space.dtype


def test_spaces_with_other_members_are_not_the_same() -> None:
    spaces = [Discrete(3), Discrete(4), MultiBinary(3), MultiBinary([4]), gym.spaces.Text(3), gym.spaces.Text(4)]
    assert [are_same(*pair) for pair in combinations(spaces, 2)] == [False] * 15


@pytest.mark.parametrize(("observations", "actions"), only_by_default(CHOSEN, CASES, pytest.mark.slow))
def test_every_space_that_trains_is_saved_loaded_resumed_played_and_exported(
    observations: "gym.Space[Any]", actions: "gym.Space[Any]", tmp_path: Path
) -> None:
    make, run = partial(Drawn, observations, actions), tmp_path / "run"
    options: dict[str, Any] = {"seed": 0, "placement": "cpu", "progress": False}
    config = ppo_config(num_envs=2, num_steps=8, num_minibatches=2, num_epochs=1, hidden_sizes=(8,))
    result = hybridppo.train(make, total_steps=32, config=config, run_dir=run, checkpoint_seconds=0, **options)
    result.agent.save(tmp_path / "agent.safetensors")
    drawn = np.random.default_rng(0)
    for loaded in (hybridppo.load(run), hybridppo.load(tmp_path / "agent.safetensors")):
        for _ in range(3):
            observation = member(observations, drawn)
            expected = result.agent.act(observation)
            assert actions.contains(loaded.act(observation))
            np.testing.assert_equal(loaded.act(observation), expected)
    hybridppo.train(make, total_steps=16, agent=loaded, **options)
    assert hybridppo.evaluate(run, env=make, episodes=2, progress=False).returns == (5.0, 5.0)
    if ObservationEncoder(observations).layout.images:
        with pytest.raises(ConfigurationError, match=r"export it as \.onnx or"):
            hybridppo.export(run, tmp_path / "policy.npz")
    else:
        exported = hybridppo.export(run, tmp_path / "policy.npz", check_steps=20)
        assert exported.largest_difference < 1e-4
        action, _ = Policy(tmp_path / "policy.npz").act(member(observations, drawn))
        assert actions.contains(action)
    assert remove_last_checkpoint(run) < 32
    resumed = hybridppo.resume(run, env=make, progress=False)
    assert resumed.agent.parameters.values.tolist() == result.agent.parameters.values.tolist()


@pytest.mark.extras
@pytest.mark.parametrize(
    ("observations", "actions"),
    only_by_default(
        ("both: nested", "both: multi-discrete of two axes", "done: bounded float64", "observed: images"),
        CASES,
        pytest.mark.slow,
    ),
)
def test_every_space_that_trains_is_exported_as_onnx(
    observations: "gym.Space[Any]", actions: "gym.Space[Any]", tmp_path: Path
) -> None:
    require_onnx()
    agent = hybridppo.PPO(observations, actions, ppo_config(hidden_sizes=(4,)))
    agent.save(tmp_path / "agent.safetensors")
    exported = hybridppo.export(tmp_path / "agent.safetensors", tmp_path / "policy.onnx", check_steps=10)
    assert exported.largest_difference < 1e-4


def test_a_key_that_no_file_can_hold_is_named(tmp_path: Path) -> None:
    space = Dict({frozenset("a"): Discrete(2)})
    with pytest.raises(ConfigurationError, match=r"the key frozenset\({'a'}\) of a Dict space cannot be saved"):
        space_to_json(space)
    with pytest.raises(ConfigurationError, match=r"the key nan of a Dict space cannot be saved"):
        space_to_json(Dict({float("nan"): Discrete(2)}))
