"""The base of samplers: from the arrays of a rollout to the rollout, its statistics, its noise and its saved state.

`sample_async` begins a rollout and `sample_wait` returns it, so that a runner can learn in between.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.state_dependent import noise_row
from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.info_metrics import Sums, metrics_of
from hybridppo.environments.steering import Steering, from_json, latest
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.episodes import EpisodeStatistics, rows_broken_off
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.turns import steps_by_turns
from hybridppo.runners.samplers.stepping import Flag, Stepper, StepperState
from hybridppo.runners.samplers.under_way import (
    RolloutUnderWay,
    finals_of,
    remembered_of,
    require_like,
    require_rollout_of,
    saved_finals,
)
from hybridppo.runners.workers.workers import Workers
from hybridppo.spaces.arrays import Array
from hybridppo.system.interruption import Stopped
from hybridppo.system.threads import one_torch_thread
from hybridppo.system.validation import reals, whole

logger = logging.getLogger(__name__)

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
        environments: closed with the sampler.
        stop: set to 1 to stop before the next step.
        buffers: arrays of rollouts, used in turn; a rollout is valid until its arrays are used again.
        distribution: distribution of the actions.
        noise: generator of the actions' randomness; one `[T, N]` block is drawn from it per rollout.
        memory: layout of the state of recurrent actors.
        discounts: returns the present discounts of the rewards in `Rollout.returns_so_far`, `[N]`; None for rollouts
            without.
    """

    _stepper: Stepper | Workers
    """Steps the environments."""

    def __init__(
        self,
        environments: Environments | Workers,
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
        found = self._stepped.steer(steering)
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
        return self._stepper.state()

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
        return buffer.rows(filled, noise_row(self._distribution, filled), self._memory)

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
