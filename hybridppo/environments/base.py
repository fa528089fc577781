"""Environments as a sampler sees them."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import gymnasium as gym
from numpy.typing import NDArray

from hybridppo.environments import info_metrics
from hybridppo.environments.state.keeping import StateKeeper
from hybridppo.environments.steering import Steering, refused
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.spaces.observations import ObservationEncoder

Array = NDArray[Any]

logger = logging.getLogger(__name__)

EnvState = dict[str, Any]
"""How many environments a state is of (`num_envs`), and the `state`, as JSON can hold it."""
Step = tuple[Array, Array, Array, Array, list[int], list[Array]]
"""Observations `[N, obs]` to act on next, rewards, terminated, truncated `[N]`, and, of the environments
truncated in this step whose final observation is not among the first, indices and final observations.
All but the last may be overwritten by the next step."""


class Environments(ABC):
    """A vector environment whose observations are encoded, and whose episode ends are explicit."""

    _has_infos: ClassVar[bool] = False
    """Whether `step` sums up infos if that is asked for."""
    skips_row_after_end: ClassVar[bool] = False
    """Whether the row after an episode's end is a reset instead of a step."""
    is_compiled: ClassVar[bool] = False
    """Whether there may be kernels of them for other devices than the CPU."""
    device: Any = None
    """Where their tensors lie, a `torch.device`; None where they are arrays of the host."""

    def __init__(
        self, num_envs: int, observation_space: "gym.Space[Any]", action_space: "gym.Space[Any]", first: int = 0
    ) -> None:
        self.num_envs = num_envs
        """Columns of a rollout, `N`: environments, or the agents of environments, those of the first before others."""
        self.agents: tuple[str, ...] = ()
        """The names of the agents of one environment, a column each; none where each environment is a column."""
        self.observation_space, self.action_space = observation_space, action_space
        self.encode = ObservationEncoder(observation_space)
        if self.encode.frames is not None and self.skips_row_after_end:
            raise EnvError(
                "stacks of frames cannot be had from a vector that resets in the step after an episode's end: let the "
                "function make one environment, with frame_stack=..., or a vector that resets in the same step"
            )
        self.restarted: dict[int, int] = {}
        """Which environments were restarted in the last step, and how often. Where that step ended no episode, it
        is none, and the episode that it belonged to is broken off."""
        self.absent: Array | None = None
        """Of the last step, `[N]`: where nobody was there to act, so that the row is no step. None where all are.

        Such a row counts as terminated: nothing of it reaches the next episode.
        """
        self.waiting: Array | None = None
        """Of the last step, `[N]`: who did not act, since the agents take turns. None if all who are there act.

        The rewards of such a row, and the end of the episode, belong to the agent's last turn.
        """
        self.clips_rewards = False
        """Whether rewards are learned from between -1 and 1, where `step` gives them as they are."""
        self._infos: info_metrics.InfoSums | None = None
        self._closed = False
        self._keeper = StateKeeper(first)

    @property
    def envs(self) -> "list[gym.Env[Any, Any]] | None":
        """The environments, where they are objects of this process."""
        return None

    @property
    def num_agents(self) -> int:
        """How many columns an environment has."""
        return max(1, len(self.agents))

    @abstractmethod
    def reset(self, seed: int) -> Array:
        """Start every environment anew, the `i`-th from `seed + i`; observations `[N, obs]`."""

    @abstractmethod
    def step(self, actions: Any) -> Step:
        """Step every environment, by a batch of actions as gymnasium's vectors have it (`Distribution.to_env`).

        Raises:
            EnvError: if one fails, or returns what cannot be used: which one, and when.
        """

    def steer(self, steering: Steering) -> list[Any]:
        """Call a method, or set an attribute, in every environment; what each returned.

        It is done again in an environment that is restarted.

        Raises:
            ConfigurationError: if the environments are no objects of Python, one by one.
            EnvError: if an environment has no such method or attribute.
        """
        raise refused(f"{type(self).__name__}", "let the library step copies of one (vectorization='sync')")

    def measure_infos(self, names: Sequence[str]) -> None:
        """Sum up these entries of infos from now on.

        Raises:
            ConfigurationError: if they have no infos.
        """
        if not self._has_infos:
            raise info_metrics.refused(f"{type(self).__name__} of {self.num_envs}")
        self._infos = info_metrics.InfoSums(names, self.num_envs)

    def take_infos(self) -> info_metrics.Sums:
        """What was summed up since the last call."""
        assert self._infos is not None  # asked for by `measure_infos`
        return self._infos.take()

    def check_rewards(self, rewards: Array) -> None:  # noqa: B027 - nothing to do where `step` has done it
        """Refuse rewards of the last steps, `[t, N]`, that are not finite, where `step` has not done so."""

    def state(self) -> list[EnvState]:
        """What `load_state` takes: the state of each sub-environment, or of the whole vector.

        Raises:
            EnvStateError: if it cannot be saved, with the attribute that stands in the way.
        """
        parts = self._parts()
        states = self._keeper.describe([part for part, _ in parts])
        return [{"num_envs": count, "state": state} for (_, count), state in zip(parts, states, strict=True)]

    def remember_the_start(self) -> None:
        """What is saved from now on leaves out what is still as it is now; to be called after the first reset."""
        with contextlib.suppress(EnvStateError):  # `state` raises it again
            self._keeper.remember([part for part, _ in self._parts()])

    def load_state(self, states: list[EnvState]) -> None:
        """Go on from saved states, in environments made and reset as those were.

        Raises:
            EnvStateError: if they do not fit these environments, which must then be reset.
        """
        parts = self._parts()
        if [count for _, count in parts] != [state["num_envs"] for state in states]:
            raise EnvStateError(
                f"what was saved is the state of vectors of {[state['num_envs'] for state in states]} environments, "
                f"not of {[count for _, count in parts]}"
            )
        self._keeper.restore([part for part, _ in parts], [state["state"] for state in states])

    @abstractmethod
    def _parts(self) -> list[tuple[object, int]]:
        """What can be saved each by itself, and how many environments it is."""

    def close(self) -> None:
        """Release the environments; a second call does nothing. If that fails, it is warned of."""
        if not self._closed:
            self._closed = True
            with warned_of_closing(f"the environments, {type(self).__name__} of {self.num_envs}"):
                self._close()

    @abstractmethod
    def _close(self) -> None:
        """Release the environments."""


def closed(*arguments: Any) -> Any:
    """What a closed environment has in place of a method of its own, which would keep it alive."""
    raise EnvError("the environments are closed")


@contextlib.contextmanager
def warned_of_closing(what: str) -> Iterator[None]:
    """Within it, an error is warned of: what was done with an environment is not lost because it cannot be closed."""
    try:
        yield
    except Exception:
        logger.warning("%s could not be closed", what, exc_info=True)
