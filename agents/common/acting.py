"""What an agent's `act` is given: an observation, a mask, a state."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.placements.acting import TorchActor, TorchRecurrentActor
from hybridppo.spaces.base import Distribution
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.state_dependent import Drawing

NO_STATE: Any = object()
"""Where no state is passed."""


def row_of(observation: Any, action_mask: Any, space: gym.Space[Any], encode: ObservationEncoder) -> NDArray[Any]:
    """An observation and its mask as the actor takes it, `[1, *row]`.

    Raises:
        EnvError: where either is not what the agent takes.
    """
    if not isinstance(space, MaskedObservation):
        if action_mask is not None:
            raise EnvError("action_mask was given to an agent that was trained without masks: leave it out")
        if encode.frames is not None and np.shape(observation) != space.shape:
            number = encode.frames.num_frames
            raise EnvError(
                f"this agent acts on stacks of {number} observations, of shape {space.shape}, got one of shape "
                f"{np.shape(observation)}: let hybridppo.FrameStack(env, {number}) give them"
            )
        if encode.is_array:
            return encode(np.asarray(observation)[None])
        try:
            return encode.one(observation)[None]
        except BadValueError as error:
            raise EnvError(f"the agent cannot act: {error}") from None
    needs = "this agent takes an action that a mask allows: pass action_mask=info['action_mask'], which allows at "
    if action_mask is None:
        raise EnvError(f"{needs}least one, got None")
    try:
        row = space.row(observation, action_mask)
    except BadValueError as error:
        raise EnvError(f"the agent cannot act: {error}") from None
    try:
        space.require_allowed(row)
    except BadValueError:
        raise EnvError(f"{needs}least one, got {shown(action_mask)}") from None
    return row[None]


class OwnParts:
    """Observations of which an agent needs some parts alone: the others may be missing.

    Args:
        space: of whole observations.
        keys: of the parts that are needed.
    """

    def __init__(self, space: gym.Space[Any], keys: Sequence[str]) -> None:
        space = space.observation if isinstance(space, MaskedObservation) else space
        any_space = deepcopy(space)
        any_space.seed(0)
        whole: Any = any_space.sample()
        self._is_dict = isinstance(whole, dict)
        self._others = dict(whole) if self._is_dict else dict(enumerate(whole))
        """What stands for the parts that nobody looks at."""
        self._needed = [key for key in self._others if str(key) in keys]

    def completed(self, observation: Any) -> Any:
        """A whole observation.

        Raises:
            EnvError: if it lacks a part that is needed.
        """
        given = observation if isinstance(observation, Mapping) else dict(enumerate(observation))
        missing = [key for key in self._needed if key not in given]
        if missing:
            raise EnvError(
                f"this agent acts on the parts {', '.join(map(str, self._needed))} of an observation (actor_keys), and "
                f"{shown(observation)} has no {missing[0]!r}"
            )
        whole = {**self._others, **{key: given[key] for key in self._needed}}
        return whole if self._is_dict else tuple(whole.values())


def remind(actor: TorchActor, state: Any, recurrent: str | None) -> None:
    """Give an actor the state that was passed to `act`, `NO_STATE` where none was.

    Raises:
        EnvError: where it is missing, not expected, or not what `act` gave.
    """
    if not isinstance(actor, TorchRecurrentActor):
        if state is not NO_STATE and state is not None:
            raise EnvError(f"state must be None for an agent without a memory, got {shown(state)}")
        return
    if state is NO_STATE:
        raise EnvError(
            f"this agent has a memory (recurrent={recurrent!r}), which act takes and gives: write "
            "`action, state = agent.act(observation, state=state)`, with state=None where an episode starts"
        )
    shape = (actor.state_size,)
    if state is None:
        state = np.zeros(shape, np.float32)
    given = np.asarray(state)
    if given.shape != shape or given.dtype != np.float32 or not np.isfinite(given).all():
        raise EnvError(
            f"state must be what the last call of act gave, an array {shape} of float32, or None where an episode "
            f"starts, got {shown(state)}"
        )
    actor.state = given[None]


def chosen(actor: TorchActor, row: NDArray[Any], distribution: Distribution, deterministic: bool) -> NDArray[Any]:
    """The most probable action for a row `[1, *row]`, or one at random, `[1, *action]`."""
    if deterministic:
        return distribution.mode(actor(row))
    return Drawing(distribution, np.random.default_rng(), 1).actions(actor, row)
