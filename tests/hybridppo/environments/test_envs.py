"""Which environments are accepted, in which mode they are stepped, and the errors for the others."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, Sequence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from ppo_settings import ppo_config
from toy_environments import (
    MODES,
    IdentityBox,
    ScriptedEnv,
    UndeclaredVector,
    scripted_rows,
    scripted_vector,
)

import hybridppo
from hybridppo.agents import PPO
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.making import make_environments
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.environments.vector import wrap
from hybridppo.errors import ConfigurationError, EnvError, HybridPPOError

SCRIPTS = (((2, "truncated"), (1, "terminated"), (3, "both")), ((1, "truncated"), (2, "terminated")))


class SpacesOnly(gym.Env[Any, Any]):
    """An environment of which only the spaces matter."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


class ForeignVector(UndeclaredVector):
    """A vector environment that declares the given mode, and must not be closed twice."""

    def __init__(self, declared: Any = None) -> None:
        super().__init__(SCRIPTS)
        self.metadata = {} if declared is None else {"autoreset_mode": declared}
        self.times_closed = 0

    def close(self, **kwargs: Any) -> None:
        assert self.times_closed == 0
        self.times_closed += 1


def make_spaces_only(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> gym.Env[Any, Any]:
    return SpacesOnly(observation_space, action_space)


# Stepping


@pytest.mark.parametrize("mode", MODES)
def test_steps_are_those_of_the_environment(mode: AutoresetMode) -> None:
    environments = wrap(scripted_vector(SCRIPTS, mode))
    expected = [scripted_rows(script, mode) for script in SCRIPTS]
    observations = environments.reset(seed=0)
    for _ in range(12):
        rows = [next(rows) for rows in expected]
        np.testing.assert_array_equal(observations, [row.observation for row in rows])
        observations, rewards, terminated, truncated, indices, finals = environments.step(np.zeros(2, dtype=np.int64))
        np.testing.assert_array_equal(rewards, [row.reward for row in rows])
        np.testing.assert_array_equal(terminated, [row.terminated for row in rows])
        np.testing.assert_array_equal(truncated, [row.truncated for row in rows])
        missing = mode is not AutoresetMode.NEXT_STEP
        bootstrapped = [i for i, row in enumerate(rows) if missing and row.truncated and not row.terminated]
        assert indices == bootstrapped
        assert [tuple(final) for final in finals] == [rows[i].following for i in bootstrapped]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({0: lambda rows: rows[:1]}, r"the 2 observations must be of shape \(2, 2\), not \(1, 2\)"),
        ({0: lambda rows: None}, r"the 2 observations must be of shape \(2, 2\), not \(\)"),
        (
            {1: lambda rewards: rewards[:1]},
            r"rewards must be an array of 2 numbers, and is of float64 and shape \(1,\)",
        ),
        ({2: lambda flags: None}, "terminated must be an array of 2 numbers, and is None"),
        ({}, "its step returned a tuple of 4 instead of the five values"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_later_step_of_another_form_is_refused_and_not_broadcast(
    mode: AutoresetMode, changes: Any, words: str
) -> None:
    vector = scripted_vector([((9, "truncated"),)] * 2, mode)
    environments = wrap(vector)
    environments.reset(seed=0)
    environments.step(np.zeros(2, dtype=np.int64))
    result = list(vector.step(np.zeros(2, dtype=np.int64)))
    for place, change in changes.items():
        result[place] = change(result[place])
    environments.vector.step = lambda actions: tuple(result if changes else result[:4])
    with pytest.raises(EnvError, match=f"failed in step 2.*{words}"):
        environments.step(np.zeros(2, dtype=np.int64))


class Reusing(ScriptedEnv):
    """Returns the same array in every step and reset."""

    _array: Any = None

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return self._written(observation), info

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return self._written(observation), *others

    def _written(self, observation: Any) -> Any:
        if self._array is None:
            self._array = np.array(observation)
        self._array[...] = observation
        return self._array


@pytest.mark.parametrize(("make", "warns"), [(ScriptedEnv, False), (Reusing, True)])
def test_a_final_observation_that_the_reset_has_overwritten_is_warned_of_once(
    make: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    script = ((2, "truncated"),)
    environments = wrap(SyncVectorEnv([partial(make, script)] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    environments.reset(seed=0)
    for _ in range(7):
        environments.step(np.zeros(2, dtype=np.int64))
    text = "the final observation of environment 0 is the first of its next episode"
    assert caplog.text.count(text) == warns


def test_rows_of_those_alone_that_were_reset_are_refused() -> None:
    vector = scripted_vector([((1, "truncated"),), ((9, "truncated"),)], AutoresetMode.DISABLED)
    environments, reset = wrap(vector), vector.reset
    environments.reset(seed=0)
    vector.reset = lambda **options: (reset(**options)[0][:1], {})  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=r"the 2 observations must be of shape \(2, 2\), not \(1, 2\)"):
        environments.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("mode", MODES)
def test_only_next_step_spends_rows_on_resets(mode: AutoresetMode) -> None:
    environments = wrap(scripted_vector(SCRIPTS, mode))
    assert environments.skips_row_after_end == (mode is AutoresetMode.NEXT_STEP)


def test_same_step_without_final_observations_is_an_error() -> None:
    environments = wrap(UndeclaredVector([((1, "truncated"),)]), "same_step")
    environments.reset(seed=0)
    with pytest.raises(EnvError, match=r"environments \[0\] were truncated .* infos\['final_obs'\] must have"):
        environments.step(np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize("mode", MODES)
def test_infos_in_a_list_are_refused_where_they_are_read(mode: AutoresetMode) -> None:
    for measures in (False, True):
        environments = wrap(DictInfoToList(scripted_vector(SCRIPTS, mode)))
        environments.reset(seed=0)
        if measures:
            environments.measure_infos(("profit",))
        if measures or mode is AutoresetMode.SAME_STEP:
            with pytest.raises(EnvError, match=r"infos must be a dict, and is a list: leave .* DictInfoToList out"):
                environments.step(np.zeros(2, dtype=np.int64))
        else:
            environments.step(np.zeros(2, dtype=np.int64))


def test_environments_are_seeded_apart() -> None:
    environments = make_environments(IdentityBox, 3)
    first, again, other = (environments.reset(seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1:], other[:-1])  # the i-th from seed + i
    assert len(np.unique(first)) == 3


# Autoreset modes


@pytest.mark.parametrize("declared", [*MODES, "NextStep", "next_step", "SameStep", "same_step", "Disabled", "disabled"])
def test_the_declared_mode_is_taken(declared: AutoresetMode | str) -> None:
    name = declared if isinstance(declared, str) else declared.value
    expected = name.replace("_", "").lower()
    assert wrap(ForeignVector(declared))._mode.value.lower() == expected


def test_an_undeclared_mode_can_be_given() -> None:
    environments = make_environments(lambda: UndeclaredVector(SCRIPTS), 2, autoreset_mode="next_step")
    assert environments.skips_row_after_end


def test_a_given_mode_may_repeat_the_declared_one() -> None:
    assert wrap(ForeignVector(AutoresetMode.NEXT_STEP), "next_step").skips_row_after_end


@pytest.mark.parametrize("given", ["same_step", "disabled"])
def test_a_given_mode_may_not_contradict_the_declared_one(given: Any) -> None:
    with pytest.raises(EnvError, match=f"declares .*NEXT_STEP: leave out autoreset_mode='{given}'"):
        wrap(ForeignVector(AutoresetMode.NEXT_STEP), given)


@pytest.mark.parametrize("declared", ["sometimes", 3])
def test_an_unknown_declared_mode_is_refused(declared: Any) -> None:
    with pytest.raises(EnvError, match=f"unknown autoreset mode, {declared!r}"):
        wrap(ForeignVector(declared))


def test_an_unknown_given_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"autoreset_mode must be one of .*, got 'never'"):
        make_environments("CartPole-v1", 2, autoreset_mode="never")  # type: ignore[arg-type]


# Where environments come from


def test_auto_takes_an_environments_own_vectorised_form() -> None:
    environments = make_environments("CartPole-v1", 3)
    assert isinstance(environments.vector.unwrapped, CartPoleVectorEnv)
    assert environments.num_envs == 3


def test_auto_steps_others_in_turn() -> None:
    assert isinstance(make_environments("Pendulum-v1", 2), SubEnvironments)


def test_sync_always_steps_in_turn() -> None:
    assert isinstance(make_environments("CartPole-v1", 2, vectorization="sync"), SubEnvironments)


def test_an_unknown_vectorization_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vectorization must be one of auto, sync, compiled, got 'threads'"):
        make_environments("CartPole-v1", 2, vectorization="threads")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"got 'async': use num_workers .* to step environments in processes"):
        make_environments("CartPole-v1", 2, vectorization="async")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="vectorization must be one of auto"):  # Python writes no such number
        make_environments("CartPole-v1", 2, vectorization=10**5000)  # type: ignore[arg-type]


class Longer(CartPoleEnv):
    """Its vectorised form does not take its argument."""

    def __init__(self, length: float = 0.5, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.length = length


@pytest.mark.parametrize(
    ("wrappers", "env_kwargs"),
    [
        ((), {"length": 0.7}),
        ((), {"disable_env_checker": True}),
        ((gym.wrappers.TransformReward.wrapper_spec(func=float),), {}),
    ],
)
def test_a_vectorised_form_that_takes_less_is_left_for_copies(
    wrappers: Any, env_kwargs: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = EnvSpec("Longer-v0", Longer, vector_entry_point=CartPoleVectorEnv, additional_wrappers=wrappers)
    monkeypatch.setitem(gym.registry, "Longer-v0", spec)
    caplog.set_level("INFO")
    assert isinstance(make_environments("Longer-v0", 2, env_kwargs=env_kwargs), SubEnvironments)
    assert "Longer-v0: its own vectorised form cannot be made" in caplog.text


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_arguments_that_an_environment_does_not_take_are_named(vectorization: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"environment 'CartPole-v1' takes other arguments .* 'lenght'"):
        make_environments("CartPole-v1", 2, vectorization=vectorization, env_kwargs={"lenght": 5})
    for make, kwargs, problem in (
        (lambda length=1: None, {"lenght": 5}, "unexpected keyword argument 'lenght'"),
        (lambda length: None, None, "missing a required argument: 'length'"),
    ):
        with pytest.raises(ConfigurationError, match=f"<lambda> .* cannot be called with env_kwargs .*: .*{problem}"):
            make_environments(make, 2, vectorization=vectorization, env_kwargs=kwargs)


@pytest.mark.parametrize("limit", [0, -2, 2.5, True, "9"])
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit: Any, vectorization: Any) -> None:
    kwargs = {"max_episode_steps": limit}
    with pytest.raises(ConfigurationError, match=r"max_episode_steps in env_kwargs .* must be a whole number of"):
        make_environments("CartPole-v1", 2, vectorization=vectorization, env_kwargs=kwargs)
    with pytest.raises(ConfigurationError, match=r"max_episode_steps in env_kwargs .* must be a whole number of"):
        hybridppo.make_env("CartPole-v1", **kwargs)


def test_no_limit_is_none_as_in_gymnasium_though_a_vectorised_form_does_not_know_it() -> None:
    environments = make_environments("CartPole-v1", 2, env_kwargs={"max_episode_steps": -1})
    assert isinstance(environments, SubEnvironments)
    environments.reset(0)
    assert not environments.step(np.zeros(2, np.int64))[3].any()


@pytest.mark.parametrize("name", ["make", "env_id", "imports", "episodic_life"])
def test_arguments_of_an_environment_may_have_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def made(**arguments: Any) -> ScriptedEnv:
        given.append(arguments)
        return ScriptedEnv(SCRIPTS[0])

    monkeypatch.setitem(gym.registry, "Named-v0", EnvSpec("Named-v0", made))
    for source in ("Named-v0", made):
        make_environments(source, 1, env_kwargs={name: 1}).close()
    assert given == [{name: 1}] * 2


@pytest.mark.parametrize("env_id", ["CartPoel-v1", "CartPole-v99", "no_such_module:Env-v0", "not an id", ""])
def test_an_unknown_id_is_refused_by_name(env_id: str) -> None:
    with pytest.raises(EnvError, match=f"environment '{env_id}' cannot be made"):
        make_environments(env_id, 2)


@pytest.mark.parametrize("error", [ImportError("no ROM"), ValueError("bad map"), TypeError("2 given"), KeyError("x")])
def test_an_error_of_a_constructor_is_named_as_its_own(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**arguments: Any) -> Any:
        raise error

    monkeypatch.setitem(gym.registry, "Failing-v0", EnvSpec("Failing-v0", made))
    with pytest.raises(EnvError) as caught:
        make_environments("Failing-v0", 1)
    message = str(caught.value)
    assert message.startswith(f"environment 'Failing-v0' cannot be made: {type(error).__name__}: ")
    assert "in made" in message
    assert "registry" not in message


def test_a_function_may_make_one_environment() -> None:
    environments = make_environments(partial(ScriptedEnv, SCRIPTS[0]), 3)
    assert environments.num_envs == 3
    assert environments.observation_space == ScriptedEnv.observation_space
    np.testing.assert_array_equal(environments.reset(seed=0), np.zeros((3, 2)))


def test_a_function_may_make_a_vector() -> None:
    vector = scripted_vector(SCRIPTS, AutoresetMode.DISABLED)
    assert make_environments(lambda: vector, 2).vector is vector


def test_a_vector_may_be_counted_by_numpy(tmp_path: Path) -> None:
    def make() -> Any:
        vector = scripted_vector(SCRIPTS[:2], AutoresetMode.SAME_STEP)
        vector.num_envs = np.int64(2)
        return vector

    config = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=1, hidden_sizes=(8,))
    result = hybridppo.train(
        make, config=config, total_steps=16, placement="cpu", run_dir=tmp_path / "run", progress=False
    )
    assert result.saved


def test_a_functions_vector_must_have_num_envs() -> None:
    with pytest.raises(EnvError, match="a vector of 2 environments, and this process needs 3 of them"):
        make_environments(lambda: scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP), 3)


@pytest.mark.parametrize("what", ["vector", "tensors"])
def test_what_a_function_made_is_closed_if_it_is_refused(what: str) -> None:
    made: Any = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP) if what == "vector" else TorchCartPole(2)
    closed: list[bool] = []
    made.close = lambda: closed.append(True)
    with pytest.raises(EnvError, match="2"):
        make_environments(lambda: made, 3)
    assert closed == [True]


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (Sequence(Box(-1, 1, (2,))), {}),
        (Discrete(3), {"frame_stack": 2}),
        (Box(-1, 1, (2,)), {"max_items": 2}),
        (Box(-1, 1, (2,)), {"action_masks": True}),
    ],
)
def test_one_environment_is_closed_if_it_is_refused(space: Any, options: Any) -> None:
    made, closed = make_spaces_only(space, Box(-1, 1, (1,))), list[bool]()
    made.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with pytest.raises(HybridPPOError):
        make_environments(lambda: made, 2, **options)
    assert closed == [True]


@pytest.mark.parametrize("made", [None, 7, "CartPole-v1", ScriptedEnv])
def test_a_function_must_make_an_environment(made: Any) -> None:
    with pytest.raises(EnvError, match=f"must make a gymnasium.Env .*AECEnv; it made {type(made).__name__}"):
        make_environments(lambda: made, 2)


# Spaces


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 255, (8, 2, 3), np.uint8),
        gym.spaces.Sequence(Discrete(2)),
        gym.spaces.Graph(Box(-1, 1, (2,)), None),
        Dict({}),
    ],
    ids=["image of two pixels", "sequence", "graph", "nothing"],
)
@pytest.mark.parametrize("is_within", [False, True], ids=["alone", "within"])
def test_unsupported_observation_spaces_are_refused_by_name(space: gym.Space[Any], is_within: bool) -> None:
    whole = gym.spaces.Tuple((Discrete(2), Dict(odd=space))) if is_within else space
    where = f", which is at [1]['odd'] of {whole}," if is_within else ""
    for use in (
        lambda: make_environments(partial(make_spaces_only, whole, Discrete(2)), 2),
        lambda: PPO(whole, Discrete(2)),
    ):
        with pytest.raises(EnvError) as raised:
            use()
        assert f"observation space {space}{where} is not supported: " in str(raised.value)


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Text(5), Dict({"move": Discrete(2), "arm": gym.spaces.Text(3)})],
    ids=["text", "within"],
)
@pytest.mark.parametrize("use", ["train", "PPO", "distribution_for"])
def test_unsupported_action_spaces_are_refused_by_name(space: gym.Space[Any], use: str) -> None:
    source = partial(make_spaces_only, Box(-1, 1, (2,)), space)
    uses = {
        "train": lambda: hybridppo.train(source, total_steps=1, placement="cpu", progress=False),
        "PPO": lambda: PPO(Box(-1, 1, (2,)), space),
        "distribution_for": lambda: distribution_for(space),
    }
    with pytest.raises(EnvError) as raised:
        uses[use]()
    which = f"{space['arm']}, which is at ['arm'] of {space}," if isinstance(space, Dict) else str(space)
    assert f"action space {which} is not supported: use Discrete, MultiDiscrete, MultiBinary, a Box, or" in (
        str(raised.value)
    )


# Closing


def test_closing_twice_is_safe() -> None:
    vector = ForeignVector(AutoresetMode.NEXT_STEP)
    environments = wrap(vector)
    environments.close()
    environments.close()
    assert vector.times_closed == 1


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_workers_whose_step_was_broken_off_are_closed() -> None:
    """A second Ctrl-C may come when the answers of some are read, for which gymnasium would wait without end."""
    vector = AsyncVectorEnv([partial(ScriptedEnv, script) for script in SCRIPTS])
    environments = wrap(vector)
    environments.reset(seed=0)
    vector.step_async(np.zeros(2, np.int64))
    vector.parent_pipes[0].recv()
    closing = threading.Thread(target=environments.close, daemon=True)
    closing.start()
    closing.join(20.0)
    is_closed = not closing.is_alive()
    for process in vector.processes:
        process.terminate()
    assert is_closed


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_lost_worker_of_gymnasium_is_named(shared_memory: bool) -> None:
    vector = AsyncVectorEnv([partial(ScriptedEnv, script) for script in SCRIPTS], shared_memory=shared_memory)
    environments = wrap(vector, first=4)
    environments.reset(seed=0)
    vector.processes[1].kill()
    with pytest.raises(
        EnvError, match=r"step 1, .*: the worker of environment 5 has ended, with exit code -9"
    ) as error:
        environments.step(np.zeros(2, np.int64))
    environments.close()
    assert "environment 4 has" not in str(error.value)


def test_a_function_is_called_once_for_each_environment() -> None:
    made: list[int] = []
    closed: list[int] = []

    class Counted(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(SCRIPTS[0])
            made.append(id(self))

        def close(self) -> None:
            closed.append(id(self))

    environments = make_environments(Counted, 2)
    assert closed == []
    environments.close()
    assert len(made) == 2
    assert closed == made
