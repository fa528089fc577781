"""Compiled environments in a sampler: the same as in Python, saved exactly, on any number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from compiled_catch import Catch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ppo_settings import ppo_config
from processes import run_python

import hybridppo
from hybridppo import compiled
from hybridppo.compiled.building import build, module_text
from hybridppo.compiled.classic import compiled_form
from hybridppo.compiled.modules import cache_directory
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments import compiled as compiled_environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.state import encoded
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.networks.numpy_actors import NumpyActor
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.filling import Stepper
from hybridppo.tools.check import check_env

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

FACTOR = 2.0
NOTHING_NUMBA_KNOWS = {"a": 1}
VECTOR = Box(-1.0, 1.0, (1,), np.float32)
PAIR = Box(0.0, 40.0, (2,), np.float32)


def trace(environments: Any, num_steps: int, seed: int) -> list[Any]:
    """All that some steps return."""
    generator = np.random.default_rng(seed)
    low = getattr(environments.action_space, "start", 0)
    rows = []
    for _ in range(num_steps):
        actions = generator.integers(low, low + environments.action_space.n, environments.num_envs)
        *arrays, finals_of, finals = environments.step(actions)
        rows += [array.copy() for array in arrays] + [np.array(finals_of), np.array(finals)]
    return rows


def assert_same(some: list[Any], others: list[Any]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_python_steps_the_same_source_to_the_same_bits() -> None:
    ours = make_environments(Catch, 4, vectorization="compiled")
    plain = make_environments(Catch, 4, vectorization="sync")
    np.testing.assert_array_equal(ours.reset(11), plain.reset(11))
    rows = trace(ours, 400, 0)
    assert_same(rows, trace(plain, 400, 0))
    assert sum(map(np.sum, rows[2::6])) > 20  # terminated
    assert sum(len(indices) for indices in rows[4::6]) > 5  # truncated


def test_an_environments_numbers_depend_on_its_seed_and_episode_alone() -> None:
    four = make_environments(Catch, 4, vectorization="compiled")
    last = make_environments(Catch, 1, vectorization="compiled", first=3)
    np.testing.assert_array_equal(four.reset(20)[3:], last.reset(23))
    starts = [four.reset(seed)[0] for seed in range(40)]
    assert len(np.unique(starts, axis=0)) > 3
    again = make_environments("CartPole-v1", 1, vectorization="compiled")
    first = again.reset(5)
    assert not np.array_equal(first, again.reset(6))
    np.testing.assert_array_equal(first, again.reset(5))


@pytest.mark.parametrize("num_threads", [2, 3, 16])
def test_the_number_of_threads_changes_nothing(num_threads: int) -> None:
    one: Any = make_environments(Catch, 7, vectorization="compiled")
    many: Any = make_environments(Catch, 7, vectorization="compiled", env_threads=num_threads)
    np.testing.assert_array_equal(one.reset(2), many.reset(2))
    assert_same(trace(one, 100, 1), trace(many, 100, 1))
    assert many._threads._pool is not None
    many.close()


def test_short_work_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_environments, "SECONDS_WORTH_DIVIDING", 1.0)
    environments: Any = make_environments(Catch, 7, vectorization="compiled", env_threads=2)
    environments.reset(2)
    trace(environments, 5, 1)
    assert environments._threads._pool is None
    environments._seconds_of_work = 2.0  # as if it had taken so long
    trace(environments, 1, 1)
    assert environments._threads._pool is not None
    environments._threads.close()
    environments._threads._pool = None
    trace(environments, 1, 1)
    assert environments._threads._pool is None  # since the last was short again
    environments.close()


def test_a_saved_state_goes_on_exactly() -> None:
    environments = make_environments(Catch, 3, vectorization="compiled")
    environments.reset(4)
    trace(environments, 50, 0)
    saved = json.loads(json.dumps(environments.state()))
    expected = trace(environments, 100, 1)
    others = make_environments(Catch, 3, vectorization="compiled")
    others.reset(99)
    others.load_state(saved)
    assert_same(expected, trace(others, 100, 1))
    one = make_environments(Catch, 1, vectorization="compiled", first=2)
    one.load_state(saved[2:])  # divided otherwise
    assert one.state() == saved[2:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda states: states[:1],
        lambda states: [{**state, "fields": "others"} for state in states],
        lambda states: [{"num_envs": 1, "state": {}} for _ in states],
        lambda states: [
            {**state, "compiled": {**state["compiled"], "randoms": encoded(np.zeros(1))}} for state in states
        ],
    ],
    ids=["too few", "other fields", "of another form", "other numbers"],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(spoil: Any) -> None:
    environments = make_environments(Catch, 2, vectorization="compiled")
    environments.reset(0)
    before = environments.state()
    with pytest.raises(EnvStateError):
        environments.load_state(spoil(before))
    assert environments.state() == before


def test_the_python_form_is_checked_and_saved_like_any_environment() -> None:
    report = check_env(Catch, steps=200)
    assert report.is_usable
    assert "state cannot be saved" not in str(report)
    assert "two different episodes" not in str(report)


@pytest.mark.usefixtures("without_rollouts")
def test_several_choices_at_once() -> None:
    @compiled.environment(
        state={"sum": np.int64}, observation_space=VECTOR, action_space=MultiDiscrete([3, 4]), episode_length=5
    )
    class Sums:
        def reset(state, random):
            state.sum = 0

        def step(state, action, random):
            state.sum += action[0] * 10 + action[1]
            return float(state.sum), False

        def observe(state, out):
            out[0] = state.sum

    environments = make_environments(Sums, 2, vectorization="compiled")
    environments.reset(0)
    _, rewards, *_ = environments.step(np.array([[1, 2], [2, 3]]))
    assert rewards.tolist() == [12.0, 23.0]


@pytest.mark.slow
def test_an_environments_own_functions_may_make_arrays() -> None:
    """The loops around functions count no references to them. A function may have a name that the module itself has."""

    def inlined(numbers):
        found = np.zeros(2)
        for k in range(2):
            found[k] = 2.0 * numbers[k]
        return found

    @compiled.environment(
        state={"place": (np.float64, (2,))}, observation_space=PAIR, action_space=Discrete(2), episode_length=7
    )
    class Doubling:
        def reset(state, random):
            state.place[:] = np.array([1.0, 3.0])

        def step(state, action, random):
            numbers = inlined(state.place)
            numbers += np.full(2, float(action))
            state.place[:] = numbers % 17.0
            return numbers.sum(), False

        def observe(state, out):
            out[:] = state.place.astype(np.float32)

    ours = make_environments(Doubling, 3, vectorization="compiled")
    plain = make_environments(Doubling, 3, vectorization="sync")
    np.testing.assert_array_equal(ours.reset(0), plain.reset(0))
    assert_same(trace(ours, 200, 1), trace(plain, 200, 1))
    config = ppo_config(num_envs=3, num_steps=16, num_minibatches=1, num_epochs=1)
    options = {"total_steps": 480, "config": config, "placement": "cpu", "progress": False, "seed": 0}
    fused = hybridppo.train(Doubling, vectorization="compiled", **options)
    assert fused.metrics["env_steps"] == 480
    assert fused.metrics["episode_length_mean"] == 7.0
    text = module_text(Doubling).text
    assert "@compiled\ndef inlined_2" in text
    assert "@uncounted\ndef begin_episode" in text


@pytest.mark.parametrize("env_id", ["Taxi-v4", "FrozenLake-v1"])
def test_an_environment_without_a_compiled_form_is_refused_with_those_that_have_one(env_id: str) -> None:
    with pytest.raises(
        EnvError, match=r"no compiled form: there is one of Acrobot-v1, CartPole-v0, CartPole-v1, .*Pend"
    ):
        make_environments(env_id, 1, vectorization="compiled")


def test_an_environment_that_is_not_there_is_refused() -> None:
    with pytest.raises(EnvError, match="cannot be made"):
        make_environments("NoSuch-v0", 1, vectorization="compiled")


@pytest.mark.parametrize("options", [{"action_masks": True}, {"on_env_error": "restart"}])
def test_what_compiled_environments_cannot_do_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="vectorization='compiled'"):
        make_environments("CartPole-v1", 1, vectorization="compiled", **options)


def test_without_numba_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.compiled.modules.is_installed", lambda name: False)
    with pytest.raises(EnvError, match=r"pip install '\.\[compiled\]'"):
        make_environments("CartPole-v1", 1, vectorization="compiled")


def slide(**functions: Any) -> compiled.Definition:
    """An environment with some of its functions replaced."""

    def reset(state, random):
        state.x = 0.0

    def step(state, action, random):
        state.x += action
        return state.x, False

    def observe(state, out):
        out[0] = state.x

    written = type("Slide", (), {"reset": reset, "step": step, "observe": observe, **functions})
    return compiled.environment(state={"x": np.float64}, observation_space=VECTOR, action_space=Discrete(2))(written)


def line_of(text: str) -> int:
    """The number of the first line of this file that contains `text`."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.usefixtures("without_rollouts")
def test_an_error_of_its_own_names_the_environments_and_the_step() -> None:
    def step(state, action, random):
        if action == 1:
            raise ValueError("one is too many")
        return 0.0, False

    environments = make_environments(slide(step=step), 2, vectorization="compiled", env_threads=2)
    environments.reset(0)
    environments.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=r"environments 0 to 1, compiled Slide .*step 2: ValueError: one is too many"):
        environments.step(np.array([0, 1]))
    environments.close()


def test_a_definition_can_be_registered() -> None:
    gym.register("CompiledCatch-v0", entry_point=Catch, max_episode_steps=9)
    try:
        environments = make_environments("CompiledCatch-v0", 2, vectorization="compiled")
        plain = make_environments("CompiledCatch-v0", 2, vectorization="sync")
        np.testing.assert_array_equal(environments.reset(11), plain.reset(11))
        assert_same(trace(environments, 60, 0), trace(plain, 60, 0))
        assert check_env("CompiledCatch-v0", steps=50).is_usable
    finally:
        del gym.registry["CompiledCatch-v0"]


@pytest.mark.parametrize(
    ("entry_point", "limit", "steps"),
    [
        ("gymnasium.envs.classic_control.pendulum:PendulumEnv", None, 0),
        (Catch, None, 30),
        (Catch, 50, 30),
        (Catch, 5, 5),
    ],
)
def test_episodes_are_as_long_as_those_of_the_id(entry_point: Any, limit: int | None, steps: int) -> None:
    gym.register("Limited-v0", entry_point=entry_point, max_episode_steps=limit)
    try:
        assert compiled_form("Limited-v0").episode_length == steps
    finally:
        del gym.registry["Limited-v0"]


def test_arguments_that_the_compiled_form_does_not_have_are_refused() -> None:
    entry_point = "gymnasium.envs.classic_control.pendulum:PendulumEnv"
    gym.register("Moon-v0", entry_point=entry_point, kwargs={"g": 1.6})
    try:
        with pytest.raises(EnvError, match=r"registered with the arguments {'g': 1.6}"):
            make_environments("Moon-v0", 2, vectorization="compiled")
    finally:
        del gym.registry["Moon-v0"]


def test_what_numba_cannot_know_is_an_error_with_its_line() -> None:
    def step(state, action, random):
        return NOTHING_NUMBA_KNOWS["a"], False

    with pytest.raises(
        EnvError, match=f"{Path(__file__).name}:{line_of('return NOTHING')}: NOTHING_NUMBA_KNOWS is a dict"
    ):
        build(slide(step=step))


def test_what_numba_cannot_compile_is_an_error_with_its_line() -> None:
    def step(state, action, random):
        """Has lines that are not compiled."""
        # and comments
        text = f"{state.x}".no_such_method()  # the line
        return state.x, len(text) > 3

    with pytest.raises(
        EnvError, match=f"Slide cannot be compiled: .*{Path(__file__).name}:{line_of('# the line')}: .*numbers"
    ):
        build(slide(step=step))


def test_a_function_that_returns_too_little_is_an_error() -> None:
    def step(state, action, random):
        return state.x

    with pytest.raises(EnvError, match="`step` returns a reward and a truth"):
        build(slide(step=step))


def test_names_that_are_not_there_and_functions_that_call_themselves_are_errors() -> None:
    def step(state, action, random):
        return no_such_name(state.x), False  # noqa: F821

    with pytest.raises(EnvError, match="there is no no_such_name"):
        build(slide(step=step))

    def again(x):
        return again(x)

    def recursive(state, action, random):
        return again(state.x), False

    with pytest.raises(EnvError, match="calls itself"):
        build(slide(step=recursive))


@pytest.mark.usefixtures("without_rollouts")
@pytest.mark.parametrize("bad", ["reward", "observation"])
def test_numbers_that_are_not_finite_are_refused(bad: str) -> None:
    def step(state, action, random):
        state.x += 1.0
        return np.log(3.0 - state.x), False

    def observe(state, out):
        out[0] = 1.0 / (3.0 - state.x)

    definition = slide(step=step) if bad == "reward" else slide(observe=observe, step=slide_further)
    environments = make_environments(definition, 2, vectorization="compiled")
    environments.reset(0)
    environments.step(np.zeros(2, np.int64))
    environments.step(np.zeros(2, np.int64))
    message = f"compiled Slide .*failed in step 3: the {bad} of environment 0: {bad}.* is -?inf"
    with pytest.raises(EnvError, match=message):
        environments.step(np.zeros(2, np.int64))


@pytest.mark.slow
def test_a_final_observation_that_is_not_finite_is_refused() -> None:
    @compiled.environment(state={"x": np.float64}, observation_space=VECTOR, action_space=Discrete(2), episode_length=3)
    class Last:
        def reset(state, random):
            state.x = 0.0

        def step(state, action, random):
            state.x += action
            return 0.0, False

        def observe(state, out):
            out[0] = 1.0 / (3.0 - state.x)

    environments = make_environments(Last, 3, vectorization="compiled")
    environments.reset(0)
    actions = np.array([0, 1, 0])
    environments.step(actions)
    environments.step(actions)
    with pytest.raises(EnvError, match=r"step 3: the final observation of environment 1: observation.0. is inf"):
        environments.step(actions)
    stepper = Stepper(environments, distribution_for(environments.action_space), 0)
    layout = Rollout.layout(3, 3, environments.encode, distribution_for(environments.action_space))
    buffer = Rollout(**{name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()})
    always_one = NumpyActor([np.zeros((2, 1), np.float32), np.array([0, 9], np.float32)], "tanh")
    with pytest.raises(EnvError, match=r"rows 0 to 2: the final observation of environment 0: observation.0. is inf"):
        stepper.fill(buffer, always_one)


def slide_further(state: Any, action: Any, random: Any) -> tuple[float, bool]:
    state.x += 1.0
    return 0.0, False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": {}}, "state must be types"),
        *(
            ({"state": {"x": of}}, r"state\['x'\] must be a type of numbers")
            for of in (object, None, (np.float64, (-1,)), (np.float64, "a"), np.float16, np.longdouble, ">f8")
        ),
        ({"state": {"view": np.float64}}, r"state\['view'\] needs another name"),
        ({"observation_space": Discrete(3)}, "observation_space must be a Box"),
        ({"action_space": Box(0, 1, (2, 2), np.float32)}, "action_space must be"),
        ({"episode_length": -1}, "episode_length"),
    ],
)
def test_what_no_environment_can_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    good = {"state": {"x": np.float64}, "observation_space": VECTOR, "action_space": Discrete(2)}
    with pytest.raises(ConfigurationError, match=message):
        compiled.environment(**{**good, **arguments})


def test_functions_with_other_arguments_are_refused() -> None:
    def reset(self):
        pass

    with pytest.raises(ConfigurationError, match=r"Slide.reset takes \(self\): write `def reset\(state, random\)`"):
        slide(reset=reset)
    with pytest.raises(ConfigurationError, match="has no function observe"):
        slide(observe=None)


def test_the_text_follows_what_it_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state, action, random):
        return FACTOR * state.x, False

    before = module_text(slide(step=step)).text
    same = module_text(slide(step=step)).text
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    after = module_text(slide(step=step)).text
    assert before == same != after


STARTS = """
import sys, time
sys.path.insert(0, {tests!r})
import numba.core.compiler as compiler
compilations = []
def note(original):
    def compile_extra(*arguments, **options):
        compilations.append(arguments)
        return original(*arguments, **options)
    return compile_extra
compiler.compile_extra = note(compiler.compile_extra)
from compiled_catch import Catch
from compiled_without_rollouts import leave_out_rollouts
from hybridppo.environments.state import encoded
from hybridppo.environments.making import make_environments
leave_out_rollouts()
environments = make_environments(Catch, 2, vectorization="compiled")
print(len(compilations), environments.reset(3).tolist())
"""


def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    code = STARTS.format(tests=str(Path(__file__).parents[2] / "helpers"))
    environment = {**os.environ, "HYBRIDPPO_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    compiled_then, compiled_now = (int(run.stdout.split()[0]) for run in runs)
    assert compiled_then > 0
    assert compiled_now == 0
    assert runs[0].stdout.partition(" ")[2] == runs[1].stdout.partition(" ")[2]
    assert "compiling Catch, once" in runs[0].stderr
    assert " s\n" in runs[0].stderr
    assert "compiling" not in runs[1].stderr
    assert len(list(tmp_path.glob("*.py"))) == 1
    assert list(tmp_path.glob("*.tmp")) == []


AT_ONCE = """
import sys
from hybridppo.compiled import modules

modules.load("slow", sys.argv[1], ["made"], lambda path, error: error)
"""
SLOW = """
import pathlib, sys, time

path = pathlib.Path(__file__)
entries = path.with_suffix(".entries")
with open(entries, "a") as file:
    file.write("x")
for _ in range(100):  # the other process, if it does not wait for this one
    if entries.stat().st_size == 2:
        break
    time.sleep(0.01)
(path.parent / "__pycache__").mkdir(exist_ok=True)
(path.parent / "__pycache__" / f"{path.stem}.made-1.py{sys.version_info.major}{sys.version_info.minor}.nbi").touch()
"""


def test_of_two_processes_at_once_one_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "HYBRIDPPO_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", AT_ONCE, SLOW], stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    said = "".join(process.communicate(timeout=60)[1] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert said.count("compiling slow, once") == said.count("compiled slow in") == 1


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYBRIDPPO_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert cache_directory() == tmp_path / "file" / "folder"
    with pytest.raises(EnvError, match="HYBRIDPPO_CACHE_DIR"):
        build(slide(observe=observe_elsewhere))


KEPT_NOWHERE = """
import os, sys
os.environ.pop("HYBRIDPPO_CACHE_DIR", None)
os.environ.pop("HOME", None)
if sys.argv[1] == "no home":
    import pwd
    def nobody(uid):
        raise KeyError(uid)
    pwd.getpwuid = nobody
    os.environ.pop("XDG_CACHE_HOME", None)
else:
    os.environ["XDG_CACHE_HOME"] = os.environ["HOME"] = sys.argv[1]
sys.path.insert(0, {tests!r})
from compiled_catch import Catch
from compiled_without_rollouts import leave_out_rollouts
from hybridppo.environments.state import encoded
from hybridppo.environments.making import make_environments
leave_out_rollouts()
print(len(make_environments(Catch, 2, vectorization="compiled").reset(0)))
"""


@pytest.mark.skipif(os.name != "posix", reason="how POSIX finds a home")
@pytest.mark.parametrize("home", ["no home", pytest.param("not to be written to", marks=pytest.mark.slow)])
def test_without_a_home_to_write_to_it_is_compiled_in_each_process(home: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argument = home if home == "no home" else str(tmp_path / "file" / "home")  # which nobody can make, root neither
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = KEPT_NOWHERE.format(tests=str(Path(__file__).parents[2] / "helpers"))
    done = run_python("-c", code, argument, env=environment, check=True, warm=False)
    assert done.stdout.strip() == "2"
    assert "it is compiled anew in each process. HYBRIDPPO_CACHE_DIR may name a folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def observe_elsewhere(state: Any, out: Any) -> None:
    out[0] = 0.5 * state.x
