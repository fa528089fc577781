"""The built distributions hold what they should, and a wheel works alone."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridppo

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")

EVERYWHERE = {
    "hybridppo/__init__.py",
    "hybridppo/__init__.pyi",
    "hybridppo/compiled/__init__.pyi",
    "hybridppo/placements/placement.py",
    "hybridppo/py.typed",
    "hybridppo/agents/__init__.py",
    "hybridppo/agents/ppo/ppo.py",
    "hybridppo/runners/__init__.py",
    "hybridppo/runners/runner.py",
    "hybridppo/tools/tuned.json",
    "hybridppo/tools/pretrained/CartPole-v1.safetensors",
    "hybridppo/tools/report.html",
    "hybridppo/tools/model_card.md",
}


def run(*command: object, cwd: Path) -> str:
    process = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


INSTALL = ("-m", "pip", "install", "--constraint", ROOT / "constraints.txt")


@pytest.fixture(scope="module", autouse=True)
def _not_compiled_beforehand() -> Iterator[None]:
    """Do not compile bytecode of installed packages: it takes pip longer than all else, and most is never imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_COMPILE", "1")
        yield


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the exact torch version that the Makefile installs first, and nothing else."""
    made = tmp_path_factory.mktemp("torch") / "venv"
    venv.create(made, with_pip=True)
    run(python_of(made), *INSTALL, "torch", cwd=made)
    run(python_of(made), "-c", "import torch", cwd=made)  # its bytecode, for the copies
    return made


def python_of(environment: Path) -> Path:
    (python,) = environment.glob("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    return python


def copy_of(environment: Path, path: Path) -> Path:
    """Another environment with this one's packages, whose files are not copied but linked."""
    venv.create(path, with_pip=True)
    (packages,) = environment.rglob("site-packages")
    place = path / packages.relative_to(environment)
    shutil.rmtree(place)
    shutil.copytree(packages, place, copy_function=os.link)
    return path


def build_wheel(source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, ".", cwd=source)
    (wheel,) = out.glob("hybridppo-*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, with its links, and without what earlier builds left in it."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {*LEFT_OUT(folder, names), *(["runs"] if Path(folder) == ROOT else [])}  # not the room of this name

    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("wheel") / "tree", symlinks=True, ignore=left_out))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ".", cwd=source)
    (made,) = out.glob("hybridppo-*.tar.gz")
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    names = names_in(wheel)
    assert names >= EVERYWHERE
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hybridppo"}


def test_the_wheel_holds_every_source(wheel: Path) -> None:
    found = {
        prefix + str(path.relative_to(ROOT))
        for folder, prefix in (("hybridppo", ""), ("agents", "hybridppo/"), ("runners", "hybridppo/"))
        for path in (ROOT / folder).rglob("*.py")
        if not {"agents", "runners"} & set(path.relative_to(ROOT).parts[1:2])  # the links in hybridppo/
    }
    assert found == {name for name in names_in(wheel) if name.endswith(".py")}


def test_the_sdist_makes_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    # By the command, because the arguments of `extractall` differ by version.
    run(sys.executable, "-m", "tarfile", "-e", sdist, tmp_path, cwd=tmp_path)
    (unpacked,) = tmp_path.iterdir()
    assert names_in(build_wheel(unpacked, tmp_path / "out")) == names_in(wheel)


def test_an_index_would_take_what_is_released(wheel: Path, tmp_path: Path) -> None:
    """Its page has links to the repository, in place of the relative ones of README.md."""
    address = "https://example.org/owner/hybridppo"
    run(sys.executable, ROOT / "scripts" / "release.py", address, "--output", tmp_path, cwd=tmp_path)
    (released,) = tmp_path.glob("*.whl")
    (metadata,) = (name for name in names_in(released) if name.endswith("/METADATA"))
    assert names_in(released) == names_in(wheel)
    with zipfile.ZipFile(released) as archive:
        text = archive.read(metadata).decode()
    assert re.findall(r"^Project-URL: (\w+), (\S+)$", text, re.MULTILINE)[0] == ("Source", address)
    assert re.findall(r"^Author: (.+)$", text, re.MULTILINE) == ["The hybridppo maintainers"]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert f"{address}/raw/v{hybridppo.__version__}/docs/pictures/speed.png" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_steps_of_the_dockerfile_install_it(source: Path, with_torch: Path, tmp_path: Path) -> None:
    alone = copy_of(with_torch, tmp_path / "venv")
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    environment = {
        **os.environ,
        "PATH": f"{alone / 'bin'}:{os.environ['PATH']}",
        "EXTRAS": "compiled",
        "TORCH_INDEX": "",
    }
    for step in steps:
        subprocess.run(["bash", "-c", step], cwd=source, env=environment, check=True, capture_output=True)
    version = subprocess.check_output(["hybridppo", "--version"], env=environment, cwd=tmp_path, text=True)
    assert version == f"hybridppo {hybridppo.__version__}\n"


def test_the_wheel_works_alone(wheel: Path, with_torch: Path, tmp_path: Path) -> None:
    alone = copy_of(with_torch, tmp_path / "venv")
    python = python_of(alone)
    run(python, *INSTALL, wheel, cwd=tmp_path)

    code = "import hybridppo; result = hybridppo.train('CartPole-v1', total_steps=1000, progress=False)"
    output = run(python, "-c", f"{code}; print(hybridppo.__file__, result.metrics['env_steps'])", cwd=tmp_path)
    where, env_steps = output.split()
    assert Path(where).is_relative_to(alone)
    assert int(env_steps) >= 1000
    site_packages = Path(where).parents[1]
    assert not {path.name for path in site_packages.iterdir()} & {"agents", "runners", "tests", "scripts"}

    assert "placements" in run(python, "-m", "hybridppo", "--help", cwd=tmp_path)
    assert run(python.with_name("hybridppo"), "evaluate", "--help", cwd=tmp_path)


WALKS = {
    "first_hour": {"first.png", "first.mp4", "runs/first/report.html", "runs/corridor/result.json"},
    "first_robot": {"runs/reach/result.json", "policy.npz", "numpy_policy.py"},
    "first_game": {"runs/nim/result.json", "runs/weak/result.json"},
}
"""Pages for newcomers, and some of the files that their commands write."""


@pytest.mark.parametrize("page", WALKS)
def test_a_newcomer_can_follow_the_page(page: str, source: Path, wheel: Path, with_torch: Path, tmp_path: Path) -> None:
    """Every command of the page, in an environment that has only torch, and in an empty folder."""
    alone, folder = copy_of(with_torch, tmp_path / "venv"), tmp_path / "folder"
    folder.mkdir()
    path, constraints = f"{alone / 'bin'}:{os.environ['PATH']}", str(ROOT / "constraints.txt")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = {**variables, "PATH": path, "PIP_CONSTRAINT": constraints}

    def shell(command: str, cwd: Path = folder) -> None:
        done = subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    if "pip install" not in text:
        shell(f"pip install {wheel}")
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            (folder / (name[1] if name else "block.py")).write_text(block, encoding="utf-8")
            shell(f"python {name[1] if name else 'block.py'}")
            continue
        for command in re.findall(r"^\$ (.+)$", block, re.MULTILINE):
            if command.startswith("tensorboard "):  # which serves until it is ended
                served = subprocess.Popen(
                    ["bash", "-c", f"exec timeout 120 {command} --port 0"],
                    cwd=folder, env=environment, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
                with served:
                    assert any("TensorBoard" in line and "http://" in line for line in served.stderr or ())
                    served.terminate()
            else:
                shell(command, cwd=source if command.startswith("pip ") else folder)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*")} >= WALKS[page]
