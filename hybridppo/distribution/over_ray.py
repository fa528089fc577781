"""What trainings share whose environments are anywhere that Ray reaches."""

from types import TracebackType

from hybridppo.agents.registry import AnyConfig
from hybridppo.distribution.alone import Alone
from hybridppo.distribution.cluster import Cluster
from hybridppo.distribution.copies import as_copies
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.options import RunOptions
from hybridppo.placements.auto.auto import Auto
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice


class OverRay(Alone):
    """The learner of a training whose environments are elsewhere; while it is entered, Ray is there.

    Args:
        policy: which one, for messages.
        address: of a cluster that is there already; None starts one on this machine.
        count: how many workers there are.
        what: what they are called.
    """

    def __init__(self, policy: str, address: str | None, count: int, what: str) -> None:
        self._policy, self._address, self._count, self._what = policy, address, count, what
        self._cluster: Cluster | None = None

    def __enter__(self) -> "OverRay":
        self._cluster = Cluster(self._policy, self._address, self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with distribution {self._policy}"
        if self._count > config.num_envs:
            raise ConfigurationError(
                f"{self._what} must be at most num_envs = {config.num_envs}, got {self._count}: each steps at least one"
            )
        if run.num_workers:
            raise ConfigurationError(
                f"num_workers={run.num_workers} cannot be had {whom}, whose workers are elsewhere: leave it out"
            )
        if (episodes := getattr(config, "episodes_per_rollout", None)) is not None:  # not every agent has it
            raise ConfigurationError(
                f"episodes_per_rollout={episodes} cannot be had {whom}: whole episodes are sampled in one process"
            )
        if options.vectorization == "async":
            raise ConfigurationError(f"vectorization='async' cannot be had {whom}: leave it out")

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, self._what)

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The CPU, where it was to be chosen."""
        return SingleDevice("cpu") if isinstance(meant, Auto) else meant
