"""Multilayer perceptrons in NumPy, on the very memory of torch's parameters: no copy, no dispatcher.

For small networks on a CPU most of torch's time is overhead, and its tanh is slow on some machines. These passes do
the same arithmetic as `networks.MLP` and the backward pass of autograd, to rounding, into arrays that are reused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks import MLP, GaussianActor

Array = NDArray[Any]

ACTIVATIONS = (nn.Tanh, nn.ReLU)


def is_supported(network: nn.Module) -> bool:
    """Whether these passes can stand in for the network's own: a plain MLP on the CPU, tanh or ReLU."""
    mlp = network.mean if isinstance(network, GaussianActor) else network
    if type(mlp) is not MLP or type(network) not in (MLP, GaussianActor) or len(mlp) < 3:
        return False
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    return (
        not has_hooks
        and all(parameter.device.type == "cpu" for parameter in network.parameters())
        and all(isinstance(activation, ACTIVATIONS) for activation in list(mlp)[1::2])
    )


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a supported network, first to last."""
    mlp = network.mean if isinstance(network, GaussianActor) else network
    assert isinstance(mlp, MLP)
    return [layer for layer in mlp if isinstance(layer, nn.Linear)]


def activation_of(network: nn.Module) -> type[nn.Module]:
    """The activation of a supported network."""
    mlp = network.mean if isinstance(network, GaussianActor) else network
    assert isinstance(mlp, MLP)
    return type(mlp[1])


def array_of(tensor: Tensor) -> Array:
    """The tensor's own memory as an array."""
    array: Array = tensor.detach().numpy()
    return array


class HiddenLayers:
    """The hidden layers of `S` networks of equal sizes, all at once.

    Args:
        weights: one `[S, outputs, inputs]` per layer.
        biases: one `[S, 1, outputs]` per layer.
        activation: `nn.Tanh` or `nn.ReLU`.
    """

    def __init__(self, weights: Sequence[Array], biases: Sequence[Array], activation: type[nn.Module]) -> None:
        self._weights, self._biases = weights, biases
        self._transposed = [weight.swapaxes(-1, -2) for weight in weights]
        self._is_tanh = activation is nn.Tanh
        self._memory: dict[str, list[Array]] = {}
        self._views: dict[tuple[str, int], list[Array]] = {}

    def forward(self, inputs: Array) -> list[Array]:
        """Activations `[S, B, outputs]` of every layer for `inputs` `[B, inputs]`; reused by the next call."""
        activations = self._reused("activations", len(inputs))
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
        """`[S, size, outputs]`: where the caller writes the gradient of the last activations for `backward`."""
        return self._reused("gradients", size)[-1]

    def backward(
        self, inputs: Array, activations: list[Array], weight_gradients: list[Array], bias_gradients: list[Array]
    ) -> None:
        """Fill the gradients of weights and biases, from that of the last activations in `gradient_buffer`."""
        size = len(inputs)
        gradients, scratch = self._reused("gradients", size), self._reused("scratch", size)
        ones = np.ones((1, size), dtype=np.float32)
        for layer in reversed(range(len(self._weights))):
            gradient, slope, activation = gradients[layer], scratch[layer], activations[layer]
            if self._is_tanh:  # d tanh(z) / dz = 1 - tanh(z)^2
                np.multiply(activation, activation, out=slope)
                np.subtract(1.0, slope, out=slope)
                gradient *= slope
            else:
                gradient *= activation > 0.0
            before = activations[layer - 1] if layer > 0 else inputs
            np.matmul(gradient.swapaxes(-1, -2), before, out=weight_gradients[layer])
            np.matmul(ones, gradient, out=bias_gradients[layer])  # the sum over the batch, as BLAS does it
            if layer > 0:
                np.matmul(gradient, self._weights[layer], out=gradients[layer - 1])

    def _reused(self, purpose: str, size: int) -> list[Array]:
        """Arrays `[S, size, outputs]`, one per layer, in memory kept from call to call."""
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
            if len(self._views) > 32:  # sizes vary where environments spend rows on resets: keep no more than these
                self._views.clear()
            self._views[purpose, size] = views
        return views


class NumpyActor:
    """A supported actor as a sampler sees it: host arrays in, host arrays out, parameters where torch has them."""

    def __init__(self, network: nn.Module, version: int = 0) -> None:
        self.version = version
        *hidden, head = linears(network)
        weights = [array_of(layer.weight)[None] for layer in hidden]
        biases = [array_of(layer.bias)[None, None] for layer in hidden]
        self._hidden = HiddenLayers(weights, biases, activation_of(network))
        self._head_weight, self._head_bias = array_of(head.weight).T, array_of(head.bias)
        self._log_std = array_of(network.log_std) if isinstance(network, GaussianActor) else None
        self._size = len(self._head_bias)
        self._outputs = np.empty((0, 0), np.float32)

    def __call__(self, observations: Array) -> Array:
        """`[N, obs] -> [N, outputs]`; the result is reused by the next call."""
        last = self._hidden.forward(observations)[-1][0]
        if len(self._outputs) != len(observations):
            width = self._size * (1 if self._log_std is None else 2)
            self._outputs = np.empty((len(observations), width), np.float32)
        outputs = self._outputs
        if self._log_std is None:
            np.matmul(last, self._head_weight, out=outputs)
            outputs += self._head_bias
        else:
            np.matmul(last, self._head_weight, out=outputs[:, : self._size])
            outputs[:, : self._size] += self._head_bias
            outputs[:, self._size :] = self._log_std
        return outputs


def stacked(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Array]:
    """Pairs of equal shape in one buffer, `[2, *shape]` each, without a copy."""
    return [_stack(a, b) for a, b in zip(first, second, strict=True)]


def _stack(first: Tensor, second: Tensor) -> Array:
    array = array_of(first)
    if first.shape != second.shape or first.stride() != second.stride():
        raise ValueError(f"cannot stack {tuple(first.shape)} and {tuple(second.shape)}")
    distance = second.data_ptr() - first.data_ptr()
    return as_strided(array, (2, *array.shape), (distance, *array.strides))
