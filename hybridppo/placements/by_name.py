"""Placements from the settings of a run, and those that take devices."""

from typing import Any, Literal

from hybridppo.errors import ConfigurationError
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.placement import Placement, available_device
from hybridppo.placements.single_device import SingleDevice

KINDS: dict[str, type[Placement]] = {kind.name: kind for kind in (SingleDevice, Migrating, Mirrored)}
"""Every placement by its name in a run's settings. A new one is a line here, and a line in
`PlacementOptions.resolve`."""
TAKE_DEVICES: tuple[Literal["migrate", "hybrid", "overlap"], ...] = ("migrate", "hybrid", "overlap")
"""The names of placements whose two devices can be chosen."""


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
