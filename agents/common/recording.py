"""A gradient step that was recorded is tried before it is relied on, whoever's it is."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from hybridppo.errors import DeviceError

Recording = TypeVar("Recording")


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
