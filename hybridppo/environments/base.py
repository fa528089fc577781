"""The interface of environments for samplers."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import gymnasium as gym

from hybridppo.environments.infos import InfoNumbers, Sums
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, failures, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder

logger = logging.getLogger(__name__)

EnvState = dict[str, Any]
"""A JSON object: `num_envs`, the number of environments, and their `state`."""
Step = tuple[Array, Array, Array, Array, list[int], list[Array]]
"""Observations `[N, obs]` for the next action; rewards, terminated, truncated `[N]`; and indices and final observations
of the environments that were truncated in this step, unless the observations are the final ones. The next step may
overwrite everything but the final observations."""


class Steering(NamedTuple):
    """One call of a method, or one attribute that is set."""

    kind: Literal["call", "set", "self_play", "once"]
    """To call a method, or to set an attribute; "self_play" calls a method of `SelfPlayGame` instead of the game, and
    "once" does so without a repetition in new environments."""
    name: str
    """Name of the method or the attribute."""
    arguments: Sequence[Any]
    """Arguments of the call, or the value."""

    def apply(self, env: Any) -> Any:
        """Apply it to the unwrapped environment; return the result of the method.

        Raises:
            EnvError: if the environment has no such method or attribute.
        """
        inner = env if self.kind in ("self_play", "once") else getattr(env, "unwrapped", env)
        known = getattr(inner, self.name, None)
        if not hasattr(inner, self.name) or (self.kind != "set" and not callable(known)):
            what = "method" if self.kind == "call" else "attribute"
            lacking = f"environments.{self.kind}({self.name!r}): {type(inner).__name__} has no {what} {self.name!r}"
            raise EnvError(f"{lacking}: define it in the environment itself, not in a wrapper")
        if self.kind != "set":
            return known(*self.arguments)  # type: ignore[misc]  # it was looked at above
        setattr(inner, self.name, self.arguments[0])
        return None


class Outer:
    """An object with another interface to an environment, `env`."""

    env: Any

    @property
    def unwrapped(self) -> Any:
        """The environment itself, without wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        getattr(self.env, "close", lambda: None)()


class Environments(ABC):
    """A vector environment with encoded observations and explicit episode ends."""

    _has_infos: ClassVar[bool] = False
    """Whether `step` can take numbers from infos."""
    info_names: Sequence[str] = ()
    """The entries of infos that are summed up, and patterns of them."""
    step_infos: Sequence[str] = ()
    """The entries of infos that become columns of rollouts."""
    skips_row_after_end: bool = False
    """Whether the row after an episode's end is a reset instead of a step."""
    is_compiled: ClassVar[bool] = False
    """Whether these are compiled environments, which may have kernels for other devices."""
    is_asynchronous: bool = False
    """Whether they step in parts, as they are ready (`AsynchronousEnvironments`)."""
    replays: bool = False
    """Whether `load_state` needs the actions of unfinished episodes."""
    device: Any = None
    """The `torch.device` of batched environments; None for arrays of the host."""

    title = ""
    """What these environments are, for errors."""
    _seed: int = 0
    """The seed of the last reset, for errors."""

    def __init__(self, num_envs: int, observation_space: "gym.Space[Any]", action_space: "gym.Space[Any]") -> None:
        self.num_envs = int(num_envs)  # a vector may have a number of NumPy's
        """Columns of a rollout, `N`: the environments, or the agents of each environment in turn."""
        self.agents: tuple[str, ...] = ()
        """The names of an environment's agents, which have a column each; empty if each environment is a column."""
        self.observation_space, self.action_space = observation_space, action_space
        self.encode = ObservationEncoder(observation_space)
        if self.encode.frames is not None and (self.skips_row_after_end or self.is_asynchronous):
            what = "a vector that is asynchronous, or resets in the step after an episode's end, cannot stack frames"
            raise EnvError(f"{what}: let the function make one environment, with frame_stack=...")
        self.restarted: dict[int, int] = {}
        """How often each environment was restarted in the last step, by index. If that step ended no episode, it does
        not count as a step, and its episode is broken off."""
        self.absent: Array | None = None
        """Agents that were absent in the last step, `[N]`: their rows are not steps. None if all are present.

        Such a row counts as terminated, so that it does not affect the next episode.
        """
        self.waiting: Array | None = None
        """Agents that did not act in the last step because agents take turns, `[N]`. None if all present agents act.

        The rewards of such a row, and the end of the episode, belong to the agent's last turn.
        """
        self.keeps_finals = False
        """Whether `step` returns the final observations of terminated episodes besides those of truncated ones."""
        self.clips_rewards = False
        """Whether agents learn from rewards clipped to +-1; `step` returns unclipped rewards."""
        self._infos: InfoNumbers | None = None
        self._closed = False

    @property
    def num_agents(self) -> int:
        """Columns of each environment."""
        return max(1, len(self.agents))

    @abstractmethod
    def reset(self, seed: int) -> Array:
        """Reset all environments, the `i`-th with `seed + i`; observations `[N, obs]`."""

    @abstractmethod
    def step(self, actions: Any) -> Step:
        """Step all environments with a batch of actions in gymnasium's vector form (`Distribution.to_env`).

        Raises:
            EnvError: if an environment fails or returns invalid values; it names the environment and the step.
        """

    def steer(self, steering: Steering) -> list[Any]:
        """Call a method, or set an attribute, in every environment; return the results.

        An environment that is restarted gets the same calls again.

        Raises:
            ConfigurationError: if the environments are not single Python objects.
            EnvError: if an environment has no such method or attribute.
        """
        raise steering_refused(f"{type(self).__name__}", "let the library step copies of one (vectorization='sync')")

    def measure_infos(self, names: Sequence[str], steps: Sequence[str] = ()) -> None:
        """Take numbers from infos from now on.

        Args:
            names: the entries to sum, and patterns of names.
            steps: the entries that become columns of rollouts (`write_infos`).

        Raises:
            ConfigurationError: if the environments have no infos.
        """
        if not self._has_infos:
            raise ConfigurationError(
                f"{'step_infos' if steps else 'info_metrics'} are not available from {type(self).__name__} of "
                f"{self.num_envs}: train in copies that the library steps (vectorization='sync'), in this process, in "
                "workers or over Ray's samplers, or as tensors, or leave it out"
            )
        self.info_names, self.step_infos = tuple(names), tuple(steps)
        self._infos = InfoNumbers(names, self.num_envs)

    def write_infos(self, columns: Mapping[str, Array], row: int) -> None:
        """Write the entries of `step_infos` in the next steps to these arrays `[T, N]`, from a row on."""
        assert self._infos is not None  # `measure_infos` was called
        self._infos.written, self._infos.rows[:] = columns, row

    def leave_out_infos(self, env: int) -> None:
        """Count no further infos of an environment."""
        if self._infos is not None:
            self._infos.left_out.update(range(env * self.num_agents, (env + 1) * self.num_agents))

    def take_infos(self) -> Sums:
        """The sums since the last call."""
        return {} if self._infos is None else self._infos.take()

    def failure(self, when: str, what: str) -> EnvError:
        """The error of environments that fail together."""
        return EnvError(f"{self.title} (seed {self._seed}), failed {when}: {what}")

    def check_rewards(self, rewards: Array) -> None:  # noqa: B027 - nothing to do where `step` has done it
        """Refuse rewards of the last steps, `[t, N]`, that are not finite, if `step` does not check them."""

    @property
    def longest_episode(self) -> int | None:
        """Steps of the longest unfinished episode, if environments replay them; None if it is not known."""
        return None

    def state(self) -> list[EnvState]:
        """The state for `load_state`: of each sub-environment, or of the whole vector.

        A state with `episode_steps` needs the actions of as many steps to be restored.

        Raises:
            EnvStateError: naming the attribute that cannot be saved.
        """
        raise EnvStateError(f"the state of {type(self).__name__} is saved in another way")

    def load_state(self, states: list[EnvState], rows: Array | None = None, actions: Sequence[Any] = ()) -> None:
        """Restore saved states in environments that were made and reset in the same way.

        Args:
            states: the result of `state`.
            rows: the observations of the next action, `[N, obs]`, which a replay must lead to.
            actions: the last batches of actions before the states were saved, as `step` takes them.

        Raises:
            EnvStateError: if the states do not fit; the environments must then be reset.
        """
        raise EnvStateError(f"the state of {type(self).__name__} is saved in another way")

    def _states_with_infos(self, states: list[EnvState]) -> list[EnvState]:
        """The states with the sums of unfinished episodes."""
        if self._infos is not None:
            for state, columns in zip(states, columns_of(states), strict=True):
                state["infos"] = self._infos.unfinished(columns)
        return states

    def _load_infos(self, states: list[EnvState]) -> None:
        """Restore the result of `_states_with_infos`."""
        if self._infos is not None:
            for state, columns in zip(states, columns_of(states), strict=True):
                if "infos" in state:  # else they were not measured
                    self._infos.go_on(columns, state["infos"])

    def _require_counts(self, states: list[EnvState], counts: list[int]) -> None:
        """Refuse states that are not of vectors of these numbers of environments."""
        if counts != [state["num_envs"] for state in states]:
            saved = [state["num_envs"] for state in states]
            raise EnvStateError(f"the saved state is of vectors of {saved} environments, not of {counts}")

    def close(self) -> None:
        """Close the environments; a second call does nothing. A failure is only a warning."""
        if not self._closed:
            self._closed = True
            with warned_of_closing(f"the environments, {type(self).__name__} of {self.num_envs}"):
                self._close()

    @abstractmethod
    def _close(self) -> None:
        """Close the environments."""


def columns_of(states: Sequence[EnvState]) -> list[slice]:
    """The columns of each saved state."""
    ends = accumulate((state["num_envs"] for state in states), initial=0)
    return [slice(start, end) for start, end in pairwise(ends)]


def closed(*arguments: Any) -> Any:
    """Replaces the method `step` of a closed environment, which would keep it alive."""
    raise EnvError("the environments are closed")


@contextlib.contextmanager
def warned_of_closing(what: str) -> Iterator[None]:
    """A context that turns an error into a warning, because a failing close must not lose a result."""
    try:
        yield
    except failures():
        logger.warning("%s could not be closed", what, exc_info=True)


@contextlib.contextmanager
def closed_if_refused(made: Any) -> Iterator[None]:
    """A context that closes an environment, or several, if it raises."""
    try:
        yield
    except BaseException:
        if callable(close := getattr(made, "close", None)):
            with warned_of_closing(f"the {type(made).__name__}"):
                close()
        raise


def steering_refused(what: str, remedy: str) -> ConfigurationError:
    """The error for environments that cannot be steered."""
    return ConfigurationError(f"environments.call and environments.set cannot reach {what}: {remedy}")


def latest(done: Sequence[Steering], one: Steering) -> list[Steering]:
    """The steering to repeat in a new environment: the latest of each name."""
    if one.kind == "once":
        return list(done)
    kept = [each for each in done if (each.kind, each.name) != (one.kind, one.name)]
    return [*kept, one]


def from_json(found: Any) -> list[Steering]:
    """Steering from a checkpoint.

    Raises:
        ValueError: if it is invalid.
    """
    if not (isinstance(found, list) and all(isinstance(each, list) and len(each) == 3 for each in found)):
        raise ValueError(f"steering must be a list of calls, got {shown(found)}")
    return [Steering(*each) for each in found]
