"""`hybridppo evaluate`: run whole episodes with a checkpoint of a run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.run_directory.directory import WhichCheckpoint
from hybridppo.run_directory.lines import as_json
from hybridppo.training.evaluate import evaluate


@dataclass(frozen=True)
class Evaluate:
    """Run whole episodes with a checkpoint of a run."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    episodes: int = 20
    """How many episodes."""
    seed: int = 0
    """Of the environments, and of random actions."""
    deterministic: bool = True
    """Take the most probable actions."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest, or the best: by evaluations during training where there were such, and else, of those that were
    written, the one of the highest mean return over 100 episodes."""
    json: bool = False
    """Print the result as JSON."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Evaluate, and print mean and deviation."""
        evaluation = evaluate(
            self.run_dir,
            episodes=self.episodes,
            seed=self.seed,
            deterministic=self.deterministic,
            checkpoint=self.checkpoint,
            progress=self.progress,
        )
        if self.json:
            print(as_json(asdict(evaluation) | {"return_mean": evaluation.return_mean}, indent=None).rstrip())
        else:
            mean, deviation = evaluation.return_mean, evaluation.return_std
            actions = "most probable" if self.deterministic else "sampled"
            print(f"return {mean:.2f} +- {deviation:.2f} over {self.episodes} episodes, {actions} actions")
        return EXIT_DONE
