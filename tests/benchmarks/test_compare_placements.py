"""The comparison of placements: what can run where, what follows from the figures, and how it is shown."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import placement_turn
import placements
import textbook
from placements import BY_EPISODE, BY_ROLLOUT, DDPG, DEFAULT_THREADS, LOOP, LOOP_MIGRATES, ONE_THREAD, WITH_POOL, Work

ROOT = Path(__file__).parents[2]


def row(candidate: str, us: float, *, sizes: tuple[int, ...] = (128,), rollout: str = BY_EPISODE, **more: Any) -> Any:
    head = {"hidden_sizes": list(sizes), "rollout": rollout, "candidate": candidate}
    figures = {"ms_per_update": us / 10, "cpu_load": 1.0, "steps_per_second": 1e6 / us, "return_mean": 500.0}
    parts = {"us_sampling": us / 2, "us_learning": us / 4, "us_copying": 0.0}
    return {**head, "us_per_step": us, **figures, **parts, **more}


def verdict(words: str, *rows: Any) -> bool | None:
    found = [each.holds for each in placements.conclusions(rows) if words in each.statement]
    assert len(found) == 1
    return found[0]


def names(work: Work, **machine: Any) -> list[str]:
    return [candidate.name for candidate in work.candidates(**machine)]


def test_what_a_machine_cannot_run_is_left_out() -> None:
    textbooks = Work(BY_EPISODE, placements.TEXTBOOK_SIZE)
    here = names(textbooks, has_cuda=False, default_threads=1)
    assert here == [ONE_THREAD, placements.OVERLAP_ON_CPU, LOOP + ONE_THREAD]
    everything = names(textbooks, has_cuda=True, default_threads=16)
    assert {"cuda", "migrate", "hybrid", "overlap", f"{LOOP}cuda", LOOP_MIGRATES, DEFAULT_THREADS} < set(everything)


def test_the_textbooks_loop_is_measured_on_its_own_network() -> None:
    assert not any(
        name.startswith(LOOP)
        for work in (Work(BY_EPISODE, (64,)), Work(BY_ROLLOUT, placements.TEXTBOOK_SIZE))
        for name in names(work, has_cuda=True, default_threads=2)
    )


@pytest.mark.parametrize("rollout", [WITH_POOL, DDPG])
def test_publishing_is_measured_by_how_often(rollout: str) -> None:
    here = names(Work(rollout, (64,)), has_cuda=False, default_threads=2)
    assert here == [
        ONE_THREAD,
        placements.OVERLAP_ON_CPU,
        *(f"mirror on the cpu, publish_every {n}" for n in (1, 10, 50)),
    ]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replace turns by free ones that note candidate and seed."""
    turns: list[tuple[str, int]] = []

    def take_turn(work: Work, candidate: placements.Candidate, *, episodes: int, seed: int) -> Any:
        turns.append((candidate.name, seed))
        return {
            "threads": 1, "seconds": 2.0 + seed, "env_steps": 1000, "episodes": episodes, "updates": 10,
            "steps_per_second": 1000 / (2.0 + seed), "seconds_sampling": 1.0, "seconds_learning": 0.5,
            "seconds_copying": 0.0, "cpu_load": 1.0, "gpu_utilization": None, "gpu_memory_mib": None, "publishes": 3,
            "bytes_copied": 12, "return_mean": 100.0 * seed,
        }  # fmt: skip

    monkeypatch.setattr(placements, "take_turn", take_turn)
    return turns


def test_candidates_take_turns_in_reversed_order_every_other_round(taken: list[tuple[str, int]]) -> None:
    rows = placements.measure([Work(WITH_POOL, (64,))], episodes=7, seeds=3, report=lambda line: None)
    a, b, *_, z = names(Work(WITH_POOL, (64,)), has_cuda=placements.torch.cuda.is_available(), default_threads=1)
    number = len(taken) // 3
    assert [taken[0], taken[1], taken[number]] == [(a, 0), (b, 0), (z, 1)]
    assert taken[2 * number] == (a, 2)
    # Medians over the three: 2, 3 and 4 seconds for 1000 steps and 10 updates.
    assert rows[0]["us_per_step"] == 3000.0
    assert rows[0]["us_sampling"] == 1000.0
    assert rows[0]["ms_per_update"] == 50.0
    assert rows[0]["return_mean"] == 100.0
    assert len(rows[0]["turns"]) == 3


def test_without_a_gpu_its_conclusions_are_not_measured() -> None:
    rows = [row(LOOP + ONE_THREAD, 90), row(LOOP + DEFAULT_THREADS, 80)]
    rows += [row(ONE_THREAD, 20, sizes=size) for size in placements.SIZES]
    found = {each.statement: each.holds for each in placements.conclusions(rows)}
    assert [statement for statement, holds in found.items() if holds is not None] == [
        "Textbook loop: one thread is at least as fast as torch's default"
    ]


def test_the_articles_figures_give_the_articles_conclusions() -> None:
    loops = {DEFAULT_THREADS: 50.0, ONE_THREAD: 49.0, "cuda": 128.0, LOOP_MIGRATES.removeprefix(LOOP): 44.0}
    rows = [row(LOOP + name, us) for name, us in loops.items()]
    rows[3] |= {"ms_per_update": 5.5, "cpu_load": 0.5}
    for words in (
        "GPU alone is slower",
        "is no slower",
        "beside the CPU with one",
        "update is faster",
        "takes load off",
    ):
        assert verdict(words, *rows) is True
    rows[2]["us_per_step"] = 40.0
    assert verdict("GPU alone is slower", *rows) is False


@pytest.mark.parametrize(("cpu", "hybrid", "holds"), [(10, 20, False), (20, 10, True)])
def test_which_placement_wins_is_decided_by_network(cpu: float, hybrid: float, holds: bool) -> None:
    rows = [row(ONE_THREAD, cpu, sizes=(256,)), row("hybrid", hybrid, sizes=(256,)), row("cuda", 30, sizes=(256,))]
    assert verdict("layers 256, an update", *rows) is holds


@pytest.mark.parametrize(("gpu", "holds"), [(12.0, True), (9.8, True), (9.0, False)])
def test_one_thread_must_not_lose_to_the_gpu_anywhere(gpu: float, holds: bool) -> None:
    rows = [
        row(ONE_THREAD, 10.0),
        row("hybrid", gpu),
        row(ONE_THREAD, 10.0, sizes=(64,)),
        row("cuda", 20.0, sizes=(64,)),
    ]
    assert verdict("any GPU placement", *rows) is holds


@pytest.mark.parametrize(
    ("rollout", "often", "seldom", "holds"), [(DDPG, 10, 9, True), (DDPG, 10, 9.9, False), (WITH_POOL, 10, 9, False)]
)
def test_fewer_copies_pay_if_they_are_faster_by_more_than_noise(
    rollout: str, often: float, seldom: float, holds: bool
) -> None:
    microseconds = dict(zip(placements.PUBLISH_EVERY, (often, seldom, 11.0), strict=True))
    rows = [row(placements.mirror(every, "cpu").name, us, rollout=rollout) for every, us in microseconds.items()]
    assert verdict("between buffers of the CPU", *rows) is holds


def test_the_table_marks_the_fastest() -> None:
    table = placements.as_markdown([row(ONE_THREAD, 20), row("hybrid", 10, bytes_copied=2_000_000)])
    assert "**hybrid** | 100,000 | 5.0, 2.5, 0.0" in table
    assert "| 2.0 | 500 |" in table
    assert f"| {ONE_THREAD} | 50,000" in table


@pytest.mark.extras
def test_the_script_leaves_figures_table_and_picture(
    taken: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare_placements.py", "--hidden-sizes", "64", "8,8", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert runpy.run_path(str(ROOT / "scripts" / "compare_placements.py"))["main"]() == 0
    stem = "placements-cuda" if placements.torch.cuda.is_available() else "placements"
    content = json.loads((tmp_path / f"{stem}.json").read_text())
    assert {tuple(row["hidden_sizes"]) for row in content["rows"]} == {(64,), (8, 8)}
    assert {row["rollout"] for row in content["rows"]} == {BY_EPISODE, BY_ROLLOUT, WITH_POOL, DDPG}
    assert (tmp_path / f"{stem}.md").read_text() in capsys.readouterr().out
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


def turn(*arguments: str) -> dict[str, Any]:
    parsed = placement_turn.parse_arguments(list(arguments))
    run = {"library": placement_turn.run_library, "textbook": placement_turn.run_textbook}[parsed.contestant]
    return run(parsed)


@pytest.mark.parametrize("contestant", ["library", "textbook"])
def test_a_turn_trains_for_so_many_episodes_and_measures_itself(contestant: str) -> None:
    result = turn(contestant, "--episodes", "4", "--hidden-sizes", "8", "--threads", "1")
    assert {"bytes_copied", "cpu_load", "gpu_utilization", "gpu_memory_mib", "steps_per_second"} < result.keys()
    assert (result["episodes"], result["updates"], result["threads"]) == (4, 4, 1)
    assert result["return_mean"] * 4 == pytest.approx(result["env_steps"])  # CartPole pays 1 a step
    assert 0 < result["seconds_sampling"] + result["seconds_learning"] <= result["seconds"]


@pytest.mark.parametrize("rollout", [BY_ROLLOUT, DDPG])
def test_a_turn_ends_after_so_many_steps(rollout: str) -> None:
    steps = {BY_ROLLOUT: 2048, DDPG: 200}[rollout]
    arguments = ["--steps", str(steps), "--episodes", str(placement_turn.NO_LIMIT), "--hidden-sizes", "8"]
    result = turn("library", "--rollout", rollout, "--threads", "1", "--placement", "mirror", *arguments)
    assert steps <= result["env_steps"] < steps + 8 * 128
    assert result["publishes"] > 0


@pytest.mark.extras
def test_a_turn_is_a_process_of_its_own() -> None:
    result = placements.take_turn(Work(BY_EPISODE, (8,)), placements.CANDIDATES[0], episodes=2, seed=1)
    assert (result["episodes"], result["threads"]) == (2, 1)


def test_the_librarys_settings_are_the_textbooks() -> None:
    parsed = placement_turn.parse_arguments(["library"])
    config = placement_turn.textbook_config(parsed, threads=1)
    assert (config.num_epochs, config.num_minibatches, config.episodes_per_rollout) == (10, 1, 1)
    assert (config.gamma, config.gae_lambda, config.clip_range) == (0.98, 0.95, 0.2)
    assert (config.learning_rate, config.critic_learning_rate) == (1e-3, 1e-2)
    assert (config.hidden_sizes, config.activation, config.normalize_advantage) == ((128,), "relu", False)


def test_the_textbooks_loop_gives_the_same_for_the_same_seed() -> None:
    results = [textbook.train(textbook.Settings(episodes=4, seed=seed, threads=1)) for seed in (0, 0, 1)]
    steps = [result["env_steps"] for result in results]
    assert steps[0] == steps[1] != steps[2]


def test_the_textbooks_advantages_are_those_of_the_formula() -> None:
    # A[2] = 4, A[1] = 2 + 0.931 * 4, A[0] = 1 + 0.931 * A[1], with 0.931 = 0.98 * 0.95
    found = textbook.compute_advantage(placements.torch.tensor([[1.0], [2.0], [4.0]]))
    assert found[:, 0].tolist() == pytest.approx([1 + 0.931 * (2 + 0.931 * 4), 2 + 0.931 * 4, 4.0])


@pytest.mark.slow
def test_the_whole_comparison_runs_small(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/compare_placements.py", "--quick", "--output", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    rows = json.loads(next(tmp_path.glob("placements*_quick.json")).read_text())["rows"]
    assert {row["rollout"] for row in rows} == {BY_EPISODE, BY_ROLLOUT, WITH_POOL, DDPG}
    assert all(row["steps_per_second"] > 0 for row in rows)
    assert "| statement | the article | here | holds here |" in process.stdout
