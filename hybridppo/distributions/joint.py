"""Composite actions: each part is drawn from its own distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.spaces.arrays import Array

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


class JointDistribution:
    """Independent parts, whose log-probabilities and entropies add.

    Outputs are the network's outputs for each part, maskable logits first, followed by the outputs that depend on no
    observation. Actions are one flat row: whole numbers, or float32 if any part is float32.

    Args:
        parts: distributions of the parts, which may be joint distributions themselves.
        join: makes the environment's action from the environment's actions of all parts.
    """

    def __init__(self, parts: Sequence[Distribution], join: Callable[[Sequence[Any]], Any]) -> None:
        self.parts, self.join = parts, join
        leaves = [leaf for part in parts for leaf in leaves_of(part)]
        self.output_size = sum(leaf.output_size for leaf in leaves)
        self.free_size = sum(leaf.free_size for leaf in leaves)
        self.mask_size = sum(leaf.mask_size for leaf in leaves)
        self.noise_size = sum(leaf.noise_size for leaf in leaves)
        widths = [int(np.prod(leaf.action_shape)) for leaf in leaves]
        self.action_shape: tuple[int, ...] = (sum(widths),)
        self.action_dtype: Any = (
            np.int64 if all(np.issubdtype(leaf.action_dtype, np.integer) for leaf in leaves) else np.float32
        )
        sizes = [leaf.output_size - leaf.free_size for leaf in leaves]
        order = sorted(range(len(leaves)), key=lambda i: leaves[i].mask_size == 0)
        outputs = dict(zip(order, _slices([sizes[i] for i in order]), strict=True))
        free = _slices([leaf.free_size for leaf in leaves], first=sum(sizes))
        noise, actions = _slices([leaf.noise_size for leaf in leaves]), _slices(widths)
        self.factors = [Factor(leaf, outputs[i], free[i], noise[i], actions[i]) for i, leaf in enumerate(leaves)]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """The noise of all parts, `[*shape, noise]`."""
        return np.concatenate([f.distribution.draw_noise(generator, shape) for f in self.factors], axis=-1)

    def sample(self, outputs: Array, noise: Array) -> Array:
        """Draw each part from its slice of outputs and noise."""
        return self._joined(outputs, lambda f, own: f.distribution.sample(own, noise[..., f.noise]))

    def mode(self, outputs: Array) -> Array:
        """The most probable action of each part."""
        return self._joined(outputs, lambda f, own: f.distribution.mode(own))

    def _joined(self, outputs: Array, choose: Callable[[Factor, Array], Array]) -> Array:
        """The actions that are chosen for each part from its own outputs, as one row."""
        actions = np.empty((*outputs.shape[:-1], *self.action_shape), self.action_dtype)
        for f in self.factors:
            chosen = choose(f, outputs_of(f, outputs, np.concatenate))
            actions[..., f.actions] = chosen.reshape(*outputs.shape[:-1], -1)
        return actions

    def to_env(self, actions: Array) -> Any:
        """A container of arrays `[N, ...]`, as gymnasium's vector environments take it."""
        parts = [part.to_env(own.astype(part.action_dtype, copy=False)) for part, own in self.divided(actions)]
        return self.join(parts)

    def divided(self, actions: Any) -> Iterator[tuple[Distribution, Any]]:
        """Each of `parts` with its own actions, of arrays or tensors."""
        start = 0
        for part in self.parts:
            end = start + int(np.prod(part.action_shape))
            yield part, actions[..., start:end].reshape(*actions.shape[:-1], *part.action_shape)
            start = end

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """A sum over the parts."""
        found = [part.log_prob(own, chosen) for part, own, chosen in self._by_part(outputs, actions)]
        return sum(found[1:], found[0])

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the parts."""
        found = [part.log_prob_and_entropy(own, chosen) for part, own, chosen in self._by_part(outputs, actions)]
        log_probs, entropies = zip(*found, strict=True)
        return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])

    def _by_part(self, outputs: Tensor, actions: Tensor) -> Iterator[tuple[Distribution, Tensor, Tensor]]:
        """Each part with its own outputs and actions."""
        import torch

        for f in self.factors:
            own = actions[..., f.actions].reshape(*actions.shape[:-1], *f.distribution.action_shape)
            yield f.distribution, outputs_of(f, outputs, torch.cat), typed(own, f.distribution)


def leaves_of(distribution: Distribution) -> list[Distribution]:
    """The independent parts of a distribution in the order of its actions; itself if it has no parts."""
    if isinstance(distribution, JointDistribution):
        return [factor.distribution for factor in distribution.factors]
    return [distribution]


def outputs_of(factor: Factor, outputs: Any, concatenate: Any) -> Any:
    """A part's own outputs, `[..., output_size]`."""
    network = outputs[..., factor.outputs]
    return concatenate((network, outputs[..., factor.free]), -1) if factor.distribution.free_size else network


def typed(actions: Tensor, distribution: Distribution) -> Tensor:
    """Actions in the type of a part."""
    return actions.long() if np.issubdtype(distribution.action_dtype, np.integer) else actions.float()


def _slices(sizes: Sequence[int], first: int = 0) -> list[slice]:
    """Neighbouring slices of these sizes."""
    ends = list(accumulate(sizes, initial=first))
    return [slice(start, end) for start, end in pairwise(ends)]
