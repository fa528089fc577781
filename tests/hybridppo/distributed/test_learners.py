"""Learners in processes of their own: the bits of one process, and one clear error if one is lost."""

import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from failing import failing, failing_loss, killed, raising, silent
from killed_driver import assert_nothing_outlives_it
from learner_kinds import KINDS, Kind, marks_of
from ppo_settings import ppo_config
from processes import processes_of, start_python
from run_files import lines_of
from same_bits import counted, values_of
from selection import only_by_default
from short_runs import trainer
from stop_after import interrupt_at
from torch import nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from toy_agents import ScriptedAgents

import hybridppo
from hybridppo import ConfigurationError, DistributedError, EnvError, MultiLearner, PPOConfig
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss
from hybridppo.distributed import learners as module
from hybridppo.reporting.callbacks import TrainingRun
from hybridppo.runners.process_group import ProcessGroup, SingleProcess

CONFIG = ppo_config(
    num_envs=4, num_steps=32, num_epochs=3, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3,
    normalize_observations=True, normalize_rewards=True, target_kl=1e-4,
)  # fmt: skip
STEPS = 4 * 32 * 4
train = trainer(CONFIG, STEPS)
beside_the_extras = pytest.mark.extras
"""These need no extra, but each starts several learners with torch."""
SECONDS = 120
"""Much longer than anything takes, even on a busy machine."""


def learners() -> list[psutil.Process]:
    """The learners' processes that this one has started."""
    return processes_of("hybridppo.learner_process")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    excepthook = sys.excepthook
    yield
    assert learners() == []
    assert not torch.distributed.is_initialized()
    assert sys.excepthook is excepthook


@beside_the_extras
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_any_number_of_learners_gives_the_same_bits(env: str) -> None:
    """Returns, episode ends, normalization, target_kl and explained variance cover all environments."""
    steps, config = STEPS, CONFIG
    if env == "Pendulum-v1":  # its episodes are cut, after 200 steps; noise is kept for five of them
        steps, config = 4 * 32 * 8, replace(CONFIG, use_sde=True, sde_sample_freq=5)
    alone = train(env, distributed=MultiLearner(1, shards=4), total_steps=steps, config=config)
    assert alone.metrics["episodes"] > 0
    for learners in (2, 4) if env == "CartPole-v1" else (2,):
        several = train(env, distributed=MultiLearner(learners, shards=4), total_steps=steps, config=config)
        assert torch.equal(values_of(several), values_of(alone))
        assert counted(several.metrics) == counted(alone.metrics)


@beside_the_extras
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items() if kind.config or kind.options]
)
def test_sequences_stacks_and_pools_are_divided_as_rows_are(kind: Kind) -> None:
    """Even if episodes are cut, after 200 steps: the value of what follows uses the memory."""
    config = replace(CONFIG, target_kl=None, **kind.config)
    options = {"env": "Pendulum-v1", "config": config, "total_steps": 4 * 32 * 8, **kind.options}
    alone, several = (train(distributed=f"multi:{size}:2", **options) for size in (1, 2))
    assert alone.metrics["episodes"] > 0
    assert torch.equal(values_of(several), values_of(alone))
    assert counted(several.metrics) == counted(alone.metrics)


def test_several_agents_that_leave_and_clipped_rewards_are_shared_likewise() -> None:
    scripts = [[(3, "terminated"), (2, "truncated")], [(5, "truncated"), (0, ""), (1, "terminated")]]
    options = {"env": partial(ScriptedAgents, scripts), "clip_rewards": True, "total_steps": 500}
    alone, several = (train(distributed=f"multi:{size}:2", **options) for size in (1, 2))
    assert alone.metrics["episodes"] > 0
    assert torch.equal(values_of(several), values_of(alone))
    assert counted(several.metrics) == counted(alone.metrics)


@pytest.mark.parametrize(
    "name",
    only_by_default(("rows",), [pytest.param(name, marks=marks_of(name)) for name in KINDS]),
)
def test_one_shard_is_the_local_training_and_a_stopped_run_in_shards_goes_on_to_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, **KINDS[name].config)
    options = {"total_steps": 4 * 32 * 3, **KINDS[name].options}

    local = train(vectorization="sync", config=config, **options)
    assert torch.equal(
        values_of(train(distributed="multi:1", config=config, vectorization="sync", **options)), values_of(local)
    )
    sharded = train(distributed=MultiLearner(1, shards=4), config=config, **options)
    assert not torch.equal(values_of(sharded), values_of(local))
    train(distributed="multi:1:4", config=config, run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = hybridppo.resume(tmp_path / "run", progress=False)
    assert torch.equal(values_of(resumed), values_of(sharded))
    at_home = hybridppo.resume(tmp_path / "copy", distributed="local", progress=False)
    assert at_home.metrics["env_steps"] >= options["total_steps"]


def test_the_latest_episodes_are_of_all_shards() -> None:
    class Numbered(gym.Env[Any, Any]):
        """Episodes of one step, with the number of the environment as the reward."""

        observation_space, action_space, made = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), 0

        def __init__(self) -> None:
            self.number, Numbered.made = Numbered.made, Numbered.made + 1

        def reset(self, **options: Any) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), float(self.number), True, False, {}

    config = ppo_config(num_envs=2, num_steps=200, num_epochs=1, hidden_sizes=(4,))
    result = train(env=Numbered, distributed=MultiLearner(1, shards=2), total_steps=400, config=config)
    assert (result.metrics["episode_return_mean"], result.metrics["episodes"]) == (0.5, 400)


def test_a_training_of_stacks_in_shards_that_diverges_says_so() -> None:
    config = replace(CONFIG, learning_rate=1e25, max_grad_norm=1e30)
    with pytest.raises(hybridppo.TrainingError, match="the first quantity that is not finite is"):
        train(distributed="multi:1:2", config=config, frame_stack=2)


def test_a_run_of_one_piece_goes_on_in_shards_and_says_what_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(run_dir=tmp_path / "run")
    before = hybridppo.load(tmp_path / "run").normalization.rewards
    caplog.set_level("INFO")
    longer = hybridppo.resume(tmp_path / "run", distributed="multi:1:2", total_steps=2 * STEPS, progress=False)
    assert longer.metrics["env_steps"] >= 2 * STEPS
    assert (
        "new episodes: the run was in one piece and is now in 2 shards, which also cut its minibatches" in caplog.text
    )
    assert before is not None
    assert longer.agent.normalization.rewards.moments.count > before.moments.count > 0


PLACED: dict[str, dict[str, Any]] = {
    "workers": {"num_workers": 2},
    "overlap": {"placement": {"max_lag": 1}},
    "overlap in a thread": {"placement": {"max_lag": 1}, "num_workers": 0},
    "a replica": {"placement": {"force_copy": True}},
}


@beside_the_extras
@pytest.mark.parametrize("way", PLACED)
def test_every_placement_gives_the_same_bits_with_any_number_of_learners_and_resumed_with_another(
    way: str, tmp_path: Path
) -> None:
    def options() -> dict[str, Any]:
        made = dict(PLACED[way])
        if "placement" in made:
            made["placement"] = hybridppo.Mirrored("cpu", "cpu", **made["placement"])
        return {"vectorization": "sync", **made}

    whole = train(distributed="multi:1:2", **options())
    train(distributed="multi:2:2", run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options())
    resumed = hybridppo.resume(tmp_path / "run", distributed="multi:1:2", progress=False)
    assert torch.equal(values_of(resumed), values_of(whole))
    assert counted(resumed.metrics) == counted(whole.metrics)


def test_learners_share_the_gradients_of_ppo_only() -> None:
    with pytest.raises(ConfigurationError, match="learners share the gradients of PPO only, got TD3Config: use dist"):
        train("Pendulum-v1", config=hybridppo.TD3Config(num_envs=4), distributed="multi:1:4")


class Own(hybridppo.PPO):
    """A user's own agent."""


def own_loss(inputs: LossInputs, config: PPOConfig, clip_range: Any) -> Loss:
    loss = ppo_loss(inputs, config, clip_range)
    return replace(loss, total=loss.total + 0.01 * inputs.log_ratio.square().mean())


def own_networks(*arguments: Any) -> tuple[nn.Module, nn.Module]:
    return nn.Linear(4, 2), nn.Linear(4, 1)


@beside_the_extras
def test_learners_take_what_is_ones_own_and_an_agent_that_has_learned_already() -> None:
    own = {"agent": Own, "loss": own_loss, "networks": own_networks, "evaluation_episodes": 1}
    config = replace(CONFIG, normalize_observations=False)
    alone, several = (train(distributed=f"multi:{size}:2", config=config, **own) for size in (1, 2))
    assert type(several.agent) is Own
    assert torch.equal(values_of(several), values_of(alone))
    assert several.evaluation is not None
    assert alone.evaluation is not None
    assert several.evaluation.returns == alone.evaluation.returns
    for result, size in ((alone, 1), (several, 2)):
        train(distributed=f"multi:{size}:2", agent=result.agent, config=None, seed=6)
    assert torch.equal(values_of(several), values_of(alone))
    assert several.agent.version > 4


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (killed, {}, r"learner 1 of 2 died, or did not answer.*hybridppo resume"),
        (silent, {"worker_timeout": 3.0}, r"learner 1 of 2 died, or did not answer for 3 s \(worker_timeout\)"),
        (raising, {}, r"learner 1 of 2 failed: environment 2 \(seed \d+\) failed .*no more of this"),
    ],
    ids=["killed", "silent", "raising"],
)
@beside_the_extras
def test_a_learner_that_is_lost_ends_the_training_in_one_error_and_what_was_saved_goes_on_locally(
    what: Callable[[], None], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DistributedError) as lost:
        train(failing(what, step=20), distributed=MultiLearner(2), run_dir=tmp_path / "run", **options)
    assert re.search(message, str(lost.value), re.DOTALL), str(lost.value)
    env = failing(what, step=20)  # made in this process alone, which does nothing of the kind
    result = hybridppo.resume(tmp_path / "run", env=env, distributed="local", progress=False)
    assert result.metrics["env_steps"] == STEPS


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (killed, {}, r"learner 1 of 2 died, or did not answer"),
        (silent, {"worker_timeout": 3.0}, r"learner 1 of 2 died, or did not answer for 3 s \(worker_timeout\)"),
        (raising, {}, r"learner 1 of 2 failed: ValueError: no more of this"),
    ],
    ids=["killed", "silent", "raising"],
)
@beside_the_extras
def test_a_learner_that_is_lost_within_an_update_is_waited_for_no_longer(
    what: Callable[[], None], options: dict[str, Any], message: str
) -> None:
    config = replace(CONFIG, target_kl=None)
    with pytest.raises(DistributedError, match=message):
        train(loss=failing_loss(what, 20), distributed=MultiLearner(2), config=config, **options)


def test_an_error_of_the_first_learner_is_raised_as_it_is_and_the_others_go() -> None:
    def stop(metrics: dict[str, float]) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(distributed=MultiLearner(2), on_iteration=stop)


class Watching(hybridppo.Callback):
    """Takes longer than learners wait for each other, ends the training after three iterations, and remembers."""

    def __init__(self, fails_in: str = "") -> None:
        self.told: list[str] = []
        self._fails_in = fails_in

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what == self._fails_in:
            raise KeyError("mine")

    def on_start(self, run: Any) -> None:
        self._tell("start")

    def on_iteration(self, run: Any, metrics: Any) -> None:
        if run.iteration == 1:
            threading.Event().wait(4.0)
        if run.iteration == 3:
            run.stop("enough")
        self._tell(f"iteration {run.iteration}")

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        self._tell(f"evaluation {evaluation['env_steps']} {evaluation['evaluation_return_mean']}")

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self._tell("checkpoint")


@pytest.mark.parametrize("kind", [hybridppo.PPO, hybridppo.TD3])
def test_others_take_settings_that_a_callback_of_the_first_changes(kind: Any) -> None:
    told: Queue[Any] = Queue()

    class Pair(ProcessGroup):
        def __init__(self, rank: int) -> None:
            SingleProcess.__init__(self)
            self.rank, self.size, self._is_in_first_only, self._configs, self.asked = rank, 2, False, [], False

        def _command(self, *command: Any) -> Any:
            return told.put(command) if self.rank == 0 else told.get()

    own: dict[Any, Any] = {
        hybridppo.PPO: PPOConfig(
            hidden_sizes=(8, 4), schedules="clip_range=linear", encoder_sizes={"a": (4,)}, actor_keys=("a",)
        ),
        hybridppo.TD3: hybridppo.TD3Config(hidden_sizes=(8, 4)),
    }
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Box(-1, 1, (2,)))
    runs = [TrainingRun(kind(space, gym.spaces.Box(-1, 1, (1,)), own[kind]), {}) for _ in range(2)]
    first, other = Pair(0), Pair(1)
    agents: list[Any] = [run.agent for run in runs]
    for changes in ({}, {"gamma": 0.5}, {}, {"gamma": 0.25}):
        before = agents[1].config
        with first.first_only(runs[0]):
            if changes:
                agents[0].config = replace(agents[0].config, **changes)
        with other.first_only(runs[1]):
            pass
        assert agents[1].config == agents[0].config
        assert (agents[1].config is before) == (not changes)


@beside_the_extras
def test_others_wait_for_what_the_first_does_alone_and_stop_where_a_callback_ends_the_training(tmp_path: Path) -> None:
    watching: list[Watching] = []
    results = []
    for size in (1, 2):
        watching.append(Watching())
        results.append(
            train(
                distributed=f"multi:{size}:2", callbacks=watching[-1], evaluate_every=200, episodes_per_evaluation=2,
                worker_timeout=2.0, target_return=1e9, checkpoint_seconds=0.0, run_dir=tmp_path / str(size),
            )
        )  # fmt: skip
    alone, several = results
    assert several.stopped_by == alone.stopped_by == "enough"
    assert several.metrics["iteration"] == 3
    assert not several.interrupted
    assert torch.equal(values_of(several), values_of(alone))
    assert watching[1].told == watching[0].told
    assert len([what for what in watching[1].told if what.startswith("evaluation")]) == 1
    assert watching[1].told.count("checkpoint") >= 4


@beside_the_extras
@pytest.mark.parametrize("hook", ["iteration 2", "checkpoint"])
def test_what_a_failing_callback_leaves_goes_on_with_the_same_bits(hook: str, tmp_path: Path) -> None:
    with pytest.raises(hybridppo.CallbackError, match=r"Watching failed in on_.*mine.*is saved: go on"):
        train(distributed=MultiLearner(2), callbacks=Watching(hook), run_dir=tmp_path / "run", worker_timeout=5.0)
    last = hybridppo.resume(tmp_path / "run", distributed="multi:1:2", progress=False)
    assert torch.equal(values_of(last), values_of(train(distributed="multi:1:2")))


def test_a_learner_that_cannot_begin_is_named_with_its_reason() -> None:
    here = os.getpid()

    def make() -> gym.Env[Any, Any]:
        if os.getpid() != here:
            raise OSError("no licence here")
        return gym.make("CartPole-v1")

    with pytest.raises(DistributedError, match=r"learner 1 of 2 failed: OSError: no licence here"):
        train(make, distributed=MultiLearner(2))


@beside_the_extras
@pytest.mark.parametrize("name", ["rows", "gru", "frames", "pool"])
def test_what_was_stopped_and_resumed_with_other_learners_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    options = {"config": replace(CONFIG, **KINDS[name].config), **KINDS[name].options}
    whole = train(distributed="multi:1:2", **options)

    stopped = train(distributed="multi:2", run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options)
    assert stopped.interrupted
    assert stopped.saved
    assert stopped.metrics["iteration"] == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["distributed"] == "multi:2:2"
    again = hybridppo.resume(
        tmp_path / "run", distributed="multi:1:2", on_iteration=interrupt_at(3), progress=False, on_interrupt="return"
    )
    assert again.metrics["iteration"] == 3
    last = hybridppo.resume(tmp_path / "run", distributed="multi:2:2", progress=False)
    assert torch.equal(values_of(last), values_of(whole))
    assert counted(last.metrics) == counted(whole.metrics)
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == list(range(1, last.metrics["iteration"] + 1))


@beside_the_extras
def test_no_learner_outlives_the_first(tmp_path: Path) -> None:
    assert_nothing_outlives_it("multi:2", tmp_path, least=1)


@beside_the_extras
@pytest.mark.skipif(sys.platform == "win32", reason="counts descriptors of POSIX")
def test_what_learners_open_is_closed_without_a_garbage_collection() -> None:
    def opened() -> tuple[int, int, int]:
        process = psutil.Process()
        return process.num_fds(), process.num_threads(), len(process.net_connections())

    train(distributed="multi:2", num_workers=2)  # the first one loads modules
    gc.collect()
    before = opened()
    gc.disable()
    try:
        train(distributed="multi:2", num_workers=2)
        assert opened() == before
    finally:
        gc.enable()


def torchrun(*arguments: object, restarts: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    command = [*torchrun, "-m", "hybridppo", *arguments]
    process = start_python(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@beside_the_extras
def test_torchrun_gives_what_learners_started_here_do(tmp_path: Path) -> None:
    steps = 400
    flags = ["--num-envs", 4, "--num-steps", 32, "--hidden-sizes", 8, 8, "--total-steps", steps, "--no-progress"]
    ran = torchrun("train", "Pendulum-v1", "--distributed", "multi", "--run-dir", tmp_path / "run", *flags)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("training: ") == ran.stdout.count("run directory: ") == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["distributed"] == "multi:2:2"
    agent = hybridppo.load(tmp_path / "run")
    same = train(
        "Pendulum-v1", config=PPOConfig(num_envs=4, num_steps=32, hidden_sizes=(8, 8)), seed=config["seed"],
        distributed="multi:1:2", total_steps=steps,
    )  # fmt: skip
    assert torch.equal(agent.parameters.values, same.agent.parameters.values)


@beside_the_extras
def test_what_was_stopped_is_resumed_by_torchrun_to_the_same_bits(tmp_path: Path) -> None:
    stopped = train(distributed="multi:1:2", run_dir=tmp_path / "run", on_iteration=interrupt_at(2))
    assert stopped.metrics["iteration"] == 2
    ran = torchrun("resume", tmp_path / "run", "--distributed", "multi:2:2", "--no-progress")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("training: return") == ran.stdout.count("run directory: ") == 1
    assert "begins anew" not in ran.stderr
    assert ran.stderr.count("everything is restored") == 1
    whole = train(distributed="multi:1:2")
    assert torch.equal(hybridppo.load(tmp_path / "run").parameters.values, whole.agent.parameters.values)
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == list(range(1, whole.metrics["iteration"] + 1))


KILLED_ONCE = """
import os, signal
from pathlib import Path
import gymnasium as gym

class KilledOnce(gym.Wrapper):
    steps = 0
    def step(self, action):
        KilledOnce.steps += 1
        mark = Path(__file__).with_suffix(".mark")
        if os.environ["RANK"] == "1" and KilledOnce.steps == 150 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

gym.register("KilledOnce-v0", lambda: KilledOnce(gym.make("CartPole-v1")))
"""


@beside_the_extras
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_training_that_torchrun_starts_again_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "killed_once.py").write_text(KILLED_ONCE)
    flags = ["--num-envs", 4, "--num-steps", 32, "--hidden-sizes", 8, 8, "--total-steps", 512, "--no-progress"]
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ran = torchrun(
        "train", "killed_once:KilledOnce-v0", "--distributed", "multi", "--run-dir", tmp_path / "run",
        "--checkpoint-seconds", 0, *flags, restarts=1, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "killed_once.mark").exists()
    assert ran.stderr.count("everything is restored") == 1
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4]


def as_torchrun_would(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let this process look as if torchrun had started it; returns the port at which learners meet."""
    from hybridppo.distributed import learners

    monkeypatch.setattr(learners, "SECONDS_TO_START", 0.2)
    port = free_port()
    variables = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return port


@pytest.mark.parametrize("distributed", ["local", "multi:2"])
@pytest.mark.parametrize(
    ("name", "starter"),
    [("WORLD_SIZE", "torchrun"), ("SLURM_STEP_NUM_TASKS", "srun"), ("OMPI_COMM_WORLD_SIZE", "mpirun")],
)
def test_processes_that_would_all_train_the_same_are_an_error_with_both_remedies(
    name: str, starter: str, distributed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "4")
    message = (
        rf"{starter} has started 4 processes \({name}\), and with distributed={distributed} each .*--distributed multi"
    )
    with pytest.raises(ConfigurationError, match=message):
        train(distributed=distributed)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("RANK", "5", "below 2, got 5"),
        ("RANK", "-1", "a whole number of at least 0, got '-1'"),
        ("WORLD_SIZE", "two", "a whole number of at least 1, got 'two'"),
        ("MASTER_PORT", "99999", "below 65536, got 99999"),
    ],
)
def test_wrong_variables_of_torchrun_are_named_with_their_rule(
    name: str, value: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_torchrun_would(0, 2, monkeypatch)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"the variable {name} must be {rule}"):
        train(distributed="multi")


def test_a_port_that_is_taken_is_an_error_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    port = as_torchrun_would(0, 2, monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        message = rf"learner 0 cannot listen at 127.0.0.1:{port} .*is the port taken\? Choose another"
        with pytest.raises(DistributedError, match=message):
            train(distributed="multi", worker_timeout=0.3)


@pytest.mark.parametrize("options", [{"config": ppo_config(num_envs=3)}, {"checkpoint_seconds": -1}])
def test_others_that_wait_for_a_learner_are_told_at_once_what_it_was_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    as_torchrun_would(1, 2, monkeypatch)
    monkeypatch.setenv("MASTER_PORT", str(of_first.port))
    number = next(copy(module._trainings))
    with pytest.raises(ConfigurationError) as caught:
        train(distributed="multi", **options)
    store = PrefixStore(f"hybridppo/0/{number}", of_first)
    with pytest.raises(DistributedError, match=f"learner 1 of 2 failed: {caught.value}"):
        ProcessGroup(store, 0, 2, timeout=SECONDS, start_timeout=SECONDS, is_local=True)


def test_torchrun_and_another_number_of_learners_is_an_error_that_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun_would(0, 2, monkeypatch)
    monkeypatch.setattr(module, "SECONDS_TO_COME", 0.1)
    with pytest.raises(ConfigurationError, match="distributed=multi:3 has 3 learners, torchrun started 2"):
        train(distributed="multi:3")


@beside_the_extras
def test_a_run_that_is_not_shared_is_refused_by_learners_of_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run_dir=tmp_path / "run")
    ran = torchrun("resume", tmp_path / "run", "--no-progress", "--total-steps", 2 * STEPS)
    assert ran.returncode == 1
    assert ran.stderr.count("torchrun has started 2 learners, and the run has distributed=local: give") >= 2
    as_torchrun_would(0, 2, monkeypatch)
    monkeypatch.setattr(module, "SECONDS_TO_COME", 0.1)
    with pytest.raises(ConfigurationError, match="torchrun has started 2 processes"):
        hybridppo.resume(tmp_path / "run", total_steps=2 * STEPS, distributed="local", progress=False)


def test_a_learner_says_where_it_does_not_find_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    port = as_torchrun_would(1, 2, monkeypatch)
    with pytest.raises(DistributedError, match=rf"learner 1 does not reach the first at 127.0.0.1:{port}"):
        train(distributed="multi", worker_timeout=0.3)


def test_torch_distributed_that_is_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: pytest.fail("not ours"))
    with pytest.raises(ConfigurationError, match="in use already"):
        train(distributed="multi:2")
    monkeypatch.undo()


def test_a_learner_names_who_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun_would(0, 3, monkeypatch)
    with pytest.raises(DistributedError, match=r"learners 1, 2 of 3 did not start within 0\.3 s"):
        train(distributed="multi", worker_timeout=0.3, config=ppo_config(num_envs=3))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@beside_the_extras
def test_metrics_of_lag_are_those_of_all_learners() -> None:
    history: list[dict[str, float]] = []
    train(
        "Pendulum-v1", distributed=MultiLearner(2), placement=hybridppo.Mirrored("cpu", "cpu", max_lag=3),
        num_workers=2, on_iteration=history.append,
    )  # fmt: skip
    assert all(0.0 <= metrics["policy_lag_mean"] <= 3 for metrics in history)
    assert 0.0 < history[-1]["samplers_busy"] <= 1.0
    assert history[-1]["steps_dropped"] >= 0


def test_what_cannot_be_sent_to_learners_is_named() -> None:
    lock = threading.Lock()

    def locked_loss(inputs: LossInputs, config: PPOConfig, clip_range: Any) -> Loss:
        with lock:
            return ppo_loss(inputs, config, clip_range)

    message = r"the agent cannot be sent .*: own\['loss'\]'s variable 'lock' is a lock, .*, with distributed='local'"
    with pytest.raises(EnvError, match=message):
        train(distributed=MultiLearner(2), loss=locked_loss)
