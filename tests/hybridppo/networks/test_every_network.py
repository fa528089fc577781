"""What holds for every kind of network: where and when it is sampled and learned changes nothing."""

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from everywhere import WAYS
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from network_kinds import KINDS, acts_by_numbers, env_of, marks_of
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from same_bits import assert_same, assert_same_agents, state_of
from selection import only_by_default
from stop_after import StopAfter
from toy_environments import MODES, HighestAllowed, short_pendulum

import hybridppo
from hybridppo import Mirrored, PPOConfig, SingleDevice
from hybridppo.auto import auto

SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16), learning_rate=1e-2)
STEPS = 64 * 3

EVERY_KIND = [pytest.param(kind, marks=marks_of(kind)) for kind in KINDS]
every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


def some_kinds(*chosen: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", only_by_default(chosen, EVERY_KIND))


ENVIRONMENTS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}


def train(kind: str, env: Any = None, config: PPOConfig = SMALL, **options: Any) -> hybridppo.TrainResult:
    env = env_of(kind) if env is None else env
    arguments: dict[str, Any] = {"total_steps": STEPS, "placement": SingleDevice("cpu"), "seed": 0}
    if isinstance(env, str):
        arguments["vectorization"] = "sync"
    config = replace(config, **KINDS[kind])
    return hybridppo.train(env, config=config, progress=False, **{**arguments, **options})


@cache
def expected_of(kind: str, overlaps: bool = False) -> hybridppo.TrainResult:
    """A training's final agent, which is only read: the result is shared."""
    return train(kind, placement=Mirrored("cpu", "cpu", max_lag=1) if overlaps else SingleDevice("cpu"))


MIGRATING = ("lstm, normalised", "a pool, normalised")
"""Kinds with everything that may move to a learner and back: parameters, buffers, and optimizer state."""


@pytest.mark.parametrize("env", only_by_default(tuple(ENVIRONMENTS)[:1], list(ENVIRONMENTS)))
@every_kind
def test_who_samples_and_where_changes_nothing(kind: str, env: str) -> None:
    source = env_of(kind) if env == "discrete" else ENVIRONMENTS[env]
    expected = expected_of(kind) if env == "discrete" else train(kind, source)
    for way, options in WAYS.items():
        if way != "migrating" or kind in MIGRATING:
            assert_same_agents(train(kind, source, **options).agent, expected.agent, way)
    other = train(kind, source, seed=1)
    assert not torch.equal(other.agent.parameters.values, expected.agent.parameters.values)


@every_kind
def test_it_is_no_other_network_in_disguise(kind: str) -> None:
    plain = hybridppo.train(
        env_of(kind), total_steps=STEPS, seed=0, config=SMALL, placement="cpu", vectorization="sync", progress=False
    )
    ours, theirs = state_of(expected_of(kind).agent), state_of(plain.agent)
    assert ours.keys() != theirs.keys() or not all(torch.equal(ours[name], theirs[name]) for name in ours)


@some_kinds("gru", "lstm, normalised", "state-dependent exploration")
def test_overlap_gives_what_its_seed_says(kind: str) -> None:
    workers = train(kind, placement=Mirrored("cpu", "cpu", max_lag=1), num_workers=2)
    assert_same_agents(workers.agent, expected_of(kind, overlaps=True).agent)


@pytest.mark.parametrize(
    "overlaps", only_by_default(("True",), (False, True), pytest.mark.slow), ids=["by turns", "overlapping"]
)
@some_kinds("gru", "lstm, normalised", "a pool, normalised", "state-dependent exploration")
def test_stopped_and_resumed_it_goes_on_exactly(kind: str, overlaps: bool, tmp_path: Path) -> None:
    def placement() -> Any:
        return Mirrored("cpu", "cpu", max_lag=1) if overlaps else SingleDevice("cpu")

    expected, run = expected_of(kind, overlaps).agent, tmp_path / "run"
    whole = train(kind, placement=placement(), run_dir=run, checkpoint_seconds=0, keep_checkpoints=9)
    assert_same_agents(whole.agent, expected)
    assert 0 < remove_last_checkpoint(run, keep=2) < STEPS
    source = env_of(kind)
    again = {} if isinstance(source, str) else {"env": source}
    assert_same_agents(hybridppo.resume(run, progress=False, **again).agent, expected)


@every_kind
def test_a_loaded_agent_is_the_one_that_was_saved(kind: str, tmp_path: Path) -> None:
    result = train(kind, short_pendulum, run_dir=tmp_path / "run", evaluation_episodes=2)
    loaded = hybridppo.load(tmp_path / "run")
    assert result.evaluation is not None
    again = [hybridppo.evaluate_agent(agent, short_pendulum, episodes=2, seed=5, progress=False)
             for agent in (result.agent, loaded)]  # fmt: skip
    assert again[0] == again[1]
    assert min(again[0].returns) < -10.0  # in the environment's own units
    before = state_of(loaded)
    state = expected_state = None
    env = gym.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        action, state = loaded.act(observation, state=state)
        expected, expected_state = result.agent.act(observation, state=expected_state)
        assert env.action_space.contains(action)
        assert (expected == action).all()
        observation, *_ = env.step(action)
    assert_same(state_of(loaded), before)  # acting changes nothing


@some_kinds("gru", "lstm, normalised", "state-dependent exploration")
@pytest.mark.parametrize(
    "overlaps", only_by_default(("True",), (False, True), pytest.mark.slow), ids=["by turns", "overlapping"]
)
def test_evaluating_meanwhile_changes_nothing(kind: str, overlaps: bool) -> None:
    def placement() -> Any:
        return Mirrored("cpu", "cpu", max_lag=1) if overlaps else SingleDevice("cpu")

    history: list[Any] = []
    found = train(
        kind, placement=placement(), evaluate_every=64, episodes_per_evaluation=2, on_iteration=history.append
    )
    assert_same_agents(found.agent, expected_of(kind, overlaps).agent)
    assert any("evaluation_return_mean" in metrics for metrics in history)


@every_kind
def test_another_training_starts_from_it(kind: str, tmp_path: Path) -> None:
    file = expected_of(kind).agent.save(tmp_path / "agent.safetensors")
    saved = hybridppo.load(file)
    started = train(kind, start_from=file, total_steps=64, config=replace(SMALL, learning_rate=1e-12))
    for name, tensor in saved.actor.state_dict().items():
        if "moments" not in name:
            torch.testing.assert_close(started.agent.actor.state_dict()[name], tensor, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        pytest.param(
            kind, mode, id=f"{kind}-{mode.name}",
            marks=marks_of(kind) or ([] if mode is AutoresetMode.NEXT_STEP or "lstm" in kind else [pytest.mark.slow]),
        )
        for kind in KINDS
        for mode in MODES
    ],
)  # fmt: skip
def test_every_mode_of_reset(kind: str, mode: AutoresetMode) -> None:
    source = env_of(kind)
    one = partial(gym.make, source) if isinstance(source, str) else source

    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([one] * 4, autoreset_mode=mode)

    result = train(kind, vector)
    assert result.metrics["episodes"] > 5
    is_the_same = torch.equal(result.agent.parameters.values, expected_of(kind).agent.parameters.values)
    assert is_the_same == (mode is not AutoresetMode.NEXT_STEP)  # where rows are spent on resets


@some_kinds("shared trunk", "gru", "lstm, normalised", "state-dependent exploration")
def test_whole_episodes_and_masks(kind: str) -> None:
    config = replace(SMALL, num_envs=1, episodes_per_rollout=3)
    masked = not acts_by_numbers(kind)
    result = train(kind, HighestAllowed if masked else None, config, action_masks=masked)
    assert result.metrics["episodes"] >= 3


@some_kinds("shared trunk", "gru", "a pool, normalised")
def test_auto_measures_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(auto, "MAX_SECONDS_OF_A_TRIAL", 0.03)
    run = tmp_path / "run"
    result = train(kind, placement="auto", total_steps=64 * 2000, callbacks=[StopAfter(2)], run_dir=run)
    assert result.metrics["iteration"] == 2
    assert json.loads((run / "placements.json").read_text())["trials"]
