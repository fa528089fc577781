"""Samples rollouts: begins, pauses and continues them, counts their steps, and saves their state.

`sample_async` begins a rollout and `sample_wait` returns it, so that a runner can learn in between. What fills the rows
is another object: a `LocalFiller` in this process, or the `Workers` of `workers.py`.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments, Steering, closed, from_json, latest
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, HybridPPOError, shown_error
from hybridppo.interfaces import Metrics, SamplingActor
from hybridppo.rollouts.rollout import FinalObservations, MemoryLayout, Rollout, steps_by_turns
from hybridppo.runners.counts import Counts, InfoMetrics
from hybridppo.runners.filling import Flag, Stepper
from hybridppo.spaces.arrays import Array
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import blas_threads, torch_threads
from hybridppo.system.validation import part_of, whole

logger = logging.getLogger(__name__)

CHUNK = 128
"""Steps for which a rollout of whole episodes draws noise at a time, because its length is not known beforehand."""
FIRST_CAPACITY = 8 * CHUNK
"""Steps that fit into the first buffers for whole episodes; they grow if episodes are longer."""
TENSORS_OF_ROLLOUTS = (
    "observations", "actions", "log_probs", "rewards", "terminated", "truncated", "final_observations", "starts",
    "states", "history",
)  # fmt: skip
"""The tensors of a rollout whose layout is known beforehand."""

COLUMNS_AS_WRITTEN = ("observations", "terminated", "truncated", "starts", "states", "history")
"""The columns of a rollout that are the arrays of its buffer."""


@dataclass
class UnfinishedRollout:
    """A rollout that was begun and not returned."""

    buffer: Rollout
    version: int
    """The version of the parameters that act."""
    filled: int = 0
    """The number of its rows; only set while it is not being filled."""
    finals: FinalObservations = field(default_factory=list)
    actor: Any = None
    """The actor that it was last continued with."""
    is_running: bool = False
    """Whether it is being filled."""
    waits: bool = False
    """Whether it waits for a longer training, without a step."""


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout is made of, wherever it is sampled."""

    distribution: Distribution
    """The distribution of the actions."""
    noise: np.random.Generator
    """The generator of the actions' randomness."""
    env_seed: int
    """The `i`-th environment starts from `env_seed + i`."""
    num_steps: int = FIRST_CAPACITY
    """`T`; ignored with `num_episodes`."""
    num_episodes: int | None = None
    """Whole episodes of a single environment instead, the `k`-th of which is reset with `env_seed + k`."""
    memory: MemoryLayout | None = None
    """The layout of the state of a recurrent actor."""
    pin_for: torch.device | None = None
    """The device that rollouts are copied to, if it copies faster from page-locked memory."""
    discounts: Callable[[], Array] | None = None
    """Returns the present discounts of the rewards in `Rollout.returns_so_far`, `[N]`; None for rollouts without."""


class Sampler:
    """Samples rollouts: each is begun, perhaps paused and saved, and returned.

    Args:
        environments: the environments, or what steps them; closed with the sampler. For rollouts on the host, a
            `LocalFiller`, or `Workers`.
        plan: what a rollout is made of; one `[T, N]` block of noise is drawn per rollout.
        counts: counts the steps; None for those of rollouts on the host.
        thread: fills a rollout as soon as it is begun; None to fill it when it is waited for. A thread is faster if
            learning does not need Python meanwhile, as on a GPU.
    """

    rows_are: ClassVar[str] = "on the host"
    """Where the rows of an unfinished rollout are, for messages: another kind of sampler cannot continue it."""

    def __init__(
        self,
        environments: Any,
        plan: RolloutPlan,
        counts: Counts | None = None,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self._environments, self._encode, self._plan, self._thread = environments, environments.encode, plan, thread
        self._filling: Callable[[], tuple[int, FinalObservations]] = closed
        self._stop: Flag = bytearray(1)
        """Set to 1 to stop before the next step."""
        if counts is None:
            self._buffers = deque[Rollout](environments.buffers)
            num_columns = self._buffers[0].rewards.shape[1]
            environments.counts = counts = Counts(environments, num_columns, plan.discounts)
            self._stop = environments.stop
        self._has_warned = False
        self.counts, self.infos = counts, InfoMetrics(environments)
        self.num_steps, self.num_envs = plan.num_steps, counts.num_columns
        self._unfinished: UnfinishedRollout | None = None
        self.metrics: Metrics = {}
        """Additional metrics of the last rollout."""
        self.seconds_filling = 0.0
        """The time that the sampler spent on the last rollout, also while nobody waited for it."""
        self.steering: list[Steering] = []
        """Calls and changes in the environments: the latest of each method and attribute."""
        self._steering_due: list[Steering] = []
        """Calls and changes that wait for the end of the rollout under way."""
        self.failure: str | None = None
        """Why the environments were given up; None if they were not."""
        self._broken_by: HybridPPOError | None = None

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next rollout, or the rest of the one under way."""
        self.sample_async(actor)
        return self.sample_wait()

    def sample_async(self, actor: SamplingActor) -> None:
        """Begin the next rollout, or continue the paused one with an actor of the same parameters.

        The actor's parameters must not change before `sample_wait`.
        """
        if self._broken_by is not None:  # a callback has suppressed it
            raise self._broken_by
        unfinished = self._unfinished = self._unfinished or UnfinishedRollout(self._begin(), actor.version)
        assert not unfinished.is_running, "a rollout is being sampled: wait for it first"
        unfinished.actor = actor
        if not self._is_complete(unfinished):
            self._fill_async(unfinished, actor)
            unfinished.is_running = True

    def prepare(self, actor: SamplingActor) -> None:
        """Begin the next rollout without a step, for a training that is longer later."""
        self._unfinished = UnfinishedRollout(self._begin(), actor.version, waits=True)

    def sample_wait(self) -> Rollout:
        """Wait for the rollout that was begun.

        Raises:
            Stopped: if it was paused; it stays under way.
        """
        self.wait()
        unfinished = self._unfinished
        assert unfinished is not None, "no rollout is under way: begin one first"
        if not self._is_complete(unfinished):
            raise Stopped
        self._unfinished = None
        self.infos.end_rollout()
        self._steer_due()
        rollout = self._read(unfinished)
        if rollout is None:
            return self.collect(unfinished.actor)
        return rollout

    def wait(self) -> None:
        """Wait until the rollout under way is filled or stopped, without returning it."""
        unfinished = self._unfinished
        if unfinished is None or not unfinished.is_running:
            return
        unfinished.is_running = False
        try:
            self._fill_wait(unfinished)
        except BaseException as error:
            self._note(error)
            raise

    def pause(self) -> None:
        """Pause the rollout under way before its next step."""
        if self._unfinished is None or not self._unfinished.is_running:
            return
        self._stop[0] = 1
        try:
            self.wait()
        finally:
            self._stop[0] = 0

    def request_stop(self) -> None:
        """Stop before the next step, for good. It may be called in a signal handler."""
        self._stop[0] = 1

    def give_up(self, reason: str) -> None:
        """Drop the rollout under way, because the environments have failed; their state is not saved any more."""
        self._unfinished, self.failure = None, f"they had failed: {reason}"

    def _note(self, error: BaseException) -> None:
        """Note an error that has broken off a rollout, without its traceback, which would keep this sampler alive."""
        if isinstance(error, HybridPPOError):
            self._broken_by = type(error)(str(error))
        else:
            self._broken_by = EnvError(f"a rollout was broken off: {shown_error(error)}")

    @property
    def broken_by(self) -> HybridPPOError | None:
        """The error that has broken off a rollout, whoever waited for it; None if there was none."""
        return self._broken_by

    @property
    def is_under_way(self) -> bool:
        """Whether a rollout was begun and not returned."""
        return self._unfinished is not None

    @property
    def is_paused(self) -> bool:
        """Whether the rollout under way is not being filled."""
        return self._unfinished is not None and not self._unfinished.is_running

    @property
    def steps_sampled(self) -> int:
        """Like `counts.env_steps`, but with the steps of a paused rollout."""
        unfinished = self._unfinished
        if unfinished is None:
            return self.counts.env_steps
        return self.counts.steps_with(unfinished.buffer, unfinished.filled)

    def steer(self, steering: Steering) -> list[Any]:
        """Call a method or set an attribute in every environment, once the rollout under way has ended.

        Args:
            steering: the call or the change.

        Returns:
            The result of each environment; nothing if the rollout under way was broken off, since it is applied later.

        Raises:
            ConfigurationError: if the environments are not Python objects that can be reached.
            EnvError: if they have no such method or attribute.
        """
        if self._unfinished is not None and not self._unfinished.waits:
            self.wait()
            if not self._is_complete(self._unfinished):
                self._steering_due.append(steering)
                return []
        found: list[Any] = self._environments.steer(steering)
        self.steering = latest(self.steering, steering)
        return found

    def _steer_due(self) -> None:
        """Apply what was requested during a rollout that was broken off and has now ended."""
        due, self._steering_due = self._steering_due, []
        for steering in due:
            self.steer(steering)

    def _load_steering(self, state: dict[str, Any]) -> None:
        """Apply saved calls and changes to the environments, which are new; then again those of this process."""
        for steering in (*from_json(state["steering"]), *self.steering):
            self.steer(steering)
        self._steering_due = from_json(state["steering_due"])

    def restart(self, env_seed: int) -> None:
        """Reset every environment, the `i`-th with `env_seed + i`."""
        self._environments.restart(env_seed)

    def close(self) -> None:
        """Release everything; a second call does nothing."""
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._filling = closed  # else an error in the thread, which its future keeps, would keep the sampler alive
        self._environments.close()

    def _begin(self) -> Any:
        """The arrays for the next rollout, with new noise."""
        buffer = self._next_buffer()
        if self._plan.num_episodes is None:
            buffer.noise[:] = self._plan.distribution.draw_noise(self._plan.noise, (len(buffer.noise), self.num_envs))
        return buffer

    def _next_buffer(self) -> Rollout:
        """The arrays of all rollouts, by turns."""
        self._buffers.rotate(-1)
        return self._buffers[-1]

    def _fill_async(self, unfinished: UnfinishedRollout, actor: SamplingActor) -> None:
        """Begin to fill the rest of the rows."""
        fill = self._environments.begin_to_fill(unfinished.buffer, actor, unfinished.filled)
        self._filling = partial(on_one_thread, fill) if self._thread is None else self._thread.submit(fill).result

    def _fill_wait(self, unfinished: UnfinishedRollout) -> None:
        """Wait until all rows are filled or the flag was seen; set `filled` and `finals`."""
        unfinished.filled, finals = self._filling()
        unfinished.finals += finals
        self.seconds_filling = self._environments.seconds

    def _is_complete(self, unfinished: UnfinishedRollout) -> bool:
        """Whether a rollout that is not being filled has all its rows."""
        if self._plan.num_episodes is None:
            return unfinished.filled == self.num_steps
        return num_ends(unfinished.buffer, 0, unfinished.filled) >= self._plan.num_episodes

    def _read(self, unfinished: UnfinishedRollout) -> Rollout | None:
        """Count and return a rollout that has ended; None if restarts have left nothing to learn from."""
        buffer = unfinished.buffer
        if unfinished.filled < len(buffer.rewards):
            buffer = buffer.with_columns(**buffer.rows(unfinished.filled, self._plan.memory))
        valid, _ = self.counts.add(buffer)
        returns = self.counts.returns_so_far(buffer, valid)
        if not self._has_steps(buffer, valid):
            return None
        return self._rollout_of(buffer, valid, unfinished.finals, unfinished.version, returns)

    def _has_steps(self, buffer: Rollout, valid: Array) -> bool:
        """Whether restarts have left at least two steps: nothing can be learned from one."""
        is_lost = bool(buffer.restarted.any())
        if is_lost:
            steps = steps_by_turns(buffer, valid, [], self._plan.memory)[1] if buffer.waiting.any() else valid
            is_lost = steps.sum() < 2
        self.counts.require_steps(is_lost)
        return not is_lost

    def _rollout_of(
        self, buffer: Rollout, valid: Array, finals: FinalObservations, version: int, returns: Array | None
    ) -> Rollout:
        """The rollout of counted rows, with their returns so far; if agents take turns, of the steps of each agent."""
        if not self._has_warned and not buffer.restarted.any():  # dropped rows are zeros
            rows, frames = buffer.observations[:-1], self._encode.frames
            rows = rows if frames is None else frames.repeated(rows)
            self._has_warned = self._encode.warned_of_bounds(rows, buffer.absent | buffer.waiting)
        turns = None
        if buffer.waiting.any():
            buffer, valid, finals, last_rows, turns = steps_by_turns(buffer, valid, finals, self._plan.memory)
            if not valid.any():
                raise EnvError(
                    f"in a rollout of {self.num_steps} turns, no agent has had a second turn: increase num_steps, "
                    f"which is {self.num_steps} for {self._environments.num_agents} agents that take turns"
                )
            returns = None if returns is None else np.take_along_axis(returns, last_rows, 0)
        actions = torch.from_numpy(buffer.actions)
        # The behaviour log-probabilities, from the same outputs as the actions.
        with torch_threads(1) if torch.get_num_threads() > 1 else nullcontext():
            log_probs = self._plan.distribution.log_prob(torch.from_numpy(buffer.outputs), actions)
        columns = {name: getattr(buffer, name) for name in COLUMNS_AS_WRITTEN}
        columns |= {
            "rewards": buffer.rewards.clip(-1.0, 1.0) if self._environments.clips_rewards else buffer.rewards,
            "valid_rows": np.flatnonzero(valid),
            "final_rows": np.array([step * self.num_envs + env for step, env, _ in finals], np.int64),
            "final_observations": np.stack([final for _, _, final in finals]) if finals else self._no_rows(0),
            "returns_so_far": returns,
            "turns": None if turns is None or self._plan.memory is None else turns[None],
            **infos_of_steps(buffer.infos, valid),
        }
        tensors = {name: torch.from_numpy(array) for name, array in columns.items() if array is not None}
        return Rollout(actions=actions, log_probs=log_probs, version=version, **tensors)

    def _no_rows(self, count: int) -> Array:
        """`count` rows of zeros, as actors take them."""
        return np.zeros((count, *self._encode.shape), self._encode.dtype)

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`: tensors by name, and a JSON object. A rollout under way must be paused."""
        state = {
            **self.counts.state(),
            "noise": self._plan.noise.bit_generator.state,
            "steering": [list(each) for each in self.steering],
            "steering_due": [list(each) for each in self._steering_due],
            "under_way": None,
        }
        try:
            if self.failure is not None:
                raise EnvStateError(self.failure)
            tensors, environments = self._state_of_environments()
        except EnvStateError as error:  # the rollout under way is lost too: nothing could continue it
            return {}, {**state, "environments": {"not_saved": str(error)}}
        if (unfinished := self._unfinished) is not None:
            assert not unfinished.is_running, "a rollout is being sampled: pause it first"
            rows, finals = self._rows_of(unfinished.buffer, unfinished.filled), unfinished.finals
            rows["final_observations"] = torch.from_numpy(
                np.stack([final for _, _, final in finals]) if finals else self._no_rows(0)
            )
            tensors |= {f"buffer.{name}": tensor.clone() for name, tensor in rows.items()}
            state["under_way"] = {
                "version": unfinished.version,
                "filled": unfinished.filled,
                "final_rows": [[step, env] for step, env, _ in finals],
                "rows_are": self.rows_are,
                **self._noise_under_way(),
            }
        return tensors, {**state, **self.infos.state(), "environments": environments}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Restore a saved state.

        Returns:
            Why the environments could not be restored and start anew from `env_seed`; None if they were restored.
        """
        self.counts.load_state(state)
        self._plan.noise.bit_generator.state = state["noise"]
        self._load_steering(state)
        unfinished = state["under_way"]
        if unfinished is not None and not unfinished["filled"] and unfinished["rows_are"] != self.rows_are:
            unfinished = None  # without a step, it can begin in another way
        try:
            if "not_saved" in state["environments"]:
                raise EnvStateError(str(state["environments"]["not_saved"]))
            if unfinished is not None and unfinished["rows_are"] != self.rows_are:
                raise EnvStateError(f"a rollout was under way {unfinished['rows_are']}, not {self.rows_are}")
            self._load_environments(tensors, state["environments"])
        except EnvStateError as error:
            self._steer_due()  # the rollout that it waited for is lost
            self.counts.drop_running()
            self.restart(env_seed)
            return str(error)
        if unfinished is not None:
            self._load_rows(part_of(tensors, "buffer."), unfinished, whole(unfinished, "filled"))
        else:
            self._steer_due()  # no rollout is under way that it could wait for
        self.infos.load_state(state)
        return None

    def _state_of_environments(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `_load_environments`; raises `EnvStateError`."""
        states, observation, remembered = self._environments.state()
        tensors = {"observation": observation} | ({} if self._plan.memory is None else {"memory": remembered})
        return {name: torch.from_numpy(array) for name, array in tensors.items()}, {"states": states}

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        """Restore the result of `_state_of_environments`, or raise `EnvStateError`."""
        require_like("observation", tensors["observation"], self._no_rows(self.num_envs))
        observation = tensors["observation"].numpy()
        if not np.isfinite(self._encode.layout.numbers(observation)).all():
            raise ValueError("the saved observations are not finite")
        remembered = np.zeros(
            (self.num_envs, 0 if self._plan.memory is None else self._plan.memory.state_size + 2), np.float32
        )
        if self._plan.memory is not None:
            require_like("memory", tensors["memory"], remembered)
            remembered = tensors["memory"].numpy()
        self._environments.load_state(environments["states"], observation, remembered)
        if self._plan.num_episodes is not None:
            self._environments.seed_episodes(self.counts.statistics.episodes)

    def _rows_of(self, buffer: Any, filled: int) -> dict[str, Tensor]:
        """The rows of a rollout that a checkpoint needs, by name; views."""
        end = self.num_steps if self._plan.num_episodes is None else chunk_end(filled)
        noise = slice(self._plan.distribution.noise_row(filled), self._plan.distribution.noise_rows(end))
        return {name: torch.as_tensor(rows) for name, rows in buffer.rows(filled, self._plan.memory, noise).items()}

    def _noise_under_way(self) -> dict[str, Any]:
        """The noise of the rollout under way as JSON, if it is not among the rows."""
        return {}

    def _load_rows(self, rows: dict[str, Tensor], state: dict[str, Any], filled: int) -> None:
        """Restore a rollout under way."""
        buffer = self._next_buffer()
        if self._plan.num_episodes is not None:
            self._environments.make_room(buffer, chunk_end(filled))
        if filled > len(buffer.rewards):
            raise ValueError(f"filled is {filled}, but a rollout has {len(buffer.rewards)} rows")
        for name, mine in self._rows_of(buffer, filled).items():
            load_into(f"buffer.{name}", mine, rows.get(name))
        saved = rows["final_observations"]
        require_like("the final observations", saved, self._no_rows(len(state["final_rows"])))
        finals = [(*place, final) for place, final in zip(state["final_rows"], saved.numpy(), strict=True)]
        for step, env, _ in finals:
            if not (type(step) is type(env) is int and 0 <= step < filled and 0 <= env < self.num_envs):
                raise ValueError(f"there is no step {step} of environment {env}")
        self._unfinished = UnfinishedRollout(buffer, whole(state, "version"), filled, finals, waits=not filled)
        if self._plan.num_episodes is not None:
            begun = self.counts.statistics.episodes + num_ends(buffer, 0, filled)
            self._environments.seed_episodes(begun)

    def own_parts(self, rollout: Any) -> Any:
        """The part of a rollout from a file that this process has: all of it.

        Raises:
            ValueError: if a tensor has another shape or type, or a row is out of range.
        """
        encode = self._encode
        sizes, infos = (len(rollout.rewards), self.num_envs), self._environments.step_infos
        layout = Rollout.layout(*sizes, encode, self._plan.distribution, self._plan.memory, infos)
        finals = (len(rollout.final_rows), *encode.shape), layout["observations"][1]
        layout |= {"log_probs": layout["rewards"], "final_observations": finals}
        for name in (*TENSORS_OF_ROLLOUTS, *sorted({*infos, *rollout.infos})):
            shape, dtype = layout.get(name, (None, ""))
            like = None if shape is None else np.broadcast_to(np.zeros((), dtype), shape)
            require_like(name, rollout.columns().get(name), like)
        if rollout.turns is not None:
            require_like("turns", rollout.turns, np.empty((1, self.num_envs), np.int64))
        for name in ("valid_rows", "final_rows"):
            rows = getattr(rollout, name)
            require_like(name, rows, np.empty(len(rows), np.int64))
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < rollout.rewards.numel():
                raise ValueError(f"{name} are not all of {rollout.rewards.numel()} rows")
        return rollout


class LocalFiller(Stepper):
    """Fills rollouts in this process.

    Args:
        environments: the `N` environments; closed with this.
        plan: what a rollout is made of.
        num_buffers: number of buffers: two if one is filled while the agent learns from the other.

    Raises:
        ConfigurationError: for whole episodes of anything but one environment that the library steps.
    """

    def __init__(self, environments: Environments, plan: RolloutPlan, *, num_buffers: int = 1) -> None:
        self.encode, self.num_agents = environments.encode, environments.num_agents
        self.skips_row_after_end, self.clips_rewards = environments.skips_row_after_end, environments.clips_rewards
        self.steer, self.take_infos = environments.steer, environments.take_infos
        self.info_names, self.step_infos = environments.info_names, environments.step_infos
        self._environments, self._plan, self._first_seed = environments, plan, plan.env_seed
        capacity = plan.num_steps if plan.num_episodes is None else FIRST_CAPACITY
        self.buffers, self.stop = [self._allocated(capacity) for _ in range(num_buffers)], bytearray(1)
        self.counts: Any = None  # which only workers need
        self.seed_episodes(0)
        super().__init__(environments, plan.distribution, plan.env_seed, plan.memory)

    def _allocated(self, num_steps: int) -> Rollout:
        environments, plan = self._environments, self._plan
        shape = num_steps, environments.num_envs
        layout = Rollout.layout(*shape, self.encode, plan.distribution, plan.memory, environments.step_infos)
        return Rollout.in_memory(layout, plan.pin_for)

    def begin_to_fill(
        self, buffer: Rollout, actor: SamplingActor, first: int
    ) -> Callable[[], tuple[int, FinalObservations]]:
        """A function that fills a buffer from row `first` on, up to the end or until the flag is seen.

        It returns the number of rows, and the new final observations.
        """
        method = self.fill if self._plan.num_episodes is None else self._fill_episodes
        return partial(method, buffer, actor, self.stop, first)

    def _fill_episodes(
        self, buffer: Rollout, actor: SamplingActor, stop: Flag, filled: int
    ) -> tuple[int, FinalObservations]:
        """As `fill`, until so many episodes have ended."""
        assert self._plan.num_episodes is not None
        finals: FinalObservations = []
        seconds, left = 0.0, self._plan.num_episodes - num_ends(buffer, 0, filled)
        while left > 0:
            first, end = filled, chunk_end(filled + 1)
            self.make_room(buffer, end)
            before = self._plan.noise.bit_generator.state
            if first % CHUNK == 0:
                rows = slice(self._plan.distribution.noise_rows(first), self._plan.distribution.noise_rows(end))
                buffer.noise[rows] = self._plan.distribution.draw_noise(self._plan.noise, (rows.stop - rows.start, 1))
            filled, found = self.fill(buffer, actor, stop, first, end, left)
            finals, seconds = finals + found, seconds + self.seconds
            left -= num_ends(buffer, first, filled)
            if filled == first:  # stopped: the noise is drawn again when the rollout is continued
                self._plan.noise.bit_generator.state = before
            if filled < end:  # stopped, or the last episode has ended
                break
        self.seconds = seconds
        return filled, finals

    def make_room(self, buffer: Rollout, num_steps: int) -> None:
        """Let a buffer have at least so many rows."""
        while len(buffer.rewards) < num_steps:
            buffer.grow_into(self._allocated(2 * len(buffer.rewards)))

    def seed_episodes(self, begun: int) -> None:
        """Reset the environment with its own seed when its next episode begins, if rollouts are whole episodes.

        Args:
            begun: the number of episodes that have ended.
        """
        if self._plan.num_episodes is None:
            return
        environments = self._environments
        if not isinstance(environments, SubEnvironments) or environments.agents or environments.num_envs != 1:
            raise ConfigurationError(
                "whole episodes come from one environment that is stepped by itself, not from a vector of "
                f"{environments.num_envs}: set num_envs=1 and vectorization='auto' or 'sync', with an environment's id "
                "or a function that makes a gymnasium.Env"
            )
        environments.episode_seeds = itertools.count(self._first_seed + begun + 1)

    def restart(self, seed: int) -> None:  # noqa: D102 - as in the base
        self._first_seed = seed
        self.seed_episodes(0)
        super().restart(seed)

    def close(self) -> None:
        """Close the environments; a second call does nothing."""
        self.counts = None
        self._environments.close()


def infos_of_steps(infos: Mapping[str, Array], valid: Array) -> dict[str, Array]:
    """The columns of infos with zeros in rows that are not steps; an agent that takes turns may lack an entry."""
    found = {name: np.where(valid, column, np.float32(0.0)) for name, column in infos.items()}
    for name, column in found.items():
        if np.isnan(column).any():
            raise EnvError(
                f"the info that an agent gets after its turn has no {name!r}, which every step must have (step_infos): "
                "let the environment, or a wrapper, write it in every step"
            )
    return found


def num_ends(buffer: Rollout, first: int, end: int) -> int:
    """The number of episodes that end in these rows."""
    return int((buffer.terminated[first:end] | buffer.truncated[first:end]).sum())


def chunk_end(filled: int) -> int:
    """The end of the chunk of noise that so many rows reach into."""
    return -(-filled // CHUNK) * CHUNK


def on_one_thread(fill: Callable[[], tuple[int, FinalObservations]]) -> tuple[int, FinalObservations]:
    """Fill with BLAS on one thread: an actor's products are small, and the update needs the cores."""
    if torch.get_num_threads() == 1:  # then NumPy has one, too
        return fill()
    with blas_threads(1):
        return fill()


def require_like(name: str, found: Tensor | None, like: Tensor | Array | None) -> None:
    """Refuse a tensor whose shape or type differs from that of another tensor or array, with a ValueError."""
    is_found, is_like = (
        None if each is None else f"of shape {list(each.shape)} and type {str(each.dtype).removeprefix('torch.')}"
        for each in (found, like)
    )
    if is_found != is_like:
        raise ValueError(f"{name} is {is_found}, not {is_like}")


def load_into(name: str, mine: Tensor, saved: Any) -> None:
    """Write a saved tensor into `mine`."""
    require_like(name, saved, mine)
    mine.copy_(saved)
