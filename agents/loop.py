"""The optimisation loop of every agent: for each minibatch the gradient, clipping, Adam and statistics.

A backend computes gradients and steps along them: by autograd (`fill_gradient`), or written out by hand. An `Exchange`
combines the gradients of several processes. A step may have several passes over its minibatch, such as one for the
critics and one for the actor; each has its own gradient. The backend takes the setting of a pass: PPO's clip range, or
the name of the network that learns.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.networks.normalization import Moments
from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.replay import Replay, Transitions
from hybridppo.system.signals import Stopped

Draw = Callable[[int, np.random.Generator, tuple[int, int]], Transitions]
"""Draws minibatches from one part of a replay buffer: takes its number, a generator, and their number and size."""


class Exchange:
    """Shares an update with other processes; this base class shares nothing.

    A rollout may consist of parts (`Rollout.parts`), each of which becomes a batch. Only the exchanges that support
    several parts get several.
    """

    is_alone = True
    """Whether no other process shares the update."""

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """The moments of all rows of an update, of observations or rewards; `own` are those of each part."""
        (found,) = own
        return found

    def batch(self, own: Sequence[Any]) -> Any:
        """The batch that the epochs learn from, made of the batch of each part."""
        (found,) = own
        return found

    def mean(self, batch: Any, measure: Callable[[Any], Tensor], count: int) -> Tensor:
        """The result of `measure` for the batch, `[count]` means over rows."""
        return measure(batch)

    def all_say(self, batch: Any, own: bool) -> bool:
        """Whether all processes say yes."""
        return own

    def minibatches(self, backend: Any, epoch: Any, sizes: Sequence[int]) -> Iterable[Any]:
        """The share of this process of each minibatch of an epoch."""
        found: Iterable[Any] = backend.minibatches(epoch, sizes)
        return found

    def drawn(self, replay: Replay, generator: np.random.Generator, shape: tuple[int, int], draw: Draw) -> Any:
        """The share of this process of minibatches from a replay buffer.

        Args:
            replay: the replay buffer of this process.
            generator: of the draws, in the same state in every process.
            shape: number and size of the minibatches.
            draw: draws the minibatches of one part.

        Returns:
            The minibatches; None if a part has no transition yet.
        """
        (num_valid,) = replay.num_valid_of_parts
        return draw(0, generator, shape) if num_valid else None

    def gradient(self, backend: Any, minibatch: Any, setting: Any) -> Any:
        """Fill the gradient of the parameters with that of the whole minibatch; return statistics."""
        return backend.gradient(minibatch, setting)

    def descend(self, descend: Callable[[], Any]) -> Any:
        """Step along the gradient, as `descend` does; return its norm before clipping."""
        return descend()


class OptimizationLoop:
    """The steps of an update.

    Args:
        agent: whose parameters learn.
        backend: computes gradients (`gradient`) and steps along them (`descend`), such as `agents/ppo/by_autograd.py`.
        exchange: what the update shares with other processes.
    """

    def __init__(self, agent: Any, backend: Any, exchange: Exchange) -> None:
        self._agent, self.backend, self.exchange = agent, backend, exchange
        self.whole_step: Any = None
        """Makes steps in place of `step`, with the same arguments: a recorded one (`recorded_step.py`), or compiled."""

    def epoch(self, epoch: Any, sizes: Sequence[int], setting: Any) -> Tensor:
        """Cut an epoch's batch into minibatches of these sizes, and step on each.

        Returns:
            The statistics of every step, the last of which is the norm of the gradient, `[len(sizes), K]`.

        Raises:
            Stopped: before a step if the agent's `should_stop` returns True.
        """
        if self.exchange.is_alone:
            table: Tensor | None = self.backend.all_steps(epoch, sizes, setting)
            if table is not None:
                return table
        minibatches = self.exchange.minibatches(self.backend, epoch, sizes)
        statistics, norms = zip(*self.steps(zip(minibatches, repeat((setting,)), strict=False)), strict=True)
        return torch.cat((_stacked(statistics), _stacked(norms).unsqueeze(1)), 1)

    def steps(self, minibatches: Iterable[tuple[Any, tuple[Any, ...]]]) -> list[list[Any]]:
        """Step on each minibatch, which comes with the settings of its passes; return what each step measured.

        Raises:
            Stopped: before a step if the agent's `should_stop` returns True.
        """
        step = self.step if self.whole_step is None else self.whole_step
        measured: list[list[Any]] = []
        for minibatch, passes in minibatches:
            if self._agent.should_stop():
                raise Stopped
            measured.append(step(minibatch, passes))
        return measured

    def step(self, minibatch: Any, passes: tuple[Any, ...]) -> list[Any]:
        """For each pass, compute the gradient, clip it, and step Adam.

        Returns:
            For each pass the statistics, and the norm of the gradient if it is measured.
        """
        measured = []
        for setting in passes:
            measured.append(self.exchange.gradient(self.backend, minibatch, setting))
            norm = self.exchange.descend(partial(self.backend.descend, setting))
            if norm is not None:
                measured.append(norm)
        return measured

    def metrics(self) -> dict[str, float]:
        """Further metrics since the last call."""
        found: dict[str, float] = {} if self.whole_step is None else self.whole_step.metrics()
        return found


def fill_gradient(parameters: FlatParameters, loss: Tensor, network: str | None = None) -> None:
    """Fill the gradient of the parameters, or of one network, with that of a loss; no other gradient is computed."""
    if network is None:
        parameters.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return
    parameters.gradient[parameters.range_of(network)].zero_()
    learning = [parameter for parameter in parameters.of_network(network) if parameter.requires_grad]
    if learning:
        loss.backward(inputs=learning)  # type: ignore[no-untyped-call]


def _stacked(numbers: Sequence[Any]) -> Tensor:
    """Tensors, or numbers and arrays of NumPy, as one tensor."""
    if isinstance(numbers[0], Tensor):
        return torch.stack(list(numbers))
    return torch.from_numpy(np.array(numbers, np.float32))
