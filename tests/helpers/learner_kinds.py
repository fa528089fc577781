"""Every kind of batch that learners may divide between them. To add one, add a line."""

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass(frozen=True)
class Kind:
    """A way in which trainings differ.

    Args:
        config: fields of `PPOConfig`.
        options: of the environments, as `hybridppo.train` takes them.
    """

    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


_GRU = {"recurrent": "gru", "recurrent_size": 8, "sequence_length": 6}
KINDS = {
    "rows": Kind(),
    "rows, autograd": Kind({"fast_updates": False}),
    "rows, compiled": Kind({"compiled_updates": True}),
    "gru": Kind(_GRU),
    "lstm, autograd": Kind({**_GRU, "recurrent": "lstm", "fast_updates": False}),
    "frames": Kind({}, {"frame_stack": 3}),
    "pool": Kind({"pool_size": 3}),
    "pool, autograd": Kind({"pool_size": 3, "fast_updates": False}),
}
"""With shorter sequences at the end of a rollout of 16 or 32 steps."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a kind's tests: what Numba compiles needs the packages of an extra."""
    return [pytest.mark.extras] if "compiled" in name else []
