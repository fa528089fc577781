"""`hybridppo doctor`: what this machine has, and whether everything works on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridppo.commands.exits import EXIT_DONE, EXIT_ERROR
from hybridppo.errors import ConfigurationError


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, and whether everything works on it, within two minutes; exit 1 where it does not."""

    env: str | None = None
    """The environment whose speed is measured, and that is trained in for it. Not given: CartPole-v1."""
    seconds: float | None = None
    """How long to train under each placement. Not given: 2."""
    json: Path | None = None
    """Write all that was found into this file, too, to attach to a report."""
    thorough: bool = False
    """Run the whole acceptance instead: every promise about a GPU, each in a process of its own, resumable."""
    output: Path | None = None
    """Thorough: the folder of its report. Not given: acceptance."""
    device: str | None = None
    """Thorough: the device to learn on; cpu stands in for one. Not given: cuda."""
    only: str | None = None
    """Thorough: those cases whose names contain this. Not given: all."""
    list: bool = False
    """Thorough: say which cases there are, and run none."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Look, and say what was found."""
        if self.thorough:
            quick = {"--env": self.env, "--seconds": self.seconds, "--json": self.json}
            _refuse(quick, "cannot be had with --thorough, whose report is in --output: leave one of the two out")
            return self._accept()
        thorough = {"--output": self.output, "--device": self.device, "--only": self.only, "--list": self.list}
        _refuse(thorough, "is of --thorough: give both, or neither")
        seconds = 2.0 if self.seconds is None else self.seconds
        if not seconds > 0:
            raise ConfigurationError(f"--seconds must be positive, got {seconds:g}")
        from hybridppo.tools.diagnosis.doctor import diagnose, write

        env_id = "CartPole-v1" if self.env is None else self.env
        diagnosis = diagnose(env_id, seconds=seconds, say=lambda line: print(line, flush=True))
        if self.json is not None:
            write(diagnosis, self.json)
            print(f"report: {self.json}")
        print("everything works that this machine has" if diagnosis.is_well else "something does not work: see above")
        return EXIT_DONE if diagnosis.is_well else EXIT_ERROR

    def _accept(self) -> int:
        from hybridppo.tools.diagnosis.acceptance.__main__ import main

        given = {"--output": self.output, "--device": self.device, "--only": self.only}
        arguments = [text for flag, value in given.items() if value is not None for text in (flag, str(value))]
        return main([*arguments, "--list"] if self.list else arguments)


def _refuse(flags: Mapping[str, object], why: str) -> None:
    """Refuse flags that would do nothing."""
    for flag, value in flags.items():
        if value not in (None, False):
            raise ConfigurationError(f"{flag} {why}")
