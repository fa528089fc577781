"""Fresh interpreters that import exactly what this process imports."""

import sys
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
