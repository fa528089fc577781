"""Learners of a parameter server in Ray actors: the bits of one process, and a lost one is replaced."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hybridppo
from hybridppo import Central

ray = pytest.importorskip("ray")

from clusters import shared_cluster  # noqa: E402
from failing import failing, killed, silent  # noqa: E402
from ppo_settings import ppo_config  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]
CONFIG = ppo_config(num_envs=4, num_steps=32, num_epochs=3, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3)


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> None:
    shared_cluster()


def train(env: Any = "CartPole-v1", **options: Any) -> hybridppo.TrainResult:
    options = {"config": CONFIG, "seed": 5, "total_steps": 512, "placement": "cpu", "progress": False, **options}
    if "distributed" in options:
        options["address"] = ray.get_runtime_context().gcs_address
    return hybridppo.train(env, **options)


def test_one_learner_gives_the_bits_of_one_process() -> None:
    alone = train(vectorization="sync")
    served = train(distributed=Central(1, max_lag=0))
    assert torch.equal(served.agent.parameters.values, alone.agent.parameters.values)


def test_several_learners_keep_to_the_bound() -> None:
    lines: list[dict[str, float]] = []
    result = train(distributed=Central(2, max_lag=1), on_iteration=lines.append, total_steps=1024)
    assert result.metrics["env_steps"] == 1024
    assert {line["learner"] for line in lines} == {0, 1}
    assert all(line["gradient_lag_max"] <= 1 for line in lines)


class UntilRestarted(hybridppo.Callback):
    """Ends the training when one learner was replaced and both have since learned."""

    def __init__(self) -> None:
        self._since: set[float] = set()

    def on_iteration(self, run: Any, metrics: dict[str, float]) -> None:
        if metrics["env_restarts"]:
            self._since.add(metrics["learner"])
        if len(self._since) == 2:
            run.stop("seen")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (killed, r"learner [01] \(environments [02] to [13]\), process \d+ of \S+ is lost: ActorDiedError"),
        pytest.param(
            silent, r"learner [01] .* has made no step for 8 s, after \d+ of its rollout", marks=pytest.mark.slow
        ),
    ],
)
def test_a_learner_that_is_lost_is_replaced(
    what: Any, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(
        failing(what, tmp_path / "mark"), distributed=Central(2), on_env_error="restart", total_steps=10**6,
        worker_timeout=8.0, callbacks=[UntilRestarted()],
    )  # fmt: skip
    assert result.metrics["env_restarts"] == 2
    assert result.metrics["learners"] == 2
    (warned,) = [each for each in caplog.messages if "Another is started" in each]
    assert re.match(message, warned), warned


def test_an_error_of_a_learner_ends_the_training_in_one_error(tmp_path: Path) -> None:
    def raising() -> None:
        raise ValueError("no more of this")

    with pytest.raises(hybridppo.DistributedError, match=r"learner [01] .* failed: .*no more of this"):
        train(failing(raising, tmp_path / "mark"), distributed=Central(2))


@pytest.mark.slow
def test_gradients_that_diverge_end_the_training(tmp_path: Path) -> None:
    config = ppo_config(num_envs=4, num_steps=32, learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(hybridppo.TrainingError, match=r"learner [01] .*finite"):
        train(config=config, distributed=Central(2))
