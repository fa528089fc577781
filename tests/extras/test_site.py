"""The site is built without a warning, and has what its pages promise."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import hybridppo

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]


REPOSITORY = "https://example.org/owner/name"
SEARCHED = (
    "hyperparameters", "tuning", "checkpoint frequency", "deploy", "reproducibility", "yaml", "jupyter", "hugging face",
    "apple",
)  # fmt: skip
"""Words that readers search for."""


class Links(HTMLParser):
    """The targets of a page's links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.found.append(value)
            if value and name == "id":
                self.names.add(value)


def test_it_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    html = tmp_path / "html"
    command = [sys.executable, str(ROOT / "scripts" / "site.py"), "--no-notebooks", "--output", str(html)]
    command += ["--repository", REPOSITORY]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560)
    assert process.returncode == 0, process.stdout + process.stderr
    pages = {page: Links(page.read_text(encoding="utf-8")) for page in html.rglob("*.html")}
    assert len(pages) > 25
    missing = []
    for page, links in pages.items():
        for link in links.found:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert not re.search(r"\.(js|css|png|svg|woff2?)$", parts.path), f"{page} loads {link} from elsewhere"
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                parts.fragment and target in pages and parts.fragment not in pages[target].names
            ):
                missing.append(f"{page.relative_to(html)}: {link}")
    assert missing == []
    for page, links in pages.items():
        source = page.relative_to(html).with_suffix("")
        if (ROOT / f"{source}.md").exists():
            assert {REPOSITORY, f"{REPOSITORY}/edit/main/{source}.md"} <= set(links.found), page
            assert f"hybridppo {hybridppo.__version__}" in page.read_text(encoding="utf-8"), page
    index = json.loads(re.fullmatch(r"Search.setIndex\((.*)\)", (html / "searchindex.js").read_text("utf-8"))[1])
    assert [word for word in SEARCHED if word not in index["indexentries"]] == []
    reference = (html / "docs" / "reference.html").read_text(encoding="utf-8")
    named = [name for name in hybridppo.__all__ if f"hybridppo.{name}" not in reference and name != "__version__"]
    assert [name for name in named if not name.endswith(("Error", "Interrupted"))] == []
