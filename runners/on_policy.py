"""What an on-policy agent learns from: each rollout, once."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hybridppo.errors import DistributedError, EnvError, LearnerLostError
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.placement import Placement
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.process_group import SingleProcess
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import BaseSampler
from hybridppo.runners.turns import ByTurns
from hybridppo.system.validation import part_of, whole


class OnPolicyData:
    """The rollout that an agent learns from.

    Args:
        agent: the agent, prepared by the placement.
        sampler: the sampler of rollouts.
        placement: the placement.
        group: the other processes that train together with this one.
    """

    def __init__(self, agent: Agent, sampler: BaseSampler, placement: Placement, group: SingleProcess) -> None:
        self._agent, self._sampler, self._placement, self._group = agent, sampler, placement, group
        self.rollout: Any = None
        """The rollout that was sampled and not learned from; None if there is none."""
        self.lag = 0
        """The largest policy lag in this iteration."""
        self._begins_anew = False
        self._metrics: Metrics = {}

    @property
    def is_due(self) -> bool:
        """Whether there is sampled data that was not learned from."""
        return self.rollout is not None

    def is_complete(self, num_steps: int, share_sampled: float) -> bool:
        """Whether an iteration with so many steps is complete."""
        return num_steps > 0

    def sample(self, turns: ByTurns, is_last: Callable[[], bool]) -> None:
        """Sample a rollout."""
        self.rollout, _ = turns.next(is_last)
        if self._begins_anew:
            self._agent.drop_episodes()
            self._begins_anew = False

    def learn(self) -> None:
        """Learn from the rollout."""
        with self._placement.learning(self._agent):
            self.lag = self._agent.version - self.rollout.version
            self._metrics = self._agent.update(self._placement.to_learner(self.rollout))
        self.rollout = None

    def metrics(self) -> Metrics:
        """The metrics of an iteration's updates."""
        return self._metrics

    def begin_anew(self) -> None:
        """The next rollout begins new episodes, because the environments could not be restored."""
        self._begins_anew = True

    def is_whole_after(self, error: BaseException) -> bool:
        """Whether an error came from outside an update: from environments, or from another process between updates.

        After the loss of a worker, the last checkpoint stays the newest, and a resume from it gives the same bits.
        """
        is_of_environments = isinstance(error, EnvError) and not isinstance(error, WorkerLostError)
        is_of_another = isinstance(error, DistributedError) and not isinstance(error, LearnerLostError)
        return is_of_environments or (is_of_another and not self.is_due)

    def before_checkpoint(self, directory: Any, keep: int) -> None:
        """Write what belongs to the next checkpoint and stands in files beside it. Here, there is nothing."""

    def after_checkpoint(self, is_saved: bool) -> None:
        """Delete what no kept checkpoint needs, if the checkpoint is on the disk."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`: tensors of all processes, and a JSON object."""
        if self.rollout is None:
            return {}, {"version": None}
        tensors = self._group.gathered({f"runner.{name}": each for name, each in self.rollout.tensors().items()})
        return part_of(tensors, "runner."), {"version": self.rollout.version}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], directory: Any) -> None:
        """Restore a saved state."""
        if state["version"] is not None:
            rollout = Rollout(**tensors, version=whole(state, "version"))
            self.rollout = self._sampler.own_parts(rollout)
