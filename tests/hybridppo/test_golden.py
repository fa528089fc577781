"""A golden trace: a tiny run must give the same numbers as when the trace was made.

After a change that changes them on purpose:

    python tests/hybridppo/test_golden.py --update
"""

import json
import sys
from pathlib import Path

import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo.interfaces import Metrics

TRACE = Path(__file__).parents[1] / "golden" / "cartpole.json"

LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "learning_rate")
COUNTS = ("iteration", "env_steps", "episodes")


def trace() -> list[Metrics]:
    """The metrics of every iteration, without times."""
    iterations: list[Metrics] = []
    hybridppo.train(
        "CartPole-v1",
        total_steps=3 * 2 * 16,
        seed=0,
        placement="cpu",
        config=ppo_config(num_envs=2, num_steps=16, learning_rate=1e-2, clip_range_vf=None),
        vectorization="sync",
        progress=False,
        on_iteration=iterations.append,
    )
    return [{name: metrics[name] for name in (*COUNTS, *LOSSES)} for metrics in iterations]


def test_a_tiny_run_gives_the_numbers_it_always_gave() -> None:
    golden = json.loads(TRACE.read_text())
    # Processors round differently, and three iterations let that grow.
    assert trace() == [pytest.approx(line, rel=1e-4, abs=1e-6) for line in golden]


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    TRACE.write_text(json.dumps(trace(), indent=1) + "\n")
