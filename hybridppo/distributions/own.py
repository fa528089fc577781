"""A distribution of one's own, written in torch alone, for `hybridppo.train(..., action_distribution=...)`.

    class Laplace(hybridppo.ActionDistribution):
        def __init__(self, space):
            super().__init__(space)
            self.output_size = self.size

        def sample(self, outputs, noise):
            uniform = torch.special.ndtr(noise) - 0.5
            return outputs - uniform.sign() * (-2.0 * uniform.abs()).log1p()

        def mode(self, outputs):
            return outputs

        def log_prob(self, outputs, actions):
            return -((actions - outputs).abs() + math.log(2.0)).sum(-1)

`OwnDistribution` makes a distribution of the library from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.errors import ConfigurationError, HybridPPOError, shown, shown_error, shown_name

if TYPE_CHECKING:
    from torch import Tensor


class ActionDistribution:
    """The base class of a distribution of one's own; it sets `output_size`, and defines `sample`, `mode`, `log_prob`.

    Methods take tensors with any leading shape `[...]`, on any device. A row of a batch must not depend on other rows.
    Methods draw no random numbers: `sample` gets them, so that seeds, workers and resumed runs give the same actions.
    Tensors that are attributes are moved to the device of the outputs.

    Args:
        space: the action space of one environment.
    """

    size: int
    """Number of numbers in an action."""
    output_size: int
    """Number of the actor's outputs, for one observation, with those of `free`."""
    noise_size: int
    """Standard normal numbers that one action takes; by default one for each number of an action.
    `torch.special.ndtr(noise)` is uniform."""
    free: Iterable[float] = ()
    """Initial values of the last outputs, if they depend on no observation, as log standard deviations often do."""
    bias: Iterable[float] | None = None
    """Initial values of the other outputs; None for 0."""
    mask_size: int = 0
    """Number of outputs, the first ones, that are logits of choices, which an action mask may exclude."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.size = math.prod(space.shape or ())
        self.noise_size = self.size

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Random actions from outputs `[..., output_size]` and noise `[..., noise_size]`.

        Those of a `Box` are flat, `[..., size]`; of a `Discrete` they are numbers from 0, `[...]`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample(outputs, noise)")

    def mode(self, outputs: Tensor) -> Tensor:
        """The deterministic actions, in the shape of `sample`."""
        raise NotImplementedError(f"{type(self).__name__} must define mode(outputs)")

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """The log-probabilities of actions, `[...]`; autograd differentiates them."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(outputs, actions)")

    def entropy(self, outputs: Tensor) -> Tensor | None:
        """The entropies in nats, `[...]`; None to estimate them from the log-probabilities of the sampled actions."""

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor | None:
        """The divergences `KL(old, new)` in nats, `[...]`; None if there is no closed form."""

    def to_env(self, actions: Tensor) -> Tensor:
        """The actions in units of the environment, which are then clipped to the bounds of a `Box`."""
        return actions


ROWS = 32
"""Arrays are filled up to a multiple of so many rows. Torch may round numbers otherwise that do not fill a vector
register, and an action must not depend on how many environments its process has."""
MakeDistribution = Callable[[Any], ActionDistribution]
"""A subclass of `ActionDistribution`, or a function of an action space that makes an object of one."""


class OwnDistribution(Distribution):
    """The distribution of the library that an `ActionDistribution` makes.

    Sampling calls it with arrays as tensors, without gradient. Autograd differentiates it down to the outputs.

    Args:
        make: the user's subclass, or a function of the space that returns an object of one.
        space: the action space of one environment.
        usual: the library's distribution in the space, which knows the form of actions.

    Raises:
        ConfigurationError: if it is neither, or fails in a trial.
    """

    def __init__(self, make: MakeDistribution, space: gym.Space[Any], usual: Distribution) -> None:
        self._usual, self._name = usual, shown_name(make)
        self.action_shape, self.action_dtype = usual.action_shape, usual.action_dtype
        self._copies: dict[Any, ActionDistribution] = {}
        try:
            own = make(space) if callable(make) else None
            if not isinstance(own, ActionDistribution):
                raise ConfigurationError(
                    "action_distribution must be a subclass of hybridppo.ActionDistribution, or a function of the "
                    f"action space that returns an object of one, got {shown(make)}"
                )
            self._own, self.output_size, self.noise_size = own, own.output_size, own.noise_size
            self.mask_size, self.free_init = own.mask_size, [float(number) for number in own.free]
            self.free_size = len(self.free_init)
            bias = [0.0] * (self.output_size - self.free_size) if own.bias is None else own.bias
            self.bias_init = [float(number) for number in bias]
            self._try_out(own, [*self.bias_init, *self.free_init])
        except HybridPPOError:
            raise
        except Exception as error:  # the user's class may raise any error
            raise ConfigurationError(
                f"action_distribution={self._name} fails for {space}: {shown_error(error)}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out copies on devices, which another process may not have."""
        return {**vars(self), "_copies": {}}

    def _try_out(self, own: ActionDistribution, initial: list[float]) -> None:
        """Refuse an object with parameters, or whose methods return other tensors for the initial outputs."""
        import torch

        def require(holds: bool, name: str, rule: str) -> None:
            if not holds:
                raise ConfigurationError(f"action_distribution={self._name}: {name} {rule}")

        for name, value in vars(own).items():
            learns = isinstance(value, torch.nn.Parameter | torch.nn.Module)
            require(not learns, name, "would not learn: give initial values as free, and compute with the last outputs")
        rule = f"must have {self.output_size - self.free_size} numbers: output_size without free"
        require(len(initial) == self.output_size, "bias", rule)
        outputs = torch.tensor([initial, initial], requires_grad=True)
        actions = own.sample(outputs, torch.from_numpy(self.draw_noise(np.random.default_rng(0), (2,)))).detach()
        of_actions = {"sample": actions, "mode": own.mode(outputs), "to_env": own.to_env(actions)}
        found = {**of_actions, "log_prob": own.log_prob(outputs, actions)}
        optional = {"entropy": own.entropy(outputs), "kl": own.kl(outputs, outputs)}
        for name, x in {**found, **{key: each for key, each in optional.items() if each is not None}}.items():
            shape, dtype = ((2, *self.action_shape), self.action_dtype) if name in of_actions else ((2,), np.float32)
            has_form = isinstance(x, torch.Tensor) and x.shape == shape and x.detach().numpy().dtype == dtype
            fits = has_form and bool(x.isfinite().all())
            got = f"{[*x.shape]} of {x.dtype}: {x.tolist()}" if isinstance(x, torch.Tensor) else shown(x)
            rule = f"must return finite numbers, {[*shape]} of {np.dtype(dtype).name}, for two rows, got {got}"
            require(fits, name, rule)
        require(found["log_prob"].requires_grad, "log_prob", "has no gradient: compute it from outputs")

    def _on(self, device: Any) -> ActionDistribution:
        """The user's object with its tensors on a device."""
        import torch

        if device not in self._copies:
            self._copies[device] = own = copy(self._own)
            tensors = {name: value for name, value in vars(own).items() if isinstance(value, torch.Tensor)}
            vars(own).update({name: torch.as_tensor(value, device=device) for name, value in tensors.items()})
        return self._copies[device]

    def _call(self, method: str, *given: Any) -> Any:
        """The actions that a method of the user's returns, an array for arrays."""
        import torch

        if not isinstance(given[0], np.ndarray):
            return getattr(self._on(given[0].device), method)(*given)
        num_rows = len(given[0])
        padded = -(-num_rows // ROWS) * ROWS
        tensors = (torch.from_numpy(np.resize(each, (padded, *each.shape[1:]))) for each in given)
        with torch.no_grad():
            return self._call(method, *tensors)[:num_rows].numpy()

    def sample(self, outputs: Any, noise: Any) -> Any:  # noqa: D102 - as in the base
        return self._call("sample", outputs, noise)

    def mode(self, outputs: Any) -> Any:  # noqa: D102
        return self._call("mode", outputs)

    def to_env(self, actions: Any) -> Any:
        """The user's, in the shape and type of the space, and within its bounds."""
        return self._usual.to_env(self._call("to_env", actions))

    def entropy(self, outputs: Tensor) -> Tensor:
        """The user's.

        Raises:
            ConfigurationError: if entropies are estimated, which needs actions: `log_prob_and_entropy`.
        """
        entropy = self._on(outputs.device).entropy(outputs)
        if entropy is None:
            raise ConfigurationError(f"{self._name} defines no entropy: log_prob_and_entropy estimates it from actions")
        return entropy

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The user's; without an entropy, an estimate that is right on average, as is its gradient."""
        own = self._on(outputs.device)
        log_prob, entropy = own.log_prob(outputs, actions), own.entropy(outputs)
        if entropy is None:
            # H = -E[log p], and dH = -E[log p * d log p]
            number = log_prob.detach()
            entropy = -number * (1.0 + log_prob - number)
        return log_prob, entropy

    def kl(self, old_outputs: Tensor, new_outputs: Tensor) -> Tensor:  # noqa: D102
        found = self._on(old_outputs.device).kl(old_outputs, new_outputs)
        return super().kl(old_outputs, new_outputs) if found is None else found
