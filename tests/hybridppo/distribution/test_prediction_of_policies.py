"""What a policy would give, from made-up seconds: compared with numbers worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hybridppo.auto.figures import AcceleratorFigures, Figures, Work
from hybridppo.auto.prediction import Candidate
from hybridppo.distribution.prediction import (
    Crossings,
    PolicyPrediction,
    Resources,
    Sizes,
    policies,
    powers,
    predict_over_ray,
    predict_policy,
    verdict,
)
from hybridppo.runs.distribution_policies import Central, MultiLearner, SingleLearnerCoarse, SingleLearnerFine
from hybridppo.tools.diagnosis import comparing

# Powers of two, so that sums are exact: a step of 8 environments takes 256 of some unit, one of 4 takes 144.
UNIT = 2.0**-20
WORK = Work(num_envs=8, num_steps=100, iterations=1000, cores=2, splits=True)
FIGURES = Figures(
    step={8: 256 * UNIT, 4: 144 * UNIT}, action=32 * UNIT, rollout=512 * UNIT, update={1: 8192 * UNIT},
    publish=64 * UNIT, slowdown=1.5, assumed=(),
)  # fmt: skip
CROSSINGS = Crossings(
    learner_update={"multi:2": 5000 * UNIT, "central:2": 4000 * UNIT, "multi:4": 3000 * UNIT},
    optimizer_step=16 * UNIT, exchange=4 * UNIT, gather=200 * UNIT, served=8 * UNIT, learner_start=4.0,
    call=64 * UNIT, another_call=32 * UNIT, byte=UNIT / 8, ray_start=10.0, actor_start=2.0, assumed=(),
)  # fmt: skip
SIZES = Sizes(minibatches=40, exchanges_of_values=2, bytes_of_rollout=8000, bytes_of_parameters=400)
HERE = Resources(cores=2, ray_cpus=2)
CLUSTER = Resources(cores=2, ray_cpus=16, has_more_machines=True)


def parts(policy: object, resources: Resources = HERE) -> tuple[float, float, float]:
    """Sampling, learning and crossing, in units."""
    found = predict_policy(WORK, FIGURES, CROSSINGS, SIZES, policy, resources)  # type: ignore[arg-type]
    return found.sampling / UNIT, found.learning / UNIT, found.crossing / UNIT


def test_learners_step_their_share_beside_each_other_and_meet_for_every_minibatch() -> None:
    # 512 + 100 steps of 144 at 1.5; an update at 1.5; 200 and 42 meetings of 4.
    assert parts(MultiLearner(2)) == (512 + 100 * 144 * 1.5, 5000 * 1.5, 200 + 42 * 4)
    assert predict_policy(WORK, FIGURES, CROSSINGS, SIZES, MultiLearner(2), HERE).start == 4.0
    # Four on two cores go two by two; a step of 2 is on the line through 4 and 8: 32 + 28 n = 88.
    assert parts(MultiLearner(4)) == (512 + 100 * 88 * 3.0, 3000 * 3.0, 200 + 42 * 4)


def test_central_is_bound_by_a_learners_way_by_the_server_or_by_the_cores() -> None:
    sampling, learning = (256 + 100 * 144) * 1.5, 4000 * 1.5
    way = sampling + learning + 20 * (8 + 16)
    cores = (2 * (sampling + learning) + 40 * 16) / 2
    assert way > cores > 40 * 16
    assert parts(Central(2)) == (sampling, learning, way - sampling - learning)
    slow_server = replace(CROSSINGS, optimizer_step=2048 * UNIT)  # 40 of them take longer than a learner's own way
    found = predict_policy(WORK, FIGURES, slow_server, SIZES, Central(2), HERE)
    way = sampling + learning + 20 * (8 + 2048)
    assert found.iteration / UNIT == max(way, 40 * 2048)
    alone = Resources(cores=1)
    found = predict_policy(WORK, FIGURES, CROSSINGS, SIZES, Central(2), alone)
    assert found.iteration / UNIT == 2 * (sampling + learning) + 40 * 16


def test_samplers_over_ray_cost_their_calls_and_the_bytes_of_rollout_and_parameters() -> None:
    crossing = 64 + 32 + (8000 + 2 * 400) / 8
    assert parts(SingleLearnerCoarse(2)) == (512 + 100 * 144 * 1.5, 8192, crossing)
    # On other machines nothing slows down, and 4 workers of 2 environments are at work at once.
    crossing = 64 + 3 * 32 + (8000 + 4 * 400) / 8
    assert parts(SingleLearnerCoarse(4), CLUSTER) == (512 + 100 * 88, 8192, crossing)
    assert predict_policy(WORK, FIGURES, CROSSINGS, SIZES, SingleLearnerCoarse(2), HERE).start == 12.0


def test_environment_workers_cost_a_call_in_every_step() -> None:
    stepping = (256 - 32) * 4 / 8
    assert parts(SingleLearnerFine(2)) == (512 + 100 * (32 + stepping) * 1.5, 8192, 100 * (64 + 32))


def test_a_placement_within_a_policy_that_overlaps_hides_the_shorter_half_where_there_is_a_core() -> None:
    overlap, policy = Candidate("overlap"), SingleLearnerCoarse(4)
    found = predict_over_ray(WORK, FIGURES, CROSSINGS, SIZES, policy, CLUSTER, overlap)
    assert found.overlapped / UNIT == min(100 * 88, 8192)
    assert found.sampling / UNIT == 512 + 100 * 88 - 8192
    assert found.copying / UNIT == 64 + 64 + 3 * 32 + (8000 + 4 * 400) / 8  # and a publish
    crowded = predict_over_ray(WORK, FIGURES, CROSSINGS, SIZES, SingleLearnerCoarse(2), HERE, overlap)
    assert crowded.overlapped == 0.0


def test_an_actor_on_a_gpu_crosses_in_every_step_of_remote_environments() -> None:
    gpu = AcceleratorFigures("cuda", 160 * UNIT, 48 * UNIT, 1024 * UNIT, 96 * UNIT, 224 * UNIT, 416 * UNIT, 64 * UNIT)
    figures = replace(FIGURES, accelerator=gpu)
    candidate = Candidate("cuda", "cuda", "cuda")
    found = predict_over_ray(WORK, figures, CROSSINGS, SIZES, SingleLearnerFine(2), CLUSTER, candidate)
    assert found.sampling / UNIT == 512 + 100 * (160 + 112)
    assert found.learning / UNIT == 1024
    assert found.copying / UNIT == 100 * 96 + 64


def test_what_was_not_measured_is_said_to_be_assumed() -> None:
    known = replace(CROSSINGS, assumed=("exchange",))
    assert predict_policy(WORK, FIGURES, known, SIZES, MultiLearner(2), HERE).is_assumed
    assert not predict_policy(WORK, FIGURES, known, SIZES, Central(2), HERE).is_assumed
    assert not predict_policy(WORK, FIGURES, known.measured(exchange=1.0), SIZES, MultiLearner(2), HERE).is_assumed


def test_policies_worth_predicting() -> None:
    assert [powers(n) for n in (1, 2, 6, 8)] == [[], [2], [2, 4, 6], [2, 4, 8]]
    assert [str(each) for each in policies(WORK, HERE)] == ["multi:2", "central:2", "coarse:2", "fine:2"]
    assert [str(each) for each in policies(WORK, Resources(cores=1))] == ["multi:2", "central:2"]
    odd = replace(WORK, num_envs=5, has_workers=False)
    assert [str(each) for each in policies(odd, CLUSTER)] == ["fine:2", "fine:4", "fine:5"]


LOCAL = PolicyPrediction("local (cpu)", 0.010, 0.010, 0.0, 0.0, False)


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        ((0.005, 0.004, 0.001, 2.0), "multi:2 pays: 1.67 times as fast as local (cpu) over the run"),
        ((0.010, 0.0092, 0.0003, 0.0), "what cannot be divided takes most of the time"),  # within the margin
        ((0.005, 0.005, 0.011, 0.0), "what crosses takes 11 ms of multi:2's iteration: the networks are small for it"),
        ((0.005, 0.005, 0.0, 20.0), "takes 20 s, which 2,000 iterations would bring in"),
    ],
)
def test_the_verdict_says_whether_spreading_pays_and_why_not(spread: tuple[float, ...], said: str) -> None:
    line = verdict(LOCAL, [PolicyPrediction("multi:2", *spread, False)], WORK)
    assert said in line
    assert line.startswith("multi:2 pays" if "pays" in said else "spreading does not pay: ")


def test_the_verdict_goes_by_the_fastest() -> None:
    slow, fast = (PolicyPrediction(name, 0.005, 0.004, 0.0, 0.0, False) for name in ("multi:4", "multi:2"))
    assert verdict(LOCAL, [replace(slow, learning=0.008), fast], WORK).startswith("multi:2 pays")
    assert verdict(LOCAL, [], WORK) == "there is nothing to compare local (cpu) with"


PREDICTED = [LOCAL, PolicyPrediction("central:2", 0.004, 0.004, 0.001, 0.0, False)]
"""Of which the second is to be more than twice as fast."""


@pytest.mark.parametrize(
    ("seconds", "chosen", "said"),
    [
        ({}, "central:2", "central:2 pays: 2.22 times as fast"),
        (
            {"local (cpu)": 0.018, "central:2": 0.020},
            "local",
            "spreading does not pay: take local (cpu); no policy is fas",
        ),
        ({"local (cpu)": 0.018, "central:2": 0.012}, "central:2", "central:2 pays: 1.50 times as fast"),
    ],
)
def test_what_was_measured_decides_and_not_what_was_predicted(
    seconds: dict[str, float], chosen: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = SimpleNamespace(
        work=WORK,
        steps=1000,
        left_out=[],
        pieces=dict,
        resources=lambda address: HERE,
        predicted=lambda resources: PREDICTED,
        measured=lambda prediction, *_: {"iterations": 9, "seconds": seconds[prediction.policy]},
    )
    monkeypatch.setattr(comparing, "_Comparison", lambda *arguments: comparison)
    found = comparing.compare_distributions("CartPole-v1", measured_seconds=1.0 if seconds else 0.0)
    assert found["chosen"] == chosen
    assert found["line"].startswith(said)
    assert [row["pays"] for row in found["rows"]] == [False, chosen == "central:2"]
    assert [row["iteration"] for row in found["rows"]] == [each.iteration for each in PREDICTED]
    fastest = seconds or {each.policy: each.iteration for each in PREDICTED}
    assert [row["steps_per_second"] for row in found["rows"]] == [1000 / fastest[each.policy] for each in PREDICTED]
    assert ("measured ms" in comparing.distributions_as_markdown(found)) == bool(seconds)
