"""Divides a checkpoint's tensors of every environment among learners, and joins them again.

An agent keeps a few tensors for each column of its rollouts: the returns so far, the critic's memory, and the rollouts
of a pool. A runner has the rows of a replay buffer. A checkpoint has them for all columns.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybridppo.rollouts.parts import in_parts, joined
from hybridppo.rollouts.rollout import Rollout
from hybridppo.system.validation import part_of

_OF_COLUMNS = re.compile(r"(.*\.)?(rewards\.returns|memory\.critic_state)")
_OF_ROWS = re.compile(r"replay\.\w+")
_OF_ROLLOUT = re.compile(r"((?:.*\.)?pool\.\d+\.|runner\.)(\w+)")


def joined_columns(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name, with the columns of all learners in order; all other tensors are the first learner's."""
    found = dict(parts[0])
    for name in parts[0]:
        if _OF_COLUMNS.fullmatch(name):
            found[name] = torch.cat([part[name] for part in parts])
        if _OF_ROWS.fullmatch(name):
            found[name] = torch.cat([part[name] for part in parts], 1)
    for prefix in _rollouts_in(parts[0]):
        whole = joined([_rollout(part, prefix) for part in parts])
        found |= {f"{prefix}{name}": tensor for name, tensor in whole.tensors().items()}
    return found


def own_columns(tensors: dict[str, Tensor], number: int, count: int) -> dict[str, Tensor]:
    """The same tensors, with only the columns of learner `number` of `count`."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if _OF_COLUMNS.fullmatch(name) and len(tensor):
            found[name] = tensor.chunk(count)[number].clone()
    for prefix in _rollouts_in(tensors) if count > 1 else ():
        own = in_parts(_rollout(tensors, prefix), count).parts[number]
        found |= {f"{prefix}{name}": tensor for name, tensor in own.tensors().items()}
    return found


def _rollouts_in(tensors: dict[str, Tensor]) -> list[str]:
    matches = filter(None, map(_OF_ROLLOUT.fullmatch, tensors))
    return list(dict.fromkeys(match[1] for match in matches))


def _rollout(tensors: dict[str, Tensor], prefix: str) -> Rollout:
    own: dict[str, Any] = part_of(tensors, prefix)
    return Rollout(**own, version=0)
