"""Every kernel compiled to PTX, for three generations of GPUs, by a compiler that needs no driver."""

import dataclasses
import importlib.util
import inspect
import re
import shutil
import subprocess
import types
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_catch import Catch
from compiled_hunt import Hunt
from compiled_kinds import Choices, Numbers
from tagging import tag, tag_on_grid

from hybridppo.compiled.classic import compiled_form
from hybridppo.compiled.cuda_building import BLOCK_MEMORY, LOOPS, cuda_module, shape_of
from hybridppo.compiled.definition import Definition
from hybridppo.errors import EnvError

numba = pytest.importorskip("numba")
pytest.importorskip("numba_cuda", reason="Numba's own CUDA no longer compiles min and max: pip install numba-cuda")
pytestmark = pytest.mark.extras

GENERATIONS = ((7, 5), (8, 0), (9, 0))
KERNELS = [loop.__name__ for loop in LOOPS]
NAMES = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
DEFINITIONS: dict[str, Definition] = {
    **{name: compiled_form(name) for name in NAMES},
    "Catch": Catch,
    "Choices": Choices,
    "Hunt": Hunt,
    "Hunt with its state": Hunt.showing_state,
    "Numbers": Numbers,
    "Tag": tag(taggers=10, runners=1000),
    "TagOnGrid": tag_on_grid(),
}
SLOW_TRIGONOMETRY = re.compile(
    # Of the sine and cosine of float32: beyond 105,615, the angle is reduced in whole numbers and once in float64.
    r"\.reg|cvt\.rn\.f64\.s64|mul\.f64.* 0d3BF921FB54442D19;|cvt\.rn\.f32\.f64"
)


@pytest.fixture(autouse=True)
def no_device_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks for a device that is there, or for NVRTC, a library as large as all else, for names of generations."""
    from numba.cuda import cuda_paths, dispatcher
    from numba.cuda.cudadrv import nvrtc, nvvm

    try:
        nvvm.NVVM()
    except Exception as error:
        pytest.skip(f"NVVM, the compiler, is not found ({type(error).__name__}): pip install nvidia-cuda-nvcc-cu12")
    some = types.SimpleNamespace(compute_capability=(8, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: some)
    monkeypatch.setattr(nvrtc, "get_supported_ccs", lambda: GENERATIONS)
    monkeypatch.setattr(cuda_paths, "_get_nvrtc_path", lambda: None)


def signatures(definition: Definition) -> dict[str, Any]:
    """The launch arguments of each kernel, as `EnvironmentsOnDevice` makes them."""
    f, i, b = numba.float32, numba.int64, numba.boolean
    action = f if definition.action_kind == "numbers" else i
    numbers, flags, rows = f[:, ::1], b[:, ::1], f[:, :, ::1]
    state = numba.from_dtype(definition.state)[::1]
    own, results = (state, i[:, :, ::1], i[::1], flags), (rows, numbers, flags, flags, flags)
    return {
        "act_all": (i[::1], i, rows, numbers, action[:, :, ::1], action[:, ::1], numbers, action[::1], action[::1]),
        "step_all": (*own, i, i, action[:, ::1], *results, rows),
    }


def compiled_kernels(
    definition: Definition,
    generation: tuple[int, int],
    kernels: Collection[str] = tuple(loop.__name__ for loop in LOOPS),
) -> Iterator[tuple[str, str]]:
    """Name and PTX of some of the kernels."""
    from numba import cuda

    module, names, _ = cuda_module(definition)
    for name in kernels:
        kernel = getattr(module, names[name]).py_func
        ptx, _ = cuda.compile_ptx(kernel, numba.void(*signatures(definition)[name]), cc=generation)
        yield name, ptx


def of_float64(ptx: str) -> list[str]:
    """PTX lines with float64 numbers that the source did not ask for."""
    return [line for line in ptx.splitlines() if ".f64" in line and not SLOW_TRIGONOMETRY.search(line)]


@pytest.mark.parametrize(
    ("name", "generations"),
    [
        ("Hunt with its state", GENERATIONS),
        # A later generation has all instructions of an earlier one.
        *((name, GENERATIONS[:1]) for name in ("CartPole-v1", "Choices")),
        *(pytest.param(name, GENERATIONS, marks=pytest.mark.slow) for name in DEFINITIONS),
    ],
)
def test_every_kernel_can_be_compiled(name: str, generations: Any, tmp_path: Path) -> None:
    definition = DEFINITIONS[name]
    for generation in generations:
        for kernel, ptx in compiled_kernels(definition, generation):
            assert f".target sm_{generation[0]}{generation[1]}" in ptx
            assert ptx.count(".entry") == 1
            has_barrier = definition.policies and kernel.startswith("step_all")
            assert ("bar.sync" in ptx or "barrier.sync" in ptx) == bool(has_barrier)
            assert ("_cudapy_smem" in ptx) == (bool(definition.policies) and kernel == "step_all")
            assert "malloc" not in ptx
            if kernel == "act_all":
                assert of_float64(ptx) == []
            _require_little_local_memory(ptx, generation, tmp_path, "" if kernel == "act_all" else name)


@pytest.mark.parametrize("name", ["Tag", pytest.param("TagOnGrid", marks=pytest.mark.slow)])
def test_no_float64_where_the_source_has_none(name: str) -> None:
    """Starts are drawn in float64; except for them, Tag's whole step has no float64 number."""
    start, whole = np.float32(0.25), np.int32(0)

    def reset(agent: int, state: Any, random: Any) -> None:
        state.x[agent] = state.y[agent] = state.direction[agent] = start
        state.speed[agent] = state.x_speed[agent] = state.y_speed[agent] = start
        state.in_game[agent] = state.tags[agent] = state.new_tags[agent] = whole

    definition = DEFINITIONS[name]
    plain = dataclasses.replace(definition, functions={**definition.functions, "reset": reset})
    for kernel, ptx in compiled_kernels(plain, (8, 0)):
        assert of_float64(ptx) == [], kernel
    [(_, step)] = compiled_kernels(definition, (8, 0), ["step_all"])
    assert len(of_float64(step)) > 5  # which would have been seen


def test_a_state_that_a_block_cannot_hold_stays_where_it_is() -> None:
    small, large = tag(taggers=24, runners=1000), tag(taggers=25, runners=1000)
    assert small.state.itemsize == BLOCK_MEMORY < large.state.itemsize
    assert shape_of(small).is_held
    assert shape_of(large) == dataclasses.replace(shape_of(small), is_held=False)
    assert shape_of(large).threads == 1024
    [(_, ptx)] = compiled_kernels(large, (8, 0), ["step_all"])
    assert "_cudapy_smem" not in ptx


def test_what_cannot_be_compiled_names_the_line() -> None:
    def observe(state: Any, out: Any) -> None:
        out[0] = state.total
        out[1:] = out[:2]  # which the CPU can

    definition = dataclasses.replace(Choices, functions={**Choices.functions, "observe": observe})
    module, _, explain = cuda_module(definition)
    with pytest.raises(numba.core.errors.NumbaError) as caught:
        list(compiled_kernels(definition, (8, 0)))
    error = explain(Path(str(module.__file__)), caught.value)
    assert isinstance(error, EnvError)
    line = inspect.getsourcelines(observe)[1] + 2
    assert f"{__file__}:{line}: " in str(error)


@cache
def assemblers() -> list[str]:
    """Paths of ptxas, the assembler of every installed toolkit."""
    found = [shutil.which("ptxas"), shutil.which("ptxas", path="/usr/local/cuda/bin")]
    nvidia = importlib.util.find_spec("nvidia")
    for folder in nvidia.submodule_search_locations or () if nvidia is not None else ():
        found += [str(path) for path in Path(folder).glob("*/bin/ptxas")]
    return [path for path in found if path is not None]


def _require_little_local_memory(ptx: str, generation: tuple[int, int], folder: Path, name: str) -> None:
    """Nothing is spilled unless a block has 1,024 threads; a stack is used only to reduce angles."""
    file = folder / "kernel.ptx"
    file.write_text(ptx)
    target = f"-arch=sm_{generation[0]}{generation[1]}"
    registers = "64" if name == "Tag" else "255"
    for assembler in assemblers():
        command = [assembler, "-v", target, "--maxrregcount", registers, str(file), "-o", str(folder / "kernel.bin")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:  # one of an older toolkit does not know the version of PTX
            stacks = [int(size) for size in re.findall(r"(\d+) bytes stack frame", done.stderr)]
            spilled = [int(size) for size in re.findall(r"(\d+) bytes spill stores", done.stderr)]
            assert stacks
            assert max(stacks) <= 128
            assert max(spilled) <= (64 if name == "Tag" else 0)
            return
