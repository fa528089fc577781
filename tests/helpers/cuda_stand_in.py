"""Stand-ins for a GPU in the tests of its kernels: Numba's simulator, and the CPU's own loops.

`SimulatedLauncher` runs the kernels themselves, as Python, thread by thread (NUMBA_ENABLE_CUDASIM=1, set before Numba
is loaded: `simulated_cuda.py`). `TwinLauncher` does a kernel's work by the CPU's compiled loops, on tensors of the
CPU or of the second device. It is fast, and meant for tests of the code that launches kernels.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.compiled.building import build
from hybridppo.compiled.cuda_building import cuda_module
from hybridppo.compiled.cuda_kernels import HALF, PART
from hybridppo.compiled.definition import Definition
from hybridppo.distributions.base import philox

Array = NDArray[Any]


def numpy_of(tensor: Tensor) -> Array:
    """The memory of a tensor, even if the second device hides it."""
    hidden: Tensor = getattr(tensor, "hidden", tensor)
    return hidden.detach().numpy()


class SimulatedLauncher:
    """Kernels on Numba's simulator."""

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self._module, self._names, _ = cuda_module(definition, simulated=True)

    def array(self, tensor: Tensor, dtype: Any = None) -> Array:
        array = numpy_of(tensor)
        return array if dtype is None else array.view(dtype)

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        getattr(self._module, self._names[name])[blocks, threads](*arguments)


class TwinLauncher:
    """The same with the CPU's loops."""

    launches = 0

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self._definition, self._kernels = definition, build(definition)

    def array(self, tensor: Tensor, dtype: Any = None) -> Array:
        array = numpy_of(tensor)
        return array if dtype is None else array.view(dtype)

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        TwinLauncher.launches += 1
        getattr(self, name)(*arguments)

    def act_all(
        self,
        seed: Array,
        t: int,
        outputs: Array,
        noise: Array,
        actions: Array,
        for_env: Array,
        scales: Array,
        low: Array,
        high: Array,
    ) -> None:
        is_choice = self._definition.action_kind != "numbers"
        noise[:] = noise_of(seed, t, *noise.shape, is_choice=is_choice)
        row = outputs[t]
        if not is_choice:
            actions[t] = row[:, : scales.shape[1]] + scales * noise
            for_env[:] = actions[t].clip(low, high)
            return
        logit = 0
        for choice, size in enumerate(high):
            part = slice(logit, logit + size)
            actions[t, :, choice] = (row[:, part] + noise[:, part]).argmax(-1)
            logit += size
        for_env[:] = actions[t] + low

    def step_all(
        self, states: Array, randoms: Array, lengths: Array, present: Array, limit: int, t: int,
        for_env: Array, observations: Array, *results: Array,
    ) -> None:  # fmt: skip
        *numbers, finals = results
        last = finals[t : t + 1] if limit else np.empty((1, *observations.shape[1:]), np.float32)
        rows = observations[t : t + 2], *(each[t : t + 1] for each in numbers), last
        world, row = (states, randoms, lengths, present, limit), np.empty(observations.shape[-1], np.float32)
        self._kernels.step_all(world, 0, len(states), for_env, rows, row)


def noise_of(seed: Array, t: int, num_columns: int, size: int, *, is_choice: bool) -> Array:
    """`[N, noise]`, as the kernel draws it."""
    of_one = 4 if is_choice else 2
    firsts = np.arange(0, size, of_one, dtype=np.int64)[None]
    columns = np.arange(num_columns, dtype=np.int64)[:, None]
    low, high = (np.full((num_columns, firsts.size), word, np.int64) for word in seed)
    zero = np.zeros_like(low)
    words = philox(low, high, firsts + zero, zero + t, columns + zero, zero)
    numbers = [((word >> 9).astype(np.float32) + HALF) * PART for word in words]
    if is_choice:
        drawn = [-np.log(-np.log(number)) for number in numbers]
    else:
        radius, angle = np.sqrt(np.float32(-2) * np.log(numbers[0])), np.float32(2 * np.pi) * numbers[1]
        drawn = [radius * np.cos(angle), radius * np.sin(angle)]
    return np.stack(drawn, -1).reshape(num_columns, -1)[:, :size]
