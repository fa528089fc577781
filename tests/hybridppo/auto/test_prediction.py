"""From recorded seconds to the choice: exact, and without a clock or a GPU."""

import dataclasses
import subprocess
import sys

import pytest

from hybridppo.auto.decision import Decision, best_form, decide, describe
from hybridppo.auto.figures import AcceleratorFigures, Figures, FormFigures, Work
from hybridppo.auto.prediction import Candidate, Prediction, candidates, predict, seconds_per_step

WORK = Work(num_envs=8, num_steps=100, iterations=1000, cores=2, splits=True)

# Powers of two, so that sums are exact: a step of 8 environments takes 256 of some unit, one of 4 takes 144.
UNIT = 2.0**-20
FIGURES = Figures(
    step={8: 256 * UNIT, 4: 144 * UNIT},
    action=32 * UNIT,
    rollout=512 * UNIT,
    update={1: 8192 * UNIT},
    publish=64 * UNIT,
    message=128 * UNIT,
    worker_start=2.0,
    slowdown=1.5,
    assumed=(),
)
GPU = AcceleratorFigures(
    device="cuda",
    action=160 * UNIT,
    crossing=48 * UNIT,
    update=1024 * UNIT,
    publish=96 * UNIT,
    move=224 * UNIT,
    transfer=416 * UNIT,
    remainder=160 * UNIT,
)
WITH_GPU = dataclasses.replace(FIGURES, accelerator=GPU)


def parts(work: Work, figures: Figures, candidate: Candidate) -> tuple[float, float, float, float]:
    """Sampling, learning, copying and what is overlapped, in units."""
    prediction = predict(work, figures, candidate)
    return tuple(
        part / UNIT for part in (prediction.sampling, prediction.learning, prediction.copying, prediction.overlapped)
    )


def decision(work: Work, figures: Figures, *, max_lag: int = 0, torch_threads: int | None = 1) -> Decision:
    predictions = [predict(work, figures, candidate) for candidate in candidates(work, figures)]
    return decide(predictions, work, max_lag=max_lag, torch_threads=torch_threads)


def chosen(work: Work, figures: Figures, **allowed: int) -> str:
    return decision(work, figures, **allowed).chosen.candidate.label


# Seconds per step


def test_what_was_measured_is_taken() -> None:
    assert seconds_per_step(FIGURES, 4, of=8) == 144 * UNIT


def test_between_measurements_is_a_line() -> None:
    # 28 for each environment, and 32 whatever their number
    assert [seconds_per_step(FIGURES, n, of=8) / UNIT for n in (1, 2, 6)] == [60, 88, 200]


def test_from_one_measurement_actions_cost_the_same_for_a_part() -> None:
    figures = dataclasses.replace(FIGURES, step={8: 256 * UNIT})
    # 256 less 32 for the actions is 28 for each environment
    assert [seconds_per_step(figures, n, of=8) / UNIT for n in (1, 4, 8)] == [60, 144, 256]


def test_a_part_measured_slower_than_the_whole_makes_no_negative_line() -> None:
    figures = dataclasses.replace(FIGURES, step={8: 256 * UNIT, 4: 300 * UNIT})
    assert seconds_per_step(figures, 2, of=8) == 256 * UNIT


# Predictions


def test_by_turns() -> None:
    # 100 steps of 256 and the rollout's 512
    assert parts(WORK, FIGURES, Candidate("cpu")) == (26_112, 8192, 0, 0)


def test_workers_take_a_share_each_and_slow_each_other_down() -> None:
    # 1.5 times 100 steps of 144, 512 for the rollout and 128 for the messages
    assert parts(WORK, FIGURES, Candidate("cpu", num_workers=2)) == (22_240, 8192, 0, 0)


def test_a_lone_worker_has_the_cores_to_itself() -> None:
    assert parts(WORK, FIGURES, Candidate("cpu", num_workers=1)) == (25_600 + 512 + 128, 8192, 0, 0)


def test_more_workers_than_cores_take_turns() -> None:
    work = dataclasses.replace(WORK, num_workers=4)
    # two of them to a core, each 1.5 times 100 steps of 88
    assert parts(work, FIGURES, Candidate("cpu", num_workers=4)) == (2 * 13_200 + 640, 8192, 0, 0)


def test_overlap_hides_the_shorter_part() -> None:
    # Sampling takes 1.5 * 25600 = 38400, learning 1.5 * 8192 = 12288 of which nothing is waited for.
    assert parts(WORK, FIGURES, Candidate("overlap", num_workers=1)) == (640 + 38_400 - 12_288, 12_288, 64, 12_288)
    slow = dataclasses.replace(FIGURES, update={1: 65_536 * UNIT})
    assert parts(WORK, slow, Candidate("overlap", num_workers=1)) == (640, 98_304, 64, 38_400)


def test_overlap_hides_nothing_where_a_core_carries_both() -> None:
    assert parts(WORK, FIGURES, Candidate("overlap", num_workers=2)) == (640 + 21_600, 12_288, 64, 0)


def test_a_thread_and_the_learner_take_turns() -> None:
    assert parts(WORK, FIGURES, Candidate("overlap")) == (26_112, 8192, 64, 0)


def test_on_the_gpu_alone_every_step_crosses() -> None:
    # Actions take 160 there instead of 32, of which 48 are copies; the rest of the rollout crosses after them.
    sampling = 512 + 100 * (256 + 128 - 48)
    assert parts(WORK, WITH_GPU, Candidate("cuda", "cuda", "cuda")) == (sampling, 1024, 4800 + 160, 0)


def test_the_hybrid_samples_here_learns_there_and_publishes() -> None:
    assert parts(WORK, WITH_GPU, Candidate("hybrid", "cpu", "cuda")) == (26_112, 1024, 416 + 96, 0)


def test_migrating_moves_there_and_back() -> None:
    assert parts(WORK, WITH_GPU, Candidate("migrate", "cpu", "cuda")) == (26_112, 1024, 416 + 224, 0)


def test_a_gpu_is_not_slowed_down_by_cores() -> None:
    expected = (640 + 38_400 - 1024, 1024, 416 + 96, 1024)
    assert parts(WORK, WITH_GPU, Candidate("overlap", "cpu", "cuda", num_workers=1)) == expected


def test_an_iteration_is_the_sum_of_its_parts_and_a_run_starts_once() -> None:
    prediction = predict(WORK, FIGURES, Candidate("cpu", num_workers=2))
    assert prediction.iteration == (22_240 + 8192) * UNIT
    assert prediction.start == 2.0  # two workers at once, on two cores
    assert prediction.run(10) == 2.0 + 10 * prediction.iteration


def test_assumptions_are_told_where_they_matter() -> None:
    assumed = dataclasses.replace(FIGURES, assumed=("message",))
    assert predict(WORK, assumed, Candidate("cpu", num_workers=2)).is_assumed
    assert not predict(WORK, assumed, Candidate("cpu")).is_assumed
    assert not predict(WORK, FIGURES, Candidate("cpu", num_workers=2)).is_assumed


# Candidates


def labels(work: Work, figures: Figures) -> list[str]:
    return [candidate.label for candidate in candidates(work, figures)]


def test_candidates_of_two_cores() -> None:
    assert labels(WORK, FIGURES) == ["cpu", "cpu, 2 workers", "overlap, 1 worker"]


def test_candidates_of_many_cores() -> None:
    work = dataclasses.replace(WORK, cores=7)
    workers = [1, 2, 4, 6]
    assert labels(work, FIGURES) == [
        "cpu",
        *(f"cpu, {n} workers" for n in (2, 4, 7)),
        *(f"overlap, {n} worker{'s' * (n > 1)}" for n in workers),
    ]


def test_there_are_never_more_workers_than_environments() -> None:
    work = dataclasses.replace(WORK, cores=64, num_envs=3)
    figures = dataclasses.replace(FIGURES, step={3: 1.0})
    assert max(candidate.num_workers for candidate in candidates(work, figures)) == 3


def test_environments_with_one_generator_stay_whole() -> None:
    work = dataclasses.replace(WORK, splits=False)
    assert labels(work, FIGURES) == ["cpu", "overlap, 1 worker"]


def test_one_core_overlaps_nothing() -> None:
    assert labels(dataclasses.replace(WORK, cores=1), FIGURES) == ["cpu"]


def test_an_actor_that_cannot_leave_the_process_has_no_workers() -> None:
    assert labels(dataclasses.replace(WORK, has_workers=False), FIGURES) == ["cpu"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_number_of_workers_that_was_asked_for_is_obeyed(count: int) -> None:
    work = dataclasses.replace(WORK, num_workers=count, splits=False)
    assert {candidate.num_workers for candidate in candidates(work, WITH_GPU) if candidate.name != "cuda"} == {count}
    assert any(candidate.name == "cuda" for candidate in candidates(work, WITH_GPU)) == (count == 0)


def test_candidates_with_a_gpu() -> None:
    work = dataclasses.replace(WORK, splits=False)
    assert labels(work, WITH_GPU) == [
        "cpu",
        "overlap, 1 worker",
        "cuda",
        "hybrid",
        "migrate",
        "overlap on cuda, 1 worker",
    ]


def test_threads_that_do_not_pay_are_shown_and_not_combined() -> None:
    figures = dataclasses.replace(FIGURES, update={2: 1.0, 1: 0.5})
    assert labels(WORK, figures) == ["cpu", "cpu, 2 workers", "overlap, 1 worker", "cpu, 2 threads"]


def test_threads_that_pay_leave_no_core_to_overlap_with() -> None:
    figures = dataclasses.replace(FIGURES, update={1: 1.0, 2: 0.5})
    threads = ["cpu, 2 threads", "cpu, 2 workers, 2 threads"]
    assert labels(WORK, figures) == ["cpu", "cpu, 2 workers", "overlap, 1 worker", *threads]


# Decisions


def figures_of(sampling: float, learning: float, **gpu: float) -> Figures:
    """Milliseconds of an iteration of 100 steps on the CPU, and on a GPU."""
    accelerator = None
    if gpu:
        values = {
            "action": 1e-4,
            "crossing": 0.0,
            "publish": 0.1,
            "move": 1.0,
            "transfer": 0.1,
            "remainder": 0.1,
            **gpu,
        }
        seconds = {
            name: 1e-3 * value if name not in ("action", "crossing") else value for name, value in values.items()
        }
        accelerator = AcceleratorFigures(device="cuda", **seconds)
    step = 1e-5 * sampling
    return Figures(
        {8: step}, 1e-5, 0.0, {1: 1e-3 * learning}, slowdown=1.0, message=0.0, assumed=(), accelerator=accelerator
    )


WHOLE = dataclasses.replace(WORK, splits=False)


@pytest.mark.parametrize(
    ("learning", "on_gpu", "expected"),
    [(6.0, 5.0, "hybrid"), (6.0, 6.0, "cpu"), (6.0, 20.0, "cpu"), (300.0, 20.0, "hybrid")],
)
def test_the_gpu_learns_where_that_pays(learning: float, on_gpu: float, expected: str) -> None:
    assert chosen(WHOLE, figures_of(5.0, learning, update=on_gpu)) == expected


def test_the_gpu_does_both_where_its_actions_are_faster() -> None:
    # An actor so large that a step costs 5 ms on the CPU, 4.9 of them its own, and 0.2 on the GPU.
    figures = figures_of(500.0, 800.0, update=20.0, action=2e-4)
    assert chosen(WHOLE, dataclasses.replace(figures, action=4.9e-3)) == "cuda"
    assert chosen(WHOLE, dataclasses.replace(figures, action=1e-4)) == "hybrid"


def test_overlap_is_taken_where_it_is_allowed_and_told_where_it_is_not() -> None:
    figures = figures_of(6.0, 6.0)
    assert chosen(WHOLE, figures, max_lag=1) == "overlap, 1 worker"
    refused = decision(WHOLE, figures)
    assert refused.chosen.candidate.label == "cpu"
    assert refused.with_lag is not None
    assert refused.with_lag.candidate.label == "overlap, 1 worker"
    assert "overlap, 1 worker would take 6.05 ms: allow it with max_lag=1" in describe(refused, WHOLE, figures)


def test_overlap_that_gains_nothing_is_not_told() -> None:
    figures = figures_of(0.1, 6.0)
    assert decision(WHOLE, figures).with_lag is None
    assert "max_lag" not in describe(decision(WHOLE, figures), WHOLE, figures)


def test_workers_are_taken_where_steps_are_slow() -> None:
    assert chosen(WORK, figures_of(60.0, 6.0)) == "cpu, 2 workers"
    assert chosen(WHOLE, figures_of(60.0, 6.0)) == "cpu"  # one generator for all: never divided


def test_workers_must_pay_for_their_start() -> None:
    figures = dataclasses.replace(figures_of(60.0, 6.0), worker_start=1.0)
    # 30 ms less an iteration, and 1 s once
    assert chosen(dataclasses.replace(WORK, iterations=30), figures) == "cpu"
    assert chosen(dataclasses.replace(WORK, iterations=200), figures) == "cpu, 2 workers"


@pytest.mark.parametrize(("assumed", "expected"), [((), "cpu, 2 workers"), (("slowdown",), "cpu")])
def test_what_was_assumed_must_gain_more(assumed: tuple[str, ...], expected: str) -> None:
    # A twelfth of an iteration less: 55 ms instead of 60.
    figures = dataclasses.replace(figures_of(10.0, 50.0), worker_start=0.0, assumed=assumed)
    assert chosen(WORK, figures) == expected


def test_within_the_margin_the_simpler_one_is_taken() -> None:
    # 2 % less is not enough, 4 % is.
    figures = dataclasses.replace(figures_of(4.0, 96.0), worker_start=0.0)
    assert chosen(WORK, figures) == "cpu"
    assert chosen(WORK, dataclasses.replace(figures_of(9.0, 91.0), worker_start=0.0)) == "cpu, 2 workers"


def test_other_thread_counts_are_told_and_taken_only_where_left_open() -> None:
    figures = dataclasses.replace(figures_of(6.0, 60.0), update={1: 0.06, 2: 0.033})
    refused = decision(WHOLE, figures)
    assert refused.chosen.candidate.label == "cpu"
    assert refused.with_threads is not None
    assert "cpu, 2 threads would take 39 ms: see torch_threads" in describe(refused, WHOLE, figures)
    assert chosen(WHOLE, figures, torch_threads=None) == "cpu, 2 threads"


FORMS = {
    "compiled_updates=True": FormFigures(update=0.03, start=1.0),
    "compiled_updates=True and torch_threads=2": FormFigures(update=0.02, start=1.0, threads=2),
    "precision='bf16'": FormFigures(update=0.059, start=0.0),
}


@pytest.mark.parametrize(
    ("forms", "max_lag", "iterations", "expected"),
    [
        (FORMS, 0, 1000, "compiled_updates=True and torch_threads=2"),
        (FORMS, 1, 1000, "compiled_updates=True"),  # overlapped, the other core is the worker's
        (FORMS, 0, 20, None),  # which do not pay for being loaded
        ({"precision='bf16'": FORMS["precision='bf16'"]}, 0, 1000, None),  # within the margin
        ({"precision='bf16'": FormFigures(update=0.04, start=0.0)}, 0, 1000, "precision='bf16'"),
        ({}, 0, 1000, None),
    ],
)
def test_forms_of_other_bits_are_told_where_they_gain_and_never_taken(
    forms: dict[str, FormFigures], max_lag: int, iterations: int, expected: str | None
) -> None:
    work = dataclasses.replace(WHOLE, iterations=iterations)
    figures = dataclasses.replace(figures_of(6.0, 60.0), forms=forms)
    without = decision(work, dataclasses.replace(figures, forms={}), max_lag=max_lag)
    found = decision(work, figures, max_lag=max_lag)
    assert found.chosen == without.chosen
    told = best_form(found.chosen, work, figures)
    assert (told and told[0]) == expected
    line = describe(dataclasses.replace(found, with_form=told), work, figures)
    assert ("a seed give other bits" in line) == (expected is not None)
    if expected is not None:
        assert f"with {expected} it would take" in line


def test_what_a_form_gives_is_told_in_numbers() -> None:
    figures = dataclasses.replace(figures_of(6.0, 60.0), forms=FORMS)
    told = best_form(decision(WHOLE, figures).chosen, WHOLE, figures)
    assert told is not None
    assert told[1].iteration == pytest.approx(0.026)
    assert told[1].start == 1.0
    assert told[1].candidate.label == "cpu, 2 threads"


def test_no_form_of_the_cpu_is_told_where_another_device_learns() -> None:
    figures = dataclasses.replace(figures_of(5.0, 300.0, update=20.0), forms=FORMS)
    found = decision(WHOLE, figures)
    assert found.chosen.candidate.learning == "cuda"
    assert best_form(found.chosen, WHOLE, figures) is None


def test_what_another_device_would_draw_otherwise_is_not_chosen_by_a_stopwatch() -> None:
    with_noise_of_its_own = dataclasses.replace(WORK, draws_on_device=True)
    found = [candidate.name for candidate in candidates(WORK, WITH_GPU)]
    left = [candidate.name for candidate in candidates(with_noise_of_its_own, WITH_GPU)]
    assert [name for name in found if name != "cuda"] == left != found


def test_the_line_names_choice_baseline_and_figures() -> None:
    figures = figures_of(60.0, 6.0)
    line = describe(decision(WORK, figures), WORK, figures)
    assert line.startswith(
        "cpu, 2 workers, 36.5 ms an iteration (sampling 30.5 ms, learning 6 ms, copying 0 s); cpu 66 ms;"
    )
    assert "a step of 8 environments takes 590 us, their actions 10 us" in line


def test_tables_are_json() -> None:
    row = predict(WORK, WITH_GPU, Candidate("hybrid", "cpu", "cuda")).to_json()
    assert row["label"] == "hybrid"
    assert row["iteration"] == row["sampling"] + row["learning"] + row["copying"]
    fields = {field.name for field in (*dataclasses.fields(Prediction), *dataclasses.fields(Candidate))}
    assert row.keys() == (fields - {"candidate"}) | {"label", "iteration"}
    assert FIGURES.to_json()["step"] == {8: 256 * UNIT, 4: 144 * UNIT}


def test_predictions_need_no_torch() -> None:
    code = "import sys, hybridppo.auto.prediction; sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Recorded on two quiet cores of an AMD EPYC without a GPU, in milliseconds of an iteration of 128 steps: what the steps
# and their actions take, what else a rollout does, and an update; and what three candidates took.

RECORDED = {
    # work: (environments, steps, actions, rollout, update), (cpu, cpu with 2 workers, overlap)
    "CartPole, 2 x 64": ((8, 4.41, 0.56, 0.31, 5.87), (10.66, None, 6.21)),
    "CartPole, 2 x 256, 64 copies": ((64, 19.88, 15.5, 0.98, 254.58), (275.5, None, 240.9)),
    "CartPole, 2 x 512": ((8, 11.82, 7.4, 0.54, 119.38), (131.8, None, 118.1)),
    "Acrobot": ((8, 28.36, 0.56, 0.50, 6.65), (35.62, 23.34, 29.01)),
    "Pendulum": ((8, 10.98, 0.99, 0.42, 6.20), (17.71, 15.11, 11.74)),
    "HalfCheetah": ((8, 33.14, 1.11, 0.49, 6.20), (39.87, 26.21, 34.37)),
    "LunarLander": ((8, 26.62, 0.56, 0.38, 5.77), (32.87, 20.94, 26.90)),
}

LABELS = ("cpu", "cpu, 2 workers", "overlap, 1 worker")


def recorded(name: str) -> tuple[Work, Figures, dict[str, float]]:
    """The work, its figures, and the seconds of an iteration that were measured."""
    (num_envs, steps, actions, rollout, update), measured = RECORDED[name]
    figures = Figures(
        {num_envs: 1e-3 * steps / 128},
        1e-3 * actions / 128,
        1e-3 * rollout,
        {1: 1e-3 * update},
        slowdown=1.0,  # what a trial finds there
        assumed=(),
    )
    seconds = {label: 1e-3 * value for label, value in zip(LABELS, measured, strict=True) if value is not None}
    work = Work(num_envs=num_envs, num_steps=128, iterations=10_000, cores=2, splits="cpu, 2 workers" in seconds)
    return work, figures, seconds


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_predictions_are_within_a_fifth(name: str) -> None:
    work, figures, seconds = recorded(name)
    predictions = {each.label: predict(work, figures, each).iteration for each in candidates(work, figures)}
    assert predictions.keys() == seconds.keys()
    assert predictions == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("max_lag", [0, 1])
def test_recorded_choices_are_the_best(name: str, max_lag: int) -> None:
    work, figures, seconds = recorded(name)
    allowed = {label: value for label, value in seconds.items() if max_lag or "overlap" not in label}
    assert chosen(work, figures, max_lag=max_lag) == min(allowed, key=lambda label: allowed[label])
