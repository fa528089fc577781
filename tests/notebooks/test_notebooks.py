"""Notebooks run from top to bottom, and are kept without what they printed."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["placements"]


@pytest.mark.extras
@every_notebook
def test_it_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # this tree's library, whatever is installed
    notebook = nbformat.read(path, as_version=4)
    # "python3" is the interpreter that runs the tests, wherever that is.
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=240, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/markdown", "image/png"} <= shown  # tables and pictures
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "1 thread: " in text
    assert "placement auto: " in text
    assert "return, mean of the last 100 episodes: " in text


@every_notebook
def test_it_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
