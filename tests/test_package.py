"""What the package is made of, and what importing it costs."""

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridppo

ROOT = Path(__file__).parents[1]

PUBLIC_FACE = {
    "__init__.py",
    "__main__.py",
    "auto.py",
    "calibration.py",
    "cli.py",
    "measuring.py",
    "settings.py",
    "training.py",
}
"""The files of `hybridppo/` that may import agents and runners; all others are the core."""

FORBIDDEN = {
    "hybridppo": ("hybridppo.agents", "hybridppo.runners", *(f"hybridppo.{name[:-3]}" for name in PUBLIC_FACE)),
    "agents": ("hybridppo.runners", "hybridppo.cli", "hybridppo.measuring", "hybridppo.settings", "hybridppo.training"),
    "runners": ("hybridppo.cli", "hybridppo.measuring", "hybridppo.settings", "hybridppo.training"),
}
"""What the files of each folder may not import."""


def imports(source: str) -> Iterator[str]:
    """The full names of all that a Python source imports, but for type checking alone."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def files_of(folder: str) -> list[Path]:
    return [
        path for path in sorted((ROOT / folder).glob("*.py")) if folder != "hybridppo" or path.name not in PUBLIC_FACE
    ]


def test_imports_are_found() -> None:
    source = "import a.b\nfrom c import d, e\nfrom . import f\nif TYPE_CHECKING:\n    import g\ndef h():\n    import i"
    assert sorted(imports(source)) == ["..f", "a.b", "c.d", "c.e", "i"]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_each_layer_imports_only_from_below(folder: str) -> None:
    files = files_of(folder)
    assert files
    strays = {
        path.name: found
        for path in files
        if (
            found := [
                name
                for name in imports(path.read_text())
                if name.startswith(".") or any(is_within(name, package) for package in FORBIDDEN[folder])
            ]
        )
    }
    assert strays == {}


def test_nothing_imports_the_folders_by_their_place_in_the_tree() -> None:
    sources = [*ROOT.glob("hybridppo/*.py"), *ROOT.glob("agents/*.py"), *ROOT.glob("runners/*.py")]
    for path in (*sources, *ROOT.glob("scripts/*.py")):
        assert not any(is_within(name, "agents") or is_within(name, "runners") for name in imports(path.read_text()))


def test_the_version_is_that_of_the_distribution() -> None:
    assert importlib.metadata.version("hybridppo") == hybridppo.__version__


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


@pytest.mark.parametrize("statement", ["import hybridppo", "from hybridppo import PPO, Mirrored, train"])
def test_importing_needs_neither_command_line_nor_pictures(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*sorted({{'tyro', 'matplotlib', 'hybridppo.cli'}} & sys.modules.keys()))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert process.stdout.split() == []


@pytest.mark.parametrize(
    ("before", "is_frozen", "is_enabled"),
    [("", True, True), ("import torch", False, True), ("gc.disable()", False, False)],
    ids=["alone", "torch before", "without collections"],
)
def test_importing_torch_goes_without_collections_and_leaves_them_as_they_were(
    before: str, is_frozen: bool, is_enabled: bool
) -> None:
    code = f"""
import gc, sys
{before}
import hybridppo
collections = sum(generation["collections"] for generation in gc.get_stats())
hybridppo.PPO
assert "torch" in sys.modules
print(gc.get_freeze_count() > 100_000, gc.isenabled())
if {is_frozen}:
    assert sum(generation["collections"] for generation in gc.get_stats()) == collections
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert process.stdout == f"{is_frozen} {is_enabled}\n"


def test_training_on_a_cpu_loads_neither_compiler_nor_symbolic_algebra() -> None:
    code = """
import sys, hybridppo
config = hybridppo.PPOConfig(num_envs=2, num_steps=8, hidden_sizes=(4,))
hybridppo.train("CartPole-v1", total_steps=32, placement="cpu", config=config, progress=False)
print(*sorted({"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()))
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert process.stdout.split() == []  # together they take a second to load, and 80 MB
