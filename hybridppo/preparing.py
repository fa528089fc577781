"""What a training needs before it begins or resumes: its configuration, processes, environments and agent."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from hybridppo.agents import PPOConfig
from hybridppo.agents.policies import PoliciesConfig, PolicyOf, policy_by_name
from hybridppo.agents.registry import (
    AnyAgent,
    AnyConfig,
    agent_class,
    default_config,
    make_agent,
    replaced,
)
from hybridppo.agents.schedules import ScheduleFunction, Schedules, parsed
from hybridppo.auto.auto import Auto, Choice
from hybridppo.compiled.modules import has_numba
from hybridppo.distributed.choosing import strategy_of
from hybridppo.distributed.strategy import Strategy
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.options import EnvironmentOptions, EnvSource, for_agents
from hybridppo.errors import ConfigurationError, pip_install, shown
from hybridppo.evaluating import compiled_environments
from hybridppo.options import RunOptions
from hybridppo.placements.placement import Placement
from hybridppo.self_play import with_self_play
from hybridppo.settings import name_of_source
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.system.signals import Interruption

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation:
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

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        assert self.run.seed is not None  # `train` and `Settings.read` see to that
        return self.run.seed

    def choose(self, agent: AnyAgent, total_steps: int) -> Choice:
        """The placement that was asked for, or the one that `auto` chooses for so many steps."""
        if isinstance(self.placement, Placement):
            return Choice(self.placement, self.run.num_workers, agent.config.torch_threads or 1, table={})
        return self.strategy.choose(
            self.placement,
            source=self.env,
            environments=self.environments,
            config=agent.config,
            total_steps=total_steps,
            num_workers=self.run.num_workers,
            options=with_self_play(self.options, self.run, agent.config),
            agent=agent,
            seconds_to_make=self.seconds_to_make,
        )


@contextmanager
def prepared(
    env: EnvSource,
    config: AnyConfig,
    options: EnvironmentOptions,
    run: RunOptions,
    placement: Placement | Auto,
    *,
    policy_of: PolicyOf | None = None,
    saves: bool = True,
) -> Iterator[Preparation]:
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
    if torch.is_inference_mode_enabled():
        raise ConfigurationError("torch.inference_mode() is on, in which nothing has a gradient: train outside of it")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise ConfigurationError(
            "torch.autocast is on, which would round losses: train outside of it; precision='bf16' of the "
            "configuration uses it for the networks alone"
        )
    strategy = strategy_of(run, options.worker_timeout)
    strategy.check(config, options, run)
    options, placement = strategy.dividing(env, options), strategy.placement(placement)
    with ExitStack() as stack:
        stack.enter_context(strategy)
        run = strategy.settled(run)
        interruption = stack.enter_context(Interruption(saves=saves))
        begun = time.perf_counter()
        game = with_self_play(options, run, config, policy_of)
        environments = strategy.environments(env, config.num_envs, game, run.num_workers)
        stack.callback(environments.close)
        options = for_agents(options, environments.agents)
        seconds = time.perf_counter() - begun
        yield Preparation(env, strategy, options, run, environments, seconds, placement, interruption)


def config_to_train(
    config: AnyConfig | Mapping[str, PPOConfig] | None,
    agent: object,
    parts: Mapping[str, object],
    schedules: Mapping[str, str],
    played: Sequence[str],
) -> AnyConfig:
    """The configuration of the agent to train; a mapping has several policies.

    Args:
        config: as for `train`, with a configuration also for the policies that are played.
        agent: as for `train`.
        parts: the agent's other arguments by name; None for the library's.
        schedules: further schedules with names, by field.
        played: the policies that act and do not learn.

    Raises:
        ConfigurationError: if the arguments contradict one another, or one is invalid.
    """
    given = [what for what, value in parts.items() if value is not None]
    if "modules" in given and "loss" not in given and agent is None:
        raise ConfigurationError("modules are trained by a loss of one's own: pass loss=..., too, or leave them out")
    if isinstance(config, Mapping):
        policies = PoliciesConfig(config)
        for what in given if agent is None else ["agent"]:
            what = "schedules that are functions" if what == "schedules" else what
            raise ConfigurationError(f"{what} does not work with several policies (config is a mapping): leave it out")
        found = replace(policies, played=tuple(played)) if len(config) > 1 else next(iter(config.values()))
        return with_schedules(found, schedules)
    if isinstance(agent, AnyAgent):
        if schedules:
            raise ConfigurationError("an agent that there is already has its schedules: leave schedules=... out")
        if config not in (None, agent.config):
            raise ConfigurationError(
                "an agent that there is already has a config of its own: leave config=... out; or save the agent, and "
                "train another one from its networks, by start_from=FILE and config=..."
            )
        if given:
            raise ConfigurationError(
                f"an agent that there is already has its parts, got {'=..., '.join(given)}=...: leave them out"
            )
        return agent.config
    if config is None:
        config = PPOConfig() if agent is None else default_config(agent)
    wanted = agent_class(config)  # refuses what is no configuration
    if agent is not None and not (isinstance(agent, type) and issubclass(agent, wanted)):
        name = wanted.__name__
        raise ConfigurationError(
            f"agent must be a subclass of {name} or a {name}, got {name_of_source(agent)}: config=DDPGConfig() "
            "or TD3Config() chooses another of the library's agents"
        )
    return with_schedules(config, schedules)


def split_schedules(schedules: Schedules | str | None) -> tuple[dict[str, str], dict[str, ScheduleFunction] | None]:
    """Schedules by field: those with names, and those that are functions, or None.

    Raises:
        ConfigurationError: if they are neither a mapping nor text as in `PPOConfig.schedules`.
    """
    try:
        given = parsed(schedules if schedules is not None else "")
    except (ValueError, TypeError):
        raise ConfigurationError(
            'schedules must give fields a name or a function, as {"learning_rate": "cosine"}, or "learning_rate=cosine"'
            f", got {shown(schedules)}"
        ) from None
    functions = {field: each for field, each in given.items() if callable(each)}
    return {field: each for field, each in given.items() if field not in functions}, functions or None


def with_schedules(config: AnyConfig, named: Mapping[str, str]) -> AnyConfig:
    """The configuration with further schedules; of several policies, each one that learns gets them.

    Raises:
        ConfigurationError: if there is no such schedule, or the field cannot have one.
    """

    def scheduled(each: Any) -> Any:
        return replace(each, schedules={**parsed(each.schedules), **named})

    if not named:
        return config
    if not isinstance(config, PoliciesConfig):
        made: AnyConfig = scheduled(config)
        return made
    learn = {name: scheduled(each) for name, each in config.policies.items() if name not in config.played}
    return replace(config, policies={**config.policies, **learn})


def compiled_options(
    env: EnvSource, config: AnyConfig, options: EnvironmentOptions, *, has_own_parts: bool = False
) -> tuple[AnyConfig, EnvironmentOptions]:
    """The settings of an agent and of environments, with everything compiled that has a compiled form.

    Args:
        env: the environment to train in.
        config: the agent's settings. With several policies, the updates of all are compiled, or of none.
        options: how environments are made. An explicit `vectorization` stays as it is.
        has_own_parts: whether the loss, the networks or the agent are not made from `config` by the library.

    Raises:
        ConfigurationError: if Numba is not installed, or neither environments nor updates can be compiled.
    """
    if not has_numba():
        raise ConfigurationError(
            f"compiled=True needs Numba, which is not installed: {pip_install('compiled')}, or leave it out"
        )
    options, why_no_environments = compiled_environments(env, options)
    each = list(config.policies.values()) if isinstance(config, PoliciesConfig) else [config]
    why_no_updates = next((why for of_policy in each if (why := _why_no_updates(of_policy, has_own_parts))), None)
    if why_no_environments and why_no_updates:
        raise ConfigurationError(
            f"compiled=True: neither environments nor updates can be compiled, so leave it out: {why_no_environments}; "
            f"{why_no_updates}"
        )
    for what, why in (("environments", why_no_environments), ("updates", why_no_updates)):
        if why:
            logger.info("compiled=True: %s are not compiled: %s", what, why)
    return config if why_no_updates else replaced(config, compiled_updates=True), options


def _why_no_updates(config: Any, has_own_parts: bool) -> str | None:
    """Why updates with these settings cannot be compiled; None if the settings allow it."""
    if has_own_parts:
        return "a loss, networks or an agent of one's own are not compiled"
    if not isinstance(config, PPOConfig):
        return "only PPO has compiled updates"
    if not config.fast_updates:
        return "fast_updates=False asks for autograd"
    if config.recurrent is not None:
        return f"recurrent={config.recurrent!r} learns by autograd"
    return None


def with_agents(config: AnyConfig, agents: Sequence[str], policy_of: PolicyOf | None) -> AnyConfig:
    """The configuration with the agents of the environments by policy, if there are several policies.

    Raises:
        ConfigurationError: if the policies are not those of the agents.
    """
    if not isinstance(config, PoliciesConfig):
        return config
    if not config.agents:
        return config.with_agents(agents, policy_of)
    config.require_agents(agents, ConfigurationError)  # of an existing agent
    if policy_of is not None and config.with_agents([*config.agents], policy_of).agents != config.agents:
        raise ConfigurationError(
            "an agent that there is already has its policies, and policy_of gives agents others: leave it out"
        )
    return config


def agent_to_train(
    config: AnyConfig,
    agent: type[AnyAgent] | AnyAgent | None,
    parts: Mapping[str, Any],
    environments: Environments,
    seed: int,
) -> AnyAgent:
    """The agent to train: the existing one, or a new one.

    Raises:
        ConfigurationError: if the existing one was made for other spaces.
    """
    observations, actions = environments.observation_space, environments.action_space
    if not isinstance(config, PoliciesConfig):
        for kind, space in (("observation", observations), ("action", actions)):
            if isinstance(space, SpacesOfAgents):
                names = dict.fromkeys(map(policy_by_name, environments.agents))
                kinds = ", ".join(f'"{name}": PPOConfig()' for name in names)
                raise ConfigurationError(
                    f"the agents of this environment have different spaces: the {kind} space "
                    f"{space.difference(environments.agents)}. Train a policy for each kind, config={{{kinds}}}, or "
                    "make their spaces alike, as by padding (supersuit's pad_observations_v0 and pad_action_space_v0 "
                    "do)"
                )
    if isinstance(agent, AnyAgent):
        require_spaces_of(agent, environments, error=ConfigurationError)
        return agent
    kind_of_agent = agent if agent is not None else agent_class(config)
    return make_agent(kind_of_agent, observations, actions, config, seed=seed, **parts)
