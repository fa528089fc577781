"""The optimizer steps of an agent with a memory written out by hand in NumPy: equal to `RecurrentSteps` up to rounding.

The layers after the memory, and the loss, are those of `NumpySteps`: to them, what is remembered is an observation. The
gradient that they give it goes back through time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch, PackedBatch
from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_heads import array_of
from hybridppo.agents.ppo.numpy_passes import gradients_in, stacked
from hybridppo.agents.ppo.numpy_steps import NumpySteps, knows
from hybridppo.agents.ppo.optimizer_steps import STATISTICS
from hybridppo.agents.ppo.sequences import SequenceBatch
from hybridppo.networks.forms import numpy_form
from hybridppo.networks.numpy_forms.cells import CELLS, GRUCells, LSTMCells
from hybridppo.networks.recurrent import RecurrentNetwork
from hybridppo.system.interruption import Stopped

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


Array = NDArray[Any]


class NumpyRecurrentSteps(NumpySteps):
    """Forward and backward passes in NumPy, actor and critic in one, on sequences."""

    def __init__(self, agent: "PPO") -> None:
        super().__init__(agent)
        actor, critic = agent.actor_network, agent.critic_network
        assert isinstance(actor, RecurrentNetwork)
        assert isinstance(critic, RecurrentNetwork)
        form = numpy_form(actor)
        assert form is not None
        assert form.cell is not None
        kind: type[LSTMCells] | type[GRUCells] = CELLS[form.cell.kind]
        cells = [list(network.cell.parameters()) for network in (actor, critic)]
        self._cells = kind(stacked(array_of, *cells))
        self._cell_gradients = stacked(gradients_in(self._gradient, agent), *cells)
        self._critic_cell = kind([array_of(parameter)[None] for parameter in cells[1]])
        self._mask_size, self._size = actor.mask_size, actor.cell.size

    @staticmethod
    def _layers_of(agent: "PPO") -> tuple[nn.Module, nn.Module]:
        actor, critic = agent.actor_network, agent.critic_network
        assert isinstance(actor, RecurrentNetwork)
        assert isinstance(critic, RecurrentNetwork)
        return actor.network, critic.network

    @staticmethod
    def supports(agent: "PPO") -> bool:
        """Whether this form knows loss, distribution and networks, in float32 on the CPU; no convolutions."""
        actor, critic = agent.actor_network, agent.critic_network
        if not (isinstance(actor, RecurrentNetwork) and isinstance(critic, RecurrentNetwork)):
            return False
        forms = numpy_form(actor), numpy_form(critic)
        return (
            forms[0] is not None
            and forms[1] is not None
            and forms[0].layout is forms[1].layout is None
            and agent.config.precision == "fp32"
            and knows(agent, actor.network, critic.network)
        )

    def recurrent_values(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """As `RecurrentSteps.recurrent_values`."""
        rows = array_of(observations)
        remembered = self._critic_cell.forward(rows, array_of(state)[None], array_of(starts))[0]
        inputs = self._with_mask(remembered, rows).reshape(rows.shape[0] * rows.shape[1], -1)
        values = self.values(torch.from_numpy(inputs)).view(rows.shape[:2])
        return values, torch.from_numpy(self._critic_cell.after()[0])

    def _with_mask(self, remembered: Array, rows: Array) -> Array:
        """What the layers see, `[..., L, S, H + mask]`."""
        if not self._mask_size:
            return remembered
        mask = np.broadcast_to(rows[..., -self._mask_size :], (*remembered.shape[:-1], self._mask_size))
        return np.concatenate((remembered, mask), axis=-1)

    def epoch(self, batch: SequenceBatch, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """One gather for the epoch; minibatches are views."""
        shuffled = batch.gather(torch.from_numpy(np.asarray(order)))
        statistics = np.empty((len(sizes), len(STATISTICS)), np.float32)
        for row, minibatch in zip(statistics, shuffled.split(sizes), strict=True):
            if self._agent.should_stop():
                raise Stopped
            self._step(_PackedSequences(minibatch), clip_range, out=row)
        return torch.from_numpy(statistics)

    def gradient(self, batch: SequenceBatch, clip_range: float) -> Tensor:
        """As `NumpySteps.gradient`."""
        statistics = np.zeros(len(STATISTICS), np.float32)
        self._fill_gradient(_PackedSequences(batch), clip_range, statistics)
        return torch.from_numpy(statistics[:-1])

    def _fill_gradient(self, minibatch: "_PackedSequences", clip_range: float, out: Array) -> None:
        sequences, valid = minibatch.sequences, minibatch.valid
        rows = array_of(sequences.rows.observations)
        states = np.stack((array_of(sequences.actor_states), array_of(sequences.critic_states)))
        remembered = self._cells.forward(rows, states, array_of(sequences.starts))
        inputs = self._with_mask(remembered, rows)
        inputs = inputs.reshape(2, -1, inputs.shape[-1]) if valid is None else inputs[:, valid]
        steps = _Steps(inputs, *minibatch.of_steps, np.empty_like(inputs))
        super()._fill_gradient(steps, clip_range, out)
        gradients = np.zeros_like(remembered)
        of_inputs = steps.input_gradients[..., : self._size]
        if valid is None:
            gradients.reshape(2, -1, self._size)[:] = of_inputs
        else:
            gradients[:, valid] = of_inputs
        self._cells.backward(gradients, self._cell_gradients)


class _PackedSequences:
    """A minibatch of sequences as arrays."""

    def __init__(self, sequences: SequenceBatch) -> None:
        self.sequences = sequences
        self.valid = None if sequences.valid is None else array_of(sequences.valid)
        steps: Batch = sequences.steps()
        columns = (steps.log_probs, steps.values, steps.advantages, steps.returns)
        self.of_steps = array_of(steps.actions), np.stack([array_of(column) for column in columns])


class _Steps(PackedBatch):
    """The steps of a minibatch as the layers see them: for each of both networks, what it remembers."""

    input_gradients: Array

    def __init__(self, observations: Array, actions: Array, columns: Array, input_gradients: Array) -> None:
        super().__init__(observations, actions, columns)
        self.input_gradients = input_gradients

    def mask(self, size: int) -> Array:
        mask: Array = self.observations[0].T[-size:]
        return mask

    def rows(self, start: int, end: int) -> "_Steps":
        part = slice(start, end)
        columns, gradients = self._columns[:, part], self.input_gradients[:, part]
        return _Steps(self.observations[:, part], self.actions[part], columns, gradients)
