"""Several policies that are trained together: an agent for each, in the same environments.

    config = PoliciesConfig({"tagger": PPOConfig(), "runner": PPOConfig()}).with_agents(environments.agents)
    agent = Policies(environments.observation_space, environments.action_space, config, seed=0)

Each agent of an environment is a column of the rollouts and has one policy, which learns from its own columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.agents.agent import NO_STATE, Seed, generator_of, save_agent
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.distributions.base import Distribution, as_dtype
from hybridppo.distributions.of_policies import DistributionOfPolicies
from hybridppo.errors import CheckpointError, ConfigurationError, HybridPPOError, shown
from hybridppo.interfaces import Metrics
from hybridppo.networks.actors import PoliciesActor
from hybridppo.rollouts.rollout import MemoryLayout, Rollout
from hybridppo.run_directory.files import finite, with_nan
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.spaces.rows import CriticObserves, ObservesOfAgents, RowLayout
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import part_of, whole

PolicyOf = Callable[[Any], str]
"""Maps the name of an agent, or the id that its environment has for it, to the name of its policy."""

ALIKE = ("num_envs", "num_steps", "precision", "torch_threads", "squash_actions")
"""Fields that must have the same value in all configurations, because the policies are sampled together."""
REFUSED = ("episodes_per_rollout", "use_sde")
"""Fields that are not supported with several policies."""
OF_A_MEMORY = ("memory", "recurrent", "sequence_length")
"""Fields that follow from the policy with the largest state; from any policy if none is recurrent."""


def policy_by_name(agent: str) -> str:
    """The name of an agent without its number: `tagger` for `tagger_3`."""
    name, _, number = agent.rpartition("_")
    return name if name and number.isdigit() else agent


def by_id(policy_of: PolicyOf | None) -> PolicyOf | None:
    """A function of names that gives a user's function the agent's own id, which may be a number."""
    return partial(_policy_of_id, policy_of) if callable(policy_of) else policy_of


def _policy_of_id(policy_of: PolicyOf, name: str) -> str:
    return policy_of(getattr(name, "id", name))


def policies_of(agents: Sequence[str], policies: Iterable[str], policy_of: PolicyOf | None = None) -> dict[str, str]:
    """The policy of each agent of an environment, by the agents' names in their order.

    Args:
        agents: names of the agents.
        policies: names of the policies.
        policy_of: returns the policy of an agent; None for `policy_by_name`.

    Raises:
        ConfigurationError: if there is only one agent, the policy of an agent is missing, or a policy has no agent.
    """
    if not agents:
        raise ConfigurationError("several policies need a multi-agent environment, and this one has one agent")
    found = {name: (policy_of or policy_by_name)(name) for name in agents}
    policies, needed = tuple(policies), tuple(dict.fromkeys(found.values()))
    if lost := [name for name, policy in found.items() if policy not in policies]:
        raise ConfigurationError(
            f"agent {lost[0]!r} has the policy {found[lost[0]]!r}, and config has {', '.join(policies)}: give one for "
            f"each kind of agents, {', '.join(map(str, needed))}, or say with policy_of=... which policy an agent has"
        )
    if idle := [policy for policy in policies if policy not in needed]:
        raise ConfigurationError(
            f"policy {idle[0]!r} has no agent, since all agents have {', '.join(needed)}: leave it out, or say with "
            "policy_of=... which agents have it"
        )
    return found


def columns_of(agents: Mapping[str, str], policies: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """For each policy, the indices of its agents in an environment; `agents` is the result of `policies_of`."""
    return {policy: tuple(i for i, own in enumerate(agents.values()) if own == policy) for policy in policies}


def spaces_of_policy(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], policy: str, agents: Mapping[str, str]
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The observation space and the action space of the agents of a policy.

    Args:
        observation_space: space of the environment's agents.
        action_space: space of the environment's agents.
        policy: name of the policy.
        agents: the result of `policies_of`.

    Raises:
        ConfigurationError: if the agents of the policy have different spaces.
    """
    own, found = [name for name, of_agent in agents.items() if of_agent == policy], []
    for kind, space in (("observation", observation_space), ("action", action_space)):
        if isinstance(space, SpacesOfAgents):
            if difference := space.difference(own):
                kinds = ", ".join(f'"{name}": PPOConfig()' for name in dict.fromkeys(map(policy_by_name, own)))
                raise ConfigurationError(
                    f"agents of one policy have the same spaces, and of policy {policy!r} the {kind} space "
                    f"{difference}. Train a policy for each kind, config={{{kinds}}} (with policy_of=...), or make "
                    "their spaces alike, as by padding (supersuit's pad_observations_v0 and pad_action_space_v0 do)"
                )
            space = space.spaces[own[0]]
        found.append(space)
    return found[0], found[1]


def critics_of(policies: Mapping[str, Any], policy_of: Callable[[str], str | None] | None = None) -> ObservesOfAgents:
    """The `critic_observes` of agents: one value for all, or a function of an agent's name.

    Args:
        policies: the hyperparameters of each policy; without this field, a critic sees the agent's own observation.
        policy_of: returns the policy of an agent; None for `policy_by_name`.

    Raises:
        ConfigurationError: if `policy_of` is no function.
    """
    if policy_of is not None and not callable(policy_of):
        raise ConfigurationError(
            f"policy_of must be a function of an agent's name (whose.get for a dict), got {shown(policy_of)}"
        )
    each: dict[str | None, CriticObserves]
    each = {name: getattr(config, "critic_observes", "own") for name, config in policies.items()}
    found: CriticObserves = next(iter(each.values()), "own")
    return found if {*each.values()} <= {found} else partial(_critic_of, each, policy_of or policy_by_name)


def _critic_of(
    policies: Mapping[str | None, CriticObserves], policy_of: Callable[[str], str | None], agent: str
) -> CriticObserves:
    return policies.get(policy_of(agent), "own")  # an unknown policy is refused later


@dataclass(frozen=True)
class PoliciesConfig:
    """The hyperparameters of several policies.

    Raises:
        ConfigurationError: with the field that is invalid or not supported.
    """

    policies: Mapping[str, PPOConfig]
    """The hyperparameters by the names of the policies."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """The policy of each agent of an environment, by the agents' names in their order; empty until the environment is
    known."""
    played: tuple[str, ...] = ()
    """The policies that act but do not learn."""

    def __post_init__(self) -> None:
        if not self.policies:
            raise ConfigurationError("config must have a configuration for each policy, and has none")
        for name, config in self.policies.items():
            if not isinstance(name, str) or not name or {*name} & {*"./"}:
                raise ConfigurationError(f"a policy's name must be text without dots and slashes, got {shown(name)}")
            if not isinstance(config, PPOConfig):
                raise ConfigurationError(f"each policy needs a PPOConfig, and config[{name!r}] is {shown(config)}")
            if refused := [each for each in REFUSED if getattr(config, each)]:
                raise ConfigurationError(
                    f"config[{name!r}]: {refused[0]} does not work with several policies: leave it out"
                )
        recurrent = [config for config in self.policies.values() if config.recurrent is not None]
        for each, whose in (*dict.fromkeys(ALIKE, self.policies.values()).items(), ("sequence_length", recurrent)):
            values = dict.fromkeys(getattr(config, each) for config in whose)
            if len(values) > 1:
                memory = " that are recurrent" if whose is recurrent else ""
                raise ConfigurationError(
                    f"{each} must be the same for all policies{memory}, which are sampled together: got "
                    f"{', '.join(map(str, values))}"
                )

    def __getattr__(self, name: str) -> Any:
        """The common value of a field in `ALIKE` or `REFUSED`; for `OF_A_MEMORY`, that of the largest state."""
        if name in ALIKE or name in REFUSED:
            return getattr(next(iter(self.policies.values())), name)
        if name in OF_A_MEMORY:
            largest = max(self.policies.values(), key=lambda each: each.memory.state_size if each.memory else 0)
            return getattr(largest, name)
        raise AttributeError(f"the hyperparameters of several policies have no {name}: it is each policy's own")

    def with_policies(self, policies: Mapping[str, PPOConfig]) -> "PoliciesConfig":
        """The hyperparameters with others of the policies."""
        return replace(self, policies=policies)

    def with_agents(self, agents: Sequence[str], policy_of: PolicyOf | None = None) -> "PoliciesConfig":
        """The hyperparameters for environments with these agents.

        Args:
            agents: names of the agents.
            policy_of: returns the policy of an agent; None for `policy_by_name`.

        Raises:
            ConfigurationError: as `policies_of`.
        """
        return replace(self, agents=policies_of(agents, self.policies, policy_of))

    def require_agents(self, agents: Sequence[str], error: type[HybridPPOError]) -> None:
        """Refuse environments with other agents than those that the hyperparameters are for."""
        if [*self.agents] != [*agents]:
            raise error(
                f"the environment is not the one that was trained in: its agents were {', '.join(self.agents)} and are "
                f"{', '.join(agents) or 'one'}"
            )

    @property
    def columns(self) -> dict[str, tuple[int, ...]]:
        """For each policy, the indices of its agents in an environment."""
        return columns_of(self.agents, self.policies)

    def to_json(self) -> dict[str, Any]:
        """The hyperparameters as a JSON object."""
        return {
            "policies": {name: config.to_json() for name, config in self.policies.items()},
            "agents": dict(self.agents),
            "played": list(self.played),
        }


class Policies:
    """An agent for each of several policies.

    Args:
        observation_space: space of all agents of an environment, or `SpacesOfAgents`.
        action_space: space of all agents of an environment, or `SpacesOfAgents`.
        config: the hyperparameters, with the agents of the environment (`with_agents`).
        seed: seed of the initial parameters and of the order of minibatches, different for each policy.
    """

    name: ClassVar[str] = "policies"
    """Name of the agent in files."""
    config_type = PoliciesConfig
    custom_parts: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[Mapping[str, object]] = {}
    """Custom parts that a file cannot hold: none."""

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: PoliciesConfig, *, seed: int = 0
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.agents: dict[str, PPO] = {
            name: PPO(
                *spaces_of_policy(observation_space, action_space, name, config.agents),
                of_policy,
                seed=seed_of(seed, f"agent {name}"),
            )
            for name, of_policy in config.policies.items()
        }
        self._config = config
        self.memory: MemoryLayout | None = config.memory
        self.columns = config.columns
        agents, columns = list(self.agents.values()), list(self.columns.values())
        self._any = agents[0]
        self.distribution: Distribution = self._any.distribution
        self._layouts: list[RowLayout] | None = None
        if isinstance(observation_space, SpacesOfAgents) or isinstance(action_space, SpacesOfAgents):
            self._layouts = [ObservationEncoder(agent.observation_space).layout for agent in agents]
            has_same = all(agent.given_space == self._any.given_space for agent in agents)
            if isinstance(action_space, SpacesOfAgents) or not has_same:  # else only critics see other things
                distributions, spaces = zip(*((each.distribution, each.action_space) for each in agents), strict=True)
                self.distribution = DistributionOfPolicies(distributions, spaces, columns)
        self.actor: nn.Module = PoliciesActor([agent.actor for agent in agents], columns, self._layouts)
        self.version = 0
        self._learned: dict[str, Metrics] = {}
        """Metrics of the policies that have learned in an unfinished update."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {agent}" for name, agent in self.agents.items())

    @property
    def config(self) -> PoliciesConfig:
        """The hyperparameters; new ones are set in the agents, too."""
        return self._config

    @config.setter
    def config(self, config: PoliciesConfig) -> None:
        for name, agent in self.agents.items():
            agent.config = config.policies[name]
        self._config = config

    @property
    def should_stop(self) -> Callable[[], bool]:
        """Called during the update of every agent."""
        return self._any.should_stop

    @should_stop.setter
    def should_stop(self, should_stop: Callable[[], bool]) -> None:
        for agent in self.agents.values():
            agent.should_stop = should_stop

    @property
    def records_graphs(self) -> bool:
        """Whether all agents record graphs."""
        return all(agent.records_graphs for agent in self.agents.values())

    def like(self, config: PoliciesConfig, *, seed: int = 0) -> "Policies":
        """New agents with the same spaces."""
        return Policies(self.observation_space, self.action_space, config, seed=seed)

    def act(
        self,
        observation: Any,
        deterministic: bool = True,
        action_mask: Any = None,
        state: Any = NO_STATE,
        batch: bool = False,
        seed: Seed = None,
    ) -> Any:
        """The actions of the present agents, by name; with `state`, a pair of them and the next states.

        Args:
            observation: observations by the agents' names.
            deterministic: as in the `act` of one agent.
            action_mask: masks by the agents' names, if the policies were trained with masks.
            state: states by the agents' names; None starts an episode.
            batch: whether each agent has a batch of observations and of masks.
            seed: as in the `act` of one agent.
        """
        seed = generator_of(seed)
        masks = {} if action_mask is None else action_mask
        has_state = state is not NO_STATE
        states = (state or {}) if has_state else dict.fromkeys(observation, NO_STATE)
        acted = {
            name: self.agent_of(name).act(own, deterministic, masks.get(name), states.get(name), batch, seed)
            for name, own in observation.items()
        }
        return tuple({name: pair[i] for name, pair in acted.items()} for i in range(2)) if has_state else acted

    def agent_of(self, name: Any) -> PPO:
        """The agent with the policy of this agent of an environment, whose name may be a number.

        Raises:
            ConfigurationError: if there is none.
        """
        policy = self.config.agents.get(str(name), policy_by_name(str(name)))
        if policy not in self.agents:
            raise ConfigurationError(
                f"no policy is for an agent {name!r}: the agents are {', '.join(self.config.agents)}, and the policies "
                f"{', '.join(self.agents)}"
            )
        return self.agents[policy]

    def names_of(self, policy: str) -> list[str]:
        """The names of the agents of an environment that have a policy."""
        return [name for name, own in self.config.agents.items() if own == policy]

    def save(self, path: str | Path) -> Path:
        """Write all agents to one file that `hybridppo.load` reads."""
        return save_agent(self, path)

    def anneal(self, progress: float) -> None:
        """As `PPO.anneal`, for each agent."""
        for agent in self.agents.values():
            agent.anneal(progress)

    def drop_episodes(self) -> None:
        """As `PPO.drop_episodes`, for each agent."""
        for agent in self.agents.values():
            agent.drop_episodes()

    def update(self, rollout: Any) -> Metrics:
        """Update every agent that learns from its own columns; return the metrics of all by policy and name.

        Raises:
            Stopped: if a stop was requested. Agents that have learned do not learn from the same rollout again.
        """
        for name, agent in self.agents.items():
            if name not in self._learned and name not in self.config.played:
                self._learned[name] = agent.update(rollout.map_parts(partial(self._own_rows, name)))
        self.version += 1
        learned, self._learned = self._learned, {}
        return {f"{name}/{what}": value for name, metrics in learned.items() for what, value in metrics.items()}

    def _own_rows(self, name: str, rollout: Rollout) -> Rollout:
        """The columns of a policy, with its own sizes and state."""
        agent, own = self.agents[name], torch.tensor(self.columns[name], device=rollout.rewards.device)
        part = rollout.of_agents(own, len(self.config.agents))
        if self.memory is not None:
            memory = agent.memory
            states = None if memory is None else part.states[..., : memory.state_size].contiguous()
            part = part.with_columns(states=states, starts=None if memory is None else part.starts)
        if self._layouts is None:
            return part
        layout = ObservationEncoder(agent.observation_space).layout
        part = part.with_columns(
            observations=layout.own(part.observations).contiguous(),
            final_observations=layout.own(part.final_observations).contiguous(),
        )
        if not isinstance(self.distribution, DistributionOfPolicies):
            return part
        actions = part.actions[..., : int(np.prod(agent.distribution.action_shape))]
        actions = actions.reshape(*actions.shape[:-1], *agent.distribution.action_shape)
        return part.with_columns(actions=as_dtype(actions, agent.distribution.action_dtype).contiguous())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state of all agents: tensors by name, and a JSON object."""
        parts = {name: agent.state() for name, agent in self.agents.items()}
        tensors = {
            f"policies.{name}.{what}": tensor
            for name, (of_agent, _) in parts.items()
            for what, tensor in of_agent.items()
        }
        return tensors, {
            "version": self.version,
            "policies": {name: state for name, (_, state) in parts.items()},
            "learned": {name: finite(metrics) for name, metrics in self._learned.items()},
        }

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            CheckpointError: if there are tensors of an unknown policy.
        """
        parts = {name: part_of(tensors, f"policies.{name}.") for name in self.agents}
        if sum(map(len, parts.values())) != len(tensors):
            raise CheckpointError(f"it has tensors of others than the policies {', '.join(parts)}")
        for name, agent in self.agents.items():
            agent.load_state(parts[name], state["policies"][name])
        self.version = whole(state, "version")
        self._learned = {name: with_nan(state["learned"][name]) for name in self.agents if name in state["learned"]}
