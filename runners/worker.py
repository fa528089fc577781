"""A worker process: steps its environments with its own actor, and writes its columns of the rollout.

It loads neither torch nor the script that started the training.
"""

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from hybridppo.environments.base import Environments, closed_if_refused
from hybridppo.environments.checks import describe_error, require_same_spaces
from hybridppo.environments.infos import summed
from hybridppo.environments.making import make_environments
from hybridppo.environments.packages import source_here
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, HybridPPOError, failures, shown_error
from hybridppo.rollouts.rollout import Layout, Rollout
from hybridppo.runners.acting import AskingActor
from hybridppo.runners.filling import NEVER, Filled, Flag, Stepper, in_turn
from hybridppo.runners.processes import Answer, SharedArrays, answer_trainer
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_globals


def environments_of(setup: dict[str, Any], envs: slice, seed: int) -> Environments:
    """The environments of a worker, which have the spaces of those in the trainer.

    All parts of a process seed its global generators alike, so that these differ later only if environments draw from
    them. The arguments are as for `Worker`, but `seed` is that of the process.

    Raises:
        EnvError: if they cannot be made, or have other spaces.
    """
    source, num_envs = source_here(setup["source"], setup["options"].imports), envs.stop - envs.start
    seed_globals(seed, "making environments")
    # One thread each, because the processes are the parallelism.
    made = make_environments(source, num_envs, setup["options"], first=envs.start, threads=1)
    seed_globals(seed, "stepping environments")  # again, because making environments may have loaded torch
    who = f"environments {envs.start} to {envs.stop - 1}, made in a worker process,"
    with closed_if_refused(made):
        require_same_spaces(made, setup["spaces"], who, "those made in the trainer", setup["num_envs"])
    return made


class Worker:
    """Steps some of the environments with its own actor.

    Args:
        setup: sent to all workers: `source` and `options` of the environments, their number `num_envs` and
            `spaces`; `form` and `shapes` of the actor and its parameters, or no form and the names of the arrays of
            `acting`; `distribution`; `memory`; the `layout` of a rollout.
        envs: the environments of this worker.
        seed: the seed of the first of them.
        seed_of_process: the seed of the first environment of this process; None for `seed`.

    Raises:
        EnvError: if they cannot be made, or have other spaces.
    """

    def __init__(self, setup: dict[str, Any], envs: slice, seed: int, seed_of_process: int | None = None) -> None:
        own = seed if seed_of_process is None else seed_of_process
        self._environments, self._form = environments_of(setup, envs, own), setup["form"]
        self.asking: AskingActor | None = None
        """The actor that asks the trainer, if the worker does not act itself."""
        # An environment is a column of a rollout, or as many columns as it has agents.
        agents = self._environments.num_agents
        self.columns = slice(envs.start * agents, envs.stop * agents)
        with closed_if_refused(self._environments):
            self.stepper = Stepper(self._environments, setup["distribution"], seed, setup["memory"])

    def fill(
        self, buffer: Rollout, parameters: Sequence[Array], version: int, stop: Flag, first: int, end: int | None
    ) -> Filled:
        """As `Stepper.fill`, with an actor of these parameters, whose version is `version`."""
        return in_turn([self.filling(buffer, parameters, version, stop, first, end)])[0]

    def filling(
        self, buffer: Rollout, parameters: Sequence[Array], version: int, stop: Flag, first: int, end: int | None
    ) -> Generator[None, None, Filled]:
        """As `fill`; it pauses whenever it has asked the trainer."""
        actor: Any = self._form.actor(parameters) if self.asking is None else self.asking
        pauses = self.asking is not None
        rows, finals = yield from self.stepper.filling(buffer, actor, stop, first, end, pauses=pauses)
        return Filled(rows, finals, version, self._environments.take_infos() if self._environments.info_names else None)

    def answer(self, kind: str, arguments: Sequence[Any]) -> tuple[Any, HybridPPOError | None]:
        """The result of a method of the stepper or of the environments, or the error if they cannot do that."""
        owner = self._environments if kind == "steer" else self.stepper
        try:
            return getattr(owner, kind)(*arguments), None
        except (EnvError, ConfigurationError) as error:
            if kind == "restart":  # the environments have failed
                raise
            return None, error
        except failures() as error:
            if kind == "steer":  # the environment's own method has failed, and its worker goes on
                return None, EnvError(describe_error(error))
            if kind != "load_state":
                raise
            # for data that are not a state
            text = f"what was saved of them cannot be read: {shown_error(error)}"
            return None, EnvStateError(text)

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()


class PublishedParameters:
    """An actor's parameters, which one process writes and others read: the newest version, without waiting.

    There is room for two versions; the next one is written over the older one.

    Args:
        arrays: laid out by `layout`.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._parameters, self._versions, self._count = arrays["parameters"], arrays["versions"], arrays["published"]

    @staticmethod
    def layout(num_parameters: int) -> Layout:
        """The layout of its arrays."""
        return {
            "parameters": ((2, num_parameters), "float32"),
            "versions": ((2,), "int64"),
            "published": ((1,), "int64"),
        }

    def write(self, parameters: Sequence[Array], version: int) -> None:
        """Publish a version."""
        count = int(self._count[0]) + 1
        np.concatenate([parameter.reshape(-1) for parameter in parameters], out=self._parameters[count % 2])
        self._versions[count % 2] = version
        self._count[0] = count

    def read(self) -> tuple[Array, int]:
        """A copy of the newest parameters, one after the other, and their version."""
        while True:
            count = int(self._count[0])
            copied, version = self._parameters[count % 2].copy(), int(self._versions[count % 2])
            if int(self._count[0]) == count:  # else the copy may be half of a newer version
                return copied, version


def parameters_of(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Views of a flat array with these shapes, one after the other."""
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    return [flat[start:end].reshape(shape) for start, end, shape in zip([0, *ends], ends, shapes, strict=False)]


def joined(parts: Sequence[Filled], firsts: Sequence[int]) -> Filled:
    """The answer of several parts that have filled as many rows, by the first column of each."""
    finals = [(t, first + env, row) for part, first in zip(parts, firsts, strict=True) for t, env, row in part.finals]
    infos = [part.infos for part in parts if part.infos is not None]
    return parts[0]._replace(finals=finals, infos=summed(infos) if infos else None)


@contextlib.contextmanager
def serving(setup: dict[str, Any], envs: slice, seed: int, arrays: SharedArrays, heartbeat: Array) -> Iterator[Answer]:
    """A context with a worker's environments; the function fills rows, or answers other messages.

    The environments are in the parts of `setup`, which are stepped in turn: one while the trainer acts for the other.
    A message other than "fill" has the arguments for each part, and its answer has the results of each.
    """
    parts = setup["parts"][envs.start]
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(Worker(setup, part.envs, seed + part.envs.start - envs.start, seed)))
            for part in parts
        ]
        of_buffers = [{name: arrays[f"{name}{i}"] for name in setup["layout"]} for i in range(setup["num_buffers"])]
        buffers = [[Rollout(**of_buffer).of(worker.columns) for worker in workers] for of_buffer in of_buffers]
        published, stop = PublishedParameters(arrays), arrays["stop"].data
        for part, worker in zip(parts, workers, strict=True):
            worker.stepper.heartbeat = heartbeat.data
            if setup["form"] is None:
                own = {name: arrays[name][part.place] for name in setup["acting"]}
                worker.asking = AskingActor(own, partial(setup["ask"], part.group), partial(setup["wait"], part.group))

        def answer(kind: str, value: Any) -> tuple[Any, float]:
            if kind != "fill":
                return [worker.answer(kind, own) for worker, own in zip(workers, value, strict=True)], 0.0
            turn, first, end = value
            # A worker that is to catch up with others does not stop before their row.
            flag = stop if end is None else NEVER
            # All parts stop before the same row: they see the flag as it is before the first of them steps.
            seen: Flag = flag if len(parts) == 1 else bytearray(1)
            published_now, version = published.read()
            parameters = parameters_of(published_now, setup["shapes"])
            fillings = [
                worker.filling(buffer, parameters, version, seen, first, end)
                for worker, buffer in zip(workers, buffers[turn], strict=True)
            ]
            filled = in_turn(fillings, lambda: seen.__setitem__(0, flag[0]))
            seconds = max(worker.stepper.seconds for worker in workers)
            return joined(filled, [worker.columns.start - workers[0].columns.start for worker in workers]), seconds

        yield answer


def main() -> None:
    """Run as a worker."""
    answer_trainer(serving)
