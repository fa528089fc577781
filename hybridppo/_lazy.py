"""Names that are imported when they are first used, so that a worker process can load the package without torch."""

import ast
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def lazy_attributes(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """The names that a package imports for type checkers, and its `__getattr__` (PEP 562), which imports them on use.

    Args:
        package: the package.
        file: its source, which has the imports in a block `if TYPE_CHECKING`.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing_torch():
            return getattr(importlib.import_module(modules[name]), name)

    return sorted(modules), find


@contextmanager
def importing_torch() -> Iterator[None]:
    """Switch the garbage collector off while torch is imported, and let it ignore torch's objects from then on.

    Importing torch makes about 250,000 objects that live as long as the process, and starts 400 collections: a fifth of
    its time. Looking through them again takes 0.1 s in every full collection, and 0.5 s when the process ends. If torch
    is imported already, or the collector is off, nothing changes.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if "torch" in sys.modules:
            gc.freeze()
