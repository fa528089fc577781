"""`hybridppo resume`: go on with a run."""

from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.auto.auto import Auto
from hybridppo.auto.named import PlacementName, PlacementOptions
from hybridppo.commands.exits import EXIT_DONE, EXIT_INTERRUPTED, report
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import require_devices
from hybridppo.runs.options import GROUPS, changeable_names, fields_of, helps
from hybridppo.training.resume import resume


def _changes() -> type[Any]:
    """The options that a run may change, each None for the run's own."""
    sentences = {name: text for group in GROUPS for name, text in helps(group).items()}
    options = fields_of(*GROUPS)
    flags = []
    for name in changeable_names():
        kind: Any = options[name].type
        flag = tyro.conf.arg(help=f"{sentences.get(name, '')} Not given: the run's own.")
        flags.append((name, Annotated[kind | None, flag], field(default=None)))
    return make_dataclass("Changes", flags, frozen=True)


Changes = _changes()


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest checkpoint."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    changes: Annotated[Changes, tyro.conf.arg(name="")] = field(default_factory=Changes)  # type: ignore[valid-type]
    placement: PlacementName | None = None
    """Another placement than the run's own."""
    sampling_device: str | None = None
    """Where migrate, hybrid and overlap sample; not given: cpu. Needs --placement."""
    learning_device: str | None = None
    """Where migrate, hybrid and overlap learn; not given: cuda. Needs --placement."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Resume, and say what came of it."""
        result = resume(
            self.run_dir,
            placement=self._placement(),
            progress=self.progress,
            on_interrupt="return",
            **asdict(self.changes),
        )
        if result.run_dir is None:  # of learners that torchrun has started, the first says it
            return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE
        return report(result)

    def _placement(self) -> Placement | Auto | None:
        if self.placement is None:
            require_devices(None, sampling_device=self.sampling_device, learning_device=self.learning_device)
            return None
        return PlacementOptions(self.placement, self.sampling_device, self.learning_device).resolve()
