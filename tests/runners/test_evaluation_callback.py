"""Evaluation during training: when, of what, in which environments; and it changes no bit of the training."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from processes import run_python
from run_files import lines_of
from selection import only_by_default
from toy_agents import Unlike
from toy_environments import ScriptedEnv, scripted_vector

import hybridppo
from hybridppo import EnvError, TrainingInterrupted
from hybridppo.run_directory import checkpoints
from hybridppo.run_directory.checkpoints import folders

CONFIG = ppo_config(num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
BATCH = CONFIG.batch_size
WAYS: dict[str, dict[str, Any]] = {
    "cpu": {"placement": "cpu"},
    "cpu, beside": {"placement": "cpu", "evaluate_async": True},
    "workers": {"placement": "cpu", "num_workers": 2},
    "mirrored": {"placement": "mirrored"},
    "overlap": {"placement": "overlap"},
    "overlap in a thread": {"placement": "overlap", "num_workers": 0},
}
OVERLAPS = {"overlap", "overlap in a thread"}
PLACEMENTS = {
    "overlap": partial(hybridppo.Mirrored, "cpu", "cpu", max_lag=1),
    "mirrored": partial(hybridppo.Mirrored, "cpu", "cpu", force_copy=True, publish_every=2),
}


def arguments(**options: Any) -> dict[str, Any]:
    options = {"seed": 3, "placement": "cpu", "config": CONFIG, "progress": False, "vectorization": "sync"} | options
    if options["placement"] in PLACEMENTS:
        options["placement"] = PLACEMENTS[options["placement"]]()
    return options


def train(iterations: int = 6, env: Any = "CartPole-v1", **options: Any) -> hybridppo.TrainResult:
    return hybridppo.train(env, total_steps=iterations * BATCH, **arguments(**options))


def evaluated(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "evaluations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in ("seconds", "checkpoint")} for line in lines]


def with_figures(run_dir: Path) -> list[int]:
    """The steps of the iterations whose lines have the figures of an evaluation."""
    return [line["env_steps"] for line in lines_of(run_dir) if "evaluation_return_mean" in line]


def parameters(agent: Any) -> torch.Tensor:
    return agent.parameters.values.detach().clone()


EVERY: dict[str, Any] = {"evaluate_every": 2 * BATCH, "episodes_per_evaluation": 3}


@pytest.mark.parametrize("way", WAYS)
def test_the_training_is_the_same_to_the_bit_with_and_without(way: str, tmp_path: Path) -> None:
    with_it = train(run_dir=tmp_path / "run", **EVERY, **WAYS[way])
    without = train(**WAYS[way])
    assert torch.equal(parameters(with_it.agent), parameters(without.agent))
    same = ("policy_loss", "episode_return_mean", "episodes", "policy_lag", "publishes", "bytes_copied")
    assert [with_it.metrics[name] for name in same] == [without.metrics[name] for name in same]
    assert [line["env_steps"] for line in evaluated(tmp_path / "run")] == [2 * BATCH, 4 * BATCH, 6 * BATCH]


def test_a_vector_whose_function_is_named_has_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)

    monkeypatch.setitem(sys.modules, "named_vectors", cast(Any, SimpleNamespace(make=make)))
    options: dict[str, Any] = {"vectorization": "auto", "evaluate_every": 1, "episodes_per_evaluation": 3}
    named, given = (train(2, env, **options).metrics for env in ("named_vectors:make", make))
    assert named["evaluation_return_mean"] == given["evaluation_return_mean"]


@pytest.mark.parametrize("way", ["cpu", "overlap"])
def test_each_checkpoint_gives_what_was_evaluated(way: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(run_dir=path, keep_checkpoints=99, checkpoint_seconds=1e6, **EVERY, **WAYS[way])
    agents = []
    for line in evaluated(path):
        checkpoint = checkpoints.load(path / "checkpoints" / f"{line['checkpoint']:012d}")
        assert checkpoint.evaluation == line["evaluation_return_mean"]
        assert len(line["returns"]) == len(line["lengths"]) == 3
        assert checkpoint.state["runner"]["iteration"] == line["iteration"]
        agents.append(checkpoint.tensors["actor.body.0.weight"])
    assert len(agents) == 3
    assert not torch.equal(agents[0], agents[1])


@pytest.mark.parametrize("way", ["cpu", "overlap"])
def test_both_ways_give_the_same_evaluations_of_the_same_agents(way: str, tmp_path: Path) -> None:
    for beside in (True, False):
        train(run_dir=tmp_path / str(beside), **EVERY, **{**WAYS[way], "evaluate_async": beside})
    assert timeless(evaluated(tmp_path / "True")) == timeless(evaluated(tmp_path / "False"))


def test_another_agents_is_evaluated_beside_it(tmp_path: Path) -> None:
    config = hybridppo.TD3Config(hidden_sizes=(8,), num_envs=2, batch_size=16, learning_starts=32, buffer_size=512)
    for beside in (True, False):
        options = {"config": config, "evaluate_async": beside, "run_dir": tmp_path / str(beside)}
        train(env="Pendulum-v1", iterations=4, **EVERY, **options)
    there = evaluated(tmp_path / "True")
    assert there
    assert timeless(there) == timeless(evaluated(tmp_path / "False"))


def test_the_metrics_tell_of_it_when_it_is_there(tmp_path: Path) -> None:
    history: list[Any] = []
    result = train(on_iteration=history.append, **EVERY)
    assert ["evaluation_return_mean" in metrics for metrics in history] == [False, True] * 3
    assert [metrics["evaluation_env_steps"] for metrics in history[1::2]] == [2 * BATCH, 4 * BATCH, 6 * BATCH]
    history.clear()
    assert result.metrics["evaluation_env_steps"] == 6 * BATCH
    for way in ("overlap", "cpu, beside"):
        beside = train(on_iteration=history.append, **EVERY, **WAYS[way])
        # Beside the training, a result is told when the next evaluation is due, and the last one at the end.
        steps = [metrics.get("evaluation_env_steps") for metrics in history]
        assert steps[:-1] == [None, None, None, 2 * BATCH, None]
        assert beside.metrics["evaluation_env_steps"] == 6 * BATCH
        history.clear()


@pytest.mark.parametrize("way", ["cpu", "cpu, beside"])
def test_a_callback_that_stops_in_on_metrics_is_no_interruption(way: str, tmp_path: Path) -> None:
    class Stopping(hybridppo.Callback):
        def on_metrics(self, run: Any, metrics: Any) -> None:
            if run.iteration == 2:
                run.stop("enough")

    result = train(callbacks=Stopping(), run_dir=tmp_path / "run", **WAYS[way], **EVERY)
    assert (result.stopped_by, result.interrupted) == ("enough", False)
    assert [line["env_steps"] for line in evaluated(tmp_path / "run")] == [2 * BATCH]
    assert (tmp_path / "run" / "result.json").exists()


def test_steps_are_those_of_all_environments(tmp_path: Path) -> None:
    for num_envs in (1, 4):
        config = ppo_config(
            num_envs=num_envs, num_steps=64 // num_envs, num_epochs=1, num_minibatches=2, hidden_sizes=(4,)
        )
        path = tmp_path / str(num_envs)
        hybridppo.train("CartPole-v1", total_steps=256, run_dir=path, **arguments(config=config), evaluate_every=100)
        assert [line["env_steps"] for line in evaluated(path)] == [128, 256]
        assert all(len(line["returns"]) == 10 for line in evaluated(path))


def test_never_is_0_or_none(tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run", evaluate_every=None)
    assert evaluated(tmp_path / "run") == []
    assert json.loads((tmp_path / "run" / "config.json").read_text())["evaluate_every"] == 0


def test_every_evaluation_is_of_the_same_episodes(tmp_path: Path) -> None:
    config = ppo_config(
        num_envs=2, num_steps=16, num_epochs=1, hidden_sizes=(8,), learning_rate=1e-12
    )  # learns nothing
    train(config=config, run_dir=tmp_path / "run", evaluate_every=BATCH)
    returns = [line["returns"] for line in evaluated(tmp_path / "run")]
    assert len(returns) == 6
    assert all(each == returns[0] for each in returns)
    assert len(set(returns[0])) > 1


def test_a_function_that_makes_a_vector_is_asked_for_one_of_its_own(tmp_path: Path) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(scripted_vector([((5, "truncated"),)] * CONFIG.num_envs, AutoresetMode.DISABLED))
        return made[-1]

    train(env=make, run_dir=tmp_path / "run", vectorization="auto", **EVERY)
    assert [line["lengths"] for line in evaluated(tmp_path / "run")] == [[5, 5, 5]] * 3
    assert len(made) == 2


# The best agent


class Worsening(gym.Env[Any, Any]):
    """Episodes of one step; an evaluation's return falls from one to the next, and the training's rises."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    evaluations = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.is_evaluated = seed is not None and seed == Worsening.seed_of_evaluation
        if self.is_evaluated:
            Worsening.evaluations += 1
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        reward = -float(Worsening.evaluations) if self.is_evaluated else 1.0
        return self.observation_space.low, reward, True, False, {}

    seed_of_evaluation = -1


def test_the_best_is_chosen_by_evaluation_and_stays(tmp_path: Path, monkeypatch: Any) -> None:
    from hybridppo.system.seeds import seed_of

    path = tmp_path / "run"
    monkeypatch.setattr(Worsening, "seed_of_evaluation", seed_of(3, "evaluation during training"))
    monkeypatch.setattr(Worsening, "evaluations", 0)
    options = {"evaluate_every": BATCH, "episodes_per_evaluation": 1, "keep_checkpoints": 1, "checkpoint_seconds": 0.0}
    train(env=Worsening, run_dir=path, **options)
    assert [line["evaluation_return_mean"] for line in evaluated(path)] == [-1, -2, -3, -4, -5, -6]
    kept = [checkpoints.load(folder) for folder in folders(path / "checkpoints")]
    assert [checkpoint.state["runner"]["iteration"] for checkpoint in kept] == [1, 6]
    # Its return in training, over 100 episodes, is higher later on; and a resumed run keeps to what was found.
    hybridppo.resume(path, total_steps=8 * BATCH, env=Worsening, progress=False)
    best = checkpoints.load_best(path / "checkpoints")[1]
    assert best.state["runner"]["iteration"] == 1
    assert best.evaluation == -1
    assert hybridppo.load(path, checkpoint="best").version == 1
    hybridppo.resume(path, total_steps=9 * BATCH, env=Worsening, evaluate_every=0, progress=False)
    assert hybridppo.load(path, checkpoint="best").version == 1
    assert hybridppo.load(path).version == 9


class Tiring(gym.Env[Any, Any]):
    """One step; the return falls with each reset that gets a seed, as evaluations do."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    seeded = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeded += seed is not None
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, -float(self.seeded), True, False, {}


def test_the_best_stays_if_its_result_comes_when_many_checkpoints_are_newer(tmp_path: Path) -> None:
    path, options = tmp_path / "run", {"keep_checkpoints": 1, "checkpoint_seconds": 0.0, "evaluate_async": True}
    train(env=Tiring, run_dir=path, evaluate_every=2 * BATCH, episodes_per_evaluation=1, **options)
    assert [line["evaluation_return_mean"] for line in evaluated(path)] == [-1, -2, -3]
    best = checkpoints.load_best(path / "checkpoints")[1]
    assert best.evaluation == -1
    assert hybridppo.load(path, checkpoint="best").version == 2


def test_a_judged_checkpoint_is_whole_and_an_altered_judgement_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "000000000001"
    checkpoints.save(folder, {"a": torch.ones(2)}, {"b": 1}, score=5.0)
    checkpoints.judge(folder, 2.0)
    found = checkpoints.load(folder)
    assert (found.evaluation, found.score, found.state) == (2.0, 5.0, {"b": 1})
    checkpoints.save(tmp_path / "000000000002", {"a": torch.ones(2)}, {"b": 1}, score=9.0)
    assert checkpoints.load_best(tmp_path)[0] == folder  # an evaluation counts more than a return of training
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"evaluation": 2.0', '"evaluation": 3.0'))
    with pytest.raises(hybridppo.CheckpointError, match="truncated or altered"):
        checkpoints.load(folder)


# Stopping and resuming


def at(iteration: int, do: Any) -> Any:
    return lambda metrics: do() if metrics["iteration"] == iteration else None


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("way", "iteration"),
    only_by_default(
        ("cpu, 3", "overlap, 2", "workers, 3"), [(way, number) for way in WAYS for number in (2, 3)], pytest.mark.slow
    ),
)
def test_a_stopped_run_has_the_evaluations_of_one_that_was_not(way: str, iteration: int, tmp_path: Path) -> None:
    train(run_dir=tmp_path / "whole", **EVERY, **WAYS[way])
    with pytest.raises(TrainingInterrupted):
        train(run_dir=tmp_path / "run", on_iteration=at(iteration, interrupt), **EVERY, **WAYS[way])
    options = arguments(**WAYS[way])
    result = hybridppo.resume(tmp_path / "run", placement=options["placement"], progress=False)
    assert timeless(evaluated(tmp_path / "run")) == timeless(evaluated(tmp_path / "whole"))
    whole = hybridppo.load(tmp_path / "whole")
    assert torch.equal(parameters(result.agent), parameters(whole))
    best = [hybridppo.load(tmp_path / name, checkpoint="best").version for name in ("run", "whole")]
    assert best[0] == best[1]


def test_an_evaluation_of_several_policies_that_was_under_way_is_made_when_resumed(tmp_path: Path) -> None:
    options = {"env": Unlike, "config": {"sign": CONFIG, "pointer": CONFIG}, "evaluate_async": True, **EVERY}
    train(run_dir=tmp_path / "whole", **options)
    with pytest.raises(TrainingInterrupted):
        train(run_dir=tmp_path / "run", on_iteration=at(2, interrupt), **options)
    hybridppo.resume(tmp_path / "run", env=Unlike, progress=False)
    assert timeless(evaluated(tmp_path / "run")) == timeless(evaluated(tmp_path / "whole"))


KILLED = """
import os, signal, sys
import hybridppo

def kill(metrics):
    if metrics["iteration"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)

config = hybridppo.PPOConfig(
    num_envs=2, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=2.5e-4,
    anneal_learning_rate=True, clip_range_vf=0.2, entropy_coef=0.01, normalize_observations=False,
    normalize_rewards=False,
)
placement = hybridppo.Mirrored("cpu", "cpu", max_lag=1) if sys.argv[2] == "overlap" else "cpu"
hybridppo.train(
    "CartPole-v1", total_steps=6 * 32, seed=3, placement=placement, config=config, progress=False, vectorization="sync",
    run_dir=sys.argv[1], checkpoint_seconds=1e6, evaluate_every=64, episodes_per_evaluation=3, on_iteration=kill,
)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("way", only_by_default(("overlap",), ["cpu", "overlap"], pytest.mark.slow))
def test_a_killed_run_has_the_evaluations_of_one_that_was_not(way: str, tmp_path: Path) -> None:
    train(run_dir=tmp_path / "whole", **EVERY, **WAYS[way])
    run = tmp_path / "run"
    process = run_python("-c", KILLED, run, way)
    assert process.returncode == -signal.SIGKILL, process.stderr
    result = hybridppo.resume(run, progress=False)
    assert timeless(evaluated(run)) == timeless(evaluated(tmp_path / "whole"))
    assert torch.equal(parameters(result.agent), parameters(hybridppo.load(tmp_path / "whole")))
    assert [line["iteration"] for line in lines_of(run)] == [1, 2, 3, 4, 5, 6]


class Interrupting(ScriptedEnv):
    """Asks for a stop during an evaluation, which is recognized by its environments' seed."""

    at_step = -1

    def __init__(self) -> None:
        super().__init__(((5, "truncated"),))
        self.is_evaluated = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        from hybridppo.system.seeds import seed_of

        if seed is not None:
            self.is_evaluated = seed == seed_of(3, "evaluation during training")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.is_evaluated:
            Interrupting.at_step -= 1
            if Interrupting.at_step == 0:
                interrupt()
        return super().step(action)


def test_a_stop_in_the_midst_of_an_evaluation_breaks_it_off_and_it_is_made_when_resumed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Interrupting, "at_step", 3)
    with pytest.raises(TrainingInterrupted) as caught:
        train(env=Interrupting, run_dir=tmp_path / "run", **EVERY)
    assert caught.value.result.metrics["iteration"] == 2
    assert evaluated(tmp_path / "run") == []
    assert with_figures(tmp_path / "run") == []
    hybridppo.resume(tmp_path / "run", env=Interrupting, progress=False)
    assert [line["env_steps"] for line in evaluated(tmp_path / "run")] == [2 * BATCH, 4 * BATCH, 6 * BATCH]
    assert with_figures(tmp_path / "run") == [2 * BATCH, 4 * BATCH, 6 * BATCH]
    assert len(lines_of(tmp_path / "run")) == 6


def test_a_stop_in_the_midst_of_the_last_evaluation_leaves_the_run_unfinished(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Interrupting, "at_step", 3)
    with pytest.raises(TrainingInterrupted):
        train(env=Interrupting, run_dir=tmp_path / "run", evaluate_every=6 * BATCH)
    assert not (tmp_path / "run" / "result.json").exists()
    result = hybridppo.resume(tmp_path / "run", env=Interrupting, progress=False)
    assert [line["env_steps"] for line in evaluated(tmp_path / "run")] == with_figures(tmp_path / "run") == [6 * BATCH]
    assert result.metrics["evaluation_env_steps"] == 6 * BATCH
    assert (tmp_path / "run" / "result.json").exists()


class Slow(Interrupting):
    """Takes its time in evaluations."""

    def step(self, action: Any) -> Any:
        if self.is_evaluated:
            time.sleep(0.3)
        return ScriptedEnv.step(self, action)


def test_a_stop_while_the_training_waits_at_its_end_for_an_evaluation_beside_it_ends_both(tmp_path: Path) -> None:
    stop = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    options = {
        "env": Slow,
        "evaluate_async": True,
        "evaluate_every": 3 * BATCH,
        "episodes_per_evaluation": 2,
        "worker_timeout": 30.0,
    }
    begun = time.monotonic()
    with pytest.raises(TrainingInterrupted):
        train(run_dir=tmp_path / "run", on_iteration=at(5, stop.start), **options)
    stop.cancel()
    assert time.monotonic() - begun < 25.0
    assert evaluated(tmp_path / "run") == []


def test_a_finished_run_is_evaluated_no_more_than_it_was(tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run", **EVERY)
    before = evaluated(tmp_path / "run")
    hybridppo.resume(tmp_path / "run", progress=False)
    assert timeless(evaluated(tmp_path / "run")) == timeless(before)


def test_evaluation_may_begin_and_end_when_a_run_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(3, run_dir=path)
    hybridppo.resume(path, total_steps=5 * BATCH, evaluate_every=2 * BATCH, episodes_per_evaluation=1, progress=False)
    assert [line["iteration"] for line in evaluated(path)] == [3, 4]  # what is due is made up for at once
    hybridppo.resume(path, total_steps=6 * BATCH, evaluate_every=0, progress=False)
    hybridppo.resume(path, total_steps=7 * BATCH, evaluate_every=7 * BATCH, progress=False)
    assert [line["iteration"] for line in evaluated(path)] == [3, 4, 7]


class StoppingAtOnce(hybridppo.Callback):
    """Asks for a stop as soon as there is an evaluation."""

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        interrupt()


def test_an_evaluation_without_a_checkpoint_after_it_is_not_told_twice(tmp_path: Path) -> None:
    path, options = tmp_path / "run", {"evaluate_every": 2 * BATCH, "episodes_per_evaluation": 1, "progress": False}
    train(3, run_dir=path)
    for _ in range(2):
        with pytest.raises(TrainingInterrupted):
            hybridppo.resume(path, total_steps=5 * BATCH, callbacks=StoppingAtOnce(), **options)
        assert [line["iteration"] for line in evaluated(path)] == [3]
    hybridppo.resume(path, **options)
    assert [line["iteration"] for line in evaluated(path)] == [3, 4]


def test_evaluations_are_remembered_while_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(2, run_dir=path, evaluate_every=2 * BATCH, episodes_per_evaluation=1)
    hybridppo.resume(path, total_steps=3 * BATCH, evaluate_every=0, progress=False)
    hybridppo.resume(path, total_steps=4 * BATCH, evaluate_every=2 * BATCH, progress=False)
    assert [line["iteration"] for line in evaluated(path)] == [2, 4]


# Faults


class FailingInEvaluation(ScriptedEnv):
    """Fails in the second evaluation."""

    def __init__(self) -> None:
        super().__init__(((5, "truncated"),))
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += seed is not None
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.resets == 2:
            raise RuntimeError("out of order")
        return super().step(action)


@pytest.mark.parametrize("way", ["cpu", "overlap"])
def test_an_environment_that_fails_in_an_evaluation_costs_nothing_that_was_learned(way: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="out of order"):
        train(env=FailingInEvaluation, run_dir=tmp_path / "run", checkpoint_seconds=1e6, **EVERY, **WAYS[way])
    kept = checkpoints.load_latest(tmp_path / "run" / "checkpoints")[1].state["runner"]["iteration"]
    assert kept == (4 if way == "cpu" else 6)


def test_an_evaluator_that_dies_is_named(tmp_path: Path) -> None:
    class Dying(FailingInEvaluation):
        def step(self, action: Any) -> Any:
            if self.resets == 2:
                os._exit(3)
            return super().step(action)

    with pytest.raises(EnvError, match=r"evaluator 0 \(environments 0 to 2\) has died: exit code 3"):
        train(env=Dying, run_dir=tmp_path / "run", **EVERY, **WAYS["overlap"])


def test_an_evaluators_process_loads_no_torch() -> None:
    code = "import sys, hybridppo.runners.episodes; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_networks_that_numpy_cannot_stand_in_for_are_evaluated_in_between(tmp_path: Path) -> None:
    def networks(observation_space: Any, action_space: Any, config: Any, generator: Any) -> Any:
        return torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)

    options = {"networks": networks, **WAYS["overlap"]}
    with_it = train(run_dir=tmp_path / "run", **EVERY, **options)
    assert torch.equal(parameters(with_it.agent), parameters(train(**options).agent))
    assert len(evaluated(tmp_path / "run")) == 3
    with pytest.raises(hybridppo.ConfigurationError, match=r"acts in NumPy.*networks that NumPy has not"):
        train(**EVERY, **{**options, "evaluate_async": True})
    with pytest.raises(hybridppo.ConfigurationError, match=r"acts in NumPy.*layer_norm"):
        train(**EVERY, evaluate_async=True, config=ppo_config(num_envs=2, num_steps=16, layer_norm=True))


def test_an_environment_that_cannot_be_sent_to_an_evaluator_may_be_evaluated_here() -> None:
    lock = threading.Lock()
    with pytest.raises(EnvError, match=r"'lock' is a lock, .* or evaluate in this process, with evaluate_async=False"):
        train(env=lambda: (lock, gym.make("CartPole-v1"))[1], evaluate_async=True, **EVERY)
