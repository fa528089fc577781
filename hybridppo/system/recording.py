"""What a device is to do again and again, recorded as CUDA graphs.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from hybridppo.system.accelerator import Accelerator

WARMUPS = 3
"""Runs before one is recorded, in which what is made at first calls is made."""
Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Makes a function, which works on tensors at fixed addresses, into one that does the same again, faster."""
Recording = TypeVar("Recording")


class GraphRecorder:
    """Records CUDA graphs in one stream, on one device, in one pool of memory: they are replayed one after another.

    Warm-ups have the stream of the recordings, for what is made at first calls is made for a stream (the workspaces of
    cuBLAS, 32 MiB each on Hopper), and must not be recorded.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        with accelerator.selected():
            self._stream, self._pool = accelerator.stream(), accelerator.graph_pool()

    def __call__(self, function: Callable[[], None]) -> Callable[[], object]:
        """Run the function some times, and record it."""
        accelerator, stream = self._accelerator, self._stream
        with accelerator.selected():  # or torch would record on the first device, where nothing happens
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
    """What is recorded, after a replay that was looked at; both are undone.

    A graph that was recorded on another device or stream than it was meant for is empty, and replays in silence.

    Args:
        record: it.
        replay: what was recorded.
        check: raises where the replay has not done what it should.
        changed: all that it changes and later work depends on.
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
