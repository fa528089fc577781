"""Saves a training that fails: a checkpoint, and an error that says how to resume."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hybridppo.errors import add_advice, command
from hybridppo.run_directory.directory import RunDirectory


class Saves(Protocol):
    """A loop that can be saved."""

    saved: bool
    is_rescued: bool
    """Whether an error was already handled."""

    @property
    def run_directory(self) -> RunDirectory | None:
        """The run directory; None if there is none."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...

    def leaves_agent_whole(self, error: Exception) -> bool:
        """Whether an error came from outside an update; the sampler may then be given up."""
        ...


@contextmanager
def rescuing(loop: Saves, *, between_updates: bool = True) -> Iterator[None]:
    """A context in which an error costs at most the unfinished rollout: a checkpoint is written first.

    Args:
        loop: the loop to save.
        between_updates: whether the context contains no update. An agent whose update failed is not saved, because it
            is half updated or not finite.
    """
    try:
        yield
    except Exception as error:
        directory = loop.run_directory
        if directory is not None and not loop.is_rescued and (between_updates or loop.leaves_agent_whole(error)):
            loop.save()
            loop.is_rescued = True
            if loop.saved:
                resume = command("hybridppo", "resume", directory.path)
                add_advice(error, f"the training up to here is saved: go on with `{resume}`")
        raise
