"""What ends a command from outside: a closed terminal, Ctrl-C while it starts, a closed pipe."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from processes import run_python, start_python, wait_until

from hybridppo.commands.main import main
from hybridppo.run_directory.checkpoints import load_latest
from hybridppo.system.signals import Interruption, as_keyboard_interrupts

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has neither these signals nor these terminals")
SMALL = ["--num-envs", "4", "--num-steps", "32", "--num-minibatches", "2", "--placement", "cpu"]

IN_A_TERMINAL = """
import os, pty, sys, time
pid, terminal = pty.fork()  # the child leads a session of its own, in a terminal of its own
if pid == 0:
    from hybridppo.commands.main import main
    main(sys.argv[2:])
os.set_blocking(terminal, False)
deadline = time.monotonic() + 120
while not os.path.exists(sys.argv[1]):
    assert time.monotonic() < deadline
    try:
        os.read(terminal, 65536)
    except (BlockingIOError, OSError):
        time.sleep(0.01)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Runs the command in a terminal that closes when a file appears; prints the command's exit code."""

IMPORTING_FOREVER = """
import runpy, sys, time
from pathlib import Path

class Hanging:
    def find_spec(self, name, *arguments):
        if name == "torch":
            Path(sys.argv[1]).touch()
            while True:  # in short sleeps: Python misses a signal that comes just before a long one begins
                time.sleep(0.01)

sys.meta_path.insert(0, Hanging())
runpy.run_module("hybridppo", run_name="__main__")
"""


def python(*arguments: object, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stderr=subprocess.PIPE, text=True, start_new_session=os.name == "posix", **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_signals_end_a_copy_of_the_process() -> None:
    """Such as a worker of gymnasium's AsyncVectorEnv, which would else keep its parent waiting."""
    reader, writer = os.pipe()
    with Interruption() as interruption:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGINT)  # ignored
            os.write(writer, b"ready")
            while True:
                time.sleep(0.01)
        assert os.read(reader, 5) == b"ready"
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested  # here, they still ask for a stop
    os.close(reader)
    os.close(writer)


@posix
def test_a_closed_terminal_saves_and_ends_with_130(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = ["train", "CartPole-v1", "--total-steps", 10**9, "--run-dir", path, *SMALL]
    process = run_python("-c", IN_A_TERMINAL, path / "metrics.jsonl", *command)
    assert (process.stdout, process.stderr) == ("130\n", "")
    state = load_latest(path / "checkpoints")[1].state["runner"]
    assert state["iteration"] == len((path / "metrics.jsonl").read_text().splitlines()) >= 1


@posix
def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run"
    nohup = (
        "import signal, sys; from hybridppo.commands.main import main;"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); main(sys.argv[1:])"
    )
    command = ["train", "CartPole-v1", "--total-steps", 6_400, "--run-dir", path, *SMALL, "--no-progress"]
    process = start_python("-c", nohup, *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_until((path / "metrics.jsonl").exists, process)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert (path / "result.json").exists()


@posix
def test_signals_that_are_ignored_are_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_keyboard_interrupts(), Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@posix
def test_ctrl_c_while_everything_is_imported_is_quiet(tmp_path: Path) -> None:
    with python("-c", IMPORTING_FOREVER, tmp_path / "importing", stdout=subprocess.PIPE) as process:
        wait_until((tmp_path / "importing").exists, process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (130, "", "")


@posix
@pytest.mark.parametrize(
    "command",
    [["train", "--help"], pytest.param(["--version-of-nothing"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_a_reader_that_has_gone_is_no_error(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does when it has enough
    try:
        process = python("-m", "hybridppo", *command, stdout=writing)
    finally:
        os.close(writing)
    _, errors = process.communicate(timeout=120)
    assert "BrokenPipe" not in errors
    assert "Traceback" not in errors
    assert process.returncode == (0 if "--help" in command else 2)
    assert (errors == "") == ("--help" in command)


def test_ctrl_c_before_the_first_iteration_leaves_nothing_to_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = CartPoleEnv.step

    def interrupted(self: CartPoleEnv, action: object) -> object:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(CartPoleEnv, "step", step)
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", interrupted)
    path = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main(["train", "CartPole-v1", "--vectorization", "sync", "--run-dir", str(path), *SMALL])
    assert ended.value.code == 130
    errors = capsys.readouterr().err
    assert f"go on with: hybridppo resume {path}" in errors
    assert "error" not in errors
    assert not (path / "metrics.jsonl").exists()
