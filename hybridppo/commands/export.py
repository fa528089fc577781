"""`hybridppo export`: a run's policy as a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.run_directory.directory import WhichCheckpoint


@dataclass(frozen=True)
class Export:
    """Write a run's policy into a file for other machines: .onnx, or .npz for NumPy alone.

    A file of that name is replaced when the new one is whole. Beside .npz lies numpy_policy.py, which reads it; a
    file of that name with other contents is not replaced.
    """

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]
    """The run's folder."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file, .onnx or .npz; replaced if it is there."""
    checkpoint: WhichCheckpoint = "latest"
    """The latest, or the best."""
    check_steps: int = 200
    """On how many observations the file is compared with the agent; 0 for none."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Export, and say what was compared."""
        from hybridppo.tools.export.exporting import export

        exported = export(self.run_dir, self.file, checkpoint=self.checkpoint, check_steps=self.check_steps)
        if exported.steps_checked:
            print(
                f"compared with the agent on {exported.steps_checked} observations: outputs differ by at most "
                f"{exported.largest_difference:.1g}"
            )
        print(f"policy: {exported.path}")
        return EXIT_DONE
