"""The strategy of a training makes its environments, sampler and loop. Here, it is one process."""

import logging
import os
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice, not_measured
from hybridppo.auto.trials import Training
from hybridppo.environments.base import Environments
from hybridppo.environments.making import is_tensor_env, make_environments, with_arguments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import source_of
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent, agents_of
from hybridppo.networks.modes import require_same_everywhere
from hybridppo.placements.placement import Placement
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import Sampler
from hybridppo.settings import Distributed, Local, Plan, RunOptions

logger = logging.getLogger(__name__)


TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for the processes that it starts."""


def is_joining() -> bool:
    """Whether torchrun has started this process."""
    return set(TORCHRUN) <= os.environ.keys()


class Strategy:
    """The strategy of a training in this process. It is a context, whose end stops all that it has started.

    Args:
        policy: the way to distribute, with all its numbers.
    """

    rank = 0
    """The number of this learner. The first one, 0, has the run directory, and reports."""
    size = 1
    """The number of learners."""
    has_joined = False
    """Whether this process has joined the learners of torchrun, so that they learn why it ends; set on this class."""
    needs: ClassVar[dict[str, Any]] = {"address": None}
    """Options that must have these values."""

    def __init__(self, policy: Distributed) -> None:
        self.policy: Any = policy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End all started processes, and leave the cluster."""

    def settled(self, run: RunOptions) -> RunOptions:
        """The options of the run, the same for all learners, with all numbers of the policy."""
        return replace(run, distributed=str(self.policy))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:
        """Refuse settings that do not work with this policy.

        Raises:
            ConfigurationError: with the option and the remedy.
        """
        for each in config.policies.values():
            values = {**vars(each), **vars(options), **vars(run), "num_workers": run.num_workers or 0}
            for name, needed in self.needs.items():
                if (found := values.get(name, needed)) != needed:
                    other = "" if isinstance(self.policy, Local) else "use distributed='local', or "
                    raise ConfigurationError(
                        f"{name}={found!r} does not work with distributed={self.policy}: {other}leave it out"
                    )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
        """The options with which environments are made in every process; the run saves them."""
        return options

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The placement in each learner.

        Raises:
            ConfigurationError: if the policy does not work with it.
        """
        if isinstance(meant, Auto) and meant.max_lag and not isinstance(self.policy, Local):
            raise ConfigurationError(
                f"{meant} does not work with distributed={self.policy}, for which nothing is measured: name the "
                "placement, such as Mirrored('cpu', 'cpu', max_lag=1) (--placement overlap)"
            )
        return meant

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """This process's share of the environments; with worker processes, only one, for its spaces."""
        return make_environments(source, num_envs, options, copies=1 if num_workers else None)

    def choose(self, auto: Auto, training: Training, environments: Environments, **more: Any) -> Choice:
        """As `Auto.choose` in one process; with several, the CPU, without a measurement."""
        if isinstance(self.policy, Local):
            return auto.choose(training, environments, **more)
        line = f"cpu with distributed={self.policy}, for which nothing is measured: name another placement to use one"
        return not_measured("cpu", more["num_workers"] or 0, training.config.torch_threads or 1, line)

    def begin(self, plan: Plan) -> Plan:
        """Start the other learners, which take over the state of the first."""
        return plan

    def sampler(self, plan: Plan, **options: Any) -> Sampler:
        """As `make_sampler`."""
        return make_sampler(plan.env, plan.environments, plan.agent, plan.placement, **options)

    def runner(self, agent: Agent, sampler: Sampler, placement: Placement, **options: Any) -> Runner:
        """As `Runner`."""
        return Runner(agent, sampler, placement, **options)

    def end(self, agent: Agent) -> None:
        """Let the other learners end, because the training is over."""


def as_copies(source: EnvSource, options: EnvironmentOptions, whom: str) -> EnvironmentOptions:
    """The options that step copies of an environment, because its own vectorised form is seeded as a whole.

    Args:
        source: makes the environments.
        options: the options of the user.
        whom: the processes that share the environments, for messages.

    Raises:
        ConfigurationError: if a function makes vectors, or batched environments.
    """
    if options.vectorization == "compiled":  # each environment has a seed of its own
        return options
    given: Any = source_of(source)
    if isinstance(given, str):
        has_own = given in gym.registry and gym.spec(given).vector_entry_point is not None
        if has_own and options.vectorization == "auto":
            logger.info("%s: its own vectorised form cannot be divided among %s, copies are stepped", given, whom)
        return replace(options, vectorization="sync")
    made = given if is_tensor_env(given) else with_arguments(given, 1, options)()
    if made is not given and callable(getattr(made, "close", None)):  # PettingZoo's may lack it
        made.close()
    if is_tensor_env(made) or isinstance(made, VectorEnv):
        raise ConfigurationError(
            f"a {type(made).__name__} is seeded and stepped as a whole, and cannot be divided among {whom}: let a "
            "function make one environment, or use distributed='local'"
        )
    return replace(options, vectorization="sync")


def ppo_of_policies(config: AnyConfig) -> list[PPOConfig]:
    """The configuration of each policy.

    Raises:
        ConfigurationError: if learners cannot share the gradients of the agent.
    """
    found = []
    for each in config.policies.values():
        if not isinstance(each, PPOConfig):
            raise ConfigurationError(
                f"learners share the gradients of PPO only, got {type(each).__name__}: use distributed='local'"
            )
        found.append(each)
    return found


def require_multiples(number: int, parts: str, **values: int | None) -> None:
    """Refuse values that cannot be divided among so many parts, with a ConfigurationError."""
    for name, value in values.items():
        if value and value % number:
            raise ConfigurationError(f"{name} must be a multiple of the {number} {parts}, got {value}")


def require_shareable(agent: AnyAgent) -> None:
    """Refuse an agent that several learners cannot update together.

    Raises:
        ConfigurationError: with the remedy.
    """
    for each in agents_of(agent):
        own = {f"modules[{name!r}]": module for name, module in each.modules_of.items()}
        require_same_everywhere({"actor": each.actor, "critic": each.critic, **own})
