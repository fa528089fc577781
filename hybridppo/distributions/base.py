"""The interface of an action distribution, with a default for all but four methods; and random words for its noise.

An actor maps observations `[..., obs]` to the distribution's parameters, its `outputs` `[..., output_size]`. Actions
are drawn on the host in NumPy, once per environment step, because a torch operation has more overhead than work there.
Probabilities and entropies are batched torch operations. No `torch.distributions` object is made: at these sizes it
costs more than the network.

The noise that makes actions random is drawn for a whole rollout at once and handed in, so that an action depends on
nothing but the outputs and its slice of the noise: not on the device, nor on the sampler. On a device, noise is made
from random words that follow from a key and a counter alone (Philox4x32-10, Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from hybridppo.errors import ConfigurationError
from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Backward = Callable[[Array, Any, Array], Array]
"""From the gradients of log-probabilities `[B]` and of entropies, `[B]` or one number for all, the gradient of the
network's outputs, `[n, B]`.

That of the outputs that depend on no observation is written into the last argument.
"""


class Distribution:
    """The distribution of the actions in an action space. A subclass defines `sample`, `mode`, and probabilities.

    Probabilities are `log_prob` and `entropy`, or `log_prob_and_entropy`.

    An actor's outputs `[..., output_size]` are its network's outputs, `[..., output_size - free_size]`, followed by
    parameters that depend on no observation. The first `mask_size` outputs are logits, which a mask may forbid.
    """

    output_size: int
    """Size of an actor's output for one observation."""
    free_size: int = 0
    """Number of outputs, the last ones, that depend on no observation: they are parameters of the actor."""
    free_init: Sequence[float] | None = None
    """Initial values of these parameters; None for `log_std_init` of the configuration."""
    bias_init: Sequence[float] | None = None
    """Initial biases of the network's last layer; None for those of the configuration."""
    mask_size: int = 0
    """Number of outputs, the first ones, that are logits: the length of a mask."""
    noise_size: int
    """Random numbers that one action takes."""
    action_shape: tuple[int, ...]
    action_dtype: Any = np.float32
    words_per_number: int = 2
    """Random words that one number of the noise takes on a device."""
    explores: ClassVar[bool] = False
    """Whether the actor applies the noise (`StateDependentGaussian`)."""
    has_gradient: bool = True
    """Whether `gradient` is defined for these parameters."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass with other probabilities does not inherit the gradient of its base; autograd computes it."""
        super().__init_subclass__(**options)
        changes = {"log_prob", "entropy", "log_prob_and_entropy"} & vars(cls).keys()
        if changes and "gradient" not in vars(cls):
            cls.gradient = Distribution.gradient  # type: ignore[method-assign]

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise for a block of actions, `[*shape, noise_size]`: standard normal, unless a subclass draws another."""
        return generator.standard_normal((*shape, self.noise_size), dtype=np.float32)

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Random actions `[..., *action_shape]` for `outputs` and noise of the same leading shape."""
        raise NotImplementedError

    def mode(self, outputs: Any) -> Any:
        """The deterministic actions."""
        raise NotImplementedError

    def to_env(self, actions: Any) -> Any:
        """The actions `[N, *action_shape]` in the form that `step` of a vector environment takes."""
        return actions

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The actions' log-probabilities `[...]`."""
        return self.log_prob_and_entropy(outputs, actions)[0]

    def entropy(self, outputs: Tensor) -> Tensor:
        """The entropies in nats `[...]`."""
        return self.log_prob_and_entropy(outputs, self.mode(outputs))[1]

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The results of `log_prob`, to the last bit, and of `entropy`."""
        return self.log_prob(outputs, actions), self.entropy(outputs)

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:
        """The divergences `KL(old, new)` in nats, `[...]`, in closed form.

        Raises:
            ConfigurationError: if the distribution has no closed form.
        """
        raise ConfigurationError(
            "this distribution has no closed form of the divergence (kl): estimate it from the log-ratios of actions, "
            "as approx_kl does (hybridppo.agents.ppo.loss)"
        )

    def gradient(self, outputs: Array, free: Array, actions: Array, last: Array) -> tuple[Array, Array, Backward]:
        """Log-probabilities and entropies `[B]` in NumPy, and a function for their gradient; by autograd by default.

        Arrays are transposed, which makes sums over few outputs far faster.

        Args:
            outputs: the network's outputs, `[n, B]`; may be overwritten.
            free: the outputs that do not depend on observations, `[d, 1]`; with state-dependent noise, `[d, L]`.
            actions: `[B]`, or `[*action, B]`.
            last: the input of the last layer, `[B, L]`.
        """
        import torch

        # [n, B] and [d, 1] -> [B, n + d]
        rows = np.concatenate((outputs, np.broadcast_to(free, (len(free), outputs.shape[1])))).T
        inputs = torch.from_numpy(rows).requires_grad_()
        with torch.enable_grad():  # a thread of its own has another mode
            log_prob, entropy = self.log_prob_and_entropy(inputs, torch.from_numpy(actions.T))

        def backward(d_log_prob: Array, d_entropy: Any, d_free: Array) -> Array:
            total = log_prob.dot(torch.from_numpy(d_log_prob))
            if d_entropy.ndim or d_entropy:
                total = total + (torch.as_tensor(d_entropy) * entropy).sum()
            found: Array = torch.autograd.grad(total, inputs)[0].numpy().T
            d_free[:] = found[len(outputs) :].sum(1)
            return found[: len(outputs)]

        return log_prob.detach().numpy(), entropy.detach().numpy(), backward

    # Noise that is kept for several steps

    def noise_row(self, step: int) -> int:
        """The row of noise that a step of a rollout uses: its own, unless a subclass keeps noise for several steps."""
        return step

    def noise_rows(self, num_steps: int) -> int:
        """Number of rows of noise for `num_steps` steps."""
        return self.noise_row(num_steps - 1) + 1 if num_steps else 0

    # On a device

    def on(self, device: Any) -> Self:
        """A copy whose `sample`, `mode` and `to_env` take tensors on this device: its arrays become tensors.

        Raises:
            EnvError: if its actions cannot be drawn on tensors.
        """
        import torch

        found = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                with np.errstate(over="ignore"):  # a bound that float32 cannot hold becomes infinite
                    array = value.astype(np.float32 if value.dtype.kind == "f" else np.int64)
                setattr(found, name, torch.as_tensor(array, device=device))
            elif isinstance(value, Distribution):
                setattr(found, name, value.on(device))
        return found

    @property
    def num_words(self) -> int:
        """Random words for the noise of one action on a device."""
        return self.noise_size * self.words_per_number

    def noise_from(self, words: Tensor) -> Tensor:
        """The noise of actions, `[..., noise_size]`, from random 32-bit words, `[..., num_words]` of int64."""
        import torch

        # The midpoints of 2^23 equal parts of [0, 1]: float32 holds them exactly, and they exclude 0 and 1.
        uniforms = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
        return self.noise_of(uniforms[..., : self.noise_size], uniforms[..., -self.noise_size :])

    def noise_of(self, first: Tensor, second: Tensor) -> Tensor:
        """Noise from uniform numbers: standard normal (Box and Muller, 1958). With one word, both are the same."""
        import torch

        return (-2.0 * first.log()).sqrt() * (2.0 * torch.pi * second).cos()


def namespace_of(array: Any) -> Any:
    """NumPy for an array, torch for a tensor: functions that both have under one name."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def as_dtype(array: Any, dtype: Any) -> Any:
    """An array in the type of a space; a tensor in the type that stands for it on a device."""
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    return array.long() if np.issubdtype(dtype, np.integer) else array.float()


def zeros(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Zeros of this shape: an array of the type, or a tensor on the device of `like`."""
    return np.zeros(shape, dtype) if isinstance(like, np.ndarray) else as_dtype(like.new_zeros(shape), dtype)


class Drawing:
    """Draws random actions step by step, with noise drawn when it is due.

    Args:
        distribution: the action distribution.
        generator: draws the noise.
        num_envs: `N`.
    """

    def __init__(self, distribution: Distribution, generator: np.random.Generator, num_envs: int) -> None:
        self._distribution, self._generator, self._shape = distribution, generator, (num_envs,)
        self._step, self._row = 0, -1

    def actions(self, actor: Any, observations: Array) -> Any:
        """Actions for the next observations, `[N, *row]`."""
        distribution, row = self._distribution, self._distribution.noise_row(self._step)
        if row != self._row:
            self._noise = distribution.draw_noise(self._generator, self._shape)
            if distribution.explores:
                actor.explore(self._noise)
        self._step, self._row = self._step + 1, row
        outputs = actor(observations)
        return distribution.sample(outputs, actor.perturbation if distribution.explores else self._noise)


def philox(key_low: Any, key_high: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 bits from a counter of four, `a` to `d`, and a key of two.

    Words are integers of Python or Numba, or arrays or tensors of int64 whose shapes broadcast.
    """
    for _ in range(10):
        # The product of two words may exceed a signed 64-bit integer: it wraps, and the masks take its bits.
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = ((right >> 32) & 0xFFFFFFFF) ^ b ^ key_low, ((left >> 32) & 0xFFFFFFFF) ^ d ^ key_high
        b, d = right & 0xFFFFFFFF, left & 0xFFFFFFFF
        key_low, key_high = (key_low + 0x9E3779B9) & 0xFFFFFFFF, (key_high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def words(
    key: tuple[int, int], block: int, *, num_steps: int, num_envs: int, num_words: int, device: torch.device, first: int
) -> Tensor:
    """A block of random words, `[num_steps, num_envs, num_words]` of int64, each from 0 to `2**32 - 1`.

    A word does not depend on the size of the block.

    Args:
        key: two words.
        block: number of the block.
        num_steps: number of rows.
        num_envs: number of columns.
        num_words: words for each row and column.
        device: where they are made.
        first: number of the first column.
    """
    import torch

    def count(size: int, start: int = 0) -> Tensor:
        return torch.arange(start, start + size, device=device)

    steps, envs, groups = count(num_steps)[:, None, None], count(num_envs, first)[:, None], count(-(-num_words // 4))
    four = philox(*key, groups, envs, steps, torch.full_like(groups, block & 0xFFFFFFFF))
    # four words of [T, N, groups] -> [T, N, 4 * groups]
    return torch.stack(four, -1).flatten(-2)[..., :num_words]
