"""The loop of several learners, of which only the first evaluates, writes and calls callbacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from hybridppo.errors import DistributionError, LearnerLostError
from hybridppo.runners.runner import Runner

GO_ON, SAVE, STOP = "go on", "save", "stop: "


class Commands(Protocol):
    """How the first learner tells the others what to do next."""

    def tell(self, what: str) -> None:
        """Tell it; only the first learner calls this."""
        ...

    def hear(self) -> str:
        """Wait for the next command; the other learners call this."""
        ...


class SharedRunner(Runner):
    """Like `Runner`, in each of the processes that train together.

    All do the same, except for evaluations and callbacks of the first, which may take any time. The others wait for
    their end, save when the first saves meanwhile, and stop if a callback has ended the training.

    Args:
        *arguments: as for `Runner`.
        is_first: whether this process has the callbacks, the evaluation and the run directory.
        commands: commands from the first to the others.
        of_all: from this process's tensors, some with a column for each environment, to those of all processes.
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
        self.is_rescued = not is_first  # errors of other processes go to the first

    def run(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        with self._apart():
            pass  # callbacks get the start
        metrics = super().run()
        self._is_over = True  # the others have ended or are about to, and everything is saved
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
            self.sampler.give_up(str(error))  # as if the environments had failed
            return True
        return super().leaves_agent_whole(error)

    def _agent_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, state = super()._agent_state()
        return tensors if self.sampler.failure is not None else self._of_all(tensors), state

    def _rollout_tensors(self) -> dict[str, Tensor]:
        own = {f"runner.{name}": tensor for name, tensor in super()._rollout_tensors().items()}
        return {name.removeprefix("runner."): tensor for name, tensor in (self._of_all(own) if own else {}).items()}

    def save(self) -> None:
        """As in the base, in all processes: they call it together, or the first tells the others to."""
        if self.run_directory is None or self._is_over:
            return
        if self.sampler.failure is not None:  # the others are not reached any more; only the first saves
            super().save()
            return
        if self._is_apart:
            self._commands.tell(SAVE)
            super().save()
            return
        with self._apart():  # only the first takes time to write and to call callbacks
            super().save()
