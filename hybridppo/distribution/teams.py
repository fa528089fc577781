"""Which team a distribution calls for, and which run directory a team resumes."""

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


def run_directory_of(run_dir: str | Path, distribution: str | Distribution | None) -> RunDirectory:
    """The directory of a run that is to go on, which is this process's until it is closed.

    If torchrun has started several learners, only the first needs to have it: the others are given its settings.

    Args:
        run_dir: of the run.
        distribution: that is asked for; None is the run's own.
    """
    is_multi = distribution is None or isinstance(distribution_of(distribution), MultiLearner)
    if is_multi and is_joining() and os.environ["WORLD_SIZE"] != "1":
        from hybridppo.distribution.team import run_directory_of_first

        return run_directory_of_first(run_dir, distribution)
    return RunDirectory.open_to_train(run_dir)


def team_of(run: RunOptions, timeout: float) -> LocalTeam:
    """Who trains, by the run's distribution; `timeout` seconds without an answer are too long."""
    policy = distribution_of(run.distribution)
    if isinstance(policy, MultiLearner):
        from hybridppo.distribution.team import Team  # which loads torch.distributed

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
    return LocalTeam()
