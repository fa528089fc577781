"""What the parts ask of each other, so that neither agent nor placement knows who calls it."""

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
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


class Optimizer(Protocol):
    """An optimizer as a placement sees it: its tensors, which move with the parameters."""

    state: Any
    """Mapping of a parameter to its tensors by name, as in `torch.optim`."""


class Agent(Protocol):
    """An algorithm: its networks, its optimizer, `update(rollout) -> metrics`."""

    actor: nn.Module
    critic: nn.Module
    distribution: Distribution
    parameters: FlatParameters
    version: int
    """How many updates the parameters have had."""
    memory: MemoryLayout | None
    """What its actor remembers, where it has a memory."""
    should_stop: Callable[[], bool]
    """Asked in the course of an update, so that a long one can be broken off."""

    @property
    def modules(self) -> list[nn.Module]:
        """All modules that have tensors, actor and critic among them."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """Steps `parameters`."""
        ...

    def anneal(self, progress: float) -> None:
        """Set what is scheduled; `progress` goes from 0 at the start of training to 1 at its end."""
        ...

    def update(self, rollout: Rollout) -> Metrics:
        """Learn from a rollout on the agent's own device, and add one to `version`.

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
