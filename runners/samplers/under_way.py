"""A rollout that was begun and not returned."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, Layout, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.arrays import Array

OF_ROLLOUTS = (
    "observations", "actions", "log_probs", "rewards", "terminated", "truncated", "final_observations", "starts",
    "states", "history",
)  # fmt: skip
"""The tensors of a rollout whose forms are known beforehand."""


@dataclass
class RolloutUnderWay:
    """A rollout that was begun and not returned."""

    buffer: RolloutBuffer
    version: int
    """The version of the parameters that act."""
    filled: int = 0
    """The number of its rows; only set while it is not being filled."""
    finals: FinalObservations = field(default_factory=list)
    actor: SamplingActor | None = None
    """The actor that it was last continued with."""
    is_running: bool = False
    """Whether it is being filled."""


def require_like(name: str, found: Tensor | None, like: Tensor | Array | None) -> None:
    """Refuse a tensor whose shape or type differs from that of another tensor or array, with a ValueError."""
    is_found, is_like = (
        None if each is None else f"of shape {list(each.shape)} and type {str(each.dtype).removeprefix('torch.')}"
        for each in (found, like)
    )
    if is_found != is_like:
        raise ValueError(f"{name} is {is_found}, not {is_like}")


def saved_finals(finals: FinalObservations) -> tuple[dict[str, Tensor], list[list[int]]]:
    """Final observations as a tensor, if there are any, and the step and environment of each; see `finals_of`."""
    tensors = {}
    if finals:
        tensors["final_observations"] = torch.from_numpy(np.stack([observation for _, _, observation in finals]))
    return tensors, [[step, env] for step, env, _ in finals]


def finals_of(rows: Any, tensors: dict[str, Tensor], filled: int, like: Array) -> FinalObservations:
    """The final observations from the result of `saved_finals`, of a rollout with `filled` rows.

    Args:
        rows: the step and environment of each.
        tensors: with the observations.
        filled: number of rows of the rollout.
        like: a row for each environment.

    Raises:
        ValueError: for an observation of another shape or type, or an invalid step or environment.
    """
    finals: FinalObservations = []
    for i, (step, env) in enumerate(rows):
        final = tensors["final_observations"][i]
        require_like("a final observation", final, like[0])
        if not (type(step) is type(env) is int and 0 <= step < filled and 0 <= env < len(like)):
            raise ValueError(f"there is no step {step} of environment {env}")
        finals.append((step, env, final.numpy()))
    return finals


def remembered_of(tensors: dict[str, Tensor], num_envs: int, memory: MemoryLayout | None) -> Array:
    """The actor's state in each environment; without columns if there is no memory.

    Raises:
        ValueError: if it has another shape.
    """
    if memory is None:
        return np.zeros((num_envs, 0), np.float32)
    require_like("memory", tensors["memory"], np.zeros((num_envs, memory.state_size + 2), np.float32))
    return tensors["memory"].numpy()


def require_rollout_of(layout: Layout, row: tuple[int, ...], rollout: Rollout) -> None:
    """Refuse a rollout from a file that does not fit.

    Args:
        layout: of a buffer for as many steps.
        row: the shape of a whole observation.
        rollout: the rollout.

    Raises:
        ValueError: if a tensor has another shape or type, or a row is out of range.
    """
    finals = (len(rollout.final_rows), *row), layout["observations"][1]
    forms = {**layout, "log_probs": layout["rewards"], "final_observations": finals}
    for name in OF_ROLLOUTS:
        form = forms.get(name)
        like = None if form is None else np.broadcast_to(np.zeros((), form[1]), form[0])
        require_like(name, getattr(rollout, name), like)
    num_rows, num_columns = rollout.rewards.numel(), rollout.rewards.shape[1]
    if rollout.turns is not None:
        require_like("turns", rollout.turns, np.empty((1, num_columns), np.int64))
    for name in ("valid_rows", "final_rows"):
        rows = getattr(rollout, name)
        require_like(name, rows, np.empty(len(rows), np.int64))
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
            raise ValueError(f"{name} are not all of {num_rows} rows")
