"""An optimizer step of PPO recorded once as a CUDA graph, and replayed: one launch a minibatch instead of a hundred.

A recording is of one size of minibatch. It costs a wait for the device and several steps, so a size is recorded when
it is met in a second update; until then, its steps are plain ones. If rollouts are whole episodes, most sizes never
come back.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from typing import Any

import torch
from torch import Tensor

from hybridppo.agents.common.recording import tried_step
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loop import OptimizationLoop, Optimized
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.system.recording import Record

MAX_RECORDINGS = 32
"""How many sizes of minibatches are recorded; they vary if environments spend rows on resets. None makes room for
another: they share a stream, and with it the workspace of its matrix products, which torch (2.12 and newer, pytorch
issue 193402) may give back with the first graph that is destroyed. Those that are left would go on to use it."""


class RecordedStep:
    """The step of a loop, recorded for each size of minibatch and then replayed; equal to it up to rounding.

    Args:
        loop: whose step it is.
        agent: with its parameters where they stay.
        record: how; a recording may run the step some times first, which is undone.
    """

    def __init__(self, loop: OptimizationLoop, agent: Optimized, record: Record) -> None:
        self._agent, self._plain, self._record = agent, loop.step, record
        self.extras = loop.backend.extras
        agent.optimizer.keep_learning_rates_on_device()
        self._clip_range = torch.full((), -1.0, device=agent.parameters.values.device)
        self._last_clip_range: float | Tensor = -1.0
        self._recordings: dict[int, _Recording] = {}
        self._first_met: dict[int, int] = {}
        self._counts = _no_counts()

    def metrics(self) -> dict[str, float]:
        """How many steps of this update were recorded, how many replayed, and how many neither."""
        counts, self._counts = self._counts, _no_counts()
        return counts

    def __call__(self, minibatch: Batch, clip_range: float | Tensor) -> tuple[Any, Tensor | float]:
        """As the loop's step; the minibatch is copied to where its recording looks for it."""
        if clip_range is not self._last_clip_range:
            self._clip_range.fill_(clip_range)
            self._last_clip_range = clip_range
        minibatch, size = minibatch.made(), len(minibatch)
        if size not in self._recordings:
            has_come_back = self._first_met.setdefault(size, self._agent.version) < self._agent.version
            if not has_come_back or len(self._recordings) >= MAX_RECORDINGS:
                self._counts["graph_eager_steps"] += 1
                return self._plain(minibatch, self._clip_range)
            self._recordings[size] = self._recorded(minibatch)
            self._counts["graph_recordings"] += 1
        self._counts["graph_replays"] += 1
        return self._recordings[size].replay(minibatch)

    def _recorded(self, minibatch: Batch) -> "_Recording":
        parameters, slots = self._agent.parameters, self._agent.optimizer.state[self._agent.parameters.values]
        return tried_step(
            lambda: _Recording(self, minibatch),
            lambda recording: (recording.replay(minibatch), self.extras.pop(minibatch.returns)),
            [parameters.values.data, *slots.values(), *self._agent.learned_buffers()],
            slots["step"],
        )

    def record(self, minibatch: Batch, statistics: Tensor) -> Any:
        """What steps on this very minibatch again, and writes its `STATISTICS` and the loss's extras."""

        def step() -> None:
            measured, norm = self._plain(minibatch, self._clip_range)
            statistics[: len(STATISTICS) - 1] = measured
            statistics[len(STATISTICS) - 1] = norm
            statistics[len(STATISTICS) :] = self.extras.pop(statistics)

        return self._record(step)


def _no_counts() -> dict[str, float]:
    return {"graph_recordings": 0, "graph_replays": 0, "graph_eager_steps": 0}


class _Recording:
    """A step on a minibatch of one size."""

    def __init__(self, step: RecordedStep, minibatch: Batch) -> None:
        self._columns = minibatch.map(torch.clone).columns()
        self._extras = step.extras
        self._statistics = torch.zeros(len(STATISTICS) + len(self._extras.names), device=minibatch.returns.device)
        self._replay = step.record(Batch(**self._columns), self._statistics)

    def replay(self, minibatch: Batch) -> tuple[Tensor, Tensor]:
        """Step on a minibatch; its statistics."""
        for name, column in self._columns.items():
            column.copy_(getattr(minibatch, name))
        self._replay()
        statistics = self._statistics.clone()  # the next replay writes here again
        if self._extras.names:
            self._extras.put(statistics[len(STATISTICS) :])
        return statistics[: len(STATISTICS) - 1], statistics[len(STATISTICS) - 1]
