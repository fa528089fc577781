"""A training gives the same bits wherever it is sampled and learned, and goes on to them after a stop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from run_files import remove_last_checkpoint
from same_bits import values_of

import hybridppo
from hybridppo import Migrating, Mirrored
from hybridppo.run_directory.directory import RunDirectory

MIRRORED: dict[str, Any] = {"placement": Mirrored("cpu", "cpu", force_copy=True, verify=True)}
WITH_WORKERS = "mirrored, two workers"
WAYS: dict[str, dict[str, Any]] = {
    WITH_WORKERS: {**MIRRORED, "num_workers": 2},
    "migrating": {"placement": Migrating("cpu", "cpu", force_copy=True)},
}
"""Options of `hybridppo.train` that change no bit, by name. Two of them together are tried at the cost of one."""


def assert_same_everywhere(
    train: Callable[..., Any], expected: Any, ways: Mapping[str, dict[str, Any]] = WAYS, *, run: Path | None = None
) -> None:
    """`train` ends with the expected parameters in each of these ways, the last of which is saved in `run`."""
    import torch

    *others, last = ways.items() or [("saved", {})]
    saved = {} if run is None else {"run_dir": run, "checkpoint_seconds": 0}
    for way, options in (*others, (last[0], {**last[1], **saved})):
        assert torch.equal(values_of(train(**options)), values_of(expected)), way


def assert_goes_on_exactly(run: Path, expected: Any, **options: Any) -> hybridppo.TrainResult:
    """A run that was stopped before its last checkpoint ends with the expected parameters; the result."""
    import torch

    remove_last_checkpoint(run)
    left = RunDirectory.open(run).load_checkpoint().state["runner"]
    assert left["steps_learned"] < expected.metrics["env_steps"]
    again = hybridppo.resume(run, progress=False, **options)
    assert torch.equal(values_of(again), values_of(expected))
    return again
