"""The states of a process's environments, saved and restored together, in bounded time."""

import logging
from collections.abc import Sequence
from typing import Any

from hybridppo.environments.state.describing import Digests, describe, digests
from hybridppo.environments.state.restoring import restore
from hybridppo.environments.state.sharing import Shared
from hybridppo.errors import EnvStateError, SlowStateError

SECONDS = 5.0
"""The most seconds that a checkpoint waits for the states of a process's environments."""

logger = logging.getLogger(__name__)


class StateKeeper:
    """Saves states until one save takes too long; afterwards it refuses at once.

    Args:
        first: the number of the first environment, for messages.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._began: list[Digests] = []
        self._refused: str | None = None

    def remember(self, parts: Sequence[object]) -> None:
        """Let later states leave out values that have not changed since this call; call it after the first reset.

        Raises:
            EnvStateError: as for `describe`.
        """
        self._began = self._of_each(digests, parts)

    def describe(self, parts: Sequence[object]) -> list[dict[str, Any]]:
        """The state of each part.

        Raises:
            EnvStateError: if one cannot be saved, or if saving took too long.
        """
        return self._of_each(describe, parts, self._began or [None] * len(parts))

    def restore(self, parts: Sequence[object], states: Sequence[dict[str, Any]]) -> None:
        """Restore the states in fresh parts.

        Raises:
            EnvStateError: if a state does not fit.
        """
        shared = Shared()
        for part, state in zip(parts, states, strict=True):
            restore(part, state, shared)

    def _of_each(self, call: Any, parts: Sequence[object], *arguments: Sequence[Any]) -> list[Any]:
        if self._refused is not None:
            raise EnvStateError(self._refused)
        shared, found = Shared(SECONDS), []
        try:
            for number, given in enumerate(zip(parts, *arguments, strict=True), self._first):
                shared.stopwatch.env = number
                found.append(call(*given, shared=shared))
        except SlowStateError as error:
            self._refused = (
                f"{error}. Later checkpoints of this run leave it out, and a run that is resumed begins new episodes: "
                "keep large data out of the environment's attributes, or give it get_state() and set_state(state) "
                "(docs/environments.md, Resumed exactly)"
            )
            logger.warning("%s", self._refused)
            raise EnvStateError(self._refused) from None
        return found
