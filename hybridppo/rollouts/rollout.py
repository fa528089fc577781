"""A rollout: the result of a sampler, and the data that an agent learns from."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rollout:
    """`T` steps of `N` environments, time-major, on one device.

    Not every row is a step: environments that reset on the step after an episode's end (gymnasium's `NEXT_STEP`) ignore
    the action of that row. `valid_rows` lists the steps, and only they may count in a loss or a statistic.
    """

    observations: Tensor
    """`[T + 1, N, obs]`: the observation of each action, and the one after the last; for stacks, the newest frame."""
    actions: Tensor
    """`[T, N, *action]`, as drawn, before any clipping to the bounds of the space."""
    log_probs: Tensor
    """`[T, N]`, for the parameters that acted."""
    rewards: Tensor
    """`[T, N]`."""
    terminated: Tensor
    """`[T, N]` bool: the episode ended, so the return ends here."""
    truncated: Tensor
    """`[T, N]` bool: the episode was cut off, so the rest of the return is bootstrapped."""
    valid_rows: Tensor
    """`[M]` int64, ascending flat indices `t * N + n` of the rows that are steps."""
    final_rows: Tensor
    """`[K]` int64, flat indices of truncated steps whose final observation is not row `t + 1`."""
    final_observations: Tensor
    """`[K, obs]`, the final observations of these steps."""
    version: int
    """Version of the parameters that acted; the oldest, if `versions` differ."""
    starts: Tensor | None = None
    """`[T, N]` bool, whether each observation is the first of its episode; for recurrent actors only."""
    states: Tensor | None = None
    """`[S, N, state]`, the actor's state before each of `S` sequences; for recurrent actors only."""
    history: Tensor | None = None
    """`[K - 1, N, *frame]`, the older frames of the first stacks; for frame stacks only."""
    versions: Tensor | None = None
    """`[T, N]` int64, version that acted in each row; with `max_lag` above 1 only."""
    returns_so_far: Tensor | None = None
    """`[T, N]`, discounted return of the episode up to each step; with `max_lag` above 1, where columns change
    environments, and for agents that take turns. Else it follows from the rewards of the rows."""

    turns: Tensor | None = None
    """`[1, N]` int64, how often each agent has acted, also in steps that are open; for recurrent actors that take turns
    only. `starts` then also has the open step."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "Rollout":
        """The rollout with `function` applied to each of its tensors."""
        changes: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changes)

    @property
    def parts(self) -> "tuple[Rollout, ...]":
        """The parts from which an update makes a batch each: the rollout itself. `RolloutParts` has several."""
        return (self,)

    def map_parts(self, function: "Callable[[Rollout], Rollout]") -> "Rollout":
        """The rollout with `function` applied to each part."""
        return function(self)

    def whole(self) -> "Rollout":
        """The rollout with all columns."""
        return self

    def of_agents(self, own: Tensor, num_agents: int) -> "Rollout":
        """A copy of the columns of some of the `A` agents of each environment; an environment's columns are neighbours.

        Args:
            own: `[a]` int64, indices of the agents.
            num_agents: `A`.
        """
        num_columns = self.rewards.shape[1]
        first = torch.arange(0, num_columns, num_agents, device=own.device)
        columns = (first[:, None] + own).flatten()
        place = torch.full((num_columns,), -1, dtype=torch.int64, device=own.device)
        place[columns] = torch.arange(len(columns), device=own.device)

        def moved(rows: Tensor) -> tuple[Tensor, Tensor]:
            """Positions in `rows` of flat indices within these columns, and their flat indices among these columns."""
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
        """All its tensors by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}
