"""The origin of a run: the command, the machine, and the commit of the user's repository."""

import os
import platform
import shlex
import subprocess
import sys
from typing import Any

GIT_SECONDS = 5.0
"""A repository that takes longer to look at is not named."""
COMMIT = ("git", "-c", "core.fsmonitor=false", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
"""Prints the commit of the working directory, with `-dirty` if tracked files differ; `--exclude` leaves tags out."""


def origin() -> dict[str, Any]:
    """The command line, the directory and the machine of a run, for `config.json`.

    If the directory is in a git repository, it also has `commit`, and `has_changes`: whether tracked files differ from
    the commit.
    """
    found = {"command": shlex.join(sys.orig_argv), "directory": _directory(), "host": platform.node()}
    try:
        described = subprocess.run(
            COMMIT,
            capture_output=True,
            text=True,
            check=True,
            timeout=GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no repository, or one without a commit
        return found
    commit = described.removesuffix("-dirty")
    return {**found, "commit": commit, "has_changes": described != commit}


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None
