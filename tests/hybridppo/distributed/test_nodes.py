"""Two machines of a Ray cluster, simulated on one; one of them is lost in the middle of a training."""

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import hybridppo
from hybridppo import EnvError

ray = pytest.importorskip("ray")

from clusters import end_shared_cluster, processes_of_ray  # noqa: E402
from ppo_settings import ppo_config  # noqa: E402

pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform != "linux", reason="several nodes on one machine")]

CONFIG = ppo_config(num_envs=4, num_steps=32, num_epochs=2, num_minibatches=2, hidden_sizes=(8, 8))
STEPS = 4 * 32 * 6
STORE = {"object_store_memory": 100 * 2**20}
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""By default, Ray takes half a minute to find a node dead."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    end_shared_cluster()
    before = signal.getsignal(signal.SIGTERM)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "_system_config": QUICK, **STORE},
    )
    try:
        yield cluster
    finally:
        children = processes_of_ray()
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, before)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []


def train(cluster: Any, distributed: str, **options: Any) -> tuple[hybridppo.TrainResult, list[dict[str, float]]]:
    """With a second node that is lost after the second iteration.

    Until then one of the two CPUs of the first is taken, so that each node has one of two workers.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Taking:  # within a function, so that Ray sends it as it is
        def is_there(self) -> bool:
            return True

    node = cluster.add_node(num_cpus=1, **STORE)
    cluster.wait_for_nodes()
    if not ray.is_initialized():
        ray.init(address=cluster.address, logging_level=logging.ERROR)
    on_the_first = NodeAffinitySchedulingStrategy(cluster.head_node.node_id, soft=False)
    taking = ray.remote(num_cpus=1, scheduling_strategy=on_the_first)(Taking).remote()
    ray.get(taking.is_there.remote(), timeout=60.0)
    seen: list[dict[str, float]] = []

    def lose_the_node(metrics: dict[str, float]) -> None:
        seen.append(metrics)
        if metrics["iteration"] == 2:
            ray.kill(taking)
            there = processes_of_ray(node.all_processes["raylet"][0].process.pid)
            assert there
            cluster.remove_node(node, allow_graceful=False)
            for process in there:  # which outlive their raylet for a moment, in which all might be trained
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            assert psutil.wait_procs(there, timeout=60)[1] == []

    result = hybridppo.train(
        "CartPole-v1", config=CONFIG, seed=5, total_steps=STEPS, placement="cpu", progress=False, vectorization="sync",
        distributed=distributed, address=cluster.address, worker_timeout=10.0, on_iteration=lose_the_node, **options,
    )  # fmt: skip
    return result, seen


@pytest.mark.parametrize("distributed", ["coarse:2", pytest.param("fine:2", marks=pytest.mark.slow)])
def test_a_run_that_loses_a_node_ends_in_one_error_and_goes_on_locally_to_the_same_bits(
    cluster: Any, distributed: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(EnvError, match=r"(sampler|environment worker) \d .* (is lost|has made no step)"):
        train(cluster, distributed, run_dir=run_dir, checkpoint_seconds=0.0)
    last = hybridppo.resume(run_dir, distributed="local", progress=False)
    options: dict[str, Any] = {"placement": "cpu", "progress": False, "vectorization": "sync"}
    whole = hybridppo.train("CartPole-v1", config=CONFIG, seed=5, total_steps=STEPS, **options)
    assert torch.equal(last.agent.parameters.values, whole.agent.parameters.values)
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6


@pytest.mark.parametrize("distributed", ["coarse:2", pytest.param("environments:2", marks=pytest.mark.slow)])
def test_what_was_on_a_lost_node_begins_again_on_another_where_that_is_asked_for(
    cluster: Any, distributed: str
) -> None:
    result, seen = train(cluster, distributed, on_env_error="restart")
    assert result.metrics["env_restarts"] >= 2
    assert seen[1]["env_restarts"] == 0
    assert result.metrics["env_steps"] >= STEPS
