"""`hybridppo tune`: search for settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.commands.exits import EXIT_DONE


@dataclass(frozen=True)
class Tune:
    """Search for settings of PPO with optuna; can be stopped, and asked for again to go on."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment."""
    total_steps: int = 100_000
    """Environment steps of each trial."""
    trials: int = 50
    """How many settings to try."""
    fixed: dict[str, Any] | None = None
    """Settings that are not searched: fields of PPOConfig, such as '{"recurrent": "lstm"}'."""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment."""
    output: Path = Path("tune")
    """The folder of the search."""
    jobs: int | None = None
    """Runs at once; not given: as many as there are cores."""
    seed: int = 0
    """Of the search and of the runs."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Search, and say what was found."""
        from hybridppo.tools.search import tune

        entry = tune(
            self.env_id,
            total_steps=self.total_steps,
            trials=self.trials,
            output=self.output,
            jobs=self.jobs,
            seed=self.seed,
            fixed=self.fixed,
            env_kwargs=self.env_kwargs,
            progress=self.progress,
        )
        print(f"best: return {entry.return_here:.1f}, mean of its seeds ({entry.source})")
        print(f"train with it: hybridppo train {self.env_id} --tuned-from {self.output / 'tuned.json'}")
        return EXIT_DONE
