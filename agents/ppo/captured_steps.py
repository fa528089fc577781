"""The optimizer steps of PPO recorded once as a CUDA graph, and replayed: one launch a minibatch instead of a hundred.

A recording is of one size of minibatch. It costs a wait for the device and several steps, so a size is recorded when
it is met in a second update; until then, its steps are plain ones. Where rollouts are whole episodes, most sizes never
come back.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridppo.agents.common.recording import tried_step
from hybridppo.agents.ppo.batch import Batch, columns_of
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.interruption import Stopped
from hybridppo.system.recording import GraphRecorder, Record

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


MAX_RECORDINGS = 32
"""How many sizes of minibatches are recorded; they vary where environments spend rows on resets. None makes room for
another: they share a stream, and with it the workspace of its matrix products, which torch (2.12 and newer, pytorch
issue 193402) may give back with the first graph that is destroyed. Those that are left would go on to use it."""


class CapturedSteps:
    """`AutogradSteps`, each step recorded for its size of minibatch and then replayed; equal to them up to rounding.

    Args:
        agent: with its parameters where they stay.
        record: how; a recording may run the step some times first, which is undone.
    """

    written_in: str | None = None

    def __init__(self, agent: "PPO", record: Record | None = None) -> None:
        self._agent, self._plain = agent, AutogradSteps(agent)
        self._parameters, self._optimizer = agent.parameters, agent.optimizer
        self._optimizer.keep_learning_rates_on_device()
        device = agent.parameters.values.device
        self._clip_range = torch.zeros((), device=device)
        self._record = record if record is not None else GraphRecorder(accelerator_of(device))
        self._recordings: dict[int, _Recording] = {}
        self._first_met: dict[int, int] = {}
        self._counts = _no_counts()

    def threads(self) -> AbstractContextManager[None]:
        """As many as torch has."""
        return self._plain.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        return self._plain.values(observations)

    def log_probs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """As the plain ones."""
        return self._plain.log_probs(observations, actions)

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """As the plain ones."""
        return self._plain.log_probs_of(batch, sizes)

    def metrics(self) -> dict[str, float]:
        """How many steps of this update were recorded, how many replayed, and how many neither."""
        counts, self._counts = self._counts, _no_counts()
        return counts

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; each minibatch is copied to where its recording looks for it."""
        self._clip_range.fill_(clip_range)
        shuffled = batch.gather(torch.as_tensor(order, device=batch.returns.device))
        statistics: list[Tensor] = []
        for minibatch in shuffled.split(sizes):
            if self._agent.should_stop():
                raise Stopped
            statistics.append(self._step(minibatch.made()))
        return torch.stack(statistics)

    def _step(self, minibatch: Batch) -> Tensor:
        size = len(minibatch.returns)
        if size not in self._recordings:
            has_come_back = self._first_met.setdefault(size, self._agent.version) < self._agent.version
            if not has_come_back or len(self._recordings) >= MAX_RECORDINGS:
                self._counts["graph_eager_steps"] += 1
                return self._plain.step(minibatch, self._clip_range)
            self._recordings[size] = self._recorded(minibatch)
            self._counts["graph_recordings"] += 1
        self._counts["graph_replays"] += 1
        return self._recordings[size].replay(minibatch)

    def _recorded(self, minibatch: Batch) -> "_Recording":
        slots = self._optimizer.state[self._parameters.values]
        return tried_step(
            lambda: _Recording(self._plain, self._clip_range, minibatch, self._record),
            lambda recording: recording.replay(minibatch),
            [self._parameters.values.data, *slots.values(), *self._agent.learned_buffers()],
            slots["step"],
        )


def _no_counts() -> dict[str, float]:
    return {"graph_recordings": 0, "graph_replays": 0, "graph_eager_steps": 0}


class _Recording:
    """A step on a minibatch of one size."""

    def __init__(self, steps: AutogradSteps, clip_range: Tensor, minibatch: Batch, record: Record) -> None:
        self._batch = minibatch.map(torch.clone)
        self._statistics = torch.zeros(len(STATISTICS), device=minibatch.returns.device)

        def step() -> None:
            self._statistics.copy_(steps.step(self._batch, clip_range))

        self._replay = record(step)

    def replay(self, minibatch: Batch) -> Tensor:
        """Step on a minibatch; its statistics."""
        for name in columns_of(type(self._batch)):
            getattr(self._batch, name).copy_(getattr(minibatch, name))
        self._replay()
        return self._statistics.clone()  # the next replay writes here again
