"""The agents that there are, by name: the type of a configuration chooses one. A further agent is one line here."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym

from hybridppo.agents.ddpg.config import DDPGConfig, TD3Config
from hybridppo.agents.ddpg.ddpg import DDPG, TD3
from hybridppo.agents.ddpg.memory import explaining_memory as explaining_memory_of_ddpg
from hybridppo.agents.policies import Policies, PoliciesConfig, spaces_of_policy
from hybridppo.agents.ppo.config import BEFORE_ITS_FIELD, PPOConfig
from hybridppo.agents.ppo.memory import explaining_memory as explaining_memory_of_ppo
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.errors import ConfigurationError, shown

AnyAgent = PPO | DDPG | Policies
"""Every agent; TD3 is a DDPG."""
AnyConfig = PPOConfig | DDPGConfig | PoliciesConfig
"""Every configuration; TD3's is a DDPG's."""


@dataclass(frozen=True)
class AgentKind:
    """What there is to know of an agent beside its name."""

    agent: type[Any]
    config: type[Any]
    explaining_memory: Callable[[Any, gym.Space[Any], gym.Space[Any]], AbstractContextManager[None]]
    """Within it, the want of memory is an error that says which field of the configuration to lower."""
    parts: tuple[str, ...] = ()
    """What the agent takes of one's own besides the configuration, by the names of its arguments."""
    before_its_field: Mapping[str, Any] = field(default_factory=dict)
    """What a run was that names no such field: where that is not the default of now."""


AGENTS: dict[str, AgentKind] = {
    "ppo": AgentKind(
        PPO,
        PPOConfig,
        explaining_memory_of_ppo,
        parts=("loss", "networks", "advantages", "modules", "schedules"),
        before_its_field=BEFORE_ITS_FIELD,
    ),
    "ddpg": AgentKind(DDPG, DDPGConfig, explaining_memory_of_ddpg, parts=("schedules",)),
    "td3": AgentKind(TD3, TD3Config, explaining_memory_of_ddpg, parts=("schedules",)),
}
"""By the name that `config.json` and the command line have for them."""


@contextlib.contextmanager
def _explaining_memory_of_policies(
    config: PoliciesConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, of_policy in config.policies.items():
            spaces = spaces_of_policy(observation_space, action_space, name, config.agents)
            stack.enter_context(explaining_memory_of_ppo(of_policy, *spaces))
        yield


_KINDS = {**AGENTS, Policies.name: AgentKind(Policies, PoliciesConfig, _explaining_memory_of_policies)}
"""With the agent of several policies, which nobody asks for by its name."""


def name_of(config: AnyConfig) -> str:
    """The name of the agent that a configuration is for.

    Raises:
        ConfigurationError: where it is a configuration of none.
    """
    for name, kind in _KINDS.items():
        if type(config) is kind.config:
            return name
    kinds = ", ".join(kind.config.__name__ for kind in AGENTS.values())
    raise ConfigurationError(f"config must be one of {kinds}, got {shown(config)}")


def agent_class(config: AnyConfig) -> type[AnyAgent]:
    """The agent that a configuration is for."""
    found: type[AnyAgent] = _KINDS[name_of(config)].agent
    return found


def default_config(agent: object) -> AnyConfig:
    """The configuration that an agent's class comes with: PPO's for what is none."""
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
    """An agent of this kind, with parts of one's own where they are not None.

    Raises:
        ConfigurationError: where such an agent takes no such part.
        EnvError: for spaces that are not supported.
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
    """Within it, the want of memory is an error that says which field of the configuration to lower."""
    return _KINDS[name_of(config)].explaining_memory(config, observation_space, action_space)


def config_from_json(agent: str, settings: dict[str, Any]) -> AnyConfig:
    """The configuration whose fields these are.

    Raises:
        KeyError: where there is no such agent.
        ConfigurationError: where a field cannot be what it is.
    """
    if agent == Policies.name:
        policies = {name: PPOConfig(**each) for name, each in settings["policies"].items()}
        return PoliciesConfig(policies, settings["agents"], tuple(settings.get("played", ())))
    made: AnyConfig = AGENTS[agent].config(**settings)
    return made


def config_of_run(agent: str, settings: dict[str, Any]) -> AnyConfig:
    """As `config_from_json`, of a run or a saved agent, which may have begun before there were all of the fields."""
    if agent == Policies.name:
        policies = {name: {**BEFORE_ITS_FIELD, **each} for name, each in settings["policies"].items()}
        return config_from_json(agent, {"agents": {}, **settings, "policies": policies})
    return config_from_json(agent, {**AGENTS[agent].before_its_field, **settings})


def replaced(config: AnyConfig, **changes: Any) -> AnyConfig:
    """The configuration with other values for some fields; of several policies, of each of theirs."""
    return config.replaced(**changes) if isinstance(config, PoliciesConfig) else replace(config, **changes)


def agents_by_policy(agent: AnyAgent, name: str = "policy") -> dict[str, Any]:
    """An agent by the name of its policy; of several policies, all agents."""
    return dict(agent.agents) if isinstance(agent, Policies) else {name: agent}
