"""Hidden layers of multilayer perceptrons in NumPy, forward and backward."""

from collections.abc import Sequence

import numpy as np

from hybridppo.networks.numpy_forms.actor import NumpyActivation
from hybridppo.spaces.arrays import Array


class HiddenLayers:
    """The hidden layers of `S` networks of equal sizes, computed together.

    Args:
        weights: one `[S, outputs, inputs]` per layer.
        biases: one `[S, 1, outputs]` per layer.
        activation: activation of every layer.
    """

    def __init__(self, weights: Sequence[Array], biases: Sequence[Array], activation: NumpyActivation) -> None:
        self._weights, self._biases = weights, biases
        self._transposed = [weight.swapaxes(-1, -2) for weight in weights]
        self._is_tanh = activation == "tanh"
        self._ones = np.ones((1, 0), np.float32)
        self._memory: dict[str, list[Array]] = {}
        self._views: dict[tuple[str, int], list[Array]] = {}

    def forward(self, inputs: Array) -> list[Array]:
        """Activations `[S, B, outputs]` of every layer for `inputs` `[B, inputs]`; reused by the next call.

        Each network may have different inputs, `[S, B, inputs]`.
        """
        activations = self._reused("activations", inputs.shape[-2])
        previous = inputs
        for weight, bias, out in zip(self._transposed, self._biases, activations, strict=True):
            np.matmul(previous, weight, out=out)
            out += bias
            if self._is_tanh:
                np.tanh(out, out=out)
            else:
                np.maximum(out, 0.0, out=out)
            previous = out
        return activations

    def gradient_buffer(self, size: int) -> Array:
        """The buffer `[S, size, outputs]` into which the caller writes the gradient of the last activations."""
        return self._reused("gradients", size)[-1]

    def backward(
        self,
        inputs: Array,
        activations: list[Array],
        weight_gradients: list[Array],
        bias_gradients: list[Array],
        input_gradients: Array | None = None,
    ) -> None:
        """Fill the gradients of weights and biases from the gradient of the last activations in `gradient_buffer`.

        The activations are overwritten by their derivatives. `input_gradients`, `[S, B, inputs]`, is filled if it is
        given.
        """
        size = inputs.shape[-2]
        gradients = self._reused("gradients", size)
        if self._ones.shape[1] < size:
            self._ones = np.ones((1, size), np.float32)
        ones = self._ones[:, :size]
        for layer in reversed(range(len(self._weights))):
            gradient, activation = gradients[layer], activations[layer]
            if self._is_tanh:  # d tanh(z) / dz = 1 - tanh(z)^2
                np.multiply(activation, activation, out=activation)
                np.subtract(1.0, activation, out=activation)
                gradient *= activation
            else:
                gradient *= activation > 0.0
            before = activations[layer - 1] if layer > 0 else inputs
            np.matmul(gradient.swapaxes(-1, -2), before, out=weight_gradients[layer])
            np.matmul(ones, gradient, out=bias_gradients[layer])  # the sum over the batch as a product: faster
            if layer > 0:
                np.matmul(gradient, self._weights[layer], out=gradients[layer - 1])
            elif input_gradients is not None:
                np.matmul(gradient, self._weights[layer], out=input_gradients)

    def _reused(self, purpose: str, size: int) -> list[Array]:
        """Arrays `[S, size, outputs]`, one per layer, in memory that is kept between calls."""
        views = self._views.get((purpose, size))
        if views is None:
            stack = self._weights[0].shape[0]
            widths = [weight.shape[1] for weight in self._weights]
            memory = self._memory.get(purpose)
            if memory is None or memory[0].size < stack * size * widths[0]:
                memory = self._memory[purpose] = [np.empty(stack * size * width, np.float32) for width in widths]
                self._views.clear()
            views = [
                array[: stack * size * width].reshape(stack, size, width)
                for array, width in zip(memory, widths, strict=True)
            ]
            if len(self._views) > 32:  # sizes vary if environments spend rows on resets: keep only so many
                self._views.clear()
            self._views[purpose, size] = views
        return views
