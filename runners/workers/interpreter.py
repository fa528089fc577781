"""Fresh interpreters that import exactly what this process imports."""

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hybridppo import _version

_PACKAGE_ROOT = str(Path(_version.__file__).resolve().parent.parent)

# The library may have been imported from a folder that is not in `sys.path` any more.
_BEGIN = (
    "import sys; sys.path[:] = {path}; sys.path.append({root}); import hybridppo, runpy; sys.path.pop(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs a module like `python -m`, with this process's `sys.path` before the first import.

    `python -m` would first look into the working directory and `PYTHONPATH`, where a file may have the name of a module
    of the standard library.
    """
    path = [folder for folder in sys.path if isinstance(folder, str)]  # Python ignores anything else
    return [sys.executable, "-c", _BEGIN.format(path=ascii(path), root=ascii(_PACKAGE_ROOT)), module, *arguments]


def wait_for_ends(processes: Iterable["subprocess.Popen[bytes]"], seconds: float) -> None:
    """Wait for all processes to end, and kill those that still run after this number of seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
