"""Multilayer perceptrons in NumPy, several of equal sizes at once, forward and backward."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.numpy_forms.actor import NumpyActivation

Array = NDArray[Any]


class StackedMLP:
    """`S` multilayer perceptrons whose parameters, and gradients, lie at equal distances in one buffer.

    Views torch's memory as it is when made. What a method gives is overwritten by its next call.

    Args:
        networks: the linear layers of each, first to last.
        activation: of every hidden layer.
    """

    def __init__(self, networks: Sequence[Sequence[nn.Linear]], activation: NumpyActivation) -> None:
        layers = list(zip(*networks, strict=True))
        self._weights = [_stacked([layer.weight for layer in same]) for same in layers]
        self._biases = [_stacked([layer.bias for layer in same])[:, None] for same in layers]
        self._weight_gradients = [_stacked([_gradient(layer.weight) for layer in same]) for same in layers]
        self._bias_gradients = [_stacked([_gradient(layer.bias) for layer in same])[:, None] for same in layers]
        self._transposed = [weight.swapaxes(-1, -2) for weight in self._weights]
        self._is_tanh, self._size = activation == "tanh", -1

    def forward(self, inputs: Array) -> Array:
        """`[B, inputs] -> [S, B, outputs]`."""
        if len(inputs) != self._size:
            self._allocate(len(inputs))
        self._inputs = previous = inputs
        last = len(self._weights) - 1
        for layer, (weight, bias, out) in enumerate(zip(self._transposed, self._biases, self._outputs, strict=True)):
            np.matmul(previous, weight, out=out)
            out += bias
            if layer < last:
                if self._is_tanh:
                    np.tanh(out, out=out)
                else:
                    np.maximum(out, np.float32(0.0), out=out)
            previous = out
        return previous

    def backward(self, d_outputs: Array) -> None:
        """Fill the parameters' gradients from that of the last outputs, `[S, B, outputs]`."""
        gradient = d_outputs
        for layer in reversed(range(len(self._weights))):
            before = self._outputs[layer - 1] if layer else self._inputs
            np.matmul(gradient.swapaxes(-1, -2), before, out=self._weight_gradients[layer])
            np.matmul(self._ones, gradient, out=self._bias_gradients[layer])  # the sum over the batch
            if layer:
                gradient = self._through(layer, gradient)

    def input_gradient(self, d_outputs: Array, columns: slice) -> Array:
        """The gradient of some columns of the inputs, `[S, B, columns]`; those of the parameters stay as they are."""
        gradient = d_outputs
        for layer in reversed(range(1, len(self._weights))):
            gradient = self._through(layer, gradient)
        found: Array = np.matmul(gradient, self._weights[0][..., columns])
        return found

    def _through(self, layer: int, gradient: Array) -> Array:
        """The gradient of what a hidden layer gave before its activation, from that of what the next gave."""
        out, activation = self._gradients[layer - 1], self._outputs[layer - 1]
        if gradient.shape[-1] == 1:  # an outer product, at which BLAS is slow
            np.multiply(gradient, self._weights[layer], out=out)
        else:
            np.matmul(gradient, self._weights[layer], out=out)
        if self._is_tanh:  # d tanh(z) / dz = 1 - tanh(z)^2
            out *= np.float32(1.0) - activation * activation
        else:
            out *= activation > 0.0
        return out

    def _allocate(self, size: int) -> None:
        self._size = size
        shapes = [(len(weight), size, weight.shape[1]) for weight in self._weights]
        self._outputs = [np.empty(shape, np.float32) for shape in shapes]
        self._gradients = [np.empty(shape, np.float32) for shape in shapes[:-1]]
        self._ones = np.ones((1, size), np.float32)


def _gradient(parameter: Tensor) -> Tensor:
    """Of a parameter; a target network's has one, too, which nobody fills."""
    assert parameter.grad is not None  # flat parameters have one from the start
    return parameter.grad


def _stacked(tensors: Sequence[Tensor]) -> Array:
    """Tensors of equal shape as one `[S, *shape]`, without a copy."""
    array: Array = tensors[0].detach().numpy()
    distances = {b.data_ptr() - a.data_ptr() for a, b in pairwise(tensors)}
    assert len(distances) <= 1, "the networks lie at different distances in their buffer"
    return as_strided(array, (len(tensors), *array.shape), (*(distances or {0}), *array.strides))
