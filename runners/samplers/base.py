"""Samplers: environments, an actor, and the rollouts that they make.

A sampler's work is started and finished: a runner may learn in between, where the sampler works elsewhere.

One long file: what a rollout under way is while it is sampled, and what of it is saved and put back, belong together.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.environments.info_metrics import Sums, metrics_of
from hybridppo.environments.info_metrics import refused as without_infos
from hybridppo.environments.steering import Steering, from_json, latest, refused
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.episodes import EpisodeStatistics, rows_broken_off
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.rollouts.rollout import Rollout
from hybridppo.rollouts.turns import steps_by_turns
from hybridppo.runners.samplers.stepping import Flag, StepperState
from hybridppo.runners.samplers.under_way import (
    RolloutUnderWay,
    finals_of,
    remembered_of,
    require_like,
    require_rollout_of,
    rows_that_matter,
    saved_finals,
)
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.state_dependent import noise_row
from hybridppo.system.interruption import Stopped
from hybridppo.system.threads import one_torch_thread
from hybridppo.system.validation import whole

Array = NDArray[Any]

logger = logging.getLogger(__name__)

ROLLOUTS_LOST_IN_A_ROW = 3
"""How many rollouts in a row may be lost to environments that were restarted."""


@dataclass
class PolicyCounts:
    """What one of several policies has done."""

    columns: Array
    """Its own, of the columns of a rollout."""
    statistics: EpisodeStatistics
    agent_steps: int = 0

    def add(self, rewards: Array, ended: Array, valid: Array, acting: Array, broken_off: Array | None) -> None:
        """Count rows `[T, N]`, as `EpisodeStatistics.add`; those where an agent is `acting` are steps."""
        own = self.columns
        self.statistics.add(
            rewards[:, own], ended[:, own], valid[:, own], None if broken_off is None else broken_off[:, own]
        )
        self.agent_steps += int(acting[:, own].sum())

    def state(self) -> dict[str, Any]:
        """What `load_state` takes."""
        return {"agent_steps": self.agent_steps, "statistics": self.statistics.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.agent_steps = whole(state, "agent_steps")
        self.statistics.load_state(state["statistics"])


class BaseSampler(ABC):
    """What samplers share: from the arrays of a rollout to the rollout, its statistics and its noise.

    Args:
        stop: set to break off between two steps.
        buffers: the arrays that rollouts are written to, in turn; a rollout is good until its arrays' next turn.
        distribution: of the action space.
        encode: of the observations.
        skips_row_after_end: whether environments spend the row after an episode's end on their reset.
        noise: owner of the actions' randomness; one `[T, N]` buffer is drawn from it per rollout.
        memory: the actors', where they have one.
        num_agents: columns that an environment has, and that are restarted together.
        clips_rewards: whether rewards are learned from between -1 and 1; statistics are of what they are.
    """

    def __init__(
        self,
        stop: Flag,
        buffers: list[RolloutBuffer],
        distribution: Distribution,
        encode: ObservationEncoder,
        *,
        skips_row_after_end: bool,
        noise: np.random.Generator,
        memory: MemoryLayout | None = None,
        num_agents: int = 1,
        clips_rewards: bool = False,
    ) -> None:
        self._memory, self._stop = memory, stop
        self._num_agents, self._clips_rewards = num_agents, clips_rewards
        self._buffers, self._turn = buffers, 0
        self.num_steps, self.num_envs = buffers[0].rewards.shape
        self.statistics = EpisodeStatistics(self.num_envs)
        self.env_steps = self._lost = self.env_restarts = 0
        """The last: how often an environment was restarted."""
        self._distribution, self._encode, self._noise = distribution, encode, noise
        self._has_warned, self._skips_row_after_end = False, skips_row_after_end
        self._resetting = np.zeros(self.num_envs, dtype=np.bool_)
        self._under_way: RolloutUnderWay | None = None
        self._info_names: Sequence[str] = ()
        self._info_metrics: dict[str, float] = {}
        self._has_told_of_infos = False
        self.steering: list[Steering] = []
        """What was done in the environments, of each method and attribute the latest."""
        self._steering_due: list[Steering] = []
        """What is to be done once the rollout under way has ended."""
        self.failure: str | None = None
        """Why the environments were given up, if they were."""
        self.by_policy: dict[str, PolicyCounts] = {}
        """What each policy did, if there are several."""

    def count_by_policy(self, columns: Mapping[str, Sequence[int]]) -> None:
        """Count what each of several policies does, from the start; steps are then those of environments.

        Args:
            columns: of each policy, which agents of an environment are its own.
        """
        first = np.arange(0, self.num_envs, self._num_agents)[:, None]
        for name, own in columns.items():
            self.by_policy[name] = self._counts_of((first + np.asarray(own)).ravel())

    def _counts_of(self, columns: Array) -> "PolicyCounts":
        return PolicyCounts(columns, EpisodeStatistics(len(columns)))

    def drop_running(self, columns: slice = slice(None)) -> None:
        """Forget the unfinished episodes of some columns, because their environments were started anew."""
        self.statistics.drop_running(columns)
        lost = np.arange(self.num_envs)[columns]
        for policy in self.by_policy.values():
            policy.statistics.drop_running(np.isin(policy.columns, lost))

    def _num_steps_in(self, valid: Array) -> int:
        """How many steps rows `[T, N]` are: of agents; of environments, if policies are counted each by itself."""
        if not self.by_policy:
            return int(valid.sum())
        return int(valid.reshape(len(valid), self.num_envs // self._num_agents, self._num_agents).any(2).sum())

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment, or what is left of them if they are under way."""
        self.sample_async(actor)
        return self.sample_wait()

    def sample_async(self, actor: SamplingActor) -> None:
        """Begin the next rollout, or go on with the one that is paused, with an actor of the same parameters.

        The actor's parameters must stay as they are until `sample_wait`.
        """
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
        """Break off before the next step, and any work that begins from now on. May be called in a signal's handler."""
        self._stop[0] = 1

    def pause(self) -> None:
        """Break off a rollout that is under way: at the next step, or where it is anyway."""
        if self._under_way is not None and self._under_way.is_running:
            self._stop[0] = 1
            try:
                self._wait_for(self._under_way)
            finally:
                self._stop[0] = 0

    def wait(self) -> None:
        """Wait for a rollout that is under way, and leave it so."""
        if self._under_way is not None:
            self._wait_for(self._under_way)

    def give_up(self, reason: str) -> None:
        """Drop the rollout under way: the environments have failed, and their state is not saved any more."""
        self._under_way, self.failure = None, f"they had failed: {reason}"

    def sample_wait(self) -> Rollout:
        """Wait for the rollout that was begun.

        Raises:
            Stopped: where it was broken off; it stays under way.
        """
        under_way = self._rollout_ended()
        self._measure_rollout()
        self._steer_what_is_due()
        buffer = self._filled(under_way.buffer)
        valid, _ = self._count(buffer)
        if not self._has_steps(buffer, valid):
            assert under_way.actor is not None  # whoever finishes a rollout has let it go on
            return self.collect(under_way.actor)
        return self._rollout_of(buffer, valid, under_way.finals, under_way.version)

    def _count(self, buffer: RolloutBuffer) -> tuple[Array, Array | None]:
        """Count steps; which rows are steps, and where an episode was broken off, if any was."""
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
        """Whether restarts have left more than a single step, from which nothing can be learned."""
        self._lost = self._lost + 1 if buffer.restarted.any() and valid.sum() < 2 else 0
        if self._lost > ROLLOUTS_LOST_IN_A_ROW:
            raise EnvError(f"in {self._lost} rollouts in a row, every episode was broken off by a restart")
        return not self._lost

    def _rollout_of(self, buffer: RolloutBuffer, valid: Array, finals: FinalObservations, version: int) -> Rollout:
        """The rollout of rows that are counted; if agents take turns, with the steps of each."""
        if not self._has_warned:
            self._look_at_bounds(buffer)
        if not buffer.waiting.any():
            return self._rollout(buffer, valid, finals, version)
        steps, are_steps, finals = steps_by_turns(buffer, valid, finals)
        if not are_steps.any():
            raise EnvError(
                f"in a rollout of {len(valid)} turns, no agent has come to its next turn: sample more "
                f"(num_steps={self.num_steps}, for {self._num_agents} agents that take turns)"
            )
        return self._rollout(steps, are_steps, finals, version)

    def metrics(self) -> Metrics:
        """What else is to be known of sampling, in each iteration."""
        return {}

    def measure_infos(self, names: Sequence[str]) -> None:
        """Sum up these entries of infos from now on; `info_metrics` gives their means of the last rollout.

        Raises:
            ConfigurationError: if these environments have none, or they are not available here.
        """
        raise without_infos(f"what a {type(self).__name__} steps")

    def info_metrics(self) -> dict[str, float]:
        """The means of the last rollout."""
        return self._info_metrics

    def _take_infos(self) -> list[Sums]:
        """What was summed up, of each process."""
        raise NotImplementedError

    def _measure_rollout(self) -> None:
        """Keep the means of the rollout that has ended."""
        if not self._info_names:
            return
        sums = self._take_infos()
        self._info_metrics = metrics_of(sums)
        missing = [name for name in self._info_names if not any(part[name][1] for part in sums)]
        if missing and not self._has_told_of_infos:
            logger.warning("info_metrics: no step of the first rollout has %s in its info", ", ".join(missing))
        self._has_told_of_infos = True

    def steer(self, steering: Steering, *, while_paused: bool = False) -> list[Any]:
        """Call a method, or set an attribute, in every environment: once the rollout under way has ended.

        Args:
            steering: what to do.
            while_paused: whether to do it at once if a rollout is under way and nobody works on it.

        Returns:
            What each environment returned; nothing if the rollout under way was broken off, and it is done later.

        Raises:
            ConfigurationError: if these environments cannot be reached.
            EnvError: if they have no such method or attribute.
        """
        self._require_steerable()
        if self._under_way is not None and not (while_paused and self.is_paused):
            self._wait_for(self._under_way)
            if not self._is_complete(self._under_way.filled):
                self._steering_due.append(steering)
                return []
        return self._steered(steering)

    def _steered(self, steering: Steering) -> list[Any]:
        found = self._steer(steering)
        self.steering = latest(self.steering, steering)
        return found

    def _steer_what_is_due(self) -> None:
        """What was asked for within a rollout that was broken off, and has ended now."""
        due, self._steering_due = self._steering_due, []
        for steering in due:
            self._steered(steering)

    def _steering_state(self) -> dict[str, Any]:
        """What `_load_steering` takes, as JSON can hold it."""
        return {
            "steering": [list(each) for each in self.steering],
            "steering_due": [list(each) for each in self._steering_due],
        }

    def _load_steering(self, state: dict[str, Any]) -> None:
        """Do it again, in environments that are new. Earlier releases did not write it."""
        self._steering_due = from_json(state.get("steering_due", []))
        for steering in from_json(state.get("steering", [])):
            self._steered(steering)

    def _require_steerable(self) -> None:
        """Refuse to steer environments that cannot be reached."""
        raise refused(f"what a {type(self).__name__} steps", "train in one process, or with num_workers")

    def _steer(self, steering: Steering) -> list[Any]:
        """Do it in every environment, of which none is stepped now."""
        raise NotImplementedError

    @property
    def is_under_way(self) -> bool:
        """Whether a rollout was started and not finished."""
        return self._under_way is not None

    @property
    def is_paused(self) -> bool:
        """Whether a rollout is under way that nobody works on."""
        return self._under_way is not None and not self._under_way.is_running

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, with the steps of a paused rollout, which that does not count before it is finished."""
        if self._under_way is None:
            return self.env_steps
        buffer, filled = self._under_way.buffer, self._under_way.filled
        ended = (buffer.terminated | buffer.truncated)[:filled]
        valid = self._valid_rows(ended, buffer.absent[:filled])
        return self.env_steps + self._num_steps_in(valid & ~buffer.waiting[:filled])

    @property
    @abstractmethod
    def seconds_filling(self) -> float:
        """How long the last rollout took its sampler, waited for or not."""

    def _look_at_bounds(self, buffer: RolloutBuffer) -> None:
        """Warn, once, of observations outside of the bounds of their space, which is looked at once per rollout."""
        if buffer.restarted.any():  # rows that were lost are zeros
            return
        rows, frames = buffer.observations, self._encode.frames
        warning = self._encode.warning_of_bounds(rows if frames is None else frames.repeated(rows))
        if warning is not None:
            self._has_warned = True
            logger.warning(
                "%s: give the space the true bounds (-inf and inf where there are none), or mend the environment. "
                "It is learned from as it is, and this is said once",
                warning,
            )

    def _no_row(self, count: int = 0) -> Array:
        """So many rows of zeros, as actors take them."""
        return np.zeros((count, *self._encode.shape), self._encode.dtype)

    def _draw_noise(self, buffer: RolloutBuffer) -> None:
        """Draw what the actions of a rollout take."""
        buffer.noise[:] = self._distribution.draw_noise(self._noise, (len(buffer.noise), self.num_envs))

    def _filled(self, buffer: RolloutBuffer) -> RolloutBuffer:
        """The part of the buffer that was filled; what is asked for once the rollout has ended."""
        return buffer

    def _is_complete(self, filled: int) -> bool:
        """Whether a rollout of which nobody fills any more rows has all of them."""
        return filled == len(self._buffers[0].rewards)

    @abstractmethod
    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        """Begin to fill the buffer from row `first` on."""

    @abstractmethod
    def _fill_wait(self) -> tuple[int, FinalObservations]:
        """Wait until it is filled, or the flag was seen: how many rows are, and final observations of the new ones."""

    @abstractmethod
    def restart(self, env_seed: int) -> None:
        """Start every environment anew, the `i`-th from `env_seed + i`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing."""

    @abstractmethod
    def _stepper_state(self) -> StepperState:
        """The environments' state, as `Stepper.state`; raises `EnvStateError`."""

    @abstractmethod
    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """Put it back, or raise `EnvStateError`."""

    def _next_buffer(self) -> RolloutBuffer:
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        return buffer

    def _rollout_under_way(self) -> "RolloutUnderWay":
        assert self._under_way is not None, "no rollout is under way: begin one first"
        return self._under_way

    def _rollout_ended(self) -> "RolloutUnderWay":
        """Wait for the rollout that was begun, which is not under way any more; raises `Stopped` if it is paused."""
        under_way = self._rollout_under_way()
        self._wait_for(under_way)
        if not self._is_complete(under_way.filled):
            raise Stopped
        self._under_way = None
        return under_way

    def _wait_for(self, under_way: "RolloutUnderWay") -> None:
        if under_way.is_running:
            under_way.is_running = False
            under_way.filled, finals = self._fill_wait()
            under_way.finals += finals

    def _valid_rows(self, ended: Array, absent: Array) -> Array:
        """Which rows of a rollout are steps, `[T, N]`.

        All but those that environments spend on their reset, and those of agents that have left.
        """
        valid: Array = ~absent
        if self._skips_row_after_end:
            valid[:1] &= ~self._resetting
            valid[1:] &= ~ended[:-1]
        return valid

    def _break_off(self, buffer: RolloutBuffer, ended: Array, valid: Array) -> Array | None:
        """Where environments were restarted before their episode had ended, `[T, N]`, with no such row left valid."""
        if not buffer.restarted.any():
            return None
        self.env_restarts += int(buffer.restarted.sum()) // self._num_agents
        broken_off: Array = (buffer.restarted > 0) & ~ended
        valid &= ~rows_broken_off(ended, broken_off)
        np.logical_or(buffer.terminated, broken_off, out=buffer.terminated)  # nothing of what followed belongs to it
        return broken_off

    def _rollout(self, buffer: RolloutBuffer, valid: Array, finals: FinalObservations, version: int) -> Rollout:
        actions = torch.from_numpy(buffer.actions)
        # The behaviour log-probabilities, from the very outputs that the actions were drawn from.
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
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `load_state` takes: tensors by name, and what JSON can hold. A rollout under way must be paused."""
        state = {
            "env_steps": self.env_steps,
            "env_restarts": self.env_restarts,
            "rollouts_lost": self._lost,
            "noise": self._noise.bit_generator.state,
            "statistics": self.statistics.state(),
            "by_policy": {name: policy.state() for name, policy in self.by_policy.items()},
            "resetting": self._resetting.tolist(),
            **self._steering_state(),
        }
        try:
            if self.failure is not None:
                raise EnvStateError(self.failure)
            states, observation, remembered = self._stepper_state()
        except EnvStateError as error:  # a rollout that is under way is lost with them: nothing could go on with it
            return {}, {**state, "environments": {"not_saved": str(error)}}
        tensors, under_way = self._state_under_way()
        tensors["observation"] = torch.from_numpy(observation)
        if self._memory is not None:
            tensors["memory"] = torch.from_numpy(remembered)
        return tensors, {**state, "environments": {"states": states}, "under_way": under_way}

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
        """Go on from a saved state.

        Returns:
            Why the environments could not, and start anew from `env_seed`; None where they go on exactly.
        """
        state = {"env_restarts": 0, "rollouts_lost": 0, **state}  # which earlier releases did not write
        self.env_steps, self.env_restarts = whole(state, "env_steps"), whole(state, "env_restarts")
        self._lost = whole(state, "rollouts_lost")
        self._noise.bit_generator.state = state["noise"]
        self.statistics.load_state(state["statistics"])
        for name, policy in self.by_policy.items():
            policy.load_state(state["by_policy"][name])
        self._load_steering(state)
        reason = self._load_environments(tensors, state)
        if reason is None:
            resetting = state["resetting"]
            if len(resetting) != self.num_envs or not all(type(value) is bool for value in resetting):
                raise ValueError(f"resetting is no list of {self.num_envs} truths")
            self._resetting = np.array(resetting, dtype=np.bool_)
            if state["under_way"] is not None:
                self._load_under_way(tensors, state["under_way"])
            return None
        self.drop_running()
        self._resetting[:] = False
        self.restart(env_seed)
        return reason

    def _load_environments(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> str | None:
        environments = state.get("environments")
        if environments is None:
            return "this checkpoint was written by a version that did not save them"
        if "not_saved" in environments:
            return str(environments["not_saved"])
        if (problem := self._cannot_end(state.get("under_way") or {})) is not None:
            return problem
        observation = tensors["observation"].numpy()
        require_like("observation", tensors["observation"], self._no_row(self.num_envs))
        if not np.isfinite(self._encode.layout.numbers(observation)).all():
            raise ValueError("the saved observations are no finite numbers")
        remembered = remembered_of(tensors, self.num_envs, self._memory)
        try:
            self._load_stepper_state(environments["states"], observation, remembered)
        except EnvStateError as error:
            return str(error)
        return None

    def _rows_that_matter(self, buffer: RolloutBuffer, filled: int) -> dict[str, tuple[Array, slice]]:
        return rows_that_matter(buffer, filled, noise_row(self._distribution, filled), self._memory)

    def _cannot_end(self, under_way: dict[str, Any]) -> str | None:
        """Why a rollout that was under way cannot be ended by this sampler."""
        return "a rollout was under way on a device, not on the host" if "device_noise" in under_way else None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        buffer, filled = self._next_buffer(), whole(state, "filled")
        if filled > self.num_steps:
            raise ValueError(f"of {self.num_steps} rows, {filled} are said to be filled")
        for name, (array, rows) in self._rows_that_matter(buffer, filled).items():
            # What earlier releases did not write.
            if name in ("absent", "waiting") and f"buffer.{name}" not in tensors:
                array[rows] = False
                continue
            require_like(f"buffer.{name}", tensors[f"buffer.{name}"], array[rows])
            array[rows] = tensors[f"buffer.{name}"].numpy()
        finals = finals_of(state["final_rows"], tensors, filled, self._no_row(self.num_envs))
        self._under_way = RolloutUnderWay(buffer, whole(state, "version"), filled, finals)

    def own_parts(self, rollout: Rollout) -> Any:
        """What this process has of a rollout: all of it."""
        return rollout

    def check(self, rollout: Rollout) -> None:
        """Refuse a rollout out of a file that is none of this sampler's.

        Raises:
            ValueError: where a tensor is of another shape or type, or a row is none.
        """
        require_rollout_of(self._buffers[0], rollout, self._encode, self._memory)
