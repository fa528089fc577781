"""What every agent promises: no placement, worker or stop changes a seed's results, and no broken agent is saved."""

import copy
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from every_agent import AGENTS, ENV, every, marks_of
from run_files import timeless_lines_of
from same_bits import assert_same, state_of
from selection import only_by_default
from stop_after import Stops
from toy_environments import HighestAllowed

import hybridppo
from hybridppo import ConfigurationError, Migrating, Mirrored, SingleDevice, TrainingError
from hybridppo.networks.actors import twin_of
from hybridppo.placements import crossing
from hybridppo.placements.placement import Placement
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.system.signals import requests_to_end

OFF_POLICY = [name for name in AGENTS if name != "ppo"]
ITERATIONS = 4

ON_ONE_DEVICE: dict[str, Callable[[], Placement]] = {
    "single": lambda: SingleDevice("cpu"),
    "migrating in place": lambda: Migrating("cpu", "cpu"),
    "migrating": lambda: Migrating("cpu", "cpu", force_copy=True),
    "alias": lambda: Mirrored("cpu", "cpu"),
    "mirror": lambda: Mirrored("cpu", "cpu", force_copy=True, verify=True),
}
ELSEWHERE: dict[str, Callable[[str, str], Placement]] = {
    "single": lambda here, there: SingleDevice(there),
    "migrating": lambda here, there: Migrating(here, there, force_copy=True),
    "mirrored": lambda here, there: Mirrored(here, there, force_copy=True, verify=True),
    "mirrored, sampling there": lambda here, there: Mirrored(there, here, force_copy=True, verify=True),
    "every third": lambda here, there: Mirrored(here, there, force_copy=True, publish_every=3),
    "overlapping": lambda here, there: Mirrored(here, there, max_lag=1),
}


EVERY, LONG = every(), every(is_long=True)


def long_with(placements: Iterable[str]) -> list[Any]:
    """Each agent with each placement, in a long test."""
    return [pytest.param(*pair, marks=marks_of(pair[0], is_long=True)) for pair in product(AGENTS, placements)]


def train(name: str, placement: Placement, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A short run, and its metrics by iteration, without times and copies."""
    history: list[dict[str, Any]] = []
    case = AGENTS[name]
    arguments = {
        "env": ENV,
        "total_steps": ITERATIONS * case.steps_per_iteration,
        "seed": 3,
        "config": case.config,
        "vectorization": "sync",
        "num_workers": 0,
        "on_interrupt": "return",
        **options,
    }
    result = hybridppo.train(
        placement=placement,
        progress=False,
        on_iteration=lambda metrics: history.append(
            {k: v for k, v in metrics.items() if "second" not in k and k not in ("publishes", "bytes_copied")}
        ),
        **arguments,
    )
    return result, history


@cache
def reference(name: str) -> Any:
    return train(name, SingleDevice("cpu"))


# Placements


@pytest.mark.parametrize(
    ("name", "placement"),
    only_by_default(
        [
            *(f"{name}, mirror" for name in AGENTS),
            *(f"td3, {placement}" for placement in ON_ONE_DEVICE if placement != "mirror"),
        ],
        [
            pytest.param(name, placement, marks=marks_of(name, is_long=placement != "mirror"))
            for name, placement in product(AGENTS, ON_ONE_DEVICE)
        ],
    ),
)
def test_no_placement_changes_the_result(name: str, placement: str) -> None:
    result, history = train(name, ON_ONE_DEVICE[placement]())
    expected, expected_history = reference(name)
    assert_same(state_of(result.agent), state_of(expected.agent))
    np.testing.assert_equal(history, expected_history)
    assert result.agent.version > 0
    assert history[-1]["policy_lag"] == 0


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_a_program_that_has_turned_gradients_off_trains_as_any(name: str) -> None:
    with torch.no_grad():
        found = train(name, SingleDevice("cpu"))[0]
    assert_same(state_of(found.agent), state_of(reference(name)[0].agent))


class Keeping(hybridppo.Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        self.kept = pickle.dumps(copy.deepcopy(run.agent))


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_an_agent_in_training_is_copied_and_pickled(name: str) -> None:
    keeping = Keeping()
    result = train(name, SingleDevice("cpu"), callbacks=keeping)[0]
    agent = pickle.loads(keeping.kept)
    assert_same(state_of(agent), state_of(result.agent))
    assert not agent.should_stop()
    actions = [each.act(np.ones(3, np.float32)) for each in (agent, result.agent)]
    np.testing.assert_allclose(*actions, rtol=1e-5)


def test_a_program_in_which_underflow_raises_trains_as_any() -> None:
    config = replace(AGENTS["ppo"].config, learning_rate=0.1)
    options: dict[str, Any] = {"placement": "cpu", "progress": False, "seed": 0, "config": config}
    with np.errstate(all="raise"):
        found = hybridppo.train(HighestAllowed, total_steps=1600, action_masks=True, evaluation_episodes=2, **options)
        hybridppo.evaluate_agent(found.agent, HighestAllowed, episodes=2, progress=False)
    expected = hybridppo.train(HighestAllowed, total_steps=1600, action_masks=True, **options)
    assert_same(state_of(found.agent), state_of(expected.agent))


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_another_default_device_is_refused(name: str) -> None:
    with (
        torch.device("meta"),
        pytest.raises(ConfigurationError, match=r"is meta, .* torch\.set_default_device\('cpu'\)"),
    ):
        train(name, SingleDevice("cpu"))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (torch.inference_mode, r"torch.inference_mode\(\) is on, .* outside of it"),
        (partial(torch.autocast, "cpu"), "torch.autocast is on, .* outside of it; precision='bf16'"),
    ],
)
def test_modes_of_torch_that_change_gradients_are_refused(mode: Any, words: str) -> None:
    with mode(), pytest.raises(ConfigurationError, match=words):
        hybridppo.train("CartPole-v1", total_steps=8, progress=False)


@pytest.mark.parametrize("name", LONG)
def test_another_seed_gives_another_result(name: str) -> None:
    other = state_of(train(name, SingleDevice("cpu"), seed=4)[0].agent)
    weights = {key: tensor for key, tensor in state_of(reference(name)[0].agent).items() if tensor.dim() == 2}
    assert weights
    assert not any(torch.equal(tensor, other[key]) for key, tensor in weights.items())


@pytest.mark.parametrize("workers", only_by_default(("3",), (1, 3)))
@pytest.mark.parametrize("name", LONG)
def test_no_number_of_workers_changes_the_result(name: str, workers: int) -> None:
    result, history = train(name, SingleDevice("cpu"), num_workers=workers)
    expected, expected_history = reference(name)
    assert_same(state_of(result.agent), state_of(expected.agent))
    np.testing.assert_equal(history, expected_history)


@pytest.mark.parametrize("name", LONG)
def test_overlap_gives_what_its_seed_says_wherever_it_samples(name: str) -> None:
    result, history = train(name, Mirrored("cpu", "cpu", max_lag=1))
    again, again_history = train(name, Mirrored("cpu", "cpu", max_lag=1), num_workers=1)
    assert_same(state_of(result.agent), state_of(again.agent))
    np.testing.assert_equal(history, again_history)
    assert max(metrics["policy_lag"] for metrics in history) == 1
    # Rollouts come from older parameters: another result than by turns.
    expected = state_of(reference(name)[0].agent)
    assert not all(torch.equal(tensor, expected[key]) for key, tensor in state_of(result.agent).items())


@pytest.mark.parametrize(
    ("name", "placement"),
    only_by_default(
        ("ppo, migrating", "ddpg, overlapping", "td3, migrating", "td3, mirrored, sampling there"),
        long_with(ELSEWHERE),
    ),
)
def test_a_second_device_gives_what_the_cpu_gives(
    name: str, placement: str, second_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossing, "twin_of", lambda network: None)  # which round otherwise than torch's
    options: dict[str, Any] = {"evaluation_episodes": 1, "total_steps": 80}
    options["config"] = replace(AGENTS[name].config, fast_updates=False)
    made = ELSEWHERE[placement]("cpu", second_device)
    result, history = train(name, made, **options)
    expected, expected_history = train(name, ELSEWHERE[placement]("cpu", "cpu"), **options)
    assert result.agent.parameters.values.device == made.learning_device
    assert_same(state_of(result.agent), state_of(expected.agent))
    np.testing.assert_equal(history, expected_history)
    assert result.evaluation == expected.evaluation


@pytest.mark.parametrize("name", LONG)
def test_worker_processes_sample_for_a_learner_elsewhere(name: str, second_device: str) -> None:
    config = replace(AGENTS[name].config, fast_updates=False)
    options: dict[str, Any] = {"num_workers": 2, "total_steps": 80, "config": config}
    result, _ = train(name, Mirrored("cpu", second_device), **options)
    expected, _ = train(name, Mirrored("cpu", "cpu"), **options)
    assert_same(state_of(result.agent), state_of(expected.agent))


# Stopping and going on


def rows_of(run_dir: Path) -> dict[str, bytes]:
    """The replay buffer's files."""
    return {path.name: path.read_bytes() for path in sorted((run_dir / "replay").glob("*"))}


PLACEMENTS_TO_STOP: dict[str, dict[str, Any]] = {
    "cpu": {"placement": lambda: SingleDevice("cpu"), "num_workers": 0},
    "every 3": {"placement": lambda: Mirrored("cpu", "cpu", force_copy=True, publish_every=3), "num_workers": 0},
    "overlap in thread": {"placement": lambda: Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
    "overlap in worker": {"placement": lambda: Mirrored("cpu", "cpu", max_lag=1), "num_workers": 1},
}


@pytest.mark.skipif(os.name != "posix", reason="os.kill ends a process on Windows")
@pytest.mark.parametrize(
    ("name", "placement"),
    only_by_default(
        ("ppo, every 3", "ddpg, overlap in worker", "td3, every 3", "td3, overlap in worker"),
        long_with(PLACEMENTS_TO_STOP),
    ),
)
def test_stops_change_nothing(name: str, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stops, options = Stops(monkeypatch), dict(PLACEMENTS_TO_STOP[placement])
    make, times = options.pop("placement"), 2 if "worker" in placement else 3
    expected, path = tmp_path / "expected", tmp_path / "run"
    train(name, make(), run_dir=expected, **options)
    per_stop, rng = stops.events // (times + 1), random.Random(f"{name} {placement}")
    signals = [signal.SIGINT, *requests_to_end()]
    stops.next_after(rng.randint(1, 2 * per_stop), rng.choice(signals))
    result, stopped = train(name, make(), run_dir=path, **options)[0], 0
    while result.interrupted:
        stopped += 1
        stops.next_after(rng.randint(1, 2 * per_stop) if stopped < times else -1, rng.choice(signals))
        result = hybridppo.resume(path, progress=False, on_interrupt="return")
    assert stopped >= times // 2
    assert timeless_lines_of(path) == timeless_lines_of(expected)
    found, wanted = (load_latest(each / "checkpoints")[1] for each in (path, expected))
    assert_same(found.tensors, wanted.tensors)
    assert found.state["agent"] == wanted.state["agent"]
    for key in ("env_steps", "noise", "statistics", "resetting"):
        assert found.state["sampler"][key] == wanted.state["sampler"][key], key
    if name in OFF_POLICY:
        loops = [checkpoint.state["runner"]["replay"] for checkpoint in (found, wanted)]
        assert loops[0]["total"] == loops[1]["total"]


@pytest.mark.parametrize("name", EVERY)
def test_a_run_that_goes_on_longer_is_as_one_that_was_as_long(name: str, tmp_path: Path) -> None:
    train(name, SingleDevice("cpu"), run_dir=tmp_path / "run", total_steps=2 * 40)
    result = hybridppo.resume(tmp_path / "run", total_steps=ITERATIONS * 40, progress=False)
    if name != "ppo":  # whose learning rate falls with the length that was planned
        assert_same(state_of(result.agent), state_of(reference(name)[0].agent))
    assert result.metrics["iteration"] == ITERATIONS


# Acting and loading


@pytest.mark.parametrize("name", LONG)
def test_agents_act_load_and_are_evaluated(name: str, tmp_path: Path) -> None:
    result, _ = train(name, SingleDevice("cpu"), run_dir=tmp_path / "run")
    loaded = hybridppo.load(tmp_path / "run")
    assert type(loaded) is type(result.agent)
    assert loaded.config == result.agent.config
    assert_same(state_of(loaded), state_of(result.agent))
    env = gym.make(ENV)
    observation, _ = env.reset(seed=0)
    action = result.agent.act(observation)
    np.testing.assert_array_equal(action, loaded.act(observation))
    np.testing.assert_array_equal(action, result.agent.act(observation))
    assert env.action_space.contains(action)
    assert env.action_space.contains(loaded.act(observation, deterministic=False))
    evaluation = hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False)
    assert evaluation == hybridppo.evaluate_agent(result.agent, ENV, episodes=2, progress=False)
    assert len(evaluation.returns) == 2


@pytest.mark.parametrize("name", EVERY)
def test_other_values_are_another_action(name: str) -> None:
    agent = reference(name)[0].agent
    actions = [agent.act(np.array(o, np.float32)) for o in ((1.0, 0.0, 0.0), (-1.0, 0.0, 7.0))]
    assert actions[0] != actions[1]
    # Many draws: next to a bound, half of them are clipped to it.
    drawn = agent.act(np.zeros((64, 3), np.float32), deterministic=False, batch=True)
    assert len(np.unique(drawn)) > 1


@pytest.mark.parametrize("name", EVERY)
def test_a_batch_of_observations_is_a_batch_of_actions(name: str) -> None:
    agent = reference(name)[0].agent
    batch = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    actions, state = agent.act(batch, state=None, batch=True)
    assert state is None
    np.testing.assert_allclose(actions, [agent.act(observation) for observation in batch], atol=1e-5)
    drawn = agent.act(batch, deterministic=False, batch=True)
    assert drawn.shape == (6, 1)
    assert not np.array_equal(drawn, agent.act(batch, deterministic=False, batch=True))


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_or_a_generator_draws_the_actions(name: str) -> None:
    agent, observation = reference(name)[0].agent, np.zeros((64, 3), np.float32)
    draw = partial(agent.act, observation, deterministic=False, batch=True)
    np.testing.assert_array_equal(draw(seed=1), draw(seed=1))
    assert not np.array_equal(draw(seed=1), draw(seed=2))
    generator, same = np.random.default_rng(1), np.random.default_rng(1)
    drawn = [draw(seed=generator) for _ in range(2)]
    assert not np.array_equal(*drawn)
    np.testing.assert_array_equal(drawn, [draw(seed=same) for _ in range(2)])
    with pytest.raises(hybridppo.ConfigurationError, match="seed must be a whole number of at least 0, got 'one'"):
        draw(seed="one")


# What goes wrong


@pytest.mark.parametrize("name", EVERY)
def test_what_diverges_ends_with_one_error_and_is_not_saved(name: str, tmp_path: Path) -> None:
    case = AGENTS[name]
    with pytest.raises(TrainingError, match=r"the first quantity that is not finite.*Usual causes"):
        train(
            name,
            SingleDevice("cpu"),
            config=replace(case.config, **case.bad),
            run_dir=tmp_path / "run",
            checkpoint_seconds=0.0,
            total_steps=4_000,
        )
    checkpoint = load_latest(tmp_path / "run" / "checkpoints")[1]
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values() if tensor.is_floating_point())


@pytest.mark.parametrize("name", LONG)
def test_every_iteration_accounts_for_its_seconds(name: str) -> None:
    history: list[Any] = []
    result = hybridppo.train(
        ENV, total_steps=120, seed=0, placement="cpu", config=AGENTS[name].config, progress=False,
        on_iteration=history.append,
    )  # fmt: skip
    assert result.metrics["env_steps"] == 120
    parts = ("sampling", "learning", "copying", "other")
    total = sum(metrics[f"seconds_{part}"] for metrics in history for part in parts)
    assert total == pytest.approx(history[-1]["seconds"])
    assert all(metrics[f"seconds_{part}"] >= 0 for metrics in history for part in parts)


def test_actors_of_every_agent_have_a_form_in_numpy() -> None:
    for name in AGENTS:
        assert twin_of(reference(name)[0].agent.actor) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_off_policy_agents_swing_a_pendulum_up(name: str) -> None:
    """The best agent is in one of three evaluations near the end, as the return dips for a moment now and then."""
    kind = {"ddpg": hybridppo.DDPGConfig, "td3": hybridppo.TD3Config}[name]
    found: dict[int, float] = {}
    hybridppo.train(
        ENV, total_steps=15_000, seed=0, placement="cpu", config=kind(hidden_sizes=(64, 64), batch_size=128),
        evaluate_every=2_000, episodes_per_evaluation=20, progress=False,
        on_iteration=lambda metrics: found.update({metrics["env_steps"]: metrics.get("evaluation_return_mean", -1e9)}),
    )  # fmt: skip
    assert max([*found.values()][-6:]) > -200.0
