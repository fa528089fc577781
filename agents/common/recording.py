"""A gradient step that was recorded is tried before it is relied on, whoever's it is."""

from collections.abc import Callable, Sequence

from torch import Tensor

from hybridppo.errors import DeviceError
from hybridppo.system.recording import Recording, tried


def tried_step(
    record: Callable[[], Recording], replay: Callable[[Recording], object], changed: Sequence[Tensor], count: Tensor
) -> Recording:
    """What is recorded, after a replay; both are undone.

    Args:
        record: a step.
        replay: what was recorded.
        changed: all that a step changes and later ones depend on.
        count: of the optimizer's steps, one of them.

    Raises:
        DeviceError: where the replay has not made one step of the optimizer.
    """
    before = float(count)  # waits for the device, on purpose, as recording does

    def check() -> None:
        done = float(count) - before
        if done != 1.0:
            raise DeviceError(
                f"a gradient step was recorded as a CUDA graph, but its replay made {done:g} steps of the optimizer "
                "instead of 1: train with cuda_graphs=False, and report this with the versions of torch and the driver"
            )

    return tried(record, replay, check, changed)
