"""Placements from their names."""

from dataclasses import dataclass
from typing import Any, Literal

from hybridppo.auto.auto import Auto
from hybridppo.errors import ConfigurationError, shown
from hybridppo.placements.by_name import make_placement, placement_from_settings, require_devices
from hybridppo.placements.placement import Placement

PlacementName = Literal["cpu", "cuda", "migrate", "hybrid", "overlap", "auto"]
PlacementChoice = str | Placement | Auto


@dataclass(frozen=True)
class PlacementOptions:
    """The placement, as the command line names it."""

    placement: PlacementName = "auto"
    """Where to sample and where to learn; README.md has a table."""
    sampling_device: str | None = None
    """Where migrate, hybrid and overlap sample; None for cpu."""
    learning_device: str | None = None
    """Where migrate, hybrid and overlap learn; None for cuda."""
    max_lag: int | None = None
    """How many updates old the parameters that sample may be: for overlap 1 or more (None for 1), for hybrid 0 or more
    (None for 0). For auto, the largest value that it may choose (None for 0). Above 1, workers do not wait for each
    other, and a seed does not give the same result again."""

    def resolve(self) -> Placement | Auto:
        """The placement that the options name; `Auto` still has to choose one.

        Raises:
            ConfigurationError: for an option that the placement does not take.
            DeviceError: if a device is missing.
        """
        devices = {"sampling_device": self.sampling_device, "learning_device": self.learning_device}
        if self.placement == "auto":
            require_devices(self.placement, **devices)
            return Auto(self.max_lag or 0)
        return make_placement(self.placement, max_lag=self.max_lag, **devices)


def options_of(settings: dict[str, Any]) -> PlacementOptions:
    """The options of the placement with these `settings()`.

    Raises:
        ConfigurationError: if the command line cannot name the placement, such as one with `publish_every`.
        DeviceError: if a device is missing.
    """
    meant = placement_from_settings(settings).settings()
    candidates = [PlacementOptions("cpu")]
    if meant.get("device", "").startswith("cuda"):  # with its number
        candidates = [PlacementOptions("cuda")]
    elif "device" not in meant:  # overlap is hybrid with a lag
        devices = meant["sampling"], meant["learning"]
        candidates = [PlacementOptions("migrate", *devices), PlacementOptions("hybrid", *devices, meant.get("max_lag"))]
    for options in candidates:
        placement = options.resolve()
        if isinstance(placement, Placement) and placement.settings() == meant:
            return options
    raise ConfigurationError(f"the command line has no placement {shown(settings)}: name another (--placement)")


def resolve_placement(placement: PlacementChoice) -> Placement | Auto:
    """The placement of a name, or the placement itself; `Auto` still has to choose one."""
    if placement == "auto":
        return Auto()
    if isinstance(placement, str):
        return make_placement(placement)
    if not isinstance(placement, (Placement, Auto)):
        raise ConfigurationError(f"placement must be a name or a placement, got {shown(placement)}")
    return placement
