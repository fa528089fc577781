"""Every error that the library raises on purpose. The message says what, the value seen, what to do."""

import os
import shlex
import subprocess
from typing import Any


class HybridPPOError(Exception):
    """Base of the library's own errors; the command line prints the message and exits with 1."""


class ConfigurationError(HybridPPOError, ValueError):
    """A setting that cannot work: names the field and the rule."""


class DeviceError(HybridPPOError, RuntimeError):
    """A device that was asked for is not there, or a copy between devices went wrong."""


class EnvError(HybridPPOError, RuntimeError):
    """An environment that cannot be made, or whose spaces or reset mode are not supported."""


class EnvStateError(EnvError):
    """The state of an environment that cannot be saved, or not be put into another."""


class SlowStateError(EnvStateError):
    """The state of environments that takes too long to save."""


class TrainingError(HybridPPOError, ArithmeticError):
    """A loss or a gradient that is no finite number any more: nothing can be learned from there on."""


class DistributionError(HybridPPOError, RuntimeError):
    """Processes that train together, of which one is lost."""


class LearnerLostError(DistributionError):
    """A learner among several has died, or does not answer: it did not fail by itself."""


class OutOfMemoryError(HybridPPOError, MemoryError):
    """A device or the machine has not the memory that the configuration needs."""


class CheckpointError(HybridPPOError, RuntimeError):
    """A checkpoint that is missing, damaged, or made for something else."""


class RunDirectoryError(HybridPPOError, RuntimeError):
    """A run directory that exists already, or is not one."""


class CallbackError(HybridPPOError, RuntimeError):
    """A callback that failed: which one, and where. What it raised is the cause."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or another signal ended a training; what there was has been saved, where there is a run directory.

    Raised by `train` and `resume` when all is saved and closed, so that a loop around them ends as Ctrl-C ends any.
    """

    def __init__(self, result: Any) -> None:
        where = f"go on with hybridppo.resume({str(result.run_dir)!r})" if result.saved else "nothing was saved of it"
        super().__init__(f"the training was interrupted: {where}; what came of it so far is this exception's result")
        self.result = result
        """The `TrainResult` that `train(..., on_interrupt="return")` would have returned."""


class BadValueError(Exception):
    """What an environment returned cannot be used; the message says what it was.

    Whoever asked the environment turns it into an `EnvError` that says which one it was, and when.
    """


def add_advice(error: Exception, advice: str) -> None:
    """Add to the message of an error what to do now; to one that is not the library's own, as a note."""
    if isinstance(error, HybridPPOError):
        error.args = (f"{error}; {advice}",)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), advice]


def shown(value: Any, limit: int = 200) -> str:
    """A value as the text of a message, however large it is."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python will write
        return "a number of thousands of digits"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def command(*words: object) -> str:
    """A command to paste into this system's shell: each word is quoted if it must be, as a path with spaces."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def pip_install(extra: str) -> str:
    """The command that installs an optional package: hybridppo is on no package index."""
    return f"{command('pip', 'install', f'.[{extra}]')} in your clone of hybridppo"
