"""The package's parts, and the cost of importing it."""

import ast
import configparser
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

import hybridppo

ROOT = Path(__file__).parents[1]

LAYERS = (
    {"errors", "_lazy", "_version"},
    {"system", "spaces"},
    {"distributions"},
    {"compiled", "networks", "rollouts", "run_directory"},
    {"interfaces", "environments"},
    {"placements", "reporting", "tensors"},
    {"agents"},
    {"runners"},
    {"auto"},
    {"settings"},
    {"config_files"},
    {"loading"},
    {"distributed", "evaluation"},
    {"self_play"},
    {"running"},
    {"training", "learner_process"},
    {"tools"},
    {"commands", ""},
    {"__main__"},
)
"""The packages of each layer, from the lowest: a folder with all within it, or a file beside them. A package imports
only from lower layers, imports for type checking included."""


@functools.cache
def imports(source: str) -> tuple[str, ...]:
    """The full names of all imports in a Python source."""
    return tuple(names_imported(source))


def names_imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def sources() -> dict[str, Path]:
    """Every source of the library, by its module name."""
    found = {}
    for folder in ("hybridppo", "agents", "runners"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            below = path.relative_to(ROOT).with_suffix("").parts
            if below[:2] in (("hybridppo", "agents"), ("hybridppo", "runners")):  # links to the two folders beside it
                continue
            parts = below if below[0] == "hybridppo" else ("hybridppo", *below)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()


def package_of(module: str) -> str:
    """The package of a library's module; "" for the top level."""
    return (*module.split("."), "")[1]


@functools.cache
def modules_imported(module: str) -> set[str]:
    """The modules of the library that a module imports."""
    found = set()
    for name in imports(SOURCES[module].read_text()):
        while name and name not in SOURCES:
            name = name.rpartition(".")[0]
        if name not in ("", "hybridppo", module):
            found.add(name)
    return found


def test_imports_are_found() -> None:
    source = "import a.b\nfrom c import d, e\nfrom . import f\nif TYPE_CHECKING:\n    import g\ndef h():\n    import i"
    assert sorted(imports(source)) == ["..f", "a.b", "c.d", "c.e", "g", "i"]


def test_every_package_is_in_a_layer() -> None:
    assert {package_of(module) for module in SOURCES} == set().union(*LAYERS)
    loose = [path.stem for path in (ROOT / "hybridppo").glob("*.py") if not path.stem.startswith("__")]
    assert len(loose) <= 15


def test_the_picture_has_the_packages_of_each_layer() -> None:
    picture = (ROOT / "docs" / "pictures" / "packages.svg").read_text(encoding="utf-8")
    layers: dict[str, set[str]] = {}
    for height, package in re.findall(r'<text class="n" x="[\d.]+" y="(\d+)">(\w+)/<', picture):
        layers.setdefault(height, set()).add(package)
    is_folder = {
        package: SOURCES[f"hybridppo.{package}"].name == "__init__.py" for package in set().union(*LAYERS) - {""}
    }
    packages = [{package for package in layer if is_folder.get(package)} for layer in reversed(LAYERS)]
    assert list(layers.values()) == [layer for layer in packages if layer]


@pytest.mark.parametrize("package", sorted(set().union(*LAYERS)))
def test_each_package_imports_from_lower_layers(package: str) -> None:
    layer_of = {each: number for number, layer in enumerate(LAYERS) for each in layer}
    strays = {}
    for module in (module for module in SOURCES if package_of(module) == package):
        names = imports(SOURCES[module].read_text())
        wrong = [name for name in names if name.startswith(".")]  # or it would not be seen here
        imported = {each: package_of(each) for each in modules_imported(module)}
        wrong += [each for each, where in imported.items() if where != package and layer_of[where] >= layer_of[package]]
        if wrong:
            strays[module] = wrong
    assert strays == {}


def test_no_two_files_import_each_other() -> None:
    graph = {module: modules_imported(module) for module in SOURCES}
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in finished:
            for imported in sorted(graph.get(module, ())):
                visit(imported, (*path, module))
            finished.add(module)

    for module in SOURCES:
        visit(module, ())


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES.values()}), ids=str)
def test_every_room_has_a_door_plate(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert docstring is not None
    assert len(docstring) > 40


def test_json_is_by_the_standard() -> None:
    """`json.dumps` writes NaN and Infinity unless it is asked not to, and most readers refuse those."""
    texts = {module: path.read_text() for module, path in SOURCES.items()}
    calls = [
        (module, node)
        for module, text in texts.items()
        if "json.dump" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dumps", "json.dump")
    ]
    assert calls
    wrong = [module for module, call in calls if "allow_nan" not in {keyword.arg for keyword in call.keywords}]
    assert wrong == [], "use as_json of run_directory/files.py"


def test_every_room_is_installed() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    installed = set(config["options"]["packages"].split())
    assert installed == {module for module, path in SOURCES.items() if path.name == "__init__.py"}


def test_nothing_imports_the_folders_by_their_place_in_the_tree() -> None:
    for path in (*SOURCES.values(), *ROOT.glob("scripts/*.py")):
        assert not any(is_within(name, "agents") or is_within(name, "runners") for name in imports(path.read_text()))


def test_the_version_is_that_of_the_distribution() -> None:
    assert importlib.metadata.version("hybridppo") == hybridppo.__version__


USES_OF_DATA = """
import hybridppo, pathlib, sys
assert hybridppo.__file__.startswith(sys.argv[1]), hybridppo.__file__
agent = hybridppo.pretrained("CartPole-v1")
agent.save("agent.safetensors")
hybridppo.export("agent.safetensors", "policy.npz", check_steps=2)
hybridppo.train("CartPole-v1", total_steps=64, num_workers=1, run_dir="r", progress=False, placement="cpu",
                config=hybridppo.PPOConfig(num_envs=2, num_steps=16, num_minibatches=2))
from hybridppo.tools.report import TEMPLATE
assert "$title" in TEMPLATE.read_text()
from hybridppo.commands.main import main
for command in (["agents"], ["train", "CartPole-v1", "--tuned", "--total-steps=64", "--run-dir=s", "--no-progress"]):
    try:
        main(command)
    except SystemExit as ended:
        assert not ended.code, command
"""


@pytest.mark.extras
def test_the_packages_work_from_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as library:
        for name in ("hybridppo", "agents", "runners"):
            place = name if name == "hybridppo" else f"hybridppo/{name}"
            for path in (ROOT / name).rglob("*"):
                if (
                    path.is_file()
                    and "__pycache__" not in path.parts
                    and not any(each.is_symlink() for each in path.parents)
                ):
                    library.write(path, f"{place}/{path.relative_to(ROOT / name)}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "library.zip")}
    done = run_python("-c", USES_OF_DATA, tmp_path, cwd=tmp_path, env=environment, warm=False)
    assert done.returncode == 0, done.stderr
    assert "Hopper-v5" in done.stdout


@pytest.mark.parametrize("name", hybridppo.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hybridppo, name) is not None


def test_all_that_is_promised_is_public() -> None:
    promised = {"train", "resume", "evaluate", "load", "PPO", "PPOConfig"}
    promised |= {"SingleDevice", "Migrating", "Mirrored", "Auto"}
    assert promised <= set(hybridppo.__all__)
    assert set(hybridppo.__all__) <= set(dir(hybridppo))


def test_types_are_marked() -> None:
    assert (ROOT / "hybridppo" / "py.typed").exists()


FRESH = """
import gc, json, sys

def loaded():
    return sorted({"tyro", "matplotlib", "hybridppo.commands", "torch"} & sys.modules.keys())

seen = {}
import hybridppo
seen["imported"], before = loaded(), sum(generation["collections"] for generation in gc.get_stats())
hybridppo.PPO
seen["collections"] = sum(generation["collections"] for generation in gc.get_stats()) - before
seen["is_frozen"], seen["is_enabled"] = gc.get_freeze_count() > 100_000, gc.isenabled()
from hybridppo import PPO, Mirrored, train
seen["names imported"] = loaded()
config = hybridppo.PPOConfig(num_envs=2, num_steps=8, hidden_sizes=(4,))
train("CartPole-v1", total_steps=32, placement="cpu", config=config, progress=False)
seen["trained"] = sorted({"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys())
print(json.dumps(seen))
"""


@functools.cache
def fresh() -> dict[str, Any]:
    """The findings of a separate process that imported the library, then torch by it, and trained."""
    process = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True, cwd=ROOT)
    seen: dict[str, Any] = json.loads(process.stdout)
    return seen


def test_importing_needs_neither_command_line_nor_pictures() -> None:
    assert fresh()["imported"] == []
    assert fresh()["names imported"] == ["torch"]


def test_importing_torch_goes_without_collections() -> None:
    assert (fresh()["collections"], fresh()["is_frozen"], fresh()["is_enabled"]) == (0, True, True)


def test_training_on_a_cpu_loads_neither_compiler_nor_symbolic_algebra() -> None:
    assert fresh()["trained"] == []  # together they take a second to load, and 80 MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "is_enabled"), [("import torch", True), ("gc.disable()", False)], ids=["torch before", "no collections"]
)
def test_collections_are_left_as_they_were(before: str, is_enabled: bool) -> None:
    code = f"""
import gc, sys
{before}
import hybridppo
hybridppo.PPO
assert "torch" in sys.modules
print(gc.get_freeze_count() > 100_000, gc.isenabled())
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert process.stdout == f"False {is_enabled}\n"
