"""Seeds: each owner of random numbers has its own."""

import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_WARNED_OR_SEEDED: set[str] = set()
"""Why this process does not warn of draws from its global generators."""


def seed_of(seed: int, owner: str) -> int:
    """The seed of an owner, from the seed of the run; neighbouring seeds give unrelated ones."""
    return int(np.random.SeedSequence([seed, *owner.encode()]).generate_state(1)[0] >> 1)


def fresh_seed() -> int:
    """A seed from the operating system."""
    return int(np.random.SeedSequence().generate_state(1)[0])


def seed_globals(seed: int, owner: str) -> None:
    """Seed the global generators of Python, NumPy and torch, for environments that use them.

    Otherwise such draws would differ in every run (Python, NumPy), or be the same in all processes (torch).
    """
    _WARNED_OR_SEEDED.add("seeded")
    own = seed_of(seed, owner)
    random.seed(own)
    np.random.seed(own)  # noqa: NPY002 - for environments that use the global one
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(own)


@contextmanager
def global_draws_warned_of() -> Iterator[None]:
    """Warn once if the global generators of Python or NumPy are drawn from, unless this process has seeded them."""
    before = _states()
    yield
    if not _WARNED_OR_SEEDED and _states() != before:
        _WARNED_OR_SEEDED.add("warned")
        logger.warning(
            "the environment draws from Python's or NumPy's global generator, so the seed does not fix the result: "
            "draw from self.np_random, or train with num_workers, whose processes seed these generators"
        )


def _states() -> tuple[object, ...]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    return random.getstate(), state["state"]["key"].tobytes(), state["state"]["pos"]


@contextmanager
def generators_untouched(seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of Python and NumPy afterwards; with a seed, seed them first."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
