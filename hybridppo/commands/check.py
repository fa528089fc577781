"""`hybridppo check`: what is wrong with an environment, and how fast it steps."""

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from hybridppo.commands.exits import EXIT_DONE, EXIT_ERROR
from hybridppo.environments.checking.check import SECONDS_TO_STEP, check_env
from hybridppo.run_directory.lines import as_json


@dataclass(frozen=True)
class Check:
    """Step an environment with random actions: what is wrong with it, how to mend it, and how fast it steps."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    steps: int = 2000
    """How many steps to make, or fewer,"""
    seconds: float = SECONDS_TO_STEP
    """where those take longer than this."""
    seed: int = 0
    """Of the environment's resets, and of the actions."""
    json: bool = False
    """Print the report as JSON."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Check, and print; 1 where the environment cannot be trained in."""
        report = check_env(self.env_id, steps=self.steps, seconds=self.seconds, seed=self.seed)
        print(as_json({**asdict(report), "is_usable": report.is_usable}).rstrip() if self.json else report)
        return EXIT_DONE if report.is_usable else EXIT_ERROR
