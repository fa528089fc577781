"""Compiles a definition to CUDA kernels, and launches them. No other file uses Numba's CUDA.

    launcher = cuda_launcher(definition, torch.device("cuda:0"))
    states = launcher.array(tensor, definition.state)
    launcher.launch("step_all", blocks, threads, states, ...)

The module is text, like that for the CPU (`building.py`). Its first lines define a thread, a barrier and the memory of
a block for Numba's CUDA; below are the environment's functions and the loops around them. For another compiler, only
the first lines would change. Arrays are torch's tensors, passed by their addresses.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridppo.compiled import cuda_kernels, kernels
from hybridppo.compiled.building import explained, fields_of, whole
from hybridppo.compiled.definition import Definition
from hybridppo.compiled.modules import has_numba, is_kept, load
from hybridppo.compiled.sources import Sources, Texts
from hybridppo.errors import DeviceError
from hybridppo.system.messages import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import torch

MOST_THREADS = 1024
"""The most threads of a block, on any GPU."""
THREADS = 128
"""Threads of a block, if they do not depend on each other."""
BLOCK_MEMORY = 48 * 1024
"""Bytes of shared memory that a block has on any GPU without a request for more."""
REGISTERS = 65536
"""Registers of a processor, divided among the threads of a block; a thread has at most 255."""

LOOPS = (cuda_kernels.act_all, cuda_kernels.step_all)
"""The kernels of a definition."""

ABOVE = """from numba import cuda

STATE = numba.from_dtype(np.dtype({state}, align=True))
compiled = cuda.jit(device=True)
launched = cuda.jit(cache=True{options})


@compiled
def carry(agent, source, target):
{carry}
"""


OF_A_THREAD: Texts = {**kernels.ON_CPU, cuda_kernels.environment: "cuda.grid(1)"}
OF_A_BLOCK: Texts = {
    cuda_kernels.environment: "cuda.blockIdx.x",
    kernels.thread: "cuda.threadIdx.x",
    kernels.num_threads: "cuda.blockDim.x",
    kernels.barrier: "cuda.syncthreads()",
    kernels.any_of_block: "cuda.syncthreads_or(np.int32(truth)) != 0",
}
"""How calls of these functions are written if each environment has a thread, and if it has a block of threads."""
HELD = "cuda.shared.array(1, STATE)[0]"
"""Puts a state into the shared memory of a block. It is written into its caller, because a function cannot return such
an array."""
SIMULATED = "cuda.shared.array(1, STATE).view(np.recarray)[0]"
"""The same in Python, where records have no fields without a view."""


@dataclass(frozen=True)
class Shape:
    """Launch settings of a definition's kernels."""

    threads: int
    """Threads of a block."""
    is_block_each: bool
    """Whether each environment has a block of threads; otherwise it has one thread."""
    is_held: bool = False
    """Whether the block copies the state to its shared memory during a step."""

    def blocks(self, num_envs: int) -> int:
        """The number of blocks for all environments."""
        return num_envs if self.is_block_each else blocks_for(num_envs)


def shape_of(definition: Definition) -> Shape:
    """The launch settings of a definition's kernels."""
    if not definition.policies:
        return Shape(THREADS, is_block_each=False)
    num_agents = len(definition.agents)
    threads = min(MOST_THREADS, -(-num_agents // 32) * 32)
    return Shape(threads, is_block_each=True, is_held=definition.state.itemsize <= BLOCK_MEMORY)


def blocks_for(rows: int) -> int:
    """The number of blocks of `THREADS` threads with one thread for each row."""
    return -(-rows // THREADS)


def cuda_text(definition: Definition, *, simulated: bool = False) -> Sources:
    """The module of a definition: its functions, and the loops of a GPU.

    Args:
        definition: the definition.
        simulated: for Numba's CUDA simulator, in which arrays of records are NumPy's.

    Raises:
        EnvError: if its functions refer to something that cannot be compiled, with the line.
    """
    is_choice, shape = definition.action_kind != "numbers", shape_of(definition)
    written: Texts = {
        **(OF_A_BLOCK if shape.is_block_each else OF_A_THREAD),
        cuda_kernels.number: "cuda.grid(1)",
        cuda_kernels.held: (SIMULATED if simulated else HELD) if shape.is_held else "state",
        cuda_kernels.draw: cuda_kernels.draw_for_choices if is_choice else cuda_kernels.draw_for_numbers,
        kernels.look: cuda_kernels.look,
    }
    sources = definition.gathered(LOOPS, written, (cuda_kernels.carry,), dict.fromkeys(LOOPS, "launched"))
    fields: Any = definition.state.fields or {}
    per_agent = 1 if definition.policies else 0
    carried = [_carried(name, dtype.shape[per_agent:]) for name, (dtype, *_) in fields.items()]
    above = ABOVE.format(
        state=fields_of(definition),
        options="" if simulated else f", max_registers={min(255, REGISTERS // shape.threads)}",
        carry="\n".join(carried) if shape.is_held else "    pass",
    )
    return whole(above, sources if simulated else replace(sources, text=_of_math(sources.text)))


def _of_math(text: str) -> str:
    """The text with Python's names of scalar functions, if Numba's CUDA does not know NumPy's."""
    return re.sub(r"\bnp\.(sqrt|exp|expm1|log1p)\(", r"math.\1(", re.sub(r"\bnp\.(abs|absolute)\(", "abs(", text))


def _carried(name: str, shape: tuple[int, ...]) -> str:
    """The lines that copy one agent's part of a field."""
    lines, indices = [], ["agent"]
    for depth, size in enumerate(shape):
        lines.append(f"{'    ' * (depth + 1)}for k{depth} in range({size}):")
        indices.append(f"k{depth}")
    place = f"{name}[{', '.join(indices)}]"
    return "\n".join([*lines, f"{'    ' * (len(shape) + 1)}target.{place} = source.{place}"])


def cuda_module(definition: Definition, *, simulated: bool = False) -> tuple[ModuleType, dict[str, str], Any]:
    """The module of a definition, the names of its functions in it, and a function that explains errors."""
    sources = cuda_text(definition, simulated=simulated)
    explain = partial(explained, definition.name, sources.lines)
    return load(f"{definition.name}_cuda", sources.text, (), explain), sources.names, explain


class CudaLauncher:
    """Launches a definition's kernels on a CUDA device, in torch's streams.

    Args:
        definition: the definition.
        device: the device, with its number.

    Raises:
        DeviceError: if Numba cannot compile for the device, with the remedy.
    """

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self._cuda = _numba_cuda(device)
        self._module, self._names, self._explain = cuda_module(definition)
        self._device, self._name = device, definition.name
        self._path = Path(str(self._module.__file__))
        self._configured: dict[tuple[str, int, int, int], Any] = {}

    def array(self, tensor: torch.Tensor, dtype: np.dtype[Any] | None = None) -> Any:
        """A tensor of the device as an argument of kernels, without a copy; with a type, its bytes as records."""
        with self._selected():
            array = self._cuda.as_cuda_array(tensor)
            return array if dtype is None else array.view(dtype)

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Put a kernel into this thread's current stream, without waiting."""
        from numba.core.errors import NumbaError

        from hybridppo.system.devices import accelerator_of

        stream = accelerator_of(self._device).current_stream().cuda_stream
        with self._selected():
            # Numba keeps prepared launches by the stream object, and would prepare each launch again for a new object.
            configured = self._configured.get((name, blocks, threads, stream))
            if configured is None:
                is_new = all(name != other for other, *_ in self._configured)
                if is_new and not is_kept(self._path, [self._names[name]]):
                    say(f"compiling {name} of {self._name} for {self._device}, once: kept in {self._path.parent}")
                kernel = getattr(self._module, self._names[name])
                configured = kernel[blocks, threads, self._cuda.external_stream(stream)]
                self._configured[name, blocks, threads, stream] = configured
            try:
                configured(*arguments)
            except NumbaError as error:
                raise self._explain(self._path, error) from error

    def _selected(self) -> contextlib.AbstractContextManager[Any]:
        return self._cuda.gpus[self._device.index or 0]


def _numba_cuda(device: torch.device) -> Any:
    """Numba's CUDA, if it can compile and launch here."""
    remedy = (
        "pip install 'numba-cuda[cu13]' (or [cu12], as the driver is), or sample on the CPU, which compiles them too: "
        "placement 'hybrid' or 'cpu'"
    )
    if not has_numba():
        raise DeviceError(f"compiled environments on {device} need Numba, which is not installed: {remedy}")
    from numba import cuda

    if not cuda.is_available():
        raise DeviceError(
            f"compiled environments were asked for on {device}, which torch sees and Numba does not: its driver or its "
            f"compiler (NVVM) is not found: {remedy}"
        )
    try:
        from numba.cuda import cudaimpl  # noqa: F401 - else the first kernel would import it, and fail
    except AttributeError as error:  # numba-cuda 0.30.4 uses functions that NumPy 2.5 removed
        raise DeviceError(
            f"Numba's CUDA does not work with NumPy {np.__version__} ({error}): pip install 'numpy<2.5', or a newer "
            "numba-cuda"
        ) from error
    from numba.cuda.dispatcher import config

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # the user chooses the number of environments
    return cuda


LAUNCHERS: dict[str, Callable[[Definition, torch.device], CudaLauncher]] = {"cuda": CudaLauncher}
"""Launchers by the type of the device; on other devices, the host steps compiled environments."""
