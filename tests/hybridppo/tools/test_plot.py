"""Plots of several runs: which form a group, what is drawn of it, and the files."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_python
from run_files import config_of_a_run, on_a_full_disk

import hybridppo
from hybridppo import ConfigurationError, RunDirectoryError
from hybridppo.commands.main import main
from hybridppo.errors import pip_install
from hybridppo.tools.plot import (
    Group,
    band_of,
    by_policy,
    find_runs,
    groups_of,
    interquartile_mean,
    read_run,
)
from hybridppo.tools.report import frame

CONFIG = {"learning_rate": 1e-3, "hidden_sizes": [64, 64]}


def make_run(
    path: Path,
    returns: list[float | None],
    *,
    seed: int = 0,
    env_id: str = "A-v0",
    options: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run with ten steps and two seconds per iteration."""
    path.mkdir(parents=True)
    settings = config_of_a_run(env_id=env_id, seed=seed, placement={"name": "single"}, config={**CONFIG, **config})
    settings |= options or {}
    (path / "config.json").write_text(json.dumps(settings))
    lines = [
        {"iteration": i, "env_steps": 10 * i, "seconds": 2.0 * i, "episode_return_mean": value}
        for i, value in enumerate(returns, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], 3.0), ([1.0, 2.0, 6.0], 3.0), ([100.0, 1.0, 3.0, -50.0], 2.0), ([0, 1, 2, 3, 4, 5, 6, 700], 3.5)],
)
def test_interquartile_means_leave_a_quarter_out_at_either_end(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.asarray(values)) == expected


def make_run_of_policies(path: Path, *, seed: int = 0, played: tuple[str, ...] = (), **mouse: Any) -> Path:
    """A run of cats and mice, which have ended no episode."""
    make_run(path, [0.0, 0.0], seed=seed, options={"played": played})
    config = json.loads((path / "config.json").read_text())
    config["policies"] = {"cat": config.pop("config"), "mouse": {**CONFIG, "learning_rate": 0.5, **mouse}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_policies_whose_rivals_had_other_settings_are_no_seeds_of_one_configuration(tmp_path: Path) -> None:
    """They learned in other circumstances, although their own settings are the same."""
    of_rivals: dict[str, dict[str, Any]] = {"a": {}, "b": {"seed": 1}, "c": {"gamma": 0.9}, "d": {"played": ("mouse",)}}
    paths = [make_run_of_policies(tmp_path / name, **rival) for name, rival in of_rivals.items()]
    runs = [run for path in paths for run in by_policy(read_run(path))]
    groups = [group for group in groups_of(runs) if group.env_id == "A-v0, cat"]
    assert [[run.path.name for run in group.runs] for group in groups] == [["a", "b"], ["c"], ["d"]]
    assert groups[2].label == "mouse played"


def test_each_of_several_policies_has_a_panel(tmp_path: Path) -> None:
    paths = []
    for seed in range(2):
        path = make_run_of_policies(tmp_path / str(seed), seed=seed)
        returns = {"cat/episode_return_mean": 1.0 + seed, "mouse/episode_return_mean": None, "cat/episodes": 3}
        lines = [{"iteration": i, "env_steps": 10 * i, "seconds": 1.0 * i, **returns} for i in (1, 2)]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        paths.append(path)
    cats, mice = groups_of([run for path in paths for run in by_policy(read_run(path))])
    assert [(group.env_id, len(group.runs)) for group in (cats, mice)] == [("A-v0, cat", 2), ("A-v0, mouse", 2)]
    assert cats.runs[1].curve("steps")[1].tolist() == [2.0, 2.0]
    assert cats.runs[0].lines[0]["episodes"] == 3
    assert mice.runs[0].settings["learning_rate"] == 0.5
    assert [run.policy for run in by_policy(read_run(make_run(tmp_path / "one", [1.0])))] == [""]
    # The mice have ended no episode.
    assert [group.env_id for group in hybridppo.plot_runs(paths, tmp_path / "curves.svg")] == ["A-v0, cat"]


def test_seeds_are_a_group_and_groups_are_called_what_they_differ_in(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"a{seed}", [1.0], seed=seed) for seed in range(3)]
    paths += [make_run(tmp_path / "b", [1.0], learning_rate=1e-4), make_run(tmp_path / "c", [1.0], env_id="C-v0")]
    groups = groups_of([read_run(path) for path in paths])
    assert [(group.env_id, group.label, len(group.runs)) for group in groups] == [
        ("A-v0", "learning_rate 0.001", 3),
        ("A-v0", "learning_rate 0.0001", 1),
        ("C-v0", "C-v0", 1),
    ]


MIRRORED = {"name": "hybrid", "sampling": "cpu", "learning": "cpu"}
UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"env_kwargs": {"size": 8}}, "size 8"),
    ({"frame_stack": 4}, "frame_stack 4"),
    ({"clip_rewards": True}, "clip_rewards"),
    ({"start_from": "runs/first"}, "start_from runs/first"),
    ({"episodic_life": True}, "episodic_life"),
    ({"action_masks": True}, "action_masks"),
    ({"vectorization": "sync"}, "vectorization sync"),
    ({"total_steps": 7}, "total_steps 7"),
    ({"distributed": "central:2"}, "distributed central:2:1"),
    ({"placement": {**MIRRORED, "publish_every": 1, "max_lag": 1}}, "max_lag 1"),
    ({"own": {"loss": "my_loss"}}, "loss my_loss"),
    ({"evaluate_every": 7, "target_return": 3.0}, "target_return 3.0"),
    ({"own": {"agent": "Mine"}}, "agent Mine"),
    ({"agent": "ddpg"}, "ddpg"),
]
ALIKE: list[dict[str, Any]] = [
    {"num_workers": 4},
    {"env_threads": 2},
    {"worker_timeout": 3.0},
    {"evaluate_every": 7},
    {"checkpoint_seconds": 7.0, "keep_checkpoints": 1},
    {"track": "tensorboard"},
    {"distributed": "multi:1"},
    {"placement": {**MIRRORED, "publish_every": 1, "max_lag": 0}},
    {"versions": {"python": "3.9"}},
    {"frame_stack": 1, "env_kwargs": None},
]


@pytest.mark.parametrize(("options", "label"), UNLIKE, ids=str)
def test_runs_of_other_settings_are_no_seeds_of_one(options: dict[str, Any], label: str, tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [1.0], seed=1, options=options)]
    one, other = groups_of([read_run(path) for path in paths])
    assert [len(one.runs), len(other.runs)] == [1, 1]
    assert sorted(other.label.split(", ")) == sorted(label.split(", "))
    assert one.label not in (other.label, "")


@pytest.mark.parametrize(
    "changes", [*ALIKE, {"config": {**CONFIG, "fast_updates": False, "torch_threads": 3}}], ids=str
)
def test_runs_that_differ_in_nothing_that_changes_a_result_are_seeds_of_one(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    paths = [make_run(tmp_path / "a", [1.0]), make_run(tmp_path / "b", [1.0], seed=1, options=changes)]
    assert len(group_of(*paths).runs) == 2


def test_one_seed_does_not_count_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [
        make_run(tmp_path / "stopped", [1.0]),
        make_run(tmp_path / "other", [1.0], seed=1),
        make_run(tmp_path / "again", [1.0, 2.0], options={"num_workers": 2}),
    ]
    group = group_of(*paths)
    assert [run.path.name for run in group.runs] == ["other", "again"]
    assert re.search(r"stopped is left out: .*again is of the same seed and settings", caplog.text)


def test_labels_say_in_a_few_words_what_groups_differ_in(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"gamma": 0.99, "gae_lambda": 0.95, "num_epochs": 10, "normalize_advantage": True}
    many = {"gamma": 0.9, "gae_lambda": 0.8, "num_epochs": 4, "normalize_advantage": False}
    paths = [
        make_run(tmp_path / "a", [1.0], **usual),
        make_run(tmp_path / "b", [1.0], **many),
        make_run(tmp_path / "c", [1.0], **many, hidden_sizes=[8, 8]),
        make_run(tmp_path / "d", [1.0], options={"agent": "td3", "config": {"tau": 0.01}}),
    ]
    labels = [group.label for group in groups_of([read_run(path) for path in paths])]
    assert labels == [
        "ppo, a",
        "ppo, b",
        "ppo, c",
        "td3",
    ]


def test_a_run_is_shown_without_its_settings_and_metrics(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1.0])
    assert repr(read_run(path)) == f"Run(path={path!r}, policy='', label='')"


def test_an_empty_setting_has_a_label(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"run{name}", [1.0], schedules=name) for name in ("", "gamma=linear")]
    assert [group.label for group in groups_of([*map(read_run, paths)])] == ["no schedules", "schedules gamma=linear"]


def plotted(tmp_path: Path, *arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["plot", *map(str, arguments), "--output", str(tmp_path / "curves.png")])
    return int(exited.value.code or 0)


def test_labels_name_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for seed in range(2):
        make_run(tmp_path / "slow" / str(seed), [1.0, 2.0], seed=seed)
        make_run(tmp_path / "fast" / str(seed), [1.0, 2.0], seed=seed, options={"num_workers": 2})
        make_run(tmp_path / "wide" / str(seed), [1.0, 2.0], seed=seed, hidden_sizes=[256])
    slow, fast, wide = (tmp_path / name for name in ("slow", "fast", "wide"))
    # A label for each folder tells apart what would be one group.
    assert plotted(tmp_path, slow, fast, "--label", "one process", "--label", "two", "--by", "seconds") == 0
    out = capsys.readouterr().out
    assert "A-v0: one process, 2 seeds\nA-v0: two, 2 seeds" in out
    # Configurations of one label are no seeds of one.
    assert plotted(tmp_path, slow, wide, "--label", "mine", "--label", "mine") == 0
    assert "mine, hidden_sizes 64x64, 2 seeds\nA-v0: mine, hidden_sizes 256, 2" in capsys.readouterr().out
    assert plotted(tmp_path, slow, wide, "--label", "a", "--label", "b", "--label", "c") == 2
    assert "a label for each of 2 folders, got a, b, c" in capsys.readouterr().err


def group_of(*paths: Path) -> Group:
    (group,) = groups_of([read_run(path) for path in paths])
    return group


def test_a_band_is_drawn_where_all_runs_have_been(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", [None, 10.0, 20.0, 30.0], seed=0)
    second = make_run(tmp_path / "b", [0.0, 0.0, 0.0, 0.0, 0.0, 0.0], seed=1)
    band = band_of(group_of(first, second), "steps")
    assert (band.at[0], band.at[-1]) == (20.0, 40.0)
    np.testing.assert_allclose(band.middle, np.linspace(5.0, 15.0, len(band.at)))
    # Two runs: a quarter of the resamples are of one of them alone, so a band of 95 % is from run to run.
    np.testing.assert_allclose((band.low, band.high), (2 * band.middle * 0, 2 * band.middle), atol=1e-9)
    seconds = band_of(group_of(first, second), "seconds")
    assert (seconds.at[0], seconds.at[-1]) == (4.0, 8.0)


def test_a_band_holds_the_middle_and_is_the_same_each_time(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    paths = [make_run(tmp_path / str(i), generator.normal(size=20).tolist(), seed=i) for i in range(6)]
    band, again = band_of(group_of(*paths), "steps"), band_of(group_of(*paths), "steps")
    assert (band.low <= band.middle).all()
    assert (band.middle <= band.high).all()
    assert (band.high - band.low > 0).all()
    narrower = band_of(group_of(*paths), "steps", confidence=0.5)
    assert (narrower.high - narrower.low).mean() < (band.high - band.low).mean()
    np.testing.assert_array_equal(band.low, again.low)


def test_one_run_has_no_band(tmp_path: Path) -> None:
    band = band_of(group_of(make_run(tmp_path / "a", [1.0, 2.0])), "steps")
    np.testing.assert_array_equal(band.low, band.high)


def test_folders_of_runs_are_looked_into(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "runs" / "a", [1.0]), make_run(tmp_path / "runs" / "b", [1.0])
    assert [run.path for run in find_runs(tmp_path / "runs")] == [first.resolve(), second.resolve()]
    with pytest.raises(RunDirectoryError, match="no run directory, and there is none in it"):
        find_runs(first / ".." / "..")


def test_a_run_of_a_folder_that_has_just_begun_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun = make_run(tmp_path / "runs" / "a", [])
    assert [run.path for run in find_runs(tmp_path / "runs")] == [begun.resolve()]  # drawing it says what is missing
    assert not caplog.records
    whole = make_run(tmp_path / "runs" / "b", [None, 1.0])
    early = make_run(tmp_path / "runs" / "c", [None, None], seed=1)
    assert [run.path for run in find_runs(tmp_path / "runs")] == [whole.resolve()]
    assert caplog.messages == [f"no episode has ended yet in {run}, and it is left out" for run in (begun, early)]


def test_a_single_folder_may_be_given_by_itself(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", [1.0])
    for folder in (tmp_path / "runs", str(tmp_path / "runs" / "a")):
        (group,) = hybridppo.plot_runs(folder, tmp_path / "curves.svg", labels=["mine"])
        assert group.label == "mine"


def test_a_line_under_way_is_not_read_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", [1.0, 2.0])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "env_')
    assert len(read_run(path).lines) == 2
    with (path / "metrics.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(RunDirectoryError, match=r"damaged.*\"env_"):
        read_run(path)


def test_runs_without_episodes_and_without_anything_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no episode has ended in .*none"):
        band_of(group_of(make_run(tmp_path / "none", [None])), "steps")
    late = make_run(tmp_path / "late", [None] * 5 + [1.0], seed=1)
    with pytest.raises(ConfigurationError, match="no steps in common"):
        band_of(group_of(make_run(tmp_path / "early", [1.0, 2.0]), late), "steps")
    with pytest.raises(ConfigurationError, match=r"no episode has ended in .*empty"):
        band_of(group_of(make_run(tmp_path / "empty", [])), "steps")


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        ("a.jpg", {}, r"\.svg, \.pdf"),
        ("a.png", {"by": "hours"}, "by must be"),
        ("a.png", {"confidence": 1.0}, "confidence must be a number between 0 and 1, got 1.0"),
        ("a.png", {"confidence": "0.9"}, "confidence must be a number between 0 and 1, got '0.9'"),
    ],
)
def test_what_cannot_be_meant_is_refused(output: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        hybridppo.plot_runs([make_run(tmp_path / "run", [1.0])], tmp_path / output, **options)
    assert not (tmp_path / output).exists()


def test_a_number_is_no_run_directory(tmp_path: Path) -> None:
    number: Any = 3
    with pytest.raises(RunDirectoryError, match="must be a path, got 3"):
        hybridppo.plot_runs(number, tmp_path / "a.png")


def test_a_picture_stays_if_the_disk_is_full(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, picture = make_run(tmp_path / "run", [1.0]), tmp_path / "a.png"
    hybridppo.plot_runs(run, picture)
    before = picture.read_bytes()
    with on_a_full_disk(), pytest.raises(RunDirectoryError, match=r"a\.png cannot be written: "):
        hybridppo.plot_runs(run, picture)
    assert picture.read_bytes() == before


def test_without_matplotlib_the_remedy_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [1.0])
    code = f"""
import sys
sys.modules["matplotlib"] = None
from hybridppo.commands.main import main
main(["plot", {str(run)!r}, "--output", {str(tmp_path / "a.png")!r}])
"""
    process = run_python("-c", code)
    assert process.returncode == 2
    assert pip_install("plot") in process.stderr


@pytest.mark.parametrize("by", ["steps", "seconds"])
def test_pictures_are_files_with_every_group(by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for seed in range(3):
        make_run(tmp_path / "runs" / f"a{seed}", [1.0 * seed, 2.0, 3.0], seed=seed)
        make_run(tmp_path / "runs" / f"b{seed}", [5.0, 2.0 * seed, 3.0], seed=seed, learning_rate=0.1)
    make_run(tmp_path / "runs" / "c", [1.0, 2.0], env_id="C-v0")
    for name in ("new/curves.svg", "curves.png", "curves.pdf")[: 3 if by == "steps" else 1]:
        with pytest.raises(SystemExit) as exited:
            main(["plot", str(tmp_path / "runs"), "--output", str(tmp_path / name), "--by", by])
        assert exited.value.code == 0
    assert "A-v0: learning_rate 0.1, 3 seeds" in capsys.readouterr().out
    if by == "steps":
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n")
        assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    picture = ElementTree.parse(tmp_path / "new" / "curves.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    bands = [
        each for each in picture.iter() if "FillBetween" in each.get("id", "") or "PolyCollection" in each.get("id", "")
    ]
    assert len(bands) == 2


def test_no_name_controls_the_terminal_or_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences are shown as such, and dollars are no mathematics."""
    pytest.importorskip("matplotlib")
    bell, label = "A\x1b]0;title\x07-v0", "costs $5 \\frac{ or $6\x1b[2J"
    run = make_run(tmp_path / "run\x1b[31m", [1.0, 2.0], env_id=bell)
    assert plotted(tmp_path, run, "--label", label) == 0
    assert r"A\x1b]0;title\x07-v0: costs $5 \frac{ or $6\x1b[2J, 1 seed" in capsys.readouterr().out
    hybridppo.plot_runs([run], tmp_path / "a.svg", labels=[label])
    drawn = (tmp_path / "a.svg").read_text()
    assert r"costs $5 \frac{ or $6\x1b[2J" in drawn
    assert "\x1b" not in drawn
    config = json.loads((run / "config.json").read_text())
    assert "\x1b" not in "".join(frame(config | {"policies": {}}, [], 80))
    assert plotted(tmp_path, tmp_path / "no\x1b[31m") == 1
    error = capsys.readouterr().err
    assert r"no\x1b[31m" in error
    assert "\x1b" not in error


def test_several_metrics_are_drawn_and_their_last_values_are_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four seeds, the interquartile mean leaves out the lowest and the highest."""
    pytest.importorskip("matplotlib")
    for seed, last in enumerate((1.0, 10.0, 20.0, 500.0)):
        run = make_run(tmp_path / "runs" / str(seed), [0.0, last], seed=seed)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[1] |= {"evaluation_return_mean": 2 * last, "evaluation_env_steps": 15}
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ("--metric", "episode_return_mean", "--metric", "evaluation_return_mean")
    assert plotted(tmp_path, tmp_path / "runs", *flags) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "A-v0: A-v0, 4 seeds"
    heads, _, returns, evaluations = ([cell.strip() for cell in line.split("|")[1:-1]] for line in out[1:5])
    assert heads == ["environment", "runs", "last value", "seeds", "IQM", "95% interval"]
    assert returns[:5] == ["A-v0", "A-v0", "episode_return_mean", "4", "15"]
    assert evaluations[2:5] == ["evaluation_return_mean", "4", "30"]
    low, high = (float(text.replace(",", "")) for text in returns[5].split(" to "))
    assert 1.0 <= low < 15.0 < high <= 500.0
    (group,) = hybridppo.plot_runs(tmp_path / "runs", tmp_path / "a.svg", metrics="evaluation_return_mean")
    assert group.final("evaluation_return_mean")[0] == 30.0
    drawn = (tmp_path / "a.svg").read_text()
    assert "return, mean of an evaluation" in drawn
    assert "IQM of the seeds, 95% interval" in drawn
    assert group.runs[0].curve("steps", "evaluation_return_mean")[0].tolist() == [15.0]  # those of the evaluated agent
    for metric, message in (
        ("evaluation_return", "did you mean evaluation_return_mean"),
        ("zzz", "it has iteration, "),
    ):
        with pytest.raises(ConfigurationError, match=f"has no metric '{metric}': {message}"):
            hybridppo.plot_runs(tmp_path / "runs", tmp_path / "a.svg", metrics=metric)
    with pytest.raises(ConfigurationError, match="name at least one metric"):
        hybridppo.plot_runs(tmp_path / "runs", tmp_path / "a.svg", metrics=())
