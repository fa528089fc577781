"""A rollout: what a sampler brings and an agent learns from."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rollout:
    """`T` steps of `N` environments, time-major, on one device.

    Not every row need be a step: where the environments reset themselves on the step after an episode's
    end (gymnasium's `NEXT_STEP`), that row took an action that nothing obeyed. `valid_rows` lists the
    others, and only those may count in a loss or a statistic.
    """

    observations: Tensor
    """`[T + 1, N, obs]`: what each action was chosen on, and what followed the last; of stacks, the newest frame."""
    actions: Tensor
    """`[T, N, *action]`, as drawn, before any clipping to the bounds of the space."""
    log_probs: Tensor
    """`[T, N]`, under the parameters that acted."""
    rewards: Tensor
    """`[T, N]`."""
    terminated: Tensor
    """`[T, N]` bool: the episode ended and nothing follows."""
    truncated: Tensor
    """`[T, N]` bool: the episode was cut short; what would have followed is bootstrapped."""
    valid_rows: Tensor
    """`[M]` int64, flat indices `t * N + n`, ascending, of the rows that are real steps."""
    final_rows: Tensor
    """`[K]` int64, flat indices of truncated steps whose final observation is not row `t + 1`."""
    final_observations: Tensor
    """`[K, obs]`, those final observations."""
    version: int
    """The version of the actor's parameters that acted; the oldest, if several did."""
    starts: Tensor | None = None
    """`[T, N]` bool, whether each observation is the first of its episode; where the actor has a memory."""
    states: Tensor | None = None
    """`[S, N, state]`, the actor's state before the first step of each of the `S` sequences of a rollout; likewise."""
    history: Tensor | None = None
    """`[K - 1, N, *frame]`, the other frames of the first stacks; where observations are such."""

    versions: Tensor | None = None
    """`[T, N]` int64, the version that acted in each row; if it need not be the same in all."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Rollout":
        """The rollout with `function` applied to each of its tensors."""
        changes: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changes)

    def of_agents(self, own: Tensor, num_agents: int) -> "Rollout":
        """The rows of some of the `A` agents of each environment, whose columns are neighbours; copied.

        Args:
            own: `[a]` int64, which of the agents.
            num_agents: `A`.
        """
        num_columns = self.rewards.shape[1]
        first = torch.arange(0, num_columns, num_agents, device=own.device)
        columns = (first[:, None] + own).flatten()
        place = torch.full((num_columns,), -1, dtype=torch.int64, device=own.device)
        place[columns] = torch.arange(len(columns), device=own.device)

        def moved(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Which flat indices are of these columns, and what they are among these alone."""
            places = place[rows % num_columns]
            kept = places >= 0
            return kept, (rows // num_columns * len(columns) + places)[kept]

        _, valid_rows = moved(self.valid_rows)
        kept, final_rows = moved(self.final_rows)
        of_rows = ("valid_rows", "final_rows", "final_observations")
        changes: dict[str, Any] = {
            name: tensor.index_select(1, columns) for name, tensor in self.tensors().items() if name not in of_rows
        }
        finals = self.final_observations[kept]
        return replace(self, valid_rows=valid_rows, final_rows=final_rows, final_observations=finals, **changes)

    @property
    def num_bytes(self) -> int:
        """The size of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds but the version, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}
