"""`hybridppo benchmark`: a suite of environments on several seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hybridppo.commands.exits import EXIT_DONE


@dataclass(frozen=True)
class Benchmark:
    """Train a suite of environments on several seeds, side by side; can be stopped, and asked for again to go on."""

    suite: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SUITE")]
    """classic, box2d or mujoco; or ids of environments, with commas between; or a .json file of one's own settings."""
    seeds: int = 5
    """Runs for each environment."""
    settings: Literal["tuned", "defaults"] = "tuned"
    """Those that are known to suit each environment, or the library's defaults."""
    total_steps: int | None = None
    """Of each run, in place of those that the settings were made for."""
    output: Path = Path("benchmark")
    """The folder of the runs, the table and the picture."""
    jobs: int | None = None
    """Runs at once; not given: as many as there are cores."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Train what is missing, and print the table."""
        from hybridppo.tools.experiments.suites import run_benchmark, table

        rows = run_benchmark(
            self.suite,
            seeds=self.seeds,
            settings=self.settings,
            total_steps=self.total_steps,
            output=self.output,
            jobs=self.jobs,
            progress=self.progress,
        )
        print(table(rows))
        print(f"table, figures and picture: {self.output}")
        return EXIT_DONE
