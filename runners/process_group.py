"""Keeps the runners of several processes that train together in step.

All processes do the same, except for evaluations, callbacks and files, which only the first has, and which may take any
time. Meanwhile the others wait, and make the calls that the first requests of all. They stop if a callback of the first
has ended the training.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakMethod

import safetensors.torch
from torch import Tensor

from hybridppo.interfaces import agents_of
from hybridppo.reporting.callbacks import TrainingRun

GO_ON = "go on"
Piece = tuple[int, dict[str, Tensor]]
"""Rows of a replay buffer from a file: the number of the first, and their tensors."""


class SingleProcess:
    """The group of a runner that trains alone."""

    def __init__(self) -> None:
        self._calls: dict[str, WeakMethod[Callable[..., Any]]] = {}
        self.is_first = self.is_single = True
        self.has_left = False
        """Whether the other processes cannot be reached any more."""

    def offer(self, **calls: Callable[..., Any]) -> None:
        """Name methods that the first may call in all processes at the same time. Their objects are not kept alive."""
        self._calls |= {name: WeakMethod(call) for name, call in calls.items()}

    @contextmanager
    def first_only(self, run: TrainingRun) -> Iterator[None]:
        """A context for work that only the first does.

        At its end the others make the calls of the first, stop if a callback of the first has ended its `run`, and take
        the settings of its agent, which a callback may have changed. A context within another is part of it.
        """
        yield

    def call(self, name: str, *arguments: Any) -> Any:
        """Call an offered method in all processes; only the first does, in `first_only`. JSON must hold its arguments.

        Returns:
            The result in this process.
        """
        method = self._calls[name]()
        assert method is not None  # its runner makes or hears the call
        return method(*arguments)

    def leave(self) -> None:
        """Do not communicate with the others from now on (`has_left`)."""

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all processes, from those of this process; some have a column for each environment."""
        return tensors

    def from_first(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces of the first process, in all processes; the pieces of the others are ignored."""
        yield from pieces


class Commands(Protocol):
    """Carries commands from the first learner to the others."""

    def tell(self, what: str) -> None:
        """Send a command; only the first learner calls this."""

    def hear(self) -> str:
        """Wait for the next command; the other learners call this."""


class ProcessGroup(SingleProcess):
    """The group of a runner that trains together with others.

    Args:
        rank: number of this process.
        commands: carries commands from the first process to the others.
        gathered: as the method of this name.
        from_first: returns the bytes of the first process; those of the others are ignored.
    """

    def __init__(
        self,
        rank: int,
        commands: Commands,
        gathered: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        from_first: Callable[[bytes], bytes],
    ) -> None:
        super().__init__()
        self.is_first, self.is_single, self._commands = rank == 0, False, commands
        self._gathered, self._from_first, self._is_apart = gathered, from_first, False
        self._configs: list[Any] = []
        """The settings that the others have, policy by policy."""

    @contextmanager
    def first_only(self, run: TrainingRun) -> Iterator[None]:  # noqa: D102 - as in the base
        if self._is_apart or self.has_left:
            yield
            return
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False
        agents: list[Any] = agents_of(run.agent)  # all are the library's
        if self.is_first:
            before, self._configs = self._configs, [agent.config for agent in agents]
            # Most iterations change none, and writing them takes longer than all else here.
            settings = [] if self._configs == before else [config.to_json() for config in self._configs]
            self._commands.tell(json.dumps([GO_ON, run.stopped_by, settings], allow_nan=True))
            return
        while (told := json.loads(self._commands.hear()))[0] != GO_ON:
            super().call(*told)
        if told[1] is not None:
            run.stop(told[1])
        for agent, settings in zip(agents, told[2]):  # noqa: B905 - none if they are the same
            if (config := type(agent.config)(**settings)) != agent.config:
                agent.config = config

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: D102 - as in the base
        if not self.has_left:
            self._commands.tell(json.dumps([name, *arguments], allow_nan=True))
        return super().call(name, *arguments)

    def leave(self) -> None:  # noqa: D102 - as in the base
        self.has_left = True

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: D102 - as in the base
        return tensors if self.has_left else self._gathered(tensors)

    def from_first(self, pieces: Iterable[Piece]) -> Iterator[Piece]:  # noqa: D102 - as in the base
        if self.is_first:
            for first, tensors in pieces:
                self._from_first(first.to_bytes(8, "little") + safetensors.torch.save(tensors))
                yield first, tensors
            self._from_first(b"")
            return
        while data := self._from_first(b""):
            yield int.from_bytes(data[:8], "little"), safetensors.torch.load(data[8:])
