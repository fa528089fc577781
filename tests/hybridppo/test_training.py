"""Runs from end to end: what they return, what they leave on disk, and how they resume after a stop."""

import json
import logging
import random
import re
import runpy
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from torch import nn
from toy_environments import IdentityBox, IdentityDiscrete, ScriptedEnv, scripted_vector

import hybridppo
from hybridppo import CheckpointError, ConfigurationError, RunDirectoryError
from hybridppo.commands.main import parse_command
from hybridppo.commands.train import Train
from hybridppo.interfaces import Metrics
from hybridppo.run_directory.checkpoints import folders, load_latest
from hybridppo.runners.episodes import Evaluation
from hybridppo.tools.plot import result_of

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size
ITERATIONS = 4

METRICS = {
    "iteration", "env_steps", "seconds", "steps_per_second",
    "episodes", "episode_return_mean", "episode_length_mean",
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance",
    "learning_rate", "policy_lag",
    "seconds_sampling", "seconds_learning", "seconds_copying", "seconds_other", "publishes", "bytes_copied",
}  # fmt: skip

TIMES = {
    "seconds", "steps_per_second", "seconds_sampling", "seconds_learning", "seconds_copying", "seconds_other",
}  # fmt: skip


def train(env: Any = "CartPole-v1", *, iterations: int = ITERATIONS, **options: Any) -> hybridppo.TrainResult:
    """A short run on the CPU; `sync`, so that every row is a step and the number of iterations is known."""
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "vectorization": "sync", "progress": False} | options
    options.setdefault("on_interrupt", "return")
    return hybridppo.train(env, total_steps=iterations * BATCH, **options)


def resume(run_dir: Path, **options: Any) -> hybridppo.TrainResult:
    return hybridppo.resume(run_dir, progress=False, on_interrupt="return", **options)


def parameters(agent: hybridppo.PPO) -> torch.Tensor:
    everything = [*agent.actor.parameters(), *agent.critic.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in everything])


def without_times(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if name not in TIMES}


def metrics_lines(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, which must be JSON by the standard: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def column(run_dir: Path, name: str) -> list[Any]:
    return [line[name] for line in metrics_lines(run_dir)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def at_iteration(iteration: int, do: Callable[[], object]) -> Callable[[Metrics], None]:
    """An `on_iteration` that does something at the end of one iteration."""

    def on_iteration(metrics: Metrics) -> None:
        if metrics["iteration"] == iteration:
            do()

    return on_iteration


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def fail() -> None:
    raise ZeroDivisionError


@dataclass(frozen=True)
class Finished:
    result: hybridppo.TrainResult
    history: list[Metrics]

    @property
    def run_dir(self) -> Path:
        assert self.result.run_dir is not None
        return self.result.run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run. Tests that change its folder take `run_dir`."""
    history: list[Metrics] = []
    path = tmp_path_factory.mktemp("training") / "run"
    result = train(run_dir=path, evaluation_episodes=3, checkpoint_seconds=0.0, on_iteration=history.append)
    return Finished(result, history)


@pytest.fixture
def run_dir(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run's folder."""
    return Path(shutil.copytree(finished.run_dir, tmp_path / "copy"))


# What a run returns


def test_a_run_returns_its_agent_metrics_folder_and_seed(finished: Finished, tmp_path: Path) -> None:
    result = finished.result
    assert isinstance(result.agent, hybridppo.PPO)
    assert result.metrics == finished.history[-1]
    assert result.metrics.keys() >= METRICS
    assert result.run_dir == finished.run_dir
    assert result.seed == 3
    assert result.evaluation is not None
    assert len(result.evaluation.returns) == 3
    assert not result.interrupted


def test_an_iteration_once_begun_is_ended() -> None:
    result = hybridppo.train(
        "CartPole-v1", total_steps=BATCH + 1, placement="cpu", config=CONFIG, vectorization="sync", progress=False
    )
    assert result.metrics["env_steps"] == 2 * BATCH


def test_the_same_seed_gives_the_same_run(finished: Finished) -> None:
    history: list[Metrics] = []
    result = train(on_iteration=history.append, evaluation_episodes=3)
    assert torch.equal(parameters(result.agent), parameters(finished.result.agent))
    np.testing.assert_equal([*map(without_times, history)], [*map(without_times, finished.history)])
    assert result.evaluation == finished.result.evaluation


def test_a_seed_that_was_not_given_is_told() -> None:
    one, other = train(seed=None, iterations=1), train(seed=None, iterations=1)
    assert one.seed != other.seed
    assert torch.equal(parameters(train(seed=one.seed, iterations=1).agent), parameters(one.agent))


def test_a_function_may_make_a_vector_of_environments() -> None:
    script = ((5, "truncated"),)
    result = train(lambda: scripted_vector([script] * CONFIG.num_envs, AutoresetMode.DISABLED), evaluation_episodes=2)
    assert result.metrics["episode_length_mean"] == 5
    assert result.evaluation is not None
    assert result.evaluation.lengths == (5, 5)


@pytest.mark.parametrize("kind", ["single", "vector", "shards"])
def test_a_wrapper_that_normalises_is_warned_of(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Any:
        if kind != "vector":
            return gym.wrappers.NormalizeObservation(gym.make("CartPole-v1"))
        plain = gym.make_vec("CartPole-v1", CONFIG.num_envs, "sync")
        normalised = gym.wrappers.vector.NormalizeObservation(plain)
        if normalised.observation_space == plain.observation_space:
            pytest.skip("this release of gymnasium leaves the bounds of observations as they were")
        return normalised

    options = {"distributed": hybridppo.MultiLearner(1, shards=2)} if kind == "shards" else {}
    train(make, iterations=1, vectorization="auto", **options)
    (record,) = caplog.records
    assert "has the wrapper NormalizeObservation, whose statistics are not saved" in record.getMessage()


@pytest.mark.parametrize("exception", [False, True])
def test_environments_are_closed(exception: bool) -> None:
    made: list[object] = []
    closed: list[object] = []

    class Counted(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__(((5, "truncated"),))
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    if exception:
        with pytest.raises(ZeroDivisionError):
            train(Counted, on_iteration=at_iteration(2, fail))
    else:
        train(Counted)
    assert len(made) >= CONFIG.num_envs
    assert set(map(id, made)) == set(map(id, closed))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total_steps", 0),
        ("total_steps", 1e5),
        ("total_steps", True),
        ("seed", -1),
        ("seed", 0.5),
        ("evaluation_episodes", -1),
        ("keep_checkpoints", 0),
    ],
)
def test_impossible_arguments_are_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    options = {"total_steps": 1, "run_dir": tmp_path / "run"} | {name: value}
    with pytest.raises(ConfigurationError, match=f"{name} must be a whole number of at least .*, got {value}"):
        hybridppo.train("CartPole-v1", **options)
    assert not (tmp_path / "run").exists()


def test_whole_floats_and_what_is_no_path_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"got 1000000.0: write 1_000_000$"):
        hybridppo.train("CartPole-v1", total_steps=1e6)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="run_dir must be a path, or None to write nothing, got 3"):
        train(run_dir=3)


@pytest.mark.parametrize(
    ("options", "warns"),
    [({"episodes_per_evaluation": 5}, True), ({"evaluate_async": True}, True), ({"evaluation_episodes": 1}, False)],
)
def test_options_of_evaluations_that_never_come_are_a_warning(
    options: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    train(iterations=1, **options)
    assert ("have no effect without evaluate_every" in caplog.text) == warns


def test_the_address_of_a_cluster_is_forgotten_with_its_policy(tmp_path: Path) -> None:
    train(iterations=1, run_dir=tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"distributed": "coarse:1", "address": "nowhere:1"}))
    resume(tmp_path / "run", distributed="local", total_steps=2 * BATCH)
    assert json.loads(file.read_text())["address"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {
                "config": hybridppo.TD3Config(learning_starts=10_000, num_envs=1, hidden_sizes=(8,)),
                "env": "Pendulum-v1",
            },
            f"learning_starts=10000 is above total_steps={BATCH}, so nothing is learned: lower it",
        ),
        ({"evaluate_every": 10_000}, f"evaluate_every=10000 is above total_steps={BATCH}, so the training is never"),
    ],
)
def test_what_comes_after_the_end_of_a_training_is_a_warning(
    options: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(iterations=1, **options)
    assert caplog.text.count(message) == 1


# What a run prints, and what it leaves alone


def test_without_a_folder_nothing_is_written_or_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(evaluation_episodes=2)
    assert result.run_dir is None
    assert list(tmp_path.iterdir()) == []
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.records == []


def test_a_run_stays_where_it_began_if_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moving(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            monkeypatch.chdir(tmp_path / "elsewhere")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    result = train(run_dir="run", callbacks=Moving(), checkpoint_seconds=0.0)
    assert result.run_dir == Path("run")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    run = tmp_path / "run"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == result.metrics["iteration"] > 1
    assert hybridppo.load(run).version == result.agent.version
    assert (run / "result.json").exists()
    assert not (run / "lock.json").exists()


def test_the_progress_bar_goes_to_stderr(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.reporting.progress._has_screen", lambda: True)
    train(progress=True, iterations=1)
    out, err = capfd.readouterr()
    assert out == ""
    assert "step" in err


def global_generators() -> list[Any]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # noqa: NPY002


@pytest.fixture
def seeded_globally() -> Iterator[None]:
    """Put global generators into a state that nobody would set by chance."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.manual_seed(12345)
    np.random.seed(12345)  # noqa: NPY002
    random.seed(12345)
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    random.setstate(before[2])


@pytest.mark.usefixtures("seeded_globally")
def test_global_generators_are_left_alone_and_have_no_influence(finished: Finished) -> None:
    before = global_generators()
    result = train(evaluation_episodes=1)
    assert global_generators() == before
    assert torch.equal(parameters(result.agent), parameters(finished.result.agent))


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("exception", [False, True])
def test_torchs_thread_count_is_restored(exception: bool) -> None:
    counts: list[int] = []

    def on_iteration(metrics: Metrics) -> None:
        counts.append(torch.get_num_threads())
        if exception:
            fail()

    config = ppo_config(num_envs=2, num_steps=8, torch_threads=2)
    if exception:
        with pytest.raises(ZeroDivisionError):
            train(config=config, iterations=1, on_iteration=on_iteration)
    else:
        train(config=config, iterations=1, on_iteration=on_iteration)
    assert set(counts) == {2}
    assert torch.get_num_threads() == 3


# What a run leaves on disk


def test_a_line_of_metrics_per_iteration(finished: Finished) -> None:
    lines = metrics_lines(finished.run_dir)
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    assert all(line.keys() >= METRICS for line in lines)
    assert lines == [{k: None if v != v else v for k, v in metrics.items()} for metrics in finished.history]


def test_what_is_no_number_becomes_null(tmp_path: Path) -> None:
    train(partial(ScriptedEnv, ((1000, "truncated"),)), run_dir=tmp_path / "run", iterations=1)
    assert column(tmp_path / "run", "episode_return_mean") == [None]
    assert column(tmp_path / "run", "episodes") == [0]


def test_the_result_is_written(finished: Finished) -> None:
    result = json.loads((finished.run_dir / "result.json").read_text())
    evaluation = finished.result.evaluation
    assert evaluation is not None
    assert result["env_id"] == "CartPole-v1"
    assert result["seed"] == 3
    assert result["env_steps"] == ITERATIONS * BATCH
    assert result["seconds"] == finished.result.metrics["seconds"]
    assert result["placement"] == hybridppo.SingleDevice("cpu").settings()
    assert result["episode_return_mean"] == finished.result.metrics["episode_return_mean"]
    assert result["evaluation_return_mean"] == evaluation.return_mean


def test_without_an_evaluation_the_result_has_none(tmp_path: Path) -> None:
    result = train(run_dir=tmp_path / "run", iterations=1)
    assert result.evaluation is None
    assert "evaluation_return_mean" not in json.loads((tmp_path / "run" / "result.json").read_text())


def test_the_configuration_is_written(finished: Finished) -> None:
    config = json.loads((finished.run_dir / "config.json").read_text())
    assert config["env_id"] == "CartPole-v1"
    assert config["seed"] == 3
    assert config["total_steps"] == ITERATIONS * BATCH
    assert config["placement"] == hybridppo.SingleDevice("cpu").settings()
    assert config["vectorization"] == "sync"
    assert ppo_config(**config["config"]) == CONFIG
    assert config["versions"].keys() >= {"hybridppo", "torch", "gymnasium", "numpy", "python"}


def test_a_function_whose_arguments_are_bound_has_its_own_name(tmp_path: Path) -> None:
    env = partial(partial(ScriptedEnv, ((5, "terminated"),)))
    train(env, run_dir=tmp_path / "run", iterations=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env_id"] == "ScriptedEnv"
    assert hybridppo.check_env(env, steps=10).name == "ScriptedEnv"


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run", checkpoint_seconds=0.0, keep_checkpoints=2)
    names = [int(folder.name) for folder in folders(tmp_path / "run" / "checkpoints")]
    assert names == [3 * BATCH, 4 * BATCH]


@pytest.mark.parametrize(("keep", "kept"), [(None, (0, 2, 4, 6)), (1, (6,))])
def test_checkpoints_are_written_every_so_many_steps(tmp_path: Path, keep: int | None, kept: tuple[int, ...]) -> None:
    """At the end of the first iteration that reaches each multiple, and not by time; also after a resume."""
    run, options = tmp_path / "run", {"checkpoint_every": 2 * BATCH - 1, "checkpoint_seconds": 0.0}
    train(run_dir=run, keep_checkpoints=keep, **options)
    hybridppo.resume(run, total_steps=6 * BATCH, progress=False)
    names = [int(folder.name) for folder in folders(run / "checkpoints")]
    assert names == [BATCH * number for number in kept]
    assert json.loads((run / "config.json").read_text())["checkpoint_every"] == 2 * BATCH - 1


def test_the_newest_checkpoint_has_a_path_of_its_own(finished: Finished, tmp_path: Path) -> None:
    run_dir = finished.run_dir
    newest = folders(run_dir / "checkpoints")[-1]
    assert (run_dir / (run_dir / "latest").read_text().strip()) == newest
    assert torch.equal(parameters(hybridppo.load(run_dir / "latest")), parameters(hybridppo.load(newest)))
    finished.result.agent.save(tmp_path / "latest")  # an agent's file may have this name
    assert torch.equal(parameters(hybridppo.load(tmp_path / "latest")), parameters(finished.result.agent))
    (run_dir / "latest").write_text("../../../elsewhere")
    with pytest.raises(RunDirectoryError, match=r"elsewhere is no run directory"):
        hybridppo.load(run_dir / "latest")
    (run_dir / "latest").write_text(f"checkpoints/{newest.name}\n")


def test_there_is_a_checkpoint_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run", checkpoint_seconds=1e6)
    names = [int(folder.name) for folder in folders(tmp_path / "run" / "checkpoints")]
    assert names == [0, 4 * BATCH]


# Printing


def test_results_are_printed_in_a_few_lines(finished: Finished) -> None:
    result = finished.result
    metrics, evaluation = result.metrics, result.evaluation
    assert evaluation is not None
    trained, evaluated, where = str(result).splitlines()
    steps = f"{metrics['env_steps']:,} steps in {metrics['seconds']:.1f} s"
    returns = f"return {metrics['episode_return_mean']:.3g} (latest episodes, sampled actions)"
    assert trained.startswith(f"training: {returns}, {steps}, ")
    assert re.fullmatch(r"evaluation: return [\d.]+ \+- [\d.]+ over 3 episodes, deterministic actions", evaluated)
    assert where == f"run directory: {result.run_dir}"
    assert str(Evaluation((1.0, 3.0), (10, 20))) == "return 2 +- 1 over 2 episodes, length 15"
    of_two = Evaluation((1.0, -1.0), (10, 9), ("player_0", "player_1"))
    assert str(of_two).splitlines() == [
        "player_0: return 1 +- 0 over 1 episode, length 10",
        "player_1: return -1 +- 0 over 1 episode, length 9",
    ]
    assert str(Evaluation((), ())) == "no whole episode +- nan over 0 episodes"
    assert str(result.agent) == (
        "PPO: observations Box(4,), actions Discrete(2)\n"
        f"parameters: actor {count_of(result.agent.actor)}, critic {count_of(result.agent.critic)}; on cpu\n"
        f"updates: {result.agent.version}"
    )


def count_of(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("predict", r"use agent.act\(observation\)"),
        ("learn", r"use hybridppo.train\(ENV, total_steps=...\)"),
        ("actors", "has no attribute 'actors'$"),
    ],
)
def test_methods_of_other_libraries_are_named_as_here(finished: Finished, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=remedy):
        getattr(finished.result.agent, name)


def test_an_agent_is_evaluated_by_either_name_and_comes_first(finished: Finished) -> None:
    agent, options = finished.result.agent, {"episodes": 2, "progress": False}
    assert hybridppo.evaluate(agent, "CartPole-v1", **options) == hybridppo.evaluate_agent(
        agent, "CartPole-v1", **options
    )
    evaluations: tuple[Any, ...] = (hybridppo.evaluate, hybridppo.evaluate_agent)
    for evaluate in evaluations:
        with pytest.raises(ConfigurationError, match="got 'CartPole-v1': the agent comes first"):
            evaluate("CartPole-v1", agent)


# Loading


def test_a_loaded_agent_acts_as_the_trained_one(finished: Finished) -> None:
    agent = hybridppo.load(finished.run_dir)
    assert torch.equal(parameters(agent), parameters(finished.result.agent))
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    actions = [agent.act(observation) for observation in observations]
    assert actions == [finished.result.agent.act(observation) for observation in observations]
    assert set(actions) == {0, 1}
    assert {agent.act(observations[0], deterministic=False) for _ in range(50)} == {0, 1}


def test_a_loaded_agent_acts_in_its_environment(tmp_path: Path) -> None:
    action_space = Box(-0.5, 0.5, (2, 2), np.float64)
    train(partial(ScriptedEnv, ((5, "truncated"),), action_space), run_dir=tmp_path / "run", iterations=1)
    agent = hybridppo.load(tmp_path / "run")
    assert action_space.contains(agent.act(np.zeros(2, dtype=np.float32)))
    assert action_space.contains(agent.act([100, -100], deterministic=False))


def test_a_saved_run_can_be_evaluated(finished: Finished) -> None:
    one, again = (hybridppo.evaluate(finished.run_dir, episodes=4, seed=1, progress=False) for _ in range(2))
    assert one == again
    assert len(one.returns) == 4
    random_actions = hybridppo.evaluate(finished.run_dir, episodes=4, seed=1, deterministic=False, progress=False)
    assert random_actions != one
    with pytest.raises(ConfigurationError, match=r"agent must be the class that was trained, got <.*PPO object"):
        hybridppo.load(finished.run_dir, agent=finished.result.agent)


def test_a_checkpoint_may_be_named_by_its_folder(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_, last = sorted((finished.run_dir / "checkpoints").iterdir())
    assert hybridppo.load(first).version == ITERATIONS - 2  # the newest three are kept
    assert hybridppo.evaluate(last, episodes=1, progress=False).returns
    train(iterations=1, start_from=last)
    with pytest.raises(ConfigurationError, match="is one checkpoint: name its run for the best"):
        hybridppo.load(last, "best")
    with pytest.raises(RunDirectoryError, match=f"is a checkpoint.*: name its run, {finished.run_dir}; start_from="):
        hybridppo.resume(first)
    monkeypatch.chdir(last.parent)
    assert hybridppo.load(last.name).version == ITERATIONS


@pytest.mark.parametrize("use", [hybridppo.load, hybridppo.resume, hybridppo.evaluate])
def test_what_is_no_run_directory_is_refused(use: Any, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=f"{tmp_path} is no run directory"):
        use(tmp_path)
    agent = hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2))
    with pytest.raises(RunDirectoryError, match=r"must be a path, got .*PPO.*: .* save an agent with agent.save"):
        use(agent)


@pytest.mark.parametrize("use", [hybridppo.load, hybridppo.evaluate, hybridppo.play])
def test_another_file_of_a_run_is_not_taken_for_that_of_an_agent(use: Any, finished: Finished) -> None:
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is no file that agent\.save has written"):
        use(finished.run_dir / "metrics.jsonl")


def test_any_kind_of_path_will_do(tmp_path: Path) -> None:
    class OwnPath:
        def __fspath__(self) -> str:
            return str(tmp_path / "agent")

    hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2)).save(tmp_path / "agent")
    hybridppo.load(OwnPath())  # type: ignore[arg-type]


def test_a_tilde_is_the_home_folder(run_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = f"~/{run_dir.name}"
    hybridppo.load(run).save("~/agent")
    hybridppo.export(run, "~/policy.npz")
    for use in (hybridppo.load_policies, hybridppo.evaluate, hybridppo.resume):
        use(run)
    hybridppo.evaluate("~/agent", env="CartPole-v1", episodes=1)
    assert train(run_dir="~/new", iterations=1, start_from=run).run_dir == tmp_path / "new"
    assert {path.name for path in tmp_path.iterdir()} >= {"agent", "policy.npz", "new"}
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "use",
    [
        hybridppo.load, hybridppo.load_policies, hybridppo.resume, hybridppo.evaluate, hybridppo.write_report,
        partial(hybridppo.export, file="policy.npz"), partial(hybridppo.plot_runs, output="curves.svg"),
    ],
)  # fmt: skip
def test_the_run_directory_of_a_training_without_one_is_refused(use: Any) -> None:
    with pytest.raises(RunDirectoryError, match="must be a path, got None: let train have a run_dir"):
        use(None)


@pytest.mark.parametrize("given", ["runs/one", SimpleNamespace(agent=None)])
def test_what_is_no_agent_is_refused(given: Any) -> None:
    words = r"takes an agent, got .*: use evaluate\(RUN_DIR\), or result.agent of a training"
    with pytest.raises(ConfigurationError, match=words):
        hybridppo.evaluate_agent(given, "CartPole-v1")


USES_OF_PATHS: dict[str, tuple[str, Callable[[Path, Any], Any]]] = {
    "save": ("path", lambda run, value: hybridppo.load(run).save(value)),
    "export": ("file", hybridppo.export),
    "plot": ("output", hybridppo.plot_runs),
    "benchmark": ("output", lambda run, value: hybridppo.run_benchmark("classic", output=value)),
}


@pytest.mark.parametrize("use", USES_OF_PATHS)
@pytest.mark.parametrize("value", [None, 3, ""])
def test_what_is_no_path_to_write_to_is_refused_by_name(value: Any, use: str, finished: Finished) -> None:
    name, call = USES_OF_PATHS[use]
    with pytest.raises(ConfigurationError, match=f"{name} must be a path, got {value!r}"):
        call(finished.run_dir, value)


def test_an_agent_is_not_saved_in_place_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"^\. cannot be written: "):
        hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2)).save(".")


USES_OF_BOOLS: dict[str, tuple[str, Callable[[Path, Any], Any]]] = {
    "act": ("deterministic", lambda run, value: hybridppo.load(run).act(np.zeros(4), deterministic=value)),
    "act on a batch": ("batch", lambda run, value: hybridppo.load(run).act(np.zeros((2, 4)), batch=value)),
    "evaluate": ("deterministic", lambda run, value: hybridppo.evaluate(run, episodes=1, deterministic=value)),
    "evaluate quietly": ("progress", lambda run, value: hybridppo.evaluate(run, episodes=1, progress=value)),
    "play": ("deterministic", lambda run, value: hybridppo.play(run, window=True, deterministic=value)),
    "policies": (
        "deterministic",
        lambda run, value: hybridppo.evaluate_policies({}, "CartPole-v1", deterministic=value),
    ),
    "train": ("progress", lambda run, value: train(iterations=1, progress=value)),
    "compiled": ("compiled", lambda run, value: train(iterations=1, compiled=value)),
    "profile": ("profile", lambda run, value: train(iterations=1, profile=value)),
    "resume": ("progress", lambda run, value: hybridppo.resume(run, progress=value)),
    "mirror": ("verify", lambda run, value: hybridppo.Mirrored("cpu", "cpu", verify=value)),
    "mirror by force": ("force_copy", lambda run, value: hybridppo.Mirrored("cpu", "cpu", force_copy=value)),
    "migrate by force": ("force_copy", lambda run, value: hybridppo.Migrating("cpu", "cpu", force_copy=value)),
}


@pytest.mark.parametrize("use", USES_OF_BOOLS)
def test_what_is_neither_true_nor_false_is_refused_by_name(
    use: str, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    name, call = USES_OF_BOOLS[use]
    for value in (None, "False", 1):
        with pytest.raises(ConfigurationError, match=f"{name} must be True or False, got {value!r}$"):
            call(finished.run_dir, value)


def test_truths_may_be_numpys() -> None:
    agent = hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2))
    truth: Any = np.True_
    assert agent.act(np.zeros((2, 4)), deterministic=truth, batch=truth).shape == (2,)


def test_agents_are_evaluated_with_a_placement_object_and_under_names() -> None:
    agent = hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2))
    with pytest.raises(ConfigurationError, match=r"placement must be one that the agent is prepared for, .* got 'cpu'"):
        hybridppo.evaluate_agent(agent, "CartPole-v1", placement="cpu")  # type: ignore[arg-type]
    for play in (hybridppo.evaluate_policies, hybridppo.round_robin):
        uses: Any = play
        with pytest.raises(ConfigurationError, match=r"agents must have names, as in .*, got \["):
            uses([agent, agent], "CartPole-v1")


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("networks", (nn.Linear(4, 2), nn.Linear(4, 1))),
        ("networks", nn.Linear(4, 2)),
        ("loss", "mse"),
        ("advantages", 0),
    ],
)
def test_a_part_of_an_agent_that_is_no_function_is_refused(part: str, given: Any) -> None:
    options: dict[str, Any] = {part: given}
    with pytest.raises(ConfigurationError, match=f"{part}.* must be a function"):
        hybridppo.PPO(Box(-1, 1, (4,)), Discrete(2), **options)


@pytest.mark.parametrize(
    ("part", "given", "words"),
    [
        ("networks", int, r"networks=<class 'int'> failed: .*: it must be a function of observation_space, "),
        (
            "advantages",
            lambda rewards: rewards,
            "advantages=<.*> failed: .*: .* function with the arguments rewards, ",
        ),
    ],
)
def test_a_part_of_an_agent_that_takes_other_arguments_is_refused(part: str, given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        train(iterations=1, **{part: given})


# Going on


def assert_is_whole(run_dir: Path, iterations: int) -> None:
    """Metrics and checkpoint must be as if the run had never stopped."""
    assert column(run_dir, "iteration") == [*range(1, iterations + 1)]
    assert column(run_dir, "env_steps") == [i * BATCH for i in range(1, iterations + 1)]
    state = load_latest(run_dir / "checkpoints")[1].state
    assert state["runner"]["iteration"] == iterations
    assert state["sampler"]["env_steps"] == iterations * BATCH


def test_a_run_goes_on_to_a_new_goal(run_dir: Path) -> None:
    result = resume(run_dir, total_steps=8 * BATCH)
    assert_is_whole(run_dir, 8)
    assert result.metrics["iteration"] == 8
    assert not result.interrupted
    assert json.loads((run_dir / "result.json").read_text())["env_steps"] == 8 * BATCH
    assert json.loads((run_dir / "config.json").read_text())["total_steps"] == 8 * BATCH
    assert resume(run_dir).metrics["iteration"] == 8  # nothing more to do
    # Towards the goal of its time, from the start: 1 - progress, with progress at the iteration's beginning.
    schedule = [1 - i / (4 if i < 4 else 8) for i in range(8)]
    assert column(run_dir, "learning_rate") == pytest.approx([share * CONFIG.learning_rate for share in schedule])


def test_a_run_goes_on_from_its_parameters_and_optimizer(run_dir: Path) -> None:
    before = load_latest(run_dir / "checkpoints")[1]
    resume(run_dir, total_steps=5 * BATCH)
    after = load_latest(run_dir / "checkpoints")[1]
    assert after.tensors.keys() == before.tensors.keys()
    steps = {name for name in before.tensors if name.endswith(".step")}
    minibatches = CONFIG.num_epochs * CONFIG.num_minibatches
    assert {after.tensors[name].item() - before.tensors[name].item() for name in steps} == {minibatches}
    assert after.state["agent"]["version"] == 5


def test_a_finished_run_stays_as_it_is(finished: Finished, run_dir: Path) -> None:
    before = contents(run_dir)
    result = resume(run_dir)
    after = contents(run_dir)
    assert after.pop("result.json")
    assert after == {name: data for name, data in before.items() if name != "result.json"}
    assert torch.equal(parameters(result.agent), parameters(finished.result.agent))
    assert result.metrics.get("iteration") == ITERATIONS  # the last iteration's metrics, as ever


def test_a_run_that_is_prolonged_has_no_result_until_its_end(run_dir: Path) -> None:
    class Looks(hybridppo.Callback):
        def on_start(self, run: Any) -> None:
            assert result_of(run_dir, metrics_lines(run_dir)) is None

    assert result_of(run_dir, metrics_lines(run_dir)) is not None
    resume(run_dir, total_steps=(ITERATIONS + 1) * BATCH, callbacks=Looks())
    result = result_of(run_dir, metrics_lines(run_dir))
    assert result is not None
    assert result["env_steps"] == (ITERATIONS + 1) * BATCH


def test_an_interrupted_run_saves_and_goes_on(finished: Finished, tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = train(run_dir=path, checkpoint_seconds=1e6, on_iteration=at_iteration(2, interrupt))
    assert result.interrupted
    assert_is_whole(path, 2)
    assert not (path / "result.json").exists()

    resumed = resume(path)
    assert not resumed.interrupted
    assert_is_whole(path, ITERATIONS)
    assert (path / "result.json").exists()
    assert column(path, "learning_rate") == column(finished.run_dir, "learning_rate")
    assert column(path, "policy_loss")[:2] == column(finished.run_dir, "policy_loss")[:2]


class UnsavedEnv(ScriptedEnv):
    """Episodes of 20 steps; holds something that cannot be saved, and cannot be replayed."""

    def __init__(self) -> None:
        super().__init__(((20, "terminated"),))
        self.world = iter(())

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return observation + np.float32(time.perf_counter()), *others


def test_environments_that_cannot_be_saved_start_new_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # The first run ends within the first episode, which no resumed run may go on counting.
    train(UnsavedEnv, iterations=1, run_dir=tmp_path / "run")
    with caplog.at_level(logging.INFO):
        result = resume(tmp_path / "run", total_steps=3 * BATCH, env=UnsavedEnv)
    assert result.metrics["episodes"] == CONFIG.num_envs
    assert result.metrics["episode_length_mean"] == 20
    told = [message for message in caplog.messages if "resuming" in message]
    assert len(told) == 1
    assert "led to another observation: it draws from a global generator, or something" in told[0]
    assert ".world is of type builtins.tuple_iterator" in told[0]


@pytest.mark.parametrize("placement", ["cpu", hybridppo.Mirrored("cpu", "cpu", force_copy=True)], ids=["name", "own"])
def test_a_run_may_go_on_under_another_placement(placement: Any, run_dir: Path) -> None:
    copy = Path(shutil.copytree(run_dir, run_dir.with_name("other")))
    result = resume(run_dir, total_steps=6 * BATCH, placement=placement)
    assert torch.equal(parameters(result.agent), parameters(resume(copy, total_steps=6 * BATCH).agent))


def test_a_run_that_crashed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        train(run_dir=path, checkpoint_seconds=1e6, on_iteration=at_iteration(3, fail))
    assert_is_whole(path, 3)  # nothing that was learned is lost
    resume(path)
    assert_is_whole(path, ITERATIONS)


def test_a_function_must_be_given_again(tmp_path: Path) -> None:
    train(IdentityDiscrete, run_dir=tmp_path / "run", iterations=1)
    with pytest.raises(RunDirectoryError, match=r"made by a function, 'IdentityDiscrete': pass it again .* env="):
        resume(tmp_path / "run", total_steps=8 * BATCH)
    assert resume(tmp_path / "run", total_steps=2 * BATCH, env=IdentityDiscrete).metrics["iteration"] == 2


# Learning


@pytest.mark.parametrize("seed", [0, 1])
def test_the_discrete_identity_is_learned(seed: int) -> None:
    config = ppo_config(num_envs=8, num_steps=32, learning_rate=1e-2, gamma=0.0, hidden_sizes=(16,), entropy_coef=0.0)
    result = train(IdentityDiscrete, iterations=128, seed=seed, config=config, evaluation_episodes=16)
    assert result.evaluation is not None
    assert result.evaluation.returns == (8.0,) * 16
    assert result.metrics["episode_return_mean"] > 7.5  # of 8, random actions and all


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_box_identity_is_learned(seed: int) -> None:
    config = ppo_config(
        num_envs=8,
        num_steps=64,
        num_epochs=10,
        num_minibatches=8,
        learning_rate=1e-2,
        gamma=0.0,
        hidden_sizes=(16,),
        entropy_coef=0.0,
    )
    result = train(IdentityBox, iterations=512, seed=seed, config=config, evaluation_episodes=16)
    assert result.evaluation is not None
    assert min(result.evaluation.returns) > -0.02  # of 0; an action of 0 whatever is observed gives -2.7
    assert result.metrics["episode_return_mean"] > -0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_cartpole_script_solves_it(seed: int) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train_cartpole.py"))
    command = parse_command(script["arguments"]([]))
    assert isinstance(command, Train)
    result = hybridppo.train(
        command.env_id,
        total_steps=command.options.total_steps,
        seed=seed,
        config=command.config,
        evaluation_episodes=command.options.evaluation_episodes,
        progress=False,
    )
    assert result.evaluation is not None
    assert result.evaluation.return_mean >= 495  # of 500
