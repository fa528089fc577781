"""Gradient steps recorded as CUDA graphs, whoever's they are.

Source: the recipe of torch's documentation for capturing a whole training step ("CUDA semantics", "CUDA Graphs").
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from hybridppo.accelerator import Accelerator
from hybridppo.errors import DeviceError

WARMUPS = 3
"""Steps before one is recorded, in which what is made at first calls is made."""
Recording = TypeVar("Recording")
Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Makes a function, which works on tensors at fixed addresses, into one that does the same again, faster."""


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
    record: Callable[[], Recording], replay: Callable[[Recording], object], changed: Sequence[Tensor], count: Tensor
) -> Recording:
    """What is recorded, after a replay; both are undone.

    A graph that was recorded on another device or stream than it was meant for is empty, and replays in silence.

    Args:
        record: a step.
        replay: what was recorded.
        changed: all that a step changes and later ones depend on.
        count: of the optimizer's steps, one of them.

    Raises:
        DeviceError: where the replay has not made one step of the optimizer.
    """
    before = [tensor.clone() for tensor in changed]

    def put_back() -> None:
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    recording = record()
    put_back()
    replay(recording)
    done = float(count)  # waits for the device, on purpose: recording has waited for it, too
    put_back()
    done -= float(count)
    if done != 1.0:
        raise DeviceError(
            f"a gradient step was recorded as a CUDA graph, but its replay made {done:g} steps of the optimizer "
            "instead of 1: train with cuda_graphs=False, and report this with the versions of torch and the driver"
        )
    return recording
