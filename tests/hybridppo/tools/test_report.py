"""A run's page: complete, and self-contained."""

import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from run_files import lines_of

import hybridppo
from hybridppo import PPOConfig, RunDirectoryError, TrainingInterrupted
from hybridppo.auto import auto
from hybridppo.auto.trials import Training
from hybridppo.commands.main import main
from hybridppo.run_directory.files import append
from hybridppo.tools import report
from hybridppo.tools.plot import read_run
from hybridppo.tools.report import watch

MISSING = "missing"
"""In place of the value of a field that is removed."""
VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Parses a page, and refuses one with unclosed elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "<run> & more"
    config = PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8, 4), learning_rate=0.002)
    options = {"seed": 7, "placement": "cpu", "evaluation_episodes": 2, "progress": False, "vectorization": "sync"}
    hybridppo.train("CartPole-v1", total_steps=640, config=config, run_dir=path, **options)
    return path


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the rest of the page: the curves take nearly all of its time."""
    monkeypatch.setattr(report, "_curves", lambda run: "")


@pytest.mark.usefixtures("no_curves")
def test_a_run_too_short_for_auto_to_measure_has_a_page(tmp_path: Path) -> None:
    config = PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,))
    options = {"seed": 7, "placement": "auto", "progress": False, "vectorization": "sync"}
    hybridppo.train("CartPole-v1", total_steps=64, config=config, run_dir=tmp_path / "run", **options)
    line = "auto: cpu; not measured (all: a run of 40 optimizer steps is too short to measure)"
    assert line in Page(hybridppo.write_report(tmp_path / "run").read_text(encoding="utf-8")).texts


def test_evaluations_have_a_curve_and_a_result_is_that_of_a_run_that_has_not_gone_on(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run, config = tmp_path / "run", PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,))
    # With this seed, all evaluations have the same mean.
    options = {"seed": 1098027073, "evaluate_every": 64, "episodes_per_evaluation": 2, "vectorization": "sync"}
    options["progress"] = False
    hybridppo.train("CartPole-v1", total_steps=160, config=config, placement="cpu", run_dir=run, **options)
    texts = Page(hybridppo.write_report(run).read_text(encoding="utf-8")).texts
    assert "evaluation return mean" in texts
    assert "finished" in texts
    stop = [lambda metrics: signal.raise_signal(signal.SIGTERM)]
    with pytest.raises(TrainingInterrupted):
        hybridppo.resume(run, total_steps=320, progress=False, loggers=stop)
    request.getfixturevalue("no_curves")
    texts = Page(hybridppo.write_report(run).read_text(encoding="utf-8")).texts
    assert "60% of 320 steps" in texts
    assert "The run has not ended, or was interrupted." in texts


def test_the_page_tells_of_the_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["report", str(run_dir)])
    assert exited.value.code == 0
    assert str(run_dir / "report.html") in capsys.readouterr().out
    page = Page((run_dir / "report.html").read_text(encoding="utf-8"))
    for said in (
        "CartPole-v1, seed 7",
        "<run> & more, hybridppo 0.1.0",
        "finished",
        "cpu",
        "8 x 4",
    ):
        assert said in page.texts, said
    result = json.loads((run_dir / "result.json").read_text())
    assert f"{result['evaluation_return_mean']:g}" in page.texts
    assert page.texts[page.texts.index("learning_rate") + 1] == "0.002"
    charts = [text for text in page.texts if text in ("episode return mean", "value loss", "entropy", "approx kl")]
    assert len(set(charts)) == 4
    strong = [number for number, (tag, attributes) in enumerate(page.tags) if attributes.get("class") == "changed"]
    assert len(strong) == 8  # as many settings as were given


@pytest.mark.usefixtures("no_curves")
def test_the_page_shows_all_settings(run_dir: Path, tmp_path: Path) -> None:
    config = json.loads((run_dir / "config.json").read_text())
    given = {"env_kwargs": {"size": 8}, "frame_stack": 4, "clip_rewards": True, "start_from": "first", "num_workers": 3}
    (tmp_path / "config.json").write_text(json.dumps({**config, **given}))
    (tmp_path / "metrics.jsonl").write_bytes((run_dir / "metrics.jsonl").read_bytes())
    texts = Page(hybridppo.write_report(tmp_path).read_text(encoding="utf-8")).texts
    settings = texts[texts.index("Settings") :]
    shown = {name: settings[settings.index(name) + 1] for name in given}
    assert shown == {
        "env_kwargs": "size 8", "frame_stack": "4", "clip_rewards": "True", "start_from": "first", "num_workers": "3"
    }  # fmt: skip
    assert {"seed", "fast_updates", "checkpoint_seconds", "learning_rate"} <= set(settings)


def test_each_of_several_policies_is_told_of(run_dir: Path, tmp_path: Path) -> None:
    config = json.loads((run_dir / "config.json").read_text())
    mine = config.pop("config")
    config["agents"], config["played"] = {}, []
    config["policies"] = {"cat": mine, "<mouse> & co": {**mine, "learning_rate": 0.5}}
    lines = lines_of(run_dir)
    of_policies = {"value_loss", "episode_return_mean"}
    several = [
        {
            **{name: value for name, value in line.items() if name not in of_policies},
            **{
                f"{who}/{name}": factor * line[name]
                for who, factor in (("cat", 1), ("<mouse> & co", 2))
                for name in of_policies
            },
        }
        for line in lines
    ]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in several))
    page = Page(hybridppo.write_report(tmp_path).read_text(encoding="utf-8"))
    last = lines[-1]["episode_return_mean"]
    for who, expected in (("cat", last), ("<mouse> & co", 2 * last)):
        shown = page.texts[page.texts.index(f"return, last 100 episodes, {who}") + 1]
        assert float(shown) == pytest.approx(expected, abs=0.05)
        assert f"{who}, value loss" in page.texts
    at = [number for number, text in enumerate(page.texts) if text == "learning_rate"]
    assert [page.texts[number + 1] for number in at] == ["0.002", "0.5"]


def test_the_page_needs_nothing_but_itself(run_dir: Path) -> None:
    text = hybridppo.write_report(run_dir).read_text(encoding="utf-8")
    page = Page(text)
    assert page.count("script") == page.count("link") == page.count("img") == 0
    addresses = re.findall(r"https?://[^\s\"<]+", text)
    assert {address.split("/")[2] for address in addresses} == {"www.w3.org"}  # names, which nobody asks for
    assert set(re.findall(r"url\(.", text)) <= {"url(#"}  # parts of the picture itself
    assert "prefers-color-scheme: dark" in text


@pytest.mark.usefixtures("no_curves")
def test_a_video_is_held_and_a_large_one_linked_to(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = run_dir / "video.mp4"
    video.write_bytes(b"frames")
    try:
        page = Page(hybridppo.write_report(run_dir).read_text(encoding="utf-8"))
        assert [a["src"] for tag, a in page.tags if tag == "video"] == ["data:video/mp4;base64,ZnJhbWVz"]
        monkeypatch.setattr("hybridppo.tools.report.LARGEST_VIDEO", 3)
        page = Page(hybridppo.write_report(run_dir).read_text(encoding="utf-8"))
        assert [a["href"] for tag, a in page.tags if tag == "a"] == ["video.mp4"]
    finally:
        video.unlink()


@pytest.mark.usefixtures("no_curves")
def test_a_run_that_goes_on_and_what_auto_chose(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(lines[0]) | {"episode_return_mean": None, "seconds_overlapped": 3.25}
    (path / "metrics.jsonl").write_text(json.dumps(first) + "\n" + "".join(lines[1:5]) + lines[5][:20])
    trial = {
        "label": "hybrid, 1 worker",
        "iteration": 0.0125,
        "sampling": 0.005,
        "learning": 0.007,
        "copying": 5e-4,
    }
    table = {"line": "hybrid is <fast>", "chosen": "hybrid, 1 worker", "trials": [trial]}
    (path / "placements.json").write_text(json.dumps(table))
    page = Page(hybridppo.write_report(path).read_text(encoding="utf-8"))
    assert "25% of 640 steps" in page.texts
    assert "auto: hybrid is <fast>" in page.texts
    assert page.texts[page.texts.index("hybrid, 1 worker") + 1] == "12.50"
    assert page.texts[page.texts.index("overlapped") + 2] == "3250.00"
    assert "The run has not ended, or was interrupted." in page.texts


def test_metrics_that_not_every_iteration_has_have_curves_and_evaluations_have_those_of_their_agents(
    run_dir: Path, tmp_path: Path
) -> None:
    lines = lines_of(run_dir)
    for number in (4, 9):  # an evaluation beside the training is reported when the next one is due
        evaluated = {"evaluation_return_mean": 9.0 + number, "evaluation_env_steps": 32 * number}
        append(tmp_path / "evaluations.jsonl", {"env_steps": 32 * number, **evaluated})
        lines[number] |= {"bonus": 1.0 * number, **evaluated}
    (tmp_path / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = report.curves_of(read_run(tmp_path))
    assert found["bonus"] == [(160, 4.0), (320, 9.0)]
    assert found["evaluation_return_mean"] == [(128, 13.0), (288, 18.0)]
    assert "evaluation_env_steps" not in found


@pytest.mark.usefixtures("no_curves")
def test_the_result_of_a_run_that_has_gone_on_since_is_not_shown(run_dir: Path, tmp_path: Path) -> None:
    for name in ("config.json", "result.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run_dir / name).read_bytes())
    assert "finished" in Page(hybridppo.write_report(tmp_path).read_text(encoding="utf-8")).texts
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    config = json.loads((run_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "total_steps": 2 * last["env_steps"]}))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**last, "env_steps": last["env_steps"] + 32}) + "\n")
    texts = Page(hybridppo.write_report(tmp_path).read_text(encoding="utf-8")).texts
    assert "finished" not in texts
    assert "The run has not ended, or was interrupted." in texts


@pytest.mark.usefixtures("no_curves")
def test_auto_that_could_not_measure_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("no second simulator")

    monkeypatch.setattr(Training, "try_out", fail)
    monkeypatch.setattr(auto, "FEWEST_STEPS", 0)
    config = PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,))
    path = tmp_path / "run"
    hybridppo.train("CartPole-v1", total_steps=32, placement="auto", config=config, run_dir=path, progress=False)
    page = Page(hybridppo.write_report(path).read_text(encoding="utf-8"))
    assert any(re.match(r"auto: cpu.*; not measured \(all: ZeroDivisionError: no second", text) for text in page.texts)


@pytest.mark.usefixtures("no_curves")
def test_a_command_that_is_no_unicode_is_escaped(run_dir: Path, tmp_path: Path) -> None:
    config = json.loads((run_dir / "config.json").read_text())
    command = os.fsdecode(b"hybridppo train --run-dir l\xe4tin")
    (tmp_path / "config.json").write_text(json.dumps({**config, "origin": {"command": command}}))
    (tmp_path / "metrics.jsonl").write_bytes((run_dir / "metrics.jsonl").read_bytes())
    assert "l\\udce4tin" in hybridppo.write_report(tmp_path).read_text(encoding="utf-8")


def test_a_run_without_a_curve_has_a_page(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "env_steps": 32, "seconds": 1.0}\n')
    page = Page(hybridppo.write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Curves" not in page.texts
    assert page.count("svg") == 0


def test_what_is_no_run_is_refused(tmp_path: Path, run_dir: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run directory"):
        hybridppo.write_report(tmp_path)
    (tmp_path / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    with pytest.raises(RunDirectoryError, match="no metrics yet"):
        hybridppo.write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


VIEWS: dict[str, Callable[[Path], object]] = {
    "report": hybridppo.write_report,
    "plot": lambda path: hybridppo.plot_runs(path, path / "curves.svg"),
    "watch": lambda path: watch(path, out=io.StringIO()),
}
OF_ALL_VIEWS: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"env_id": MISSING}, "it has no env_id"),
    ("config.json", {"config": None}, "config must be an object, got None"),
    ("config.json", {"placement": None}, "placement must be an object, got None"),
    ("config.json", {"seed": None}, "seed must be a whole number"),
    ("config.json", {"total_steps": 0}, "total_steps must be a whole number of at least 1, got 0"),
    ("config.json", {"agent": []}, "agent must be text, got []"),
    ("config.json", {"agent": "sac"}, "agent must be one of "),
    ("config.json", {"versions": None}, "versions must be an object, got None"),
    ("config.json", {"agents": {}, "played": [], "policies": {"one": None}}, "one must be an object, got None"),
    ("metrics.jsonl", {"env_steps": MISSING}, "env_steps is missing: "),
    ("metrics.jsonl", {"seconds": "3"}, "seconds must be a finite number: "),
    ("metrics.jsonl", {"episode_return_mean": "3"}, "episode_return_mean must be a finite number: "),
]
OF_THE_REPORT: list[tuple[str, dict[str, Any], str]] = [
    ("result.json", {"env_steps": "3"}, "env_steps must be a finite number: "),
    ("result.json", {"evaluation_return_mean": []}, "evaluation_return_mean must be a finite number: "),
    ("placements.json", {"chosen": "cpu", "line": "cpu", "trials": [{"label": "cpu"}]}, "KeyError: 'iteration'"),
]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    ("view", "file", "change", "words"),
    [*((view, *damage) for view in VIEWS for damage in OF_ALL_VIEWS), *(("report", *each) for each in OF_THE_REPORT)],
)
def test_what_is_damaged_is_named(
    view: str, file: str, change: dict[str, Any], words: str, run_dir: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(run_dir, tmp_path / "run")) / file
    lines = [{**json.loads(line), **change} for line in path.read_text().splitlines()] if file[-1] == "l" else []
    whole = lines or [{**(json.loads(path.read_text()) if path.exists() else {}), **change}]
    texts = [json.dumps({name: value for name, value in each.items() if value != MISSING}) for each in whole]
    path.write_text("\n".join([*texts, ""]))
    with pytest.raises(RunDirectoryError, match=re.escape(f"{file} is damaged: {words}")):
        VIEWS[view](path.parent)


@pytest.mark.parametrize("view", VIEWS)
def test_metrics_that_cannot_be_read_are_an_error(view: str, run_dir: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(run_dir, tmp_path / "run")) / "metrics.jsonl"
    path.unlink()
    path.mkdir()
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl cannot be read: "):
        VIEWS[view](path.parent)
