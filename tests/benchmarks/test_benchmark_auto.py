"""The benchmark of placement auto: its judgement, and that it measures what it says, GPU's part included."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ppo_settings import ppo_config

from hybridppo.auto.auto import Auto

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmark_auto", BENCHMARKS / "auto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_auto", module)
    spec.loader.exec_module(module)
    return module


def test_a_choice_is_judged_by_what_was_allowed(benchmark: Any) -> None:
    measured = {"cpu": 8.0, "cpu, 2 workers": 5.0, "overlap, 1 worker": 4.0}
    assert benchmark.judge("cpu", ["cpu", "cpu, 2 workers", "cpu, 2 threads"], measured) == {
        "best": "cpu, 2 workers",
        "ratio_to_best": 1.6,
        "ratio_to_cpu": 1.0,
    }


def works(ratios: list[float]) -> dict[str, Any]:
    choice = {"each": ["cpu", "cpu"], "seconds_choosing": 2.0, "seconds_choosing_short_run": 0.1}
    return {str(i): {"choices": {"max_lag=0": {**choice, "ratio_to_best": ratio}}} for i, ratio in enumerate(ratios)}


@pytest.mark.parametrize(
    ("ratios", "is_kept"),
    [
        ([1.0] * 8, True),
        ([1.05] * 7 + [1.15], True),
        ([1.05] * 7 + [1.16], False),
        ([1.0] * 6 + [1.06] * 2, False),
    ],
)
def test_the_promise_is_seven_of_eight_and_never_far_off(ratios: list[float], is_kept: bool, benchmark: Any) -> None:
    assert benchmark.summary(works(ratios), 0)["is_kept"] == is_kept


def test_the_crossing_is_where_the_gpu_stays_ahead(benchmark: Any) -> None:
    def at(**hybrid: float) -> dict[int, dict[str, float]]:
        return {int(size[1:]): {"cpu": 1.0, "hybrid": seconds} for size, seconds in hybrid.items()}

    assert benchmark.crossing(at(_64=3.0, _128=1.5, _256=0.9, _512=0.2)) == 256
    assert benchmark.crossing(at(_64=0.9, _128=1.5, _256=0.9, _512=0.2)) == 256
    assert benchmark.crossing(at(_64=3.0, _128=2.0)) is None
    assert benchmark.crossing({64: {"cpu": 1.0}, 128: {"hybrid": 1.0}}) == 128  # what is hopeless is not measured


def test_works_differ_and_gpu_works_go_by_size(benchmark: Any) -> None:
    assert len(benchmark.WORKS) >= 8
    sizes = [piece.config.hidden_sizes[0] for piece in benchmark.cuda_works(benchmark.CUDA_SIZES).values()]
    assert sizes == [64, 128, 256, 512, 1024, 2048]


@pytest.mark.extras
def test_a_piece_of_work_is_measured_with_a_twin_of_the_gpu(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "HOPELESS", 1e9)
    limits = Auto.limits

    def with_a_twin(*arguments: Any, **options: Any) -> Any:
        return replace(limits(*arguments, **options), accelerator="cpu", cores=1)

    monkeypatch.setattr(Auto, "limits", with_a_twin)
    config = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,), torch_threads=None)
    piece = benchmark.Piece("CartPole-v1", config)
    row = benchmark.measure(piece, rounds=1, seconds=0.01)
    assert row["measured"].keys() >= {"cpu", "cuda", "hybrid", "migrate"}
    assert all(seconds > 0 for seconds in row["measured"].values())
    for choice in row["choices"].values():
        assert choice["chosen"] in choice["allowed"]
        assert choice["ratio_to_best"] >= 1.0
    summaries = {f"max_lag={lag}": benchmark.summary({"cartpole": row}, lag) for lag in (0, 1)}
    text = benchmark.result_as_markdown({"works": {"cartpole": row}, "summaries": summaries})
    assert text.startswith("No overlap allowed: within 5 % of the best in ")
    table = benchmark.as_markdown({"cartpole": row}, 0).splitlines()
    assert table[2] in text
    assert len(table) == 3
    assert table[2].startswith("| cartpole | ")
