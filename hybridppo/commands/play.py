"""`hybridppo play`: a run's agent to look at."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.errors import ConfigurationError
from hybridppo.run_directory.directory import WhichCheckpoint

if TYPE_CHECKING:
    from hybridppo.tools.export.acting import Played


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
    most_steps: int | None = None
    """Stop after so many steps, even within an episode: by default 3000 in a video, never in a window."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Play, and say what was seen."""
        from hybridppo.tools.views.playing import play, record_video

        if self.window and self.output is not None:
            raise ConfigurationError("--window writes no video: leave --output out")
        options: dict[str, Any] = {"episodes": self.episodes, "seed": self.seed, "deterministic": self.deterministic}
        options |= {"checkpoint": self.checkpoint}
        options |= {} if self.most_steps is None else {"most_steps": self.most_steps}
        played = play(self.run_dir, **options) if self.window else record_video(self.run_dir, self.output, **options)
        for line in _lines(played):
            print(line)
        if played.episodes < self.episodes:
            print(f"ended after {played.steps} steps, within an episode (--most-steps)")
        if played.path is not None:
            print(f"video: {played.path}")
        return EXIT_DONE


def _lines(played: "Played") -> list[str]:
    """What came of every episode; of many agents, of each kind in the mean."""
    if not played.agents:
        pairs = zip(played.returns, played.lengths, strict=True)
        return [f"episode: return {value:.2f}, {length} steps" for value, length in pairs]
    kinds: dict[str, list[float]] = {}
    for name, value in zip(played.agents, played.returns, strict=True):
        kinds.setdefault(name.rpartition("_")[0] or name, []).append(value)
    return [f"{kind}: mean return {sum(of) / len(of):.2f} of {len(of)} agents' episodes" for kind, of in kinds.items()]
