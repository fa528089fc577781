"""`hybridppo doctor`: what this machine has, and whether everything works on it."""

from dataclasses import dataclass
from pathlib import Path

from hybridppo.commands.exits import EXIT_DONE, EXIT_ERROR
from hybridppo.errors import ConfigurationError


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether everything works on it, within two minutes; exit 1 where it does not."""

    env: str = "CartPole-v1"
    """The environment whose speed is measured, and that is trained in for it."""
    seconds: float = 2.0
    """How long to train under each placement."""
    json: Path | None = None
    """Write all that was found into this file, too, to attach to a report."""
    thorough: bool = False
    """Run the whole acceptance instead: every promise about a GPU, each in a process of its own, resumable."""
    output: Path = Path("acceptance")
    """Thorough: the folder of its report."""
    device: str = "cuda"
    """Thorough: the device to learn on; cpu stands in for one."""
    only: str = ""
    """Thorough: those cases whose names contain this."""
    list: bool = False
    """Thorough: say which cases there are, and run none."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Look, and say what was found."""
        if self.thorough:
            return self._accept()
        if not self.seconds > 0:
            raise ConfigurationError(f"--seconds must be positive, got {self.seconds:g}")
        from hybridppo.tools.doctor import diagnose, write

        diagnosis = diagnose(self.env, seconds=self.seconds, say=lambda line: print(line, flush=True))
        if self.json is not None:
            write(diagnosis, self.json)
            print(f"report: {self.json}")
        print("everything works that this machine has" if diagnosis.is_well else "something does not work: see above")
        return EXIT_DONE if diagnosis.is_well else EXIT_ERROR

    def _accept(self) -> int:
        from hybridppo.acceptance.__main__ import main

        if self.json is not None:
            raise ConfigurationError("--thorough writes acceptance.json into --output: leave --json out")
        arguments = ["--output", str(self.output), "--device", self.device, "--only", self.only]
        return main([*arguments, "--list"] if self.list else arguments)
