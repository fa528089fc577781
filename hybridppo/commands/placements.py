"""`hybridppo placements`: how fast training would be under each placement."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.agents import PPOConfig
from hybridppo.auto.comparison import as_markdown, bars_of, compare_placements
from hybridppo.commands.exits import EXIT_DONE
from hybridppo.commands.tables import for_terminals
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, pip_install
from hybridppo.reporting.pictures import has_matplotlib, plot_placements
from hybridppo.run_directory.lines import as_json


@dataclass(frozen=True)
class Placements:
    """Train for some moments under each placement that this machine can run, and say which is the fastest."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    total_steps: int = 500_000
    """Of the run that is planned; what starts once is spread over it."""
    max_lag: int = 0
    """1 lets auto take overlap, whose rollouts come from parameters one update old."""
    num_workers: int | None = None
    """Processes that step the environments; without it, every number that may be worth it."""
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    distributions: bool = False
    """Train for some seconds under every distribution instead (docs/distribution.md), and compare their speeds. Takes
    a minute or more: learners are started, and Ray, if it is installed."""
    address: str | None = None
    """Of a Ray cluster that is there already, auto or HOST:PORT, for --distributions."""
    seconds: float = 1.0
    """How long to train under each, after a warm-up."""
    plot: Path | None = None
    """Draw the table into this PNG, where matplotlib is installed."""
    json: bool = False
    """Print the table as JSON."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def run(self) -> int:
        """Measure, and print the table."""
        if self.plot is not None and not has_matplotlib():
            raise ConfigurationError(f"--plot needs matplotlib: {pip_install('plot')}")
        if self.distributions:
            return self._run_distributions()
        if self.address is not None:
            raise ConfigurationError("--address is of --distributions: give both, or neither")
        comparison = compare_placements(
            self.env_id,
            self.config,
            total_steps=self.total_steps,
            max_lag=self.max_lag,
            num_workers=self.num_workers,
            seconds=self.seconds,
            options=self.environment,
            progress=self.progress,
        )
        self._show(comparison, as_markdown)
        if self.plot is not None:
            plot_placements(bars_of(comparison), f"{self.env_id}, seconds by part", self.plot)
        return EXIT_DONE

    def _run_distributions(self) -> int:
        """Measure distributions, and print the table."""
        from hybridppo.tools.diagnosis.comparing import compare_distributions, distributions_as_markdown

        for flag, value in {"--plot": self.plot, "--num-workers": self.num_workers}.items():
            if value is not None:
                raise ConfigurationError(f"{flag} cannot be had with --distributions: leave it out")
        comparison = compare_distributions(
            self.env_id,
            self.config,
            max_lag=self.max_lag,
            seconds=self.seconds,
            address=self.address,
            options=self.environment,
        )
        self._show(comparison, distributions_as_markdown)
        return EXIT_DONE

    def _show(self, comparison: dict[str, Any], table_of: Callable[[dict[str, Any]], str]) -> None:
        if self.json:
            print(as_json(comparison).rstrip())
            return
        table = table_of(comparison)
        print(for_terminals(table) if sys.stdout.isatty() else table)
