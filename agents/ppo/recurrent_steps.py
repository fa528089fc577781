"""The optimizer steps of an agent with a memory, on sequences, by autograd."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridppo.agents.ppo.loop import Backend
from hybridppo.agents.ppo.sequences import SequenceBatch


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
    def log_probs_of(self, batch: SequenceBatch, sizes: Sequence[int]) -> Tensor:
        """As `Backend.log_probs_of`; sizes are of sequences."""
        found = []
        for part in batch.split(sizes):
            with self._rounding():
                outputs, _ = self._actor(part.rows.observations, part.actor_states, part.starts)
            found.append(self._distribution.log_prob(outputs.float(), part.rows.actions))
        return batch.only_steps(torch.cat(found, dim=1))  # [L, S] -> [B]

    def _forward(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        rows = batch.rows.observations
        outputs, _ = self._actor(rows, batch.actor_states, batch.starts)
        values, _ = self._critic(rows, batch.critic_states, batch.starts)
        return batch.only_steps(outputs), batch.only_steps(values.squeeze(-1))
