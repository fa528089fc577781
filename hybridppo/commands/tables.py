"""Tables for people who look at a terminal."""


def for_terminals(markdown: str) -> str:
    """A text in which the tables of Markdown are columns of equal width, and emphasis is an asterisk."""
    lines = markdown.splitlines()
    shown: list[str] = []
    while lines:
        if not lines[0].startswith("|"):
            shown.append(lines.pop(0))
            continue
        table: list[str] = []
        while lines and lines[0].startswith("|"):
            table.append(lines.pop(0))
        shown += _aligned([_cells(line) for line in table])
    return "\n".join(shown)


def _cells(line: str) -> list[str]:
    cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
    return [f"{cell.strip('*')} *" if cell.startswith("**") else cell for cell in cells]


def _aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right, a rule below the heads."""
    rows = [row for row in rows if not all(set(cell) <= set("-:") for cell in row)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
