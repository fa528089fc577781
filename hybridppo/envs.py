"""Vector environments as a sampler wants them: one interface over gymnasium's three autoreset modes.

What differs between the modes is where an episode's true final observation is found, and whether the
step after it is a step:

- `NEXT_STEP`: `step` returns the final observation; the next call ignores the action and resets. That
  row is no step of the environment (`skips_row_after_end`).
- `SAME_STEP`: `step` has reset already; the final observation is in `infos["final_obs"]`.
- `DISABLED`: `step` returns the final observation, and the caller resets with a mask.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from hybridppo.env_checks import (
    BadValueError,
    check_vector_observations,
    check_vector_step,
    describe_action,
    describe_error,
    finite_test,
    require_finite,
)
from hybridppo.env_copy import OnEnvError
from hybridppo.env_state import Digests, describe, digests, restore
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, shown
from hybridppo.in_processes import ProcessVector
from hybridppo.observations import MaskInObservation, ObservationEncoder

Array = NDArray[Any]
EnvSource = str | Callable[[], "gym.Env[Any, Any] | VectorEnv[Any, Any, Any]"]
Vectorization = Literal["auto", "sync", "async"]
AutoresetName = Literal["next_step", "same_step", "disabled"]

WORKER_TIMEOUT = 300.0
"""Seconds without a step after which a worker process counts as hung, unless told otherwise."""

MODES: dict[str, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

EnvState = dict[str, Any]
"""How many environments a state is of (`num_envs`), and the `state`, as JSON can hold it."""

Step = tuple[Array, Array, Array, Array, list[int], list[Array]]
"""Observations `[N, obs]` to act on next, rewards, terminated, truncated `[N]`, and, of the environments
truncated in this step whose final observation is not among the first, indices and final observations.
All but the last may be overwritten by the next step."""


class Environments(ABC):
    """A vector environment whose observations are encoded, and whose episode ends are explicit."""

    skips_row_after_end: ClassVar[bool] = False
    """Whether the row after an episode's end is a reset instead of a step."""

    def __init__(self, num_envs: int, observation_space: "gym.Space[Any]", action_space: "gym.Space[Any]") -> None:
        self.num_envs = num_envs
        self.observation_space, self.action_space = observation_space, action_space
        self.encode = ObservationEncoder(observation_space)
        self.remade: dict[int, int] = {}
        """Which environments were made anew in the last step, and how often. Where that step ended no episode, it
        is none, and the episode that it belonged to is broken off."""
        self._closed = False
        self._began: list[Digests] = []

    @property
    def envs(self) -> "list[gym.Env[Any, Any]] | None":
        """The environments, where they are objects of this process."""
        return None

    @abstractmethod
    def reset(self, seed: int) -> Array:
        """Start every environment anew, the `i`-th from `seed + i`; observations `[N, obs]`."""

    @abstractmethod
    def step(self, actions: Array) -> Step:
        """Step every environment.

        Raises:
            EnvError: where one fails, or returns what cannot be used: which one, and when.
        """

    def check_rewards(self, rewards: Array) -> None:  # noqa: B027 - nothing to do where `step` has done it
        """Refuse rewards of the last steps, `[t, N]`, that are not finite, where `step` has not done so."""

    def state(self) -> list[EnvState]:
        """What `load_state` takes: the state of each copy, or of the whole vector where the copies are its own.

        Raises:
            EnvStateError: where it cannot be saved, with the attribute that stands in the way.
        """
        parts = self._parts()
        began: list[Digests | None] = [*self._began] or [None] * len(parts)
        return [
            {"num_envs": count, "state": describe(part, digests_then)}
            for (part, count), digests_then in zip(parts, began, strict=True)
        ]

    def remember_the_start(self) -> None:
        """What is saved from now on leaves out what is still as it is now; to be called after the first reset."""
        with contextlib.suppress(EnvStateError):  # `state` will say so, whenever it is wanted
            self._began = [digests(part) for part, _ in self._parts()]

    def load_state(self, states: list[EnvState]) -> None:
        """Go on from saved states, in environments made and reset as those were.

        Raises:
            EnvStateError: where they do not fit these environments, which must then be reset.
        """
        parts = self._parts()
        if [count for _, count in parts] != [state["num_envs"] for state in states]:
            raise EnvStateError(
                f"what was saved is the state of vectors of {[state['num_envs'] for state in states]} environments, "
                f"not of {[count for _, count in parts]}"
            )
        for (part, _), state in zip(parts, states, strict=True):
            restore(part, state["state"])

    @abstractmethod
    def _parts(self) -> list[tuple[object, int]]:
        """What can be saved each by itself, and how many environments it is."""

    def close(self) -> None:
        """Release the environments; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Release the environments."""


class VectorEnvironments(Environments):
    """One of gymnasium's vector environments; a subclass for each of its autoreset modes.

    Args:
        vector: the environments.
        first: the number of the first among those of the run, for messages.
    """

    def __init__(self, vector: "VectorEnv[Any, Any, Any]", first: int = 0) -> None:
        super().__init__(vector.num_envs, vector.single_observation_space, vector.single_action_space)
        self.vector = vector
        self._first = first
        self._seed: int | None = None
        self._num_steps = 0
        self._sum = finite_test(self.num_envs * self.encode.size, self.encode.dtype)
        self._take_step: Callable[[Array], tuple[Any, Array, Array, Array, Any]] = self._first_step
        """As the vector's own, which it is once the first step was checked."""

    @property
    def envs(self) -> "list[gym.Env[Any, Any]] | None":  # noqa: D102 - as in the base
        return self.vector.envs if isinstance(self.vector, SyncVectorEnv) else None

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._seed, self._num_steps = seed, 0
        try:
            observations, _ = self.vector.reset(seed=seed)
            check_vector_observations(self.observation_space, self.num_envs, observations)
        except EnvError:
            raise
        except Exception as error:
            raise self._failure("in their reset", error) from error
        return self._encoded(observations)

    def _step(self, actions: Array) -> tuple[Any, Array, Array, Array, Any]:
        self._num_steps += 1
        try:
            return self._take_step(actions)
        except EnvError:
            raise
        except Exception as error:
            raise self._failure(f"in step {self._num_steps}, with actions {describe_action(actions)}", error) from error

    def _first_step(self, actions: Array) -> tuple[Any, Array, Array, Array, Any]:
        result = self.vector.step(actions)
        check_vector_step(self.observation_space, self.num_envs, result)
        self._take_step = self.vector.step
        return result

    def _encoded(self, observations: Array) -> Array:
        """Encoded, and refused where not finite."""
        encoded = self.encode(observations)
        if not isfinite(self._sum(encoded.ravel())):
            self._refuse(encoded)
        return encoded

    def _refuse(self, encoded: Array) -> None:
        """Name the first observation that is not finite; there is none where only the sum is infinite."""
        for i, row in enumerate(encoded):
            self._require_finite(f"the observation of environment {self._first + i}: observation", row)

    def check_rewards(self, rewards: Array) -> None:  # noqa: D102 - as in the base
        if not np.isfinite(rewards).all():
            step, env = np.argwhere(~np.isfinite(rewards))[0].tolist()
            self._num_steps += step + 1 - len(rewards)
            self._require_finite(f"the reward of environment {self._first + env}: reward", rewards[step, env])

    def _require_finite(self, name: str, values: Array) -> None:
        try:
            require_finite(name, values)
        except BadValueError as error:
            raise self._failure(f"in step {self._num_steps}", error) from None

    def _failure(self, when: str, error: Exception) -> EnvError:
        last = self._first + self.num_envs - 1
        return EnvError(
            f"environments {self._first} to {last}, a {type(self.vector).__name__} (seed {self._seed}), failed {when}: "
            f"{describe_error(error)}"
        )

    def _parts(self) -> list[tuple[object, int]]:
        if isinstance(self.vector, AsyncVectorEnv):
            raise EnvStateError(
                "with async vectorization, each environment is in a process of its own: num_workers can save them"
            )
        return [(self.vector, self.num_envs)]

    def _close(self) -> None:
        self.vector.close()


class NextStepEnvironments(VectorEnvironments):
    """Environments that reset on the step after an episode's end."""

    skips_row_after_end = True

    def step(self, actions: Array) -> Step:
        """The observation after an end is the final one: nothing is missing."""
        observations, rewards, terminated, truncated, _ = self._step(actions)
        encoded = self.encode(observations)
        if not isfinite(self._sum(encoded.ravel())):
            self._refuse(encoded)
        return encoded, rewards, terminated, truncated, [], []


class SameStepEnvironments(VectorEnvironments):
    """Environments that reset within the step that ends an episode."""

    def step(self, actions: Array) -> Step:
        """Final observations come from the step's `infos`."""
        observations, rewards, terminated, truncated, infos = self._step(actions)
        indices: list[int] = []
        finals: list[Array] = []
        if truncated.any():
            indices = np.flatnonzero(truncated & ~terminated).tolist()
            if indices and "final_obs" not in infos:
                raise EnvError(
                    f"environments {indices} were truncated and reset in the same step, but `infos` has no "
                    f"'final_obs' to bootstrap from (it has {sorted(infos)}): put it there, or use next_step autoreset"
                )
            finals = [self.encode(np.asarray(infos["final_obs"][i])[None])[0].copy() for i in indices]
            for i, final in zip(indices, finals, strict=True):
                self._require_finite(f"the final observation of environment {self._first + i}: observation", final)
        return self._encoded(observations), rewards, terminated, truncated, indices, finals


class ManualResetEnvironments(VectorEnvironments):
    """Environments that wait to be reset (`AutoresetMode.DISABLED`)."""

    def step(self, actions: Array) -> Step:
        """Final observations are what `step` returned; then the ended environments are reset."""
        observations, rewards, terminated, truncated, _ = self._step(actions)
        encoded = self._encoded(observations)
        ended = terminated | truncated
        if not ended.any():
            return encoded, rewards, terminated, truncated, [], []
        indices: list[int] = np.flatnonzero(truncated & ~terminated).tolist()
        # The reset may write to the arrays that the step gave.
        finals = [encoded[i].copy() for i in indices]
        rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        try:
            observations, _ = self.vector.reset(options={"reset_mask": ended})
        except EnvError:
            raise
        except Exception as error:
            which = np.flatnonzero(ended).tolist()
            raise self._failure(f"when {which} of them were reset, after step {self._num_steps}", error) from error
        return self._encoded(observations), rewards, terminated, truncated, indices, finals


def wrap(
    vector: "VectorEnv[Any, Any, Any]", autoreset_mode: AutoresetName | None = None, first: int = 0
) -> VectorEnvironments:
    """The `Environments` for the autoreset mode that the vector environment declares, or that is given.

    Raises:
        EnvError: where it declares none and none is given, or both and they differ.
    """
    declared = vector.metadata.get("autoreset_mode")
    if isinstance(declared, str):  # as gymnasium writes it, or as we do
        declared = next((mode for name, mode in MODES.items() if declared in (mode.value, name)), declared)
    mode = MODES[autoreset_mode] if autoreset_mode is not None else declared
    if mode is None:
        raise EnvError(
            f"{vector} does not say in metadata['autoreset_mode'] how it resets, so episode ends cannot be exact: "
            "set autoreset_mode (--autoreset-mode) to next_step, same_step or disabled"
        )
    if declared is not None and mode is not declared:
        raise EnvError(
            f"{vector} declares autoreset mode {declared}, but autoreset_mode={autoreset_mode!r} was given: "
            "leave the option out"
        )
    if mode is AutoresetMode.NEXT_STEP:
        return NextStepEnvironments(vector, first)
    if mode is AutoresetMode.SAME_STEP:
        return SameStepEnvironments(vector, first)
    if mode is AutoresetMode.DISABLED:
        return ManualResetEnvironments(vector, first)
    raise EnvError(f"{vector} declares an unknown autoreset mode, {mode!r}: use gymnasium.vector.AutoresetMode")


def make_environments(
    source: EnvSource,
    num_envs: int,
    *,
    vectorization: Vectorization = "auto",
    autoreset_mode: AutoresetName | None = None,
    on_env_error: OnEnvError = "raise",
    worker_timeout: float = WORKER_TIMEOUT,
    action_masks: bool = False,
    first: int = 0,
) -> Environments:
    """`num_envs` copies of an environment, stepped as one.

    Args:
        source: an id registered with gymnasium, or a function that makes one environment, or one that
            makes a vector environment of `num_envs`.
        num_envs: how many.
        vectorization: `auto` takes the environment's own vectorised implementation where it has one and
            steps the copies in turn otherwise; `sync` always does that; `async` gives each a process,
            which pays only where a step takes far longer than a message (a millisecond and more).
        autoreset_mode: for vector environments that do not declare theirs.
        on_env_error: what to do where an environment fails, or returns what cannot be used: `raise`, or `restart` that
            one. Only copies that the library steps in turn can be restarted; `auto` then means those.
        worker_timeout: seconds that a step may take where each copy has a process (`async`).
        action_masks: whether observations are to hold the masks that the environment gives in `info["action_mask"]`
            (`MaskInObservation`). Only copies that the library makes can have them; `auto` then means those.
        first: the number of the first among those of the run, for messages.

    Raises:
        EnvError: where no such environment can be made, with gymnasium's reason.
        ConfigurationError: for an unknown option.
    """
    if vectorization not in ("auto", "sync", "async"):
        raise ConfigurationError(f"vectorization must be auto, sync or async, got {shown(vectorization)}")
    if autoreset_mode is not None and autoreset_mode not in tuple(MODES):
        raise ConfigurationError(f"autoreset_mode must be one of {', '.join(MODES)}, got {shown(autoreset_mode)}")
    if on_env_error not in ("raise", "restart"):
        raise ConfigurationError(f"on_env_error must be raise or restart, got {shown(on_env_error)}")
    if not isinstance(action_masks, bool):
        raise ConfigurationError(f"action_masks must be True or False, got {shown(action_masks)}")
    restarts = on_env_error == "restart"
    if restarts and vectorization == "async":
        raise ConfigurationError(
            "on_env_error='restart' needs copies that are stepped in turn: leave vectorization='async' out, and set "
            "num_workers where processes are wanted"
        )
    if not isinstance(source, str):
        if not callable(source):
            raise ConfigurationError(
                f"env must be an environment's id or a function that makes one, got {shown(source)}"
            )
        made = source()
        if isinstance(made, VectorEnv):
            if restarts or action_masks:
                made.close()
                raise ConfigurationError(
                    f"{'on_env_error=' + repr('restart') if restarts else 'action_masks=True'} needs copies that the "
                    f"library makes, and the function made a {type(made).__name__}: let it make one environment"
                )
            if made.num_envs != num_envs:
                message = f"the function made a vector of {made.num_envs} environments, but num_envs is {num_envs}"
                raise EnvError(f"{message}: make them equal")
            return wrap(made, autoreset_mode, first)
        if not isinstance(made, gym.Env):
            raise EnvError(f"the function must make a gymnasium.Env or VectorEnv, it made {type(made).__name__}")
        made.close()
        source = partial(_with_mask, source) if action_masks else source
        return _copies_of(source, num_envs, vectorization, on_env_error, worker_timeout, first)
    try:
        makes_copies = vectorization != "auto" or restarts or action_masks
        if not makes_copies and gym.spec(source).vector_entry_point is not None:
            return wrap(gym.make_vec(source, num_envs=num_envs), autoreset_mode, first)
        make: Callable[[], Any] = partial(gym.make, source)
        make = partial(_with_mask, make) if action_masks else make
        return _copies_of(make, num_envs, vectorization, on_env_error, worker_timeout, first)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {source!r} needs a package that is not installed: {error}") from error
    except (gym.error.Error, ImportError, ValueError) as error:  # ValueError: of an id like ":"
        raise EnvError(
            f"environment {source!r} cannot be made: {error} (gymnasium.pprint_registry() lists what there is)"
        ) from error


def _with_mask(make: Callable[[], Any]) -> MaskInObservation:
    return MaskInObservation(make())


def _copies_of(
    make: Callable[[], Any],
    num_envs: int,
    vectorization: Vectorization,
    on_env_error: OnEnvError,
    worker_timeout: float,
    first: int,
) -> Environments:
    if vectorization != "async":
        from hybridppo.in_turn import InTurnEnvironments  # which is one of these `Environments`

        return InTurnEnvironments(make, num_envs, first, on_env_error)
    try:
        return wrap(ProcessVector(make, num_envs, first, worker_timeout), first=first)
    except RuntimeError as error:  # gymnasium found that the copies' spaces differ
        raise EnvError(f"the {num_envs} environments differ: {error}") from error
