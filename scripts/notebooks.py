"""Run the notebooks and store their outputs, so that a reader sees them without running anything.

    make notebooks
    python scripts/notebooks.py 01 06     # those whose names begin with this

A digest of the code is stored, too: a test fails if the code has changed since the outputs were made.
"""

import argparse
import hashlib
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
SECONDS = 900
"""Time limit of a cell."""


NOISE = re.compile(r"^(.*TqdmWarning: |  from \.autonotebook |USDT:|.*Missing packages: ).*\n", re.MULTILINE)
"""Lines of other packages about the place where a notebook has run."""


def without_noise(notebook: Any) -> None:
    """Remove such lines from the outputs."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = NOISE.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]


def digest_of(notebook: Any) -> str:
    """The digest of a notebook's code."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()


def run(path: Path) -> None:
    """Run a notebook from top to bottom, and write it with its outputs.

    Raises:
        CellExecutionError: if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    kept = dict(notebook.metadata)
    resources = {"metadata": {"path": str(path.parent)}}
    options: dict[str, Any] = {"kernel_name": "python3", "timeout": SECONDS, "record_timing": False}
    NotebookClient(notebook, resources=resources, **options).execute()
    without_noise(notebook)
    notebook.metadata = nbformat.from_dict(kept | {"outputs_of": digest_of(notebook)})
    text = nbformat.writes(notebook)
    # Paths of this machine say nothing to a reader.
    for own, shown in ((str(ROOT), "hybridppo"), (str(Path.home()), "~")):
        text = text.replace(own, shown)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+", "/tmp/run", text)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> int:
    """Run the notebooks on the command line, or all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names; default: all")
    names = tuple(parser.parse_args().names) or ("",)
    for path in sorted(FOLDER.glob("*.ipynb")):
        if path.name.startswith(names):
            start = time.perf_counter()
            run(path)
            print(f"{path.name}: {time.perf_counter() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
