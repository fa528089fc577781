"""A mistake in a compiled environment is an error with its file, line and field, and never a wrong number."""

# ruff: noqa: NPY002, RET503 - these are the mistakes

import dataclasses
import enum
import functools
import random as python_random
import time as python_time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_kinds import Choices
from gymnasium.spaces import Box, Discrete
from tagging import tag

import hybridppo
from hybridppo import compiled
from hybridppo.compiled import cuda_kernels, kernels, rehearsal, sources
from hybridppo.compiled.building import build, module_text
from hybridppo.compiled.cuda_building import cuda_text
from hybridppo.environments.making import make_environments
from hybridppo.errors import EnvError

pytest.importorskip("numba")
pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("without_rollouts")]

HERE = Path(__file__).name
PAIR = Box(-100.0, 100.0, (2,), np.float32)
MAP = np.array([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])
UNTOUCHED = MAP.copy()
LARGE = np.zeros(1_000_001, np.int8)


class Move(enum.IntEnum):
    STAY = 0
    GO = 1


class Speeds:
    SLOW = 0.25


GO = Move.GO


def single(**functions: Any) -> compiled.Definition:
    """An environment of one agent, with some of its functions replaced."""

    def reset(state, random):
        state.x = 0.0
        for k in range(3):
            state.cells[k] = k

    def step(state, action, random):
        state.x += action
        return state.x, False

    def observe(state, out):
        out[0], out[1] = state.x, state.cells[1]

    written = type("Single", (), {"reset": reset, "step": step, "observe": observe, **functions})
    state = {"x": np.float64, "cells": (np.int64, (3,))}
    define = compiled.environment(state=state, observation_space=PAIR, action_space=Discrete(2), episode_length=20)
    return define(written)


def several(**functions: Any) -> compiled.Definition:
    """The same for several agents."""

    def reset(agent, state, random):
        state.x[agent] = 0.0
        for k in range(3):
            state.cells[agent, k] = k

    def go(agent, state, action, random):
        state.x[agent] += action

    def reward(agent, state, time):
        return state.x[agent], False

    def end(state, time):
        return time > 10

    def observe(agent, state, time, out):
        out[0], out[1] = state.x[agent], time

    written: dict[str, Any] = {"reset": reset, "go": go, "reward": reward, "end": end, "observe": observe} | functions
    written["phases"] = (written["go"],)
    define = compiled.environment(
        policies={"one": 1, "other": 3},
        state={"x": np.float64, "cells": (np.int64, (3,))},
        observation_space=PAIR,
        action_space=Discrete(2),
        episode_length=20,
    )
    return define(type("Several", (), written))


# Mistakes of one agent's functions. Each line at fault ends with "# here".


def beyond_the_observation() -> compiled.Definition:
    def observe(state, out):
        out[0], out[1] = state.x, 0.0
        out[2] = 1.0  # here

    return single(observe=observe)


def beyond_a_field() -> compiled.Definition:
    def step(state, action, random):
        if state.x > 4.0:
            state.cells[int(state.x) - 2] = 1  # here
        state.x += 1.0
        return 0.0, False

    return single(step=step)


def exits() -> compiled.Definition:
    def step(state, action, random):
        if state.x > 4.0:
            raise SystemExit(0)  # here
        state.x += 1.0
        return 0.0, False

    return single(step=step)


def before_a_field() -> compiled.Definition:
    def step(state, action, random):
        state.x -= 1.0
        return float(state.cells[int(state.x)]), False  # here

    return single(step=step)


def beyond_a_field_in_a_helper() -> compiled.Definition:
    def total(numbers):
        found = 0.0
        for k in range(4):
            found += numbers[k]  # here
        return found

    def step(state, action, random):
        return total(state.cells), False

    return single(step=step)


def forgotten_entry() -> compiled.Definition:
    def observe(state, out):  # here
        out[0] = state.x

    return single(observe=observe)


def forgotten_on_a_path() -> compiled.Definition:
    def observe(state, out):  # here
        out[0] = state.x
        if state.x < 5.0:
            out[1] = 1.0

    return single(observe=observe)


def random_of_numpy() -> compiled.Definition:
    def reset(state, random):
        state.x = np.random.uniform(-1.0, 1.0)  # here

    return single(reset=reset)


def random_of_python() -> compiled.Definition:
    def chance():
        return python_random.random()  # here

    def step(state, action, random):
        return chance(), False

    return single(step=step)


def clock() -> compiled.Definition:
    def step(state, action, random):
        return python_time.perf_counter(), False  # here

    return single(step=step)


def swapped() -> compiled.Definition:
    def step(state, action, random):  # here
        has_ended = state.x > 3.0
        state.x += 1.0
        return has_ended, 1.0 * state.x

    return single(step=step)


def swapped_on_a_rare_path() -> compiled.Definition:
    def step(state, action, random):
        if state.x > 1e6:
            return True, 100.0  # here
        return 0.0, False

    return single(step=step)


def truth_for_a_reward() -> compiled.Definition:
    def step(state, action, random):
        return state.x > 1e6, False  # here

    return single(step=step)


def number_for_an_end() -> compiled.Definition:
    def step(state, action, random):  # here
        return 0.0, state.x

    return single(step=step)


def no_return() -> compiled.Definition:
    def step(state, action, random):  # here
        state.x += action

    return single(step=step)


def no_return_on_a_rare_path() -> compiled.Definition:
    def step(state, action, random):  # here
        if state.x < 1e6:
            return 0.0, False

    return single(step=step)


def unknown_field_read() -> compiled.Definition:
    def step(state, action, random):
        if state.x > 1e6:
            return state.speed, False  # here
        return 0.0, False

    return single(step=step)


def unknown_field_set() -> compiled.Definition:
    def reset(state, random):
        state.x = 0.0
        state.sped = 1.0  # here

    return single(reset=reset)


def unknown_field_in_a_helper() -> compiled.Definition:
    def faster(of):
        of.speed += 1.0  # here

    def step(state, action, random):
        faster(state)
        return 0.0, False

    return single(step=step)


def changed_constant() -> compiled.Definition:
    def step(state, action, random):
        MAP[0, action] += 1.0  # here
        return 0.0, False

    return single(step=step)


def large_constant() -> compiled.Definition:
    def step(state, action, random):
        return float(LARGE[action]), False  # here

    return single(step=step)


def constant_beyond() -> compiled.Definition:
    def step(state, action, random):
        state.x += 1.0
        return MAP[int(state.x), 0], False  # here

    return single(step=step)


# Of several agents.


def agents_beyond() -> compiled.Definition:
    def go(agent, state, action, random):
        state.x[agent] = state.x[agent + 1]  # here

    return several(go=go)


def agents_forget() -> compiled.Definition:
    def observe(agent, state, time, out):  # here
        out[0] = state.x[agent]
        if agent < 3:
            out[1] = 1.0

    return several(observe=observe)


def agents_swap() -> compiled.Definition:
    def reward(agent, state, time):  # here
        leaves = state.x[agent] > 3.0
        return leaves, state.x[agent]

    return several(reward=reward)


def agents_return_nothing() -> compiled.Definition:
    def reward(agent, state, time):  # here
        if agent != 2:
            return 0.0, False

    return several(reward=reward)


def agents_end_by_a_number() -> compiled.Definition:
    def end(state, time):  # here
        return time / 2.0

    return several(end=end)


def agents_unknown_field() -> compiled.Definition:
    def reset(agent, state, random):
        state.x[agent] = 0.0
        state.speed[agent] = 1.0  # here

    return several(reset=reset)


def agents_random_of_numpy() -> compiled.Definition:
    def go(agent, state, action, random):
        state.x[agent] += np.random.normal()  # here

    return several(go=go)


STEP_RETURNS = ["`step` returns a reward and a truth, in this order: a number, and True or False"]
SEED = "does not follow from the environment's seed"
DRAWS = [SEED, "compiled.uniform, compiled.normal or compiled.integers, which take `random`"]
MISTAKES: list[tuple[Callable[[], compiled.Definition], list[str]]] = [
    (beyond_the_observation, ["`out[2] = 1.0", "index 2 is out of bounds for axis 0 with size 2"]),
    (exits, ["SystemExit: 0"]),
    (beyond_a_field, ["state.cells[int(state.x) - 2] = 1", "index 3 is out of bounds for axis 0 with size 3"]),
    (before_a_field, ["state.cells[int(state.x)]", "index -4 is out of bounds for axis 0 with size 3"]),
    (beyond_a_field_in_a_helper, ["found += numbers[k]", "index 3 is out of bounds for axis 0 with size 3"]),
    (forgotten_entry, ["Single.observe", "does not write out[1]", "an observation has 2 numbers"]),
    (forgotten_on_a_path, ["Single.observe", "does not write out[1]", "on every path"]),
    (random_of_numpy, ["np.random", *DRAWS]),
    (random_of_python, ["python_random.random", *DRAWS]),
    (clock, ["python_time.perf_counter", SEED, "count steps in a field of the state"]),
    (swapped, ["Single.step", "returned (False, 1.0)", *STEP_RETURNS]),
    (swapped_on_a_rare_path, ["`return (True, 100.0)`", *STEP_RETURNS]),
    (truth_for_a_reward, ["`return (state.x > 1000000.0, False)`", *STEP_RETURNS]),
    (number_for_an_end, ["Single.step", "returned (0.0, 0.0)", *STEP_RETURNS]),
    (no_return, ["Single.step", "returns nothing on some path", *STEP_RETURNS]),
    (no_return_on_a_rare_path, ["Single.step", "returns nothing on some path", *STEP_RETURNS]),
    (unknown_field_read, ["the state has no field 'speed': its fields are x, cells"]),
    (unknown_field_set, ["the state has no field 'sped': its fields are x, cells"]),
    (unknown_field_in_a_helper, ["of.speed += 1.0", "the state has no field 'speed': its fields are x, cells"]),
    (changed_constant, ["MAP is a constant: what an environment changes is a field of its state"]),
    (large_constant, ["LARGE has 1000001 bytes", "1000000 at most", "a smaller type than int8, or fewer numbers"]),
    (constant_beyond, ["`return MAP[int(state.x), 0], False", "index 2 is out of bounds for axis 0 with size 2"]),
    (agents_beyond, ["state.x[agent + 1]", "index 4 is out of bounds for axis 0 with size 4"]),
    (agents_forget, ["Several.observe", "does not write out[1]"]),
    (agents_swap, ["Several.reward", "returned (False, 1.0)", "`reward` returns a reward and a truth", "agent leaves"]),
    (
        agents_return_nothing,
        ["Several.reward", "returns nothing on some path", "`reward` returns a reward and a truth"],
    ),
    (agents_end_by_a_number, ["Several.end", "returned 0.5", "`end` returns a truth", "over for all: True or False"]),
    (agents_unknown_field, ["the state has no field 'speed': its fields are x, cells"]),
    (agents_random_of_numpy, ["np.random", *DRAWS]),
]


@pytest.mark.parametrize(("make", "parts"), MISTAKES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_mistake_is_an_error_with_its_line(make: Callable[[], compiled.Definition], parts: list[str]) -> None:
    """This includes what a GPU would run: its kernels are of environments that the host has made."""
    definition, code = make(), Path(__file__).read_text(encoding="utf-8").splitlines()
    begin = code.index(f"def {make.__name__}() -> compiled.Definition:")
    line = next(number for number in range(begin, len(code)) if code[number].endswith("# here")) + 1
    with pytest.raises(EnvError) as raised:
        make_environments(definition, 2, vectorization="compiled")
    message = str(raised.value)
    assert f"{HERE}:{line}" in message
    assert [part for part in parts if part not in message] == []
    np.testing.assert_array_equal(MAP, UNTOUCHED)


@pytest.mark.parametrize("make", [single, several])
def test_what_has_no_mistake_passes_and_its_random_numbers_stay(make: Any) -> None:
    definition = make()
    before = np.random.get_state()[1].copy()
    definition.action_space.seed(5)
    expected = [definition.action_space.sample() for _ in range(20)]
    definition.action_space.seed(5)
    rehearsal.rehearse(definition)
    assert [definition.action_space.sample() for _ in range(20)] == expected
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_the_python_form_has_the_same_errors() -> None:
    with pytest.raises(EnvError, match=r"Single\.observe .*does not write out\[1\]"):
        forgotten_entry()().reset(seed=0)
    environment = swapped()()
    environment.reset(seed=0)
    with pytest.raises(EnvError, match=r"returned \(False, 1\.0\)"):
        environment.step(0)
    assert "does not write out[1]" in str(hybridppo.check_env(forgotten_entry()))


def test_check_finds_what_only_compiled_code_refuses() -> None:
    report = hybridppo.check_env(random_of_numpy(), steps=20)
    assert report.is_usable  # in Python
    assert f"np.random {SEED}: draw with compiled.uniform" in str(report)
    assert "-> correct it, or train without vectorization='compiled'" in str(report)
    assert "compile" not in str(hybridppo.check_env(single(), steps=20))


def test_an_observation_that_is_nan_by_itself_is_left_to_the_run() -> None:
    def observe(state, out):
        out[0], out[1] = np.nan, 1.0

    environments = make_environments(single(observe=observe), 2, vectorization="compiled")
    with pytest.raises(EnvError, match=r"in their reset: the observation of environment 0: observation\[0\] is nan"):
        environments.reset(0)


@pytest.mark.parametrize("loops", [kernels, cuda_kernels], ids=["CPU", "GPU"])
def test_a_number_that_is_not_written_late_is_nan_and_not_what_was_there(
    loops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def observe(agent, state, time, out):
        out[0] = 1.0

    monkeypatch.setattr(loops, "observe", observe)
    row, out = np.full(2, 7.0, np.float32), np.full(2, 7.0, np.float32)
    loops.look(0, None, 0, row, out)
    np.testing.assert_array_equal(out, np.array([1.0, np.nan], np.float32))


@pytest.mark.parametrize("make", [single, several])
def test_an_index_that_is_beyond_its_array_late_is_an_error_too(make: Any) -> None:
    """In compiled code, after the steps in Python."""

    def step(state, action, random):
        state.x += 1.0
        if state.x > 1000.0:
            state.cells[int(state.x)] = 7
        return 0.0, False

    def go(agent, state, action, random):
        state.x[agent] += 1.0
        if state.x[agent] > 1000.0:
            state.cells[agent, int(state.x[agent])] = 7

    definition = single(step=step) if make is single else several(go=go, end=never)
    endless = dataclasses.replace(definition, episode_length=0)
    environments = make_environments(endless, 2, vectorization="compiled")
    environments.reset(0)
    actions = np.zeros(environments.num_envs, np.int64)
    for _ in range(1000):
        environments.step(actions)
    message = rf"step 1001: IndexError: index is out of bounds of its array: step {definition.name}\(\) in Python"
    with pytest.raises(EnvError, match=message):
        environments.step(actions)


def never(state: Any, time: int) -> bool:
    return time < 0


def test_a_negative_index_counts_from_the_end_in_python_and_compiled() -> None:
    def observe(state, out):
        out[-2], out[-1] = state.x, state.cells[-1]

    environments = make_environments(single(observe=observe), 1, vectorization="compiled")
    assert environments.reset(0).tolist() == [[0.0, 2.0]]
    assert single(observe=observe)().reset(seed=0)[0].tolist() == [0.0, 2.0]


def test_fields_may_be_called_as_numpy_calls_its_own() -> None:
    @compiled.environment(
        state={"size": np.float64, "sum": (np.int64, (2,))}, observation_space=PAIR, action_space=Discrete(2)
    )
    class Named:
        def reset(state, random):
            state.size = 3.0
            state.sum[0] = state.sum[1] = 1

        def step(state, action, random):
            state.sum[1] += action
            return state.size, False

        def observe(state, out):
            out[0], out[1] = state.size, state.sum[1]

    environments = make_environments(Named, 1, vectorization="compiled")
    plain = make_environments(Named, 1, vectorization="sync")
    np.testing.assert_array_equal(environments.reset(0), plain.reset(0))
    for ours, theirs in zip(environments.step(np.array([1]))[:2], plain.step(np.array([1]))[:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_of_many_agents_few_are_stepped() -> None:
    agents = set()
    game = tag(taggers=3, runners=50)

    def observe(agent: int, *arguments: Any) -> None:
        agents.add(agent)
        game.functions["observe"](agent, *arguments)

    rehearsal._step(dataclasses.replace(game, functions={**game.functions, "observe": observe}))
    assert agents == {0, 1, 2, 3, 4, 51, 52}


# Constants


def test_members_of_enumerations_and_classes_are_their_numbers() -> None:
    def step(state, action, random):
        if action == Move.GO:
            state.x += Speeds.SLOW
        return float(GO) + Move.STAY.value, action == GO

    definition = single(step=step)
    ours = make_environments(definition, 1, vectorization="compiled")
    ours.reset(0)
    observations, rewards, terminated, *_ = ours.step(np.array([0]))
    assert (observations[0, 0], rewards[0], terminated[0]) == (0.0, 1.0, False)
    _, rewards, terminated, *_ = ours.step(np.array([1]))
    assert (rewards[0], terminated[0]) == (1.0, True)
    text = module_text(definition).text
    assert "0.25" in text
    assert "Move" not in text


def test_a_constant_array_is_what_it_is_in_python() -> None:
    wide = np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2, 1]  # of a closure, and not contiguous

    def value(k):
        return MAP[k % 2, 2]

    def step(state, action, random):
        state.x += value(int(state.x)) + wide[action, 1] + MAP.sum() + len(MAP)
        return MAP[action, 0], False

    ours = make_environments(single(step=step), 2, vectorization="compiled")
    plain = make_environments(single(step=step), 2, vectorization="sync")
    np.testing.assert_array_equal(ours.reset(3), plain.reset(3))
    for actions in np.random.default_rng(0).integers(0, 2, (30, 2)):
        for array, other in zip(ours.step(actions)[:2], plain.step(actions)[:2], strict=True):
            np.testing.assert_array_equal(array, other)


def at_most_half(function: Callable[[float], float]) -> Callable[[float], float]:
    @functools.wraps(function)
    def limited(x):
        return min(function(x), 0.5)

    return limited


@at_most_half
def doubled(x):
    return 2.0 * x


FACTOR = 2.0


def scaled(x, by=FACTOR):
    return by * x


FACTOR = 5.0
hidden = 100.0


def test_decorators_defaults_and_inner_functions_are_what_they_are_in_python() -> None:
    def step(x):
        def thrice(hidden):
            return 3.0 * hidden

        more = lambda hidden: hidden + 1.0  # noqa: E731 - a lambda is what is tried
        return thrice(more(scaled(x))) + doubled(x) + hidden

    text = sources.Gathering("Single").sources({"step": step}).text
    written: dict[str, Any] = {"compiled": lambda function: function}
    exec(text, written)
    assert written["step"](7.0) == step(7.0) == 3.0 * (2.0 * 7.0 + 1.0) + 0.5 + 100.0


def test_the_text_follows_the_numbers_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state, action, random):
        return MAP[action, 0] + MAP[0, action], False

    before = module_text(single(step=step)).text
    assert before.count("np.frombuffer") == 1
    same = module_text(single(step=step)).text
    monkeypatch.setitem(globals(), "MAP", MAP + 1.0)
    after = module_text(single(step=step)).text
    assert before == same != after


def test_kernels_of_a_gpu_have_the_array_too() -> None:
    text = cuda_text(Choices, simulated=True).text
    assert text.index("WEIGHTS = np.frombuffer") < text.index("WEIGHTS[")
    with pytest.raises(EnvError, match=r"np\.random does not follow"):
        cuda_text(random_of_numpy())


def test_arrays_of_other_things_are_refused() -> None:
    names = np.array(["a", "b"])

    def step(state, action, random):
        return float(names[action] == "a"), False

    with pytest.raises(EnvError, match="names is a ndarray, which no compiled function can use"):
        build(single(step=step))
    assert sources.MOST_BYTES == 10**6  # Numba's own, in `make_constant_array`
