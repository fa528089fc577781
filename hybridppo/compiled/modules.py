"""Modules that Numba compiles: written once, and kept with their machine code for other processes.

The name of a module is a hash of its text, which includes Numba's version. Numba keeps the machine code beside the
file, by its time and size and by the processor, so another process can load it.
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import filelock

from hybridppo.errors import ConfigurationError, EnvError, HybridPPOError, is_installed, pip_install
from hybridppo.system.messages import say

DIRECTORY_VARIABLE = "HYBRIDPPO_CACHE_DIR"
_WRITTEN_AT = 1_000_000_000
"""Modification time of every file, so that processes that write the same file do not invalidate each other's code."""
_LOCK = threading.Lock()


def has_numba() -> bool:
    """Whether Numba is installed."""
    return is_installed("numba")


def require_numba(setting: str) -> None:
    """Refuse a setting without Numba.

    Raises:
        ConfigurationError: with the remedy.
    """
    if not has_numba():
        raise ConfigurationError(
            f"{setting} needs Numba, which is not installed: {pip_install('compiled')}, or leave it out"
        )


def cache_directory() -> Path:
    """The folder of modules: `HYBRIDPPO_CACHE_DIR`, or the user's cache folder.

    Raises:
        RuntimeError: if the user has no home folder.
    """
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hybridppo" / "compiled"


def _written(file: str, text: str) -> Path:
    """Write the file of a module, in a temporary folder if the user's own cannot be written to."""
    try:
        return _written_in(cache_directory(), file, text)
    except (OSError, RuntimeError) as error:
        what = f"what is compiled cannot be kept ({error})"
        if os.environ.get(DIRECTORY_VARIABLE):
            raise EnvError(
                f"{what}: name a folder that can be written to in the environment variable {DIRECTORY_VARIABLE}"
            ) from error
        say(f"{what}: it is compiled anew in each process. {DIRECTORY_VARIABLE} may name a folder to keep it in")
        return _written_in(_temporary_directory(), file, text)


def _written_in(directory: Path, file: str, text: str) -> Path:
    """Write the file completely, whatever other processes do at the same time."""
    path, temporary = directory / file, directory / f"{file}.{os.getpid()}.tmp"
    can_be_kept = os.access(directory, os.W_OK)  # Numba writes beside the file
    if can_be_kept and path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.utime(temporary, (_WRITTEN_AT, _WRITTEN_AT))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


@functools.cache
def _temporary_directory() -> Path:
    """A folder of this process that is removed at its end."""
    directory = Path(tempfile.mkdtemp(prefix="hybridppo-compiled-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


_MODULES: dict[str, ModuleType] = {}
"""Loaded modules by their files' names."""


def load(name: str, text: str, kept: Sequence[str], explain: Callable[[Path, Exception], HybridPPOError]) -> ModuleType:
    """The module of this text, compiled now or earlier.

    Args:
        name: name of the module, for messages and the file.
        text: the text of the module.
        kept: the functions that Numba keeps.
        explain: makes an error from the file and Numba's error.

    Raises:
        EnvError: if the file cannot be written.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
    file = f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{digest}.py"
    with _LOCK:
        if file in _MODULES:
            return _MODULES[file]
        path = _written(file, text)
        module_name = f"_hybridppo_{path.stem}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with contextlib.nullcontext() if is_kept(path, kept) else _alone(path):
            is_first = not is_kept(path, kept)
            if is_first:
                say(f"compiling {name}, once: kept in {path.parent}")
            start = time.perf_counter()
            sys.modules[module_name] = module
            try:
                spec.loader.exec_module(module)
            except Exception as error:  # Numba's errors, and those that it passes on from LLVM and the text
                del sys.modules[module_name]
                raise explain(path, error) from error
            if is_first:
                say(f"compiled {name} in {time.perf_counter() - start:.1f} s")
        _MODULES[file] = module
        return module


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait while another process compiles the module: it will be kept then."""
    lock = filelock.FileLock(path.with_suffix(".lock"))
    with contextlib.suppress(OSError, NotImplementedError):  # a file system without locks: each process compiles
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_kept(path: Path, functions: Sequence[str]) -> bool:
    """Whether Numba has kept these functions of a module for this Python version."""
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    return all(any(path.parent.glob(f"__pycache__/{path.stem}.{name}-*.{tag}.nbi")) for name in functions)
