"""Checks and converts the arguments of an agent's `act`: observations, masks and states, single or in batches."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.state_dependent import Drawing
from hybridppo.errors import BadValueError, EnvError, shown
from hybridppo.placements.placement import TorchActor, TorchRecurrentActor
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.registry import first_of

NO_STATE: Any = object()
"""Default of `act`'s argument `state`."""


def rows_of(
    observation: Any,
    action_mask: Any,
    space: gym.Space[Any],
    encode: ObservationEncoder,
    batch: bool,
    keys: Sequence[str] | None = None,
) -> NDArray[Any]:
    """An observation and its mask as the actor takes them, `[1, *row]`; a batch of them, `[N, *row]`.

    If `keys` are given, the actor sees these parts of an observation alone, and other parts may be missing.

    Raises:
        EnvError: if they are not valid.
    """
    if action_mask is not None and not isinstance(space, MaskedObservation):
        raise EnvError("action_mask was given to an agent that was trained without masks: leave it out")
    if keys is not None and isinstance(space, MaskedObservation):
        space = space.seeing(keys)
    elif keys is not None:
        encode = encode.seeing(keys)
    try:
        rows = _encoded(observation, action_mask, space, encode, batch)
        if not np.isfinite(encode.layout.numbers(rows)).all():
            for number, row in enumerate(rows):
                encode.require_finite(f"in observation {number}: observation" if batch else "the observation", row)
    except (BadValueError, EnvError, ValueError) as error:  # ValueError: NumPy makes no array of it
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise EnvError("act got the pair that reset returns: write `observation, info = env.reset()`") from None
        raise error if isinstance(error, EnvError) else EnvError(f"the agent cannot act: {error}") from None
    return rows


def _encoded(
    observation: Any, action_mask: Any, space: gym.Space[Any], encode: ObservationEncoder, batch: bool
) -> NDArray[Any]:
    if isinstance(space, MaskedObservation):
        return _masked_rows(observation, action_mask, space, batch)
    if encode.is_array:
        array = np.asarray(observation)
        _check_shape(array.shape, space, encode, batch)
        return encode(array if batch else array.reshape(1, *(space.shape or ())))
    if not batch:
        return encode.one(observation)[None]
    encode.check_shapes(observation, _length(encode.values(observation)[0]))
    return encode(observation)


def _check_shape(shape: tuple[int, ...], space: gym.Space[Any], encode: ObservationEncoder, batch: bool) -> None:
    """Refuse an array without the shape of an observation, or of a batch of them."""
    expected = tuple(space.shape or ())
    if encode.frames is not None and shape[int(batch) :] != expected:
        number = encode.frames.num_frames
        raise EnvError(
            f"this agent acts on stacks of {number} observations, of shape {expected}, got one of shape "
            f"{shape[int(batch) :]}: let hybridppo.FrameStack(env, {number}) give them"
        )
    if batch and (len(shape) != len(expected) + 1 or shape[1:] != expected or not shape[0]):
        raise EnvError(f"a batch of observations must be of shape {('N', *expected)}, and is of shape {shape}")
    sizes, wanted = ([size for size in each if size != 1] for each in (shape, expected))
    is_flat = sizes == [math.prod(expected)]
    if not batch and sizes != wanted and not is_flat:
        raise EnvError(
            f"an observation must be of shape {expected}, and is of shape {shape} (batch=True is for several)"
        )


def _length(values: Any) -> int:
    """The length of a batch of observations."""
    shape = np.shape(values)
    if not shape or not shape[0]:
        raise BadValueError(f"a batch of observations needs an axis for them, got {shown(values)}")
    return int(shape[0])


def _masked_rows(observation: Any, action_mask: Any, space: MaskedObservation, batch: bool) -> NDArray[Any]:
    """Rows `[N, *row]` of observations with their masks.

    Raises:
        BadValueError: if they are not in their spaces.
        EnvError: if a mask is missing or allows nothing.
    """
    needs = "this agent takes an action that a mask allows: pass action_mask=info['action_mask'], which allows at "
    if action_mask is None:
        raise EnvError(f"{needs}least one, got None")
    masks = list(action_mask) if batch else [action_mask]
    rows = space.rows(observation, masks) if batch else space.row(observation, action_mask)[None]
    for row, mask in zip(rows, masks, strict=True):
        try:
            space.require_allowed(row)
        except BadValueError:
            raise EnvError(f"{needs}least one, got {shown(mask)}") from None
    return rows


def remind(actor: TorchActor, state: Any, recurrent: str | None, num_rows: int | None) -> None:
    """Set the state of an actor to the one passed to `act`; `num_rows` is None except for a batch.

    Raises:
        EnvError: if the state is missing, unexpected or invalid.
    """
    if not isinstance(actor, TorchRecurrentActor):
        if state is not NO_STATE and state is not None:
            raise EnvError(f"state must be None for an agent without a memory, got {shown(state)}")
        return
    if state is NO_STATE:
        raise EnvError(
            f"this agent is recurrent (recurrent={recurrent!r}), so act takes and returns its state: write "
            "`action, state = agent.act(observation, state=state)`, with state=None at the start of an episode"
        )
    shape = (actor.state_size,) if num_rows is None else (num_rows, actor.state_size)
    if state is None:
        state = np.zeros(shape, np.float32)
    given = np.asarray(state)
    if given.shape != shape or given.dtype != np.float32 or not np.isfinite(given).all():
        raise EnvError(
            f"state must be what the last call of act returned, an array {shape} of float32, or None where an episode "
            f"starts, got {shown(state)}"
        )
    actor.state = given.reshape(-1, actor.state_size)


def chosen(actor: TorchActor, rows: NDArray[Any], distribution: Distribution, deterministic: bool) -> NDArray[Any]:
    """The most probable actions for rows `[N, *row]`, or random ones, `[N, *action]`."""
    if deterministic:
        return distribution.mode(actor(rows))
    return Drawing(distribution, np.random.default_rng(), len(rows)).actions(actor, rows)


def answer(
    actions: NDArray[Any], distribution: Distribution, space: gym.Space[Any], actor: TorchActor, state: Any, batch: bool
) -> Any:
    """The result of `act`: an action, or a batch as vector environments take it; with the next state if one was passed.

    Args:
        actions: `[N, *action]`.
        distribution: distribution of the actions.
        space: space of one action.
        actor: the actor after its call.
        state: the state passed to `act`.
        batch: whether the result is a batch.
    """
    found = distribution.to_env(actions)
    found = found if batch else first_of(space)(found)
    if state is NO_STATE:
        return found
    if not isinstance(actor, TorchRecurrentActor):
        return found, None
    return found, actor.state if batch else actor.state[0]
