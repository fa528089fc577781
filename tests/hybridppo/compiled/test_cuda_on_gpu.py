"""Every kernel on a GPU, step by step against the CPU's compiled loops; and what trains with them."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
pytest.importorskip("numba_cuda", reason="pip install 'numba-cuda[cu13]', or [cu12]")
pytestmark = pytest.mark.gpu

from compiled_hunt import Hunt  # noqa: E402
from ppo_settings import ppo_config  # noqa: E402
from simulated_cuda import ENVIRONMENTS, compare, side  # noqa: E402
from tagging import tag  # noqa: E402

import hybridppo  # noqa: E402
from hybridppo import Mirrored, SingleDevice  # noqa: E402
from hybridppo.system.devices import accelerator_of  # noqa: E402

GPU = torch.device("cuda:0")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_kernels_do_what_the_cpus_loops_do(name: str) -> None:
    # A product and a sum may be rounded as one there.
    seen = compare(name, GPU, tolerance=1e-5, of_noise=1e-5)
    assert seen["terminated"] + seen["truncated"] > 0


def test_a_state_beyond_the_memory_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    large = tag(taggers=40, runners=1100, nearest=2, episode_length=4, tagging_distance=0.01)
    monkeypatch.setitem(ENVIRONMENTS, "large", (large, 3, 6))
    assert compare("large", GPU, tolerance=1e-5, of_noise=1e-5)["terminated"] > 0


def test_rows_can_be_recorded_as_a_graph() -> None:
    accelerator = accelerator_of(GPU)
    _, plain = side(Hunt, 4, 6, GPU)
    _, recorded = side(Hunt, 4, 6, GPU)

    def rows(on_device: Any) -> None:
        for t in range(6):
            on_device.act(t)
            on_device.step(t)

    rows(recorded)  # compiles
    with accelerator.selected():
        graph, stream = accelerator.graph(), accelerator.stream()
        with accelerator.recording(graph, pool=accelerator.graph_pool(), stream=stream):
            rows(recorded)
        for on_device in (plain, recorded):
            on_device.restart(3)
            on_device.set_seed(1, 2)
        rows(plain)
        graph.replay()
        accelerator.wait()
    for name, tensor in vars(plain.rollout).items():
        torch.testing.assert_close(getattr(recorded.rollout, name), tensor, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Hunt], ids=str)
def test_training_on_the_device_copies_nothing(env: Any, records: bool) -> None:
    found = []
    for placement in (SingleDevice(GPU), Mirrored(GPU, GPU, force_copy=True)):
        config = ppo_config(num_envs=64, num_steps=32, num_epochs=2, hidden_sizes=(32,), fast_updates=records)
        result = hybridppo.train(
            env,
            vectorization="compiled",
            placement=placement,
            config=config,
            total_steps=20_000,
            seed=3,
            progress=False,
        )
        found.append(result)
    assert found[0].metrics["bytes_copied"] == 0
    assert found[0].metrics["episodes"] > 0
    values = [result.agent.parameters.values.detach().cpu().numpy() for result in found]
    assert np.isfinite(values[0]).all()
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-4)
