"""What a training that fails leaves: a checkpoint of all that was learned, and an error that says how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hybridppo.errors import add_advice, command
from hybridppo.run_directory.directory import RunDirectory


class Saves(Protocol):
    """A loop that can be saved."""

    saved: bool
    is_rescued: bool
    """Whether an error has been dealt with, on its way out."""

    @property
    def run_directory(self) -> RunDirectory | None:
        """Where checkpoints go, if anywhere."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...

    def leaves_agent_whole(self, error: Exception) -> bool:
        """Whether an error from anywhere in the loop came from outside an update; its sampler may be given up."""
        ...


@contextmanager
def rescuing(loop: Saves, *, between_updates: bool = True) -> Iterator[None]:
    """Within it, an error costs at most the rollout under way: what was learned is saved before it goes on.

    Args:
        loop: what is saved.
        between_updates: whether no update is made within it. An update that failed leaves an agent that is half
            updated, or not finite any more: it is not saved.
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
