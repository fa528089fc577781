"""The check finds what is wrong with an environment, and does not complain of what is right."""

import itertools
import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import SyncVectorEnv
from toy_agents import FaultyAgents, FromOneToTwo, Matching, TakingTurns

import hybridppo
from hybridppo import ConfigurationError
from hybridppo.commands.main import main
from hybridppo.system.messages import shown_return, shown_seconds
from hybridppo.tools import check


class Walk(gym.Env[Any, Any]):
    """An environment without mistakes: a walk to either end of a line."""

    observation_space: Any = Box(-9.0, 9.0, (1,))
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(-2, 3))
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.place += 2 * int(action) - 1
        return self.seen(), self.reward(), abs(self.place) >= 9, False, {}

    def seen(self) -> Any:
        return np.array([self.place], np.float32)

    def reward(self) -> Any:
        return float(self.place == 9)


def variant(**attributes: Any) -> Callable[[], Any]:
    return lambda: type("Variant", (Walk,), attributes)()


class Clocked(Walk):
    """Holds something that cannot be saved, and whose numbers no replay repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.times = itertools.count()

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return observation + np.float32(time.perf_counter() % 1.0), *others


LOCK = threading.Lock()
FAR, UNBOUNDED = Box(-1e9, 1e9, (1,)), Box(-np.inf, np.inf)


def needs_lock(lock: Any) -> Any:
    return Walk()


def continuous(env: Walk, action: Any) -> Any:
    return Walk.step(env, action[0] > 0)


def endless(env: Walk, action: Any) -> Any:
    return *Walk.step(env, action)[:2], False, False, {}


def reset_anywhere(env: Walk, **options: Any) -> Any:
    env.place = float(np.random.default_rng().uniform(-8.0, 8.0))  # never the same twice
    return env.seen(), {}


def far(env: Walk) -> Any:
    return np.array([1e4 * env.place], np.float32)


GRAY, FRAMES = Box(0, 255, (16, 20), np.uint8), Box(0, 255, (4, 16, 20, 3), np.uint8)

FINDINGS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "raises": (variant(reward=lambda env: 1 / 0), "error", "it fails.*ZeroDivisionError"),
    "exits": (variant(reward=lambda env: sys.exit()), "error", "SystemExit: .*return terminated=True"),
    "cannot be made": (lambda: 1 / 0, "error", "it cannot be made.*ZeroDivisionError"),
    "no environment": (lambda: 3, "error", "the function must make a gymnasium.Env .*; it made int"),
    "no space": (
        variant(observation_space=None),
        "error",
        "must have a space of gymnasium as its observation_space, and has none",
    ),
    "no space of gymnasium": (
        variant(action_space=4),
        "error",
        "as its action_space, and has 4 of builtins: set self.act",
    ),
    "unsupported space": (variant(action_space=Text(3)), "error", "the action space .* is not supported"),
    "outside at first": (variant(observation_space=Box(7.0, 9.0, (1,))), "warning", "outside of the bounds"),
    "outside later": (
        variant(observation_space=Box(-4.0, 4.0, (1,))),
        "warning",
        r"observation\[0\] was -?5.0, outside of the bounds of its space, -4.0 to 4.0 -> give the space",
    ),
    "shape": (variant(seen=lambda env: np.zeros(2, np.float32)), "error", r"of shape \(2,\)"),
    "not finite": (variant(reward=lambda env: float("nan")), "error", "its reward is nan"),
    "reset alone": (variant(reset=lambda env, **options: np.zeros(1)), "error", "its reset did not return two values"),
    "wide actions": (
        variant(action_space=Box(-500.0, 500.0), step=continuous),
        "warning",
        "its actions go up to 500.*RescaleAction",
    ),
    "unbounded actions": (variant(action_space=UNBOUNDED, step=continuous), "note", "its actions are not bounded"),
    "more channels than rows": (
        variant(observation_space=Box(0, 255, (8, 8, 12), np.uint8), seen=lambda env: np.ones((8, 8, 12), np.uint8)),
        "note",
        "it shows images of 8 x 8 pixels and 12 channels, last -> transpose them",
    ),
    "small bytes": (
        variant(observation_space=Box(0, 1, (8, 8, 2), np.uint8), seen=lambda env: np.ones((8, 8, 2), np.uint8)),
        "warning",
        "its image has bytes up to 1, and networks divide bytes by 255 -> multiply them by 255",
    ),
    "image of floats": (
        variant(observation_space=Box(0, 1, (16, 16, 3)), seen=lambda env: np.zeros((16, 16, 3), np.float32)),
        "warning",
        r"its observation \(16, 16, 3\) looks like an image of float32: .* without convolutions -> return bytes",
    ),
    "image without channels": (
        variant(observation_space=GRAY, seen=lambda env: np.zeros((16, 20), np.uint8)),
        "warning",
        r"its observation \(16, 20\) looks like an image of uint8: .* with the shape \(height, width, channels\)",
    ),
    "frames on an axis": (
        variant(observation_space=FRAMES, seen=lambda env: np.zeros((4, 16, 20, 3), np.uint8)),
        "warning",
        r"its observation \(4, 16, 20, 3\) looks like an image of uint8: .* of several frames follow one another",
    ),
    "a wrapper that normalises": (
        lambda: gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(variant()())),
        "warning",
        "has the wrapper NormalizeReward, whose statistics are not saved .* -> leave it out: normalize_observations",
    ),
    "large observations": (
        variant(observation_space=FAR, seen=far),
        "note",
        r"observation\[0\] goes up to .*normalize_observations",
    ),
    "large rewards": (variant(reward=lambda env: 1e3 * env.place), "note", "rewards go up to.*normalize_rewards"),
    "no rewards": (variant(reward=lambda env: 0.0), "warning", "rewards were 0"),
    "endless, with one reward": (
        variant(step=endless, observation_space=FAR, reward=lambda env: 1.0),
        "warning",
        "all rewards were 1 -> random actions made no difference",
    ),
    "endless": (variant(step=endless, observation_space=FAR), "warning", "no episode ended.*TimeLimit"),
    "not seeded": (
        variant(reset=reset_anywhere, observation_space=FAR),
        "warning",
        "the same seed gave two different episodes",
    ),
    "global generator": (variant(reward=lambda env: random.random()), "warning", "global generator"),
    "not to be sent": (partial(needs_lock, LOCK), "note", "cannot be sent to worker processes"),
    "not to be saved": (Clocked, "note", "its state cannot be saved and restored.*get_state"),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_what_is_wrong_is_found_with_its_fix(what: str) -> None:
    make, severity, text = FINDINGS[what]
    report = hybridppo.check_env(make, steps=500)
    found = [str(finding) for finding in report.findings if finding.severity == severity]
    assert any(re.search(text, line, re.DOTALL) for line in found), report
    assert report.is_usable == (severity != "error")


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    report = hybridppo.check_env(Walk, steps=500)
    assert report.findings == []
    assert report.is_usable
    assert report.steps == 500
    assert report.seconds_per_step > 0
    assert all(length >= 7 for length in report.episode_lengths)
    assert "OK: hybridppo can train in" in str(report)


class Careless(gym.Env[Any, Any]):
    """A habit of packages: parts of observations that the space does not have."""

    def __init__(self) -> None:
        self.observation_space = Dict(speed=Box(-1.0, 1.0, (2,)))
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), float(action), self.steps > 9, False, {}

    def _observation(self) -> Any:
        return {"speed": self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32), "cargo": 3}


def test_what_is_ignored_is_said_and_an_own_space_is_left_alone() -> None:
    (finding,) = hybridppo.check_env(Careless, steps=20).findings
    assert (finding.severity, finding.what) == (
        "warning",
        "its observation has parts that its space does not have: 'cargo'",
    )


@pytest.mark.parametrize("make", [Walk, Matching])
def test_a_slow_environment_makes_fewer_steps(make: Callable[[], Any]) -> None:
    report = hybridppo.check_env(make, seconds=0)
    assert report.steps == 1
    assert report.is_usable
    assert "1 of 2,000 steps took 0 s -> for more, check_env(..., seconds=60), or --seconds 60" in str(report)
    assert "no episode ended" not in str(report)
    assert "steps took" not in str(hybridppo.check_env(make, steps=1, seconds=0))
    for bad in (-1, "long", float("nan")):
        with pytest.raises(ConfigurationError, match="seconds must be a number of at least 0"):
            hybridppo.check_env(make, seconds=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="seed must be a whole number of at least 0, got 'abc'"):
        hybridppo.check_env(make, seed="abc")  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "steps", "repeats"), [(2.0, 3, False), (30.0, 31, True)])
def test_the_time_limit_is_one_of_everything(
    seconds: float, steps: int, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    class Slow(Walk):
        def step(self, action: Any) -> Any:
            clock.now += 0.5
            return super().step(action)

    clock = Clock()
    monkeypatch.setattr(check, "time", clock)
    report = hybridppo.check_env(Slow, seconds=seconds)
    assert report.steps == steps
    assert clock.now <= seconds
    left_out = "there was no time to repeat an episode by its seed, or to save and restore a state -> for more"
    assert (left_out in str(report)) != repeats
    assert (clock.now > 0.5 * steps) == repeats


def test_there_may_be_no_time_limit() -> None:
    report = hybridppo.check_env(Walk, seconds=None, steps=9)  # type: ignore[arg-type]
    assert report.is_usable
    assert report.steps == 9


def test_a_first_observation_a_little_out_of_bounds_is_warned_of() -> None:
    class Beginning(Walk):
        observation_space: Any = Box(0.0, 9.0, (1,))

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            self.place = 8
            return np.array([9.5], np.float32), {}

    report = hybridppo.check_env(Beginning, steps=1)
    assert report.is_usable
    assert "observation[0] was 9.5, outside of the bounds of its space, 0.0 to 9.0" in str(report)


def test_a_reset_may_make_another_action_space() -> None:
    class Renewing(Walk):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.action_space = Discrete(2)
            return super().reset(seed=seed)

    assert hybridppo.check_env(Renewing, steps=500).findings == []


def test_times_are_said_in_units_that_can_be_read() -> None:
    said = [
        shown_seconds(seconds) for seconds in (0.0, 4.464e-6, 9.994e-4, 9.996e-4, 0.0123, 0.9996, 9.4, 99.96, 4321.0)
    ]
    assert said == ["0 s", "4.46 us", "999 us", "1 ms", "12.3 ms", "1 s", "9.4 s", "100 s", "4,321 s"]
    assert [shown_return(mean) for mean in (12.34, float("nan"))] == ["return 12.3", "no whole episode"]


def test_a_mask_is_obeyed_and_told_of() -> None:
    class Masked(Walk):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            observation, _ = super().reset(seed=seed)
            return observation, {"action_mask": np.array([0, 1], np.int8)}

        def step(self, action: Any) -> Any:
            assert action == 1
            return *super().step(action)[:4], {"action_mask": np.array([0, 1], np.int8)}

    report = hybridppo.check_env(Masked, steps=200)
    assert [finding.fix for finding in report.findings] == ["train with action_masks=True (--action-masks)"]


FORMS_OF_MASKS: dict[str, tuple[Any, Any, Any]] = {
    "booleans": (Discrete(3), np.array([True, False, False]), 0),
    "numbers": (Discrete(3), [0, 1, 0], 1),
    "a flat MultiDiscrete": (MultiDiscrete([2, 3]), np.array([0, 1, 0, 0, 1]), [1, 2]),
    "a MultiDiscrete of two rows": (MultiDiscrete([[2, 2], [2, 3]]), [0, 1, 1, 0, 1, 0, 0, 0, 1], [[1, 0], [0, 2]]),
    "tuples": (MultiDiscrete([2, 3]), ((False, True), np.array([0, 0, 1])), [1, 2]),
    "parts": (
        Dict({"a": Discrete(2), "b": Tuple([MultiBinary(2), Box(0.0, 1.0)])}),
        {"a": (0, 1), "b": (np.array([0, 1]), None)},
        {"a": 1, "b": ([0, 1], None)},
    ),
}  # fmt: skip
"""The action space, a mask that allows one action, and that action (None: any)."""


def is_like(action: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(is_like(action[key], part) for key, part in expected.items())
    if isinstance(expected, tuple):
        return all(map(is_like, action, expected))
    return expected is None or np.array_equal(action, expected)


@pytest.mark.parametrize("form", FORMS_OF_MASKS)
def test_a_mask_may_have_every_form_that_is_trained_with(form: str) -> None:
    space, mask, allowed = FORMS_OF_MASKS[form]

    class Masked(Walk):
        action_space: Any = space

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return super().reset(seed=seed)[0], {"action_mask": mask}

        def step(self, action: Any) -> Any:
            assert is_like(action, allowed)
            return *super().step(self.place % 2)[:4], {"action_mask": mask}

    report = hybridppo.check_env(Masked, steps=60)
    assert report.is_usable, str(report)


def test_an_environment_with_arguments_is_checked_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    made: list[int] = []

    def make(size: int) -> Any:
        made.append(size)
        return Walk()

    assert hybridppo.check_env(make, env_kwargs={"size": 3}, steps=20).is_usable
    assert set(made) == {3}
    with pytest.raises(SystemExit) as ended:
        main(["check", "CartPole-v1", "--env-kwargs", '{"lenght": 5}'])
    assert ended.value.code == 2
    assert "takes other arguments than env_kwargs has" in capsys.readouterr().err


class MaskedAtFirst(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0], {"action_mask": np.array([0, 1], np.int8)}


class MaskedForAWhile(MaskedAtFirst):
    def step(self, action: Any) -> Any:
        mask = {"action_mask": np.array([1, 1], np.int8)} if self.place < 1 else {"moves": 2}
        return *super().step(action)[:4], mask


class AgentsMaskedAtFirst(Matching):
    def step(self, actions: dict[str, Any]) -> Any:
        return *super().step(actions)[:4], {}


MASKS_GONE: dict[str, tuple[Callable[[], Any], str]] = {
    "at once": (MaskedAtFirst, "its info has no 'action_mask', or None (it is empty)"),
    "later": (MaskedForAWhile, "its info has no 'action_mask', or None (it has ['moves'])"),
    "of agents": (partial(AgentsMaskedAtFirst, masks=True), "agent 'player 0': its info has no 'action_mask'"),
    "of agents in turn": (
        lambda: TakingTurns(AgentsMaskedAtFirst(masks=True)), "agent 'player 0': its info has no 'action_mask'"
    ),
}  # fmt: skip
"""To add a kind, add a line."""


@pytest.mark.parametrize("kind", MASKS_GONE)
def test_a_mask_that_later_infos_lack_is_one_error(kind: str) -> None:
    make, text = MASKS_GONE[kind]
    report = hybridppo.check_env(make, steps=200)
    (error,) = [finding.what for finding in report.findings if finding.severity == "error"]
    assert text in error
    assert error.endswith("put one into every info of reset and step, or leave action_masks out")
    assert "train with action_masks=True" not in str(report)


def test_the_global_generators_are_left_as_they_were() -> None:
    def state() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002

    before = state()
    hybridppo.check_env(Walk, steps=50)
    assert state() == before


def test_a_vector_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="check one of its environments"):
        hybridppo.check_env(lambda: SyncVectorEnv([Walk]))


def test_the_command_prints_and_its_exit_code_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check", "CartPole-v1", "--steps", "50", "--seconds", "0", "--json"])
    assert end.value.code == 0
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # JSON by the standard
    assert (said["is_usable"], said["steps"]) == (True, 1)
    with pytest.raises(SystemExit) as end:
        main(["check", "Nowhere-v0"])
    assert end.value.code == 1
    assert "pprint_registry" in capsys.readouterr().out


# Several agents


def test_agents_that_share_a_policy_are_checked() -> None:
    report = hybridppo.check_env(partial(Matching, masks=True), steps=100)
    assert report.is_usable
    assert report.steps == 100
    assert set(report.episode_lengths) == {6, 7, 8}
    assert "note: it has 3 agents, which may share a policy: player 0, player 1, player 2" in str(report)
    assert "it says which actions are allowed ('action_mask')" in str(report)
    assert "two different episodes" not in str(report)


def test_agents_that_are_not_there_or_wait_are_not_out_of_bounds() -> None:
    for make in (FromOneToTwo, lambda: TakingTurns(FromOneToTwo())):
        assert "outside of the bounds" not in str(hybridppo.check_env(make, steps=50))


class Drawing(Matching):
    """Draws from the global generator."""

    def _seen(self, wanted: int) -> Any:
        return np.random.randint(4)  # noqa: NPY002


class OldTensors:
    """A batched environment of an older interface."""

    num_envs, num_obs, device = 4, 3, "cpu"
    reset = step = print


LACKS = "OldTensors.*, which lacks single_observation_space, single_action_space to be a batched environment"


class OldAgents:
    """Agents without a list of all, whose spaces are no methods."""

    agents, action_space = ("one", "two"), Discrete(2)
    reset = step = observation_space = print


def test_an_environment_of_agents_that_lacks_something_is_told_what() -> None:
    said = "made OldAgents, which lacks the method action_space, the list possible_agents to be a multi-agent"
    assert said in str(hybridppo.check_env(OldAgents))


def test_a_class_of_batched_environments_is_checked_by_its_name() -> None:
    report = hybridppo.check_env("hybridppo.tensors:TorchCartPole", steps=20)
    assert report.is_usable
    assert report.steps == 20


def test_an_environment_of_tensors_that_lacks_something_is_told_what() -> None:
    with pytest.raises(ConfigurationError, match=f"an environment's id, a function .* got .*{LACKS}"):
        hybridppo.train(OldTensors(), total_steps=1)  # type: ignore[arg-type]
    assert re.search(f"the function must make .*; it made {LACKS}", str(hybridppo.check_env(OldTensors)))


AGENTS_GONE_WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a number that is none": (
        partial(FaultyAgents, lambda env, result: ({**result[0], "agent_1": np.full(3, np.nan)}, *result[1:])),
        "failed in a reset, 0 steps after the first: agent 'agent_1': its observation[0] is nan",
    ),
    "the global generator": (Drawing, "warning: it draws from Python's or NumPy's global generator"),
    "nothing at all": (
        object,
        "error: the function must make a gymnasium.Env or VectorEnv, or a pettingzoo.ParallelEnv or AECEnv; it made",
    ),
}


@pytest.mark.parametrize("what", AGENTS_GONE_WRONG)
def test_what_is_wrong_with_agents_is_found(what: str) -> None:
    make, words = AGENTS_GONE_WRONG[what]
    report = hybridppo.check_env(make, steps=50)
    assert words in str(report)
    assert report.is_usable == ("warning" in words)
