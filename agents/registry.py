"""The agents that there are, by name: the type of a configuration chooses one. A further agent is one line here."""

from typing import Any

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.errors import ConfigurationError, shown

AGENTS: dict[str, tuple[type[PPO], type[PPOConfig]]] = {"ppo": (PPO, PPOConfig)}
"""Agent and configuration, by the name that `config.json` has for them."""


def name_of(config: PPOConfig) -> str:
    """The name of the agent that a configuration is for.

    Raises:
        ConfigurationError: where it is a configuration of none.
    """
    for name, (_, kind) in AGENTS.items():
        if type(config) is kind:
            return name
    kinds = ", ".join(kind.__name__ for _, kind in AGENTS.values())
    raise ConfigurationError(f"config must be one of {kinds}, got {shown(config)}")


def agent_class(config: PPOConfig) -> type[PPO]:
    """The agent that a configuration is for."""
    return AGENTS[name_of(config)][0]


def config_from_json(agent: str, settings: dict[str, Any]) -> PPOConfig:
    """The configuration whose fields these are.

    Raises:
        KeyError: where there is no such agent.
        ConfigurationError: where a field cannot be what it is.
    """
    return AGENTS[agent][1](**settings)
