"""Every kind of network that a configuration can ask for. A further kind joins by a line in `KINDS`."""

from typing import Any

import pytest

KINDS: dict[str, dict[str, Any]] = {
    "normalised": {"normalize_observations": True, "normalize_rewards": True},
    "shared trunk": {"shared_trunk": True},
    "torch's first weights": {"orthogonal_init": False, "log_std_init": -1.0},
    "compiled": {"compiled_updates": True},
    "a pool": {"pool_size": 3},
    "a pool, normalised": {"pool_size": 2, "normalize_observations": True, "normalize_rewards": True},
    "lstm": {"recurrent": "lstm", "recurrent_size": 8, "sequence_length": 5},
    "gru": {"recurrent": "gru", "recurrent_size": 8, "sequence_length": 16},
    "lstm, normalised": {
        "recurrent": "lstm", "recurrent_size": 8, "sequence_length": 8, "normalize_observations": True,
        "normalize_rewards": True,
    },
}  # fmt: skip
"""What differs from the defaults, by name."""

NEED_EXTRAS = ("compiled",)
"""Which need the packages of an extra; they are tried with those."""
OF_THE_DEFAULT_TESTS = ("shared trunk", "gru", "lstm, normalised", "a pool, normalised")
"""Which between them have everything that the others have; those are tried in slow tests."""


def marks_of(kind: str) -> list[pytest.MarkDecorator]:
    """Those of a kind's tests."""
    if kind in NEED_EXTRAS:
        return [pytest.mark.extras]
    return [] if kind in OF_THE_DEFAULT_TESTS else [pytest.mark.slow]
