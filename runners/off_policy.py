"""The loop with a replay buffer: a few steps, a few optimizer steps, and so on, many times an iteration.

    turn:       sample `train_frequency` steps of every environment; into the replay buffer; update
    iteration:  turns until `steps_per_iteration` steps are done; one line of metrics

Small turns update at every step; large turns sample first and then update. If the placement allows lag, the next turn
is sampled while the agent learns from the last.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridppo.errors import ConfigurationError, EnvError
from hybridppo.interfaces import Metrics, OffPolicyAgent
from hybridppo.placements.placement import Placement
from hybridppo.run_directory.replay_rows import ReplayRows
from hybridppo.runners.process_group import Piece
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import BaseSampler
from hybridppo.system.validation import whole


@dataclass
class _SoFar:
    """Sums over the turns of an iteration."""

    lag: int = 0
    """The largest policy lag."""
    seconds: Metrics = field(
        default_factory=lambda: dict.fromkeys(("seconds_sampling", "seconds_learning", "seconds_copying"), 0.0)
    )
    overlapped: float = 0.0


class OffPolicyRunner(Runner):
    """Like `Runner`, for agents that learn from a replay buffer.

    A checkpoint holds everything but the rows of the replay buffer, which are in append-only files beside it. A run
    that was stopped within an iteration is resumed within it.

    Args:
        agent: the agent, prepared by the placement.
        sampler: samples the steps of a turn.
        placement: the placement.
        options: as for `Runner`.
    """

    agent: OffPolicyAgent

    def __init__(self, agent: OffPolicyAgent, sampler: BaseSampler, placement: Placement, **options: Any) -> None:
        super().__init__(agent, sampler, placement, **options)
        num_envs = agent.config.num_envs
        if num_envs != sampler.num_envs:
            raise ConfigurationError(
                f"an agent with a replay buffer learns from environments of one agent, and these have "
                f"{sampler.num_envs // num_envs} each: train PPO in them (PPOConfig, --agent ppo)"
            )
        self.replay = agent.new_replay(sampler.columns.stop - sampler.columns.start, sampler.num_parts)
        self._group.offer(rows=self._collected_rows)
        if placement.max_lag > 1 and agent.config.n_steps > 1:
            raise ConfigurationError(
                f"n_steps={agent.config.n_steps} does not work with max_lag={placement.max_lag}, under which the steps "
                "of an environment are not one after the other in the replay buffer: use n_steps=1 or max_lag=1"
            )
        self._so_far = _SoFar()
        self._is_update_due = False
        """Whether there is a sampled turn that was not learned from."""
        self._restarts_seen = sampler.env_restarts
        self._rows: ReplayRows | None = None
        self._needed_from: list[int] = []
        """The total of rows at each of the newest checkpoints."""

    def iterate(self) -> Metrics:
        """Take turns until an iteration is complete; return its metrics.

        Raises:
            Stopped: if a stop was requested; the next call continues the iteration.
        """
        start = time.perf_counter()
        self._so_far = so_far = _SoFar(
            lag=self._so_far.lag
        )  # the lag of turns before a stop; their time belongs to the run before
        self.agent.anneal(self.share_done)
        while self._is_update_due or not self._is_complete():
            self._turn()
        begun, copying = time.perf_counter(), self._turns.copying()
        with self.placement.learning(self.agent):
            learned = self.agent.take_metrics()
        self._add_seconds("seconds_learning", begun, copying)
        end = time.perf_counter()
        # The parts of a turn account for all of its time.
        so_far.seconds["seconds_learning"] += end - start - sum(so_far.seconds.values())
        self._so_far = _SoFar()
        sizes = self._of_all("replay", {"sizes": torch.tensor([self.replay.num_valid_of_parts])})["sizes"]
        learned |= {"replay_size": int(sizes.sum())}
        metrics = self._completed(learned, so_far.lag, start, end, so_far.seconds)
        if self._turns.seconds_overlapped() is not None:
            metrics["seconds_overlapped"] = so_far.overlapped
        return metrics

    def _is_complete(self) -> bool:
        """Whether the iteration, or the training, has all its steps."""
        num_steps = self.sampler.env_steps - self.steps_learned
        return num_steps >= self.agent.config.steps_per_iteration or self.share_sampled >= 1.0

    def _turn(self) -> None:
        agent, placement, so_far = self.agent, self.placement, self._so_far
        begun, copying = time.perf_counter(), self._turns.copying()
        if not self._is_update_due:
            try:
                rollout, restarts = self._turns.next(self._is_last)
            except EnvError:
                agent.require_finite()  # else the environment would be blamed for actions that are not finite
                raise
            so_far.overlapped += self._turns.seconds_overlapped() or 0.0
            so_far.lag = max(so_far.lag, agent.version - rollout.version)
            begun, copying = self._add_seconds("seconds_sampling", begun, copying)
            self._remember(rollout, restarts)
            self._is_update_due = self.sampler.env_steps >= agent.config.learning_starts
        if self._is_update_due:
            with placement.learning(agent):
                agent.update(placement.to_learner(part) for part in agent.minibatches(self.replay))
            self._is_update_due = False
        self._add_seconds("seconds_learning", begun, copying)

    def _add_seconds(self, part: str, begun: float, copying: float) -> tuple[float, float]:
        """Add the seconds since `begun` without copies to a part; return the time and the copying seconds so far."""
        now, copied = time.perf_counter(), self._turns.copying()
        seconds = self._so_far.seconds
        seconds[part] += now - begun - (copied - copying)
        seconds["seconds_copying"] += copied - copying
        return now, copied

    def _remember(self, rollout: Any, restarts: int) -> None:
        # A rollout without steps, because all were restarted, never comes here; any restart cuts the sequence.
        # So does a rollout whose columns are of other environments than those of the last.
        sampled = rollout.whole()
        if restarts != self._restarts_seen or sampled.versions is not None:
            self.replay.cut()
            self._restarts_seen = restarts
        is_with_learner = self.replay.device == self.placement.learning_device
        self.replay.add(self.placement.to_learner(rollout).whole() if is_with_learner else sampled, sampled)

    def _leaves_agent_whole(self, error: BaseException) -> bool:
        """As in the base. Rows that other processes have are lost with them: the last checkpoint stays the newest."""
        return self._group.is_single and super()._leaves_agent_whole(error)

    def _collected_rows(self, start: int, end: int) -> dict[str, Tensor]:
        """Time rows of the replay buffer, of all processes."""
        return self._of_all("replay", self.replay.rows(start, end))

    def _write(self) -> None:
        """First the new rows, then the rest."""
        assert self.run_directory is not None  # as in the base
        self.agent.require_finite()
        rows = self._files()
        try:
            rows.append(
                max(rows.end, self.replay.total - self.replay.size),
                self.replay.total,
                partial(self._group.call, "rows"),
                self.replay.bytes_per_row * self.sampler.num_envs // self.replay.num_envs,
            )
        except OSError as error:
            self.run_directory.save_failed(error)
            self.saved = False
            return
        # Delete rows that no kept checkpoint needs, after the new checkpoint is there.
        before, pieces = self._needed_from, rows.pieces
        if not before or before[-1] != self.replay.total:
            self._needed_from = [*before, self.replay.total][-self._keep_checkpoints :]
        rows.pieces = rows.needed_since(self._needed_from[0] - self.replay.capacity)
        super()._write()
        if not self.saved:
            self._needed_from, rows.pieces = before, pieces
            return
        try:
            rows.remove_others()
        except OSError as error:
            self.run_directory.save_failed(error)

    def _files(self) -> ReplayRows:
        if self._rows is None:
            self._rows = self._files_of([])  # without the rest of a process that was killed before its first checkpoint
        return self._rows

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The loop's counters, and the rows of the files that are in the replay buffer."""
        tensors, state = super().state()
        replay = self.replay.state()
        of_all = self._of_all("replay", {"must_begin": torch.tensor([replay["must_begin"]])})
        replay |= {
            "must_begin": of_all["must_begin"][0].tolist(),
            "oldest": self.replay.total - self.replay.size,
            "pieces": self._rows.pieces if self._rows is not None else [],  # which only the first has
            "needed_from": self._needed_from,
        }
        return tensors, {
            **state,
            "replay": replay,
            "lag": self._so_far.lag,
            "is_update_due": self._is_update_due,
            "restarts_seen": self._restarts_seen,
        }

    def _done(self) -> tuple[int, int, bool]:
        """Identifies a state of the loop."""
        return self.iteration, self.sampler.steps_sampled, self._is_update_due

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Restore a checkpoint's tensors and state, and the files beside it; their later rows are dropped.

        Returns:
            Why the environments could not be restored and start anew from `env_seed`; None if they were restored.
        """
        loop = state["runner"]
        replay = loop["replay"]
        own = self.sampler.columns
        pieces = self._group.from_first(self._saved_rows(replay))
        self.replay.load_state(
            {**replay, "must_begin": replay["must_begin"][own]},
            ((first, {name: rows[:, own] for name, rows in piece.items()}) for first, piece in pieces),
        )
        self._needed_from = [whole({"total": total}, "total") for total in replay["needed_from"]]
        self._so_far.lag = whole(loop, "lag")
        self._is_update_due, self._restarts_seen = bool(loop["is_update_due"]), whole(loop, "restarts_seen")
        problem = super().load_state(tensors, state, env_seed=env_seed)
        if problem is not None:
            self.replay.cut()
        return problem

    def _saved_rows(self, replay: dict[str, Any]) -> Iterator[Piece]:
        """The rows of the files, of which those after the checkpoint are removed."""
        self._rows = self._files_of(replay["pieces"])
        yield from self._rows.read(whole(replay, "oldest"))

    def _files_of(self, pieces: Sequence[dict[str, Any]]) -> ReplayRows:
        assert self.run_directory is not None  # only a run that is saved has files
        rows = self.run_directory.replay_rows()
        rows.cut_back(pieces)
        return rows
