"""What the documents refer to exists."""

import ast
import configparser
import json
import re
import sys
from pathlib import Path

import pytest

from scripts import prose

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")
REFERENCE = re.compile(r"\[[^\[\]]+\]\[([^\[\]]+)\]")
DEFINITION = re.compile(r"^\[([^\[\]]+)\]: https://\S+$", re.MULTILINE)
COMPARISON = ROOT / "docs" / "comparison.md"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_links_are_found() -> None:
    found = LINK.findall("[a](b/c.md) and ![d](e.png), [f](g.md#h), [i](https://j.k)")
    assert found == ["b/c.md", "e.png", "g.md", "https://j.k"]


def test_every_cell_about_another_library_has_its_source() -> None:
    text = COMPARISON.read_text(encoding="utf-8")
    defined = DEFINITION.findall(text)
    assert sorted(set(REFERENCE.findall(text))) == sorted(defined)
    tables = text[text.index("\n## ") :]
    rows = [line.split(" | ") for line in tables.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    assert len(rows) > 50
    assert {len(row) for row in rows} == {9, 6}  # seven others and this library, or four
    without = [
        (row[0], cell)
        for row in rows
        for cell in row[2:]
        if not REFERENCE.search(cell) or REFERENCE.sub("", cell).strip("; |")
    ]
    assert without == []


def test_what_is_said_to_install_can_be_installed() -> None:
    """No package index has hybridppo: it must be installed from a clone, with extras that exist."""
    folders = ("hybridppo", "agents", "runners", "benchmarks", "examples", "scripts", "docs", "notebooks")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".ipynb")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*files, ROOT / "README.md"]}
    from_an_index = re.compile(r"pip install (?:--?[\w-]+ )*['\"]?hybridppo|hybridppo\[")
    assert [str(path) for path, text in texts.items() if from_an_index.search(text)] == []
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.compile(r"'\.\[([\w,]+)\]'|pip_install\(['\"](\w+)['\"]\)|extra=?[ (]?[`'\"](\w+)[`'\"]")
    extras = {extra for text in texts.values() for found in named.findall(text) for extra in ",".join(found).split(",")}
    assert extras - {""} - set(setup["options.extras_require"]) == set()
    assert len(extras) > 10


def requirements() -> dict[str, set[str]]:
    """The packages that hybridppo ("") and each extra install, in lower case."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    texts = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    return {
        extra: {name.lower() for name in re.findall(r"^[\w-]+", text, re.MULTILINE)} for extra, text in texts.items()
    }


def test_examples_of_pages_import_what_is_installed_with_some_extra() -> None:
    installed = set.union(*requirements().values()) | sys.stdlib_module_names | {"hybridppo"}
    installed |= {"ipython"}  # of jupyterlab
    of_readers = {"my_envs", "catch", "wolves", "numpy_policy", "isaaclab", "isaaclab_tasks"}
    texts = {
        str(page): re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S) for page in DOCUMENTS
    }
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        texts[str(notebook)] = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    nodes = [node for each in texts.values() for text in each for node in ast.walk(ast.parse(text))]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules = {name.partition(".")[0].lower() for name in named}
    assert len(modules) > 10
    assert modules - installed - of_readers == set()


def test_the_extra_all_has_every_extra_of_users() -> None:
    every = requirements()
    left_out = {"", "all", "benchmark", "dev", "docs", "envpool", "ptx", "test"}
    assert set.union(*(every[extra] for extra in every.keys() - left_out)) == every["all"]


@pytest.mark.parametrize(
    "text",
    [
        "It mends a file.",
        "The end is told.",
        "A row of a reset is none.",
        "It ends. What was saved is whole.",
        "Of several learners, each has one.",
        "It stops where there is an error.",
        "A run is gone on with.",
        "Masks cannot be had.",
        "It waits, for it is slow.",
        "It steps environments of tensors.",
        "It steps an environment of several agents.",
        "It ends with the same bits.",
        "It takes the most probable actions.",
        "It forbids actions.",
        "A search for settings begins.",
        "This is the textbook form.",
    ],
)
def test_each_rule_of_prose_finds_its_fault(text: str) -> None:
    assert len(list(prose.faults_of(f"A first line.\n{text}", prose.rules_of(Path("a.md"))))) == 1
    assert list(prose.faults_of(f"`{text}`\n\n```\n{text}\n```")) == []


def test_prose_is_pages_docstrings_messages_and_comments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""One.\n\n    Two."""\nx = "no"\n"""Three it is."""\ny = f"{x} is four"\n# Five.\n'
    )
    texts = ["One.\n\nTwo.", "Three it is.", "is four", "Five."]
    assert [text for _, text in prose.texts_of(tmp_path / "a.py")] == texts
    cells = '{"cells": [{"cell_type": "markdown", "source": ["a", "b"]}, {"cell_type": "code", "source": ["c"]}]}'
    (tmp_path / "a.ipynb").write_text(cells)
    assert list(prose.texts_of(tmp_path / "a.ipynb")) == [(1, "ab")]
