"""New environments that get a saved state go on exactly, and an error names what cannot be saved."""

import contextlib
import copy
import importlib
import itertools
import json
import random
import types
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import PassiveEnvChecker
from selection import only_by_default
from toy_environments import newest

from hybridppo.environments import state
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.state import ActionHistory, Walk, decoded, write
from hybridppo.environments.wrappers import mask_for_sample
from hybridppo.errors import EnvStateError

EXACT = [
    "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1",
    "Blackjack-v1", "FrozenLake-v1", newest("CliffWalking"), newest("Taxi"),
]  # fmt: skip
EXACT_OF_EXTRAS = [
    "LunarLander-v3", "LunarLanderContinuous-v3", "CarRacing-v3",
    "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5", "Swimmer-v5",
    "Reacher-v5", "Pusher-v5", "InvertedPendulum-v5", "InvertedDoublePendulum-v5",
    "MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToRedBall-v0",
    *(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
]  # fmt: skip
GAMES = [
    "mpe2.simple_spread_v3:parallel_env", "mpe2.simple_spread_v3:env", "mpe2.simple_tag_v3:parallel_env",
    "mpe2.simple_speaker_listener_v4:parallel_env", "pettingzoo.classic.tictactoe_v3:env",
    "pettingzoo.classic.connect_four_v3:env",
]  # fmt: skip


def actions_for(environments: Environments, rng: np.random.Generator) -> Any:
    """Random allowed actions, as `step` takes them."""
    space = copy.deepcopy(environments.action_space)
    space.seed(int(rng.integers(2**31)))
    if not environments.agents:
        return np.stack([space.sample() for _ in range(environments.num_envs)])
    found = []
    for sub_env in environments.sub_environments:  # type: ignore[attr-defined]
        game: Any = sub_env.env
        for own, mask in zip(copy.deepcopy(game.action_space), game.masks, strict=True):
            own.seed(int(rng.integers(2**31)))
            found.append(own.sample(mask_for_sample(own, mask)))
    return found if hasattr(space, "spaces") else np.stack(found)


def save_and_load(environments: Environments, fresh: Environments, rows: Any, batches: list[Any]) -> None:
    """Restore the state of environments, which took these batches of actions, in new ones that were reset."""
    states: Any = environments.state()
    longest = max(each.get("episode_steps", 0) for each in states)
    for each in states:
        each["actions"] = True
    fresh.load_state(json.loads(json.dumps(states, allow_nan=False)), rows, batches[len(batches) - longest :])


def assert_goes_on(make: Callable[[], Environments], before: int, after: int = 120) -> None:
    """Environments that were restored after `before` steps go on as those that were saved, for `after` steps."""
    environments, fresh = make(), make()
    rng = np.random.default_rng(before)
    rows = environments.reset(1)
    batches: list[Any] = []
    for _ in range(before):
        batches.append(actions_for(environments, rng))
        rows = environments.step(batches[-1])[0]
    fresh.reset(1)
    save_and_load(environments, fresh, rows, batches)
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002 - as if each had a process of its own
    steps: list[Any] = []
    for _ in range(after):
        actions = actions_for(environments, rng)
        found = [*map(copy.copy, environments.step(actions))]
        turns: Any = slice(None)
        if environments.waiting is not None:
            # Only who acts next sees its row.
            games: list[Any] = [each.env for each in environments.sub_environments]  # type: ignore[attr-defined]
            turns = [game.turn + i * environments.num_agents for i, game in enumerate(games)]
        steps.append((actions, turns, found))
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])  # noqa: NPY002
    for actions, turns, (row, *values, finals_of, finals) in steps:
        expected, *others, others_of, other_finals = fresh.step(actions)
        np.testing.assert_equal(expected[turns], row[turns])
        np.testing.assert_equal(others, values)
        assert others_of == finals_of
        np.testing.assert_equal(other_finals, finals)
    environments.close()
    fresh.close()


def made(env_id: str) -> Environments:
    if ":" in env_id:
        module, name = env_id.split(":")
        make = getattr(importlib.import_module(module), name)
        return make_environments(lambda: make(), 2, action_masks="classic" in module)
    return make_environments(env_id, 2, vectorization="sync")


@pytest.mark.parametrize("before", [0, 25, 230])
@pytest.mark.parametrize("env_id", only_by_default(EXACT, [*EXACT, *EXACT_OF_EXTRAS, *GAMES]))
def test_copies_go_on(env_id: str, before: int) -> None:
    assert_goes_on(lambda: made(env_id), before)


@pytest.mark.extras
def test_a_simulator_that_lives_across_episodes_is_found_out() -> None:
    assert_goes_on(lambda: made("BipedalWalker-v3"), 25, 20)
    with pytest.raises(EnvStateError, match=r"led to another observation.*SwigPyObject"):
        assert_goes_on(lambda: made("BipedalWalker-v3"), 230)


@pytest.mark.extras
@pytest.mark.parametrize(("env_id", "reason"), [("ALE/Pong-v5", "ALEVectorInterface"), ("envpool/CartPole-v1", "abc")])
def test_vectors_in_cpp_are_named(env_id: str, reason: str) -> None:
    environments = make_environments(env_id, 2)
    environments.reset(1)
    with pytest.raises(EnvStateError, match=reason):
        environments.state()


@pytest.mark.extras
def test_an_emulator_of_atari_saves_its_own_state() -> None:
    import ale_py

    gym.register_envs(ale_py)

    def make() -> gym.Env[Any, Any]:
        return gym.make("ALE/Breakout-v5", obs_type="ram", repeat_action_probability=0.25)

    assert_goes_on(lambda: make_environments(make, 2), 300)


@pytest.mark.parametrize("before", [0, 100])
def test_the_vector_of_cartpole_goes_on(before: int) -> None:
    assert len(make_environments("CartPole-v1", 3).state()) == 1
    assert_goes_on(lambda: make_environments("CartPole-v1", 3), before)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_of_sub_environments_goes_on(mode: AutoresetMode) -> None:
    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("MountainCar-v0", max_episode_steps=20)
        space = gym.spaces.Dict(car=Box(-9.0, 9.0, (2,), np.float32))
        return gym.wrappers.TransformObservation(env, lambda observation: {"car": observation}, space)

    assert_goes_on(lambda: make_environments(lambda: SyncVectorEnv([make] * 2, autoreset_mode=mode), 2), 33)


@pytest.mark.extras
def test_a_vector_of_simulators_is_refused() -> None:
    environments = make_environments(lambda: SyncVectorEnv([lambda: gym.make("LunarLander-v3")] * 2), 2)
    environments.reset(1)
    with pytest.raises(EnvStateError, match=r"SwigPyObject, which cannot be saved.* let the function make one"):
        environments.state()


def test_environments_in_other_processes_are_refused() -> None:
    environments = make_environments(lambda: AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), 2)
    with pytest.raises(EnvStateError, match="in other processes: let the function make one environment"):
        environments.state()
    environments.close()


def test_wrappers_go_on() -> None:
    def make() -> gym.Env[Any, Any]:
        env: Any = gym.make("Pendulum-v1", max_episode_steps=30)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = gym.wrappers.NormalizeObservation(gym.wrappers.FrameStackObservation(env, 3))
        env = gym.wrappers.TransformObservation(env, np.ravel, Box(-np.inf, np.inf, (9,), np.float64))
        return gym.wrappers.NormalizeReward(env)

    assert_goes_on(lambda: make_environments(make, 2), 77)


# Environments of one's own


class Curriculum:
    """Makes starts harder with every episode."""

    def __init__(self) -> None:
        self.episodes, self.returns = 0, deque[float](maxlen=3)


class Harder(gym.Wrapper[Any, Any, Any, Any]):
    """Starts further from the middle in later episodes."""

    def __init__(self, env: Any, has_simulator: bool = False) -> None:
        super().__init__(env)
        self.curriculum = Curriculum()
        self.simulator = memoryview(b"not plain") if has_simulator else None

    def reset(self, **options: Any) -> Any:
        _, info = self.env.reset(**options)
        self.env.unwrapped.state = np.array(self.unwrapped.state) + 0.01 * self.curriculum.episodes
        return np.float32(self.unwrapped.state), info

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        if found[2] or found[3]:
            self.curriculum.episodes += 1
            self.curriculum.returns.append(float(found[1]))
        return found


@pytest.mark.parametrize("has_simulator", [False, True])
def test_a_curriculum_in_a_wrapper_goes_on(has_simulator: bool) -> None:
    assert_goes_on(lambda: make_environments(lambda: Harder(gym.make("CartPole-v1"), has_simulator), 2), 130, 400)


class Drawing(gym.Env[Any, Any]):
    """Walks at random by a generator of its own; with a simulator, its place is hidden."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)

    def __init__(self, generator: Any = None, has_simulator: bool = False) -> None:
        self.generator = np.random.default_rng(3) if generator is None else generator
        self.has_simulator = has_simulator

    def _place(self, place: float) -> Any:
        self.simulator = iter((place, place)) if self.has_simulator else place
        return np.float32([place]), {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._place(float(self.generator.normal()) if hasattr(self.generator, "normal") else 0.5)

    def step(self, action: Any) -> Any:
        self.steps += 1
        place = next(self.simulator) if self.has_simulator else self.simulator
        draw = self.generator.random() if hasattr(self.generator, "random") else self.generator.random_sample()
        observation, info = self._place(place + action * draw)
        return observation, 1.0, self.steps > 9, False, info


@pytest.mark.parametrize("has_simulator", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: None, lambda: np.random.Generator(np.random.MT19937(1)), lambda: np.random.RandomState(1)]
)
def test_a_generator_of_its_own_goes_on(make: Callable[[], Any], has_simulator: bool) -> None:
    for before in (0, 7, 33):
        assert_goes_on(lambda: make_environments(lambda: Drawing(make(), has_simulator), 2), before)


class ShortFirst(gym.Wrapper[Any, Any, Any, Any]):
    """Its first episode has one step."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, *others = self.env.step(action)
        return observation, reward, terminated or self.episodes == 1, *others


def test_what_gymnasiums_checker_has_checked_is_no_part_of_a_replay() -> None:
    """It compares the first two steps with what it keeps, which a new environment does not have."""
    make = partial(make_environments, lambda: PassiveEnvChecker(ShortFirst(Drawing(has_simulator=True))), 2)
    assert_goes_on(make, 4)


def test_a_generator_of_python_goes_on() -> None:
    assert_goes_on(lambda: make_environments(lambda: Drawing(random.Random(1)), 2), 33)


class Global(Drawing):
    def __init__(self) -> None:
        super().__init__(has_simulator=True)

    def _place(self, place: float) -> Any:
        return super()._place(place + np.random.random())  # noqa: NPY002 - that is the fault


def test_draws_from_a_global_generator_are_found_out() -> None:
    with pytest.raises(EnvStateError, match=r"environment 0: .* from a global generator, or .*tuple_iterator"):
        assert_goes_on(lambda: make_environments(Global, 2), 13)


# Habits of other people's environments


class Slotted:
    __slots__ = ("count", "generator")

    def __init__(self) -> None:
        self.count, self.generator = 0, np.random.default_rng()

    def __call__(self, env: Any) -> float:
        self.count += 1
        return self.count + self.generator.random()


def closure() -> Callable[[Any], float]:
    generator = np.random.default_rng()
    return lambda env: generator.normal()


def enumerated() -> Callable[[Any], float]:
    number = 0

    def draw(env: Any) -> float:
        nonlocal number
        number += 1
        return number

    return draw


def counted(count: dict[Any, int]) -> Callable[[Any], float]:
    """Counts by keys that come with time."""

    def draw(env: Any) -> float:
        for key in ("all", len(count), (len(count), 1)):
            count[key] = count.get(key, 0) + 1
        return float(count["all"])

    return draw


def counted_in(count: Any) -> Callable[[Any], float]:
    def draw(env: Any) -> float:
        nonlocal count
        count = count + 1
        return float(count)

    return draw


class Habitual(Drawing):
    """Draws by a habit in each reset and each step. Its spaces are those of its class."""

    def __init__(self, habit: Callable[[], Any], has_simulator: bool) -> None:
        self.habit, self.episodes, self.cells = habit(), 0, np.array([None, [0]], object)
        super().__init__(self, has_simulator)

    def random(self) -> float:
        return float(self.habit(self))

    def reset(self, **options: Any) -> Any:
        super().reset(**options)
        self.episodes += 1
        self.cells[1][0] += 1
        return self._place(self.random())


HABITS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "gymnasium's generator": (lambda: lambda env: env.np_random.normal(), set()),
    "samples of a space of the class": (lambda: lambda env: env.action_space.sample(), set()),
    "samples of its own space": (
        lambda: partial(lambda it, env: it.sample()["a"], gym.spaces.Dict(a=Box(0.0, 1.0, ()), b=Discrete(3))),
        set(),
    ),
    "a generator without a seed": (lambda: partial(lambda it, env: it.random(), np.random.default_rng()), set()),
    "an old one without a seed": (lambda: partial(lambda it, env: it.rand(), np.random.RandomState()), set()),
    "Python's without a seed": (lambda: partial(lambda it, env: it.random(), random.Random()), {"not the same"}),
    "in a closure": (closure, set()),
    "a number in a closure": (enumerated, set()),
    "in an object with slots": (Slotted, set()),
    "a count of episodes": (lambda: lambda env: env.episodes, set()),
    "a count of NumPy's": (lambda: counted_in(np.int64(0)), set()),
    "a table by keys": (lambda: counted({}), {"in its first episode if simulated"}),
    "a default dict": (lambda: counted(defaultdict(int)), set()),
    "a list in an array of objects": (lambda: lambda env: env.cells[1][0], {"in its first episode if simulated"}),
    "NumPy's global generator": (lambda: lambda env: np.random.random(), {"not the same", "never if simulated"}),  # noqa: NPY002
    "Python's global generator": (lambda: lambda env: random.random(), {"not the same", "never if simulated"}),
    "an iterator": (lambda: partial(lambda it, env: next(it), itertools.count()), {"in its first episode"}),
}  # fmt: skip
"""What makes the function that draws; and how it differs from: a seed gives the same result, and resumes are exact."""


@pytest.mark.parametrize("has_simulator", [False, True])
@pytest.mark.parametrize("habit", HABITS)
def test_habits_are_seeded_and_go_on(habit: str, has_simulator: bool) -> None:
    make, but = HABITS[habit]

    def environments() -> Environments:
        random.seed()
        np.random.seed()  # noqa: NPY002 - as in another process
        return make_environments(lambda: Habitual(make, has_simulator), 2)

    rows = []
    for _ in range(2):
        each = environments()
        rows.append([each.reset(3).tolist(), *(each.step(np.ones(2))[0].tolist() for _ in range(25))])
    assert (rows[0] == rows[1]) != ("not the same" in but)
    for before in (4, 33):
        is_exact = not has_simulator or "never if simulated" not in but
        if before == 33:
            is_exact &= not but & {"in its first episode"}
            is_exact &= not has_simulator or "in its first episode if simulated" not in but
        refused = pytest.raises(EnvStateError, match="led to another observation")
        with contextlib.nullcontext() if is_exact else refused:
            assert_goes_on(environments, before, 40)


@pytest.mark.parametrize("division", [[0, 1], [1, 0]])
def test_global_generators_go_on_in_the_process_that_drew(division: list[int]) -> None:
    make = HABITS["Python's global generator"][0]
    environments, fresh = (make_environments(lambda: Habitual(make, False), 2) for _ in range(2))
    environments.reset(1)
    rows = environments.step(np.ones(2))[0].copy()
    states = environments.state()
    fresh.reset(1)
    refused = pytest.raises(EnvStateError, match="divided among processes in another way")
    with contextlib.nullcontext() if division == [0, 1] else refused:
        fresh.load_state([states[i] for i in division], rows[division])


class Unseeded(Drawing):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._place(0.5)


def test_a_simulator_without_a_known_generator_is_refused_after_its_first_episode() -> None:
    def make() -> Environments:
        return make_environments(lambda: Unseeded(iter([]), True), 1)

    environments, fresh = make(), make()
    rows = environments.reset(1)
    environments._reset(0)  # type: ignore[attr-defined]
    fresh.reset(1)
    with pytest.raises(EnvStateError, match=r"no random generator that the library knows, and \.generator"):
        save_and_load(environments, fresh, rows, [])


class SpeaksForItself(Drawing):
    """Its place is hidden, and it saves it itself."""

    def __init__(self) -> None:
        super().__init__(has_simulator=True)

    def _place(self, place: float) -> Any:
        self.place = place
        return super()._place(place)

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place, "steps": self.steps, "random": self.generator.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self._place(state["place"])
        self.steps, self.generator.bit_generator.state = state["steps"], state["random"]


def test_an_environment_saves_itself_without_a_replay() -> None:
    environments, fresh = (make_environments(lambda: gym.wrappers.TimeLimit(SpeaksForItself(), 7), 1) for _ in "12")
    for each in (environments, fresh):
        each.reset(1)
    for _ in range(17):
        rows = environments.step(np.array([1]))[0]
    fresh.load_state(json.loads(json.dumps(environments.state())), rows)
    for _ in range(30):
        np.testing.assert_equal(fresh.step(np.array([1])), environments.step(np.array([1])))


def test_an_error_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environments = make_environments(SpeaksForItself, 1)
    environments.reset(1)
    environments.step(np.array([1]))
    states = environments.state()
    monkeypatch.setattr(SpeaksForItself, "set_state", lambda self, state: state["speed"])
    fresh = make_environments(SpeaksForItself, 1)
    fresh.reset(2)
    with pytest.raises(EnvStateError, match="cannot be restored: KeyError: 'speed'"):
        fresh.load_state(states, np.zeros(1, np.float32))
    monkeypatch.setattr(SpeaksForItself, "get_state", lambda self: self.speed)
    with pytest.raises(EnvStateError, match=r"get_state\(\) of SpeaksForItself failed: AttributeError"):
        environments.state()


# Values


class Holder(gym.Env[Any, Any]):
    """Has any attribute that it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def moved(environment: Any, fresh: Any) -> Any:
    """`fresh` with the data of `environment`."""
    write(fresh, json.loads(json.dumps(Walk(environment).leaves, allow_nan=False)))
    return fresh


class Phase(Enum):
    RESTING, MOVING = 1, 2


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**100), 0.1, -0.0, 5e-324, float("inf"), float("nan"), "moving", b"\x00\xff", (), (1, (2.5,)),
        [1, [2]], {"a": 1, 2: [3], (1, 2): None}, deque([1, 2], maxlen=2), {1, 2},
        np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan"),
        np.array([0.1, np.nan, -0.0]), np.zeros((0, 3)), np.array(7), np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.array(["a", "bc"]), np.array([b"F", b"H"]), np.array([True, False]), np.datetime64("2020-01-01"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    for other in (None, copy.deepcopy(value), np.ones(2), [1]):
        found = moved(Holder(value=value), Holder(value=other)).value
        assert type(found) is type(value)
        np.testing.assert_equal(found, value)
        if isinstance(value, (np.ndarray, np.generic)):
            assert (found.dtype, found.tobytes()) == (value.dtype, value.tobytes())
        if isinstance(value, float):
            assert repr(found) == repr(value)
        if isinstance(value, deque):
            assert found.maxlen == value.maxlen
    assert moved(Holder(value=value), Holder()).__dict__.keys() == {"value"}


def test_what_is_shared_stays_shared() -> None:
    array, items = np.zeros((3, 4)), [1]
    fresh = Holder(array=array, row=array[1], items=items, more=[items, {"items": items}])
    one, two = np.arange(12.0).reshape(3, 4), [1, 2]
    moved(Holder(array=one, row=one[1], items=two, more=[two, {"items": two}]), fresh)
    assert fresh.row.base is fresh.array
    assert fresh.array[1, 2] == 6.0
    assert fresh.items == [1, 2]
    assert fresh.more[0] is fresh.items
    assert items == [1], "what other environments may share stays as it is"


def test_an_enumeration_is_written() -> None:
    assert moved(Holder(phase=Phase.MOVING), Holder(phase=Phase.RESTING)).phase is Phase.MOVING


class Helper:
    def __init__(self, power: float) -> None:
        self.power = power

    def help(self) -> None:
        pass


@pytest.mark.parametrize(
    ("saved", "fresh"),
    [
        (Helper(1.0), None), (Helper(1.0), Phase.MOVING), (len, print), (Phase.MOVING, None),
        (np.random.default_rng(), 1),
        ((Helper(1.0), 2), (Helper(1.0), 3)), ([Helper(1.0)], [Helper(1.0), Helper(2.0)]), (Helper(1.0).help, len),
        (np.random.default_rng(), np.random.RandomState()),
    ],
)  # fmt: skip
def test_what_has_no_place_in_the_new_environment_is_refused(saved: Any, fresh: Any) -> None:
    with pytest.raises(EnvStateError, match=r"^(\.|\[)[^ ]*value"):
        moved(Holder(value=saved), Holder(value=fresh))


def test_objects_that_are_one_or_two_are_told_apart() -> None:
    one = Helper(1.0)
    found = moved(Holder(a=one, b=one), Holder(a=Helper(1.0), b=Helper(2.0)))
    assert found.a is found.b
    array = np.zeros(2)
    found = moved(Holder(a=np.ones(2), b=array), Holder(a=array, b=array))
    assert found.a is not found.b
    assert found.a.tolist() == [1.0, 1.0]
    with pytest.raises(EnvStateError, match=r"\.b"):
        moved(Holder(a=Helper(1.0), b=Helper(1.0)), Holder(a=one, b=one))


def test_files_and_devices_are_not_walked() -> None:
    with open(__file__) as file:
        walk = Walk(Holder(file=file, thread=itertools.count(), helper=Helper(2.0)))
    assert [name.partition(" ")[0] for name in walk.hidden] == [".file", ".thread"]
    assert walk.leaves[".helper.power"] == 2.0


def test_records_and_masked_arrays_are_replayed() -> None:
    records = np.zeros(2, [("speed", np.float32)])
    walk = Walk(Holder(records=records, one=records[0], masked=np.ma.array([1, 2])))
    assert [name.partition(" ")[0] for name in walk.hidden] == [".records", ".one", ".masked"]


class Settings(dict[str, Any]):
    """Entries are attributes; another one is a KeyError."""

    __getattr__ = dict.__getitem__


class Unreadable:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", [Settings, Unreadable])
def test_objects_whose_attributes_raise_errors_of_their_own_end_no_training(kind: Any) -> None:
    def make() -> Any:
        env = Drawing()
        env.settings = kind()  # type: ignore[attr-defined]
        return env

    environments = make_environments(make, 2)
    environments.reset(1)
    with contextlib.nullcontext() if kind is Settings else pytest.raises(EnvStateError, match="cannot be read"):
        environments.state()


class Counted(Helper):
    def __new__(cls, power: float) -> "Counted":
        return super().__new__(cls)


def test_classes_and_dictionaries_of_other_kinds_are_walked() -> None:
    saved = Holder(helper=Counted(2.0), by_name=defaultdict(list, {"a": [1]}), in_order=OrderedDict(b=Helper(3.0)))
    assert Walk(saved).hidden == []
    found = moved(saved, Holder(helper=Counted(1.0), by_name=defaultdict(list), in_order=OrderedDict(b=Helper(1.0))))
    assert found.helper.power == 2.0
    assert (found.by_name["a"], found.by_name["other"]) == ([1], [])
    assert found.in_order["b"].power == 3.0


@pytest.mark.parametrize("make", [types.new_class, lambda name, bases: ABCMeta(name, bases, {})], ids=["types", "abc"])
def test_classes_made_by_a_call_are_walked(make: Callable[[str, tuple[type]], Any]) -> None:
    kind = make("Made", (Helper,))
    assert kind.__module__ in ("types", "abc")  # that of the call
    saved = Holder(helper=kind(2.0))
    assert Walk(saved).hidden == []
    assert moved(saved, Holder(helper=kind(1.0))).helper.power == 2.0


def test_a_partial_state_of_a_package_is_not_taken_for_the_whole() -> None:
    methods = {"get_state": lambda self: [1.0], "set_state": lambda self, state: None}
    whole, partial = (type("Physics", (), {"__module__": module, **methods}) for module in ("own", "dm_control.suite"))
    walk = Walk(Holder(whole=whole(), partial=type("Mine", (partial,), {})()))
    assert walk.leaves[".whole"] == {"own": {"list": [1.0]}}
    assert walk.leaves[".partial"] == {"object": "Mine"}


def test_objects_may_be_keys() -> None:
    found = moved(Holder(actions={Helper(1.0): [1]}), Holder(actions={Helper(2.0): [3]}))
    ((key, actions),) = found.actions.items()
    assert (key.power, actions) == (1.0, [1])


def test_a_client_of_pybullet_stands_for_its_simulator() -> None:
    client: Any = type("BulletClient", (), {"__module__": "pybullet_utils.bullet_client", "_client": 0})
    robot: Any = type("Aviary", (client,), {})()
    robot._client, robot.speed = 1, 2.0
    walk = Walk(Holder(robot=robot))
    assert [name.partition(" ")[0] for name in walk.hidden] == [".robot"]
    assert ".robot._client" not in walk.leaves


def test_data_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[Any] = [Helper(float(i)) for i in range(100)]
    items.append(items)
    assert len(Walk(Holder(items=items)).leaves) == 203
    monkeypatch.setattr(state, "MAX_LEAVES", 100)
    with pytest.raises(EnvStateError, match=r"Holder has too many values, as in \.items"):
        Walk(Holder(items=items))
    monkeypatch.setattr(state, "MAX_BYTES", 2**10)
    with pytest.raises(EnvStateError, match=r"Holder takes more than 0 MiB at \.past"):
        Walk(Holder(past=np.zeros(1000)))


def test_large_arrays_beside_a_simulator_are_compared_by_digests() -> None:
    table = np.zeros((2**10, 2**8))
    leaves = Walk(Holder(table=table, simulator=itertools.count())).leaves
    assert len(json.dumps(leaves)) < 500
    write(Holder(table=table.copy(), simulator=itertools.count()), leaves)
    with pytest.raises(EnvStateError, match=r"\.table"):
        write(Holder(table=table + 1, simulator=itertools.count()), leaves)


@pytest.mark.parametrize(
    "leaf",
    [{"float": "x"}, {"array": "AAAA", "dtype": "O", "shape": [1]}, {"array": "AAAA", "dtype": "<f8", "shape": [1]},
     {"os.system": "ls"}, {"bytes": "%"}, {"generator": {"dict": []}}, {"object": "Popen"}],
)  # fmt: skip
def test_what_no_walk_writes_is_refused(leaf: Any) -> None:
    fresh = Holder(value=np.random.default_rng(0) if "generator" in leaf else None)
    with pytest.raises(EnvStateError):
        write(fresh, {**Walk(fresh).leaves, ".value": leaf})


@pytest.mark.parametrize("name", ["__class__", "a b", "[0]"])
def test_only_attributes_are_added(name: str) -> None:
    fresh = Holder()
    with pytest.raises(EnvStateError, match="is missing in a new environment"):
        write(fresh, {**Walk(fresh).leaves, f".{name}": 1})


@pytest.mark.parametrize(("kind", "field", "position"), [("MT19937", "pos", 625), ("Philox", "buffer_pos", 5)])
def test_generators_that_would_read_beyond_their_state_are_refused(kind: str, field: str, position: int) -> None:
    holder = Holder(value=np.random.Generator(getattr(np.random, kind)(1)))
    found = holder.value.bit_generator.state
    (found if field in found else found["state"])[field] = position
    leaves = {**Walk(holder).leaves, ".value": {"generator": state.encoded(found)}}
    with pytest.raises(EnvStateError, match="position lies outside"):
        write(holder, leaves)


# The history of actions


def test_a_history_keeps_the_longest_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    history, actions = ActionHistory(), np.arange(40).reshape(20, 2)
    for start in range(0, 20, 5):
        history.add(actions[start : start + 5], 1.0, 7)
    states: list[Any] = [{"num_envs": 1, "episode_steps": steps, "state": {"hidden": []}} for steps in (7, 0)]
    history.put_into(states)
    assert "actions" not in states[1]
    other = ActionHistory()
    np.testing.assert_array_equal(other.take_from(states, np.zeros(2, np.int64))[:, 0], actions[13:, 0])
    again: list[Any] = [{"num_envs": 1, "episode_steps": 7, "state": {"hidden": []}}]
    other.put_into([*again, {"num_envs": 1}])
    assert again[0]["actions"] == states[0]["actions"]
    monkeypatch.setattr(state, "LONGEST", 1.5)
    history.add(actions[:5], 1.0, None)
    plain: Any = {"num_envs": 2, "episode_steps": 7, "state": {"hidden": []}}
    history.put_into([plain])
    assert "actions" not in plain
    with pytest.raises(EnvStateError, match=r"more than 1.5 seconds, too long to be replayed, and \.world is"):
        history.put_into([{**plain, "state": {"hidden": [".world is of type b2"]}}])


def test_saved_data_that_was_emptied_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        decoded({"list": [{}]})
