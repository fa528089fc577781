"""What a training needs before it begins or resumes: its processes, environments and placement."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hybridppo.agents.policies import PolicyOf
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distributed import strategy_of
from hybridppo.distributed.strategy import Strategy
from hybridppo.environments.base import Environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource, for_agents
from hybridppo.errors import ConfigurationError
from hybridppo.options import RunOptions
from hybridppo.placements.placement import Placement
from hybridppo.self_play import for_seats
from hybridppo.system.signals import Interruption


@dataclass(frozen=True)
class Stage:
    """The processes, environments and options with which a training is prepared and runs."""

    env: EnvSource
    strategy: Strategy
    options: EnvironmentOptions
    """The options of the environments in every process."""
    run: RunOptions
    """The options of the run in every learner."""
    environments: Environments
    """All environments, or some of them if the others are in other processes."""
    seconds_to_make: float
    """How long it took to make `environments`."""
    placement: Placement | Auto
    interruption: Interruption

    def choose(self, config: AnyConfig, agent: AnyAgent, total_steps: int) -> Choice:
        """The placement that was asked for, or the one that `auto` chooses for so many steps."""
        if isinstance(self.placement, Placement):
            return Choice(self.placement, self.run.num_workers, config.torch_threads or 1, table={})
        return self.strategy.choose(
            self.placement,
            source=self.env,
            environments=self.environments,
            config=config,
            total_steps=total_steps,
            num_workers=self.run.num_workers,
            options=for_seats(self.options, self.run, config),
            agent=agent,
            seconds_to_make=self.seconds_to_make,
        )


@contextlib.contextmanager
def staged(
    env: EnvSource,
    config: AnyConfig,
    options: EnvironmentOptions,
    run: RunOptions,
    placement: Placement | Auto,
    *,
    policy_of: PolicyOf | None = None,
    saves: bool = True,
) -> Iterator[Stage]:
    """Start the other processes, and make the environments; end and close them afterwards.

    Args:
        env: makes the environments.
        config: the agent's settings.
        options: the options of the environments.
        run: the options of the run, with how it is distributed.
        placement: the placement that the user asked for.
        policy_of: as for `train`.
        saves: whether a training that a signal interrupts is saved.

    Raises:
        ConfigurationError: if `distributed` does not support these settings, or the program is in a mode of torch
            that changes gradients.
    """
    _refuse_modes_of_torch()
    strategy = strategy_of(run, options.worker_timeout)
    strategy.check(config, options, run)
    options, placement = strategy.dividing(env, options), strategy.placement(placement)
    with contextlib.ExitStack() as stack:
        stack.enter_context(strategy)
        run = strategy.settled(run)
        interruption = stack.enter_context(Interruption(saves=saves))
        begun = time.perf_counter()
        seats = for_seats(options, run, config, policy_of)
        environments = strategy.environments(env, config.num_envs, seats, run.num_workers)
        stack.callback(environments.close)
        options = for_agents(options, environments.agents)
        seconds = time.perf_counter() - begun
        yield Stage(env, strategy, options, run, environments, seconds, placement, interruption)


def _refuse_modes_of_torch() -> None:
    if torch.is_inference_mode_enabled():
        raise ConfigurationError("torch.inference_mode() is on, in which nothing has a gradient: train outside of it")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigurationError(
            "torch.autocast is on, which would round losses: train outside of it; precision='bf16' of the "
            "configuration uses it for the networks alone"
        )
