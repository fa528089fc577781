"""The loop of several that train together, where only the first evaluates, writes, and tells callbacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from hybridppo.errors import DistributionError, LearnerLostError
from hybridppo.runners.runner import Runner

GO_ON, SAVE, STOP = "go on", "save", "stop: "


class Commands(Protocol):
    """How the first says what all do next."""

    def tell(self, what: str) -> None:
        """Say it; called by the first alone."""
        ...

    def hear(self) -> str:
        """What the first says next, waited for however long it takes; called by the others."""
        ...


class SharedRunner(Runner):
    """Like `Runner`, in each of the processes that train together.

    All do the same, but for what the first does apart: an evaluation, or a callback, takes as long as it takes. The
    others wait for its end, save with it where it saves meanwhile, and stop where a callback has ended the training.

    Args:
        *arguments: as for `Runner`.
        is_first: whether this one has the callbacks, the evaluation and the run directory.
        commands: from the first to the others.
        of_all: makes of this process's tensors, some of which have a column for each environment, those of all.
        **options: as for `Runner`.
    """

    def __init__(
        self,
        *arguments: Any,
        is_first: bool,
        commands: Commands,
        of_all: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        **options: Any,
    ) -> None:
        self._is_first, self._commands, self._of_all = is_first, commands, of_all
        self._is_apart = self._is_over = False
        super().__init__(*arguments, **options)
        self.is_rescued = not is_first  # an error of another goes to the first

    def run(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        with self._apart():
            pass  # callbacks know of the start
        metrics = super().run()
        self._is_over = True  # the others are gone, or about to go, and all is saved
        return metrics

    @contextmanager
    def _apart(self) -> Iterator[None]:
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False
        if self._is_first:
            self._commands.tell(GO_ON if self.stopped_by is None else STOP + self.stopped_by)
            return
        while (told := self._commands.hear()) == SAVE:
            super().save()
        if told.startswith(STOP):
            self._callbacks.run.stop(told.removeprefix(STOP))

    def leaves_agent_whole(self, error: Exception) -> bool:  # noqa: D102 - as in the base
        if isinstance(error, DistributionError) and not isinstance(error, LearnerLostError) and self._rollout is None:
            self.sampler.give_up(str(error))  # as of environments that have failed elsewhere
            return True
        return super().leaves_agent_whole(error)

    def _agent_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super()._agent_state()
        return tensors if self.sampler.failure is not None else self._of_all(tensors), state

    def _rollout_tensors(self) -> dict[str, Tensor]:
        own = {f"runner.{name}": tensor for name, tensor in super()._rollout_tensors().items()}
        return {name.removeprefix("runner."): tensor for name, tensor in (self._of_all(own) if own else {}).items()}

    def save(self) -> None:
        """As in the base, by all: they come here together, or the first asks them to."""
        if self.run_directory is None or self._is_over:
            return
        if self.sampler.failure is not None:  # the others are not met any more; only the first is rescued
            super().save()
            return
        if self._is_apart:
            self._commands.tell(SAVE)
            super().save()
            return
        with self._apart():  # writing and its callbacks take time of the first alone
            super().save()
