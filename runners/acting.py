"""Acting for workers that only step: the actor has no form in NumPy, or acts on a device.

A worker writes the rows of its environments into shared memory and asks; the trainer acts for many workers in one call,
and writes the outputs. Workers are in two groups: while the trainer acts for one, the workers of the other step
(double-buffered sampling, as in Petrenko et al., "Sample Factory", 2020, section 3.2). Workers use this file without
torch.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any

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


class AskingActor:
    """The actor of a worker that asks the trainer; with the methods of recurrent and of exploring actors.

    Args:
        arrays: the columns of the worker in the arrays of `layout`.
        ask: returns when the trainer has acted; its argument says whether the noise of exploration is new.
    """

    def __init__(self, arrays: dict[str, Array], ask: Callable[[bool], None]) -> None:
        self._arrays, self._ask = arrays, ask
        self._is_new = False
        self.version = 0
        self.perturbation = arrays["perturbation"]

    def __call__(self, observations: Array) -> Array:
        """`[N, *row] -> [N, outputs]`."""
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

    The number of rows in a call is that of the workers of a group. It changes outputs only if those of the actor depend
    on it, as products of matrices in torch may in their last bit.

    Args:
        arrays: the arrays of `layout`.
        columns: the columns of each worker.
        reply: tells a worker that its outputs are there.
    """

    def __init__(self, arrays: dict[str, Array], columns: Sequence[slice], reply: Callable[[int], None]) -> None:
        self._arrays, self._columns, self._reply = arrays, columns, reply
        half = (len(columns) + 1) // 2
        self._groups = [each for each in (range(half), range(half, len(columns))) if each]
        self._actors: list[Any] = []
        self._explored: dict[int, list[int]] = {}
        """For each group, the workers whose noise of exploration its actor has."""
        self.asking: set[int] = set()
        """Workers that wait for the trainer."""

    def begin(self, actor: Any) -> None:
        """Use this actor from now on."""
        self._actors, self._explored = [copy(actor) for _ in self._groups], {}

    def notes(self, worker: int, answer: Any) -> bool:
        """Whether a worker's message asks for outputs; then note it."""
        if isinstance(answer, WorkerLostError):
            self.asking.discard(worker)
        if not isinstance(answer, tuple) or answer[0] is not ASKS:
            return False
        self.asking.add(worker)
        if answer[1]:
            for explored in self._explored.values():
                explored.clear()
        return True

    def act_for(self, waiting: Collection[int]) -> None:
        """Act for each group whose workers all ask, of those that are waited for."""
        for number, group in enumerate(self._groups):
            members = [worker for worker in group if worker in waiting]
            if members and self.asking.issuperset(members):
                self._act(number, members)
                self.asking.difference_update(members)
                for worker in members:
                    with contextlib.suppress(WorkerLostError):  # whoever waits for its answer finds out
                        self._reply(worker)

    def _act(self, number: int, members: list[int]) -> None:
        actor, arrays = self._actors[number], self._arrays
        rows: Any = np.concatenate([np.arange(self._columns[each].start, self._columns[each].stop) for each in members])
        if len(rows) == rows[-1] + 1 - rows[0]:
            rows = slice(rows[0], rows[-1] + 1)
        if arrays["state"].shape[1]:
            actor.state = arrays["state"][rows]
        explores = arrays["exploration"].shape[1] > 0
        if explores and self._explored.get(number) != members:
            actor.explore(arrays["exploration"][rows])
            self._explored[number] = members
        arrays["outputs"][rows] = actor(arrays["rows"][rows])
        if explores:
            arrays["perturbation"][rows] = actor.perturbation
        if arrays["state"].shape[1]:
            arrays["state"][rows] = actor.state
