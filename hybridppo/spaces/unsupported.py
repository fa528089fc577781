"""The error for a space that cannot be trained in."""

from typing import Any

import gymnasium as gym


class UnsupportedSpaceError(Exception):
    """A space, or a part of one, that cannot be what it is asked to be; `reason` may say what to do."""

    def __init__(self, space: gym.Space[Any], path: str = "", reason: str = "") -> None:
        super().__init__(space, path, reason)
        self.space, self.path, self.reason = space, path, reason
