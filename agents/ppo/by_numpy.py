"""The gradient of PPO's loss written out by hand in NumPy, for MLPs on a CPU; equal to autograd's up to rounding.

With small networks, most of torch's time is overhead. With large ones, this backend keeps the activations of a block of
rows in the cache closest to a core.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend, field_of
from hybridppo.agents.ppo.loss import STATISTICS, InputsOfMinibatch, Loss, LossInputs
from hybridppo.distributions.base import Backward
from hybridppo.networks.actors import Network, mlp_twin, twin_of
from hybridppo.networks.modes import linears
from hybridppo.networks.numpy_actors import FORBIDDEN, NumpyActivation, NumpyTwin
from hybridppo.networks.parameters import FlatParameters, place_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.threads import SideBySide, blas_threads, torch_threads

MOST_KEPT = 8
"""Most sets of buffers that hidden layers keep; the number of rows varies if environments spend rows on resets."""


class NumpyBackend(Backend):
    """Forward and backward passes in NumPy, of actor and critic together."""

    written_in: str | None = "agents/ppo/by_numpy.py"

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._flat_gradient = array_of(self._parameters.gradient)
        self._passes = [Passes(agent, self._flat_gradient)]
        self._block_size = block_size_of(agent)
        self._num_threads = 1
        self._threads = SideBySide("hybridppo-update")

    @staticmethod
    def supports(agent: Any) -> bool:
        """Whether loss, distribution and networks are known, and products are not rounded."""
        return not agent.has_own_loss and has_known_networks(agent)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """A context in which torch uses one thread, for the optimizer and the advantages.

        The blocks of a minibatch are divided among NumPy's threads; products of a block use one thread.
        """
        count = torch.get_num_threads()
        with ExitStack() as stack:
            if count > 1:
                stack.enter_context(torch_threads(1))
            if count > 1 and self._config.samples_per_minibatch > self._block_size:
                while len(self._passes) < count:
                    self._passes.append(Passes(self._agent, np.zeros_like(self._flat_gradient)))
                stack.enter_context(blas_threads(1))
                self._num_threads = count
            try:
                yield
            finally:
                self._num_threads = 1

    def _side_by_side(self, work: Callable[[int], None], count: int) -> None:
        if count == 1:  # without a detour in every minibatch
            work(0)
            return
        quietly = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # as in `PPO.update`, for each thread
        self._threads.run(quietly(work), count)

    def minibatches(self, epoch: Batch, sizes: Sequence[int]) -> Iterable[Any]:
        """As in the base, with arrays."""
        arrays = {name: array_of(column) for name, column in epoch.columns().items()}
        bounds = pairwise(accumulate(sizes, initial=0))
        return (_rows(arrays, start, end) for start, end in bounds)

    def gradient(self, minibatch: Any, clip_range: Any) -> Array:
        """Forward, the loss's gradient by hand, backward."""
        size, block_size = len(minibatch), self._block_size
        if size <= block_size:
            return np.array(self._passes[0].block(minibatch, clip_range, size), np.float32) / size
        gradient, total = np.zeros_like(self._flat_gradient), np.zeros(len(STATISTICS) - 1, np.float32)
        starts = range(0, size, block_size)
        for first in range(0, len(starts), self._num_threads):
            some = starts[first : first + self._num_threads]
            sums: list[Any] = [None] * len(some)

            def fill(number: int, some: Sequence[int] = some, sums: list[Any] = sums) -> None:
                block = _rows(vars(minibatch), some[number], some[number] + block_size)
                sums[number] = self._passes[number].block(block, clip_range, size)

            self._side_by_side(fill, len(some))
            # In their order, so that the sums are those of one thread.
            for number, sums_of_block in enumerate(sums):
                total += sums_of_block
                gradient += self._passes[number].gradient
        self._flat_gradient[:] = gradient
        return total / size

    def descend(self, clip_range: Any = None) -> float:
        """As in the base."""
        gradient, limit = self._flat_gradient, self._agent.current.max_grad_norm
        norm = math.sqrt(np.dot(gradient, gradient))
        if limit is not None and norm + 1e-6 > limit:
            gradient *= np.float32(limit / (norm + 1e-6))
        self._agent.optimizer.step(self._stepped)
        return norm

    def values(self, observations: Tensor) -> Tensor:
        """As in the base."""
        rows = array_of(observations)
        values = np.empty(len(rows), np.float32)
        blocks = [slice(start, start + self._block_size) for start in range(0, len(rows), self._block_size)]

        def some_of(number: int) -> None:
            for block in blocks[number :: self._num_threads]:
                self._passes[number].values(rows[block], values[block])

        self._side_by_side(some_of, self._num_threads)
        return torch.from_numpy(values)


def array_of(tensor: Tensor) -> Array:
    """The memory of a tensor as an array."""
    return tensor.detach().numpy()


def _rows(batch: dict[str, Array], start: int, end: int) -> Batch:
    """Consecutive rows of a batch of arrays, as views."""
    rows = Batch.__new__(Batch)  # without a call with keyword arguments, which a small minibatch would notice
    rows.__dict__ = {name: column[start:end] for name, column in batch.items()}
    return rows


class Passes:
    """Actor and critic as MLPs, and the loss, with their own buffers for activations, and a gradient.

    Several of them may work for one agent at the same time. They view the parameters in their present memory. If both
    networks see whole rows and have hidden layers of equal sizes, these are computed together.

    Args:
        agent: with the networks and the distribution.
        gradient: `[P]`, of all parameters; filled by `block`.
    """

    def __init__(self, agent: Any, gradient: Array) -> None:
        both = agent.actor_network, agent.critic_network
        self.gradient, gradient_of = gradient, views_of(agent.parameters, gradient)
        self._agent, self._distribution = agent, agent.distribution
        layers, twins = [linears(network) for network in both], [mlp_twin(network) for network in both]
        hidden, heads, activation = [own[:-1] for own in layers], [own[-1] for own in layers], twins[0].activation
        self._columns = [twin.columns for twin in twins]
        sizes = [[layer.out_features for layer in own] for own in hidden]
        are_alike = sizes[0] == sizes[1] and all(isinstance(seen, slice) for seen in self._columns)
        groups = [hidden] if are_alike else [[own] for own in hidden]
        self._hidden = [
            (HiddenLayers(*_arrays(array_of, group), activation), seen, _arrays(gradient_of, group))
            for group, seen in zip(groups, self._columns, strict=False)
        ]
        """Layers, the numbers of a row that they take as input, and the gradients of their weights and biases."""
        self._critic = HiddenLayers(*_arrays(array_of, hidden[1:]), activation)
        self._heads = [(array_of(head.weight), array_of(head.bias)[:, None]) for head in heads]
        self._of_heads = [(gradient_of(head.weight), gradient_of(head.bias)) for head in heads]
        self._mask_size, actor = twins[0].mask_size, agent.actor_network
        self._free, self.of_free = np.zeros((0, 1), np.float32), np.zeros(0, np.float32)
        if isinstance(actor, Network) and actor.log_std is not None:
            log_std = array_of(actor.log_std)
            self._free = log_std[:, None] if log_std.ndim == 1 else log_std
            self.of_free = gradient_of(actor.log_std)

    def values(self, rows: Array, out: Array) -> None:
        """Compute the critic's values `[B]` of rows `[B, obs]` into `out`."""
        weight, bias = self._heads[1]
        np.dot(self._critic.forward(rows[:, self._columns[1]])[-1][0], weight[0], out=out)
        out += bias[0]

    def forward(self, rows: Array) -> list[Array]:
        """The outputs `[outputs, B]` of actor and critic for rows `[B, obs]`."""
        self._inputs = [rows[:, columns] for _, columns, _ in self._hidden]
        pairs = zip(self._hidden, self._inputs, strict=True)
        self._activations = [layers.forward(inputs) for (layers, _, _), inputs in pairs]
        self._lasts = [last for activations in self._activations for last in activations[-1]]
        """The last activations `[B, L]` of actor and critic."""
        outputs = [np.dot(weight, last.T) for (weight, _), last in zip(self._heads, self._lasts, strict=True)]
        for own, (_, bias) in zip(outputs, self._heads, strict=True):
            own += bias
        return outputs

    def backward(self, *of_outputs: Array) -> None:
        """Fill the gradient, from those of the outputs of the last `forward`."""
        buffers = [each for layers, _, _ in self._hidden for each in layers.gradient_buffer(of_outputs[0].shape[1])]
        parts = zip(of_outputs, self._heads, self._of_heads, self._lasts, buffers, strict=True)
        for own, (weight, _), (of_weight, of_bias), last, of_last in parts:
            np.dot(own, last, out=of_weight)
            np.add.reduce(own, axis=1, out=of_bias)
            np.dot(own.T, weight, out=of_last)
        for (layers, _, gradients), inputs, activations in zip(
            self._hidden, self._inputs, self._activations, strict=True
        ):
            layers.backward(inputs, activations, *gradients)

    def probabilities(self, outputs: Array, rows: Any) -> tuple[Array, Array, Backward]:
        """As `Distribution.gradient`, of the actor's outputs, which are overwritten, and the actions of the rows."""
        if masks := self._mask_size:
            outputs[:masks][rows.observations.T[-masks:] == 0.0] = FORBIDDEN
        return self._distribution.gradient(outputs, self._free, rows.actions.T, self._lasts[0])

    def block(self, rows: Any, clip_range: float, size: int) -> tuple[np.float32, ...]:
        """Compute the gradient over some rows of a minibatch of `size`; return the sums of the statistics over them."""
        config, advantages = self._agent.current, rows.advantages
        outputs, (values,) = self.forward(rows.observations)
        log_prob, entropy, backward = self.probabilities(outputs, rows)
        log_ratio = log_prob - rows.log_probs
        ratio = np.exp(log_ratio)
        surrogate = ratio * advantages
        limit = rows.clip_range(clip_range)
        clipped_ratio = _clip(ratio, 1.0 - limit, 1.0 + limit)
        clipped_surrogate = clipped_ratio * advantages
        # d policy_loss / d log_prob = -ratio * advantage / B, unless clipping makes it 0
        d_log_prob = surrogate * (surrogate <= clipped_surrogate)
        d_log_prob *= np.float32(-1.0 / size)

        value_errors, d_values = self._value_errors(values, rows.returns, rows.values)
        d_values *= np.float32(config.value_coef / size)
        # The loss has -entropy_coef * mean(entropy).
        d_outputs = backward(d_log_prob, np.float32(-config.entropy_coef / size), self.of_free)
        self.backward(d_outputs, d_values[None])
        return (
            -np.add.reduce(np.minimum(surrogate, clipped_surrogate)),
            np.float32(0.5) * np.add.reduce(value_errors),
            np.add.reduce(entropy),
            np.add.reduce(np.expm1(log_ratio) - log_ratio),
            np.float32(np.count_nonzero(ratio != clipped_ratio)),
        )

    def _value_errors(self, values: Array, returns: Array, old_values: Array) -> tuple[Array, Array]:
        """Squared errors, clipped if configured, and half their derivatives, both `[B]`."""
        errors = values - returns
        squared = errors * errors
        limit = self._agent.current.clip_range_vf
        if limit is None:
            return squared, errors
        moved = values - old_values
        clipped_errors = old_values + _clip(moved, -limit, limit) - returns
        clipped_squared = clipped_errors * clipped_errors
        # The gradient is 0 if the value is clipped and its clipped error is the larger. (Within the limits, both errors
        # are equal only up to rounding.)
        passes = (np.abs(moved) <= limit) | (squared >= clipped_squared)
        return np.maximum(squared, clipped_squared), errors * passes


class NumpyNetworks(NumpyBackend):
    """NumPy for networks and probabilities, and autograd for the loss alone: for a custom loss, with MLPs.

    Autograd differentiates the loss by log-ratios, entropies and values, and by the actor's outputs if the loss reads
    them. The loss may also call the networks itself; the gradient of that is added.
    """

    written_in = None

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._passes = [Passes(agent, np.zeros_like(self._flat_gradient))]  # beside what autograd fills
        self._leaves: dict[str, Tensor] = {}
        """The inputs of the last loss by which autograd differentiates it."""
        self._of_probabilities: Backward
        """From the gradients of log-ratios and entropies, that of the actor's outputs."""

    @staticmethod
    def supports(agent: Any) -> bool:
        """Whether the networks are known, and a minibatch is small enough for NumPy to be faster."""
        return (
            agent.has_own_loss
            and not getattr(agent.actor_network, "explores", False)
            and has_known_networks(agent)
            and agent.config.samples_per_minibatch <= block_size_of(agent)
        )

    gradient = Backend.gradient

    def _inputs(self, minibatch: Any, steps: Any) -> LossInputs:
        (passes,) = self._passes
        outputs, (values,) = passes.forward(minibatch.observations)
        leaves = self._leaves = {"values": _leaf(values)}
        own_outputs = outputs.copy()

        def take(name: str) -> Any:
            if name != "outputs":
                return field_of(minibatch, name)
            leaf = leaves["outputs"] = _leaf(own_outputs.T)
            with torch.enable_grad():  # a loss may read them without gradients first
                is_finished = not isinstance(self._actor, Network)
                return leaf if is_finished else self._actor.finished(leaf, torch.from_numpy(minibatch.observations))

        inputs = InputsOfMinibatch.of(take, agent=self._agent)
        log_probs, entropies, self._of_probabilities = passes.probabilities(outputs, minibatch)
        leaves |= {"log_ratio": _leaf(log_probs - minibatch.log_probs), "entropy": _leaf(entropies)}
        vars(inputs).update(leaves)
        return inputs

    def _statistics(self, loss: Loss, inputs: LossInputs, clip_range: Any) -> Array:
        log_ratio, limit = inputs.log_ratio.detach().numpy(), np.asarray(clip_range, np.float32)
        ratio = np.exp(log_ratio)
        kl = np.add.reduce(np.expm1(log_ratio) - log_ratio) / len(ratio)
        clipped = np.count_nonzero(np.abs(ratio - 1.0) > limit) / len(ratio)
        return np.array((loss.policy.item(), loss.value.item(), loss.entropy.item(), kl, clipped), np.float32)

    def _backward(self, total: Tensor) -> None:
        super()._backward(total)
        (passes,) = self._passes
        # No gradient: the loss does not depend on this input.
        nothing = np.zeros(len(self._leaves["values"]), np.float32)
        of = {name: nothing if leaf.grad is None else leaf.grad.numpy() for name, leaf in self._leaves.items()}
        d_outputs = self._of_probabilities(of["log_ratio"], of["entropy"], passes.of_free)
        if "outputs" in of:
            d_outputs = d_outputs + of["outputs"].T
        passes.backward(d_outputs, of["values"][None])
        self._flat_gradient += passes.gradient


def _leaf(array: Array) -> Tensor:
    """A tensor with the memory of an array, by which autograd differentiates."""
    return torch.from_numpy(array).requires_grad_()


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
        self._kept: dict[tuple[str, int], list[Array]] = {}

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
        self, inputs: Array, activations: list[Array], weight_gradients: list[Array], bias_gradients: list[Array]
    ) -> None:
        """Fill the gradients of weights and biases from the gradient of the last activations in `gradient_buffer`.

        The activations are overwritten by their derivatives.
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

    def _reused(self, purpose: str, size: int) -> list[Array]:
        """Arrays `[S, size, outputs]`, one per layer, which are kept between calls."""
        arrays = self._kept.get((purpose, size))
        if arrays is None:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            stack = self._weights[0].shape[0]
            arrays = [np.empty((stack, size, weight.shape[1]), np.float32) for weight in self._weights]
            self._kept[purpose, size] = arrays
        return arrays


def has_known_networks(agent: Any) -> bool:
    """Whether actor and critic are MLPs on a CPU that share no layer; their inputs and sizes may differ."""
    actor, critic = agent.actor_network, agent.critic_network
    twins = [twin for twin in (twin_of(actor), twin_of(critic)) if isinstance(twin, NumpyTwin)]
    return (
        agent.config.recurrent is None
        and agent.config.precision == "fp32"
        and agent.distribution.has_gradient
        and {*actor.parameters()}.isdisjoint(critic.parameters())
        and len(twins) == 2
        and all(twin.columns is not None for twin in twins)
        and twins[0].activation == twins[1].activation
        and agent.parameters.values.is_cpu
        and all(len(linears(network)) > 1 for network in (actor, critic))
    )


def block_size_of(agent: Any) -> int:
    """The number of rows whose activations fit into the cache closest to a core: a megabyte."""
    networks = agent.actor_network, agent.critic_network
    widest = max(layer.out_features for network in networks for layer in linears(network)[:-1])
    return max(32, 2**20 // (4 * 2 * widest))


def views_of(parameters: FlatParameters, flat: Array) -> Callable[[Tensor], Array]:
    """A function that returns the part of `flat`, laid out as the parameters, that belongs to a parameter."""

    def view_of(parameter: Tensor) -> Array:
        start = place_of(parameter, parameters.values)
        return flat[start : start + parameter.numel()].reshape(parameter.shape)

    return view_of


def _arrays(
    array_for: Callable[[Tensor], Array], networks: Sequence[Sequence[nn.Linear]]
) -> tuple[list[Array], list[Array]]:
    """Arrays for weights `[S, outputs, inputs]` and biases `[S, 1, outputs]` of one or two networks of equal layers."""
    layers = list(zip(*networks, strict=True))
    weights = [stacked(array_for, [network.weight for network in layer]) for layer in layers]
    biases = [stacked(array_for, [network.bias for network in layer])[:, None] for layer in layers]
    return weights, biases


def _clip(values: Array, low: Any, high: Any) -> Array:
    """`np.clip` without its checks, which cost more than its work at these sizes."""
    return np.minimum(np.maximum(values, np.float32(low)), np.float32(high))


def stacked(array_for: Callable[[Tensor], Array], tensors: Sequence[Tensor]) -> Array:
    """`[S, *shape]` for one or two tensors of equal shape, without a copy: they are in one buffer, at some distance."""
    first, last = array_for(tensors[0]), array_for(tensors[-1])
    distance = last.ctypes.data - first.ctypes.data
    return as_strided(first, (len(tensors), *first.shape), (distance, *first.strides))
