"""Bring the packages of `gpu.py` to a machine without network, as wheels.

    pip list --format=freeze > present.txt                       # there
    python benchmarks/carry.py wheels --present present.txt --checkouts ~/src
    make gpu-day WHEELS=wheels                                   # there

Packages that the machine has are not carried: torch must be there. A peer that refuses their versions gets its own of
another major version, as Sample Factory gets NumPy 1, except of OpenCV. A folder for each peer has what it needs beside
the folder `common`, and `scripts` those of CleanRL and LeanRL, whose clones `--checkouts` holds. A peer without wheels
for that machine is named and left out.
"""

import argparse
import configparser
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from field import PEERS as FIELD

COMMON, SCRIPTS = "common", "scripts"
PEERS = ("stable-baselines3", "skrl", "CleanRL", "LeanRL", "rl_games", "Sample Factory")
"""The peers that are measured on a GPU."""
FILES = ("cleanrl/cleanrl/ppo.py", "LeanRL/leanrl/ppo_continuous_action_torchcompile.py")
ROOT = Path(__file__).resolve().parents[1]


def own_requirements(extras: list[str]) -> list[str]:
    """What this library needs, with these extras; also NVML's bindings."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    texts = [setup["options"]["install_requires"]]
    texts += [setup["options.extras_require"][extra] for extra in extras]
    return [line for text in texts for line in text.splitlines() if line] + ["nvidia-ml-py"]


def platform_flags(python: str) -> list[str]:
    """The flags of pip for wheels of x86-64 Linux and this version of Python."""
    names = [f"manylinux_2_{minor}" for minor in range(39, 4, -1)] + ["manylinux2014", "manylinux2010", "manylinux1"]
    platforms = [flag for name in names for flag in ("--platform", f"{name}_x86_64")]
    return ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]


def pip(*arguments: str) -> str:
    """Run pip; returns its output.

    Raises:
        RuntimeError: with its last line, if it fails.
    """
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: pip failed"]
        raise RuntimeError(errors[-1])
    return done.stdout


def stand_in(folder: Path, name: str, version: str) -> str:
    """Make an empty wheel without requirements, in place of a package that is present; returns its requirement."""
    version = f"{version}+present"
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{name}=={version}"


def closure(requirements: list[str], python: str, present: dict[str, str]) -> dict[str, str]:
    """The versions of these packages and of all that they need, by name, without those that are present."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        pinned = folder / "present.txt"
        pinned.write_text("\n".join(stand_in(folder, *each) for each in present.items()), encoding="utf-8")
        # pip would compare what a package says of Python with the Python that runs here.
        report = pip(
            "install", "--dry-run", "--quiet", "--ignore-installed", "--ignore-requires-python", "--report", "-",
            "--target", text, "--find-links", text, "--constraint", str(pinned), *platform_flags(python), *requirements,
        )  # fmt: skip
    found = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(report)["install"]}
    return {name: version for name, version in found.items() if normal(name) not in present}


def needs_own(name: str, version: str, there: dict[str, str]) -> bool:
    """Whether a package must be carried: it is not there, or in another major version."""
    other = there.get(normal(name))
    return other is None or (other.split(".")[0] != version.split(".")[0] and normal(name) != "opencv-python")


def normal(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_present(path: Path) -> dict[str, str]:
    """Versions by normal name, without their local parts, from the output of `pip list --format=freeze`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    found = {normal(name): version.partition("+")[0] for name, version in pairs}
    if "opencv-python-headless" in found:  # the same module without windows, and 60 MB
        found.setdefault("opencv-python", found["opencv-python-headless"])
    return found


def pack(
    folder: Path, python: str, present: dict[str, str], extras: list[str], peers: list[str], checkouts: Path | None
) -> None:
    """Fill the folder."""
    common = closure(own_requirements(extras), python, present)
    there = present | {normal(name): version for name, version in common.items()}
    wanted = {COMMON: common}
    for peer in peers:
        requirements = list(FIELD[peer].requirements)
        try:
            wanted[peer] = closure(requirements, python, there)
        except RuntimeError:  # it wants other versions
            try:
                free = closure(requirements, python, {name: there[name] for name in there if name == "torch"})
            except RuntimeError as error:
                print(f"left out: {peer}: {error}")
                continue
            wanted[peer] = {name: version for name, version in free.items() if needs_own(name, version, there)}
    for name, versions in wanted.items():
        here = folder / name.replace(" ", "-")
        here.mkdir(parents=True, exist_ok=True)
        exact = [f"{package}=={version}" for package, version in versions.items()]
        if exact:
            pip("download", "--quiet", "--no-deps", "--dest", str(here), *platform_flags(python), *exact)
        megabytes = sum(path.stat().st_size for path in here.iterdir()) / 1e6
        print(f"{name}: {megabytes:.1f} MB: {', '.join(exact) or 'nothing more'}", flush=True)
    for file in FILES if checkouts else ():
        target = folder / SCRIPTS / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkouts / file, target)


def unpack(folder: Path, site: Path) -> dict[str, Path]:
    """Install each folder of wheels by itself, unless that is done; returns the paths for `PYTHONPATH` by name."""
    found = {}
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        name = each.name.replace("-", " ") if each.name.replace("-", " ") in PEERS else each.name
        found[name] = each if name == SCRIPTS else site / each.name
        wheels = sorted(each.glob("*.whl"))
        done = site / f"{each.name}.txt"
        names = "\n".join(wheel.name for wheel in wheels)
        if wheels and not (done.exists() and done.read_text(encoding="utf-8") == names):
            shutil.rmtree(site / each.name, ignore_errors=True)
            flags = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(site / each.name))
            pip("install", *flags, *map(str, wheels))
            done.write_text(names, encoding="utf-8")
    return found


def main() -> None:
    """Download the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--present", type=Path, required=True, help="what `pip list --format=freeze` prints there")
    parser.add_argument("--python", default="3.12", help="its version there (default %(default)s)")
    parser.add_argument("--checkouts", type=Path, help="a folder with clones of `cleanrl` and `LeanRL`")
    parser.add_argument("--extras", default="test,atari,mujoco", help="also envpool, of 53 MB (default %(default)s)")
    parser.add_argument("--peers", default=",".join(PEERS), help="(default %(default)s)")
    arguments = parser.parse_args()
    present, extras = read_present(arguments.present), arguments.extras.split(",")
    peers = [peer for peer in arguments.peers.split(",") if peer]
    pack(arguments.folder, arguments.python, present, extras, peers, arguments.checkouts)


if __name__ == "__main__":
    main()
