"""What the documents refer to exists."""

import configparser
import re
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
    ],
)
def test_each_rule_of_prose_finds_its_fault(text: str) -> None:
    assert len(list(prose.faults_of(f"A first line.\n{text}"))) == 1
    assert list(prose.faults_of(f"`{text}`\n\n```\n{text}\n```")) == []


def test_prose_is_pages_docstrings_and_comments(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""One.\n\n    Two."""\nx = "no"\n"""Three."""\n# Four.\n')
    assert list(prose.texts_of(tmp_path / "a.py")) == [(1, "One.\n\nTwo."), (5, "Three."), (6, "Four.")]
    cells = '{"cells": [{"cell_type": "markdown", "source": ["a", "b"]}, {"cell_type": "code", "source": ["c"]}]}'
    (tmp_path / "a.ipynb").write_text(cells)
    assert list(prose.texts_of(tmp_path / "a.ipynb")) == [(1, "ab")]
