"""The agents by name. The type of a configuration chooses the agent; another agent is one line here."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym

from hybridppo.agents.common.memory import explaining
from hybridppo.agents.ddpg.config import DDPGConfig, TD3Config
from hybridppo.agents.ddpg.ddpg import DDPG, TD3
from hybridppo.agents.ddpg.memory import memory_needs as needs_of_ddpg
from hybridppo.agents.policies import Policies, PoliciesConfig, PolicyOf, critics_of, spaces_of_policy
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.memory import memory_needs as needs_of_ppo
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.errors import ConfigurationError, shown
from hybridppo.spaces.rows import ObservesOfAgents

AnyAgent = PPO | DDPG | Policies
"""Every agent; TD3 is a DDPG."""
AnyConfig = PPOConfig | DDPGConfig | PoliciesConfig
"""Every configuration; TD3's is a DDPG's."""


@dataclass(frozen=True)
class AgentKind:
    """The data that the library needs of an agent besides its name."""

    agent: type[Any]
    config: type[Any]
    memory_needs: Callable[[Any, gym.Space[Any], gym.Space[Any]], dict[str, int]]
    """Estimated bytes by purpose, with the fields to lower, for a configuration and the spaces of an environment."""
    parts: tuple[str, ...] = ()
    """Names of the arguments for custom parts."""


AGENTS: dict[str, AgentKind] = {
    "ppo": AgentKind(PPO, PPOConfig, needs_of_ppo, parts=("loss", "networks", "advantages", "modules", "schedules")),
    "ddpg": AgentKind(DDPG, DDPGConfig, needs_of_ddpg, parts=("schedules",)),
    "td3": AgentKind(TD3, TD3Config, needs_of_ddpg, parts=("schedules",)),
}
"""The agents by their names in `config.json` and on the command line."""


def _needs_of_policies(
    config: PoliciesConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> dict[str, int]:
    needs: Counter[str] = Counter()
    for name, of_policy in config.policies.items():
        needs.update(needs_of_ppo(of_policy, *spaces_of_policy(observation_space, action_space, name, config.agents)))
    return dict(needs)


_KINDS = {**AGENTS, Policies.name: AgentKind(Policies, PoliciesConfig, _needs_of_policies)}
"""All agents, including that of several policies, which has no name on the command line."""


def name_of(config: AnyConfig) -> str:
    """The name of the agent for a configuration.

    Raises:
        ConfigurationError: if it is not the configuration of an agent.
    """
    for name, kind in _KINDS.items():
        if type(config) is kind.config:
            return name
    kinds = ", ".join(kind.config.__name__ for kind in AGENTS.values())
    raise ConfigurationError(f"config must be one of {kinds}, got {shown(config)}")


def agent_class(config: AnyConfig) -> type[AnyAgent]:
    """The agent's class for a configuration."""
    found: type[AnyAgent] = _KINDS[name_of(config)].agent
    return found


def default_config(agent: object) -> AnyConfig:
    """The default configuration of an agent's class, or of an agent; PPO's for anything else."""
    for kind in reversed(AGENTS.values()):  # TD3 is a DDPG, too
        if isinstance(agent, type) and issubclass(agent, kind.agent):
            made: AnyConfig = kind.config()
            return made
    return PPOConfig()


def make_agent(
    kind: type[AnyAgent],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    config: AnyConfig,
    *,
    seed: int,
    **parts: Any,
) -> AnyAgent:
    """Make an agent of this class, with those custom parts that are not None.

    Raises:
        ConfigurationError: if the agent has no such part.
        EnvError: if a space is not supported.
    """
    name = name_of(config)
    given = {part: value for part, value in parts.items() if value is not None}
    for part in given:
        if part not in _KINDS[name].parts:
            raise ConfigurationError(f"{part}=... is for other agents than {name}: leave it out")
    make: Callable[..., AnyAgent] = kind
    return make(observation_space, action_space, config, seed=seed, **given)


def explaining_memory(
    config: AnyConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> AbstractContextManager[None]:
    """A context in which errors for lack of memory say which field of the configuration to lower."""
    return explaining(partial(_KINDS[name_of(config)].memory_needs, config, observation_space, action_space))


def config_from_json(agent: str, settings: dict[str, Any]) -> AnyConfig:
    """The configuration with these fields.

    Raises:
        KeyError: if there is no such agent.
        ConfigurationError: if a field is invalid.
    """
    if agent == Policies.name:
        policies = {name: PPOConfig(**each) for name, each in settings["policies"].items()}
        return PoliciesConfig(policies, settings["agents"], tuple(settings.get("played", ())))
    made: AnyConfig = AGENTS[agent].config(**settings)
    return made


def critics_see(config: AnyConfig, policy_of: PolicyOf | None = None) -> ObservesOfAgents:
    """The `critic_observes` of these settings; arguments and result are those of `critics_of`."""
    if isinstance(config, PoliciesConfig):
        return critics_of(config.policies, config.agents.get if config.agents else policy_of)
    return critics_of({"": config}, policy_of)


def replaced(config: AnyConfig, **changes: Any) -> AnyConfig:
    """The configuration with other values for some fields; for several policies, the fields of each."""
    return config.replaced(**changes) if isinstance(config, PoliciesConfig) else replace(config, **changes)


def agents_by_policy(agent: AnyAgent, name: str = "policy") -> dict[str, Any]:
    """The agent by the name of its policy; for several policies, all agents."""
    return dict(agent.agents) if isinstance(agent, Policies) else {name: agent}
