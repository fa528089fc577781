"""Build the site: every page of `docs/`, the notebooks, and the reference, as HTML.

    make docs                               runs the notebooks, in about five minutes on two cores
    python scripts/site.py --no-notebooks   shows the notebooks with their stored outputs

All files in git are copied to `build/site/source`, so that links between pages, notebooks and sources lead to the same
places as in the repository. Sphinx makes `build/site/html` from them. A warning is an error.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"


def copy_tree(to: Path) -> None:
    """The files in git, and new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    shutil.rmtree(to, ignore_errors=True)
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_symlink() or not source.is_file():
            continue
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def main() -> int:
    """Build the site; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", action=argparse.BooleanOptionalAction, default=True, help="run them")
    parser.add_argument("--output", type=Path, default=SITE / "html")
    github = (
        "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format_map(os.environ) if "GITHUB_REPOSITORY" in os.environ else ""
    )
    parser.add_argument(
        "--repository", default=github, help="its address, for links on each page (default: of the action)"
    )
    arguments = parser.parse_args()
    work = arguments.output.resolve().parent
    source = work / "source"
    copy_tree(source)
    command = [
        sys.executable, "-m", "sphinx", "-b", "html", "-c", str(source / "docs"), "-W", "--keep-going", "-q",
        "-D", f"nb_execution_mode={'cache' if arguments.notebooks else 'off'}",
        "-D", f"nb_execution_cache_path={work / 'notebooks'}",
        "-d", str(work / "doctrees"), str(source), str(arguments.output.resolve()),
    ]  # fmt: skip
    code = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "REPOSITORY": arguments.repository}, check=False
    ).returncode
    if code == 0:
        print(f"the site: {arguments.output / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
