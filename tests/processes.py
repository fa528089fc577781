"""Processes that tests start, and that end when the tests do, however those end: also when they are killed."""

import os
import subprocess
import sys
import weakref
from typing import Any

_WATCHED = """
import os, runpy, sys, threading

def end_with_the_tests():
    os.read(0, 1)  # nothing is ever written: it returns when the other end of the pipe is gone
    os._exit(1)

threading.Thread(target=end_with_the_tests, daemon=True).start()
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start_python(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """`python` with `-m` and a module, or with a script, and what they take; `options` as for `Popen`."""
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _WATCHED, *map(str, arguments)], stdin=theirs, text=True, **options
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process
