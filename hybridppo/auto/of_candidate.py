"""From a candidate to the placement that it names."""

from hybridppo.auto.prediction import Candidate
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice


def placement_of(candidate: Candidate) -> Placement:
    """The placement of a candidate. Between equal devices it copies, or there were nothing to compare."""
    if candidate.name in ("cpu", "cuda"):
        return SingleDevice(candidate.learning)
    if candidate.name == "overlap":
        return Mirrored(candidate.sampling, candidate.learning, max_lag=1)
    kind = Mirrored if candidate.name == "hybrid" else Migrating
    return kind(candidate.sampling, candidate.learning, force_copy=candidate.sampling == candidate.learning)
