"""A run in the terminal: what is shown, when, and when the display ends."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ppo_settings import ppo_config
from run_files import config_of_a_run

import hybridppo
from hybridppo import RunDirectoryError
from hybridppo.commands.main import main
from hybridppo.run_directory.files import Tail
from hybridppo.tools.report import frame, watch

CONFIG = config_of_a_run(seed=4, placement={"name": "cpu", "device": "cpu"}, total_steps=1000)


def line(iteration: int, **changes: Any) -> dict[str, Any]:
    seconds = {"seconds_sampling": 0.06, "seconds_learning": 0.03, "seconds_copying": 0.01, "seconds_other": 0.0}
    numbers = {"iteration": iteration, "env_steps": 100 * iteration, "seconds": 2.0 * iteration}
    return {**numbers, "steps_per_second": 50.0, "episode_return_mean": float(iteration), **seconds, **changes}


def append(path: Path, *lines: dict[str, Any]) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def end(path: Path) -> None:
    """Write the result of the last line."""
    last = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    (path / "result.json").write_text(json.dumps({"env_steps": last["env_steps"]}))


def test_a_frame_says_how_far_how_well_and_where_the_seconds_go() -> None:
    shown = frame(CONFIG, [line(i) for i in range(1, 6)], 80)
    text = "\n".join(shown)
    assert shown[0] == "A-v0, seed 4, placement cpu"
    assert " 50% 0:10 left" in text  # 500 steps, 50 a second
    assert "500 of 1,000 steps, iteration 5, 0:10" in text
    assert "return               5  ." in text
    assert "@" in next(each for each in shown if each.startswith("return"))
    phases = {each.split()[0]: each for each in shown if " ms " in each}
    assert [(each.split()[1], each.split()[-1]) for each in phases.values()] == [
        ("60.00", "60%"), ("30.00", "30%"), ("10.00", "10%"), ("0.00", "0%"), ("0.00", "0%")
    ]  # fmt: skip
    assert all(len(each) <= 80 for each in shown)


def test_what_is_sampled_beside_the_learning_is_shown() -> None:
    shown = frame(CONFIG, [line(1, seconds_overlapped=0.08)], 100)
    assert any(each.startswith("overlapped") and "80.00 ms" in each for each in shown)


def test_each_of_several_policies_has_its_returns() -> None:
    lines = [line(i, **{"cat/episode_return_mean": 2.0 * i, "mouse/episode_return_mean": -3.0 * i}) for i in (1, 2)]
    shown = frame({**CONFIG, "policies": {"cat": {}, "mouse": {}}}, lines, 80)
    assert [each.split()[1] for each in shown if each.startswith(("cat", "mouse"))] == ["4", "-6"]
    assert not any(each.startswith("return") for each in shown)


def test_a_run_without_returns_or_iterations_is_shown() -> None:
    assert "no iteration has ended yet" in frame(CONFIG, [], 80)
    shown = frame(CONFIG, [line(1, episode_return_mean=None, steps_per_second=None)], 80)
    assert any(each.split() == ["return", "-"] for each in shown)
    assert any("? left" in each for each in shown)


@pytest.mark.parametrize("width", [20, 40, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, frame(CONFIG, [line(i) for i in range(1, 500)], width, is_silent=True))) <= width


def test_a_tail_reads_what_is_new_and_begins_anew_where_a_file_was_cut(run_dir: Path) -> None:
    tail = Tail(run_dir / "metrics.jsonl")
    assert not tail.read()
    append(run_dir, line(1), line(2))
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3')
    assert tail.read()
    assert not tail.read()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write("}\n")
    assert tail.read()
    assert [each["iteration"] for each in tail.lines] == [1, 2, 3]
    (run_dir / "metrics.jsonl").write_text(json.dumps(line(9)) + "\n")
    assert tail.read()
    assert [each["iteration"] for each in tail.lines] == [9]
    append(run_dir)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write("no json\n")
    with pytest.raises(RunDirectoryError, match="damaged"):
        tail.read()


def test_a_tail_sees_a_file_that_was_cut_and_is_longer_again(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    tail = Tail(path)
    append(run_dir, line(1), line(2), line(3))
    assert tail.read()
    # A run that was killed after its third iteration and resumed from its first, between two looks.
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first)
    append(run_dir, *({**line(number), "note": "made again"} for number in range(2, 9)))
    assert tail.read()
    assert [each["iteration"] for each in tail.lines] == list(range(1, 9))
    assert all(each["note"] == "made again" for each in list(tail.lines)[1:])


class Terminal(io.StringIO):
    def __init__(self, is_tty: bool) -> None:
        super().__init__()
        self._is_tty = is_tty

    def isatty(self) -> bool:
        return self._is_tty


def watched(run_dir: Path, *events: Callable[[], object], is_tty: bool = True) -> str:
    """What is written if one event happens between two looks, and each look lasts 20 seconds."""
    out, left, now = Terminal(is_tty), list(events), [0.0]

    def wait(seconds: float) -> None:
        assert seconds == 0.5
        now[0] += 20.0
        left.pop(0)()

    watch(run_dir, seconds=0.5, out=out, wait=wait, clock=lambda: now[0])
    assert left == []
    return out.getvalue()


def test_a_frame_takes_the_place_of_the_one_before_until_the_run_ends(run_dir: Path) -> None:
    text = watched(
        run_dir, lambda: append(run_dir, line(1)), lambda: None, lambda: append(run_dir, line(2)), lambda: end(run_dir)
    )
    frames = text.split("\x1b[")
    assert [part.count("A-v0, seed 4") for part in frames if "A-v0" in part] == [1, 1, 1]
    assert "no iteration has ended yet" in frames[0]
    assert text.count("iteration 1,") == 1  # nothing is drawn anew where nothing is new
    assert "\x1b[2A\x1b[J" in text  # over the two lines of the first
    assert text.endswith("the run has ended\n")


def test_a_result_from_before_the_newest_line_is_of_a_run_that_goes_on(run_dir: Path) -> None:
    append(run_dir, line(1))
    end(run_dir)
    append(run_dir, line(2))
    assert "iteration 3," in watched(run_dir, lambda: append(run_dir, line(3)), lambda: end(run_dir))


def test_a_finished_run_that_was_copied_has_ended_whenever_its_files_were_written(run_dir: Path) -> None:
    append(run_dir, line(1))
    end(run_dir)
    os.utime(run_dir / "result.json", ns=(0, 0))
    assert watched(run_dir).endswith("the run has ended\n")


def test_silence_is_said(run_dir: Path) -> None:
    append(run_dir, line(1))
    text = watched(run_dir, lambda: None, lambda: None, lambda: None, lambda: end(run_dir))
    assert text.count("nothing new for 30 s") == 1


def test_where_there_is_no_terminal_frames_follow_each_other(run_dir: Path) -> None:
    append(run_dir, line(1))
    text = watched(run_dir, lambda: append(run_dir, line(2)), lambda: end(run_dir), is_tty=False)
    assert "\x1b" not in text
    assert text.isascii()
    assert "#" * 5 in text


def test_a_real_run_is_shown_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    options = {"seed": 0, "placement": "cpu", "progress": False}
    hybridppo.train("CartPole-v1", total_steps=64, config=config, run_dir=tmp_path / "run", **options)
    with pytest.raises(SystemExit) as exited:
        main(["watch", str(tmp_path / "run")])
    assert exited.value.code == 0
    out = capsys.readouterr().out
    assert "CartPole-v1, seed 0" in out
    assert "the run has ended" in out


def test_ctrl_c_leaves(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridppo.tools.report.watch.__kwdefaults__", {
        "seconds": 1.0, "out": None, "wait": interrupted, "clock": lambda: 0.0,
    })  # fmt: skip
    with pytest.raises(SystemExit) as exited:
        main(["watch", str(run_dir)])
    assert exited.value.code == 0
    assert "no iteration has ended yet" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["watch", str(tmp_path)])
    assert exited.value.code == 1
    with pytest.raises(SystemExit) as exited:
        main(["watch", str(tmp_path), "--seconds", "0"])
    assert exited.value.code == 2
    assert "no run directory" in capsys.readouterr().err
