"""The estimate of trainings with several learners, against times worked out by hand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    import scale
finally:
    sys.path.pop(0)


def test_a_ring_all_reduce_sends_a_share_of_the_gradient_in_each_of_its_messages() -> None:
    # 4 learners: 6 messages of 1,000 bytes each, at 1e6 bytes per second after 0.5 s of latency.
    assert scale.ring(4, 4_000.0, 0.5, 1e6) == pytest.approx(6 * (0.5 + 0.001))


def test_one_learner_waits_for_nobody_and_several_for_the_slowest() -> None:
    minibatches = scale.EPOCHS * scale.MINIBATCHES
    assert scale.simulated(1, {"fill": [2.0], "gradient": [0.25]}, 0.0) == 2.0 + minibatches * 0.25
    # Among 64 learners, one almost surely draws the longer time.
    parts = {"fill": [1.0, 3.0], "gradient": [0.1, 0.5]}
    assert scale.simulated(64, parts, 0.125) == pytest.approx(3.0 + minibatches * (0.5 + 0.125))
