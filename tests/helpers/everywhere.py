"""A training gives the same bits wherever it is sampled and learned, and goes on to them after a stop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from run_files import remove_last_checkpoint
from same_bits import values_of

import hybridppo
from hybridppo import Migrating, Mirrored
from hybridppo.run_directory.directory import RunDirectory

WAYS: dict[str, dict[str, Any]] = {
    "mirrored": {"placement": Mirrored("cpu", "cpu", force_copy=True, verify=True)},
    "migrating": {"placement": Migrating("cpu", "cpu", force_copy=True)},
    "two workers": {"num_workers": 2},
}
"""Options of `hybridppo.train` that change no bit, by name."""


def assert_same_everywhere(
    train: Callable[..., Any], expected: Any, ways: Mapping[str, dict[str, Any]] = WAYS, *, run: Path | None = None
) -> None:
    """`train` ends with the expected parameters in each of these ways, and in one more that is saved in `run`."""
    import torch

    saved = {} if run is None else {"saved": {"run_dir": run, "checkpoint_seconds": 0}}
    for way, options in {**ways, **saved}.items():
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
