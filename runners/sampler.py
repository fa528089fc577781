"""Samples rollouts: begins, pauses and continues them, counts their steps, and saves their state.

`sample_async` begins a rollout and `sample_wait` returns it, so that a runner can learn in between.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments, EnvState, closed
from hybridppo.environments.info_metrics import Sums, metrics_of
from hybridppo.environments.steering import Steering, from_json, latest
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, Layout, RolloutBuffer
from hybridppo.rollouts.episodes import EpisodeStatistics, rows_broken_off
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.page_locking import allocate
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.turns import steps_by_turns
from hybridppo.runners.filling import Flag, Stepper, StepperState
from hybridppo.spaces.arrays import Array
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import one_blas_thread, one_torch_thread
from hybridppo.system.validation import reals, whole

logger = logging.getLogger(__name__)


OF_ROLLOUTS = (
    "observations", "actions", "log_probs", "rewards", "terminated", "truncated", "final_observations", "starts",
    "states", "history",
)  # fmt: skip
"""The tensors of a rollout whose forms are known beforehand."""


@dataclass
class RolloutUnderWay:
    """A rollout that was begun and not returned."""

    buffer: RolloutBuffer
    version: int
    """The version of the parameters that act."""
    filled: int = 0
    """The number of its rows; only set while it is not being filled."""
    finals: FinalObservations = field(default_factory=list)
    actor: SamplingActor | None = None
    """The actor that it was last continued with."""
    is_running: bool = False
    """Whether it is being filled."""


def require_like(name: str, found: Tensor | None, like: Tensor | Array | None) -> None:
    """Refuse a tensor whose shape or type differs from that of another tensor or array, with a ValueError."""
    is_found, is_like = (
        None if each is None else f"of shape {list(each.shape)} and type {str(each.dtype).removeprefix('torch.')}"
        for each in (found, like)
    )
    if is_found != is_like:
        raise ValueError(f"{name} is {is_found}, not {is_like}")


def saved_finals(finals: FinalObservations) -> tuple[dict[str, Tensor], list[list[int]]]:
    """Final observations as a tensor, if there are any, and the step and environment of each; see `finals_of`."""
    tensors = {}
    if finals:
        tensors["final_observations"] = torch.from_numpy(np.stack([observation for _, _, observation in finals]))
    return tensors, [[step, env] for step, env, _ in finals]


def finals_of(rows: Any, tensors: dict[str, Tensor], filled: int, like: Array) -> FinalObservations:
    """The final observations from the result of `saved_finals`, of a rollout with `filled` rows.

    Args:
        rows: the step and environment of each.
        tensors: with the observations.
        filled: number of rows of the rollout.
        like: a row for each environment.

    Raises:
        ValueError: for an observation of another shape or type, or an invalid step or environment.
    """
    finals: FinalObservations = []
    for i, (step, env) in enumerate(rows):
        final = tensors["final_observations"][i]
        require_like("a final observation", final, like[0])
        if not (type(step) is type(env) is int and 0 <= step < filled and 0 <= env < len(like)):
            raise ValueError(f"there is no step {step} of environment {env}")
        finals.append((step, env, final.numpy()))
    return finals


def remembered_of(tensors: dict[str, Tensor], num_envs: int, memory: MemoryLayout | None) -> Array:
    """The actor's state in each environment; without columns if there is no memory.

    Raises:
        ValueError: if it has another shape.
    """
    if memory is None:
        return np.zeros((num_envs, 0), np.float32)
    require_like("memory", tensors["memory"], np.zeros((num_envs, memory.state_size + 2), np.float32))
    return tensors["memory"].numpy()


def require_rollout_of(layout: Layout, row: tuple[int, ...], rollout: Rollout) -> None:
    """Refuse a rollout from a file that does not fit.

    Args:
        layout: of a buffer for as many steps.
        row: the shape of a whole observation.
        rollout: the rollout.

    Raises:
        ValueError: if a tensor has another shape or type, or a row is out of range.
    """
    finals = (len(rollout.final_rows), *row), layout["observations"][1]
    forms = {**layout, "log_probs": layout["rewards"], "final_observations": finals}
    for name in OF_ROLLOUTS:
        form = forms.get(name)
        like = None if form is None else np.broadcast_to(np.zeros((), form[1]), form[0])
        require_like(name, getattr(rollout, name), like)
    num_rows, num_columns = rollout.rewards.numel(), rollout.rewards.shape[1]
    if rollout.turns is not None:
        require_like("turns", rollout.turns, np.empty((1, num_columns), np.int64))
    for name in ("valid_rows", "final_rows"):
        rows = getattr(rollout, name)
        require_like(name, rows, np.empty(len(rows), np.int64))
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
            raise ValueError(f"{name} are not all of {num_rows} rows")


ROLLOUTS_LOST_IN_A_ROW = 3
"""How many rollouts in a row may have no steps because environments were restarted."""


@dataclass
class PolicyCounts:
    """The steps and episodes of one of several policies."""

    columns: Array
    """The policy's columns of a rollout."""
    statistics: EpisodeStatistics
    agent_steps: int = 0

    def add(self, rewards: Array, ended: Array, valid: Array, acting: Array, broken_off: Array | None) -> None:
        """Count rows `[T, N]`, as `EpisodeStatistics.add`; rows in which an agent is `acting` are steps."""
        own = self.columns
        self.statistics.add(
            rewards[:, own], ended[:, own], valid[:, own], None if broken_off is None else broken_off[:, own]
        )
        self.agent_steps += int(acting[:, own].sum())

    def state(self) -> dict[str, Any]:
        """The state for `load_state`."""
        return {"agent_steps": self.agent_steps, "statistics": self.statistics.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.agent_steps = whole(state, "agent_steps")
        self.statistics.load_state(state["statistics"])


class BaseSampler:
    """The base of samplers.

    A subclass implements `_fill_async` and `_fill_wait`, or replaces the methods that call them. It sets `_stepper`, or
    replaces `restart`, `_stepper_state` and `_load_stepper_state`.

    Args:
        environments: `Environments` or `Workers`, closed with the sampler.
        stop: set to 1 to stop before the next step.
        buffers: arrays of rollouts, used in turn; a rollout is valid until its arrays are used again.
        distribution: distribution of the actions.
        noise: generator of the actions' randomness; one `[T, N]` block is drawn from it per rollout.
        memory: layout of the state of recurrent actors.
        discounts: returns the present discounts of the rewards in `Rollout.returns_so_far`, `[N]`; None for rollouts
            without.
    """

    _stepper: Any
    """Steps the environments: a `Stepper`, or `Workers`."""

    def __init__(
        self,
        environments: Any,
        stop: Flag,
        buffers: list[RolloutBuffer],
        distribution: Distribution,
        *,
        noise: np.random.Generator,
        memory: MemoryLayout | None = None,
        discounts: Callable[[], Array] | None = None,
    ) -> None:
        self._stepped, self._encode = environments, environments.encode
        self._memory, self._stop = memory, stop
        self._num_agents, self._clips_rewards = environments.num_agents, environments.clips_rewards
        self._buffers, self._turn = buffers, 0
        self.num_steps, self.num_envs = buffers[0].rewards.shape
        self.statistics = EpisodeStatistics(self.num_envs)
        self._discounts = discounts
        self._so_far = np.zeros(self.num_envs, np.float32)
        """The discounted return of each column's unfinished episode."""
        self.env_steps = self._lost = 0
        self.env_restarts = 0
        """How often an environment was restarted."""
        self.seconds_filling = 0.0
        """The time that the sampler spent on the last rollout, also while nobody waited for it."""
        self._distribution, self._noise = distribution, noise
        self._has_warned, self._skips_row_after_end = False, environments.skips_row_after_end
        self._resetting = np.zeros(self.num_envs, dtype=np.bool_)
        self._under_way: RolloutUnderWay | None = None
        self._info_names: Sequence[str] = ()
        self._info_sums: list[Sums] = []
        self._infos_so_far: list[Sums] = []
        """The sums over the rollout under way, up to the last checkpoint."""
        self._has_warned_of_infos = False
        self.steering: list[Steering] = []
        """Calls and changes in the environments: the latest of each method and attribute."""
        self._steering_due: list[Steering] = []
        """Calls and changes that wait for the end of the rollout under way."""
        self.failure: str | None = None
        """Why the environments were given up; None if they were not."""
        self._broken_by: EnvError | None = None
        self.by_policy: dict[str, PolicyCounts] = {}
        """The counts of each policy, if there are several."""

    @property
    def columns(self) -> slice:
        """The columns of this process among those of all processes."""
        return slice(0, self.num_envs)

    @property
    def num_parts(self) -> int:
        """The number of parts of a rollout (`Rollout.parts`)."""
        return 1

    def count_by_policy(self, columns: Mapping[str, Sequence[int]]) -> None:
        """Also count for each of several policies; `env_steps` then counts steps of environments, not of agents.

        Args:
            columns: for each policy, the numbers of its agents in an environment.
        """
        first = np.arange(0, self.num_envs, self._num_agents)[:, None]
        for name, own in columns.items():
            self.by_policy[name] = self._counts_of((first + np.asarray(own)).ravel())

    def _counts_of(self, columns: Array) -> PolicyCounts:
        return PolicyCounts(columns, EpisodeStatistics(len(columns)))

    def drop_running(self, columns: slice = slice(None)) -> None:
        """Drop the unfinished episodes of some columns, whose environments were restarted."""
        self.statistics.drop_running(columns)
        self._so_far[columns] = 0.0
        lost = np.arange(self.num_envs)[columns]
        for policy in self.by_policy.values():
            policy.statistics.drop_running(np.isin(policy.columns, lost))

    def _num_steps_in(self, valid: Any) -> int:
        """The number of steps in rows `[T, N]`."""
        return int(self._rows_of_steps(valid).sum())

    def _rows_of_steps(self, valid: Any) -> Any:
        """The rows to count as steps: of agents, or of environments if policies are counted separately."""
        if not self.by_policy:
            return valid
        return valid.reshape(len(valid), self.num_envs // self._num_agents, self._num_agents).any(2)

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment, or the rest of a rollout under way."""
        self.sample_async(actor)
        return self.sample_wait()

    def sample_async(self, actor: SamplingActor) -> None:
        """Begin the next rollout, or continue the paused one with an actor of the same parameters.

        The actor's parameters must not change before `sample_wait`.
        """
        if self._broken_by is not None:  # a callback has suppressed it
            raise self._broken_by
        if self._under_way is None:
            buffer = self._next_buffer()
            self._draw_noise(buffer)
            self._under_way = RolloutUnderWay(buffer, actor.version)
        under_way = self._under_way
        assert not under_way.is_running, "a rollout is being sampled: wait for it first"
        under_way.actor = actor
        if not self._is_complete(under_way.filled):
            self._fill_async(under_way.buffer, actor, under_way.filled)
            under_way.is_running = True

    def request_stop(self) -> None:
        """Stop before the next step, for good. It may be called in a signal handler."""
        self._stop[0] = 1

    def pause(self) -> None:
        """Pause the rollout under way before its next step."""
        if self._under_way is not None and self._under_way.is_running:
            self._stop[0] = 1
            try:
                self._wait_for(self._under_way)
            finally:
                self._stop[0] = 0

    def wait(self) -> None:
        """Wait until the rollout under way is filled, without returning it."""
        if self._under_way is not None:
            self._wait_for(self._under_way)

    def give_up(self, reason: str) -> None:
        """Drop the rollout under way, because the environments have failed; their state is not saved any more."""
        self._under_way, self.failure = None, f"they had failed: {reason}"

    def sample_wait(self) -> Rollout:
        """Wait for the rollout that was begun.

        Raises:
            Stopped: if it was paused; it stays under way.
        """
        under_way = self._rollout_ended()
        self._measure_rollout()
        self._steer_what_is_due()
        buffer, filled = under_way.buffer, under_way.filled
        if filled < len(buffer.rewards):
            buffer = buffer.first(filled, self._memory)
        valid, _ = self._count(buffer)
        returns = None if self._discounts is None else self._returns_so_far(buffer, valid, slice(None))
        if not self._has_steps(buffer, valid):
            assert under_way.actor is not None  # set when the rollout was begun or continued
            return self.collect(under_way.actor)
        return self._rollout_of(buffer, valid, under_way.finals, under_way.version, returns)

    def _count(self, buffer: RolloutBuffer) -> tuple[Array, Array | None]:
        """Count steps; return which rows are steps, and where restarts broke off episodes (None if nowhere)."""
        ended = buffer.terminated | buffer.truncated
        valid = self._valid_rows(ended, buffer.absent)
        if self._skips_row_after_end:
            self._resetting = ended[-1].copy()
        broken_off = self._break_off(buffer, ended, valid)
        self.statistics.add(buffer.rewards, ended & valid, valid, broken_off)
        acting = valid & ~buffer.waiting
        self.env_steps += self._num_steps_in(acting)
        for policy in self.by_policy.values():
            policy.add(buffer.rewards, ended & valid, valid, acting, broken_off)
        return valid, broken_off

    def _has_steps(self, buffer: RolloutBuffer, valid: Array) -> bool:
        """Whether restarts have left at least two steps: nothing can be learned from one."""
        is_lost = bool(buffer.restarted.any())
        if is_lost:
            steps = steps_by_turns(buffer, valid, [], self._memory)[1] if buffer.waiting.any() else valid
            is_lost = steps.sum() < 2
        self._lost = self._lost + 1 if is_lost else 0
        if self._lost > ROLLOUTS_LOST_IN_A_ROW:
            raise EnvError(f"in {self._lost} rollouts in a row, every episode was broken off by a restart")
        return not self._lost

    def _returns_so_far(self, buffer: Any, valid: Array, columns: slice) -> Array:
        """The discounted return of the episode up to each row, `[T, n]`; agents that take turns discount per action."""
        assert self._discounts is not None
        rewards = buffer.rewards.clip(-1.0, 1.0) if self._clips_rewards else buffer.rewards
        returns: Array = np.where(valid, rewards, np.float32(0.0))[:, columns]
        discounts = np.where(buffer.waiting, np.float32(1.0), self._discounts())[:, columns]
        goes_on, so_far = ~(buffer.terminated | buffer.truncated)[:, columns], self._so_far[columns]
        for step in range(len(returns)):
            returns[step] += discounts[step] * so_far
            so_far = goes_on[step] * returns[step]
        self._so_far[columns] = so_far
        return returns

    def _rollout_of(
        self, buffer: RolloutBuffer, valid: Array, finals: FinalObservations, version: int, returns: Array | None = None
    ) -> Rollout:
        """The rollout of counted rows, with their returns so far; if agents take turns, of the steps of each agent."""
        if not self._has_warned and not buffer.restarted.any():  # dropped rows are zeros
            self._look_at_bounds(buffer.observations[:-1], buffer.absent | buffer.waiting)
        if not buffer.waiting.any():
            return self._rollout(buffer, valid, finals, version, returns)
        steps, are_steps, finals, last_rows, turns = steps_by_turns(buffer, valid, finals, self._memory)
        if not are_steps.any():
            raise EnvError(
                f"in a rollout of {len(valid)} turns, no agent has had a second turn: increase num_steps, which is "
                f"{self.num_steps} for {self._num_agents} agents that take turns"
            )
        found = None if returns is None else np.take_along_axis(returns, last_rows, 0)
        rollout = self._rollout(steps, are_steps, finals, version, found)
        return rollout if self._memory is None else replace(rollout, turns=torch.from_numpy(turns[None]))

    def metrics(self) -> Metrics:
        """Additional metrics of sampling."""
        return {}

    def measure_infos(self, names: Sequence[str]) -> None:
        """Sum up these entries of infos from now on; `info_metrics` returns their means.

        Raises:
            ConfigurationError: if the environments have no infos.
        """
        self._stepped.measure_infos(names)
        self._info_names = names

    def info_metrics(self) -> dict[str, float]:
        """The means over the rollouts since the last call. The first call warns of entries that no step has."""
        sums = self._taken_infos()
        found = metrics_of(sums) if sums else {}
        missing = [name for name in self._info_names if f"info/{name}" not in found]
        if missing and not self._has_warned_of_infos:
            logger.warning("info_metrics: no step of the first iteration has %s in its info", ", ".join(missing))
        self._has_warned_of_infos = True
        return found

    def _measure_rollout(self) -> None:
        """Take the sums over the rollout that has ended."""
        self._measure_so_far()
        self._info_sums += self._infos_so_far
        self._infos_so_far = []

    def _measure_so_far(self) -> None:
        """Take the sums over the rollout under way."""
        if self._info_names:
            self._infos_so_far.append(self._stepped.take_infos())

    def _taken_infos(self) -> list[Sums]:
        """The sums over each rollout since the last call."""
        found, self._info_sums = self._info_sums, []
        return found

    def steer(self, steering: Steering, *, while_paused: bool = False) -> list[Any]:
        """Call a method or set an attribute in every environment, once the rollout under way has ended.

        Args:
            steering: the call or the change.
            while_paused: whether to apply it at once if the rollout under way is paused.

        Returns:
            The result of each environment; nothing if the rollout under way was broken off, since it is applied later.

        Raises:
            ConfigurationError: if the environments are not Python objects that can be reached.
            EnvError: if they have no such method or attribute.
        """
        if self._under_way is not None and not (while_paused and self.is_paused):
            self._wait_for(self._under_way)
            if not self._is_complete(self._under_way.filled):
                self._steering_due.append(steering)
                return []
        return self._steered(steering)

    def _steered(self, steering: Steering) -> list[Any]:
        found: list[Any] = self._stepped.steer(steering)
        self.steering = latest(self.steering, steering)
        return found

    def _steer_what_is_due(self) -> None:
        """Apply what was requested during a rollout that was broken off and has now ended."""
        due, self._steering_due = self._steering_due, []
        for steering in due:
            self._steered(steering)

    def _steering_state(self) -> dict[str, Any]:
        """The state for `_load_steering`, as JSON."""
        return {
            "steering": [list(each) for each in self.steering],
            "steering_due": [list(each) for each in self._steering_due],
        }

    def _load_steering(self, state: dict[str, Any]) -> None:
        """Apply saved calls and changes to the environments, which are new."""
        self._steering_due = from_json(state["steering_due"])
        for steering in from_json(state["steering"]):
            self._steered(steering)

    @property
    def is_under_way(self) -> bool:
        """Whether a rollout was begun and not returned."""
        return self._under_way is not None

    @property
    def is_paused(self) -> bool:
        """Whether the rollout under way is not being filled."""
        return self._under_way is not None and not self._under_way.is_running

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, but with the steps of a paused rollout."""
        if self._under_way is None:
            return self.env_steps
        buffer, filled = self._under_way.buffer, self._under_way.filled
        ended = (buffer.terminated | buffer.truncated)[:filled]
        valid = self._valid_rows(ended, buffer.absent[:filled])
        return self.env_steps + self._num_steps_in(valid & ~buffer.waiting[:filled])

    def _look_at_bounds(self, rows: Array, may_be_zeros: Array) -> None:
        """Warn once of observations outside the bounds of their space; those of agents that do not act may be zeros."""
        frames = self._encode.frames
        warning = self._encode.warning_of_bounds(rows if frames is None else frames.repeated(rows))
        if warning is not None and may_be_zeros.any():
            warning = self._encode.warning_of_bounds(rows[~may_be_zeros])
        if warning is not None:
            self._has_warned = True
            logger.warning(
                "%s: give the space the true bounds (-inf and inf if there are none), or fix the environment. The "
                "training uses these observations unchanged, and does not warn again",
                warning,
            )

    def _no_row(self, count: int = 0) -> Array:
        """`count` rows of zeros, as actors take them."""
        return np.zeros((count, *self._encode.shape), self._encode.dtype)

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        """Draw the noise of a rollout's actions."""
        buffer.noise[:] = self._distribution.draw_noise(self._noise, (len(buffer.noise), self.num_envs))

    def _is_complete(self, filled: int) -> bool:
        """Whether a rollout that is not being filled has all its rows."""
        return filled == len(self._buffers[0].rewards)

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        """Begin to fill the buffer from row `first` on."""
        raise NotImplementedError

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        """Wait until the buffer is filled or the flag was seen; the number of rows, and new final observations."""
        raise NotImplementedError

    def restart(self, env_seed: int) -> None:
        """Reset every environment, the `i`-th with `env_seed + i`."""
        self._stepper.restart(env_seed)

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        self.request_stop()
        self._stepped.close()

    def _stepper_state(self) -> StepperState:
        """The environments' state, as `Stepper.state`; raises `EnvStateError`."""
        state: StepperState = self._stepper.state()
        return state

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """Restore it, or raise `EnvStateError`."""
        self._stepper.load_state(states, observation, remembered)

    def _next_buffer(self) -> RolloutBuffer:
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        return buffer

    def _rollout_under_way(self) -> RolloutUnderWay:
        assert self._under_way is not None, "no rollout is under way: begin one first"
        return self._under_way

    def _rollout_ended(self) -> RolloutUnderWay:
        """Wait for the rollout that was begun, and end it; raises `Stopped` if it is paused."""
        under_way = self._rollout_under_way()
        self._wait_for(under_way)
        if not self._is_complete(under_way.filled):
            raise Stopped
        self._under_way = None
        return under_way

    def _wait_for(self, under_way: RolloutUnderWay) -> None:
        if under_way.is_running:
            under_way.is_running = False
            with self._noting_faults():
                under_way.filled, finals = self._fill_wait()
            under_way.finals += finals

    @property
    def broken_by(self) -> EnvError | None:
        """The error that has broken off a rollout, whoever waited for it; None if there was none."""
        return self._broken_by

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """A context that keeps an error of the environments for `broken_by`."""
        try:
            yield
        except EnvError as error:
            self._broken_by = type(error)(str(error))  # without the traceback, which would keep this sampler alive
            raise

    def _valid_rows(self, ended: Array, absent: Array) -> Array:
        """Which rows of a rollout are steps, `[T, N]`: all but resets, and rows of absent agents."""
        valid: Array = ~absent
        if self._skips_row_after_end:
            valid[:1] &= ~self._resetting
            valid[1:] &= ~ended[:-1]
        return valid

    def _break_off(self, buffer: RolloutBuffer, ended: Array, valid: Array) -> Array | None:
        """Where restarts broke off an episode, `[T, N]`, or None; the rows of such episodes are set invalid."""
        if not buffer.restarted.any():
            return None
        self.env_restarts += int(buffer.restarted.sum()) // self._num_agents
        broken_off: Array = (buffer.restarted > 0) & ~ended
        valid &= ~rows_broken_off(ended, broken_off)
        np.logical_or(buffer.terminated, broken_off, out=buffer.terminated)  # later rows belong to another episode
        return broken_off

    def _rollout(
        self, buffer: RolloutBuffer, valid: Array, finals: FinalObservations, version: int, returns: Array | None
    ) -> Rollout:
        actions = torch.from_numpy(buffer.actions)
        # The behaviour log-probabilities, from the same outputs as the actions.
        with one_torch_thread():
            log_probs = self._distribution.log_prob(torch.from_numpy(buffer.outputs), actions)
        observations = [observation for _, _, observation in finals]
        return Rollout(
            observations=torch.from_numpy(buffer.observations),
            actions=actions,
            log_probs=log_probs,
            rewards=torch.from_numpy(buffer.rewards.clip(-1.0, 1.0) if self._clips_rewards else buffer.rewards),
            terminated=torch.from_numpy(buffer.terminated),
            truncated=torch.from_numpy(buffer.truncated),
            valid_rows=torch.from_numpy(np.flatnonzero(valid)),
            final_rows=torch.tensor([step * self.num_envs + env for step, env, _ in finals], dtype=torch.int64),
            final_observations=torch.from_numpy(np.stack(observations) if finals else self._no_row()),
            version=version,
            starts=torch.from_numpy(buffer.starts) if buffer.starts is not None else None,
            states=torch.from_numpy(buffer.states) if buffer.states is not None else None,
            history=torch.from_numpy(buffer.history) if buffer.history is not None else None,
            returns_so_far=torch.from_numpy(returns) if returns is not None else None,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`: tensors by name, and a JSON object. A rollout under way must be paused."""
        state = {
            **self._counts_state(),
            "rollouts_lost": self._lost,
            "noise": self._noise.bit_generator.state,
            "resetting": self._resetting.tolist(),
            "returns_so_far": self._so_far.tolist(),
            **self._steering_state(),
            "infos": [],
            "infos_so_far": [],
            "under_way": None,
        }
        try:
            if self.failure is not None:
                raise EnvStateError(self.failure)
            tensors, environments = self._state_of_environments()
        except EnvStateError as error:  # the rollout under way is lost too: nothing could continue it
            return {}, {**state, "environments": {"not_saved": str(error)}}
        rows, under_way = self._state_under_way()
        self._measure_so_far()
        infos = {"infos": self._info_sums, "infos_so_far": self._infos_so_far}
        return tensors | rows, {**state, **infos, "environments": environments, "under_way": under_way}

    def _state_of_environments(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `_load_environments`; raises `EnvStateError`."""
        states, observation, remembered = self._stepper_state()
        tensors = {"observation": torch.from_numpy(observation)}
        if self._memory is not None:
            tensors["memory"] = torch.from_numpy(remembered)
        return tensors, {"states": states}

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        if under_way is None:
            return {}, None
        assert not under_way.is_running, "a rollout is being sampled: pause it first"
        parts = self._rows_that_matter(under_way.buffer, under_way.filled).items()
        tensors = {f"buffer.{name}": torch.from_numpy(array[rows]) for name, (array, rows) in parts}
        of_finals, final_rows = saved_finals(under_way.finals)
        return tensors | of_finals, {"version": under_way.version, "filled": under_way.filled, "final_rows": final_rows}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Restore a saved state.

        Returns:
            Why the environments could not be restored and start anew from `env_seed`; None if they were restored.
        """
        self._load_counts(state)
        self._lost = whole(state, "rollouts_lost")
        self._so_far[:] = state["returns_so_far"]
        self._noise.bit_generator.state = state["noise"]
        self._load_steering(state)
        reason = self._cannot_load(state)
        if reason is None:
            try:
                self._load_environments(tensors, state["environments"])
            except EnvStateError as error:
                reason = str(error)
        if reason is None:
            resetting = state["resetting"]
            if len(resetting) != self.num_envs or not all(type(value) is bool for value in resetting):
                raise ValueError(f"resetting must be a list of {self.num_envs} booleans")
            self._resetting = np.array(resetting, dtype=np.bool_)
            if state["under_way"] is not None:
                self._load_under_way(tensors, state["under_way"])
            self._load_infos(state)
            return None
        self._steer_what_is_due()  # the rollout that it waited for is lost
        self.drop_running()
        self._resetting[:] = False
        self.restart(env_seed)
        return reason

    def _counts_state(self) -> dict[str, Any]:
        """The state for `_load_counts`, as JSON."""
        return {
            "env_steps": self.env_steps,
            "env_restarts": self.env_restarts,
            "statistics": self.statistics.state(),
            "by_policy": {name: policy.state() for name, policy in self.by_policy.items()},
        }

    def _load_counts(self, state: dict[str, Any]) -> None:
        self.env_steps = whole(state, "env_steps")
        self.env_restarts = whole(state, "env_restarts")
        self.statistics.load_state(state["statistics"])
        for name, policy in self.by_policy.items():
            policy.load_state(state["by_policy"][name])

    def _load_infos(self, state: dict[str, Any]) -> None:
        self._info_sums, self._infos_so_far = (
            [{name: reals(sums, name, length=4) for name in sums} for sums in state[which]]
            for which in ("infos", "infos_so_far")
        )

    def _cannot_load(self, state: dict[str, Any]) -> str | None:
        """Why the environments of a saved state cannot be restored, before it is tried; else None."""
        if "not_saved" in state["environments"]:
            return str(state["environments"]["not_saved"])
        return self._cannot_end(state["under_way"] or {})

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        """Restore the result of `_state_of_environments`, or raise `EnvStateError`."""
        observation = tensors["observation"].numpy()
        require_like("observation", tensors["observation"], self._no_row(self.num_envs))
        if not np.isfinite(self._encode.layout.numbers(observation)).all():
            raise ValueError("the saved observations are not finite")
        remembered = remembered_of(tensors, self.num_envs, self._memory)
        self._load_stepper_state(environments["states"], observation, remembered)

    def _rows_that_matter(self, buffer: RolloutBuffer, filled: int) -> dict[str, tuple[Array, slice]]:
        return buffer.rows(filled, self._distribution.noise_row(filled), self._memory)

    def _cannot_end(self, under_way: dict[str, Any]) -> str | None:
        """Why this sampler cannot continue a saved rollout; None if it can."""
        return "a rollout was under way on a device, not on the host" if "device_noise" in under_way else None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        buffer, filled = self._next_buffer(), whole(state, "filled")
        if filled > self.num_steps:
            raise ValueError(f"filled is {filled}, but a rollout has {self.num_steps} rows")
        for name, (array, rows) in self._rows_that_matter(buffer, filled).items():
            require_like(f"buffer.{name}", tensors[f"buffer.{name}"], array[rows])
            array[rows] = tensors[f"buffer.{name}"].numpy()
        finals = finals_of(state["final_rows"], tensors, filled, self._no_row(self.num_envs))
        self._under_way = RolloutUnderWay(buffer, whole(state, "version"), filled, finals)

    def own_parts(self, rollout: Rollout) -> Any:
        """The part of a rollout that this process has: all of it."""
        return rollout

    def check(self, rollout: Rollout) -> None:
        """Refuse a rollout from a file that is not one of this sampler's.

        Raises:
            ValueError: if a tensor has another shape or type, or a row is out of range.
        """
        num_steps, encode = len(rollout.rewards), self._encode
        layout = RolloutBuffer.layout(num_steps, self.num_envs, encode, self._distribution, self._memory)
        require_rollout_of(layout, encode.shape, rollout)


CHUNK = 128
"""Steps for which a rollout of whole episodes draws noise at a time, because its length is not known beforehand."""
FIRST_CAPACITY = 8 * CHUNK
"""Steps that fit into the first buffers for whole episodes; larger ones replace them if episodes are longer."""


class Sampler(BaseSampler):
    """Steps environments in this process: when the rollout is waited for, or at once in a thread.

    With `num_episodes`, a rollout `[T, 1]` is so many whole episodes of one environment. The `k`-th episode of the
    training is reset with `env_seed + k`. A rollout that is broken off is sampled again from its first episode, so a
    resumed training has the same episodes, even if the environment's state cannot be saved.

    Args:
        environments: the `N` environments; closed with the sampler.
        distribution: distribution of the actions.
        num_steps: `T`; ignored with `num_episodes`.
        num_episodes: whole episodes per rollout; None for `num_steps`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the actions' randomness.
        pin_for: the device that rollouts are copied to, if it copies faster from page-locked memory; else None.
        in_thread: begin at once, in a thread. This is faster if learning does not need Python meanwhile, as on a GPU.
        thread: the thread; None for a new one.
        memory: layout of the state of a recurrent actor.
        discounts: as for `BaseSampler`.

    Raises:
        ConfigurationError: for whole episodes of anything but one environment that the library steps.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_steps: int = FIRST_CAPACITY,
        num_episodes: int | None = None,
        env_seed: int,
        noise: np.random.Generator,
        pin_for: torch.device | None = None,
        in_thread: bool = False,
        thread: ThreadPoolExecutor | None = None,
        memory: MemoryLayout | None = None,
        discounts: Callable[[], Array] | None = None,
    ) -> None:
        num_columns, encode = environments.num_envs, environments.encode

        def allocate_for(num_steps: int) -> RolloutBuffer:
            return allocate(RolloutBuffer.layout(num_steps, num_columns, encode, distribution, memory), pin_for)

        capacity = num_steps if num_episodes is None else FIRST_CAPACITY
        # With a thread, one buffer is filled while the agent learns from the other.
        buffers = [allocate_for(capacity) for _ in range(1 + in_thread)]
        super().__init__(
            environments, bytearray(1), buffers, distribution, noise=noise, memory=memory, discounts=discounts
        )
        self._environments, self._allocate = environments, allocate_for
        self._num_episodes, self._env_seed, self._noise_seed = num_episodes, env_seed, 0
        if num_episodes is not None:
            self._seed_episodes(env_seed + 1)
        self._wait: Callable[[], tuple[int, FinalObservations]] = closed
        self._stepper: Stepper = Stepper(environments, distribution, env_seed, memory)
        self._thread = (thread or ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")) if in_thread else None

    def show_steps_in(self, heartbeat: Array) -> None:
        """Write the number of filled rows into the first element of this array, for a watcher in another process."""
        self._stepper.heartbeat = heartbeat

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        fill = partial(self._stepper.fill, buffer, actor, self._stop, first)
        if self._num_episodes is not None:
            fill = partial(self._fill_episodes, buffer, actor, self._num_episodes)
        self._wait = partial(on_one_thread, fill) if self._thread is None else self._thread.submit(fill).result

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        found = self._wait()
        self.seconds_filling = self._stepper.seconds
        return found

    def _fill_episodes(
        self, buffer: RolloutBuffer, actor: SamplingActor, num_episodes: int
    ) -> tuple[int, FinalObservations]:
        """Fill a buffer with whole episodes, or with nothing if a stop breaks them off."""
        distribution, generator = self._distribution, np.random.default_rng(self._noise_seed)
        finals: FinalObservations = []
        filled, seconds = 0, 0.0
        while num_episodes:
            first, end = filled, filled + CHUNK
            if end > len(buffer.rewards):
                buffer = self._replaced(buffer)
            rows = slice(distribution.noise_rows(first), distribution.noise_rows(end))
            buffer.noise[rows] = distribution.draw_noise(generator, (rows.stop - rows.start, 1))
            filled, found = self._stepper.fill(buffer, actor, self._stop, first, end, num_episodes)
            finals, seconds = finals + found, seconds + self._stepper.seconds
            num_episodes -= int((buffer.terminated[first:filled] | buffer.truncated[first:filled]).sum())
            if num_episodes and filled < end:  # stopped
                self.restart(self._env_seed)
                return 0, []
        if finals and finals[-1][0] == filled - 1 and self._encode.frames is None:
            buffer.observations[filled] = finals.pop()[2]  # not the first of the next rollout's episode
        self._stepper.seconds = seconds
        return filled, finals

    def _replaced(self, buffer: RolloutBuffer) -> RolloutBuffer:
        """A buffer with twice the rows, in place of one that is full."""
        larger = self._allocate(2 * len(buffer.rewards))
        larger.copy_from(buffer)
        self._buffers = [larger if mine is buffer else mine for mine in self._buffers]
        self._rollout_under_way().buffer = larger
        return larger

    def _is_complete(self, filled: int) -> bool:
        return super()._is_complete(filled) if self._num_episodes is None else filled > 0

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        if self._num_episodes is None:
            super()._draw_noise(buffer)
        else:
            self._noise_seed = int(self._noise.integers(2**63))

    def restart(self, env_seed: int) -> None:
        """As in the base; whole episodes go on with the episode that is next."""
        if self._num_episodes is not None:
            env_seed = self._env_seed + self.statistics.episodes
            self._seed_episodes(env_seed + 1)
            if self._info_names:  # those of a rollout that was broken off do not count
                self._environments.measure_infos(self._info_names)
        super().restart(env_seed)

    def _seed_episodes(self, seed: int) -> None:
        """Reset the environment with this seed when its next episode begins, and then with the seeds that follow."""
        environments = self._environments
        if not isinstance(environments, SyncEnvironments) or environments.num_envs != 1:
            raise ConfigurationError(
                "whole episodes come from one environment that is stepped by itself, not from a vector of "
                f"{environments.num_envs}: set num_envs=1 and vectorization='auto' or 'sync', with an environment's id "
                "or a function that makes a gymnasium.Env"
            )
        environments.episode_seeds = itertools.count(seed)

    def _stepper_state(self) -> StepperState:
        if self._num_episodes is None:
            return super()._stepper_state()
        state_size = 0 if self._memory is None else self._memory.state_size + 2
        return [], self._no_row(1), np.zeros((1, state_size), np.float32)  # every rollout begins with a reset

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        if self._num_episodes is None:
            super()._load_stepper_state(states, observation, remembered)
        else:
            self.restart(self._env_seed)

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        if self._num_episodes is None or self._under_way is None:
            return super()._state_under_way()
        return {}, {"version": self._under_way.version, "noise_seed": self._noise_seed}

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self._num_episodes is None:
            super()._load_under_way(tensors, state)
            return
        self._under_way = RolloutUnderWay(self._next_buffer(), whole(state, "version"))
        self._noise_seed = whole(state, "noise_seed")

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._wait = closed  # else an error in the thread, which its future keeps, would keep this sampler alive
        super().close()


def on_one_thread(fill: Callable[[], tuple[int, FinalObservations]]) -> tuple[int, FinalObservations]:
    """Fill with BLAS on one thread: an actor's products are small, and the update needs the cores."""
    if torch.get_num_threads() == 1:  # then NumPy has one, too
        return fill()
    with one_blas_thread():
        return fill()
