"""Which team a distribution calls for."""

from hybridppo.distribution.alone import Alone
from hybridppo.distribution.policies import (
    Central,
    Environments,
    GPUOnly,
    MultiLearner,
    SingleLearnerCoarse,
    SingleLearnerFine,
    distribution_of,
)
from hybridppo.options import RunOptions


def team_of(run: RunOptions, timeout: float) -> Alone:
    """Who trains, by the run's distribution; `timeout` seconds without an answer are too long."""
    policy = distribution_of(run.distribution)
    if isinstance(policy, MultiLearner):
        from hybridppo.distribution.team import Team  # which loads torch.distributed

        return Team.of(policy, timeout)
    if isinstance(policy, GPUOnly):
        from hybridppo.distribution.device_team import DeviceTeam

        return DeviceTeam.of(policy, timeout)
    if isinstance(policy, SingleLearnerCoarse):
        from hybridppo.distribution.coarse import Coarse

        return Coarse(policy, run.address)
    if isinstance(policy, (SingleLearnerFine, Environments)):
        from hybridppo.distribution.fine import Fine

        return Fine(policy, run.address)
    if isinstance(policy, Central):
        from hybridppo.distribution.central import ServerOfParameters

        return ServerOfParameters(policy)
    return Alone()
