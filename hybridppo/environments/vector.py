"""gymnasium's vector environments under the interface `Environments`, for all three autoreset modes.

The modes differ in where an episode's true final observation is, and in whether the row after it is a step:

- `NEXT_STEP`: `step` returns the final observation; the next call ignores the action and resets. That
  row is not a step of the environment (`skips_row_after_end`).
- `SAME_STEP`: `step` has reset already; the final observation is in `infos["final_obs"]`.
- `DISABLED`: `step` returns the final observation, and the caller resets with a mask.

An asynchronous vector steps in parts, as its environments are ready, with EnvPool's interface:

- `batch_size`, the number of environments of a part, which is less than `num_envs` and divides it;
- `send(actions, env_id)` lets these environments step;
- `recv()` waits for the `batch_size` environments that are ready first, and returns what `step` does for these alone,
  with their numbers in `infos["env_id"]`.

`reset` resets all, and `step`, which only evaluations use, steps all.
"""

import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from hybridppo.environments.base import Environments, EnvState, Step, warned_of_closing
from hybridppo.environments.checks import (
    as_truth,
    check_vector_observations,
    check_vector_step,
    describe_action,
    describe_error,
    five_of,
    two_of,
)
from hybridppo.environments.options import MODES, AutoresetName
from hybridppo.environments.state import Walk, write
from hybridppo.errors import BadValueError, ConfigurationError, EnvError, EnvStateError, failures, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import shown_cast
from hybridppo.system.validation import require_whole

logger = logging.getLogger(__name__)

_TRUTH = np.dtype(np.bool_)


class VectorEnvironments(Environments):
    """One of gymnasium's vector environments.

    Args:
        vector: the vector environment.
        mode: how it resets; DISABLED lets `step` reset it.
        first: number of the first environment among those of the run, for messages.
    """

    _has_infos = True

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", mode: AutoresetMode, first: int = 0) -> None:
        self._mode = mode
        self.skips_row_after_end = mode is AutoresetMode.NEXT_STEP
        self._resets_at_once = mode is AutoresetMode.SAME_STEP
        self._flags: tuple[Array, Array] | None = None
        """The flags of the last step since a reset, in the mode NEXT_STEP."""
        super().__init__(vector.num_envs, vector.single_observation_space, vector.single_action_space)
        self.vector: Any = vector
        self._first = first
        self.title = f"environments {first} to {first + self.num_envs - 1}, a {type(vector).__name__}"
        self._began: dict[str, str] = {}
        self._num_steps = 0
        self._expect(self.num_envs)
        self._resetting = np.zeros(self.num_envs, np.bool_)
        """Which rows of the next step are resets, while infos are summed up."""
        self._is_checked = self._has_warned = False
        """Whether the first step was checked, and whether a final observation has led to a warning."""

    def _expect(self, num_rows: int) -> None:
        """Expect so many rows of each step."""
        self._envs = np.arange(num_rows)
        """The environment of each row."""
        self._sum = self.encode.finite_test(num_rows)
        self._shape, self._one_each = (num_rows, *self.encode.shape), (num_rows,)
        """The shapes of all rows, and of rewards and flags."""

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed, self._num_steps = seed, 0
        self._resetting = np.zeros(self.num_envs, np.bool_)
        try:
            self._finish_resets()
            observations, _ = two_of(self.vector.reset(seed=seed))
            check_vector_observations(self.encode, range(self.num_envs), observations)
        except failures() as error:
            raise self._failure("in their reset", error) from error
        return self._encoded(observations)

    def _finish_resets(self) -> None:
        """Let workers of gymnasium without shared memory make the resets that are due, else they make them later."""
        flags, self._flags = self._flags, None
        vector = self.vector.unwrapped
        if flags is not None and isinstance(vector, AsyncVectorEnv) and not vector.shared_memory:
            for env in np.flatnonzero(flags[0] | flags[1]).tolist():
                vector.parent_pipes[env].send(("step", None))
                vector.parent_pipes[env].recv()

    def step(self, actions: Any) -> Step:
        """As in the base; the mode decides where final observations are, and which environments are reset."""
        observations, rewards, terminated, truncated, infos = self._step(actions)
        if self._mode is AutoresetMode.NEXT_STEP:  # the observation after an end is the final one
            self._flags = terminated, truncated
            return self._encoded(observations), rewards, terminated, truncated, [], []
        only_cut = self._resets_at_once and not self.keeps_finals
        if not (truncated.any() if only_cut else (terminated | truncated).any()):
            return self._encoded(observations), rewards, terminated, truncated, [], []
        are_final = truncated | terminated if self.keeps_finals else truncated & ~terminated
        indices: list[int] = np.flatnonzero(are_final).tolist()
        if self._resets_at_once:
            finals, encoded = self._finals_of(infos, indices), self._encoded(observations)
            self._warn_of_reuse(indices, finals, encoded)
            return encoded, rewards, terminated, truncated, indices, finals
        # The reset may overwrite the arrays of the step.
        encoded = self._encoded(observations)
        finals = [encoded[i].copy() for i in indices]
        rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        ends = terminated | truncated
        try:
            observations, _ = self.vector.reset(options={"reset_mask": ends})
        except failures() as error:
            which = np.flatnonzero(ends).tolist()
            raise self._failure(f"when {which} of them were reset, after step {self._num_steps}", error) from error
        return self._encoded(observations), rewards, terminated, truncated, indices, finals

    def _step(self, actions: Any) -> tuple[Any, Array, Array, Array, Any]:
        """The vector's step, with booleans as flags."""
        self._num_steps += 1
        try:
            result: Any = self._received() if actions is None else self.vector.step(actions)
            if not (self._is_checked and self._has_shapes(result)):
                self._check_step(result)
            observations, rewards, terminated, truncated, infos = result
            if not terminated.dtype is truncated.dtype is _TRUTH:  # faster than `==`, at every step
                terminated, truncated = as_truth("terminated", terminated), as_truth("truncated", truncated)
            if self._infos is not None:
                ended = terminated | truncated
                are_steps = ~self._resetting[self._envs]
                self._infos.vector_step(infos, self._envs, ended, are_steps, self._resets_at_once, self._first)
                if self.skips_row_after_end:
                    self._resetting[self._envs] = ended
        except failures() as error:
            given = "" if actions is None else f", with actions {describe_action(actions)}"
            raise self._failure(f"{self._in_step()}{given}", error) from error
        return observations, rewards, terminated, truncated, infos

    def _received(self) -> Any:
        """A part of the environments, if they are asynchronous."""
        raise NotImplementedError

    def _in_step(self) -> str:
        return f"in step {self._num_steps}"

    def _has_shapes(self, result: Any) -> bool:
        try:
            _, rewards, terminated, truncated, _ = result
            return bool(rewards.shape == terminated.shape == truncated.shape == self._one_each)
        except (AttributeError, TypeError, ValueError):
            return False

    def _check_step(self, result: Any) -> None:
        check_vector_step(self.encode, self._envs, result)
        if isinstance(result[4], list) and (self._resets_at_once or self._infos is not None):
            raise BadValueError("infos must be a dict, and is a list: leave the wrapper DictInfoToList out")
        self._is_checked = True

    def _encoded(self, observations: Any) -> Array:
        """Encode observations, and refuse numbers that are not finite."""
        try:
            encoded = self.encode(observations)
            if encoded.shape != self._shape:
                self.encode.check_shapes(observations, len(self._envs))
        except Exception as error:
            raise self._failure(self._in_step(), self._fault_of(observations, error)) from error
        if not isfinite(self._sum(encoded.ravel())):
            # None is refused if only their sum is infinite.
            for i, (row, given) in enumerate(zip(encoded, self.encode.each(observations), strict=True)):
                self._require_finite(f"the observation of environment {self._number(i)}: observation", row, given)
        return encoded

    def _fault_of(self, observations: Any, error: Exception) -> Exception:
        """The fault of observations that cannot be encoded, with the first environment whose observation it is."""
        try:
            check_vector_observations(self.encode, self._envs, observations)
        except BadValueError as fault:
            return fault
        except Exception:  # any error of NumPy for what is no number
            return error
        return error

    def check_rewards(self, rewards: Array) -> None:  # noqa: D102 - as in the base
        if not np.isfinite(rewards).all():
            step, env = np.argwhere(~np.isfinite(rewards))[0].tolist()
            self._num_steps += step + 1 - len(rewards)
            value = shown_cast(rewards[step, env])
            when = f"in step {self._num_steps}"
            raise self.failure(when, f"the reward of environment {self._first + env}: reward is {value}")

    def _require_finite(self, name: str, row: Array, given: Any) -> None:
        try:
            self.encode.require_finite(name, row, given)
        except BadValueError as error:
            raise self._failure_in_step(str(error)) from None

    def _failure_in_step(self, what: str) -> EnvError:
        return self.failure(self._in_step(), what)

    def _number(self, i: int) -> int:
        """The number of the environment of a row, for messages."""
        return self._first + int(self._envs[i])

    def _failure(self, when: str, error: BaseException) -> EnvError:
        if isinstance(error, EnvError):
            raise error
        return self.failure(when, self._lost_workers(error) + describe_error(error))

    def _lost_workers(self, error: BaseException) -> str:
        """The beginning of a message if gymnasium's workers have ended, of which its error says nothing."""
        vector = self.vector.unwrapped
        if not (isinstance(error, (EOFError, ConnectionError)) and isinstance(vector, AsyncVectorEnv)):
            return ""
        ended = wait([process.sentinel for process in vector.processes], timeout=1.0)
        lost = ""
        for env, process in enumerate(vector.processes, self._first):
            if process.sentinel in ended:
                process.join(1.0)  # else its code may still be unknown
                lost += f"the worker of environment {env} has ended, with exit code {process.exitcode} (below 0: by "
                lost += "this signal; -9 also if memory runs out); "
        return lost

    def state(self) -> list[EnvState]:
        """The plain data of the whole vector, and the rows that will be resets."""
        if isinstance(self.vector.unwrapped, AsyncVectorEnv):
            what = "environments of an AsyncVectorEnv are in other processes"
            raise EnvStateError(f"{what}: let the function make one environment, and set num_workers")
        walk = Walk(self.vector)
        if walk.hidden:
            what = f"{type(self.vector).__name__}{walk.hidden[0]}, which cannot be saved"
            raise EnvStateError(
                f"{what}, and resets within a vector are not known: let the function make one environment"
            )
        self._remember()
        leaves, resetting = walk.since(self._began), self._resetting.tolist()
        state = {"num_envs": self.num_envs, "leaves": leaves, "resetting": resetting}
        return self._states_with_infos([state])

    def _remember(self) -> None:
        if not self._num_steps:
            self._began = self._began or Walk(self.vector).digests()

    def load_state(  # noqa: D102 - as in the base
        self, states: list[EnvState], rows: Array | None = None, actions: Sequence[Any] = ()
    ) -> None:
        self._require_counts(states, [self.num_envs])
        self._remember()
        write(self.vector, states[0]["leaves"])
        self._resetting = np.array(states[0]["resetting"], np.bool_)
        self._load_infos(states)

    def _close(self) -> None:
        with warned_of_closing(f"{self.title},"):
            if isinstance(vector := self.vector.unwrapped, AsyncVectorEnv):
                vector.close(timeout=0)  # of a step that was broken off, some answers may be read already
            self.vector.close()

    def _warn_of_reuse(self, indices: list[int], finals: list[Array], rows: Array) -> None:
        """Warn once of a final observation that is the first of the next episode, to the bit."""
        reused = [i for i, final in zip(indices, finals, strict=True) if np.array_equal(final, rows[i])]
        if reused and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: the final observation of environment %s is the first of its next episode, to the bit. If the "
                "environment reuses its array, let it return a copy, or use next_step autoreset",
                self.title, self._number(reused[0]),
            )  # fmt: skip

    def _finals_of(self, infos: Any, indices: list[int]) -> list[Array]:
        """The final observations of these environments, which were reset in the same step."""
        if not indices:
            return []
        finals = infos.get("final_obs") if isinstance(infos, Mapping) else None
        try:
            each = finals if isinstance(finals, np.ndarray | list) else self.encode.each(finals)
        except (KeyError, IndexError, TypeError, ValueError):
            each = []
        if len(each) != len(self._envs):
            raise self._failure_in_step(
                f"environments {[self._number(i) for i in indices]} were truncated and reset in the same step, so that "
                f"infos['final_obs'] must have an observation for each of {len(self._envs)} environments, and it is "
                f"{shown(finals)}: put it there, or use next_step autoreset"
            )
        try:
            encoded = [self.encode.one(each[i]) for i in indices]
        except BadValueError as error:
            raise self._failure_in_step(str(error)) from None
        for i, final in zip(indices, encoded, strict=True):
            self._require_finite(f"the final observation of environment {self._number(i)}: observation", final, each[i])
        return encoded


class AsynchronousEnvironments(VectorEnvironments):
    """A vector that steps in parts, as its environments are ready (see the top of this file).

    Raises:
        EnvError: if it is not reset by itself.
        ConfigurationError: if its `batch_size` does not divide the number of environments.
    """

    is_asynchronous = True

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", mode: AutoresetMode, first: int = 0) -> None:
        super().__init__(vector, mode, first)
        if mode is AutoresetMode.DISABLED:
            raise EnvError(f"{self.title}, steps in parts, and must reset itself: let it declare another mode")
        self.batch_size = require_whole("batch_size", self.vector.batch_size)
        if self.num_envs % self.batch_size:
            what = f"batch_size must divide the {self.num_envs} environments of a vector"
            raise ConfigurationError(f"{what}, got {self.batch_size}: choose another number of one of the two")
        self.under_way = np.zeros(self.num_envs, np.bool_)
        """Which environments got actions, and were not received yet."""
        self._steps = np.zeros(self.num_envs, np.int64)
        """The steps of each environment."""

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._expect(self.num_envs)
        observations, self._steps[:] = super().reset(seed), 0
        self._expect(self.batch_size)
        return observations

    def send(self, actions: Any, envs: Array) -> None:
        """Let these environments, `[n]`, step with an action each."""
        self._steps[envs] += 1
        self.under_way[envs] = True
        try:
            self.vector.send(actions, envs)
        except failures() as error:
            what = f"when actions {describe_action(actions)} were sent to {(self._first + envs).tolist()}"
            raise self._failure(what, error) from error

    def receive(self) -> tuple[Array, Step]:
        """Wait for a part of the environments that got actions: their numbers `[n]`, and their step."""
        step = self.step(None)
        return self._envs, step

    def _received(self) -> Any:
        self._envs = given = np.flatnonzero(self.under_way)
        result = self.vector.recv()
        infos = five_of(result, "an asynchronous vector")[4]
        envs = np.asarray(infos.get("env_id", ()) if isinstance(infos, Mapping) else (), np.int64)
        are_known = envs.shape == self._one_each and envs.min() >= 0 and envs.max() < self.num_envs
        if are_known:
            self.under_way[envs] = False
        if not are_known or np.count_nonzero(self.under_way) + self.batch_size != len(given):
            what = f"recv must return {self.batch_size} of the environments that got actions, {given.tolist()}"
            raise BadValueError(f"{what}, and infos['env_id'] is {shown(envs)}")
        self._envs, self._num_steps = envs, int(self._steps.max())
        return result

    def _in_step(self) -> str:
        first, last = self._steps[self._envs].min(), self._steps[self._envs].max()
        return f"in step {last}" if first == last else f"in steps {first} to {last}"


def wrap(
    vector: VectorEnv[Any, Any, Any], autoreset_mode: AutoresetName | None = None, first: int = 0, in_parts: bool = True
) -> VectorEnvironments:
    """The `Environments` for the autoreset mode that the vector declares, or that is given.

    Args:
        vector: the vector.
        autoreset_mode: its mode, if it does not declare one.
        first: number of the first environment among those of the run, for messages.
        in_parts: whether an asynchronous vector may step in parts.

    Raises:
        EnvError: if there is neither, or if both are there and differ.
    """
    declared = vector.metadata.get("autoreset_mode")
    if isinstance(declared, str):  # gymnasium's spelling, or ours
        declared = next((mode for name, mode in MODES.items() if declared in (mode.value, name)), declared)
    mode = MODES[autoreset_mode] if autoreset_mode is not None else declared
    if mode is None:
        raise EnvError(
            f"{vector} does not say in metadata['autoreset_mode'] how it resets, so episode ends cannot be exact: "
            "set autoreset_mode (--autoreset-mode) to next_step, same_step or disabled"
        )
    if declared is not None and mode is not declared:
        raise EnvError(f"{vector} declares {declared}: leave out autoreset_mode={autoreset_mode!r}")
    if not isinstance(mode, AutoresetMode):
        raise EnvError(f"{vector} declares an unknown autoreset mode, {mode!r}: use gymnasium.vector.AutoresetMode")
    is_asynchronous = getattr(vector, "batch_size", vector.num_envs) != vector.num_envs
    is_asynchronous = is_asynchronous and all(callable(getattr(vector, name, None)) for name in ("send", "recv"))
    return (AsynchronousEnvironments if is_asynchronous and in_parts else VectorEnvironments)(vector, mode, first)
