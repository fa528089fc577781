"""Notebooks run from top to bottom, and are stored with the outputs of their code."""

from pathlib import Path
from typing import Any

import pytest
from processes import start_python

from scripts.notebooks import digest_of

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


SAID = {
    "01_first_training": ["return, mean of the last 100 episodes: ", "return of one episode: 500", "80,"],
    "02_placements": ["1 thread: ", "placement auto: ", "return, mean of the last 100 episodes: "],
    "03_own_environment": [
        "hybridppo cannot train in Warehouse",
        "OK: hybridppo can train in Fixed",
        "grown to 8 places",
        "['charge'][0] is nan",
    ],
    "04_memory_masks_composite": [
        "no memory: return 0.3",
        "'gru', ",
        "return 0.9",
        "write `action, state = agent.act(",
    ],
    "05_many_agents": [
        "adversary: mean return ",
        "its critic sees 36 numbers besides",
        "the trained agent beats the first: True",
    ],
    "06_reading_a_run": ["explained_variance", "sampling ", "regions of the library", "report.html "],
    "07_gpu": ["environment", "same result", "steps/s"],
    "08_distributed": [
        "two learners: the same bits",
        "after 10,",
        "rollouts of 2 learners",
        "and 1 was allowed",
        "fastest: ",
    ],
}
"""For each notebook, the output that shows that its statements hold."""
OF_TABLES = ("02_placements", "07_gpu")
"""Notebooks that show tables; the others draw pictures."""
SECONDS = 300
"""Time limit of a cell."""


def test_every_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(SAID)


def warm_kernel(command: list[str], *, env: dict[str, str], cwd: str, **_: Any) -> Any:
    """Replaces `launch_kernel`: a kernel is a copy of a process that has imported the library."""
    return start_python(*command[command.index("-m") :], env=env, cwd=cwd)


@pytest.mark.extras
@every_notebook
def test_it_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # this tree's library, whatever is installed
    # Packages that other tests import may have set another backend for the whole process.
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", warm_kernel)
    notebook = nbformat.read(path, as_version=4)
    # "python3" is the interpreter that runs the tests, wherever that is.
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    assert_shows_what_it_says(notebook, path.stem)


def assert_shows_what_it_says(notebook: Any, name: str) -> None:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert ("text/markdown" if name in OF_TABLES else "image/png") in shown
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert [said for said in SAID[name] if said not in text] == []


@every_notebook
def test_it_is_kept_with_the_outputs_of_its_code(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.get("outputs_of") == digest_of(notebook), f"run: make notebooks ARGS={path.stem}"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert_shows_what_it_says(notebook, path.stem)
    text = path.read_text(encoding="utf-8")
    assert not any(own in text for own in (str(ROOT), "/root/", "/dev/shm"))
    assert len(text) < 400_000
