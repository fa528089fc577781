"""`hybridppo report`: a run as a page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hybridppo.commands.exits import EXIT_DONE


@dataclass(frozen=True)
class Report:
    """Write report.html into a run's folder: one page that needs nothing but itself."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Write it, and say where."""
        from hybridppo.tools.views.report import write_report

        print(f"report: {write_report(self.run_dir)}")
        return EXIT_DONE
