"""An optimizer step recorded once as a CUDA graph, and replayed: one launch for each minibatch instead of a hundred.

A recording is valid for one minibatch size. It costs a wait for the device and several steps, so a size is recorded
only when it occurs in a second update; until then, its steps are ordinary ones. Sizes vary if environments spend rows
on resets, or if rollouts are whole episodes. So minibatches may be padded to a few sizes.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hybridppo.agents.agent import OptimizationLoop, PolicyAgent
from hybridppo.errors import DeviceError
from hybridppo.system.devices import GraphRecorder, Record, accelerator_of, tried

MAX_RECORDINGS = 32
"""How many minibatch sizes are recorded. A recording never replaces another: all recordings share a stream and its
workspace of matrix products, which torch (2.12 and newer, pytorch issue 193402) may free when the first graph is
destroyed, while other graphs still use it."""


def recorder_for(agent: PolicyAgent) -> Record | None:
    """A recorder of CUDA graphs, if the agent wants it and the device supports it."""
    accelerator = accelerator_of(agent.parameters.values.device)
    return GraphRecorder(accelerator) if agent.records_graphs and accelerator.is_asynchronous else None


class RecordedStep:
    """The step of a loop, recorded for each size of minibatch and then replayed; the same result up to rounding.

    Minibatches are `Columns` of tensors.

    Args:
        loop: the loop whose step is recorded.
        agent: the agent; its parameters must not move any more.
        record: records a function. It may run the step several times first; the effect is undone.
        usual_size: the usual size of minibatches, if they may be padded (`Batch.padded`); None if they may not, as the
            library does not know what the loss and the networks do with rows that do not count.
    """

    def __init__(
        self, loop: OptimizationLoop, agent: PolicyAgent, record: Record, *, usual_size: int | None = None
    ) -> None:
        self._agent, self._plain, self._record, self._usual_size = agent, loop.step, record, usual_size
        agent.optimizer.keep_learning_rates_on_device()
        self._number = torch.full((), -1.0, device=agent.parameters.values.device)
        self._last_number: Any = -1.0
        self._recordings: dict[Any, _Recording] = {}
        self._first_met: dict[Any, int] = {}
        self.metrics()

    def metrics(self) -> dict[str, float]:
        """The number of steps since the last call that were recorded, that were replayed, and of all others."""
        counts: dict[str, float] = vars(self).get("_counts", {})
        self._counts = {"graph_recordings": 0.0, "graph_replays": 0.0, "graph_eager_steps": 0.0}
        return counts

    def __call__(self, minibatch: Any, passes: tuple[Any, ...]) -> list[Any]:
        """Make a step of the loop; the minibatch is copied into the tensors of the recording."""
        passes = tuple(setting if isinstance(setting, str) else self._on_device(setting) for setting in passes)
        size = self._recorded_size(len(minibatch))
        kind = size, self._is_padded(minibatch), *(setting for setting in passes if isinstance(setting, str))
        if kind not in self._recordings:
            has_come_back = self._first_met.setdefault(kind, self._agent.version) < self._agent.version
            if not has_come_back or len(self._recordings) >= MAX_RECORDINGS:
                self._counts["graph_eager_steps"] += 1
                return self._plain(minibatch, passes)
            self._recordings[kind] = self._recorded(minibatch, passes)
            self._counts["graph_recordings"] += 1
        self._counts["graph_replays"] += 1
        return self._recordings[kind].replay(minibatch)

    def _recorded_size(self, size: int) -> int:
        return size if self._usual_size is None else padded_size(size, self._usual_size)

    def _is_padded(self, minibatch: Any) -> bool:
        """Whether the minibatch is padded, if only by no row; one of the usual size is spared the arithmetic of it."""
        return self._usual_size not in (None, len(minibatch))

    def _on_device(self, number: float | Tensor) -> Tensor:
        """The tensor that recordings read, with this number in it."""
        if number is not self._last_number:
            self._number.fill_(number)
            self._last_number = number
        return self._number

    def _recorded(self, minibatch: Any, passes: tuple[Any, ...]) -> "_Recording":
        """Record a step, and replay it once as a test; the effects of both are undone.

        Raises:
            DeviceError: if the replay did not make one step of the optimizer.
        """
        parameters, slots = self._agent.parameters, self._agent.optimizer.state[self._agent.parameters.values]
        count = slots["step" if "step" in slots else f"step_{passes[0]}"]
        before = float(count)  # waits for the device, on purpose, as recording does

        def check() -> None:
            done = float(count) - before
            if done != 1.0:
                raise DeviceError(
                    f"a gradient step was recorded as a CUDA graph, but its replay made {done:g} steps of the "
                    "optimizer instead of 1: train with fast_updates=False and cuda_graphs=False, and report this with "
                    "the versions of torch and the driver"
                )

        is_padded = self._is_padded(minibatch)
        own = minibatch.padded(self._recorded_size(len(minibatch))) if is_padded else minibatch.map(torch.clone)
        return tried(
            lambda: _Recording(lambda copied: self._plain(copied, passes), own, self._record),
            lambda recording: recording.replay(minibatch),
            check,
            [parameters.values.data, *slots.values(), *self._agent.learned_buffers()],
        )


def padded_size(size: int, usual: int) -> int:
    """The next of four sizes for each power of two, by which at most a quarter is added; `usual` is one of them."""
    step = max(1, (1 << (size - 1).bit_length()) // 8)
    found = -(-size // step) * step
    return min(found, usual) if size <= usual else found


class _Recording:
    """A step on a minibatch of one size, which the recording keeps and may change."""

    def __init__(self, step: Callable[[Any], list[Any]], minibatch: Any, record: Record) -> None:
        self._minibatch = minibatch
        self._shapes: list[torch.Size] = []
        self._row: Tensor | None = None
        """The measurements of the step; allocated before the step is recorded."""

        def recorded() -> None:
            measured = step(self._minibatch)
            row = torch.cat([tensor.reshape(-1) for tensor in measured])
            if self._row is None:
                self._row, self._shapes = torch.empty_like(row), [tensor.shape for tensor in measured]
            self._row.copy_(row)

        self._replay = record(recorded)

    def replay(self, minibatch: Any) -> list[Tensor]:
        """Step on a minibatch; return what was measured."""
        size, counted = len(minibatch), getattr(self._minibatch, "counted", None)
        for name, column in self._minibatch.columns().items():
            if column is not counted:
                column[:size].copy_(getattr(minibatch, name))
        if counted is not None:
            counted[:size], counted[size:] = True, False
        self._replay()
        assert self._row is not None  # the recording has allocated it
        sizes = [shape.numel() for shape in self._shapes]
        parts = torch.split(self._row.clone(), sizes)  # a copy: the next replay writes here again
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
