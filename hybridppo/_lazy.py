"""Names that are imported when first used, so that a worker process need not load torch to load the package."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A module-level `__getattr__` (PEP 562) that finds each name in the module given for it."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing_torch():
            return getattr(importlib.import_module(modules[name]), name)

    return find


@contextmanager
def importing_torch() -> Iterator[None]:
    """Within it, torch is imported without the garbage collector, which leaves alone for good what there is then.

    Importing torch makes some 250,000 objects that live as long as the process, and sets off 400 collections on the
    way: a fifth of its time. To look through them again costs a tenth of a second in every full collection, and half a
    second when the process ends. Where torch is there already, or nobody wants collections, nothing is changed.
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
