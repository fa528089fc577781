"""`hybridppo play`: a run's agent to look at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.errors import ConfigurationError
from hybridppo.run_directory.directory import WhichCheckpoint


@dataclass(frozen=True)
class Play:
    """Write episodes of a run's agent into a video, or show them in a window."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    output: Path | None = None
    """The video, .mp4; without it, video.mp4 in the run's folder."""
    episodes: int = 1
    """How many episodes."""
    window: bool = False
    """Show them in the environment's own window instead."""
    seed: int = 0
    """Of the environment."""
    deterministic: bool = True
    """Take the most probable actions."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest, or the best."""
    most_steps: int = 3000
    """After which the video ends, wherever the episode is."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Play, and say what was seen."""
        from hybridppo.tools.playing import play, record_video

        if self.window and self.output is not None:
            raise ConfigurationError("--window writes no video: leave --output out")
        options: dict[str, Any] = {"episodes": self.episodes, "seed": self.seed, "deterministic": self.deterministic}
        options |= {"checkpoint": self.checkpoint}
        if self.window:
            played = play(self.run_dir, **options)
        else:
            played = record_video(self.run_dir, self.output, most_steps=self.most_steps, **options)
        for value, length in zip(played.returns, played.lengths, strict=True):
            print(f"episode: return {value:.2f}, {length} steps")
        if len(played.returns) < self.episodes:
            print(f"ended after {played.steps} steps, within an episode (--most-steps)")
        if played.path is not None:
            print(f"video: {played.path}")
        return EXIT_DONE
