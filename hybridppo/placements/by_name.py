"""Placements by the names of the command line, and from the settings of a run."""

from typing import Any

from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice

KINDS: dict[str, type[Placement]] = {kind.name: kind for kind in (SingleDevice, Migrating, Mirrored)}
"""Every placement by its name in a run's settings. A further one is a line here, and one in `make_placement`."""
PLACEMENT_NAMES = ("cpu", "cuda", "migrate", "hybrid", "overlap", "auto")


def make_placement(name: str, *, sampling_device: str = "cpu", learning_device: str = "cuda") -> Placement:
    """The placement that the command line calls `name`; the devices fill in those that take two.

    Raises:
        ConfigurationError: for an unknown name, and for `auto`, which is no placement but chooses one.
        DeviceError: where a device is not there.
    """
    if name in ("cpu", "cuda"):
        return SingleDevice(name)
    if name == "migrate":
        return Migrating(sampling_device, learning_device)
    if name == "hybrid":
        return Mirrored(sampling_device, learning_device)
    if name == "overlap":
        try:
            return Mirrored(sampling_device, learning_device, max_lag=1)
        except DeviceError as error:
            raise DeviceError(
                f"{error}; or let two CPU cores overlap: --learning-device cpu (Mirrored('cpu', 'cpu', max_lag=1))"
            ) from None
    if name in PLACEMENT_NAMES:
        raise ConfigurationError(f"placement {name!r} must be measured first: pass its name or Auto() to train")
    raise ConfigurationError(f"unknown placement {name!r}: use one of {', '.join(PLACEMENT_NAMES)}")


def placement_from_settings(settings: dict[str, Any]) -> Placement:
    """The placement whose `settings()` these are."""
    arguments = dict(settings)
    return KINDS[arguments.pop("name")](**arguments)
