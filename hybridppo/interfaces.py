"""What the parts ask of each other, so that neither agent nor placement knows who calls it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar, cast

from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.replay import Replay
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]
Metrics = dict[str, float]


class SamplingActor(Protocol):
    """An actor as a sampler sees it: on whatever device, called with host arrays."""

    version: int
    """The version of the parameters that act."""

    def __call__(self, observations: Array) -> Array:
        """`[N, obs] -> [N, outputs]`, float32; the result may be reused by the next call."""
        ...


class Experience(Protocol):
    """What an agent learns from, as a placement sees it: tensors on one device."""

    @property
    def observations(self) -> Tensor:
        """Some of them, which say where all are."""
        ...

    @property
    def num_bytes(self) -> int:
        """The size of all."""
        ...

    def map(self, function: Callable[[Tensor], Tensor], /) -> Any:
        """The same with `function` applied to each."""
        ...


SomeExperience = TypeVar("SomeExperience", bound=Experience)


class Optimizer(Protocol):
    """An optimizer as a placement sees it: its tensors, which move with the parameters."""

    state: Any
    """Mapping of a parameter to its tensors by name, as in `torch.optim`."""


class Agent(Protocol):
    """What is trained, by one policy or several: `update(rollout) -> metrics`."""

    observation_space: Any
    action_space: Any
    actor: nn.Module
    distribution: Distribution
    version: int
    """How many updates the parameters have had."""
    memory: MemoryLayout | None
    """What its actor remembers, where it has a memory."""
    should_stop: Callable[[], bool]
    """Asked in the course of an update, so that a long one can be broken off."""
    records_graphs: bool
    """Whether what a CUDA device is to do again and again is recorded (`cuda_graphs`)."""

    def anneal(self, progress: float) -> None:
        """Set what is scheduled; `progress` goes from 0 at the start of training to 1 at its end."""
        ...

    def update(self, experience: Any, /) -> Metrics:
        """Learn from a rollout, or what else its runner brings, on the agent's own device, and add one to `version`.

        Raises:
            Stopped: where `should_stop` says so. The agent is as it was before, as if nothing had begun.
        """
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on exactly: tensors, and what JSON can hold."""
        ...

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        ...


class AgentOfOnePolicy(Agent, Protocol):
    """An algorithm: its networks, its optimizer, and the rest of an agent."""

    critic: nn.Module
    parameters: FlatParameters

    @property
    def modules(self) -> list[nn.Module]:
        """All modules that have tensors, actor and critic among them."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """Steps `parameters`."""
        ...


class AgentOfPolicies(Agent, Protocol):
    """An agent for each of several policies, which are sampled together."""

    @property
    def agents(self) -> Mapping[str, AgentOfOnePolicy]:
        """By the names of the policies."""
        ...

    @property
    def columns(self) -> Mapping[str, Sequence[int]]:
        """Of each policy, which agents of an environment are its own."""
        ...

    def names_of(self, policy: str) -> list[str]:
        """The names of the agents of an environment that have a policy."""
        ...


def has_policies(agent: Agent) -> TypeGuard[AgentOfPolicies]:
    """Whether an agent is of several policies, by what it has."""
    return hasattr(agent, "agents")


def agents_of(agent: Agent) -> list[AgentOfOnePolicy]:
    """The agents of several policies; or the agent itself, if it is of one."""
    return list(agent.agents.values()) if has_policies(agent) else [cast(AgentOfOnePolicy, agent)]


class ReplaySettings(Protocol):
    """What of an off-policy agent's configuration its runner obeys."""

    @property
    def learning_starts(self) -> int:
        """Environment steps before the first update."""
        ...

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps that a line of metrics is of."""
        ...

    @property
    def n_steps(self) -> int:
        """How many steps a target adds up."""
        ...


class OffPolicyAgent(AgentOfOnePolicy, Protocol):
    """An algorithm that learns from a replay buffer, whose runner is `runners/off_policy.py`."""

    @property
    def config(self) -> ReplaySettings:
        """The settings."""
        ...

    @property
    def exploration(self) -> Distribution:
        """What a sampler draws actions by, in place of `distribution`."""
        ...

    def new_replay(self) -> Replay:
        """An empty replay buffer, once the placement has been prepared."""
        ...

    def minibatches(self, replay: Replay, /) -> "Iterator[Experience]":
        """What an update learns from, in parts, where the replay buffer lies."""
        ...

    def require_finite(self) -> object:
        """Refuse to go on with an agent that is ruined.

        Raises:
            TrainingError: where a loss or a parameter is no finite number any more.
        """
        ...

    def take_metrics(self) -> Metrics:
        """What was measured since the last call.

        Raises:
            TrainingError: as `require_finite`.
        """
        ...


def learns_from_replay(agent: Agent) -> TypeGuard[OffPolicyAgent]:
    """Whether an agent learns from a replay buffer, by what it can do."""
    return hasattr(agent, "new_replay")
