"""Samplers over Ray: the bits of one process, and if one is lost, one clear error or a new sampler."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
import torch
from processes import start_python, wait_until
from same_bits import counted, values_of
from short_runs import trainer
from stop_after import interrupt_at
from toy_agents import Matching, ScriptedAgents, TakingTurns
from toy_environments import Catch, HighestAllowed

import hybridppo
from hybridppo import ConfigurationError, DistributedError, EnvError, Mirrored, SingleLearnerCoarse, SingleLearnerFine

ray = pytest.importorskip("ray")

from clusters import shared_cluster  # noqa: E402
from failing import failing, killed, raising, silent, stopped  # noqa: E402
from ppo_settings import ppo_config  # noqa: E402

from hybridppo.runners import processes  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

CONFIG = ppo_config(num_envs=5, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3)
STEPS = 5 * 32 * 4
OVERLAP = partial(Mirrored, "cpu", "cpu", max_lag=1)
"""A new placement for each training, because placements count."""
train = trainer(CONFIG, STEPS, vectorization="sync")
SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def rays_handler() -> Any:
    return shared_cluster()


def assert_is_gone(mark: Path) -> None:
    """The process whose number is in a file."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(mark.read_text())).wait(timeout=20)


def torch_free() -> "gym.Env[Any, Any]":
    assert "torch" not in sys.modules
    return gym.make("CartPole-v1")


def torch_free_elsewhere(here: int) -> "gym.Env[Any, Any]":
    return gym.make("CartPole-v1") if os.getpid() == here else torch_free()


SCRIPTS = [[(3, "terminated"), (2, "truncated")], [(5, "truncated"), (0, ""), (1, "terminated")]]


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"placement": OVERLAP}),
        ("Pendulum-v1", {"config": replace(CONFIG, normalize_observations=True, normalize_rewards=True),
                         "total_steps": 5 * 32 * 8}),
        ("CartPole-v1", {"config": replace(CONFIG, recurrent="gru", sequence_length=8)}),
        ("Pendulum-v1", {"config": replace(CONFIG, use_sde=True, sde_sample_freq=5), "placement": OVERLAP,
                         "total_steps": 5 * 32 * 8}),
        ("CartPole-v1", {"frame_stack": 3, "placement": OVERLAP}),
        (partial(ScriptedAgents, SCRIPTS), {"clip_rewards": True}),
        ("Pendulum-v1", {"config": hybridppo.TD3Config(num_envs=5, hidden_sizes=(8,), learning_starts=64,
                                                       gradient_steps=1), "total_steps": 2000}),
        (partial(torch_free_elsewhere, os.getpid()), {}),
        (HighestAllowed, {"action_masks": True}),
        (Catch, {"total_steps": 5 * 32 * 2}),
    ],
    ids=["in turns", "overlapping", "normalised", "recurrent", "noise of the state", "stacks of frames",
         "several agents", "off policy", "without torch", "masks", "images"],
)  # fmt: skip
def test_any_number_of_samplers_gives_the_bits_of_one_process(env: Any, options: dict[str, Any]) -> None:
    alone = train(env, **options)
    several = train(env, distributed=SingleLearnerCoarse(2), **options)
    assert torch.equal(values_of(several), values_of(alone))
    assert counted(several.metrics) == counted(alone.metrics)


@pytest.mark.parametrize(
    "placement",
    [pytest.param("cpu", id="in turns", marks=pytest.mark.slow), pytest.param(OVERLAP, id="overlapping")],
)
def test_what_was_stopped_goes_on_locally_and_the_other_way_round_to_the_same_bits(
    placement: Any, tmp_path: Path
) -> None:
    whole = train(placement=placement)

    run_dir, more = tmp_path / "run", {"progress": False, "on_interrupt": "return"}
    stopped = train(placement=placement, distributed="coarse:3", run_dir=run_dir, on_iteration=interrupt_at(1))
    assert stopped.interrupted
    assert json.loads((run_dir / "config.json").read_text())["distributed"] == "coarse:3"
    again = hybridppo.resume(run_dir, distributed="local", on_iteration=interrupt_at(2), **more)
    assert again.interrupted
    last = hybridppo.resume(run_dir, distributed="coarse:2", **more)
    assert torch.equal(values_of(last), values_of(whole))
    assert counted(last.metrics) == counted(whole.metrics)


def test_a_signal_ends_a_training_also_where_ray_would_end_the_process(rays_handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, rays_handler)
    try:
        result = train(distributed="coarse:2", on_iteration=lambda metrics: signal.raise_signal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is rays_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.interrupted
    assert result.metrics["iteration"] == 1


@pytest.mark.parametrize(
    ("what", "options", "kind", "message"),
    [
        (killed, {}, EnvError, r"sampler \d \(environments \d to \d\), process \d+ of \S+ is lost: ActorDiedError"),
        pytest.param(
            silent,
            {"worker_timeout": 3.0},
            EnvError,
            r"sampler \d .* has made no step for 3 s.*--worker-timeout",
            marks=pytest.mark.slow,
        ),
        (stopped, {"worker_timeout": 3.0}, EnvError, r"sampler \d .* has made no step for 3 s.*network is down"),
        (raising, {}, EnvError, r"sampler \d .* failed: environment \d \(seed \d+\) failed .*no more of this"),
    ],
    ids=["killed", "silent", "stopped", "raising"],
)
def test_a_sampler_that_is_lost_ends_the_training_in_one_error_and_what_was_saved_goes_on(
    what: Callable[[], None], options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    env = failing(what, tmp_path / "mark")
    with pytest.raises(kind) as lost:
        train(env, distributed=SingleLearnerCoarse(2), run_dir=tmp_path / "run", **options)
    assert re.search(message, str(lost.value), re.DOTALL), str(lost.value)
    assert_is_gone(tmp_path / "mark")
    result = hybridppo.resume(tmp_path / "run", env=env, distributed="local", progress=False)
    assert result.metrics["env_steps"] == STEPS


@pytest.mark.parametrize(
    ("what", "timeout", "placement"),
    [
        pytest.param(killed, 60.0, "cpu", id="killed, in turns"),
        pytest.param(killed, 60.0, OVERLAP, id="killed, overlapping", marks=pytest.mark.slow),
        # Longer than a sampler that is well takes to begin on a busy machine.
        pytest.param(silent, 8.0, "cpu", id="silent, in turns", marks=pytest.mark.slow),
        pytest.param(silent, 8.0, OVERLAP, id="silent, overlapping"),
        pytest.param(stopped, 8.0, "cpu", id="stopped, in turns", marks=pytest.mark.slow),
        pytest.param(stopped, 8.0, OVERLAP, id="stopped, overlapping", marks=pytest.mark.slow),
    ],
)
def test_another_takes_the_place_of_a_sampler_that_is_lost_where_that_is_asked_for(
    what: Callable[[], None], timeout: float, placement: Any, tmp_path: Path
) -> None:
    seen: list[dict[str, float]] = []
    result = train(
        failing(what, tmp_path / "mark"), distributed="coarse:2", on_env_error="restart", worker_timeout=timeout,
        placement=placement, on_iteration=seen.append,
    )  # fmt: skip
    assert result.metrics["env_restarts"] in (2, 3)  # the environments of one sampler
    # Nothing of what was lost is learned: its rows are no steps.
    assert result.metrics["env_steps"] >= STEPS
    gained = [b["env_steps"] - a["env_steps"] for a, b in pairwise(seen)]
    assert min(gained) < 5 * 32 == max(gained)
    assert_is_gone(tmp_path / "mark")


def test_a_cluster_is_shared_with_other_runs_and_joined_by_its_address(tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    flags = ["--num-envs", 4, "--num-steps", 32, "--hidden-sizes", 8, 8, "--total-steps", 1000, "--no-progress",
             "--vectorization", "sync", "--seed", 3, "--placement", "cpu"]  # fmt: skip
    commands = [
        start_python("-m", "hybridppo", "train", "CartPole-v1", "--distributed", "coarse:2", "--address", address,
                     "--run-dir", tmp_path / name, *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]  # fmt: skip
    for command in commands:
        _, err = command.communicate(timeout=SECONDS)
        assert command.returncode == 0, err
    config = hybridppo.PPOConfig(num_envs=4, num_steps=32, hidden_sizes=(8, 8))
    same = train(config=config, seed=3, total_steps=1000)
    for name in ("one", "two"):
        assert torch.equal(hybridppo.load(tmp_path / name).parameters.values, same.agent.parameters.values)


def test_ctrl_c_saves_ends_and_leaves_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    flags = ["--num-envs", 4, "--num-steps", 32, "--hidden-sizes", 8, 8, "--seed", 3, "--placement", "cpu",
             "--distributed", "coarse:2"]  # fmt: skip
    run_dir = tmp_path / "run"
    driver = start_python(
        "-m", "hybridppo", "train", "CartPole-v1", "--total-steps", 10**9, "--run-dir", run_dir, "--no-progress",
        *flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    metrics = run_dir / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, driver)
    others = psutil.Process(driver.pid).children(recursive=True)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all that are of its group
    _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 130, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(others, timeout=20)
    assert alive == []
    steps = json.loads(metrics.read_text().splitlines()[-1])["env_steps"] + 256
    again = start_python(
        "-m", "hybridppo", "resume", run_dir, "--total-steps", steps, "--distributed", "local", "--no-progress",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, err = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, err
    last = json.loads(metrics.read_text().splitlines()[-1])
    same = train(
        config=hybridppo.PPOConfig(num_envs=4, num_steps=32, hidden_sizes=(8, 8)),
        seed=3,
        total_steps=steps,
    )
    assert counted(last) == json.loads(json.dumps(counted(same.metrics)))


def test_an_address_where_nobody_answers_is_an_error_that_says_how_to_start_one(tmp_path: Path) -> None:
    command = start_python(
        "-m", "hybridppo", "train", "CartPole-v1", "--total-steps", 100, "--distributed", "coarse:2", "--address",
        "127.0.0.1:1", "--run-dir", tmp_path / "run", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, err = command.communicate(timeout=SECONDS)
    assert command.returncode == 1
    assert "Ray does not answer at 127.0.0.1:1" in err
    assert "ray start --head" in err
    assert not (tmp_path / "run").exists()


def test_a_cluster_without_a_free_cpu_is_an_error_that_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_START", 3.0)
    with pytest.raises(EnvError, match=r"sampler \d .* has not begun within 3 s.*a CPU; the cluster has 6, of which"):
        train(distributed="coarse:8", config=replace(CONFIG, num_envs=8), worker_timeout=3.0)


def test_networks_that_no_sampler_knows_are_refused_with_what_can_have_them() -> None:
    with pytest.raises(ConfigurationError, match=r"samplers act in NumPy.*distributed='environments:2'"):
        train(distributed="coarse:2", config=replace(CONFIG, layer_norm=True))


def test_a_store_of_objects_that_is_full_is_an_error_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise ray.exceptions.ObjectStoreFullError("full")

    def fill_it(metrics: dict[str, float]) -> None:
        monkeypatch.setattr(ray.actor.ActorMethod, "_remote", full)

    with pytest.raises(DistributedError, match=r"store of objects is full.*lower num_envs .* \(train_frequency of"):
        train(distributed="coarse:2", on_iteration=fill_it)


def test_what_the_store_carries_gives_the_bits_of_what_travels_in_the_call() -> None:
    wide = replace(CONFIG, hidden_sizes=(256, 256), num_envs=8, num_steps=512)  # each part of a rollout above 96 KiB
    alone, several = (train(total_steps=2 * 4096, config=wide, **how) for how in ({}, {"distributed": "coarse:2"}))
    assert torch.equal(values_of(alone), values_of(several))


def test_samplers_do_not_wait_for_each_other_if_they_may_lag() -> None:
    history: list[dict[str, float]] = []
    config = replace(CONFIG, num_envs=4)
    placement = Mirrored("cpu", "cpu", max_lag=3)
    result = train(distributed="coarse:2", config=config, placement=placement, on_iteration=history.append)
    assert result.metrics["env_steps"] >= STEPS
    assert all(metrics["policy_lag"] <= 3 for metrics in history)
    assert 0.0 < history[-1]["samplers_busy"] <= 1.0


@pytest.mark.slow
def test_a_sampler_that_is_lost_while_others_go_on_is_replaced(tmp_path: Path) -> None:
    class UntilRestarted(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: dict[str, float]) -> None:
            if metrics["env_restarts"]:
                run.stop("the lost sampler was replaced")

    result = train(
        failing(killed, tmp_path / "mark"), distributed="coarse:2", config=replace(CONFIG, num_envs=4),
        placement=Mirrored("cpu", "cpu", max_lag=2), on_env_error="restart", callbacks=[UntilRestarted()],
        total_steps=10**6,  # the other sampler goes on until the loss is noticed
    )  # fmt: skip
    assert result.metrics["env_restarts"] == 2
    assert result.metrics["env_steps"] < 10**6


def in_turns() -> Any:
    return TakingTurns(Matching(masks=True), within=True)


@pytest.mark.parametrize("distributed", [SingleLearnerCoarse(samplers=2), SingleLearnerFine(env_workers=2)], ids=str)
def test_agents_that_take_turns_give_the_bits_of_one_process(distributed: Any) -> None:
    options: dict[str, Any] = {"config": CONFIG, "placement": "cpu", "seed": 0, "progress": False, "action_masks": True}
    expected = hybridppo.train(in_turns, total_steps=STEPS, **options)
    found = hybridppo.train(in_turns, total_steps=STEPS, distributed=distributed, **options)
    assert torch.equal(found.agent.parameters.values, expected.agent.parameters.values)


def test_a_memory_of_agents_that_take_turns_needs_samplers_here() -> None:
    options: dict[str, Any] = {"placement": "cpu", "seed": 0, "progress": False, "action_masks": True}
    run = partial(hybridppo.train, in_turns, total_steps=STEPS, config=replace(CONFIG, recurrent="gru"), **options)
    found = run(distributed=SingleLearnerFine(env_workers=2))
    assert torch.equal(found.agent.parameters.values, run().agent.parameters.values)
    with pytest.raises(ConfigurationError, match="recurrent does not work with agents that take turns if samplers are"):
        run(distributed=SingleLearnerCoarse(samplers=2))
