"""The common part of environments that are saved together: the digests of their arrays, and the time limit."""

import hashlib
import json
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from hybridppo.environments.state.nodes import Node, array_bytes, to_text
from hybridppo.errors import SlowStateError

CHUNK = 2**24
"""Bytes of an array after which the time is checked."""


class Stopwatch:
    """Measures the time of each attribute, and ends the save when the time is up.

    Args:
        seconds: the time limit; None for no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._began = self._since = perf_counter()
        self._charged: dict[tuple[int, str], float] = {}
        self._at = 0, ""
        self.env = 0
        """The number of the environment that is being saved."""

    def charge(self, path: str) -> tuple[int, str]:
        """Charge time to this attribute from now on, and no longer to the attribute that contains it.

        Returns:
            The attribute that was charged before, for `back_to`. (A context manager for every attribute would be slow.)
        """
        before = self._at
        self.back_to((self.env, path))
        return before

    def back_to(self, at: tuple[int, str]) -> None:
        """Charge time to this attribute again."""
        now = perf_counter()
        self._charged[self._at] = self._charged.get(self._at, 0.0) + now - self._since
        self._since, self._at = now, at

    def check(self) -> None:
        """Raise an error if the time is up.

        Raises:
            SlowStateError: naming the attribute that took most of the time.
        """
        if self._seconds is None or perf_counter() - self._began < self._seconds:
            return
        self.back_to(self._at)
        (env, path), seconds = max(self._charged.items(), key=lambda item: item[1])
        raise SlowStateError(
            f"saving the state of the environments takes more than {self._seconds:g} seconds, of which "
            f"{f'{path} of ' if path else ''}environment {env} took {seconds:.1f}"
        )


class Shared:
    """The common part of several environments that are saved together: each array is read once, even if many hold it.

    Args:
        seconds: the time limit for all; None for no limit.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.stopwatch = Stopwatch(seconds)
        # By address; arrays are kept here, so that no other array gets the address meanwhile.
        self._arrays: dict[Any, tuple[NDArray[Any], str]] = {}
        self._as_text = json.JSONEncoder(default=self._of_array, allow_nan=False).encode

    def digest_of(self, node: Node) -> str:
        """The digest of the value that a node describes."""
        return hashlib.blake2b(self._as_text(node).encode(), digest_size=16).hexdigest()

    def is_digest_of(self, digest: str, node: Node) -> bool:
        """Whether a digest belongs to a node; descriptions of format 1 have shorter digests, of the whole text."""
        if len(digest) == 32:
            return self.digest_of(node) == digest
        text = json.dumps(node, default=lambda memory: to_text(array_bytes(memory)), allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest() == digest

    def _of_array(self, memory: NDArray[Any]) -> str:
        key = memory.__array_interface__["data"][0], memory.shape, memory.dtype.str
        if key not in self._arrays:
            data = array_bytes(memory)
            digest = hashlib.blake2b(digest_size=16)
            for start in range(0, len(data), CHUNK):
                self.stopwatch.check()
                digest.update(data[start : start + CHUNK])
            self._arrays[key] = memory, digest.hexdigest()
        return self._arrays[key][1]
