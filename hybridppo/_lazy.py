"""Names that are imported when they are first used, so that a worker process can load the package without torch."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def lazy_attributes(package: str, names: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """The sorted names of a package, and its `__getattr__` (PEP 562), which imports them on use.

    Args:
        package: the package.
        names: by module, its names with spaces between.
    """
    modules = {name: module for module, of_module in names.items() for name in of_module.split()}

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
