"""Trainings whose environments or learners are in a Ray cluster: a running one, or one that is started here."""

import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, ClassVar

from typing_extensions import Self

from hybridppo.agents.registry import AnyConfig
from hybridppo.agents.schedules import ADAPTIVE
from hybridppo.auto.auto import Auto
from hybridppo.distributed.strategy import Strategy, as_copies, ppo_of_policies, require_multiples, require_shareable
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, DistributedError, pip_install, shown
from hybridppo.interfaces import Agent
from hybridppo.networks.actors import twin_of
from hybridppo.placements.placement import Placement, SingleDevice
from hybridppo.runners.processes import close_probe
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import Sampler
from hybridppo.settings import Central, Distributed, Plan, RunOptions, SingleLearnerCoarse, SingleLearnerFine
from hybridppo.settings import Environments as EnvironmentWorkers
from hybridppo.system.signals import handlers_kept

logger = logging.getLogger(__name__)

SECONDS_TO_CONNECT = 10.0
"""Seconds that a cluster may take to answer."""
MOST_BYTES = 2**30
"""The largest object store of a cluster that is started here; further objects are written to disk."""
_OF_RAY = (signal.SIGINT, signal.SIGTERM)
"""The signals whose handlers Ray replaces."""


class RayStrategy(Strategy):
    """The learner of a training whose samplers or environments are in Ray actors. As a context, it connects to Ray.

    Args:
        policy: the policy of the training.
        address: address of a running cluster, `auto` or HOST:PORT; `local` starts one on this machine. None for the
            cluster that this process has joined, or the one in the variable RAY_ADDRESS, or else `local`.
    """

    needs: ClassVar[dict[str, Any]] = {"num_workers": 0, "episodes_per_rollout": None}

    def __init__(self, policy: Distributed, address: str | None) -> None:
        super().__init__(policy)
        self._address = address
        self._what, self._count = next(iter(vars(policy).items()))
        """The name of the workers for messages, and their number."""

    def __enter__(self) -> Self:
        """Connect to Ray.

        Raises:
            ConfigurationError: if Ray is not installed, or this process has joined another cluster.
            DistributedError: if no cluster answers at the address, or none can be started here.
        """
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        if address == "local" and "ray" not in sys.modules:
            # On Linux, Ray would listen on every interface, and elsewhere it listens on the loopback.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
            from ray import is_initialized  # a folder named ray has none
        except ImportError as error:
            raise ConfigurationError(
                f"distributed={self.policy} needs Ray, which cannot be imported ({error}): {pip_install('ray')}"
            ) from error
        self._ray, self._is_own = ray, not is_initialized()
        self._handler = signal.getsignal(signal.SIGTERM)
        if not self._is_own:
            _require_joined(ray.get_runtime_context().gcs_address, self._address)
            if str(getattr(self._handler, "__module__", "")).startswith("ray."):  # it would end the process at once
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return self
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports unless the user wants them
        options: dict[str, Any] = {"logging_level": logging.ERROR, "address": address}
        if address == "local":
            # By default it is 15, and other programs leave the workers almost no time of a core.
            os.environ.setdefault("RAY_worker_niceness", "0")
            options |= {"include_dashboard": False, "num_cpus": self._count, "object_store_memory": MOST_BYTES}
        try:
            _require_somebody_at(address)
            with handlers_kept(_OF_RAY):
                ray.init(**options)
        except Exception as error:  # plain ones too: "The current node timed out during startup"
            where = "could not be started on this machine" if address == "local" else f"does not answer at {address}"
            causes: list[BaseException] = [error]
            while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
                causes.append(cause)
            lines = (f"{type(each).__name__}: {(str(each).strip().splitlines() or [''])[-1]}" for each in causes)
            reason = "; because of ".join(lines)
            raise DistributedError(
                f"Ray {where} ({reason}). A cluster is started by ray start --head, and joined "
                "by other machines with ray start --address HOST:PORT, all with the same versions of Python and Ray, "
                "with RAY_AUTH_MODE=token in the environment, and with the token of the first machine: see "
                "docs/clusters.md"
            ) from error
        if address == "local" and not ip_address(listens_at := ray.util.get_node_ip_address()).is_loopback:
            logger.warning("Ray listens at %s, which other machines may reach: use a private network", listens_at)
        if address != "local" and os.environ.get("RAY_AUTH_MODE", "disabled") == "disabled":
            logger.warning(
                "the Ray cluster at %s asks for no token: whoever reaches it on the network may run commands as you. "
                "Set RAY_AUTH_MODE=token on all machines, see docs/clusters.md", address,
            )  # fmt: skip
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Disconnect, and end the cluster if it was started here."""
        if self._is_own:
            with handlers_kept(_OF_RAY):
                self._ray.shutdown()
        else:
            signal.signal(signal.SIGTERM, self._handler)

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        super().check(config, options, run)
        if self._count > config.num_envs:
            raise ConfigurationError(
                f"{self._what} must be at most num_envs = {config.num_envs}, got {self._count}: each steps at least one"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, self._what)

    def placement(self, meant: Placement | Auto) -> Placement | Auto:  # noqa: D102 - as in the base
        if (
            isinstance(self.policy, SingleLearnerCoarse)
            and isinstance(meant, Placement)
            and meant.sampling_device.type != "cpu"
        ):
            raise ConfigurationError(
                f"distributed={self.policy} samples on CPUs, got {meant}: use a placement that samples on the "
                "CPU, such as hybrid or overlap"
            )
        return super().placement(meant)

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """All environments, in workers; or one, for its spaces, if the workers sample."""
        template = make_environments(source, 1, options)
        if not isinstance(self.policy, (SingleLearnerFine, EnvironmentWorkers)):
            return template
        from hybridppo.distributed.ray_workers import RayEnvironments  # loads Ray

        close_probe(template)
        return RayEnvironments(source, template, num_envs=num_envs, num_workers=self._count, options=options)

    def sampler(self, plan: Plan, **options: Any) -> Sampler:
        """A sampler whose workers are Ray's, or one in this process that acts in their environments."""
        if not isinstance(self.policy, SingleLearnerCoarse):
            return super().sampler(plan, **{**options, "num_workers": 0})
        from hybridppo.distributed.ray_workers import RaySamplers  # loads Ray

        if twin_of(plan.agent.actor) is None:
            raise ConfigurationError(
                "samplers act in NumPy, with the library's own networks of tanh or relu only, without layer_norm and "
                f"impala convolutions: choose such a network, or distributed='environments:{self._count}', whose "
                "actor is here"
            )
        return super().sampler(plan, **{**options, "num_workers": self._count, "transport": RaySamplers})


class CentralStrategy(RayStrategy):
    """The process of a training with a parameter server that counts the learners' updates."""

    needs: ClassVar[dict[str, Any]] = {
        "num_workers": 0, "episodes_per_rollout": None, "compiled_updates": False, "pool_size": 1, "self_play": None,
        "info_metrics": (),
    }  # fmt: skip

    def __init__(self, policy: Central, address: str | None) -> None:
        super().__init__(replace(policy, max_lag=policy.lag), address)

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        one, *others = ppo_of_policies(config)
        if others:
            raise ConfigurationError("learners of a server have one policy: use distributed='local' or 'multi'")
        super().check(config, options, run)
        if one.named_schedules.get("learning_rate") == ADAPTIVE:
            raise ConfigurationError(
                f"an adaptive learning rate does not work with distributed={self.policy}, whose learners each see the "
                "KL divergence of their own rows: use another schedule, or distributed='local' or 'multi'"
            )
        require_multiples(self._count, "learners", num_envs=one.num_envs, num_minibatches=one.minibatches)

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The CPU; other placements are refused."""
        if not isinstance(meant, Auto) and meant.settings() != SingleDevice("cpu").settings():
            raise ConfigurationError(
                f"learners sample and learn by turns on CPUs, got {meant}: use placement='cpu', or another distributed="
            )
        return super().placement(meant)

    def begin(self, plan: Plan) -> Plan:
        """The same plan: the sampler starts the learners."""
        require_shareable(plan.agent)
        return plan

    def sampler(self, plan: Plan, **options: Any) -> Sampler:
        """The learners, in the place of a sampler."""
        from hybridppo.distributed.parameter_server import Learners  # loads Ray

        return Learners(plan, self._count, self.policy.lag, options["options"], options["env_seed"], options["noise"])

    def runner(self, agent: Agent, sampler: Sampler, placement: Placement, **options: Any) -> Runner:
        """A loop whose iterations are updates of the learners."""
        from hybridppo.distributed.parameter_server import CentralRunner  # loads Ray

        return CentralRunner(agent, sampler, placement, **options)


def _require_joined(joined: str, address: str | None) -> None:
    """Refuse an address if this process has joined another cluster."""
    if address not in (None, "auto", joined):
        raise ConfigurationError(
            f"this process has joined the Ray cluster at {joined} by ray.init, and address is {shown(address)}: leave "
            "address out to use that cluster, or call ray.shutdown() first"
        )


def _require_somebody_at(address: str) -> None:
    """Raise an OSError if no process listens there. Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()
