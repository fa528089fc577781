"""The fused rollout: equal to the plain one up to rounding, sliced, stopped, divided, saved and resumed."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_catch import Catch
from compiled_side import Side
from ppo_settings import ppo_config
from processes import run_python

import hybridppo
from hybridppo import Mirrored
from hybridppo.agents import PPO
from hybridppo.compiled.building import build
from hybridppo.compiled.classic import compiled_form
from hybridppo.environments.making import make_environments
from hybridppo.errors import EnvError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners import filling

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.extras

ENVIRONMENTS: list[Any] = ["CartPole-v1", "Pendulum-v1", Catch]


def side_of(env: Any, num_envs: int, num_steps: int, *, seed: int = 0, threads: int = 1, **config: Any) -> Side:
    environments = make_environments(env, num_envs, vectorization="compiled", env_threads=threads)
    spaces = environments.observation_space, environments.action_space
    agent = PPO(*spaces, ppo_config(num_envs=num_envs, num_steps=num_steps, **config), seed=5)
    if agent.config.normalize_observations:  # of which some are clipped
        moments: Any = agent.actor.normalizer.moments
        moments.mean.fill_(0.02)
        moments.variance.fill_(3e-5)
    return Side(environments, agent, num_steps, seed)


def assert_same(some: Rollout, others: Rollout) -> None:
    for name, array in some.columns().items():
        np.testing.assert_array_equal(array, others.columns()[name], err_msg=name)


def assert_same_finals(some: list[Any], others: list[Any]) -> None:
    assert [final[:2] for final in some] == [final[:2] for final in others]
    for (_, _, one), (_, _, other) in zip(some, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
@pytest.mark.parametrize(
    ("hidden_sizes", "normalizes"), [((64, 64), False), ((64, 64), True), ((7,), False), ((5, 9, 3), True)], ids=str
)
def test_it_agrees_with_the_plain_form(
    env: Any, hidden_sizes: tuple[int, ...], normalizes: bool, activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"hidden_sizes": hidden_sizes, "activation": activation}
    options["normalize_observations"] = normalizes
    ours, plain = side_of(env, 6, 70, **options), side_of(env, 6, 70, **options)
    assert ours.is_fused()
    filled, finals = ours.stepper.fill(ours.buffer, ours.actor)
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    expected_filled, expected = plain.stepper.fill(plain.buffer, plain.actor)
    assert filled == expected_filled == 70
    assert [final[:2] for final in finals] == [final[:2] for final in expected]
    for (_, _, one), (_, _, other) in zip(finals, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    for name, array in ours.buffer.columns().items():
        # One step differs by rounding; an environment may then carry it on for as many as there are.
        np.testing.assert_allclose(
            array, plain.buffer.columns()[name], atol=2e-4 if name != "outputs" else 2e-3, err_msg=name
        )
    first = ours.buffer.outputs[0] - plain.buffer.outputs[0]
    assert np.abs(first).max() < 1e-6
    np.testing.assert_array_equal(ours.buffer.terminated, plain.buffer.terminated)


def test_final_observations_are_those_before_the_reset() -> None:
    side = side_of("Pendulum-v1", 2, 410)
    _, finals = side.stepper.fill(side.buffer, side.actor)
    assert [(t, env) for t, env, _ in finals] == [(t, env) for t in (199, 399) for env in range(2)]
    for t, env, final in finals:
        assert abs(final - side.buffer.observations[t, env]).max() < 1.5  # the next of the same episode
        assert not np.array_equal(final, side.buffer.observations[t + 1, env])
    assert side.buffer.truncated.sum() == 4


@pytest.mark.parametrize("num_threads", [2, 5])
@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_the_number_of_threads_changes_no_bit(env: Any, num_threads: int) -> None:
    one, many = side_of(env, 10, 40), side_of(env, 10, 40, threads=num_threads)
    _, finals = one.stepper.fill(one.buffer, one.actor)
    _, others = many.stepper.fill(many.buffer, many.actor)
    assert_same(one.buffer, many.buffer)
    assert_same_finals(finals, others)
    many.environments.close()


def test_an_environment_does_not_depend_on_how_many_there_are() -> None:
    many, one = side_of("CartPole-v1", 9, 32), side_of("CartPole-v1", 1, 32, seed=4)
    one.buffer.noise[:] = many.buffer.noise[:, 4:5]
    many.stepper.fill(many.buffer, many.actor)
    one.stepper.fill(one.buffer, one.actor)
    assert_same(many.buffer.of(slice(4, 5)), one.buffer)


def test_it_stops_between_slices_and_goes_on_where_it_was() -> None:
    whole, parts = side_of("CartPole-v1", 256, 64), side_of("CartPole-v1", 256, 64)
    _, expected = whole.stepper.fill(whole.buffer, whole.actor)

    class Stop(bytearray):
        """Set when it is read for the third time."""

        looked = 0

        def __getitem__(self, index: Any) -> Any:
            self.looked += 1
            return self.looked == 3

    filled, finals = parts.stepper.fill(parts.buffer, parts.actor, Stop(1))
    assert filled == 32  # two slices of 16
    assert parts.stepper.heartbeat[0] == 32
    parts.buffer.observations[filled + 1 :] = np.nan
    again, more = parts.stepper.fill(parts.buffer, parts.actor, first=filled, end=40)
    assert again == 40
    last, rest = parts.stepper.fill(parts.buffer, parts.actor, first=40)
    assert last == 64
    assert_same(whole.buffer, parts.buffer)
    assert_same_finals(expected, finals + more + rest)


def test_a_stepper_goes_on_from_a_saved_state() -> None:
    one, other = side_of("Pendulum-v1", 4, 150), side_of("Pendulum-v1", 4, 150, seed=77)
    one.stepper.fill(one.buffer, one.actor)
    states, observation, remembered = one.stepper.state()
    other.stepper.load_state(states, observation.copy(), remembered)
    _, finals = one.stepper.fill(one.buffer, one.actor)
    _, others = other.stepper.fill(other.buffer, other.actor)
    assert len(finals) == 4
    assert_same(one.buffer, other.buffer)
    assert_same_finals(finals, others)


def test_what_has_no_fused_form_is_stepped_one_by_one() -> None:
    side = side_of("Pendulum-v1", 2, 20, squash_actions=True)
    assert not side.is_fused()
    filled, _ = side.stepper.fill(side.buffer, side.actor)
    assert filled == 20
    assert np.abs(side.buffer.rewards).min() > 0.0


def test_numbers_that_are_not_finite_end_it() -> None:
    side = side_of("Pendulum-v1", 3, 20)
    side.environments.states[1]["speed"] = np.nan
    with pytest.raises(EnvError, match="environment 1: observation"):
        side.stepper.fill(side.buffer, side.actor)


def test_nothing_of_the_actor_is_float64_by_accident() -> None:
    module = sys.modules[build(compiled_form("MountainCarContinuous-v0")).rollout.__module__]
    f, i = numba.float32, numba.int64
    signatures = {
        "forward": (i[::1], f[:, :, ::1], f[:, :, ::1], f[:, :, ::1], i, numba.boolean),
        "tanh_all": (f[::1], i),
        "relu_all": (f[::1], i),
        "choose": (f[::1], f[:], f[:], f[::1], f[::1], f[::1], f[::1]),
    }
    for name, arguments in signatures.items():
        dispatcher = getattr(module, name)
        dispatcher.compile(arguments)
        code = dispatcher.inspect_llvm(arguments)
        assert " float " in code, name
        assert "double" not in code, name
    control = numba.njit(lambda values: values[0] * 0.5)  # what the test is to find
    control.compile((f[::1],))
    assert "double" in control.inspect_llvm((f[::1],))


TINY: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,), "num_epochs": 1}


def train(env: Any, **options: Any) -> Any:
    config = ppo_config(**{**TINY, **options.pop("config", {})})
    options = {"placement": "cpu", "seed": 3, "total_steps": 512, "vectorization": "compiled", **options}
    return hybridppo.train(env, config=config, progress=False, **options)


def parameters(result: Any) -> Any:
    return result.agent.parameters.values.detach().numpy()


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=str)
def test_workers_and_threads_train_to_the_same_bits(env: Any) -> None:
    here = parameters(train(env))
    assert np.array_equal(here, parameters(train(env, env_threads=2)))
    assert np.array_equal(here, parameters(train(env, num_workers=2)))


def test_overlap_trains_evaluates_and_resumes(tmp_path: Path) -> None:
    result = train(
        "CartPole-v1", placement=Mirrored("cpu", "cpu", max_lag=1), run_dir=tmp_path / "run", evaluation_episodes=3
    )
    assert result.metrics["env_steps"] == 512
    assert result.evaluation is not None
    again = hybridppo.resume(tmp_path / "run", total_steps=1024, progress=False)
    assert again.metrics["env_steps"] == 1024
    assert len(hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False).returns) == 2


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Catch], ids=str)
def test_a_run_that_is_resumed_is_the_run_that_never_stopped(env: Any, tmp_path: Path) -> None:
    whole = train(env, total_steps=1024, run_dir=tmp_path / "whole", config={"anneal_learning_rate": False})
    train(env, total_steps=512, run_dir=tmp_path / "parts", config={"anneal_learning_rate": False})
    source = None if isinstance(env, str) else env
    parts = hybridppo.resume(tmp_path / "parts", total_steps=1024, env=source, progress=False)
    assert np.array_equal(parameters(whole), parameters(parts))
    assert whole.metrics["episode_return_mean"] == parts.metrics["episode_return_mean"]


def test_cartpole_is_learned() -> None:
    config = {"num_envs": 8, "num_steps": 128, "hidden_sizes": (64, 64), "num_epochs": 4, "num_minibatches": 4}
    result = train("CartPole-v1", total_steps=60_000, config=config)
    evaluation = hybridppo.evaluate_agent(result.agent, "CartPole-v1", episodes=10, progress=False)  # gymnasium's own
    assert evaluation.return_mean > 150.0


def test_auto_measures_the_compiled_form() -> None:
    config = {"num_envs": 8, "num_steps": 128, "num_minibatches": 4, "hidden_sizes": (64, 64), "num_epochs": 4}
    result = train("CartPole-v1", placement="auto", total_steps=30_000, config=config)
    assert result.metrics["env_steps"] >= 30_000


def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "compiled.md").read_text(encoding="utf-8")
    written, used = (block.partition("```")[0] for block in guide.split("```python\n")[1:3])
    script = f"{written}\nimport hybridppo\n{used}\nprint(result.metrics['episode_return_mean'])\n"
    script = script.replace("total_steps=200_000", "total_steps=40_000, num_workers=2, placement='cpu', progress=False")
    (tmp_path / "script.py").write_text(script)
    done = run_python("script.py", check=True, cwd=tmp_path)
    assert "error" not in done.stdout
    assert float(done.stdout.splitlines()[-1]) > 0.0  # chance is about -0.6
