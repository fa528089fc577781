"""A run that is stopped anywhere and resumed ends bit-identical to one that was never stopped."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from ppo_settings import ppo_config
from processes import start_python, still_alive, wait_until, workers_of
from run_files import lines_of, timeless_lines_of
from selection import only_by_default
from space_kinds import KINDS
from stop_after import Stops, assert_stopped_update_changes_nothing, rollouts_of
from toy_environments import Catch, HighestAllowed, ScriptedEnv, newest, scripted_reward

import hybridppo
from hybridppo import Mirrored, SingleDevice
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings
from hybridppo.system.signals import Interruption, requests_to_end

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16))
ITERATIONS = 5
SIGNALS = [signal.SIGINT, *requests_to_end()]

CPU: dict[str, Any] = {"placement": SingleDevice("cpu")}
IN_TURN: dict[str, Any] = {**CPU, "vectorization": "sync"}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "cpu": CPU,
    "in turn": IN_TURN,
    "hybrid": {"placement": Mirrored("cpu", "cpu")},
    "hybrid copied": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "hybrid every 3": {"placement": Mirrored("cpu", "cpu", force_copy=True, publish_every=3)},
    "overlap in thread": {"placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 0},
}
WORKERS: dict[str, dict[str, Any]] = {
    "worker": {**CPU, "num_workers": 1},
    "workers": {**IN_TURN, "num_workers": 3},
    "overlap in worker": {"placement": Mirrored("cpu", "cpu", max_lag=1)},
}


def fresh(options: dict[str, Any]) -> dict[str, Any]:
    """With a placement of its own, because its counters are part of the metrics."""
    placement = options["placement"]
    settings = {name: value for name, value in placement.settings().items() if name != "name"}
    return {**options, "placement": type(placement)(**settings)}


def train(env: Any, run_dir: Path, options: dict[str, Any], **more: Any) -> hybridppo.TrainResult:
    total_steps = ITERATIONS * CONFIG.batch_size
    arguments = {"total_steps": total_steps, "seed": 5, "config": CONFIG, "progress": False, **fresh(options), **more}
    return hybridppo.train(env, run_dir=run_dir, on_interrupt="return", **arguments)


def assert_same(run_dir: Path, expected: Path) -> None:
    """Parameters, optimizer, generators, counters, and the metrics of every iteration, without times."""
    assert timeless_lines_of(run_dir) == timeless_lines_of(expected)
    found, wanted = (load_latest(path / "checkpoints")[1] for path in (run_dir, expected))
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name
    assert found.state["agent"] == wanted.state["agent"]
    for name in ("env_steps", "noise", "statistics", "resetting"):
        assert found.state["sampler"][name] == wanted.state["sampler"][name], name


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    return Stops(monkeypatch)


def assert_resumes_exactly(
    env: Any, options: dict[str, Any], tmp_path: Path, stops: Stops, times: int, **resuming: Any
) -> None:
    train(env, tmp_path / "expected", options)
    if not isinstance(env, str):
        resuming["env"] = env
    per_stop = stops.events // (times + 1)
    rng, path, stopped = random.Random(f"{env} {options}"), tmp_path / "run", 0
    stops.next_after(rng.randint(1, 2 * per_stop), rng.choice(SIGNALS))
    result = train(env, path, options)
    while result.interrupted:
        stopped += 1
        assert not (path / "result.json").exists()
        stops.next_after(rng.randint(1, 2 * per_stop) if stopped < times else -1, rng.choice(SIGNALS))
        result = hybridppo.resume(path, progress=False, on_interrupt="return", **resuming)
    stops.next_after(-1, signal.SIGINT)
    assert stopped >= times // 2  # the last stops may fall beyond the run's end
    assert_same(path, tmp_path / "expected")


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends a process on Windows")


@needs_signals
@pytest.mark.parametrize(
    ("env", "way"),
    only_by_default(
        (
            *("CartPole-v1, in turn", "CartPole-v1, hybrid every 3"),
            *("Pendulum-v1, hybrid copied", "Pendulum-v1, overlap in thread"),
        ),
        [(env, way) for env in ("CartPole-v1", "Pendulum-v1") for way in PLACEMENTS],
    ),
)
def test_many_stops_change_nothing(env: str, way: str, tmp_path: Path, stops: Stops) -> None:
    options = PLACEMENTS[way]
    assert_resumes_exactly(env, options, tmp_path, stops, times=4 if "hybrid" in way else 6)


@needs_signals
@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"])
def test_two_stops_change_nothing_in_the_rest_of_classic_control(env: str, tmp_path: Path, stops: Stops) -> None:
    assert_resumes_exactly(env, CPU, tmp_path, stops, times=2)


@needs_signals
@pytest.mark.parametrize("way", only_by_default(("workers", "overlap in worker"), WORKERS))
def test_two_stops_of_worker_processes_change_nothing(way: str, tmp_path: Path, stops: Stops) -> None:
    assert_resumes_exactly("CartPole-v1", WORKERS[way], tmp_path, stops, times=2)


TD3 = {"config": hybridppo.TD3Config(num_envs=2, hidden_sizes=(8,), learning_starts=16, steps_per_iteration=32)}
LONGER: dict[str, dict[str, Any]] = {
    "cpu": CPU,
    "overlap in thread": PLACEMENTS["overlap in thread"],
    "overlap in worker": WORKERS["overlap in worker"],
    "overlap of TD3": {**PLACEMENTS["overlap in thread"], **TD3},
    "overlap of learners": {**PLACEMENTS["overlap in thread"], "distributed": hybridppo.MultiLearner(2)},
}


@pytest.mark.parametrize("way", only_by_default(list(LONGER)[:4], list(LONGER)))
def test_a_finished_run_that_trains_on_is_the_run_that_was_longer_from_the_start(way: str, tmp_path: Path) -> None:
    constant = replace(CONFIG, anneal_learning_rate=False, anneal_clip_range=False)
    options, steps = {"config": constant, **LONGER[way]}, ITERATIONS * CONFIG.batch_size
    train("Pendulum-v1", tmp_path / "run", options, total_steps=2 * CONFIG.batch_size)
    hybridppo.resume(tmp_path / "run", total_steps=steps, progress=False)
    train("Pendulum-v1", tmp_path / "expected", options)
    assert_same(tmp_path / "run", tmp_path / "expected")


@pytest.mark.slow
@needs_signals
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("options", WORKERS.values(), ids=list(WORKERS))
def test_ten_stops_of_worker_processes_change_nothing(
    env: str, options: dict[str, Any], tmp_path: Path, stops: Stops
) -> None:
    assert_resumes_exactly(env, options, tmp_path, stops, times=10)


@needs_signals
@pytest.mark.parametrize(
    # Taxi holds large tables, and workers take long to start: of those there are few, and they are stopped less often.
    ("env", "options", "times"),
    only_by_default(
        ("workers",),
        [
            pytest.param(newest("Taxi"), {**IN_TURN, "config": replace(CONFIG, num_envs=1)}, 2, id="Taxi"),
            pytest.param(HighestAllowed, IN_TURN, 4, id="in turn"),
            pytest.param(HighestAllowed, {**IN_TURN, "num_workers": 2}, 2, id="workers"),
        ],
    ),
)
def test_masks_resume_exactly(env: Any, options: dict[str, Any], times: int, tmp_path: Path, stops: Stops) -> None:
    assert_resumes_exactly(env, {**options, "action_masks": True}, tmp_path, stops, times)


@needs_signals
@pytest.mark.parametrize(
    ("options", "times"),
    only_by_default(
        ("overlap in thread",),
        [
            pytest.param(IN_TURN, 3, id="in turn"),
            pytest.param(PLACEMENTS["overlap in thread"], 3, id="overlap in thread"),
            pytest.param({**IN_TURN, "num_workers": 2}, 2, id="workers"),
        ],
    ),
)
def test_images_resume_exactly(options: dict[str, Any], times: int, tmp_path: Path, stops: Stops) -> None:
    assert_resumes_exactly(Catch, options, tmp_path, stops, times)


@needs_signals
@pytest.mark.parametrize(
    ("name", "masks"),
    only_by_default(("image and vector, True",), [("image and vector", True), ("dict, nested", False)]),
)
def test_spaces_made_of_others_resume_exactly(name: str, masks: bool, tmp_path: Path, stops: Stops) -> None:
    env = partial(KINDS[name].make, masks=True) if masks else KINDS[name].make
    assert_resumes_exactly(env, {**IN_TURN, "action_masks": masks}, tmp_path, stops, times=3)


@needs_signals
def test_whole_episodes_resume_exactly(tmp_path: Path, stops: Stops) -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=2, num_minibatches=1, hidden_sizes=(8, 8))
    options = {**IN_TURN, "config": config, "total_steps": 2**40, "total_episodes": 20}
    assert_resumes_exactly("CartPole-v1", options, tmp_path, stops, times=4)


@needs_signals
@pytest.mark.parametrize(("before", "after"), only_by_default(("2, 0",), [(0, 3), (3, 2), (2, 0)]))
def test_a_run_goes_on_exactly_with_another_number_of_workers(
    before: int, after: int, tmp_path: Path, stops: Stops
) -> None:
    options = {**IN_TURN, "num_workers": before}
    assert_resumes_exactly("CartPole-v1", options, tmp_path, stops, times=2, num_workers=after)


@needs_signals
def test_what_cannot_be_divided_among_workers_starts_anew_and_is_told(
    tmp_path: Path, stops: Stops, caplog: pytest.LogCaptureFixture
) -> None:
    stops.next_after(20, signal.SIGTERM)
    assert train("CartPole-v1", tmp_path / "run", {**CPU, "num_workers": 2}).interrupted
    with caplog.at_level("INFO"):
        assert not hybridppo.resume(tmp_path / "run", num_workers=3, progress=False, on_interrupt="return").interrupted
    (told,) = [message for message in caplog.messages if message.startswith("resuming")]
    assert "new episodes: they were saved as vectors of [2, 2] environments" in told
    iterations = [line["iteration"] for line in lines_of(tmp_path / "run")]
    assert iterations == [*range(1, len(iterations) + 1)]


@needs_signals
@pytest.mark.parametrize("kind", ["sampling", "learning"])
def test_a_stop_within_an_iteration_is_kept_and_told_from_one_at_its_end(
    kind: str, tmp_path: Path, stops: Stops
) -> None:
    events = {"sampling": 5, "learning": CONFIG.num_steps + 2}[kind]
    stops.next_after(events, signal.SIGTERM)
    assert train("CartPole-v1", tmp_path / "run", IN_TURN).interrupted
    folder, checkpoint = load_latest(tmp_path / "run" / "checkpoints")
    under_way, learning = checkpoint.state["sampler"]["under_way"], checkpoint.state["runner"]["version"]
    if kind == "sampling":
        assert (under_way["filled"], learning) == (5, None)
        assert int(folder.name) == 5 * CONFIG.num_envs
        assert checkpoint.tensors["sampler.buffer.rewards"].shape == (5, CONFIG.num_envs)
    else:
        assert (under_way, learning) == (None, 0)
        assert int(folder.name) == CONFIG.batch_size - 1
        assert checkpoint.tensors["optimizer.step"].item() == 0  # as if the update had not begun
    assert checkpoint.state["runner"]["iteration"] == 0


@needs_signals
def test_work_within_an_iteration_is_never_lost_to_stops(tmp_path: Path, stops: Stops) -> None:
    # As on a machine that is taken away again and again, before an iteration has ended.
    train("CartPole-v1", tmp_path / "expected", IN_TURN, total_steps=2 * CONFIG.batch_size)
    stops.next_after(3, signal.SIGUSR1)
    result = train("CartPole-v1", tmp_path / "run", IN_TURN, total_steps=2 * CONFIG.batch_size)
    numbers = []
    while result.interrupted:
        numbers.append(int(load_latest(tmp_path / "run" / "checkpoints")[0].name))
        assert len(numbers) < 100
        stops.next_after(5, signal.SIGUSR1)
        result = hybridppo.resume(tmp_path / "run", progress=False, on_interrupt="return")
    assert numbers == sorted(numbers)
    assert_same(tmp_path / "run", tmp_path / "expected")


def test_an_environment_that_was_changed_starts_new_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def made(length: int) -> Callable[[], ScriptedEnv]:
        return lambda: ScriptedEnv(((length, "truncated"),))

    train(made(20), tmp_path / "run", IN_TURN, total_steps=2 * CONFIG.batch_size)
    with caplog.at_level("INFO"):
        hybridppo.resume(tmp_path / "run", env=made(30), total_steps=3 * CONFIG.batch_size, progress=False)
    assert "new episodes: environment 0: ._script is not what it was when the run began" in caplog.text


@needs_signals
@pytest.mark.parametrize("events", [CONFIG.num_steps + 2, -1], ids=["within an update", "between updates"])
def test_new_episodes_begin_without_the_discounted_returns_of_lost_ones(
    events: int, tmp_path: Path, stops: Stops
) -> None:
    def made(length: int) -> Callable[[], ScriptedEnv]:  # of another length, so that it is not restored
        return lambda: ScriptedEnv(((length, "truncated"),))

    config = replace(CONFIG, normalize_rewards=True, gamma=0.9)
    stops.next_after(events, signal.SIGTERM)
    train(made(200), tmp_path / "run", IN_TURN, config=config, total_steps=CONFIG.batch_size)
    stops.next_after(-1, signal.SIGTERM)
    resumed: Any = hybridppo.resume(
        tmp_path / "run", env=made(300), total_steps=2 * CONFIG.batch_size, progress=False
    ).agent
    # Of one rollout: of the second episode, since the first ends with the reset that restores the environment.
    expected = sum(0.9 ** (CONFIG.num_steps - step) * scripted_reward(1, step) for step in range(CONFIG.num_steps))
    assert resumed.normalization.rewards.returns.tolist() == pytest.approx([expected] * 4)


# Signals to real processes

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


HYBRIDPPO = ("-m", "hybridppo")


class Process:
    """A Python process in a process group of its own."""

    def __init__(self, *arguments: object) -> None:
        self.popen = start_python(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.communicate()

    def send_to_all(self, number: signal.Signals) -> None:
        os.killpg(self.popen.pid, number)

    def finished(self) -> tuple[int, str]:
        """Exit code and output, after a check that no process is left."""
        try:
            children = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it has ended already
            children = []
        _, errors = self.popen.communicate(timeout=120)
        assert not still_alive(children, 20.0)
        return self.popen.returncode, errors


SMALL = ["--num-envs", 4, "--num-steps", 32, "--num-minibatches", 2, "--placement", "cpu", "--no-progress"]


def lines(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@posix
@pytest.mark.parametrize(
    ("number", "stepped"),
    [
        (SIGNALS[0], []),
        (SIGNALS[0], ["--num-workers", 2]),
        (SIGNALS[-1], []),
        (SIGNALS[-1], ["--num-workers", 2]),
    ],
    ids=str,
)
def test_signals_to_the_whole_group_save_and_exit_with_130(
    number: signal.Signals, stepped: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    with Process(
        *HYBRIDPPO, "train", "CartPole-v1", "--total-steps", 10**9, "--run-dir", path, *SMALL, *stepped
    ) as process:
        wait_until(lambda: lines(path) >= 2, process.popen)
        process.send_to_all(number)
        code, errors = process.finished()
    assert code == 130, errors
    assert f"hybridppo resume {path}" in errors
    assert "Traceback" not in errors
    assert not (path / "result.json").exists()
    state = load_latest(path / "checkpoints")[1].state
    assert [line["iteration"] for line in lines_of(path)] == [*range(1, state["runner"]["iteration"] + 1)]
    result = hybridppo.resume(path, total_steps=state["runner"]["steps_learned"] + 1, progress=False)
    assert result.metrics["iteration"] == state["runner"]["iteration"] + 1


@posix
def test_a_signal_while_evaluating_ends_it_and_resume_evaluates(tmp_path: Path) -> None:
    path = tmp_path / "run"
    arguments = ["--total-steps", 256, "--run-dir", path, "--evaluation-episodes", 100_000, *SMALL]
    with Process(*HYBRIDPPO, "train", "CartPole-v1", *arguments) as process:
        wait_until(lambda: (path / "checkpoints" / f"{256:012d}").exists() or lines(path) >= 3, process.popen)
        process.send_to_all(signal.SIGTERM)
        code, errors = process.finished()
    assert code == 130, errors
    assert not (path / "result.json").exists()


@posix
@pytest.mark.parametrize("name", only_by_default(("SIGTERM",), ("SIGINT", "SIGTERM")))
def test_a_signal_while_preparing_leaves_a_run_to_resume(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    # On a busy machine, a worker may take longer to start than a stopped training waits for it.
    patient = "from hybridppo.system import signals; signals.SECONDS_TO_COME = 100.0; "
    command = ("-c", patient + "from hybridppo.__main__ import main; main()")
    with Process(
        *command, "train", "CartPole-v1", "--total-steps", 10**9, "--run-dir", path, *SMALL, "--num-workers", 2
    ) as process:
        wait_until(lambda: workers_of(process.popen.pid), process.popen)  # the first has started
        process.send_to_all(signal.Signals[name])
        code, errors = process.finished()
    assert code == 130, errors
    assert "Traceback" not in errors
    state = load_latest(path / "checkpoints")[1].state
    result = hybridppo.resume(path, total_steps=state["runner"]["steps_learned"] + 1, progress=False)
    assert result.metrics["iteration"] == state["runner"]["iteration"] + 1


HANGING = """
import sys, time, gymnasium as gym, numpy as np
from pathlib import Path
import hybridppo
from hybridppo.commands.main import run_command

class Hanging(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        Path(sys.argv[1]).touch()
        while True:  # in short sleeps: Python misses a signal that comes just before a long one begins
            time.sleep(0.01)

class Command:
    debug = False
    def run(self):
        config = hybridppo.PPOConfig(num_envs=1, num_steps=8, num_minibatches=2)
        hybridppo.train(Hanging, total_steps=99, config=config, placement="cpu", progress=False)

sys.exit(run_command(Command))
"""


@posix
def test_a_second_ctrl_c_ends_a_step_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGING)
    with Process(tmp_path / "script.py", tmp_path / "stepping") as process:
        wait_until(lambda: (tmp_path / "stepping").exists(), process.popen)
        process.send_to_all(signal.SIGTERM)
        stderr = process.popen.stderr
        assert stderr is not None
        assert "Ctrl-C again stops at once" in stderr.readline()
        process.send_to_all(signal.SIGTERM)  # says nothing new
        assert process.popen.poll() is None
        process.send_to_all(signal.SIGINT)
        code, _ = process.finished()
    assert code == 130


@posix
def test_commands_that_save_nothing_end_with_130_too(tmp_path: Path) -> None:
    train("CartPole-v1", tmp_path / "run", CPU, total_steps=64)
    with Process(*HYBRIDPPO, "evaluate", tmp_path / "run", "--episodes", 10**7, "--no-progress") as process:
        # Handlers are set when the command begins; until then the default ends the process.
        wait_until(lambda: _catches(process.popen.pid, signal.SIGUSR1), process.popen)
        process.send_to_all(signal.SIGUSR1)
        code, errors = process.finished()
    assert (code, errors) == (130, "interrupted\n")


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to see which signals a process catches")
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


# The handlers themselves


def test_handlers_of_the_program_are_left_alone_and_put_back() -> None:
    def own(signum: int, frame: object) -> None:
        raise AssertionError

    number = requests_to_end()[-1]
    before, sigint = signal.signal(number, own), signal.getsignal(signal.SIGINT)
    try:
        with Interruption():
            assert signal.getsignal(number) is own
            assert signal.getsignal(signal.SIGINT) is not sigint
        assert signal.getsignal(signal.SIGINT) is sigint
    finally:
        signal.signal(number, before)


def test_who_is_told_late_is_told_at_once() -> None:
    told: list[int] = []
    with Interruption() as interruption:
        interruption.tell(lambda: told.append(1))
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested
        interruption.tell(lambda: told.append(2))
        signal.raise_signal(signal.SIGTERM)  # nothing more
    assert told == [1, 2]


@pytest.mark.parametrize(("saves", "expected"), [(True, "and saving"), (False, "no run directory to save to")])
def test_what_is_said_of_saving_is_true(saves: bool, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    with Interruption(saves=saves):
        signal.raise_signal(signal.SIGTERM)
    assert expected in caplog.text


def test_an_update_that_is_broken_off_leaves_the_agent_as_it_was(tmp_path: Path) -> None:
    result = train("CartPole-v1", tmp_path / "run", IN_TURN, total_steps=2 * CONFIG.batch_size)
    agent, short = result.agent, {"total_steps": CONFIG.batch_size}
    copy, rollouts = rollouts_of(type(agent), lambda: train("CartPole-v1", tmp_path / "copy", IN_TURN, **short))
    for one in (agent, copy.agent):
        assert_stopped_update_changes_nothing(one, rollouts[0], after=2)
    assert np.isfinite(agent.parameters.values.detach().numpy()).all()
    shutil.rmtree(tmp_path / "copy")


def test_seconds_without_end_are_kept(tmp_path: Path) -> None:
    endless = {"checkpoint_seconds": math.inf, "worker_timeout": math.inf}
    hybridppo.train(
        "CartPole-v1", total_steps=64, seed=0, config=CONFIG, placement="cpu", run_dir=tmp_path / "run", progress=False,
        **endless,
    )  # fmt: skip
    written = (tmp_path / "run" / "config.json").read_bytes()
    assert json.loads(written, parse_constant=pytest.fail)["checkpoint_seconds"] is None  # JSON by the standard
    settings = Settings.read(RunDirectory.open(tmp_path / "run"))
    assert settings.run.checkpoint_seconds == settings.environment.worker_timeout == math.inf
    assert not hybridppo.resume(tmp_path / "run", progress=False).interrupted


def test_metrics_that_were_not_numbers_are_none_after_a_resume_either(tmp_path: Path) -> None:
    """No episode ends, and nothing is left to do."""
    config = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(4,))
    options: dict[str, Any] = {"config": config, "placement": "cpu", "progress": False}
    whole = hybridppo.train("Pendulum-v1", total_steps=32, run_dir=tmp_path / "run", **options)
    resumed = hybridppo.resume(tmp_path / "run", progress=False, evaluation_episodes=5)
    assert resumed.metrics.keys() == whole.metrics.keys()
    assert math.isnan(whole.metrics["episode_return_mean"])
    assert math.isnan(resumed.metrics["episode_return_mean"])
