"""Learners without shared memory, like those of several machines: gloo exchanges their rows, with the same bits."""

from typing import Any

import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import MultiLearner
from hybridppo.distributed.learners import MultiLearnerStrategy
from hybridppo.distributed.wires import Collective, InSharedMemory, Wire

CONFIG = ppo_config(
    num_envs=4, num_steps=32, num_epochs=3, num_minibatches=2, hidden_sizes=(8, 8), learning_rate=1e-3,
    normalize_observations=True, normalize_rewards=True, target_kl=1e-4,
)  # fmt: skip


class Apart(MultiLearnerStrategy):
    """Learners that do not know that they are on one machine. The others have the class of the first."""

    way: type = Collective

    def _wire(self, device: torch.device) -> Wire:
        self._are_neighbours = self.way is InSharedMemory
        wire = super()._wire(device)
        assert type(wire) is self.way
        return wire


class Beside(Apart):
    """Learners that share memory, and would raise an error if they did not."""

    way = InSharedMemory


def train(policy: MultiLearner) -> hybridppo.TrainResult:
    return hybridppo.train(
        "CartPole-v1", total_steps=4 * 32 * 4, config=CONFIG, seed=5, placement="cpu", progress=False,
        distributed=policy, on_interrupt="return",
    )  # fmt: skip


@pytest.mark.extras
def test_gloo_brings_the_same_rows_together_as_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kind in (Beside, Apart):

        def of(
            policy: Any, timeout: float, address: Any, kind: type[MultiLearnerStrategy] = kind
        ) -> MultiLearnerStrategy:
            return kind(policy, 0, timeout)

        monkeypatch.setattr(MultiLearnerStrategy, "of", of)
        found.append(train(MultiLearner(2, shards=4)))
    beside, apart = found
    assert torch.equal(apart.agent.parameters.values, beside.agent.parameters.values)
    assert apart.metrics["approx_kl"] == beside.metrics["approx_kl"]
    assert apart.metrics["episodes"] == beside.metrics["episodes"] > 0


@pytest.mark.extras
def test_all_reduce_gives_the_same_up_to_rounding() -> None:
    expected = train(MultiLearner(1, shards=4))
    found = train(MultiLearner(2, shards=4, reduce="all_reduce"))
    assert torch.allclose(found.agent.parameters.values, expected.agent.parameters.values, atol=1e-5)
    assert found.metrics["env_steps"] == expected.metrics["env_steps"]
