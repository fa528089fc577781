"""Acting for workers that only step: the actor has no form in NumPy, or acts on a device.

A worker writes the rows of its environments into shared memory and asks; the trainer acts for many workers in one call,
and writes the outputs. Environments are in two groups: while the trainer acts for one, workers step the other
(double-buffered sampling, as in Petrenko et al., "Sample Factory", 2020, section 3.2). Workers use this file without
torch.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from hybridppo.rollouts.rollout import Layout, MemoryLayout
from hybridppo.runners.processes import ASKS, WorkerLostError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder


def layout(num_envs: int, encode: ObservationEncoder, distribution: Any, memory: MemoryLayout | None) -> Layout:
    """The shared arrays of `num_envs` columns, by name, for a `Distribution`."""
    explores = distribution.explores
    return {
        "rows": ((num_envs, *encode.shape), np.dtype(encode.dtype).name),
        "outputs": ((num_envs, distribution.output_size), "float32"),
        "state": ((num_envs, 0 if memory is None else memory.state_size), "float32"),
        "exploration": ((num_envs, distribution.noise_size if explores else 0), "float32"),
        "perturbation": ((num_envs, distribution.size if explores else 0), "float32"),
    }


class Part(NamedTuple):
    """Environments of a worker, which it steps together."""

    envs: slice
    group: int
    """The trainer acts for all parts of a group in one call."""
    place: slice
    """Their rows in the arrays of `layout`, in which the rows of a group are together."""


def parts_of(shares: Sequence[slice], num_agents: int, halves: bool) -> list[list[Part]]:
    """The parts of each worker, for the environments of each.

    With `halves`, a worker with several environments has two parts, one in each group. Others have one, and half of
    them are in each group.
    """
    found: list[list[Part]] = [[] for _ in shares]
    end = 0
    for group in (0, 1):
        for worker, share in enumerate(shares):
            middle = (share.start + share.stop + 1) // 2
            if halves and share.stop - share.start > 1:
                envs = slice(middle, share.stop) if group else slice(share.start, middle)
            elif group == (2 * worker > len(shares) - 1):
                envs = share
            else:
                continue
            start, end = end, end + (envs.stop - envs.start) * num_agents
            found[worker].append(Part(envs, group, slice(start, end)))
    return found


class AskingActor:
    """The actor of a part of a worker that asks the trainer; with the methods of recurrent and of exploring actors.

    Args:
        arrays: its rows of the arrays of `layout`.
        ask: asks the trainer; its argument says whether the noise of exploration is new.
        wait: returns when the trainer has acted.
    """

    def __init__(self, arrays: dict[str, Array], ask: Callable[[bool], object], wait: Callable[[], object]) -> None:
        self._arrays, self._ask, self.wait = arrays, ask, wait
        self._is_new = False
        self.perturbation = arrays["perturbation"]

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`, which are there after `wait`."""
        self._arrays["rows"][:] = observations
        self._ask(self._is_new)
        self._is_new = False
        return self._arrays["outputs"]

    def explore(self, noise: Array) -> None:
        """Use this noise for the next calls."""
        self._arrays["exploration"][:], self._is_new = noise, True

    @property
    def state(self) -> Array:
        """The state of a recurrent actor, which each call advances."""
        return self._arrays["state"].copy()

    @state.setter
    def state(self, state: Array) -> None:
        self._arrays["state"][:] = state

    def forget(self, starts: Array) -> None:
        """Set the state of these environments, `[N]` bool, to zero."""
        self._arrays["state"][starts] = 0.0


class Acting:
    """Acts in the trainer for workers that ask.

    The number of rows in a call is that of a group. It changes outputs only if those of the actor depend on it, as
    products of matrices in torch may in their last bit.

    Args:
        arrays: the arrays of `layout`.
        parts: the parts of each worker.
        reply: tells a worker that the outputs of its part in a group are there.
    """

    def __init__(
        self, arrays: dict[str, Array], parts: Sequence[Sequence[Part]], reply: Callable[[int, int], None]
    ) -> None:
        self._arrays, self._reply = arrays, reply
        self._places: list[dict[int, slice]] = [
            {worker: part.place for worker, own in enumerate(parts) for part in own if part.group == group}
            for group in (0, 1)
        ]
        """The places of each group, by worker."""
        self._actors: list[Any] = []
        self._explored: list[list[int]] = [[], []]
        """For each group, the workers whose noise of exploration its actor has."""
        self._asking: list[set[int]] = [set(), set()]
        """For each group, the workers that wait for the trainer."""
        self._last = 1
        """The group that was acted for last."""

    def begin(self, actor: Any) -> None:
        """Use this actor from now on."""
        self._actors, self._explored = [copy(actor), copy(actor)], [[], []]

    def waits(self, worker: int) -> bool:
        """Whether a worker waits for the trainer."""
        return any(worker in asking for asking in self._asking)

    def notes(self, worker: int, answer: Any) -> bool:
        """Whether a worker's message asks for outputs, of a group and perhaps by new noise; then note it."""
        if isinstance(answer, WorkerLostError):
            for asking in self._asking:
                asking.discard(worker)
        if not isinstance(answer, tuple) or answer[0] is not ASKS:
            return False
        group, is_new = answer[1]
        self._asking[group].add(worker)
        if is_new:
            self._explored[group] = []
        return True

    def act_for(self, waiting: Collection[int]) -> None:
        """Act for each group whose workers all ask, of those that are waited for."""
        for group in (1 - self._last, self._last):  # first for whoever has waited longer
            members = [worker for worker in self._places[group] if worker in waiting]
            if members and self._asking[group].issuperset(members):
                self._act(group, members)
                self._last = group
                self._asking[group].difference_update(members)
                for worker in members:
                    with contextlib.suppress(WorkerLostError):  # whoever waits for its answer finds out
                        self._reply(worker, group)

    def _act(self, group: int, members: list[int]) -> None:
        actor, arrays, places = self._actors[group], self._arrays, [self._places[group][each] for each in members]
        rows: Any = slice(places[0].start, places[-1].stop)
        if len(members) < len(self._places[group]):
            rows = np.concatenate([np.arange(place.start, place.stop) for place in places])
        if arrays["state"].shape[1]:
            actor.state = arrays["state"][rows]
        explores = arrays["exploration"].shape[1] > 0
        if explores and self._explored[group] != members:
            actor.explore(arrays["exploration"][rows])
            self._explored[group] = members
        arrays["outputs"][rows] = actor(arrays["rows"][rows])
        if explores:
            arrays["perturbation"][rows] = actor.perturbation
        if arrays["state"].shape[1]:
            arrays["state"][rows] = actor.state
