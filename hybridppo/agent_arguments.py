"""The agent to train, from the arguments of `train`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.agents.policies import PoliciesConfig, PolicyOf, policies_of, policy_by_name
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import AnyAgent, AnyConfig, agent_class, critics_see, default_config, make_agent
from hybridppo.agents.schedules import ScheduleFunction, Schedules, parsed
from hybridppo.compiling import compiled_if_possible, compiled_options
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.options import EnvironmentOptions, EnvSource, for_critics
from hybridppo.errors import ConfigurationError, shown
from hybridppo.loading import given_policies
from hybridppo.settings import name_of_source
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.stage import Stage


@dataclass(frozen=True)
class AgentAsked:
    """The agent to train, from the arguments of `train`."""

    config: AnyConfig
    agent: type[AnyAgent] | AnyAgent | None
    """A subclass of the library's agent, or an existing agent."""
    parts: dict[str, Any]
    """The agent's other arguments by name, such as a loss; None for the library's."""
    names: tuple[str, ...]
    """The names of the policies, if `config` was a mapping."""
    played: dict[str, PPO]
    """The agents that act and do not learn, by the names of their policies."""

    @classmethod
    def of(
        cls,
        config: AnyConfig | Mapping[str, PPOConfig | PPO | str | Path] | None,
        agent: type[AnyAgent] | AnyAgent | None,
        schedules: Schedules | str | None,
        parts: dict[str, Any],
    ) -> "AgentAsked":
        """The agent that the arguments of `train` ask for.

        Raises:
            ConfigurationError: if the arguments contradict one another, or one is invalid.
        """
        names: tuple[str, ...] = ()
        played: dict[str, PPO] = {}
        if isinstance(config, Mapping):
            names = tuple(config)
            config, played = given_policies(config)
        named, functions = split_schedules(schedules)
        parts = {**parts, "schedules": functions}
        found = config_asked_for(config, agent, parts)
        if isinstance(found, PoliciesConfig):
            found = replace(found, played=tuple(played))
        if named and isinstance(agent, AnyAgent):
            raise ConfigurationError("an agent that there is already has its schedules: leave schedules=... out")
        return cls(with_schedules(found, named), agent, parts, names, played)

    def for_environments(
        self, env: EnvSource, options: EnvironmentOptions, policy_of: PolicyOf | None, *, compiled: bool
    ) -> tuple["AgentAsked", EnvironmentOptions]:
        """This with compiled updates, if they were asked for; and the options of the environments for this agent.

        Raises:
            ConfigurationError: if `policy_of` is given, but `config` names no policies.
        """
        if policy_of is not None and not self.names and not isinstance(self.config, PoliciesConfig):
            raise ConfigurationError(
                'policy_of gives agents policies by name, and one configuration has no name: pass config={"name": '
                "PPOConfig(...), ...}, or leave policy_of out"
            )
        config, options = self.config, for_critics(options, critics_see(self.config, policy_of))
        if compiled:
            own = self.parts["loss"] is not None or self.parts["networks"] is not None
            has_own_parts = own or isinstance(self.agent, AnyAgent)
            config, options = compiled_options(env, config, options, has_own_parts=has_own_parts)
        elif isinstance(config, PoliciesConfig):
            options = compiled_if_possible(env, options)
        return replace(self, config=config), options

    def met_by(self, stage: Stage, policy_of: PolicyOf | None) -> "AgentAsked":
        """This with the agents of the environments by policy, if there are several policies.

        Raises:
            ConfigurationError: if the policies are not those of the agents.
            OutOfMemoryError: if the rollouts of all agents do not fit.
        """
        config = self.config
        if isinstance(config, PoliciesConfig) and config.agents:  # of an existing agent
            config.require_agents(stage.environments.agents, ConfigurationError)
            if policy_of is not None and config.with_agents([*config.agents], policy_of).agents != config.agents:
                raise ConfigurationError(
                    "an agent that there is already has its policies, and policy_of gives agents others: leave it out"
                )
        elif isinstance(config, PoliciesConfig):
            config = config.with_agents(stage.environments.agents, policy_of)
        elif self.names and stage.run.self_play is None:
            policies_of(stage.environments.agents, self.names, policy_of)
        return replace(self, config=config)

    def made_for(self, environments: Environments, seed: int) -> AnyAgent:
        """The agent to train: the existing one, or a new one.

        Raises:
            ConfigurationError: if the existing one was made for other spaces.
        """
        spaces = environments.observation_space, environments.action_space
        parts = zip(("observation", "action"), spaces, strict=True)
        differ = [
            f"the {kind} space {space.difference(environments.agents)}"
            for kind, space in parts
            if isinstance(space, SpacesOfAgents)
        ]
        if differ and not isinstance(self.config, PoliciesConfig):
            kinds = ", ".join(
                f'"{name}": PPOConfig()' for name in dict.fromkeys(map(policy_by_name, environments.agents))
            )
            raise ConfigurationError(
                f"the agents of this environment have different spaces: {differ[0]}. Train a policy for each kind, "
                f"config={{{kinds}}}, or make their spaces alike, as by padding (supersuit's pad_observations_v0 and "
                "pad_action_space_v0 do)"
            )
        if isinstance(self.agent, AnyAgent):
            require_spaces_of(self.agent, environments, error=ConfigurationError)
            return self.agent
        kind = self.agent if self.agent is not None else agent_class(self.config)
        return make_agent(kind, *spaces, self.config, seed=seed, **self.parts)


def config_asked_for(
    config: AnyConfig | Mapping[str, PPOConfig] | None, agent: object, parts: Mapping[str, object]
) -> AnyConfig:
    """The configuration of the agent to train; a mapping has several policies.

    Args:
        config: as for `train`.
        agent: as for `train`.
        parts: the agent's other arguments by name; None for the library's.

    Raises:
        ConfigurationError: if the arguments contradict one another, or one is invalid.
    """
    if parts.get("modules") is not None and parts.get("loss") is None and agent is None:
        raise ConfigurationError("modules are trained by a loss of one's own: pass loss=..., too, or leave them out")
    if isinstance(config, Mapping):
        policies = PoliciesConfig(config)
        for what, value in {"agent": agent, **parts}.items():
            if value is not None:
                what = "schedules that are functions" if what == "schedules" else what
                raise ConfigurationError(
                    f"{what} does not work with several policies (config is a mapping): leave it out"
                )
        return policies if len(config) > 1 else next(iter(config.values()))
    if isinstance(agent, AnyAgent):
        if config not in (None, agent.config):
            raise ConfigurationError(
                "an agent that there is already has a config of its own: leave config=... out; or save the agent, and "
                "train another one from its networks, by start_from=FILE and config=..."
            )
        if given := [f"{what}=..." for what, value in parts.items() if value is not None]:
            raise ConfigurationError(
                f"an agent that there is already has its parts, got {', '.join(given)}: leave them out"
            )
        return agent.config
    if agent is None:
        config = config if config is not None else PPOConfig()
        agent_class(config)  # refuses what is no configuration
        return config
    config = config if config is not None else default_config(agent)
    wanted = agent_class(config)
    if not (isinstance(agent, type) and issubclass(agent, wanted)):
        name = wanted.__name__
        raise ConfigurationError(
            f"agent must be a subclass of {name} or a {name}, got {name_of_source(agent)}: config=DDPGConfig() "
            "or TD3Config() chooses another of the library's agents"
        )
    return config


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
    if not named:
        return config
    if isinstance(config, PoliciesConfig):
        trained = {name: _scheduled(each, named) for name, each in config.policies.items() if name not in config.played}
        return replace(config, policies={**config.policies, **trained})
    made: AnyConfig = _scheduled(config, named)
    return made


def _scheduled(config: Any, named: Mapping[str, str]) -> Any:
    return replace(config, schedules={**parsed(config.schedules), **named})
