"""What an agent learns from: each rollout once (on-policy), or a replay buffer after every few steps (off-policy).

    turn:       sample `train_frequency` steps of every environment; into the replay buffer; update
    iteration:  off-policy, turns until `steps_per_iteration` steps are done; on-policy, one turn of `num_steps`

Small turns update at every step; large turns sample first and then update. If the placement allows lag, the next turn
is sampled while the agent learns from the last.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from hybridppo.agents.ddpg import DDPG
from hybridppo.errors import ConfigurationError, EnvError, TrainingError
from hybridppo.interfaces import Agent, Metrics, SamplingActor
from hybridppo.placements.placement import Placement
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.replay_rows import ReplayRows
from hybridppo.runners.sampler import Sampler
from hybridppo.system.validation import whole


class OnPolicyData:
    """The rollout that an agent learns from, and when the next one is sampled.

    With `max_lag` 0, sampling and learning take turns. With 1, the next rollout begins before the agent learns from
    this one, so the parameters of a rollout are one update old (of the first one, 0). Above 1, workers continue by
    themselves with the newest parameters, up to `max_lag` rollouts ahead; what they sample depends on timing.

    Args:
        agent: the agent, prepared by the placement.
        sampler: the sampler of rollouts.
        placement: the placement.
    """

    def __init__(self, agent: Agent, sampler: Sampler, placement: Placement) -> None:
        self._agent, self._sampler, self._placement = agent, sampler, placement
        self.rollout: Any = None
        """The rollout that was sampled and not learned from; None if there is none."""
        self.lag = 0
        """The largest policy lag in this iteration."""
        self.seconds_overlapped = 0.0
        """The seconds that the sampler spent on this iteration's rollouts while the agent learned."""
        self._max_lag = placement.max_lag
        self._begins_anew = False
        self._metrics: Metrics = {}
        self._version_before: int | None = None
        """The agent's version before the update under way; None if there is none."""

    @property
    def is_due(self) -> bool:
        """Whether there is sampled data that was not learned from."""
        return self.rollout is not None

    def is_complete(self, num_steps: int, share_sampled: float) -> bool:
        """Whether an iteration with so many steps is complete."""
        return num_steps > 0

    def copying(self) -> float:
        """The seconds of copies so far that are not part of sampling; ahead, copies of single steps are part of it."""
        counters = self._placement.counters
        return counters.seconds_copying - (counters.seconds_crossing if self._max_lag else 0.0)

    def go_on(self) -> None:
        """Continue a paused rollout that comes after the present one."""
        if self._max_lag and self._sampler.is_paused:
            self._begin()

    def _acting(self) -> AbstractContextManager[SamplingActor]:
        # The parameters that began a rollout also finish it, unless workers go on by themselves.
        resumes = self._sampler.is_under_way and self._max_lag < 2
        return self._placement.resuming(self._agent) if resumes else self._placement.sampling(self._agent)

    def _begin(self) -> None:
        with self._acting() as actor:
            self._sampler.sample_async(actor)

    def _next(self, is_last: Callable[[], bool]) -> tuple[Rollout, int]:
        """The next rollout, or the rest of it, and the number of restarts of environments before another begins."""
        sampler = self._sampler
        if not self._max_lag:
            with self._acting() as actor:
                rollout = sampler.collect(actor)
            is_last()
            return rollout, sampler.counts.env_restarts
        start, copying = time.perf_counter(), self.copying()
        if self._max_lag > 1 or sampler.is_paused or not sampler.is_under_way:
            self._begin()
        rollout, restarts = sampler.sample_wait(), sampler.counts.env_restarts
        waited = time.perf_counter() - start - (self.copying() - copying)
        self.seconds_overlapped += max(0.0, sampler.seconds_filling - waited)
        if not is_last():
            self._begin()
        elif self._max_lag == 1:  # a longer training would begin the next rollout with the parameters before the update
            with self._acting() as actor:
                sampler.prepare(actor)
        return rollout, restarts

    def sample(self, is_last: Callable[[], bool]) -> None:
        """Sample a rollout, or the rest of it if it was broken off.

        Args:
            is_last: called when the rollout is there, before the next one begins.

        Raises:
            Stopped: if a stop was requested; the next call continues the rollout.
        """
        self.rollout, _ = self._next(is_last)
        if self._begins_anew:
            self._agent.drop_episodes()
            self._begins_anew = False

    def learn(self) -> None:
        """Learn from the rollout."""
        with self._placement.learning(self._agent):
            self._version_before = self._agent.version
            self.lag = self._agent.version - self.rollout.version
            self._metrics = self._agent.update(self._placement.to_learner(self.rollout))
        self.rollout = self._version_before = None

    def metrics(self) -> Metrics:
        """The metrics of an iteration's updates."""
        return self._metrics

    def begin_anew(self) -> None:
        """The next rollout begins new episodes, because the environments could not be restored."""
        self._begins_anew = True

    def is_whole_after(self, error: BaseException) -> bool:
        """Whether the agent is as it was between two updates: an error that ends an update undoes it."""
        return not isinstance(error, TrainingError) and self._version_before in (None, self._agent.version)

    @property
    def is_learning(self) -> bool:
        """Whether an update has begun and not ended."""
        return self._version_before is not None

    def before_checkpoint(self, directory: Any) -> None:
        """Write what belongs to the next checkpoint and stands in files beside it. Here, there is nothing."""

    def after_checkpoint(self, keep: int) -> None:
        """A checkpoint is on the disk: delete what the newest `keep` do not need."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`, tensors and a JSON object. Several processes always end an update."""
        if self.rollout is None:
            return {}, {"version": None}
        return self.rollout.columns(), {"version": self.rollout.version}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], directory: Any) -> None:
        """Restore a saved state."""
        if state["version"] is not None:
            rollout = Rollout(**tensors, version=whole(state, "version"))
            self.rollout = self._sampler.own_parts(rollout)


class OffPolicyData(OnPolicyData):
    """The replay buffer. Its rows are in append-only files beside the checkpoints.

    Args:
        agent: the agent, prepared by the placement.
        sampler: samples the steps of a turn.
        placement: the placement.
    """

    _agent: DDPG

    def __init__(self, agent: DDPG, sampler: Sampler, placement: Placement) -> None:
        super().__init__(agent, sampler, placement)
        if agent.config.num_envs != sampler.num_envs:
            raise ConfigurationError(
                f"an agent with a replay buffer learns from environments of one agent, and these have "
                f"{sampler.num_envs // agent.config.num_envs} each: train PPO in them (PPOConfig, --agent ppo)"
            )
        self.replay = agent.new_replay()
        if placement.max_lag > 1 and agent.config.n_steps > 1:
            raise ConfigurationError(
                f"n_steps={agent.config.n_steps} does not work with max_lag={placement.max_lag}, under which the steps "
                "of an environment are not one after the other in the replay buffer: use n_steps=1 or max_lag=1"
            )
        self._is_due = False
        self._restarts_seen = sampler.counts.env_restarts
        self._files: Any = None
        """The files of the rows, `ReplayRows`; None without a run directory."""
        self._needed_from: list[int] = []
        """The total of rows at each of the newest checkpoints."""

    @property
    def is_due(self) -> bool:
        """Whether there is a sampled turn that was not learned from."""
        return self._is_due

    def is_complete(self, num_steps: int, share_sampled: float) -> bool:
        """Whether the iteration, or the training, has all its steps."""
        return num_steps >= self._agent.config.steps_per_iteration or share_sampled >= 1.0

    def sample(self, is_last: Callable[[], bool]) -> None:
        """Sample a turn into the replay buffer."""
        try:
            rollout, restarts = self._next(is_last)
        except EnvError:
            self._agent.require_finite()  # else the environment would be blamed for actions that are not finite
            raise
        self.lag = max(self.lag, self._agent.version - rollout.version)
        # A rollout without steps, because all were restarted, never comes here; any restart cuts the sequence.
        # So does a rollout whose columns are of other environments than those of the last.
        if restarts != self._restarts_seen or rollout.versions is not None:
            self.replay.cut()
            self._restarts_seen = restarts
        is_with_learner = self.replay.device == self._placement.learning_device
        self.replay.add(self._placement.to_learner(rollout) if is_with_learner else rollout, rollout)
        self._is_due = self._sampler.counts.env_steps >= self._agent.config.learning_starts

    def learn(self) -> None:
        """Learn from minibatches of the replay buffer."""
        if not self._is_due:
            return
        agent, placement = self._agent, self._placement
        self._version_before = agent.version if agent.undoes_updates else -1
        with placement.learning(agent):
            agent.update(placement.to_learner(part) for part in agent.minibatches(self.replay))
        self._is_due, self._version_before = False, None

    def metrics(self) -> Metrics:
        """The metrics of an iteration's updates."""
        with self._placement.learning(self._agent):
            found = self._agent.take_metrics()
        self.lag = 0
        return {**found, "replay_size": self.replay.num_valid}

    def begin_anew(self) -> None:
        """As in the base: rows before and after belong to different episodes."""
        self.replay.cut()

    def before_checkpoint(self, directory: RunDirectory) -> None:
        """Write the new rows.

        Raises:
            OSError: if they cannot be written.
        """
        self._agent.require_finite()
        if self._files is None:
            self._open(directory, [])  # without the rest of a process that was killed before its first checkpoint
        replay = self.replay
        self._files.append(replay.total - replay.size, replay.total, replay.rows, replay.bytes_per_row)

    def after_checkpoint(self, keep: int) -> None:
        """Delete rows that no kept checkpoint needs.

        Raises:
            OSError: if they cannot be deleted.
        """
        self._count_checkpoint()
        self._needed_from = self._needed_from[-keep:]
        self._files.pieces = self._files.needed_since(self._needed_from[0] - self.replay.capacity)
        self._files.remove_others()

    def _count_checkpoint(self) -> None:
        if self.replay.total not in self._needed_from:
            self._needed_from.append(self.replay.total)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base. The rows are in the files, of which the state names the pieces."""
        replay = self.replay.state() | {
            "oldest": self.replay.total - self.replay.size,
            "pieces": self._files.pieces if self._files is not None else [],
            "needed_from": self._needed_from,
        }
        return {}, {
            "version": None,
            "replay": replay,
            "lag": self.lag,
            "is_update_due": self._is_due,
            "restarts_seen": self._restarts_seen,
        }

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], directory: RunDirectory) -> None:
        """Restore a saved state, and the files beside it; their later rows are deleted."""
        replay = state["replay"]
        self._open(directory, replay["pieces"])
        self.replay.load_state(replay, self._files.read(whole(replay, "oldest")))
        self._needed_from = [whole({"total": total}, "total") for total in replay["needed_from"]]
        self._count_checkpoint()
        self.lag, self._is_due = whole(state, "lag"), bool(state["is_update_due"])
        self._restarts_seen = whole(state, "restarts_seen")

    def _open(self, directory: RunDirectory, pieces: list[dict[str, Any]]) -> None:
        """Open the files, and delete what was written after these pieces."""
        self._files = ReplayRows(directory.path / "replay")
        self._files.cut_back(pieces)
