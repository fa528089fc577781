"""The team of a distribution policy, and the run directory that it resumes."""

import logging
import os
from pathlib import Path

from hybridppo.distribution.launching import is_joining
from hybridppo.distribution.local import LocalTeam
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runs.distribution_policies import (
    Central,
    Distribution,
    Environments,
    MultiLearner,
    SingleLearnerCoarse,
    SingleLearnerFine,
    distribution_of,
)
from hybridppo.runs.options import RunOptions

logger = logging.getLogger(__name__)


def run_directory_of(run_dir: str | Path, distribution: str | Distribution | None) -> RunDirectory:
    """Open the directory of a run to resume, and lock it until it is closed.

    If torchrun has started several learners, only the first needs it, and sends its settings to the others.

    Args:
        run_dir: the path of the run directory.
        distribution: the distribution of the resumed run; None for the run's own.
    """
    is_multi = distribution is None or isinstance(distribution_of(distribution), MultiLearner)
    if is_multi and is_joining() and os.environ["WORLD_SIZE"] != "1":
        from hybridppo.distribution.team import run_directory_of_first

        return run_directory_of_first(run_dir, distribution)
    return RunDirectory.open_to_train(run_dir)


def team_of(run: RunOptions, timeout: float) -> LocalTeam:
    """The team of the run's distribution. A process without an answer for `timeout` seconds is lost."""
    policy = distribution_of(run.distribution)
    if isinstance(policy, MultiLearner):
        from hybridppo.distribution.team import Team  # loads torch.distributed

        return Team.of(policy, timeout, run.address)
    if isinstance(policy, SingleLearnerCoarse):
        from hybridppo.distribution.over_ray import Coarse

        return Coarse(policy, run.address)
    if isinstance(policy, (SingleLearnerFine, Environments)):
        from hybridppo.distribution.over_ray import Fine

        return Fine(policy, run.address)
    if isinstance(policy, Central):
        from hybridppo.distribution.central_server import ServerOfParameters

        return ServerOfParameters(policy, run.address)
    if run.address is not None:
        logger.warning(
            "address=%s has no effect with distribution='local', which trains in this process alone: name another one, "
            "such as distribution='coarse' (--distribution coarse)",
            run.address,
        )
    return LocalTeam()
