"""Placements by the names of the command line, and from the settings of a run."""

from typing import Any

from hybridppo.errors import ConfigurationError
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice

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
    if name in ("hybrid", "overlap"):
        return Mirrored(sampling_device, learning_device, max_lag=int(name == "overlap"))
    if name in PLACEMENT_NAMES:
        raise ConfigurationError(f"placement {name!r} must be measured first: pass its name or Auto() to train")
    raise ConfigurationError(f"unknown placement {name!r}: use one of {', '.join(PLACEMENT_NAMES)}")


def placement_from_settings(settings: dict[str, Any]) -> Placement:
    """The placement whose `settings()` these are."""
    kinds: dict[str, type[Placement]] = {kind.name: kind for kind in (SingleDevice, Migrating, Mirrored)}
    arguments = dict(settings)
    return kinds[arguments.pop("name")](**arguments)
