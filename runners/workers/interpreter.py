"""Fresh interpreters that import exactly what this process imports."""

import sys
from pathlib import Path

from hybridppo import _version

_PACKAGE_ROOT = str(Path(_version.__file__).resolve().parent.parent)

# The library itself may have come from a folder that `sys.path` does not have any more.
_BEGIN = (
    "import sys; sys.path[:] = {path}; sys.path.append({root}); import hybridppo, runpy; sys.path.pop(); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as `python -m` does, with this process's `sys.path` before the first import.

    `python -m` itself would look into the working directory first, and then into `PYTHONPATH`: a file there may have
    the name of a module of the standard library.
    """
    path = [folder for folder in sys.path if isinstance(folder, str)]  # Python passes over all else
    return [sys.executable, "-c", _BEGIN.format(path=ascii(path), root=ascii(_PACKAGE_ROOT)), module, *arguments]
