"""Find patterns of hard sentences in pages, notebooks, docstrings (and so in `--help`), messages and comments.

    python scripts/prose.py
    python scripts/prose.py docs hybridppo/tools

A rule is a pattern and its remedy. Exit code 1 if a rule finds something.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "docs", "notebooks")
CODE = ("hybridppo", "agents", "runners", "benchmarks", "examples", "scripts")
RULES = {
    r"\bmend(s|ed|ing)?\b": "write fix",
    r"\b(is|are|was|were|be) (told|said)\b(?! apart)": "write logged, reported or saved",
    r"(?<!there)\s(is|are|was|were|be)\s(none|nobody)\b": "write 'is no X' or 'is not X'",
    r"(^|[.:;] )What (is|are|was|has) [^,.:?!]* (is|are|was|has|goes|comes|stays)\b[^?]*?\.": "name the subject",
    r"(^|[.;] )Of [a-z ]+(: |, )": "begin with the subject",
    r"\b[Ww]here (there (is|are|was|were)|no|none|nothing|nobody|not|neither)\b": "write if",
    r"\bgone on with\b|\bhad anew\b|\bby what (warrant|right)\b": "say it directly",
    r"\b(to|cannot) be had\b": "write 'is not supported' or 'is refused'",
    r"\bfor (it|they|there) (is|are|was|were|has|have|would)\b": "write because",
}
WORDS = {
    r"\b[Ee]nvironments? of tensors\b": "write batched environment",
    r"\b[Ee]nvironments? of several agents\b": "write multi-agent environment",
    r"\b(with|has|have|to) the same bits\b": "write bit-for-bit",
    r"\bmost probable (actions?|ones?)\b": "write deterministic actions",
    r"\b[Ff]orbid(s|den|ding)? (an )?(actions?|moves?)\b": "write mask",
    r"\b[Ss]earch for settings\b": "write hyperparameter tuning",
    r"\b([Ll]imit on values|textbook form|the algorithm does not know)\b": "write it in the field's words",
}
"""Rules for all but the changelog: the field's words."""
NOT_PROSE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Each piece of prose in a file, and its first line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, source
    elif path.suffix == ".ipynb":
        cells = json.loads(source)["cells"]
        yield from ((1, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "markdown")
    else:
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Constant(value=str(text)) if " " in text:
                    yield node.lineno, "\n".join(line.lstrip() for line in text.splitlines())
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")


def rules_of(file: Path) -> Mapping[str, str]:
    """The rules for the texts of a file."""
    return RULES if file.name in ("CHANGELOG.md", "prose.py") else RULES | WORDS


def faults_of(text: str, rules: Mapping[str, str] = RULES) -> Iterator[tuple[int, str]]:
    """The line of each fault within a text, and the words with the remedy."""
    prose = NOT_PROSE.sub(lambda found: "x" + "\n" * found.group().count("\n"), text)
    for pattern, remedy in rules.items():
        for found in re.finditer(pattern, prose, re.MULTILINE):
            yield prose.count("\n", 0, found.start()), f"{' '.join(found.group().split())!r}: {remedy}"


def main() -> int:
    """Print each fault; return the exit code."""
    files = [file for name in sys.argv[1:] or PAGES + CODE for file in ((ROOT / name), *(ROOT / name).rglob("*"))]
    found = [
        f"{file.relative_to(ROOT)}:{line + offset}: {fault}"
        for file in sorted(files)
        if file.suffix in (".md", ".ipynb", ".py")
        for line, text in texts_of(file)
        for offset, fault in faults_of(text, rules_of(file))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
