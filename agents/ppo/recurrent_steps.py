"""The optimizer steps of an agent with a memory, on sequences, by autograd."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from hybridppo.agents.ppo.backend import Backend
from hybridppo.agents.ppo.sequences import SequenceBatch
from hybridppo.networks.recurrent import RecurrentNetwork


class RecurrentSteps(Backend):
    """`Backend` for sequences: gradients reach back to the first step of each (backpropagation through time)."""

    @torch.no_grad()
    def recurrent_values(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The critic's values `[T, B]` of observations `[T, B, *row]`, and its states after each, `[T, B, state]`.

        Args:
            observations: in the order of time.
            state: `[B, state]`, before the first.
            starts: `[T, B]` bool, which are the first of an episode.
        """
        values, states = self._critic(observations, state, starts)
        return values.squeeze(-1), states

    @torch.no_grad()
    def outputs_of(self, batch: SequenceBatch, sizes: Sequence[int]) -> Tensor:
        """As `Backend.outputs_of`, `[L, S, outputs]`; sizes are of sequences."""
        found, actor = [], cast(RecurrentNetwork, self._actor)
        for part in batch.split(sizes):
            with self._rounding():
                outputs = actor.of_sequences(part.rows.observations, part.actor_states, part.segments)
            found.append(outputs.float())
        return torch.cat(found, dim=1)

    @torch.no_grad()
    def log_probs_of(self, batch: SequenceBatch, sizes: Sequence[int]) -> Tensor:
        """As `Backend.log_probs_of`; sizes are of sequences."""
        log_probs = self._distribution.log_prob(self.outputs_of(batch, sizes), batch.rows.actions)
        return batch.only_steps(log_probs)  # [L, S] -> [B]

    def _forward(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        actor, critic = cast(RecurrentNetwork, self._actor), cast(RecurrentNetwork, self._critic)
        rows, segments = batch.rows.observations, batch.segments
        outputs = actor.of_sequences(rows, batch.actor_states, segments)
        values = critic.of_sequences(rows, batch.critic_states, segments)
        return batch.only_steps(outputs), batch.only_steps(values.squeeze(-1))
