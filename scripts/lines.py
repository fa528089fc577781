"""Count the library's lines of code and files, by package, and fail if there are more than allowed.

    python scripts/lines.py
    python scripts/lines.py --files

Docstrings, comments and blank lines do not count. Lower the two limits whenever the library becomes smaller.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("hybridppo", "agents", "runners")
MOST_LINES = 28_270
MOST_FILES = 173
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def lines_of_code(source: str) -> int:
    """How many lines of a Python source have code on them."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def counted() -> dict[Path, int]:
    """The lines of code of each of the library's files and stubs, by its path."""
    # Two links in hybridppo/ lead to the folders beside it, which would be counted twice.
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py*")))
    files = [path for path in paths if path.suffix in (".py", ".pyi") and not any(map(Path.is_symlink, path.parents))]
    return {path.relative_to(ROOT): lines_of_code(path.read_text(encoding="utf-8")) for path in files}


def main() -> int:
    """Print the table; return the exit code."""
    found = counted()
    if "--files" in sys.argv:
        for path, count in sorted(found.items(), key=lambda each: -each[1]):
            print(f"{count:7,}  {path}")
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, count in found.items():
        package = path.parent.as_posix()
        lines[package] += count
        files[package] += path.suffix == ".py"  # a stub belongs to the file beside it
    for package in sorted(lines):
        print(f"{lines[package]:7,} lines of code in {files[package]:3} files  {package}/")
    print(f"{lines.total():7,} lines of code in {files.total():3} files; at most {MOST_LINES:,} in {MOST_FILES}")
    if lines.total() > MOST_LINES or files.total() > MOST_FILES:
        print("too many: remove as much as was added, or merge files")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
