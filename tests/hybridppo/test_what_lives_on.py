"""After a training, only its agent stays in memory: nothing waits for the garbage collector."""

import gc
import signal
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config
from tagging import tag
from toy_environments import FailingEnv, raise_an_error

import hybridppo
from hybridppo import EnvError, Migrating, Mirrored, TD3Config, TrainingInterrupted
from hybridppo.agents.policies import Policies
from hybridppo.agents.ppo.batch import Batch
from hybridppo.environments.base import Environments
from hybridppo.environments.sub_environments import SubEnvironment
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callbacks, TrainingRun
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.evaluation_callback import EvaluationDuringTraining
from hybridppo.runners.filling import Stepper
from hybridppo.runners.processes import Pool, SharedArrays
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import Sampler
from hybridppo.settings import Plan
from hybridppo.system.signals import Interruption

OF_A_TRAINING = (
    Batch, Sampler, Callbacks, Environments, EvaluationDuringTraining, Interruption, Plan, Placement, Pool,
    Rollout, RunDirectory, Runner, Policies, SharedArrays, Stepper, SubEnvironment,
    TrainingRun,
)  # fmt: skip
"""Classes of a training's objects, all of which must end with it."""

SIZES: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)}
CONFIG = ppo_config(**SIZES)
TD3 = TD3Config(
    num_envs=1, hidden_sizes=(8,), learning_starts=10, steps_per_iteration=32, train_frequency=4, gradient_steps=1
)

Options = dict[str, Any]
WAYS: dict[str, Callable[[], Options]] = {
    "cpu": dict,
    "vectors": lambda: {"vectorization": "auto"},
    "hybrid": lambda: {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "migrate": lambda: {"placement": Migrating("cpu", "cpu")},
    "overlap, in a thread": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
    "overlap, in a worker": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=1)},
    "lagging, in workers": lambda: {"placement": Mirrored("cpu", "cpu", max_lag=3), "num_workers": 2},
    "auto": lambda: {"placement": "auto"},
    "workers": lambda: {"num_workers": 2},
    "whole episodes": lambda: {
        "config": ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, hidden_sizes=(8,))
    },
    "tensors": lambda: {"env": lambda: TorchCartPole(2), "vectorization": "auto"},
    "compiled": lambda: {"vectorization": "compiled"},
    "compiled updates": lambda: {"config": ppo_config(**SIZES, compiled_updates=True)},
    "plain updates": lambda: {"config": ppo_config(**SIZES, fast_updates=False)},
    "a memory": lambda: {"config": ppo_config(**SIZES, recurrent="lstm", recurrent_size=8)},
    "evaluated": lambda: {"evaluate_every": 32, "episodes_per_evaluation": 1, "evaluation_episodes": 1},
    "evaluated beside": lambda: {"evaluate_every": 32, "episodes_per_evaluation": 1, "evaluate_async": True},
    "off-policy": lambda: {"env": "Pendulum-v1", "config": TD3},
    "off-policy, overlapping": lambda: {
        "env": "Pendulum-v1", "config": TD3, "placement": Mirrored("cpu", "cpu", max_lag=1)
    },
}  # fmt: skip
COMPILED = ("compiled", "compiled updates")


def train(env: Any = "CartPole-v1", **options: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 96, "seed": 0, "placement": "cpu", "vectorization": "sync", "config": CONFIG} | options
    return hybridppo.train(env, progress=False, **options)


def living() -> "Counter[str]":
    """The living objects of trainings, by the names of their classes."""
    kinds = Counter(map(type, gc.get_objects()))
    found: Counter[str] = Counter()
    for kind, number in kinds.items():
        if issubclass(kind, OF_A_TRAINING):
            found[kind.__qualname__] += number
    return found


@pytest.fixture
def nothing_more_lives() -> Iterator[Callable[[], None]]:
    """Asserts that the objects made within the test have ended, without the garbage collector."""
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at
    gc.disable()

    def check() -> None:
        assert living() == Counter()

    try:
        yield check
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.extras if way in COMPILED else ()) for way in WAYS]
)
def test_nothing_but_the_agent_outlives_its_training(
    way: str, nothing_more_lives: Callable[[], None], tmp_path: Path
) -> None:
    if way in COMPILED:
        train(**WAYS[way]())  # Numba keeps frames in cycles if it compiles
        gc.collect()
    agent = train(**WAYS[way](), run_dir=tmp_path / "run").agent
    nothing_more_lives()
    assert agent.version > 0


@pytest.mark.parametrize("way", ["cpu", "workers", "overlap, in a thread", "whole episodes", "off-policy"])
def test_nothing_outlives_a_training_that_was_interrupted_and_resumed(
    way: str, nothing_more_lives: Callable[[], None], tmp_path: Path
) -> None:
    def interrupt(metrics: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    options = WAYS[way]()
    with pytest.raises(TrainingInterrupted) as caught:
        train(**options, run_dir=tmp_path / "run", on_iteration=interrupt)
    agent = caught.value.result.agent
    del caught, options
    nothing_more_lives()
    assert not agent.should_stop()
    agent = hybridppo.resume(tmp_path / "run", total_steps=192, progress=False).agent
    nothing_more_lives()
    assert not agent.should_stop()


@pytest.mark.parametrize(
    "options",
    [
        lambda: {},
        lambda: {"num_workers": 2},
        lambda: {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
        lambda: {"config": ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, hidden_sizes=(8,))},
    ],
    ids=["in this process", "workers", "in a thread", "whole episodes"],
)
def test_nothing_outlives_a_training_that_failed(
    options: Callable[[], Options], nothing_more_lives: Callable[[], None], tmp_path: Path
) -> None:
    try:
        train(lambda: FailingEnv(raise_an_error), **options(), run_dir=tmp_path / "run")
    except EnvError:
        failed = True
    assert failed
    nothing_more_lives()


def test_nothing_outlives_a_training_whose_callback_failed(nothing_more_lives: Callable[[], None]) -> None:
    class Failing(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            raise ZeroDivisionError

    callback = Failing()
    ended = weakref.ref(callback)
    try:
        train(callbacks=[callback])
    except hybridppo.CallbackError:
        del callback
    assert ended() is None
    nothing_more_lives()


@pytest.mark.extras
def test_nothing_but_the_agents_outlives_a_training_of_several_policies(
    nothing_more_lives: Callable[[], None], tmp_path: Path
) -> None:
    configs = {"tagger": CONFIG, "runner": CONFIG}
    arguments: Options = {"total_steps": 64, "seed": 0, "placement": "cpu", "progress": False}
    agents = hybridppo.train(tag(), config=configs, run_dir=tmp_path / "run", **arguments).agents
    nothing_more_lives()
    assert not any(agent.should_stop() for agent in agents.values())
