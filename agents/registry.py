"""The agents by name. The type of a configuration chooses the agent; another agent is one line here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch

from hybridppo.agents.agent import PolicyAgent
from hybridppo.agents.ddpg import DDPG, TD3, DDPGConfig
from hybridppo.agents.policies import Policies, PoliciesConfig, PolicyOf, critics_of
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.errors import ConfigurationError, HybridPPOError, OutOfMemoryError, message_of, shown
from hybridppo.spaces.rows import ObservesOfAgents

AnyAgent = PPO | DDPG | Policies
"""Every agent; TD3 is a DDPG."""
AnyConfig = PPOConfig | DDPGConfig | PoliciesConfig
"""Every configuration; TD3's is a DDPG's."""


OF_PPO = PPO.custom_parts[:-1]
"""PPO's arguments for custom parts, besides schedules."""
AGENTS: dict[str, type[PPO] | type[DDPG]] = {kind.name: kind for kind in (PPO, DDPG, TD3)}
"""The agents by their names in `config.json` and on the command line."""


def agent_class(config: AnyConfig) -> type[AnyAgent]:
    """The agent's class for a configuration.

    Raises:
        ConfigurationError: if it is not the configuration of an agent.
    """
    for kind in (TD3, DDPG, PPO, Policies):  # TD3's is a DDPG's, too
        if isinstance(config, kind.config_type):
            return kind
    kinds = ", ".join(kind.config_type.__name__ for kind in AGENTS.values())
    raise ConfigurationError(f"config must be one of {kinds}, got {shown(config)}")


def default_config(agent: object) -> AnyConfig:
    """The default configuration of an agent's class, or of an agent; PPO's for anything else."""
    return getattr(agent, "config_type", PPOConfig)()


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

    A configuration of the library becomes one of the class's own type (`config_type`).

    Raises:
        ConfigurationError: if the agent has no such part, or a subclass takes a name of the library's.
        EnvError: if a space is not supported.
    """
    given = {part: value for part, value in parts.items() if value is not None}
    if others := [part for part in given if part not in kind.custom_parts]:
        raise ConfigurationError(
            f"{others[0]}=... is for other agents than {kind.name}: leave it out, or override a method of a subclass "
            "(agent=..., docs/own_loss.md)"
        )
    make: Callable[..., AnyAgent] = kind
    if issubclass(kind, PolicyAgent):
        config = config.in_class(kind.config_type)
    made = make(observation_space, action_space, config, seed=seed, **given)
    if isinstance(made, PolicyAgent):
        made.require_own_names()
    return made


_OUT_OF_MEMORY = (
    "can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED", "Storage size calculation"
)  # fmt: skip
"""Parts of torch's messages in a bare RuntimeError for lack of memory: CPU, Windows, CUDA and its libraries."""


@contextmanager
def explaining_memory() -> Iterator[None]:
    """A context in which errors for lack of memory say which fields of the configuration to lower.

    Raises:
        OutOfMemoryError: in place of torch's and NumPy's errors.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        is_known |= any(part in message_of(error) for part in _OUT_OF_MEMORY)
        if isinstance(error, HybridPPOError) or not is_known:
            raise
        said = (message_of(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = "lower num_envs, num_steps, hidden_sizes, or buffer_size of an off-policy agent"
        advice = getattr(error, "__notes__", ())
        raise OutOfMemoryError("; ".join([f"out of memory: {said}: {remedy}", *advice])) from error


def config_from_json(agent: str, settings: dict[str, Any]) -> AnyConfig:
    """The configuration with these fields.

    Raises:
        KeyError: if there is no such agent.
        ConfigurationError: if a field is invalid.
    """
    if agent == Policies.name:
        policies = {name: PPOConfig(**each) for name, each in settings["policies"].items()}
        return PoliciesConfig(policies, settings["agents"], tuple(settings.get("played", ())))
    return AGENTS[agent].config_type(**settings)


def critics_see(config: AnyConfig, policy_of: PolicyOf | None = None) -> ObservesOfAgents:
    """The `critic_observes` of these hyperparameters; arguments and result are those of `critics_of`."""
    return critics_of(config.policies, config.agents.get if config.agents else policy_of)


def replaced(config: AnyConfig, **changes: Any) -> AnyConfig:
    """The configuration with other values for some fields of each policy."""
    return config.with_policies({name: replace(each, **changes) for name, each in config.policies.items()})


def agents_by_policy(agent: AnyAgent, name: str = "policy") -> dict[str, Any]:
    """The agent by the name of its policy; for several policies, all agents."""
    return dict(agent.agents) if isinstance(agent, Policies) else {name: agent}
