"""`hybridppo watch`: a run while it goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.errors import ConfigurationError


@dataclass(frozen=True)
class Watch:
    """Show a run in the terminal while it goes on, until it ends; Ctrl-C leaves, and does the run nothing."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder, on this machine or a disk that it shares."""
    seconds: float = 1.0
    """Between two looks at its files."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Watch until it ends, or somebody leaves."""
        from hybridppo.tools.views.watching import watch

        if not 0.0 < self.seconds < 3600.0:
            raise ConfigurationError(f"--seconds must be positive, and below 3600, got {self.seconds:g}")
        try:
            watch(self.run_dir, seconds=self.seconds)
        except KeyboardInterrupt:
            print()
        return EXIT_DONE
