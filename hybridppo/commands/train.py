"""`hybridppo train`: train an agent."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from hybridppo.agents import PPOConfig
from hybridppo.commands.exits import EXIT_DONE, EXIT_INTERRUPTED, report
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.options import RunOptions
from hybridppo.placements.auto.named import PlacementOptions
from hybridppo.reporting.pictures import has_matplotlib, plot_learning_curve
from hybridppo.run_directory.directory import fresh_path
from hybridppo.seeds import fresh_seed
from hybridppo.training import train


@dataclass(frozen=True)
class Train:
    """Train PPO in a gymnasium environment."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = field(
        default_factory=lambda: RunOptions(total_steps=500_000)
    )
    placement: Annotated[PlacementOptions, tyro.conf.arg(name="")] = field(default_factory=PlacementOptions)
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    run_dir: Path | None = None
    """The folder to make and write to; without it, a fresh one under runs/."""
    profile: bool = False
    """Write a trace of a few iterations into the run directory, for chrome://tracing or https://ui.perfetto.dev."""
    plot: bool = False
    """Draw the learning curve into the run directory, where matplotlib is installed."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def run(self) -> int:
        """Train, and say what came of it."""
        seed = fresh_seed() if self.options.seed is None else self.options.seed
        result = train(
            self.env_id,
            placement=self.placement.resolve(),
            config=self.config,
            run_dir=self.run_dir or fresh_path(self.env_id, seed),
            profile=self.profile,
            progress=self.progress,
            **{**asdict(self.options), **asdict(self.environment), "seed": seed},
        )
        if result.run_dir is None:  # of learners that torchrun has started, the first says it
            return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE
        if self.plot and result.run_dir is not None:
            if has_matplotlib():
                print(f"learning curve: {plot_learning_curve(result.run_dir)}")
            else:
                print("no learning curve: matplotlib is not installed (pip install hybridppo[plot])")
        return report(result)
