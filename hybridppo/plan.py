"""The plan of a training: all its parts and settings when it is about to begin, or to resume from a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass

from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvSource
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callback
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Settings
from hybridppo.system.signals import Interruption


@dataclass(frozen=True)
class Plan:
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
    progress: bool = False
    """Whether to show a progress bar."""
    callbacks: Sequence[Callback] = ()
