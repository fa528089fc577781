"""The yardstick of `fixed_work.py` and `pieces.py`: bare environments and bare matrix products.

    python benchmarks/limits.py

prints, for every product of a minibatch, the time of each kernel that is there. The bound of an update takes the
fastest of each: NumPy's, torch's, oneDNN's by way of torch, and the tiles of the library's compiled updates.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import threadpoolctl
import torch
from cases import CASES, Case
from numpy.typing import NDArray
from torch import Tensor


def run_limits(case: Case) -> dict[str, Any]:
    """The yardstick: the work's environments and matrix products on one thread, and nothing else."""
    torch.set_num_threads(1)
    us_per_vector_step = 1e6 * seconds_per_vector_step(case)
    fastest = Fastest()
    in_numpy, in_torch, in_fastest = (
        1e3 * seconds_per_minibatch(case, library) for library in (InNumpy(), InTorch(), fastest)
    )
    ms_sampling = 1e-3 * us_per_vector_step * case.num_steps
    ms_learning = min(in_numpy, in_torch, in_fastest) * case.num_epochs * case.num_minibatches
    return {
        "us_per_vector_step": us_per_vector_step,
        "ms_per_minibatch_numpy": in_numpy,
        "ms_per_minibatch_torch": in_torch,
        "ms_per_minibatch_fastest": in_fastest,
        "kernels": fastest.chosen(),
        "ms_sampling": ms_sampling,
        "ms_learning": ms_learning,
        "steps_per_second": 1e3 * case.batch_size / (ms_sampling + ms_learning),
    }


def seconds_per_call(function: Callable[[], object], calls: int, blocks: int = 7) -> float:
    """The median over blocks of calls, after one block that warms up."""

    def block() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    block()
    return statistics.median(block() for _ in range(blocks))


def seconds_per_vector_step(case: Case) -> float:
    """One step of all environments, in gymnasium's own vectorised form, with random actions drawn beforehand."""
    env = gym.make_vec(case.env_id, num_envs=case.num_envs)
    env.reset(seed=0)
    random_actions = iter(np.random.default_rng(0).integers(0, 2, size=(8 * 500, case.num_envs)))
    try:
        return seconds_per_call(lambda: env.step(next(random_actions)), calls=500)
    finally:
        env.close()


@torch.no_grad()
def seconds_per_minibatch(
    case: Case, library: "InNumpy | InTorch | Fastest", calls: int | None = None, blocks: int = 7
) -> float:
    """Forward and backward products and tanh of actor and critic; no loss, no optimizer, no memory allocated."""
    networks = [BareNetwork(library, [4, *case.hidden_sizes, outputs], case.minibatch_size) for outputs in (2, 1)]

    def minibatch() -> None:
        for network in networks:
            network.forward()
            network.backward()

    return seconds_per_call(minibatch, calls or max(20, 100_000 // case.minibatch_size), blocks)


class BareNetwork:
    """The arithmetic of a tanh network on one minibatch, in memory laid out beforehand."""

    def __init__(self, library: "InNumpy | InTorch | Fastest", sizes: list[int], rows: int) -> None:
        generator = np.random.default_rng(0)

        def random(*shape: int) -> Any:
            return library.array(generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5))

        self.library = library
        self.weights = [random(outputs, inputs) for inputs, outputs in pairwise(sizes)]
        self.weight_gradients = [random(outputs, inputs) for inputs, outputs in pairwise(sizes)]
        self.activations = [random(rows, size) for size in sizes]
        self.gradients = [random(rows, size) for size in sizes]
        self.scratch = [random(rows, size) for size in sizes]

    def forward(self) -> None:
        """`a[i + 1] = tanh(a[i] W^T)`, the last layer without tanh."""
        last = len(self.weights) - 1
        for i, weight in enumerate(self.weights):
            self.library.multiply(self.activations[i], weight.T, self.activations[i + 1])
            if i < last:
                self.library.tanh(self.activations[i + 1])

    def backward(self) -> None:
        """`dW = g[i + 1]^T a[i]`, `g[i] = (g[i + 1] W) (1 - a[i]^2)`; the input needs no gradient."""
        library, gradients = self.library, self.gradients
        for i in reversed(range(len(self.weights))):
            library.multiply(gradients[i + 1].T, self.activations[i], self.weight_gradients[i])
            if i > 0:
                library.multiply(gradients[i + 1], self.weights[i], self.scratch[i])
                library.tanh_backward(self.scratch[i], self.activations[i], gradients[i])


class InNumpy:
    """What `BareNetwork` needs, by NumPy."""

    def array(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of this library."""
        return array

    def multiply(self, left: NDArray[Any], right: NDArray[Any], out: NDArray[Any]) -> None:
        """`out = left right`."""
        np.matmul(left, right, out=out)

    def tanh(self, values: NDArray[Any]) -> None:
        """In place."""
        np.tanh(values, out=values)

    def tanh_backward(self, gradient: NDArray[Any], activation: NDArray[Any], out: NDArray[Any]) -> None:
        """`out = gradient (1 - activation^2)`."""
        np.multiply(activation, activation, out=out)
        np.subtract(1.0, out, out=out)
        np.multiply(gradient, out, out=out)


class InTorch:
    """What `BareNetwork` needs, by torch."""

    def array(self, array: NDArray[Any]) -> Tensor:
        """An array of this library."""
        return torch.from_numpy(array)

    def multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        """`out = left right`."""
        torch.mm(left, right, out=out)

    def tanh(self, values: Tensor) -> None:
        """In place."""
        torch.tanh(values, out=values)

    def tanh_backward(self, gradient: Tensor, activation: Tensor, out: Tensor) -> None:
        """`out = gradient (1 - activation^2)`."""
        torch.ops.aten.tanh_backward.grad_input(gradient, activation, grad_input=out)


class Both:
    """An array, and the tensor of the same memory."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.tensor = array, torch.from_numpy(array)

    @property
    def T(self) -> "Both":  # noqa: N802 - as arrays and tensors have it
        """Transposed, a view."""
        return Both(self.array.T)

    @property
    def layout(self) -> tuple[tuple[int, ...], bool]:
        """Shape, and whether rows lie in one piece."""
        return self.array.shape, self.array.flags.c_contiguous


class Fastest:
    """What `BareNetwork` needs, each product and each tanh by the kernel that is the fastest for its shape."""

    def __init__(self) -> None:
        self.products: dict[Any, dict[str, float]] = {}
        """Seconds of each kernel by the layouts of what is multiplied."""
        self.tanhs: dict[Any, dict[str, float]] = {}

    def array(self, array: NDArray[Any]) -> Both:
        """An array of this library."""
        return Both(array)

    def multiply(self, left: Both, right: Both, out: Both) -> None:
        """`out = left right`."""
        key = left.layout, right.layout
        if key not in self.products:
            kernels = dict(_products())
            if left.array.shape[0] % 8 or right.array.shape[1] % 8:
                kernels.pop("tiles", None)  # which the update fills up with zeros
            self.products[key] = _seconds_of_each(kernels, left, right, out)
        _products()[_least(self.products[key])](left, right, out)

    def tanh(self, values: Both) -> None:
        """In place."""
        key = values.layout
        if key not in self.tanhs:
            self.tanhs[key] = _seconds_of_each(_tanhs(), values)
        _tanhs()[_least(self.tanhs[key])](values)

    def tanh_backward(self, gradient: Both, activation: Both, out: Both) -> None:
        """`out = gradient (1 - activation^2)`, as torch has it in one pass."""
        torch.ops.aten.tanh_backward.grad_input(gradient.tensor, activation.tensor, grad_input=out.tensor)

    def chosen(self) -> dict[str, str]:
        """The kernel of each product, by its shapes, and of each tanh."""
        said = {_in_words(key): _least(seconds) for key, seconds in self.products.items()}
        return said | {f"tanh {key[0]}": _least(seconds) for key, seconds in self.tanhs.items()}


def _seconds_of_each(kernels: dict[str, Any], *arguments: Both) -> dict[str, float]:
    """By turns; the least of each, since what disturbs only adds."""
    for function in kernels.values():
        function(*arguments)
    seconds = dict.fromkeys(kernels, float("inf"))
    for _ in range(40):
        for name, function in kernels.items():
            start = time.perf_counter()
            function(*arguments)
            function(*arguments)
            seconds[name] = min(seconds[name], (time.perf_counter() - start) / 2)
    return seconds


def _least(seconds: dict[str, float]) -> str:
    return min(seconds, key=seconds.__getitem__)


def _in_words(key: Any) -> str:
    (left, left_whole), (right, right_whole) = key
    marks = "" if left_whole else "^T", "" if right_whole else "^T"
    return f"{left[0]}x{left[1]}{marks[0]} {right[0]}x{right[1]}{marks[1]}"


@cache
def _products() -> dict[str, Callable[[Both, Both, Both], object]]:
    """Every kernel that is there: left, right, out."""
    found: dict[str, Callable[[Both, Both, Both], object]] = {
        "numpy": lambda left, right, out: np.matmul(left.array, right.array, out=out.array),
        "torch": lambda left, right, out: torch.mm(left.tensor, right.tensor, out=out.tensor),
    }
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        linear = torch.ops.mkldnn._linear_pointwise
        found["oneDNN"] = lambda left, right, out: linear(left.tensor, right.tensor.T, None, "none", [], "")
    tiles = _compiled()
    if tiles is not None:
        nothing = np.zeros((1, 4096), np.float32)

        def by_tiles(left: Both, right: Both, out: Both) -> None:
            # As the compiled update has them: right by rows, a copy of it where it is not.
            (rows, inner), columns = left.array.shape, right.array.shape[1]
            packed = np.ascontiguousarray(right.array)
            tiles.multiply_all(left.array, packed, out.array, rows, inner, columns, nothing, 0)

        found["tiles"] = by_tiles
    return found


@cache
def _tanhs() -> dict[str, Callable[[Both], object]]:
    found: dict[str, Callable[[Both], object]] = {
        "numpy": lambda values: np.tanh(values.array, out=values.array),
        "torch": lambda values: torch.tanh(values.tensor, out=values.tensor),
    }
    if (compiled := _compiled()) is not None:
        found["compiled"] = lambda values: compiled.tanh_all(values.array.reshape(-1), values.array.size)
    return found


@cache
def _compiled() -> Any:
    """The module of the library's compiled updates; None where Numba is not there."""
    from hybridppo.agents.ppo import compiled_backend
    from hybridppo.compiled.modules import has_numba

    return compiled_backend.MODULE.load() if has_numba() else None


def as_markdown(result: dict[str, Any]) -> str:
    """Billions of operations a second of each kernel, for every product of each case."""
    lines = []
    for case, products in result["products"].items():
        names = list(dict.fromkeys(name for rates in products.values() for name in rates))
        lines += [
            f"{case}: {CASES[case].hidden_sizes}, {CASES[case].minibatch_size} rows",
            "",
            f"| product | {' | '.join(names)} | fastest |",
            f"|---|{'---:|' * len(names)}---|",
        ]
        for product, rates in products.items():
            numbers = " | ".join(f"{rates[name]:.0f}" if name in rates else "" for name in names)
            lines.append(f"| {product} | {numbers} | {max(rates, key=rates.__getitem__)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    products: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    with threadpoolctl.threadpool_limits(1):
        for name in arguments.cases.split(","):
            fastest = Fastest()
            limits[name] = 1e3 * seconds_per_minibatch(CASES[name], fastest)
            products[name] = {
                _in_words(key): {kernel: _gflops(key, taken) for kernel, taken in seconds.items()}
                for key, seconds in fastest.products.items()
            }
    payload = {"arguments": vars(arguments), "products": products, "ms_per_minibatch": limits}
    machine.report("limits", payload, as_markdown(payload))


def _gflops(key: Any, seconds: float) -> float:
    (rows, inner), columns = key[0][0], key[1][0][1]
    return 2e-9 * float(rows) * inner * columns / seconds


if __name__ == "__main__":
    main()
