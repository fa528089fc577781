"""A stand-in for the recording of CUDA graphs without CUDA."""

from collections.abc import Callable


class PretendedRecorder:
    """Runs the step as a recording does before it records, and replays by running it again."""

    def __init__(self) -> None:
        self.recordings = 0

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        self.recordings += 1
        for _ in range(3):
            function()
        return function
