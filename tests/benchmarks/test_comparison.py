"""The comparison of placements: what can run where, what follows from the figures, and how it is shown."""

import json
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import against_textbook
import comparison
import placement_turn
import publishing
import textbook
from comparison import (
    BY_EPISODE,
    BY_ROLLOUT,
    CPU_DEFAULT_THREADS,
    CPU_ONE_THREAD,
    OVERLAP_CPU,
    TEXTBOOK_CUDA,
    TEXTBOOK_DEFAULT_THREADS,
    TEXTBOOK_MIGRATES,
    TEXTBOOK_ONE_THREAD,
    Candidate,
    Work,
)

ROOT = Path(__file__).parents[2]


def names(**machine: Any) -> list[str]:
    return [candidate.name for candidate in comparison.candidates(**machine)[0]]


def row(candidate: str, us: float, *, sizes: tuple[int, ...] = (128,), rollout: str = BY_EPISODE, **more: Any) -> Any:
    contestant = "textbook" if candidate.startswith("textbook") else "library"
    figures = {"ms_per_update": us / 10, "cpu_load": 1.0, "seconds": us, "steps_per_second": 1e6 / us, "threads": 1}
    figures |= {"us_sampling": us / 2, "us_learning": us / 4, "us_copying": 0.0, "return_mean": 500.0, "episodes": 500}
    figures |= dict.fromkeys(("publishes", "bytes_copied", "gpu_utilization", "gpu_memory_mib"))
    head = {"hidden_sizes": list(sizes), "rollout": rollout, "candidate": candidate, "contestant": contestant}
    return {**head, "us_per_step": us, **figures, **more}


def verdicts(*rows: Any) -> dict[str, bool | None]:
    return {each.statement: each.holds for each in comparison.conclusions(rows)}


def verdict(words: str, *rows: Any) -> bool | None:
    found = [holds for statement, holds in verdicts(*rows).items() if words in statement]
    assert len(found) == 1
    return found[0]


def test_what_a_machine_cannot_run_is_left_out_with_the_reason() -> None:
    able, left_out = comparison.candidates(has_cuda=False, cores=1, default_threads=1)
    assert [candidate.name for candidate in able] == [CPU_ONE_THREAD, TEXTBOOK_ONE_THREAD]
    assert "Left out: hybrid (no CUDA device here)." in left_out
    assert f"Left out: {OVERLAP_CPU} (one core here)." in left_out
    assert f"Left out: {CPU_DEFAULT_THREADS} (torch's default is one thread here)." in left_out
    assert len(left_out) == 9, left_out


def test_a_machine_with_a_gpu_runs_everything() -> None:
    assert comparison.candidates(has_cuda=True, cores=16, default_threads=16)[1] == []
    assert {"cuda", "migrate", "hybrid", "overlap", TEXTBOOK_CUDA, TEXTBOOK_MIGRATES} <= set(
        names(has_cuda=True, cores=16, default_threads=16)
    )


@pytest.mark.parametrize("has_cuda", [False, True])
def test_the_cpu_with_one_thread_stands_beside_everything(has_cuda: bool) -> None:
    able, _ = comparison.candidates(has_cuda=has_cuda, cores=2, default_threads=2)
    for size in comparison.SIZES:
        for rollout in (BY_EPISODE, BY_ROLLOUT):
            assert CPU_ONE_THREAD in [candidate.name for candidate in Work(size, rollout).candidates(able)]


def test_the_textbooks_loop_is_measured_on_its_own_network() -> None:
    able, _ = comparison.candidates(has_cuda=False, cores=2, default_threads=2)
    contestants = {
        work: {candidate.contestant for candidate in work.candidates(able)}
        for work in (Work((128,), BY_EPISODE), Work((64,), BY_EPISODE), Work((128,), BY_ROLLOUT))
    }
    assert contestants == dict(zip(contestants, [{"library", "textbook"}, {"library"}, {"library"}], strict=True))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replace turns by free ones that note candidate and seed."""
    turns: list[tuple[str, int]] = []

    def take_turn(work: Work, candidate: Candidate, *, episodes: int, seed: int) -> Any:
        turns.append((candidate.name, seed))
        return {
            "threads": 1, "seconds": 2.0 + seed, "env_steps": 1000, "episodes": episodes, "updates": 10,
            "steps_per_second": 1000 / (2.0 + seed), "seconds_sampling": 1.0, "seconds_learning": 0.5,
            "seconds_copying": 0.0, "cpu_load": 1.0, "gpu_utilization": None, "gpu_memory_mib": None, "publishes": 3,
            "bytes_copied": 12, "return_mean": 100.0 * seed,
        }  # fmt: skip

    monkeypatch.setattr(comparison, "take_turn", take_turn)
    monkeypatch.setattr(publishing, "run", lambda *experiments, **options: {"rows": [], "conclusions": []})
    return turns


def test_candidates_take_turns_in_reversed_order_every_other_round(taken: list[tuple[str, int]]) -> None:
    able = [Candidate(name, "library", ()) for name in ("a", "b", "c")]
    work = Work((64,), BY_EPISODE)
    rows = comparison.measure([work], able, episodes=7, seeds=range(3), report=lambda line: None)
    assert taken == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("c", 2)]
    # Medians over the three: 2, 3 and 4 seconds for 1000 steps and 10 updates.
    assert rows[0]["us_per_step"] == 3000.0
    assert rows[0]["us_sampling"] == 1000.0
    assert rows[0]["ms_per_update"] == 50.0
    assert rows[0]["return_mean"] == 100.0
    assert rows[0]["gpu_utilization"] is None
    assert len(rows[0]["turns"]) == 3


def test_without_a_gpu_its_conclusions_are_not_measured() -> None:
    found = verdicts(
        row(TEXTBOOK_ONE_THREAD, 90),
        row(TEXTBOOK_DEFAULT_THREADS, 80),
        *(row(CPU_ONE_THREAD, 20, sizes=size) for size in comparison.SIZES),
        *(row(CPU_DEFAULT_THREADS, 30, sizes=size) for size in comparison.SIZES),
    )
    measured = {statement for statement, holds in found.items() if holds is not None}
    assert measured == {
        "Textbook loop: one thread is at least as fast as torch's default",
        "This library on the CPU: one thread is at least as fast as torch's default",
    }
    assert found["Textbook loop: one thread is at least as fast as torch's default"] is False
    assert found["This library on the CPU: one thread is at least as fast as torch's default"] is True


def test_the_articles_figures_give_the_articles_conclusions() -> None:
    rows = (
        row(TEXTBOOK_DEFAULT_THREADS, 500, ms_per_update=3.5, cpu_load=8.0),
        row(TEXTBOOK_ONE_THREAD, 300, ms_per_update=3.0),
        row(TEXTBOOK_CUDA, 1280, ms_per_update=5.0),
        row(TEXTBOOK_MIGRATES, 440, ms_per_update=5.0, cpu_load=1.0),
    )
    assert verdict("GPU alone is slower", *rows) is True
    assert verdict("at least as fast as the CPU alone", *rows) is True
    assert verdict("an update is faster on the CPU", *rows) is True
    assert verdict("takes load off", *rows) is True
    # And ours: the article had no CPU with one thread beside it.
    assert verdict("against the CPU with one thread", *rows) is False


@pytest.mark.parametrize(
    ("sizes", "cpu", "hybrid", "holds"),
    [((64,), 10, 20, True), ((64, 64), 20, 10, False), ((128,), 10, 20, True), ((128, 128), 20, 10, True),
     ((256,), 20, 10, True), ((256, 256), 10, 20, False)],
)  # fmt: skip
def test_which_placement_wins_is_said_by_network(
    sizes: tuple[int, ...], cpu: float, hybrid: float, holds: bool
) -> None:
    rows = (row(CPU_ONE_THREAD, cpu, sizes=sizes), row("hybrid", hybrid, sizes=sizes), row("cuda", 99, sizes=sizes))
    words = f"Hidden layers {' and '.join(map(str, sizes))}, an update"
    assert verdict(words, *rows) is holds
    assert verdict(words, row("cuda", 5, sizes=sizes), *rows[:2]) is False


def test_the_best_number_of_threads_counts_for_the_cpu() -> None:
    rows = row(CPU_ONE_THREAD, 20, sizes=(64,)), row(CPU_DEFAULT_THREADS, 5, sizes=(64,)), row("cuda", 9, sizes=(64,))
    assert verdict("Hidden layers 64, an update", *rows, row("hybrid", 10, sizes=(64,))) is True


@pytest.mark.parametrize(("gpu", "holds"), [(21.0, True), (19.8, True), (10.0, False)])
def test_one_thread_must_not_lose_to_the_gpu_anywhere(gpu: float, holds: bool) -> None:
    rows = [row(CPU_ONE_THREAD, 20, sizes=size) for size in comparison.SIZES]
    rows += [row("cuda", 40, sizes=size) for size in comparison.SIZES]
    assert verdict("any placement with the GPU", *rows, row("hybrid", gpu)) is holds


def test_the_table_marks_the_fastest_and_says_what_was_left_out() -> None:
    rows = [row(CPU_ONE_THREAD, 20), row(CPU_DEFAULT_THREADS, 10), row(CPU_ONE_THREAD, 5, rollout=BY_ROLLOUT)]
    rows[1] |= {"publishes": 12, "bytes_copied": 2_500_000, "gpu_utilization": 37.4, "gpu_memory_mib": 1024.0}
    table = comparison.as_markdown(rows, ["Left out: hybrid (no CUDA device here)."])
    assert f"| 128 | episode | {CPU_ONE_THREAD} | 20.00 | 50,000 | 10.0, 5.0, 0.0 | 2.00 |" in table
    assert f"| 128 | episode | **{CPU_DEFAULT_THREADS}** | 10.00 | 100,000 |" in table
    assert f"| 128 | 8 x 128 steps | **{CPU_ONE_THREAD}** |" in table
    assert "| 37 | 1,024 | 12 | 2.5 | 500 |" in table
    assert "Left out: hybrid (no CUDA device here)." in table
    assert "not measured" not in table  # statements about a GPU are left out


def run_script(path: str, *arguments: str) -> int:
    main = runpy.run_path(str(ROOT / path))["main"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [path, *arguments])
        return int(main())


@pytest.mark.extras
def test_the_script_leaves_figures_table_and_picture(
    taken: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script("scripts/compare_placements.py", "--hidden-sizes", "64", "8,8", "--output", str(tmp_path)) == 0
    assert len(taken) >= 4  # two networks, two kinds of rollout, and one candidate at least
    stem = "comparison-cuda" if comparison.torch.cuda.is_available() else "comparison"
    content = json.loads((tmp_path / f"{stem}.json").read_text())
    assert {tuple(row["hidden_sizes"]) for row in content["rows"]} == {(64,), (8, 8)}
    assert content["machine"]["cores"] is not None
    assert {"statement", "article", "here", "holds"} == content["conclusions"][0].keys()
    assert (tmp_path / f"{stem}.md").read_text() in capsys.readouterr().out
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.extras
def test_the_side_by_side_fails_where_its_target_is_missed(taken: list[tuple[str, int]], tmp_path: Path) -> None:
    script = "benchmarks/against_textbook.py"
    assert run_script(script, "--seeds", "3", "--output", str(tmp_path)) == 1  # all are as fast as one another here
    content = json.loads((tmp_path / "textbook.json").read_text())
    assert content["summary"]["ratio"] == {"median": 1.0, "rounds": [1.0, 1.0, 1.0]}
    assert (tmp_path / "textbook.png").read_bytes().startswith(b"\x89PNG")
    assert run_script(script, "--quick", "--output", str(tmp_path)) == 0  # nothing is asked
    assert (tmp_path / "textbook_quick.json").exists()


def test_the_librarys_settings_are_the_textbooks() -> None:
    config = placement_turn.textbook_config((128,), BY_EPISODE, threads=1)
    assert (config.num_epochs, config.num_minibatches, config.episodes_per_rollout) == (10, 1, 1)
    assert (config.gamma, config.gae_lambda, config.clip_range) == (0.98, 0.95, 0.2)
    assert (config.learning_rate, config.critic_learning_rate) == (1e-3, 1e-2)
    assert (config.hidden_sizes, config.activation, config.normalize_advantage) == ((128,), "relu", False)
    assert placement_turn.textbook_config((64,), BY_ROLLOUT, threads=2).batch_size == 1024


def turn(*arguments: str) -> dict[str, Any]:
    parsed = placement_turn.parse_arguments(list(arguments))
    run = {"library": placement_turn.run_library, "textbook": placement_turn.run_textbook}[parsed.contestant]
    return run(parsed)


KEYS = {
    "threads", "seconds", "env_steps", "episodes", "steps_per_second", "seconds_sampling", "seconds_learning",
    "seconds_copying", "updates", "cpu_load", "publishes", "bytes_copied", "return_mean", "gpu_utilization",
    "gpu_memory_mib",
}  # fmt: skip


@pytest.mark.parametrize("contestant", ["library", "textbook"])
def test_a_turn_trains_for_so_many_episodes_and_measures_itself(contestant: str) -> None:
    result = turn(contestant, "--episodes", "4", "--hidden-sizes", "8", "--threads", "1")
    assert result.keys() >= KEYS
    assert (result["episodes"], result["updates"], result["threads"]) == (4, 4, 1)
    assert result["return_mean"] * 4 == pytest.approx(result["env_steps"])  # CartPole pays 1 a step
    assert 0 < result["seconds_sampling"] + result["seconds_learning"] <= result["seconds"]


def test_a_turn_of_rollouts_ends_after_so_many_steps() -> None:
    result = turn("library", "--rollout", BY_ROLLOUT, "--steps", "2048", "--episodes", str(10**9), "--threads", "1")
    assert 2048 <= result["env_steps"] < 2048 + 8 * 128
    assert result["env_steps"] <= 8 * 128 * result["updates"]


@pytest.mark.extras
def test_a_turn_is_a_process_of_its_own() -> None:
    candidate = Candidate(CPU_ONE_THREAD, "library", ("--placement", "cpu"))
    result = comparison.take_turn(Work((8,), BY_EPISODE), candidate, episodes=2, seed=1)
    assert result["episodes"] == 2
    assert result["threads"] == 1


def test_the_textbooks_loop_gives_the_same_for_the_same_seed() -> None:
    results = [textbook.train(textbook.Settings(episodes=4, seed=seed, threads=1)) for seed in (0, 0, 1)]
    steps = [result["env_steps"] for result in results]
    assert steps[0] == steps[1] != steps[2]


def test_the_textbooks_advantages_are_those_of_the_formula() -> None:
    # A[2] = 4, A[1] = 2 + 0.931 * 4, A[0] = 1 + 0.931 * A[1], with 0.931 = 0.98 * 0.95
    found = textbook.compute_advantage(comparison.torch.tensor([[1.0], [2.0], [4.0]]))
    assert found[:, 0].tolist() == pytest.approx([1 + 0.931 * (2 + 0.931 * 4), 2 + 0.931 * 4, 4.0])


def test_a_gpu_is_asked_again_and_again_how_busy_it_is() -> None:
    answers, enough = [10.0, 20.0, 60.0], threading.Event()

    def ask() -> float:
        answer = answers.pop(0) if answers else 30.0
        if not answers:
            enough.set()
        return answer

    with placement_turn.GpuWatch(ask, lambda: 12.5, seconds=0.001) as watch:
        assert enough.wait(timeout=60)
    # 10, 20 and 60, and perhaps some answers of 30 after them.
    assert watch.result() == {"gpu_utilization": pytest.approx(30.0), "gpu_memory_mib": 12.5}


def test_where_torch_cannot_tell_how_busy_a_gpu_is_nothing_is_said() -> None:
    asked = threading.Event()

    def ask() -> float:
        asked.set()
        raise ModuleNotFoundError("pynvml")

    with placement_turn.GpuWatch(ask, lambda: 12.5, seconds=0.001) as watch:
        assert asked.wait(timeout=60)
    assert watch.result() == {"gpu_utilization": None, "gpu_memory_mib": 12.5}


def test_without_a_gpu_nothing_is_asked() -> None:
    with placement_turn.GpuWatch(None) as watch:
        pass
    assert watch.result() == {"gpu_utilization": None, "gpu_memory_mib": None}


def test_the_ratio_is_made_within_each_round_and_to_the_faster_loop() -> None:
    def contestant(name: str, speeds: list[float], returns: list[float]) -> Any:
        turns = [{"steps_per_second": s, "return_mean": r} for s, r in zip(speeds, returns, strict=True)]
        return {"candidate": name, "steps_per_second": sorted(speeds)[1], "turns": turns}

    slow = contestant("slow", [1.0, 1.0, 1.0], [500.0, 500.0, 500.0])
    fast = contestant("fast", [10.0, 5.0, 10.0], [480.0, 500.0, 490.0])
    ours = contestant("ours", [50.0, 20.0, 45.0], [490.0, 490.0, 490.0])
    summary = against_textbook.summarize([ours, slow, fast])
    assert summary["compared_with"] == "fast"
    assert summary["ratio"] == {"median": 4.5, "rounds": [5.0, 4.0, 4.5]}
    assert summary["return_means"] == {"ours": 490.0, "slow": 500.0, "fast": 490.0}
    assert summary["met"]
    worse = contestant("ours", [50.0, 20.0, 45.0], [470.0, 470.0, 470.0])
    assert not against_textbook.summarize([worse, slow, fast])["met"]
    slower = contestant("ours", [39.0, 19.0, 39.0], [500.0, 500.0, 500.0])
    assert not against_textbook.summarize([slower, slow, fast])["met"]


@pytest.mark.slow
def test_the_whole_experiment_runs_small(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/compare_placements.py", "--quick", "--output", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    rows = json.loads(next(tmp_path.glob("comparison*_quick.json")).read_text())["rows"]
    assert {row["rollout"] for row in rows} == {BY_EPISODE, BY_ROLLOUT}
    assert {CPU_ONE_THREAD, TEXTBOOK_ONE_THREAD} <= {row["candidate"] for row in rows}
    assert all(row["episodes"] >= 20 and row["steps_per_second"] > 0 for row in rows)
    assert "| statement | the article | here | holds here |" in process.stdout
