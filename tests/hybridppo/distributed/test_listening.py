"""A training on one machine opens no port: nobody on the network can connect to any of its processes."""

import sys
from ipaddress import ip_address
from typing import Any

import psutil
import pytest
from clusters import end_shared_cluster
from ppo_settings import ppo_config
from processes import started_processes

import hybridppo
from hybridppo.environments.torch_cartpole import TorchCartPole

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="macOS shows sockets to the administrator only")
CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8, 8))


def make(num_envs: int, device: str = "cpu") -> TorchCartPole:
    return TorchCartPole(num_envs, device, episode_length=20)


def reachable() -> set[tuple[str, str]]:
    """The processes of a training, this one included, that listen beyond the loopback, and their addresses."""
    return {
        (process.name(), f"{connection.laddr.ip}:{connection.laddr.port}")
        for process in {psutil.Process(), *started_processes()}
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
        and not ip_address(connection.laddr.ip.removeprefix("::ffff:")).is_loopback  # an IPv4 address as one of IPv6
    }


@pytest.mark.parametrize(
    ("distributed", "options"),
    [
        ("local", {"num_workers": 2}),
        ("local", {"evaluate_every": 64, "evaluate_async": True}),
        ("multi:2", {}),
        ("gpu:2", {}),
        pytest.param("central:2", {}, marks=pytest.mark.extras),
        pytest.param("coarse:2", {}, marks=pytest.mark.extras),
        *(
            pytest.param(name, {}, marks=[pytest.mark.extras, pytest.mark.slow])
            for name in ("fine:2", "environments:2")
        ),
    ],
)
def test_no_process_of_a_training_on_one_machine_listens_beyond_the_loopback(
    distributed: str, options: dict[str, Any]
) -> None:
    end_shared_cluster()  # whose processes are reachable, and which a training would join
    before, found = reachable(), list[set[tuple[str, str]]]()
    others = 0

    def look(metrics: Any) -> None:
        nonlocal others
        found.append(reachable())
        others = max(others, len(started_processes()))

    hybridppo.train(
        make if distributed == "gpu:2" else "CartPole-v1", config=CONFIG, total_steps=3 * CONFIG.batch_size, seed=5,
        placement="cpu", progress=False, distributed=distributed, on_iteration=look,
        **options,
    )  # fmt: skip
    assert len(found) >= 3
    assert others > 0
    assert set().union(*found) - before == set()
