"""The job: all parts and settings of a training that is about to begin."""

from dataclasses import dataclass, field

from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvSource
from hybridppo.placements.placement import Placement
from hybridppo.reporting.loggers import Reporting
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings
from hybridppo.system.signals import Interruption


@dataclass(frozen=True)
class Job:
    """A training that is about to begin, or to resume from a checkpoint."""

    env: EnvSource
    settings: Settings
    environments: Environments
    agent: AnyAgent
    placement: Placement
    interruption: Interruption
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    profile: bool = False
    reporting: Reporting = field(default_factory=Reporting)
