"""No gradient is older than allowed, whichever learner is fast, and some learner may always go on."""

import random

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.extras

from hybridppo.distributed.parameter_server import BoundedLag  # noqa: E402


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("max_lag", [0, 1, 2, 4])
def test_whoever_is_how_fast_no_gradient_is_too_old_and_nobody_waits_for_ever(learners: int, max_lag: int) -> None:
    rng = random.Random(17 * learners + max_lag)
    lags = BoundedLag(max_lag, version=7)
    idle, computing, waiting = list(range(learners)), [], []
    seen, steps = [], dict.fromkeys(range(learners), 0)
    for _ in range(2000):
        while idle and lags.may_begin():
            computing.append(idle.pop(rng.randrange(len(idle))))
            lags.begin(computing[-1])
        if computing:
            # The last to begin is often the first to end.
            waiting.append(computing.pop(-1 if rng.random() < 0.7 else 0))
        stepped = [learner for learner in waiting if lags.may_step(learner)][:1]
        assert stepped or computing
        for learner in stepped:
            waiting.remove(learner)
            seen.append(lags.step(learner))
            steps[learner] += 1
            idle.append(learner)
    assert max(seen) == (max_lag if learners > 1 else 0)
    assert lags.version == 7 + len(seen)
    assert min(steps.values()) > 0
