"""Placements as people name them: a name, a placement, or the one that is to be measured."""

from dataclasses import dataclass
from typing import Literal

from hybridppo.errors import ConfigurationError, shown
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import make_placement

PlacementName = Literal["cpu", "cuda", "migrate", "hybrid", "overlap", "auto"]
PlacementChoice = str | Placement | Auto


@dataclass(frozen=True)
class PlacementOptions:
    """The placement, as the command line names it."""

    placement: PlacementName = "auto"
    """Where to sample and where to learn; README.md has a table."""
    sampling_device: str = "cpu"
    """Where migrate, hybrid and overlap sample."""
    learning_device: str = "cuda"
    """Where migrate, hybrid and overlap learn."""
    max_lag: int = 0
    """1 lets auto take overlap, whose rollouts come from parameters one update old."""

    def resolve(self) -> Placement | Auto:
        """The placement meant; `Auto` has yet to choose."""
        if self.placement == "auto":
            return Auto(self.max_lag)
        return make_placement(
            self.placement, sampling_device=self.sampling_device, learning_device=self.learning_device
        )


def resolve_placement(placement: PlacementChoice) -> Placement | Auto:
    """The placement meant by a name, or by itself; `Auto` has yet to choose."""
    if placement == "auto":
        return Auto()
    if isinstance(placement, str):
        return make_placement(placement)
    if not isinstance(placement, (Placement, Auto)):
        raise ConfigurationError(f"placement must be a name or a placement, got {shown(placement)}")
    return placement
