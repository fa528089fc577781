"""The yardstick of `fixed_work.py` and `pieces.py`: bare environments and bare matrix products."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from cases import Case
from numpy.typing import NDArray
from torch import Tensor


def run_limits(case: Case) -> dict[str, Any]:
    """The yardstick: the work's environments and matrix products on one thread, and nothing else."""
    torch.set_num_threads(1)
    us_per_vector_step = 1e6 * seconds_per_vector_step(case)
    in_numpy, in_torch = (1e3 * seconds_per_minibatch(case, library) for library in (InNumpy(), InTorch()))
    ms_sampling = 1e-3 * us_per_vector_step * case.num_steps
    ms_learning = min(in_numpy, in_torch) * case.num_epochs * case.num_minibatches
    return {
        "us_per_vector_step": us_per_vector_step,
        "ms_per_minibatch_numpy": in_numpy,
        "ms_per_minibatch_torch": in_torch,
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
def seconds_per_minibatch(case: Case, library: "InNumpy | InTorch") -> float:
    """Forward and backward products and tanh of actor and critic; no loss, no optimizer, no memory allocated."""
    networks = [BareNetwork(library, [4, *case.hidden_sizes, outputs], case.minibatch_size) for outputs in (2, 1)]

    def minibatch() -> None:
        for network in networks:
            network.forward()
            network.backward()

    return seconds_per_call(minibatch, calls=max(20, 100_000 // case.minibatch_size))


class BareNetwork:
    """The arithmetic of a tanh network on one minibatch, in memory laid out beforehand."""

    def __init__(self, library: "InNumpy | InTorch", sizes: list[int], rows: int) -> None:
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
