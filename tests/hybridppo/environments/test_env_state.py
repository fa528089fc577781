"""The state of environments: new ones that get it continue exactly, and the error names what cannot be saved."""

import enum
import json
import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from selection import only_by_default
from toy_environments import ScriptedEnv, newest

from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.state import describing as env_state
from hybridppo.environments.state import keeping, sharing
from hybridppo.environments.state.describing import describe, digests
from hybridppo.environments.state.nodes import array_bytes, is_python_object
from hybridppo.environments.state.restoring import restore
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.environments.vector import wrap
from hybridppo.errors import EnvStateError

CLASSIC = {
    "CartPole-v1": 150,
    "MountainCar-v0": 150,
    "MountainCarContinuous-v0": 900,
    "Pendulum-v1": 150,
    "Acrobot-v1": 400,
}
"""For each environment, enough steps that an episode ends within the next 120."""
BOTH = (False, True)
TOY_TEXT = ["Blackjack-v1", "FrozenLake-v1", newest("CliffWalking"), newest("Taxi")]


def through_json(described: dict[str, Any]) -> dict[str, Any]:
    """The state as a file would return it, in standard JSON."""
    loaded: dict[str, Any] = json.loads(json.dumps(described, allow_nan=False))
    return loaded


def moved(environment: Any, fresh: Any) -> Any:
    """`fresh` with the state of `environment`."""
    restore(fresh, through_json(describe(environment)))
    return fresh


# Environments of gymnasium


def run(environments: Environments, rng: np.random.Generator, num_steps: int) -> list[Any]:
    """All that some random steps return."""
    space, shape, seen = environments.action_space, (environments.num_envs, *environments.action_space.shape), []
    for _ in range(num_steps):
        actions: Any = rng.integers(space.n, size=shape) if isinstance(space, Discrete) else rng.uniform(-1, 1, shape)
        *arrays, indices, finals = environments.step(actions.astype(space.dtype))
        seen.append([array.tolist() for array in arrays] + [indices, [final.tolist() for final in finals]])
    return seen


def assert_goes_on(make: Callable[[], Environments], steps_before: int, remembering: bool = True) -> None:
    environments, fresh = make(), make()
    environments.reset(seed=1)
    if remembering:
        environments.remember_the_start()
    rng = np.random.default_rng(0)
    run(environments, rng, steps_before)
    fresh.reset(seed=1)
    fresh.load_state(json.loads(json.dumps(environments.state(), allow_nan=False)))
    again = np.random.default_rng()
    again.bit_generator.state = rng.bit_generator.state
    following = run(environments, rng, 120)
    assert run(fresh, again, 120) == following
    assert any(True in step[2] + step[3] for step in following) or steps_before == 0  # an episode's end was among them
    environments.close()
    fresh.close()


# Of CartPole all; of the others, which have no form of their own for several, each way once.
SOME_WAYS = [
    *(f"CartPole-v1, {how}, {first}, {second}" for how in ("auto", "sync") for first in BOTH for second in BOTH),
    *(f"{env_id}, auto, False, True" for env_id in CLASSIC if env_id != "CartPole-v1"),
    *(f"{env_id}, sync, {at_once}, {at_once}" for env_id in CLASSIC if env_id != "CartPole-v1" for at_once in BOTH),
]


@pytest.mark.parametrize(
    ("env_id", "vectorization", "at_once", "remembering"),
    only_by_default(SOME_WAYS, list(product(CLASSIC, ("auto", "sync"), BOTH, BOTH)), pytest.mark.slow),
)
def test_classic_control_goes_on(env_id: str, vectorization: Any, at_once: bool, remembering: bool) -> None:
    steps_before = 0 if at_once else CLASSIC[env_id]
    assert_goes_on(lambda: make_environments(env_id, 3, vectorization=vectorization), steps_before, remembering)


def test_cartpole_is_vectorised_natively() -> None:
    assert len(make_environments("CartPole-v1", 3).state()) == 1
    assert len(make_environments("CartPole-v1", 3, vectorization="sync").state()) == 3


@pytest.mark.parametrize("env_id", TOY_TEXT)
def test_toy_text_goes_on(env_id: str) -> None:
    environment, fresh = gym.make(env_id), gym.make(env_id)
    environment.reset(seed=1)
    fresh.reset(seed=2)
    moved(environment, fresh)
    actions = np.random.default_rng(0)
    for _ in range(200):
        action = int(actions.integers(environment.action_space.n))
        step, again = environment.step(action), fresh.step(action)
        np.testing.assert_equal(again, step)
        if step[2] or step[3]:
            np.testing.assert_equal(fresh.reset(), environment.reset())


def test_a_vector_whose_observations_have_parts_goes_on() -> None:
    """gymnasium seeds the spaces of its parts at random, when it makes the vector's space."""

    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("MountainCar-v0", max_episode_steps=20)
        space = gym.spaces.Dict(car=Box(-9.0, 9.0, (2,), np.float32))
        return gym.wrappers.TransformObservation(env, lambda observation: {"car": observation}, space)

    assert_goes_on(lambda: wrap(SyncVectorEnv([make] * 2)), 33)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vectors_of_other_modes_go_on(mode: AutoresetMode) -> None:
    make = partial(gym.make, "MountainCar-v0", max_episode_steps=20)
    assert_goes_on(lambda: wrap(SyncVectorEnv([make] * 2, autoreset_mode=mode)), 33)


def test_wrappers_go_on() -> None:
    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("Pendulum-v1", max_episode_steps=30)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = gym.wrappers.NormalizeObservation(gym.wrappers.FrameStackObservation(env, 3))
        env = gym.wrappers.TransformObservation(env, np.ravel, Box(-np.inf, np.inf, (9,), np.float64))
        return gym.wrappers.NormalizeReward(env)

    assert_goes_on(lambda: make_environments(make, 2), 77)


def test_environments_that_have_never_been_reset_are_saved_with_their_generator() -> None:
    environment = moved(gym.make("CartPole-v1"), gym.make("CartPole-v1"))
    assert environment.unwrapped._np_random is None
    environment = gym.make("CartPole-v1").unwrapped
    numbers = environment.np_random  # made when it is asked for
    again = gym.make("CartPole-v1").unwrapped
    again.reset(seed=0)
    environment.state = environment.steps_beyond_terminated = None
    moved(environment, again)
    assert again.np_random.random(5).tolist() == numbers.random(5).tolist()


# Values


class Holder(gym.Env[Any, Any]):
    """Has any attribute that it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Phase(enum.Enum):
    RESTING = 1
    MOVING = 2


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**100), 0.1, -0.0, 5e-324, float("inf"), float("nan"), "moving", b"\x00\xff", (), (1, (2.5,)),
        [1, [2]], {"a": 1, 2: [3], (1, 2): None}, deque([1, 2], maxlen=2),
        np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan"),
        np.array([0.1, np.nan, -0.0]), np.zeros((0, 3)), np.array(7), np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array(["a", "bc"]), np.array([b"F", b"H"]), np.array([True, False]), np.datetime64("2020-01-01"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    found = moved(Holder(value=value), Holder(value=None)).value
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)
    if isinstance(value, (np.ndarray, np.generic)):
        assert found.dtype == value.dtype
        assert found.tobytes() == value.tobytes()
    if isinstance(value, float):
        assert repr(found) == repr(value)
    if isinstance(value, deque):
        assert found.maxlen == value.maxlen


def test_the_layout_of_arrays_is_kept() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    for value in (array, np.asfortranarray(array), array.transpose(1, 0, 2), array.transpose(2, 0, 1)):
        found = moved(Holder(value=value), Holder(value=None)).value
        np.testing.assert_array_equal(found, value)
        assert found.strides == value.strides
        assert found.flags.writeable
    for value in (array[:, ::2], array[::-1], array[:, 1, None], np.broadcast_to(array, (2, 2, 3, 4))):
        np.testing.assert_array_equal(moved(Holder(value=value), Holder(value=None)).value, value)


def test_what_is_shared_stays_shared() -> None:
    array, items = np.zeros((3, 4)), [1]
    environment = Holder(array=array, same=array, row=array[1], items=items, more=(items, {"items": items}))
    environment.itself = environment
    found = moved(environment, Holder(array=None, same=None, row=None, items=None, more=None, itself=None))
    found.row[2] = 5.0
    found.items.append(2)
    assert found.array is found.same
    assert found.array[1, 2] == 5.0
    assert found.more[0] is found.items
    assert found.more[1]["items"] is found.items
    assert found.itself is found
    assert array[1, 2] == 0.0


def test_what_is_not_shared_is_not() -> None:
    environment = Holder(one=np.zeros(2), other=np.zeros(2), items=[], more=[])
    shared, items = np.ones(2), [3]
    found = moved(environment, Holder(one=shared, other=shared, items=items, more=items))
    found.one[0] = 7.0
    found.items.append(1)
    assert found.other[0] == 0.0
    assert found.more == []
    assert shared[0] == 1.0
    assert items == [3]


def test_a_view_alone_does_not_bring_what_it_was_cut_from() -> None:
    described = describe(Holder(row=np.zeros((1000, 1000))[3, :2]))
    assert len(json.dumps(described)) < 1000


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generators_go_on(kind: str) -> None:
    generator = np.random.Generator(getattr(np.random, kind)(3))
    generator.integers(7, size=3, dtype=np.uint32)
    generator.spawn(1)
    found = moved(Holder(generator=generator), Holder(generator=None)).generator
    assert (
        found.integers(7, size=9, dtype=np.uint32).tolist() == generator.integers(7, size=9, dtype=np.uint32).tolist()
    )
    assert found.normal(size=5).tolist() == generator.normal(size=5).tolist()
    assert found.spawn(1)[0].random() == generator.spawn(1)[0].random()


def test_older_generators_go_on() -> None:
    numpys, pythons = np.random.RandomState(3), random.Random(3)
    numpys.normal()
    pythons.gauss(0, 1)
    found = moved(Holder(numpys=numpys, pythons=pythons), Holder(numpys=None, pythons=None))
    assert found.numpys.normal(size=3).tolist() == numpys.normal(size=3).tolist()
    assert [found.pythons.gauss(0, 1) for _ in range(3)] == [pythons.gauss(0, 1) for _ in range(3)]


def test_seeded_spaces_go_on() -> None:
    environment, fresh = Holder(space=Box(-1.0, 1.0, (2,))), Holder(space=Box(-1.0, 1.0, (2,)))
    environment.space.seed(3)
    environment.space.sample()
    fresh.space.seed(4)
    assert moved(environment, fresh).space.sample().tolist() == environment.space.sample().tolist()


def test_what_does_not_change_stays_that_of_the_fresh_environment() -> None:
    function = partial(int, base=2)
    fresh = moved(
        Holder(function=function, kind=int, space=Discrete(2), numbers=np, own=len, phase=Phase.MOVING, step=1),
        Holder(function=function, kind=int, space=Discrete(3), numbers=np, own=len, phase=Phase.RESTING, step=0),
    )
    assert (fresh.function, fresh.kind, fresh.space, fresh.own) == (function, int, Discrete(3), len)
    assert fresh.phase is Phase.MOVING
    assert vars(fresh)["step"] == 1


@dataclass
class Helper:
    count: Any = 0


def test_dataclasses_are_data() -> None:
    environment, fresh = Holder(helpers=[Helper(), Helper()]), Holder(helpers=[Helper(), Helper()])
    environment.helpers[1].count = 3
    ours = fresh.helpers[1]
    moved(environment, fresh)
    assert fresh.helpers[1] is ours
    assert (fresh.helpers[0].count, fresh.helpers[1].count) == (0, 3)


class SpeaksForItself(gym.Env[Any, Any]):
    """Holds something that only it can save."""

    def __init__(self) -> None:
        self._numbers = iter(range(1000))
        self.given = 0

    def next(self) -> int:
        self.given += 1
        return next(self._numbers)

    def get_state(self) -> dict[str, Any]:
        return {"given": self.given, "array": np.arange(3)}

    def set_state(self, state: dict[str, Any]) -> None:
        assert state["array"].tolist() == [0, 1, 2]
        self.given = state["given"]
        self._numbers = iter(range(self.given, 1000))


def test_an_environment_can_speak_for_itself() -> None:
    environment = gym.Wrapper(SpeaksForItself())
    assert [environment.unwrapped.next() for _ in range(3)] == [0, 1, 2]
    fresh = moved(environment, gym.Wrapper(SpeaksForItself()))
    assert fresh.unwrapped.next() == 3


@pytest.mark.parametrize("fails", ["get_state", "set_state"])
def test_an_error_of_its_own_is_named(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise KeyError("speed")

    monkeypatch.setattr(SpeaksForItself, fails, broken)
    with pytest.raises(EnvStateError, match=rf"{fails}\(\).* failed: KeyError: 'speed'"):
        moved(SpeaksForItself(), SpeaksForItself())


# What is left alone


class Client:
    """Forwards everything that it is asked to somebody else."""

    def __init__(self) -> None:
        self.address = "localhost"

    def __getattr__(self, name: str) -> Any:
        raise KeyError(f"a remote call of {name}")


class Model:
    """Its `set_state` has another signature."""

    def get_state(self) -> Any:
        raise AssertionError("it was called")

    def set_state(self, positions: Any, velocities: Any) -> None:
        raise AssertionError("it was called")

    def state_dict(self) -> Any:
        raise AssertionError("it was called")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("it was called")


@pytest.mark.parametrize("stranger", [Client(), Model()], ids=["client", "model"])
def test_objects_of_other_classes_are_not_asked(stranger: Any) -> None:
    environments = wrap_of([gym.Wrapper(Keeping(items=[stranger]))])
    environments.remember_the_start()
    remedy = r"give Keeping get_state\(\) and set_state\(state\) \(docs/environments\.md"
    with pytest.raises(EnvStateError, match=rf"Keeping\.items\[0\] is of type .*{type(stranger).__name__}.*: {remedy}"):
        environments.state()


class Keeping(gym.Env[Any, Any]):
    """Has any attribute that it is given, and looks like an environment."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(2)

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}


def wrap_of(made: list[gym.Env[Any, Any]]) -> Environments:
    """The library's view of existing environments, the fourth of a run and those after it."""
    given = iter(made)
    return SyncEnvironments(lambda: next(given), len(made), 3)


# What is shared, and what takes long


def test_an_array_of_many_environments_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counting(array: Any) -> Any:
        read.append(array.nbytes)
        return array_bytes(array)

    monkeypatch.setattr(sharing, "array_bytes", counting)
    table, items = np.zeros((1000, 100)).T, list(range(1000))
    environments = wrap_of([Keeping(table=table, view=None, items=items, steps=0) for _ in range(4)])
    environments.reset(0)
    environments.remember_the_start()
    for environment in (each.env for each in environments.sub_environments):
        environment.steps += 1  # type: ignore[attr-defined]
    read.clear()
    states = environments.state()
    assert read == [table.nbytes]
    assert len(json.dumps(states)) < 8000
    fresh = wrap_of([Keeping(table=table, view=None, items=items, steps=0) for _ in range(4)])
    fresh.reset(0)
    read.clear()
    fresh.load_state(through_json({"states": states})["states"])
    assert read == [table.nbytes]
    assert [each.env.steps for each in fresh.sub_environments] == [1] * 4  # type: ignore[attr-defined]
    table[0, 0] = 1.0  # of all of them: found, though it is the same array
    assert '"array"' in json.dumps(environments.state())


def test_states_that_take_too_long_are_given_up_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(sharing, "perf_counter", lambda: float(next(clock)))  # a second for every look at it
    monkeypatch.setattr(keeping, "SECONDS", 60.0)
    small = wrap_of([Keeping(steps=0), Keeping(steps=0)])
    small.reset(0)
    small.remember_the_start()
    assert len(small.state()) == 2
    past = [{"step": i} for i in range(100_000)]
    environments = wrap_of([Keeping(steps=0, past=[]), Keeping(steps=0, past=past)])
    environments.reset(0)
    environments.remember_the_start()
    reason = r"takes more than 60 seconds, of which Keeping\.past of environment 4 took \d+\.\d\. .*get_state\(\)"
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(reason, warning)
    before = next(clock)
    for _ in range(2):
        with pytest.raises(EnvStateError, match=reason):
            environments.state()
    assert next(clock) == before + 1
    assert len(caplog.records) == 1


# What earlier releases saved


class Plain:
    """Of a class that earlier releases looked into."""

    def __init__(self) -> None:
        self.count, self.table = 0, np.arange(4.0)


class Older:
    """Saved in the format of earlier releases."""

    def __init__(self) -> None:
        self.given = 0

    def state_dict(self) -> Any:
        raise AssertionError("it was called")

    def load_state_dict(self, state: Any) -> None:
        self.given = state["given"]


def test_what_format_1_describes_is_restored() -> None:
    fresh = Holder(
        map=np.arange(6.0).reshape(2, 3).T, position=[0, 0], plain=Plain(), older=Older(),
        generator=np.random.default_rng(3),
    )  # fmt: skip
    restore(fresh, json.loads(FORMAT_1))
    assert (fresh.position, fresh.plain.count, fresh.older.given) == ([3, 0], 2, 5)
    assert fresh.generator.random() == 0.2368105065960997
    fresh.plain.table[0] = 1.0
    with pytest.raises(EnvStateError, match=r"Plain\.table is not what it was when the run began"):
        restore(fresh, json.loads(FORMAT_1))
    with pytest.raises(EnvStateError, match="is of format 4, and this release reads up to 3"):
        restore(fresh, {**json.loads(FORMAT_1), "format": 4})


FORMAT_1 = """
{"object": "Holder", "attributes": [["map", {"same": "5e3b676bbd4712848be32be4"}], ["position", {"list": [3,
0]}], ["plain", {"object": "Plain", "attributes": [["count", 2], ["table", {"same":
"1071884fcc5f936f5e7ec4c1"}]]}], ["older", {"object": "Older", "state": {"dict": [["given", 5]]}}],
["generator", {"generator": "PCG64", "state": {"dict": [["bit_generator", "PCG64"], ["state", {"dict":
[["state", 190925293513678790023551717590265477330], ["inc", 222003063171874261427395693950637096479]]}],
["has_uint32", 0], ["uinteger", 0]]}, "seed": {"dict": [["entropy", 3], ["spawn_key", {"tuple": []}],
["pool_size", 4], ["n_children_spawned", 0]]}}]]}
"""


# What cannot be saved


class WithSlots:
    __slots__ = ("hidden",)


class WithSlotsAndMore(WithSlots):
    pass


class Numbers(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (iter(()), "builtins.tuple_iterator"),
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        (WithSlotsAndMore(), "WithSlotsAndMore"),
        (Numbers(), "Numbers"),
        (np.array([None]), "numpy.ndarray"),
        (np.zeros(2, dtype=[("a", int)]), "numpy.ndarray"),
        (np.ma.zeros(2), "MaskedArray"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_saved_is_named(value: Any, kind: str) -> None:
    with pytest.raises(EnvStateError, match=rf"Holder\.worlds\['a'\]\[1\] is of type .*{kind}, which cannot be saved"):
        describe(Holder(worlds={"a": [0, value]}))


def test_an_object_of_python_has_all_in_its_dict() -> None:
    others = (object(), iter(()), WithSlots(), WithSlotsAndMore(), Numbers())
    assert [is_python_object(value) for value in (Holder(), *others)] == [True] + [False] * 5


def test_physics_engines_are_named() -> None:
    pytest.importorskip("mujoco")
    environment = gym.make("InvertedPendulum-v5")
    environment.reset(seed=0)
    with pytest.raises(
        EnvStateError, match=r"InvertedPendulumEnv\.\w+ is of type mujoco\.\S*Mj\w+, which cannot be saved"
    ):
        describe(environment)


def test_environments_in_other_processes_are_told() -> None:
    make = partial(ScriptedEnv, ((2, "truncated"),))
    environments = make_environments(lambda: gym.vector.AsyncVectorEnv([make]), 1)
    with pytest.raises(
        EnvStateError, match="in other processes: let the function make one environment, and set num_workers"
    ):
        environments.state()
    environments.close()


def test_an_environment_that_keeps_its_whole_past_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_state, "MAX_BYTES", 2**20)
    describe(Holder(past=np.zeros(50_000)))
    for past in (np.zeros(200_000), list(range(300_000)), "x" * 2_000_000, [bytes(1000)] * 2000):
        with pytest.raises(EnvStateError, match="takes more than 1 MiB"):
            describe(Holder(past=past))


def test_data_without_end_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(EnvStateError, match="nested too deeply"):
        describe(Holder(nested=nested))


# What cannot be restored


def test_another_class_is_refused() -> None:
    with pytest.raises(EnvStateError, match=r"Holder\.helper was a Helper .* and is a NoneType now"):
        moved(Holder(helper=Helper()), Holder(helper=None))
    with pytest.raises(
        EnvStateError, match=r"Holder\.helpers\[1\] was a Helper .* a freshly reset environment has none"
    ):
        moved(Holder(helpers=[Helper(), Helper()]), Holder(helpers=[Helper()]))
    other = enum.Enum("Stage", "RESTING MOVING")
    with pytest.raises(EnvStateError, match=r"Holder\.phase was a Phase when it was saved, and is a Stage now"):
        moved(Holder(phase=Phase.MOVING), Holder(phase=other["RESTING"]))
    with pytest.raises(EnvStateError, match="ScriptedEnv was a Holder when it was saved, and is a ScriptedEnv now"):
        restore(ScriptedEnv(((1, "truncated"),)), describe(Holder()))


def test_another_of_the_same_objects_may_be_named_than_after_the_reset() -> None:
    """As the goal of an agent that is another of the landmarks in each episode."""
    helpers, (first, second) = [Helper(3), Helper(4), Helper(5)], ([Helper(), Helper(), Helper()] for _ in range(2))
    environment = Holder(goal=helpers[1], helpers=helpers)
    began, fresh = digests(Holder(goal=first[0], helpers=first)), Holder(goal=second[0], helpers=second)
    restore(fresh, through_json(describe(environment, began)))
    found: Any = fresh
    assert found.goal is found.helpers[1]
    assert [vars(each) for each in found.helpers] == [{"count": 3}, {"count": 4}, {"count": 5}]


def test_two_objects_that_are_one_after_a_reset_are_two_again() -> None:
    helper = Helper()
    fresh: Any = Holder(one=helper, other=helper)
    moved(Holder(one=Helper(1), other=Helper(2)), fresh)
    assert (fresh.one.count, fresh.other.count) == (1, 2)
    shared, *own = (SpeaksForItself() for _ in range(3))
    with pytest.raises(EnvStateError, match=r"Holder\.other was an object of its own .* and is shared after a reset"):
        moved(Holder(one=own[0], other=own[1]), Holder(one=shared, other=shared))


def test_of_what_has_not_changed_there_is_only_a_digest() -> None:
    environment = Holder(map=np.zeros((100, 100)), position=[0, 0], helper=Helper(), phase=Phase.RESTING)
    began = digests(environment)
    environment.position[0] = 3
    described = through_json(describe(environment, began))
    assert len(json.dumps(described)) < 500
    fresh = Holder(map=np.zeros((100, 100)), position=[0, 0], helper=Helper(), phase=Phase.RESTING)
    map_before = fresh.map
    restore(fresh, described)
    assert fresh.position == [3, 0]
    assert fresh.map is map_before
    environment.helper.count, environment.phase = 2, Phase.MOVING
    restore(fresh, through_json(describe(environment, began)))
    assert (fresh.helper.count, fresh.phase) == (2, Phase.MOVING)


def test_another_environment_is_refused() -> None:
    environment = Holder(gravity=9.8, position=0.0)
    began = digests(environment)
    environment.position = 1.0
    with pytest.raises(EnvStateError, match=r"Holder\.gravity is not what it was when the run began"):
        restore(Holder(gravity=1.6, position=0.0), describe(environment, began))
    restore(Holder(gravity=1.6, position=0.0), describe(environment))  # without digests, all of it is put back


def test_attributes_may_come_and_go() -> None:
    environment, fresh = Holder(old=1, kept=2), Holder(old=1, kept=2)
    began = digests(environment)
    del environment.old
    environment.new = 3
    restore(fresh, through_json(describe(environment, began)))
    assert vars(fresh) == {"kept": 2, "new": 3}


def test_what_is_shared_with_what_has_not_changed_stays_shared() -> None:
    def make() -> Holder:
        items, array = [1], np.zeros(3)
        return Holder(items=items, array=array, holders=[items], view=None, count=0)

    environment, fresh = make(), make()
    began = digests(environment)
    environment.count, environment.holders = 1, [environment.items, environment.items]
    environment.view = environment.array[:2]
    restore(fresh, through_json(describe(environment, began)))
    assert fresh.holders[0] is fresh.items
    assert fresh.holders[1] is fresh.items
    fresh.array[0] = 5.0
    assert fresh.view[0] == 5.0


@pytest.mark.parametrize("holding", [lambda it: it, lambda it: [Helper(it)], lambda it: {"a": (Helper(it), 1)}])
def test_generators_are_restored_even_where_nothing_was_drawn(holding: Callable[[Any], Any]) -> None:
    one, other = np.random.default_rng(), np.random.default_rng()
    environment, fresh = Holder(held=holding(one)), Holder(held=holding(other))
    restore(fresh, through_json(describe(environment, digests(environment))))
    held = vars(fresh)["held"]
    helper = held[0] if isinstance(held, list) else held["a"][0] if isinstance(held, dict) else Helper(held)
    assert helper.count.random() == one.random()


def test_objects_in_a_list_share_what_has_changed() -> None:
    def make() -> Holder:
        position = [0.0]
        return Holder(position=position, helpers=[Helper(position)])

    environment, fresh = make(), make()
    began = digests(environment)
    environment.position[0] = 3.0
    restore(fresh, through_json(describe(environment, began)))
    assert fresh.position == [3.0]
    assert fresh.helpers[0].count is fresh.position


def test_a_list_of_objects_that_an_earlier_release_has_left_out_stays_as_it_is() -> None:
    environment = Holder(helpers=[Helper(np.random.default_rng(0))], step=1)
    described = through_json(describe(environment))
    helpers = dict(described["attributes"])["helpers"]
    described["attributes"] = [["helpers", {"same": sharing.Shared().digest_of(helpers)}], ["step", 2]]
    restore(environment, described)
    assert vars(environment)["step"] == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [(Helper, Holder), (len, abs), (moved, run), (Holder().reset, Holder().close), ([moved, run], [run, moved])],
)
def test_another_function_or_class_than_at_the_reset_is_not_restored_and_not_ignored(before: Any, after: Any) -> None:
    environment, fresh = Holder(acts=before, count=1), Holder(acts=before, count=0)
    began = digests(fresh)
    restore(fresh, through_json(describe(environment, began)))
    assert fresh.count == 1
    environment.acts = after
    with pytest.raises(EnvStateError, match=r"Holder\.acts\S* was .* when it was saved, and is .* after a reset"):
        restore(fresh, through_json(describe(environment, began)))


def reward(*arguments: Any, **keywords: Any) -> None:
    """What an environment has in part."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partial(reward, 1), partial(run, 1)),
        (partial(reward, 1), partial(reward, 2)),
        (partial(reward, x=1), partial(reward, x=1.0)),
        (partial(reward), partial(reward, 1)),
        ([partial(reward, None, x=[1])], [partial(reward, None, x=[2])]),
    ],
)
def test_a_partial_function_of_other_arguments_is_not_restored_and_not_ignored(before: Any, after: Any) -> None:
    environment, fresh = (Holder(acts=before, count=0) for _ in range(2))
    environment.own, fresh.own = (partial(reward, each, 1, x=(2.0, "a")) for each in (environment, fresh))
    began = digests(fresh)
    environment.count = 1
    restore(fresh, through_json(describe(environment, began)))
    assert (fresh.count, fresh.acts) == (1, before)
    environment.acts = after
    with pytest.raises(EnvStateError, match=r"Holder\.acts\S* (is partial, with|was .* and is) .*"):
        restore(fresh, through_json(describe(environment, began)))


class Hidden:
    """A helper with a state, which an environment reaches by a method alone."""

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> None:
        self.count += 1


@pytest.mark.parametrize("method", ["helper", "append", "draw"])
def test_a_method_whose_owner_is_not_restored_is_not_restored(method: str) -> None:
    def made() -> Any:
        items, generator = [], np.random.default_rng(0)
        acts: Any = {"helper": Hidden().step, "append": items.append, "draw": generator.normal}[method]
        return Holder(items=items, generator=generator, acts=acts)

    with pytest.raises(EnvStateError, match=r"Holder\.acts(\.__self__ is of type| is a method of a) .*"):
        moved(made(), made())


def test_methods_of_the_environment_and_of_constants_stay_as_they_are() -> None:
    environment, fresh = (Holder(lookup={1: 2}.get, count=0) for _ in range(2))
    environment.own, fresh.own = environment.close, fresh.close
    began = digests(environment)
    environment.count = 1
    restore(fresh, through_json(describe(environment, began)))
    assert (fresh.own, fresh.count) == (fresh.close, 1)


def test_format_2_has_no_names_of_functions() -> None:
    fresh = Holder(acts=moved, count=0)
    attributes = [["acts", {"constant": "function"}], ["count", 1]]
    restore(fresh, {"object": "Holder", "attributes": attributes, "format": 2})
    assert (fresh.acts, fresh.count) == (moved, 1)


def test_nothing_is_changed_where_something_does_not_fit() -> None:
    fresh = Holder(count=1, helper=None)
    with pytest.raises(EnvStateError):
        moved(Holder(count=2, helper=Helper()), fresh)
    assert fresh.count == 1


@pytest.mark.parametrize(
    "node",
    [
        {"object": "Helper", "attributes": [["__class__", 1]]},
        {"object": "Helper", "attributes": [["a.b", 1]]},
        {"object": "Helper", "attributes": 3},
        {"object": "Helper", "state": {"dict": []}},
        {"constant": "builtin_function_or_method"},
        {"enum": "Phase", "name": "MOVING"},
        {"pickle": "gASVAAAA"},
        {"array": "AAAAAAAAAAA=", "dtype": "O", "shape": [1], "strides": [8], "offset": 0},
        {"array": "AAAAAAAAAAA=", "dtype": "<f8", "shape": [9], "strides": [8], "offset": 0},
        {"array": "AAAAAAAAAAA=", "dtype": "<f8", "shape": [1], "strides": [8], "offset": -8},
        {"array": None, "memory_of": ".x", "dtype": "<f8", "shape": [1], "strides": [8], "offset": 0},
        {"scalar": "AAAA", "dtype": "<f8"},
        {"scalar": "AAAAAAAAAAA=", "dtype": "O"},
        {"generator": "Generator", "state": {"dict": []}, "seed": None},
        {"generator": "PCG64", "state": {"dict": []}, "seed": None},
        {"random": {"tuple": [3]}},
        {"again": ".nowhere"},
        {"same": "00"},
        {},
        [1, 2],
    ],
    ids=str,
)
def test_what_describe_never_writes_is_refused(node: Any) -> None:
    fresh = Holder(value=Helper())
    described = {"object": "Holder", "attributes": [["value", node]]}
    with pytest.raises(EnvStateError):
        restore(fresh, described)
    assert isinstance(fresh.value, Helper)
    assert vars(fresh.value) == {"count": 0}


@pytest.mark.parametrize(("kind", "field"), [("MT19937", "pos"), ("Philox", "buffer_pos")])
@pytest.mark.parametrize("position", [-1, 10**6])
def test_generators_that_would_read_beyond_their_state_are_refused(kind: str, field: str, position: int) -> None:
    described = describe(Holder(generator=np.random.Generator(getattr(np.random, kind)(3))))

    def with_position(node: Any) -> Any:
        if isinstance(node, list):
            return [field, position] if node[:1] == [field] else [with_position(item) for item in node]
        return {key: with_position(item) for key, item in node.items()} if isinstance(node, dict) else node

    with pytest.raises(EnvStateError, match="position lies outside"):
        restore(Holder(generator=None), with_position(described))
