"""A definition compiled: once, and kept for other processes.

Functions and loops are written as one module, whose name is a hash of its text, which names Numba's version. Numba
keeps the machine code of a file beside it, by the file's time and size and by the processor: another process loads it.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from hybridppo.compiled.definition import Definition
from hybridppo.compiled.kernels import CONTRACTED, LOOPS
from hybridppo.compiled.sources import REMEDY
from hybridppo.errors import EnvError

DIRECTORY_VARIABLE = "HYBRIDPPO_CACHE_DIR"
_WRITTEN_AT = 1_000_000_000
"""The time of every file, so that of two processes that write the same one, neither spoils what the other compiled."""
_LOCK = threading.Lock()

HEADER = '''"""Written by hybridppo, and made anew whenever it is missing."""
# numba {version}, numpy {numpy}
import math

import numba
import numpy as np

compiled = numba.njit(error_model="numpy")
contracted = numba.njit(error_model="numpy", fastmath={{"contract"}})
STATE = numba.from_dtype(np.dtype({state}, align=True))
f, i, b, u = numba.float32, numba.int64, numba.boolean, numba.none
states, randoms, lengths, action = STATE[::1], {randoms}, i[::1], {action}
present, each = b[:, ::1], lambda of: numba.types.UniTuple(of, {kinds})

'''
SIGNATURES = {
    "begin_all": "u(states, randoms, lengths, f[:, ::1])",
    "step_all": "u(states, randoms, lengths, i, i, i, action[:, :], f[:, ::1], f[::1], b[::1], b[::1], f[:, ::1])",
    "rollout": (
        "u(states, randoms, lengths, i, i, i, f[:, :, :], f[:, :, :], action[:, :, :], f[:, :], b[:, :], b[:, :], "
        "f[:, :, :], f[:, :, ::1], f[:, :, ::1], i[::1], b, f[::1], f[::1], action[::1], action[::1])"
    ),
}
"""What each loop is called with, so that it is compiled when the module is loaded, and never again."""
_AGENTS = "states, randoms, lengths, present, i[::1]"
AGENT_SIGNATURES = {
    "begin_all": f"u({_AGENTS}, each(f[:, :, :, :]))",
    "step_all": (
        f"u({_AGENTS}, i, i, i, action[:, :, :], each(f[:, :, :, :]), each(f[:, :, :]), each(b[:, :, :]), "
        "each(b[:, :, :]), each(b[:, :, :]), each(f[:, :, :, :]))"
    ),
    "rollout": (
        f"u({_AGENTS}, i, i, i, each(f[:, :, :, :]), each(f[:, :, :, :]), each(action[:, :, :, :]), each(f[:, :, :]), "
        "each(b[:, :, :]), each(b[:, :, :]), each(b[:, :, :]), each(f[:, :, :, :]), each(f[:, :, :, :]), "
        "each(f[:, :, ::1]), each(i[::1]), b[::1], each(f[::1]), each(f[::1]), action[::1], action[::1])"
    ),
}
"""The same where there are several agents."""


@dataclass(frozen=True)
class Kernels:
    """The loops of `kernels.py` around one environment's functions."""

    begin_all: Callable[..., None]
    step_all: Callable[..., None]
    rollout: Callable[..., None]


def build(definition: Definition) -> Kernels:
    """Compile an environment, or load what was compiled of it.

    Raises:
        EnvError: where Numba is not there, or cannot compile it: which line, why, and what to do.
    """
    require_numba()
    text, lines = module_text(definition)
    with _LOCK:
        module = _load(definition.name, text, lines)
    return Kernels(*(getattr(module, definition.sources.names[name]) for name in LOOPS))


def require_numba() -> None:
    """Refuse, with the remedy, where Numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        raise EnvError(
            "compiled environments need Numba, which is not installed: pip install 'hybridppo[compiled]' "
            "(vectorization='sync' steps an environment without it)"
        )


def module_text(definition: Definition) -> tuple[str, dict[int, str]]:
    """The module of a definition, and where its lines were written."""
    import numba

    sources = definition.sources
    state = [
        (name, dtype.base.str, dtype.shape) if dtype.shape else (name, dtype.str)
        for name, (dtype, *_) in (definition.state.fields or {}).items()
    ]
    action = "f" if definition.action_kind == "numbers" else "i"
    header = HEADER.format(
        version=numba.__version__,
        numpy=np.__version__,
        state=state,
        action=action,
        randoms="i[:, :, ::1]" if definition.policies else "i[:, ::1]",
        kinds=len(definition.policies),
    )
    text = sources.text
    decorators = dict.fromkeys(CONTRACTED, "contracted")
    for name, signature in (AGENT_SIGNATURES if definition.policies else SIGNATURES).items():
        decorators[name] = f'numba.njit({signature}, cache=True, nogil=True, error_model="numpy")'
    for name, decorator in decorators.items():
        start = f"def {sources.names[name]}("
        text = text.replace(f"@compiled\n{start}", f"@{decorator}\n{start}")
    above = header.count("\n")
    return header + text, {above + line: where for line, where in sources.lines.items()}


def cache_directory() -> Path:
    """Where modules are kept: `HYBRIDPPO_CACHE_DIR`, or the user's folder for such things."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "hybridppo" / "compiled"


def _written(name: str, text: str) -> Path:
    """The module's file, whole, whoever else writes it at the same time."""
    directory = cache_directory()
    path = directory / f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}_{_digest(text)}.py"
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return path
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=directory, suffix=".tmp", delete=False, encoding="utf-8", newline="\n"
        ) as file:
            file.write(text)
        try:
            os.utime(file.name, (_WRITTEN_AT, _WRITTEN_AT))
            os.replace(file.name, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
    except OSError as error:
        raise EnvError(
            f"what is compiled cannot be kept in {directory} ({error}): name a folder that can be written to in the "
            f"environment variable {DIRECTORY_VARIABLE}"
        ) from error
    return path


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


_MODULES: dict[str, ModuleType] = {}


def _load(name: str, text: str, lines: dict[int, str]) -> ModuleType:
    digest = _digest(text)
    if digest in _MODULES:
        return _MODULES[digest]
    path = _written(name, text)
    module_name = f"_hybridppo_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    is_first = not is_kept(path)
    if is_first:
        _say(f"compiling {name}, once: kept in {path.parent}")
    start = time.perf_counter()
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # Numba's own, and what it lets through of LLVM and of the text
        del sys.modules[module_name]
        raise _explained(name, path, lines, error) from error
    if is_first:
        _say(f"compiled {name} in {time.perf_counter() - start:.1f} s")
    _MODULES[digest] = module
    return module


def is_kept(path: Path) -> bool:
    """Whether Numba has kept all loops of a module, for this Python."""
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    return all(any(path.parent.glob(f"__pycache__/{path.stem}.{name}-*.{tag}.nbi")) for name in LOOPS)


def _say(what: str) -> None:
    """One line, beside whatever progress bar there is."""
    from tqdm import tqdm

    tqdm.write(f"hybridppo: {what}", file=sys.stderr)


def _explained(name: str, path: Path, lines: dict[int, str], error: Exception) -> EnvError:
    """Numba's error, with the line that was written and not the one that was compiled."""
    found = re.findall(rf"{re.escape(path.name)}\"?,? (?:line |\()(\d+)", str(error))
    where = next((lines[int(number)] for number in found if int(number) in lines), None)
    told = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.startswith("Failed in nopython mode")
    ]
    reason = "; ".join(told[:2]) if told else type(error).__name__
    return EnvError(
        f"{name} cannot be compiled{f': {where}' if where else ''}: {reason} ({type(error).__name__}). {REMEDY}; every "
        "name keeps one type, `step` returns a reward and a truth (of several agents, `reward` does), and `observe` "
        "writes numbers (docs/compiled.md)"
    )
