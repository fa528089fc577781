"""Composite actions: each part is drawn from its own distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import Self

from hybridppo.distributions.base import Backward, Distribution, as_dtype, namespace_of, zeros
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.rows import slices

if TYPE_CHECKING:
    from torch import Tensor


class Factor(NamedTuple):
    """An independent part of an action, and its slices of the whole."""

    distribution: Distribution
    outputs: slice
    """Its outputs of the network."""
    free: slice
    """Its outputs that depend on no observation."""
    noise: slice
    actions: slice

    def own(self, outputs: Any) -> Any:
        """Its outputs, `[..., output_size]`."""
        network = outputs[..., self.outputs]
        if not self.distribution.free_size:
            return network
        return namespace_of(outputs).concatenate((network, outputs[..., self.free]), -1)

    def chosen(self, actions: Any) -> Any:
        """Its actions, `[..., *action_shape]`, in their type."""
        own = actions[..., self.actions].reshape(*actions.shape[:-1], *self.distribution.action_shape)
        return as_dtype(own, self.distribution.action_dtype)


class JointDistribution(Distribution):
    """Independent parts, whose log-probabilities and entropies add.

    Outputs are the network's outputs for each part, maskable logits first, followed by the outputs that depend on no
    observation. Actions are one flat row: whole numbers, or float32 if any part is float32.

    Args:
        parts: distributions of the parts, which may be joint distributions themselves.
        join: makes the environment's action from the environment's actions of all parts.
    """

    def __init__(self, parts: Sequence[Distribution], join: Callable[[Sequence[Any]], Any]) -> None:
        self.parts, self.join = list(parts), join
        leaves = [leaf for part in parts for leaf in leaves_of(part)]
        self.output_size = sum(leaf.output_size for leaf in leaves)
        self.free_size = sum(leaf.free_size for leaf in leaves)
        self.mask_size = sum(leaf.mask_size for leaf in leaves)
        self.noise_size = sum(leaf.noise_size for leaf in leaves)
        self.words_per_number = max(leaf.words_per_number for leaf in leaves)
        widths = [int(np.prod(leaf.action_shape)) for leaf in leaves]
        self.action_shape = (sum(widths),)
        self.action_dtype = widest_dtype(leaves)
        sizes = [leaf.output_size - leaf.free_size for leaf in leaves]
        order = sorted(range(len(leaves)), key=lambda i: leaves[i].mask_size == 0)
        outputs = dict(zip(order, slices([sizes[i] for i in order]), strict=True))
        free = slices([leaf.free_size for leaf in leaves], first=sum(sizes))
        noise, actions = slices([leaf.noise_size for leaf in leaves]), slices(widths)
        self.factors = [Factor(leaf, outputs[i], free[i], noise[i], actions[i]) for i, leaf in enumerate(leaves)]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """The noise of all parts, `[*shape, noise]`."""
        return np.concatenate([f.distribution.draw_noise(generator, shape) for f in self.factors], axis=-1)

    def noise_of(self, first: Tensor, second: Tensor) -> Tensor:  # noqa: D102 - as in the base
        import torch

        parts = [f.distribution.noise_of(first[..., f.noise], second[..., f.noise]) for f in self.factors]
        return torch.cat(parts, -1)

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Draw each part from its slice of outputs and noise."""
        return self._joined(outputs, [f.distribution.sample(f.own(outputs), noise[..., f.noise]) for f in self.factors])

    def mode(self, outputs: Any) -> Any:
        """The deterministic action of each part."""
        return self._joined(outputs, [f.distribution.mode(f.own(outputs)) for f in self.factors])

    def _joined(self, outputs: Any, chosen: Sequence[Any]) -> Any:
        """The actions of all parts as one row."""
        actions = zeros(outputs, (*outputs.shape[:-1], *self.action_shape), self.action_dtype)
        for f, own in zip(self.factors, chosen, strict=True):
            actions[..., f.actions] = own.reshape(*outputs.shape[:-1], -1)
        return actions

    def to_env(self, actions: Any) -> Any:
        """A container of arrays `[N, ...]`, as gymnasium's vector environments take it."""
        found, start = [], 0
        for part in self.parts:
            end = start + int(np.prod(part.action_shape))
            own = actions[..., start:end].reshape(*actions.shape[:-1], *part.action_shape)
            found.append(part.to_env(as_dtype(own, part.action_dtype)))
            start = end
        return self.join(found)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the parts."""
        found = [f.distribution.log_prob_and_entropy(f.own(outputs), f.chosen(actions)) for f in self.factors]
        log_probs, entropies = zip(*found, strict=True)
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:
        """A sum over the parts."""
        found = [f.distribution.kl(f.own(old_outputs), f.own(new_outputs)) for f in self.factors]
        return sum(found[1:], found[0])

    def gradient(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array, Backward]:
        """As in the base: sums over the parts, each with its own outputs."""
        num_network = self.output_size - self.free_size
        frees = [slice(f.free.start - num_network, f.free.stop - num_network) for f in self.factors]
        found = []
        for f, own_free in zip(self.factors, frees, strict=True):
            own = actions[f.actions] if f.distribution.action_shape else actions[f.actions][0]
            found.append(f.distribution.gradient(outputs[f.outputs], free[own_free], own, last))

        def backward(d_log_prob: Array, d_entropy: Any, d_free: Array) -> Array:
            d_outputs = np.empty((num_network, len(d_log_prob)), np.float32)
            for f, own_free, (_, _, backward_of_part) in zip(self.factors, frees, found, strict=True):
                d_outputs[f.outputs] = backward_of_part(d_log_prob, d_entropy, d_free[own_free])
            return d_outputs

        log_prob, entropy = np.zeros(outputs.shape[1], np.float32), np.zeros(outputs.shape[1], np.float32)
        for own_log_prob, own_entropy, _ in found:
            log_prob += own_log_prob
            entropy += own_entropy
        return log_prob, entropy, backward

    def on(self, device: Any) -> Self:  # noqa: D102 - as in the base
        return type(self)([part.on(device) for part in self.parts], self.join)


def leaves_of(distribution: Distribution) -> list[Distribution]:
    """The independent parts of a distribution in the order of its actions; itself if it has no parts."""
    if isinstance(distribution, JointDistribution):
        return [factor.distribution for factor in distribution.factors]
    return [distribution]


def widest_dtype(distributions: Sequence[Distribution]) -> Any:
    """The type of a row with the actions of several distributions."""
    are_choices = all(np.issubdtype(each.action_dtype, np.integer) for each in distributions)
    return np.int64 if are_choices else np.float32
