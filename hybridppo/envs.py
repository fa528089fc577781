"""Vector environments as a sampler wants them: one interface over gymnasium's three autoreset modes.

What differs between the modes is where an episode's true final observation is found, and whether the
step after it is a step:

- `NEXT_STEP`: `step` returns the final observation; the next call ignores the action and resets. That
  row is no step of the environment (`skips_row_after_end`).
- `SAME_STEP`: `step` has reset already; the final observation is in `infos["final_obs"]`.
- `DISABLED`: `step` returns the final observation, and the caller resets with a mask.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from hybridppo.errors import ConfigurationError, EnvError

Array = NDArray[Any]
EnvSource = str | Callable[[], "gym.Env[Any, Any] | VectorEnv[Any, Any, Any]"]
Vectorization = Literal["auto", "sync", "async"]
AutoresetName = Literal["next_step", "same_step", "disabled"]

MODES: dict[str, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

Step = tuple[Array, Array, Array, Array, list[int], list[Array]]
"""Observations `[N, obs]` to act on next, rewards, terminated, truncated `[N]`, and, of the environments
truncated in this step whose final observation is not among the first, indices and final observations.
All but the last may be overwritten by the next step."""


class ObservationEncoder:
    """Observations of a space as rows of float32: a `Box` flattened, a `Discrete` one-hot.

    Raises:
        EnvError: for other spaces, and for images, which the networks here cannot make sense of.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space
        if isinstance(space, gym.spaces.Discrete):
            self.size = int(space.n)
        elif isinstance(space, gym.spaces.Box) and not (space.dtype == np.uint8 and len(space.shape) == 3):
            self.size = int(np.prod(space.shape))
        else:
            raise EnvError(
                f"the observation space {space} is not supported: use a Box of vectors or a Discrete "
                "(gymnasium.wrappers.FlattenObservation makes a Box of most others)"
            )

    def __call__(self, observations: Array) -> Array:
        """`[N, *space] -> [N, size]`, float32."""
        if isinstance(self._space, gym.spaces.Discrete):
            choices = np.arange(self._space.start, self._space.start + self._space.n)
            one_hot: Array = np.asarray(observations)[..., None] == choices
            return one_hot.astype(np.float32)
        return np.asarray(observations).reshape(len(observations), self.size).astype(np.float32, copy=False)


class Environments(ABC):
    """A vector environment whose observations are encoded, and whose episode ends are explicit."""

    skips_row_after_end: ClassVar[bool] = False
    """Whether the row after an episode's end is a reset instead of a step."""

    def __init__(self, num_envs: int, observation_space: "gym.Space[Any]", action_space: "gym.Space[Any]") -> None:
        self.num_envs = num_envs
        self.observation_space, self.action_space = observation_space, action_space
        self.encode = ObservationEncoder(observation_space)
        self.envs: list[gym.Env[Any, Any]] | None = None
        """The environments, where they are objects of this process."""
        self._closed = False

    @abstractmethod
    def reset(self, seed: int) -> Array:
        """Start every environment anew, the `i`-th from `seed + i`; observations `[N, obs]`."""

    @abstractmethod
    def step(self, actions: Array) -> Step:
        """Step every environment."""

    def close(self) -> None:
        """Release the environments; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Release the environments."""


class VectorEnvironments(Environments):
    """One of gymnasium's vector environments; a subclass for each of its autoreset modes."""

    def __init__(self, vector: "VectorEnv[Any, Any, Any]") -> None:
        super().__init__(vector.num_envs, vector.single_observation_space, vector.single_action_space)
        self.vector = vector
        if isinstance(vector, SyncVectorEnv):
            self.envs = vector.envs

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        observations, _ = self.vector.reset(seed=seed)
        return self.encode(observations)

    def _close(self) -> None:
        self.vector.close()


class NextStepEnvironments(VectorEnvironments):
    """Environments that reset on the step after an episode's end."""

    skips_row_after_end = True

    def step(self, actions: Array) -> Step:
        """The observation after an end is the final one: nothing is missing."""
        observations, rewards, terminated, truncated, _ = self.vector.step(actions)
        return self.encode(observations), rewards, terminated, truncated, [], []


class SameStepEnvironments(VectorEnvironments):
    """Environments that reset within the step that ends an episode."""

    def step(self, actions: Array) -> Step:
        """Final observations come from the step's `infos`."""
        observations, rewards, terminated, truncated, infos = self.vector.step(actions)
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
        return self.encode(observations), rewards, terminated, truncated, indices, finals


class ManualResetEnvironments(VectorEnvironments):
    """Environments that wait to be reset (`AutoresetMode.DISABLED`)."""

    def step(self, actions: Array) -> Step:
        """Final observations are what `step` returned; then the ended environments are reset."""
        observations, rewards, terminated, truncated, _ = self.vector.step(actions)
        ended = terminated | truncated
        if not ended.any():
            return self.encode(observations), rewards, terminated, truncated, [], []
        indices: list[int] = np.flatnonzero(truncated & ~terminated).tolist()
        encoded = self.encode(observations)
        # The reset may write to the arrays that the step gave.
        finals = [encoded[i].copy() for i in indices]
        rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        observations, _ = self.vector.reset(options={"reset_mask": ended})
        return self.encode(observations), rewards, terminated, truncated, indices, finals


def wrap(vector: "VectorEnv[Any, Any, Any]", autoreset_mode: AutoresetName | None = None) -> VectorEnvironments:
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
        return NextStepEnvironments(vector)
    if mode is AutoresetMode.SAME_STEP:
        return SameStepEnvironments(vector)
    if mode is AutoresetMode.DISABLED:
        return ManualResetEnvironments(vector)
    raise EnvError(f"{vector} declares an unknown autoreset mode, {mode!r}: use gymnasium.vector.AutoresetMode")


def make_environments(
    source: EnvSource,
    num_envs: int,
    *,
    vectorization: Vectorization = "auto",
    autoreset_mode: AutoresetName | None = None,
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
        first: the number of the first among those of the run, for messages.

    Raises:
        EnvError: where no such environment can be made, with gymnasium's reason.
        ConfigurationError: for an unknown option.
    """
    if vectorization not in ("auto", "sync", "async"):
        raise ConfigurationError(f"vectorization must be auto, sync or async, got {vectorization!r}")
    if autoreset_mode is not None and autoreset_mode not in MODES:
        raise ConfigurationError(f"autoreset_mode must be one of {', '.join(MODES)}, got {autoreset_mode!r}")
    if not isinstance(source, str):
        made = source()
        if isinstance(made, VectorEnv):
            if made.num_envs != num_envs:
                message = f"the function made a vector of {made.num_envs} environments, but num_envs is {num_envs}"
                raise EnvError(f"{message}: make them equal")
            return wrap(made, autoreset_mode)
        if not isinstance(made, gym.Env):
            raise EnvError(f"the function must make a gymnasium.Env or VectorEnv, it made {type(made).__name__}")
        made.close()
        return _copies_of(source, num_envs, vectorization, first)
    try:
        if vectorization == "auto" and gym.spec(source).vector_entry_point is not None:
            return wrap(gym.make_vec(source, num_envs=num_envs), autoreset_mode)
        return _copies_of(partial(gym.make, source), num_envs, vectorization, first)
    except gym.error.DependencyNotInstalled as error:
        raise EnvError(f"environment {source!r} needs a package that is not installed: {error}") from error
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise EnvError(
            f"environment {source!r} cannot be made: {error} (gymnasium.pprint_registry() lists what there is)"
        ) from error


def _copies_of(make: Callable[[], Any], num_envs: int, vectorization: Vectorization, first: int) -> Environments:
    if vectorization != "async":
        from hybridppo.in_turn import InTurnEnvironments  # which is one of these `Environments`

        return InTurnEnvironments(make, num_envs, first)
    # DISABLED: every row of a rollout is then a step, none is spent on a reset, and final observations are copied
    # before an environment that reuses its buffer can overwrite them (in SAME_STEP, gymnasium keeps a reference).
    makers = [partial(_make_in_child, make, os.getpid())] * num_envs
    try:
        return wrap(AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED))
    except RuntimeError as error:  # gymnasium found that the copies' spaces differ
        raise EnvError(f"the {num_envs} environments differ: {error}") from error


def _make_in_child(make: Callable[[], Any], parent: int) -> Any:
    if os.getpid() != parent:
        # Ctrl-C reaches the whole process group; what it means is the trainer's to decide.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return make()
