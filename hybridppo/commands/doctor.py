"""`hybridppo doctor`: what this machine has, and whether everything works on it."""

from dataclasses import dataclass
from pathlib import Path

from hybridppo.commands.exits import EXIT_DONE, EXIT_ERROR
from hybridppo.errors import ConfigurationError


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether everything works on it, within two minutes; exit 1 if it does not."""

    env: str = "CartPole-v1"
    """The environment whose speed is measured."""
    seconds: float = 2.0
    """How long to train under each placement."""
    json: Path | None = None
    """Write all that was found into this file, too, to attach to a report."""
    thorough: bool = False
    """Compare every placement, precision and CUDA device besides, however long it takes."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Run the checks, and print what they find."""
        if not self.seconds > 0:
            raise ConfigurationError(f"--seconds must be positive, got {self.seconds:g}")
        from hybridppo.tools.diagnosis.doctor import diagnose, write

        diagnosis = diagnose(
            self.env, seconds=self.seconds, thorough=self.thorough, say=lambda line: print(line, flush=True)
        )
        if self.json is not None:
            write(diagnosis, self.json)
            print(f"report: {self.json}")
        print("everything works that this machine has" if diagnosis.is_well else "something does not work: see above")
        return EXIT_DONE if diagnosis.is_well else EXIT_ERROR
