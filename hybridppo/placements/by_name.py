"""Placements by their names on the command line, and from the settings of a run."""

from typing import Any, Literal

from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.placement import Placement, available_device
from hybridppo.placements.single_device import SingleDevice

KINDS: dict[str, type[Placement]] = {kind.name: kind for kind in (SingleDevice, Migrating, Mirrored)}
"""Every placement by its name in a run's settings. A new one is a line here and a line in `make_placement`."""
PLACEMENT_NAMES = ("cpu", "cuda", "migrate", "hybrid", "overlap", "auto")


TAKE_DEVICES: tuple[Literal["migrate", "hybrid", "overlap"], ...] = ("migrate", "hybrid", "overlap")
"""The names of placements whose two devices can be chosen."""


def make_placement(
    name: str, *, sampling_device: str | None = None, learning_device: str | None = None, max_lag: int | None = None
) -> Placement:
    """The placement that the command line calls `name`.

    Args:
        name: one of `PLACEMENT_NAMES`.
        sampling_device: for a placement in `TAKE_DEVICES`; None for the CPU.
        learning_device: for a placement in `TAKE_DEVICES`; None for CUDA.
        max_lag: for hybrid (None for 0) and overlap (None for 1).

    Raises:
        ConfigurationError: for an unknown name, for `auto`, which must choose a placement first, and for a device or
            lag that the placement does not take.
        DeviceError: if a device is missing.
    """
    if name not in PLACEMENT_NAMES:
        raise ConfigurationError(
            f"unknown placement {name!r}: use one of {', '.join(PLACEMENT_NAMES)}; in Python, a placement has other "
            "devices, as hybridppo.SingleDevice('cuda:1')"
        )
    require_devices(name, sampling_device=sampling_device, learning_device=learning_device)
    if name == "auto":
        raise ConfigurationError(f"placement {name!r} must be measured first: pass its name or Auto() to train")
    least = {"hybrid": 0, "overlap": 1}.get(name)
    if max_lag is not None and (least is None or max_lag < least):
        raise ConfigurationError(
            f"max_lag={max_lag} cannot be used with placement {name}: leave it out, or use placement overlap with 1 or "
            "more, hybrid with 0 or more, or auto"
        )
    if name in ("cpu", "cuda"):
        return SingleDevice(name)
    devices = sampling_device or "cpu", learning_device or "cuda"
    if name == "migrate":
        return Migrating(*devices)
    if name == "hybrid":
        return Mirrored(*devices, max_lag=max_lag or 0)
    try:
        return Mirrored(*devices, max_lag=max_lag or 1)
    except DeviceError as error:
        raise DeviceError(
            f"{error}; or let two CPU cores overlap: --learning-device cpu (Mirrored('cpu', 'cpu', max_lag=1))"
        ) from None


def require_devices(placement: str | None, **devices: str | None) -> None:
    """Check devices, by the names of their options; None for a device that was not chosen.

    Args:
        placement: name of the placement; None for the placement of an existing run.
        **devices: devices by the names of their options.

    Raises:
        DeviceError: if a device is missing.
        ConfigurationError: if the placement does not take devices.
    """
    for option, device in devices.items():
        if device is None:
            continue
        available_device(device)
        if placement not in TAKE_DEVICES:
            whose = "the placement that the run has" if placement is None else f"placement {placement}"
            raise ConfigurationError(
                f"{option}={device!r} cannot be used with {whose}: leave it out, or use placement migrate, hybrid or "
                "overlap"
            )


def placement_from_settings(settings: dict[str, Any]) -> Placement:
    """The placement that `settings()` describes."""
    arguments = dict(settings)
    return KINDS[arguments.pop("name")](**arguments)


def settings_of_result(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a placement that can change the result of a seed beyond rounding."""
    usual = {name: value for kind in KINDS.values() for name, value in kind.changes_result.items()}
    return {name: settings.get(name, value) for name, value in usual.items()}
