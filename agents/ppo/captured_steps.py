"""The optimizer steps of PPO recorded once as a CUDA graph, and replayed: one launch a minibatch instead of a hundred.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.optimizer_steps import STATISTICS, AutogradSteps
from hybridppo.interruption import Stopped

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


Array = NDArray[Any]

MAX_RECORDINGS = 32
"""How many sizes of minibatches are kept; they vary where environments spend rows on resets."""
Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Makes a function, which works on tensors at fixed addresses, into one that does the same again, faster."""


class CapturedSteps:
    """`AutogradSteps`, each step recorded for its size of minibatch and then replayed; equal to them up to rounding.

    Args:
        agent: with its parameters where they stay.
        record: how; a recording may run the step some times first, which is undone.
    """

    def __init__(self, agent: "PPO", record: Record | None = None) -> None:
        self._agent, self._plain = agent, AutogradSteps(agent)
        self._parameters, self._optimizer = agent.parameters, agent.optimizer
        self._optimizer.keep_learning_rates_on_device()
        self._clip_range = torch.zeros((), device=agent.parameters.values.device)
        self._record = record if record is not None else _GraphRecorder()
        self._recordings: OrderedDict[int, _Recording] = OrderedDict()

    def threads(self) -> AbstractContextManager[None]:
        """As many as torch has."""
        return self._plain.threads()

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        return self._plain.values(observations)

    def epoch(self, batch: Batch, order: Array, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; each minibatch is copied to where its recording looks for it."""
        self._clip_range.fill_(clip_range)
        shuffled = batch.gather(torch.as_tensor(order, device=batch.returns.device))
        statistics: list[Tensor] = []
        for minibatch in shuffled.split(sizes):
            if self._agent.should_stop():
                raise Stopped
            statistics.append(self._recording(minibatch).replay(minibatch))
        return torch.stack(statistics)

    def _recording(self, minibatch: Batch) -> "_Recording":
        size = len(minibatch.returns)
        if size in self._recordings:
            self._recordings.move_to_end(size)
        else:
            if len(self._recordings) >= MAX_RECORDINGS:
                self._recordings.popitem(last=False)
            before = [tensor.clone() for tensor in self._state()]
            self._recordings[size] = _Recording(self._plain, self._clip_range, minibatch, self._record)
            for tensor, value in zip(self._state(), before, strict=True):
                tensor.copy_(value)
        return self._recordings[size]

    def _state(self) -> list[Tensor]:
        """What a step changes and later ones depend on."""
        return [self._parameters.values.data, *self._optimizer.state[self._parameters.values].values()]


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
        for field in fields(Batch):
            getattr(self._batch, field.name).copy_(getattr(minibatch, field.name))
        self._replay()
        return self._statistics.clone()  # the next replay writes here again


class _GraphRecorder:
    """Records CUDA graphs, which share their memory: they are replayed one after another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        # What is made at the first calls (workspaces of cuBLAS, accumulators of autograd) must not be recorded.
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        return graph.replay
