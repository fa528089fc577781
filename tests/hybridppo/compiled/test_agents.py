"""Compiled multi-agent environments: the same as in Python, fused, divided, saved, shared by one policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tagging
from compiled_hunt import HUNTERS, PREY, Hunt
from compiled_side import Side
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, EnvError, compiled
from hybridppo.agents import PPO
from hybridppo.environments.making import make_environments
from hybridppo.environments.state import encoded
from hybridppo.errors import EnvStateError
from hybridppo.runners import filling
from hybridppo.tools.check import check_env

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

NUM_AGENTS = HUNTERS + PREY
NUMBERS = Box(-2.0, 2.0, (2,), np.float32)


@compiled.environment(
    policies={"one": 2, "other": 1},
    state={"x": np.float32},
    observation_space=Box(-100.0, 100.0, (2,), np.float32),
    action_space=NUMBERS,
    episode_length=7,
)
class Drift:
    """Actions are numbers, and episodes end only by their length."""

    def reset(agent, state, random):
        state.x[agent] = np.float32(compiled.normal(random))

    def go(agent, state, action, random):
        state.x[agent] += action[0] - action[1]

    def reward(agent, state, time):
        return -abs(state.x[agent]), state.x[agent] > 6.0

    def observe(agent, state, time, out):
        out[0], out[1] = state.x[agent], state.x[0]

    phases = (go,)


def test_python_steps_the_same_source_to_the_same_bits() -> None:
    ours = make_environments(Hunt, 4, vectorization="compiled")
    plain = make_environments(Hunt, 4, vectorization="sync")
    assert ours.agents == plain.agents == ("hunter_0", "hunter_1", "prey_0", "prey_1", "prey_2")
    assert ours.num_envs == plain.num_envs == 4 * NUM_AGENTS
    np.testing.assert_array_equal(ours.reset(11), plain.reset(11))
    generator = np.random.default_rng(0)
    num_left = num_truncated = num_over = 0
    for _ in range(300):
        actions = generator.integers(-1, 2, ours.num_envs)
        *arrays, finals_of, finals = ours.step(actions)
        *expected, expected_of, expected_finals = plain.step(actions)
        for array, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, other)
        assert ours.absent is not None
        np.testing.assert_array_equal(ours.absent, plain.absent)
        assert finals_of == expected_of
        np.testing.assert_array_equal(np.array(finals), np.array(expected_finals))
        terminated = arrays[2].reshape(4, -1)
        num_left, num_truncated = num_left + int(ours.absent.sum()), num_truncated + len(finals)
        num_over += int((terminated.all(1) & ~arrays[3].reshape(4, -1).any(1)).sum())
    assert min(num_left, num_truncated) > 200
    assert num_over > 5


def side_of(env: Any, num_steps: int, *, seed: int = 0, threads: int = 1, num_envs: int = 6) -> Side:
    environments = make_environments(env, num_envs, vectorization="compiled", env_threads=threads)
    config = ppo_config(num_envs=num_envs, num_steps=num_steps, hidden_sizes=(16, 8))
    agent = PPO(environments.observation_space, environments.action_space, config, seed=5)
    return Side(environments, agent, num_steps, seed)


def tag() -> Any:
    return tagging.tag(taggers=3, runners=9, tagging_distance=0.08, episode_length=60, nearest=4)


KINDS: dict[str, Callable[[], Any]] = {"choice": lambda: Hunt, "choices": tag, "numbers": lambda: Drift}


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_rollout_agrees_with_the_plain_form(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, divided, plain = (side_of(KINDS[kind](), 70, threads=threads) for threads in (1, 3, 1))
    assert filling.fused(ours.environments, ours.agent.distribution, ours.actor) is not None
    filled, finals = ours.stepper.fill(ours.buffer, ours.actor)
    _, again = divided.stepper.fill(divided.buffer, divided.actor)
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    expected_filled, expected = plain.stepper.fill(plain.buffer, plain.actor)
    assert filled == expected_filled == 70
    there = ~plain.buffer.absent
    assert kind != "choice" or not there.all()
    for name, array in ours.buffer.columns().items():
        np.testing.assert_array_equal(array, divided.buffer.columns()[name], err_msg=name)  # threads change no bit
        other = plain.buffer.columns()[name]
        if name in ("outputs", "actions"):  # of nobody, they are nothing
            array, other = array[there], other[there]
        np.testing.assert_allclose(array, other, atol=2e-4, err_msg=name)
    for name in ("terminated", "truncated", "absent"):
        np.testing.assert_array_equal(getattr(ours.buffer, name), getattr(plain.buffer, name))
    assert [final[:2] for final in finals] == [final[:2] for final in expected] == [final[:2] for final in again]
    for (_, _, one), (_, _, other) in zip(finals, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert kind == "choices" or finals


def test_several_choices_of_one_agent_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    @compiled.environment(
        state={"x": np.float64}, observation_space=NUMBERS, action_space=MultiDiscrete([3, 2, 4], start=[-1, 0, 2])
    )
    class Choices:
        def reset(state, random):
            state.x = 0.0

        def step(state, action, random):
            state.x = 0.1 * action[0] + 0.01 * action[1] + 0.001 * action[2]
            return state.x, False

        def observe(state, out):
            out[0] = out[1] = state.x

    ours, plain = side_of(Choices, 40), side_of(Choices, 40)
    assert filling.fused(ours.environments, ours.agent.distribution, ours.actor) is not None
    ours.stepper.fill(ours.buffer, ours.actor)
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    plain.stepper.fill(plain.buffer, plain.actor)
    for name, array in ours.buffer.columns().items():
        np.testing.assert_allclose(array, plain.buffer.columns()[name], atol=1e-5, err_msg=name)
    assert len(np.unique(ours.buffer.actions.reshape(-1, 3), axis=0)) == 24


def test_it_goes_on_from_a_saved_state_and_refuses_others() -> None:
    one, other = side_of(Hunt, 40), side_of(Hunt, 40, seed=77)
    one.stepper.fill(one.buffer, one.actor)
    states, observation, remembered = one.stepper.state()
    assert not one.environments.present.all()
    other.stepper.load_state(states, observation.copy(), remembered)
    one.stepper.fill(one.buffer, one.actor)
    other.stepper.fill(other.buffer, other.actor)
    for name, array in one.buffer.columns().items():
        np.testing.assert_array_equal(array, other.buffer.columns()[name], err_msg=name)
    for bad in (np.array([True]), np.ones(NUM_AGENTS, np.int64)):
        of_others = [{**state, "compiled": {**state["compiled"], "present": encoded(bad)}} for state in states]
        with pytest.raises(EnvStateError, match=r"the present of .* are of another form"):
            other.environments.load_state(of_others)


def test_an_error_names_the_environment_and_the_agent() -> None:
    side = side_of(Hunt, 20)
    side.environments.states["x"][2, 3] = np.nan
    with pytest.raises(EnvError, match="environment 2, agent 'prey_1': observation"):
        side.stepper.fill(side.buffer, side.actor)


TINY: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,), "num_epochs": 1}


def train(**options: Any) -> Any:
    config = ppo_config(**{**TINY, "anneal_learning_rate": False, **options.pop("config", {})})
    options = {"placement": "cpu", "seed": 3, "total_steps": 4000, "vectorization": "compiled", **options}
    return hybridppo.train(Hunt, config=config, progress=False, **options)


def parameters(result: Any) -> Any:
    return result.agent.parameters.values.detach().numpy()


def test_one_policy_trains_on_any_number_of_workers_and_resumes(tmp_path: Path) -> None:
    whole = train(run_dir=tmp_path / "whole", evaluation_episodes=2)
    assert len(whole.evaluation.returns) == 2 * NUM_AGENTS
    assert set(whole.evaluation.agents) == set(Hunt.agents)
    assert np.array_equal(parameters(whole), parameters(train(num_workers=2, env_threads=2)))
    train(run_dir=tmp_path / "parts", total_steps=2000)
    parts = hybridppo.resume(tmp_path / "parts", total_steps=4000, env=Hunt, progress=False)
    assert np.array_equal(parameters(whole), parameters(parts))
    assert whole.metrics["episode_return_mean"] == parts.metrics["episode_return_mean"]


def test_a_policy_with_a_memory_steps_row_by_row() -> None:
    result = train(config={"recurrent": "lstm", "num_minibatches": 1}, total_steps=500)
    assert result.metrics["env_steps"] >= 500


def racing(**changes: Any) -> Any:
    """An environment in whose phases agents read what others write."""

    def reset(agent, state, random):
        state.x[agent] = agent

    def follow(agent, state, action, random):
        state.x[agent] = state.x[agent - 1] + 1.0

    def reward(agent, state, time):
        return 0.0, False

    def observe(agent, state, time, out):
        out[0] = out[1] = state.x[agent]

    functions = {"reset": reset, "follow": follow, "reward": reward, "observe": observe, "phases": (follow,)}
    written = type("Racing", (), {**functions, **changes.pop("functions", {})})
    options = {"policies": {"one": 3}, "state": {"x": np.float64}, "action_space": Discrete(2), "episode_length": 5}
    return compiled.environment(**{"observation_space": NUMBERS, **options, **changes})(written)


def test_check_finds_phases_that_race_and_passes_others() -> None:
    report = check_env(racing(), steps=20)
    assert not report.is_usable
    assert "phase follow gives another x of one_" in str(report)
    assert check_env(Hunt, steps=60).is_usable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {}}, "policies must map each kind"),
        ({"policies": {"two words": 1}}, "must be a Python name"),
        ({"policies": {"one": 0}}, r"policies\['one'\] must be"),
        ({"functions": {"phases": ()}}, "write `phases = "),
        ({"functions": {"phases": (len,)}}, "write `phases = "),
        ({"functions": {"reward": lambda agent, state: (0.0, False)}}, r"write `def reward\(agent, state, time\)`"),
        ({"functions": {"end": lambda state: False}}, r"write `def end\(state, time\)`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_none_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        racing(**changes)


def test_an_id_is_checked_trained_and_evaluated() -> None:
    gym.register("CompiledHunt-v0", entry_point=Hunt)
    try:
        assert check_env("CompiledHunt-v0", steps=30).is_usable
        options: dict[str, Any] = {"vectorization": "compiled", "placement": "cpu", "progress": False}
        result = hybridppo.train("CompiledHunt-v0", config=ppo_config(**TINY), total_steps=600, **options)
        assert result.metrics["env_steps"] >= 600
    finally:
        del gym.registry["CompiledHunt-v0"]
