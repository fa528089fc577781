"""Repeated operations of a device, recorded as CUDA graphs.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from hybridppo.system.accelerator import Accelerator

WARMUPS = 3
"""Runs before a recording, because first calls allocate memory."""
Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Turns a function of tensors at fixed addresses into a faster function that replays it."""
Recording = TypeVar("Recording")


class GraphRecorder:
    """Records CUDA graphs in one stream, on one device, in one pool of memory: they are replayed one after another.

    Warm-up runs use the stream of the recordings, because first calls allocate memory for a stream (the workspaces of
    cuBLAS, 32 MiB each on Hopper), which must not be recorded.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        with accelerator.selected():
            self._stream, self._pool = accelerator.stream(), accelerator.graph_pool()

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        """Run the function a few times, then record it."""
        accelerator, stream = self._accelerator, self._stream
        with accelerator.selected():  # else torch would record on the first device
            stream.wait_stream(accelerator.current_stream())
            with accelerator.using(stream):
                for _ in range(WARMUPS):
                    function()
            accelerator.current_stream().wait_stream(stream)
            graph = accelerator.graph()
            with accelerator.recording(graph, pool=self._pool, stream=stream):
                function()
        replay: Callable[[], object] = graph.replay
        return replay


def tried(
    record: Callable[[], Recording],
    replay: Callable[[Recording], object],
    check: Callable[[], None],
    changed: Sequence[Tensor],
) -> Recording:
    """Record, check one replay, and undo the changes of both; return the recording.

    A graph recorded on the wrong device or stream is empty, and its replay does nothing without an error.

    Args:
        record: makes the recording.
        replay: replays a recording.
        check: raises an error if the replay did not do its work.
        changed: all tensors that a replay changes and that later work depends on.
    """
    before = [tensor.clone() for tensor in changed]

    def put_back() -> None:
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    try:
        recording = record()
        put_back()
        replay(recording)
        check()
    finally:
        put_back()
    return recording
