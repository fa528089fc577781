"""The inner loop of sampling where environments are compiled: environment, actor and episode ends in one call.

Rows are filled a slice at a time, and between two slices the flag is looked at. What it writes is what `Stepper.fill`
writes with the same actor, up to the rounding of a product; it is taken where the actor is a plain MLP and actions are
choices or numbers clipped to bounds. Free of torch, for workers; Numba is loaded by the environments.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.networks.numpy_forms.actor import NumpyActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.gaussian import DiagonalGaussian

Array = NDArray[Any]

MOST_ROWS, FEWEST_ROWS, STEPS_AT_ONCE = 64, 16, 4096
"""Of a slice: so many steps, in as many rows as that takes, but within bounds."""


class Fused:
    """Rows of compiled environments with one actor.

    Args:
        environments: compiled.
        distribution: of the action space.
        actor: whose parameters stay as they are until the rollout is filled.
    """

    def __init__(
        self,
        environments: CompiledEnvironments,
        distribution: "Categorical | MultiCategorical | DiagonalGaussian",
        actor: NumpyActor,
    ) -> None:
        self._environments = environments
        is_gaussian = isinstance(distribution, DiagonalGaussian)
        parameters = actor.parameters
        self._log_std = np.ascontiguousarray(parameters[0] if is_gaussian else np.zeros(0), np.float32)
        weights, biases = parameters[is_gaussian::2], parameters[is_gaussian + 1 :: 2]
        self._sizes = np.array([weights[0].shape[1], *(len(bias) for bias in biases)], np.int64)
        widest = int(self._sizes.max())
        self._weights = np.zeros((len(weights), 1 + widest, widest), np.float32)
        for layer, weight, bias in zip(self._weights, weights, biases, strict=True):
            layer[0, : len(bias)] = bias
            layer[1 : 1 + weight.shape[1], : len(bias)] = weight.T
        self._is_tanh = actor.activation == "tanh"
        if isinstance(distribution, DiagonalGaussian):
            self._low, self._high = (
                np.ascontiguousarray(bound, np.float32) for bound in (distribution.low, distribution.high)
            )
        else:
            self._low, self._high = _choices(distribution)
        per_row = environments.num_envs
        self.num_rows = int(np.clip(STEPS_AT_ONCE // per_row, FEWEST_ROWS, MOST_ROWS))
        """Of a slice."""
        self._finals = np.empty((self.num_rows, per_row, environments.encode.size), np.float32)

    def fill(self, buffer: RolloutBuffer, first: int, end: int) -> FinalObservations:
        """Rows `first` to `end` of a rollout, of which the first observations are there: the final observations.

        Raises:
            EnvError: where an environment fails, or returns what is not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        actions = buffer.actions[rows]
        arrays = (
            buffer.observations[first : end + 1],
            buffer.outputs[rows],
            actions.reshape(*actions.shape[:2], -1) if actions.ndim == 3 else actions[:, :, None],
            buffer.rewards[rows],
            buffer.terminated[rows],
            buffer.truncated[rows],
            buffer.noise[rows],
            self._finals,
            self._weights,
            self._sizes,
            self._is_tanh,
            self._log_std,
            np.exp(self._log_std),
            self._low,
            self._high,
        )
        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(
            lambda one, other: environments.kernels.rollout(*environments.state_arrays, one, other, *arrays), when
        )
        environments.require_finite(buffer.observations[first : end + 1], buffer.rewards[rows], when)
        truncated = buffer.truncated[rows]
        if not truncated.any():
            return []
        found = np.argwhere(truncated & ~buffer.terminated[rows])
        finals = self._finals[found[:, 0], found[:, 1]]
        environments.require_finite_finals(finals, found[:, 1], when)
        return [(first + t, env, final) for (t, env), final in zip(found.tolist(), finals, strict=True)]


def fused(environments: Environments, distribution: Distribution, actor: Any) -> Fused | None:
    """The compiled form of a rollout; None where it has none, and steps are taken one by one."""
    if not isinstance(environments, CompiledEnvironments) or type(actor) is not NumpyActor or actor.has_mask:
        return None
    if type(distribution) is Categorical or type(distribution) is MultiCategorical:
        return Fused(environments, distribution, actor)
    if type(distribution) is DiagonalGaussian:
        return Fused(environments, distribution, actor)
    return None


def _choices(distribution: "Categorical | MultiCategorical") -> tuple[Array, Array]:
    """The first number of each choice, and among how many it is."""
    if isinstance(distribution, Categorical):
        return np.array([distribution.start], np.int64), np.array([distribution.output_size], np.int64)
    sizes = np.array(distribution.sizes, np.int64)
    start = np.zeros_like(sizes) if distribution.start is None else distribution.start.ravel().astype(np.int64)
    return start, sizes
