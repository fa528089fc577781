"""Build the distributions for a package index, whose page needs the repository's address.

    python scripts/release.py https://github.com/OWNER/hybridppo
    python scripts/release.py https://github.com/OWNER/hybridppo --output dist

The links of README.md are relative in the repository, and lead nowhere on an index. In a copy of the files in git, this
script makes them links to the tag of this version, adds the address to the metadata, and builds and checks both
distributions.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hybridppo._version import __version__
from scripts.site import copy_tree


def with_addresses(text: str, address: str) -> str:
    """A page whose relative links and pictures are addresses of this version's tag."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\g<1>{address}/raw/v{__version__}/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)", rf"\g<1>{address}/blob/v{__version__}/", text)


def main() -> int:
    """Build and check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the repository")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="the folder of the distributions")
    arguments = parser.parse_args()
    address = arguments.address.rstrip("/")
    if not re.fullmatch(r"https://[^/\s]+/\S+", address):
        parser.error(f"the address must begin with https:// and name the repository, got {address!r}")
    urls = {"Source": "", "Issues": "/issues", "Changelog": f"/blob/v{__version__}/CHANGELOG.md"}
    lines = "".join(f"\n    {name} = {address}{path}" for name, path in urls.items())
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        for name, change in {
            "README.md": lambda text: with_addresses(text, address),
            "setup.cfg": lambda text: text.replace("[metadata]\n", f"[metadata]\nproject_urls ={lines}\n", 1),
        }.items():
            path = tree / name
            path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
        output = str(arguments.output.resolve())
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", output, str(tree)]
        code = subprocess.run(build, check=False).returncode
    made = [str(file) for file in arguments.output.iterdir() if __version__ in file.name] if code == 0 else []
    return code or subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
