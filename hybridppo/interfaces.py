"""Protocols between the parts, so that neither agent nor placement knows its caller."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

from torch import Tensor, nn

from hybridppo.distributions.base import Distribution
from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.spaces.arrays import Array

Metrics = dict[str, float]


class SamplingActor(Protocol):
    """An actor for a sampler: on any device, called with host arrays."""

    version: int
    """Version of the actor's parameters."""

    def __call__(self, observations: Array) -> Array:
        """`[N, obs] -> [N, outputs]`, float32; the result may be reused by the next call."""


class Agent(Protocol):
    """The learner of one policy or several: `update(rollout) -> metrics`."""

    observation_space: Any
    action_space: Any
    actor: nn.Module
    distribution: Distribution
    version: int
    """Number of updates so far."""
    memory: MemoryLayout | None
    """Layout of its actor's state, if the actor is recurrent; else None."""
    should_stop: Callable[[], bool]
    """Called during an update, so that a long one can be stopped."""

    @property
    def records_graphs(self) -> bool:
        """Whether repeated work of a CUDA device is recorded as graphs."""

    def anneal(self, progress: float) -> None:
        """Apply schedules; `progress` goes from 0 at the start of training to 1 at its end."""

    def drop_episodes(self) -> None:
        """Forget what it keeps of unfinished episodes: the next rollout begins new ones."""
        ...

    def update(self, experience: Any, /) -> Metrics:
        """Learn from a rollout, or from other data of its runner, on the agent's device, and add 1 to `version`.

        Raises:
            Stopped: if `should_stop` returns True. The agent is then as before the call.
        """

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for an exact resume: tensors, and a JSON object."""

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the result of `state`."""


def has_policies(agent: Agent) -> TypeGuard[Any]:
    """Whether an agent has several policies: `agents` by policy, their `columns`, and `names_of(policy)`."""
    return hasattr(agent, "agents")


def agents_of(agent: Agent) -> list[Any]:
    """The agents of all policies; the agent itself if it has one policy.

    Each also has its `critic`, its flat `parameters`, the `optimizer` that steps these, and all `modules` with tensors.
    """
    return list(agent.agents.values()) if has_policies(agent) else [agent]
