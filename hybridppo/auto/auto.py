"""`Auto`: the placement that is chosen by measuring.

    result = hybridppo.train("CartPole-v1", total_steps=1_000_000, placement=Auto(max_lag=1))

It tries a few candidates briefly (`search.py`), each in the way in which training would run under it (`trials.py`), and
logs its choice in one line. The training then runs under the chosen placement.
"""

import logging
from dataclasses import dataclass
from typing import Any, Literal

from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.search import Limits, Search
from hybridppo.auto.trials import Training
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.environments.sync_multi_agent import MultiAgentEnvironments
from hybridppo.errors import ConfigurationError, shown
from hybridppo.networks.mlp import twin_of
from hybridppo.placements.by_name import make_placement, placement_from_settings, require_devices
from hybridppo.placements.placement import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.system.devices import num_cuda_devices
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The chosen placement, workers and threads, and the table of all trials."""

    placement: Placement
    num_workers: int | None
    """None leaves it to the placement."""
    torch_threads: int
    table: dict[str, Any]
    """The contents of `placements.json`."""


def not_measured(device: Any, num_workers: int, torch_threads: int, line: str) -> Choice:
    """The only choice that there is: one device, with the reason for the log."""
    logger.info("placement auto: %s", line)
    table = {"seconds": 0.0, "left_out": [], "chosen": str(device), "line": line}
    return Choice(SingleDevice(device), num_workers, torch_threads, table)


@dataclass(frozen=True)
class Auto:
    """Tries placements briefly on the user's own work, and takes the fastest.

    It chooses only placements that do not change the result of a seed. Overlap, division of environments that share a
    generator, and other numbers of torch threads must be allowed explicitly.

    Args:
        max_lag: 1 allows sampling and learning to overlap, with rollouts by parameters that are one update old. Above
            1, workers do not wait for each other, and parameters are at most `max_lag` updates old.
    """

    max_lag: int = 0

    def __post_init__(self) -> None:
        require_whole("max_lag", self.max_lag, 0)

    def choose(
        self,
        source: EnvSource,
        environments: Environments,
        config: AnyConfig,
        *,
        total_steps: int,
        num_workers: int | None = None,
        options: EnvironmentOptions | None = None,
        agent: AnyAgent | None = None,
        seconds_to_make: float = 0.0,
    ) -> Choice:
        """Try candidates, and choose.

        Args:
            source: makes the environments; trials make their own from it.
            environments: the environments of the training, or some of them; not stepped.
            config: the agent's settings.
            total_steps: environment steps of the run.
            num_workers: the user's number; None to choose one.
            options: how the environments are made and stepped.
            agent: the agent to train, which trials copy; None for the library's.
            seconds_to_make: how long it took to make `environments`.
        """
        if environments.device is not None:
            line = f"{environments.device}, where the environments' tensors are"
            return not_measured(environments.device, num_workers or 0, config.torch_threads or 1, line)
        training = Training(source, config, options if options is not None else EnvironmentOptions(), agent)
        seconds_to_make *= config.num_envs * environments.num_agents / environments.num_envs  # of all
        limits = self.limits(
            training, environments, total_steps=total_steps, num_workers=num_workers, seconds_to_make=seconds_to_make,
        )  # fmt: skip
        search = Search(training, limits)
        try:
            chosen = search.run()
        except Exception as error:
            # Training under the baseline is better than an error here; the same error would come again there.
            logger.warning("placement auto: not measured, because of %s: %s", type(error).__name__, error)
            search.trials.clear()
            search.left_out.insert(0, f"all: {type(error).__name__}: {error}")
            chosen = search.baseline
        table = search.table(chosen)
        spent = f" (measured in {table['seconds']:.2g} s)" if search.trials else ""
        logger.info("placement auto: %s%s", table["line"], spent)
        return Choice(chosen.placement, chosen.num_workers, chosen.torch_threads, table)

    def limits(
        self,
        training: Training,
        environments: Environments,
        *,
        total_steps: int,
        num_workers: int | None = None,
        seconds_to_make: float = 0.0,
    ) -> Limits:
        """The limits of the search, from the training and this machine."""
        config, agent = training.config, training.agent
        actor: Any = None if agent is None else agent.actor
        return Limits(
            # Steps are counted in environments, and rollouts have those of all their agents.
            total_steps=total_steps,
            cores=cpu_cores(),
            num_workers=num_workers,
            # Single copies are seeded one by one; an environment's own vectorised form has one generator for all.
            splits=isinstance(environments, (SyncEnvironments, MultiAgentEnvironments)),
            has_workers=agent is None or twin_of(actor) is not None,
            draws_on_device=environments.is_compiled,
            max_lag=self.max_lag,
            any_threads=config.torch_threads is None,
            torch_threads=config.torch_threads or 1,
            accelerator="cuda" if num_cuda_devices() else None,
            seconds_to_make=seconds_to_make,
        )


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
    if "device" in meant:
        options = PlacementOptions("cuda" if meant["device"].startswith("cuda") else "cpu")
    else:  # overlap is hybrid with a lag
        options = PlacementOptions(meant["name"], meant["sampling"], meant["learning"], meant.get("max_lag"))
    placement = options.resolve()
    if isinstance(placement, Auto) or placement.settings() != meant:
        raise ConfigurationError(f"the command line has no placement {shown(settings)}: name another (--placement)")
    return options


def resolve_placement(placement: PlacementChoice) -> Placement | Auto:
    """The placement of a name, or the placement itself; `Auto` still has to choose one."""
    if placement == "auto":
        return Auto()
    if isinstance(placement, str):
        return make_placement(placement)
    if not isinstance(placement, (Placement, Auto)):
        raise ConfigurationError(f"placement must be a name or a placement, got {shown(placement)}")
    return placement
