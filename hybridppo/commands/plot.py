"""`hybridppo plot`: runs in one picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hybridppo.commands.exits import EXIT_DONE


@dataclass(frozen=True)
class Plot:
    """Draw the returns of runs: seeds together (interquartile mean and bootstrap band), other settings beside.

    Runs of other settings than those that can change a result, as --num-workers, count as seeds of one configuration.
    """

    run_dirs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN_DIR...")]
    """The runs' folders, or folders of such."""
    output: Path = Path("curves.png")
    """The picture, .png or .svg."""
    by: Literal["steps", "seconds"] = "steps"
    """What returns are drawn over: environment steps, or seconds of training."""
    confidence: float = 0.95
    """Of the band."""
    label: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME")] = ()
    """What to call the runs: given once for each folder that is named, or for each configuration, in their order. Not
    given: by the settings in which they differ."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Draw, and say what."""
        from hybridppo.tools.views.plotting import plot_runs

        groups = plot_runs(self.run_dirs, self.output, by=self.by, confidence=self.confidence, labels=self.label)
        for group in groups:
            count = len(group.runs)
            print(f"{group.env_id}: {group.label}, {count} {'seed' if count == 1 else 'seeds'}")
        print(f"picture: {self.output}")
        return EXIT_DONE
