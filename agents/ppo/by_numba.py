"""The optimizer steps of PPO compiled, for MLPs on a CPU; equal to autograd's up to rounding.

A step is one call: gather, forward, loss, backward, clipping and Adam, in blocks of rows that fit into the cache
closest to a core. Numba compiles `numba_loops.py` once and keeps it (`hybridppo/compiled/modules.py`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo.agents.ppo import numba_loops as loops
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend, array_of
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.compiled import perceptrons
from hybridppo.compiled.building import whole
from hybridppo.compiled.kernels import is_drawn
from hybridppo.compiled.modules import load, require_numba
from hybridppo.compiled.sources import Gathering, Sources, Texts
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.joint import JointDistribution, leaves_of
from hybridppo.errors import ConfigurationError
from hybridppo.networks.actors import Network, mlp_twin
from hybridppo.networks.modes import linears
from hybridppo.networks.parameters import place_of
from hybridppo.spaces.arrays import Array
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import SideBySide, torch_threads

BLOCK_BYTES = 320 * 2**10
"""Activations of one network in a block of rows."""
ROWS_OF_A_THREAD = 256
"""With fewer rows, another thread does not pay for a forward pass."""
PRODUCTS_OF_A_CALL = 2**25
"""Rows times parameters in one call: some milliseconds, during which a stop is not checked."""
LOOPS: Texts = {
    loops.fill_gradient: "f[::1], f[::1], batch, i, i, i, i, i, form, d[::1], scratch, d[::1]",
    loops.take_steps: "parameters, batch, i[::1], i, i, i[::1], d[:, ::1], form, d[::1], scratch, f[:, ::1]",
    loops.critic_values: "f[::1], f[:, ::1], form, scratch, f[::1]",
}
"""The functions that Python calls, with the types of their arguments."""
ABOVE = """
compiled = numba.njit(error_model="numpy")
contracted = numba.njit(error_model="numpy", fastmath={"contract"})
inlined = numba.njit(error_model="numpy", fastmath={"contract"}, forceinline=True)
summed = numba.njit(error_model="numpy", fastmath={"contract", "reassoc"})
parameters = group(f[::1], f[::1], f[::1], f[::1])
batch = group(f[:, ::1], f[:, ::1], f[::1], f[::1], f[::1], f[::1])
form = group(i[:, ::1], i[:, :, ::1], i[::1], i[:, ::1], i[::1], i, i, b)
scratch = group(f[:, :, ::1], f[:, :, ::1], f[:, :, ::1])
"""
"""Lines above the functions: decorators, which may round a product and a sum at once (`contracted`), or add numbers in
another order, which is the same on one machine (`summed`); and types."""
DECORATORS: Texts = {
    **perceptrons.CONTRACTED,
    **dict.fromkeys((perceptrons.adam, loops.policy_loss, loops.value_loss), "contracted"),
    **dict.fromkeys(loops.OF_A_ROW, "inlined"),
    loops.squared_norm: "summed",
    **{loop: f'numba.njit(u({types}), cache=True, nogil=True, error_model="numpy")' for loop, types in LOOPS.items()},
}


@cache
def _text_of_loops() -> Sources:  # takes a tenth of a second, and is needed whenever parameters have moved
    gathering = Gathering("the update", given=perceptrons.GIVEN, decorators=DECORATORS)
    return gathering.sources({loop.__name__: loop for loop in LOOPS})


def compiled_loops() -> Any:
    """The module of the loops, compiled when it is first loaded.

    Raises:
        ConfigurationError: if Numba is missing, or cannot compile it.
    """
    require_numba("compiled_updates=True")
    text = whole(perceptrons.text_of_intrinsics() + ABOVE, _text_of_loops()).text
    return load("updates", text, [loop.__name__ for loop in LOOPS], _explained)


def _explained(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"compiled_updates=True: Numba cannot compile the update, which it should ({path}): "
        f"{type(error).__name__}: {str(error).strip()[:500]}. Leave compiled_updates out, and report this with Numba's "
        "version"
    )


class CompiledBackend(Backend):
    """Forward and backward passes, losses and Adam as machine code.

    Raises:
        ConfigurationError: if Numba is missing or cannot compile it.
    """

    written_in = "agents/ppo/numba_loops.py"

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._module = compiled_loops()
        actor, critic = agent.actor_network, agent.critic_network
        twin = mlp_twin(actor)
        values = self._parameters.values
        self._flat, self._flat_gradient = array_of(values), array_of(self._parameters.gradient)
        self._sizes, offsets = _layers_in(values, actor, critic)
        log_std = actor.log_std if isinstance(actor, Network) else None
        free = 0 if log_std is None else place_of(log_std, values)
        head = (*_actions_of(agent.distribution), free, twin.mask_size)
        bounds = _as_int64([0, offsets[loops.CRITIC, 0, 0], self._parameters.range_of("critic").stop])
        self._settings = np.zeros(loops.NUM_SETTINGS)
        self._form = self._sizes, offsets, bounds, *head, twin.activation == "tanh"
        self._num_threads = 1
        self._scratch = [_scratch(self._sizes)]
        self._threads = SideBySide("hybridppo-update")

    @staticmethod
    def supports(agent: Any) -> bool:
        """Whether loss, distribution and networks are known: a part of what `NumpyBackend` knows, in float32."""
        return (
            agent.config.pool_size == 1
            and all(map(is_drawn, leaves_of(agent.distribution)))
            and NumpyBackend.supports(agent)
            and len(linears(agent.actor_network)) == len(linears(agent.critic_network))
            and all(map(_sees_the_first_numbers, (agent.actor_network, agent.critic_network)))
        )

    @contextmanager
    def updating(self) -> Iterator[None]:
        """A context with as many threads as torch has. With two, each has a network; the result is that of one.

        With more, each has a share of a minibatch; gradients are added in their order, which rounds differently.
        """
        self._num_threads = torch.get_num_threads()
        while len(self._scratch) < self._num_threads:
            self._scratch.append(_scratch(self._sizes))
        with torch_threads(1):
            yield

    def values(self, observations: Tensor) -> Tensor:
        """As in the base."""
        rows = np.ascontiguousarray(array_of(observations))
        values = np.empty(len(rows), np.float32)
        count = max(1, min(self._num_threads, len(rows) // ROWS_OF_A_THREAD))

        def some_of(thread: int) -> None:
            part = slice(thread * len(rows) // count, (thread + 1) * len(rows) // count)
            self._module.critic_values(self._flat, rows[part], self._form, self._scratch[thread], values[part])

        self._threads.run(some_of, count)
        return torch.from_numpy(values)

    def all_steps(self, epoch: Batch, sizes: Sequence[int], clip_range: float) -> Tensor | None:
        """With one or two threads, a call steps on several minibatches, for some milliseconds."""
        if self._num_threads > 2:
            return None
        rows, starts = _arrays_of(epoch), _as_int64([*accumulate(sizes, initial=0)])
        parameters, step = self._views(clip_range)
        statistics = np.empty((len(sizes), len(STATISTICS)), np.float32)
        at_once = max(1, PRODUCTS_OF_A_CALL // (max(sizes) * len(self._flat)))
        for first in range(0, len(sizes), at_once):
            if self._agent.should_stop():
                raise Stopped
            some = slice(first, first + at_once)
            self._take_steps(parameters, rows, starts[first : first + at_once + 1], statistics[some])
            step[...] = self._settings[loops.STEP]
        return torch.from_numpy(statistics)

    def _take_steps(
        self, parameters: tuple[Array, ...], rows: tuple[Array, ...], starts: Array, statistics: Array
    ) -> None:
        """With two threads, this thread steps the actor and another the critic; they meet once per minibatch."""
        signals, norms = np.zeros(loops.NUM_SIGNALS, np.int64), np.zeros((2, 2))
        networks = ((0, 1), (1, 2)) if self._num_threads == 2 else ((0, 2),)
        settings = [self._settings, self._settings.copy()]  # in which each counts its steps

        def take(thread: int) -> None:
            try:
                self._module.take_steps(
                    parameters, rows, starts, *networks[thread], signals, norms, self._form, settings[thread],
                    self._scratch[thread], statistics,
                )  # fmt: skip
            except BaseException:
                signals[loops.GONE] = 1  # so that the other thread does not wait for this one
                raise

        self._threads.run(take, len(networks))

    def minibatches(self, epoch: Batch, sizes: Sequence[int]) -> Iterable[Any]:
        """As in the base; a minibatch is the whole epoch, and where its rows begin and end."""
        rows = _arrays_of(epoch)
        return ((rows, first, end) for first, end in pairwise(accumulate(sizes, initial=0)))

    def gradient(self, minibatch: Any, clip_range: Any) -> Array:
        """As in the base. With more than two threads, each has a share of the rows."""
        rows, first, end = minibatch
        size = end - first
        count = min(self._num_threads, size) if self._num_threads > 2 else 1
        self._views(clip_range)
        gradients = [self._flat_gradient, *np.zeros((count - 1, len(self._flat)), np.float32)]
        sums = np.empty((count, len(STATISTICS)))

        def fill(thread: int) -> None:
            start, stop = (first + part * size // count for part in (thread, thread + 1))
            self._module.fill_gradient(
                self._flat, gradients[thread], rows, start, stop, size, 0, 2, self._form, self._settings,
                self._scratch[thread], sums[thread],
            )  # fmt: skip

        self._threads.run(fill, count)
        for others in gradients[1:]:
            self._flat_gradient += others
        return (sums.sum(0)[:-1] / size).astype(np.float32)

    def _views(self, clip_range: float) -> tuple[tuple[Array, ...], Array]:
        """Parameters, gradient and both moments, and the number of steps so far; writes the settings."""
        config, optimizer = self._agent.current, self._agent.optimizer
        slots, rates = optimizer.state[self._agent.parameters.values], optimizer.learning_rates
        step, clip_range_vf = array_of(slots["step"]), -1.0 if config.clip_range_vf is None else config.clip_range_vf
        self._settings[:] = (
            *(clip_range, clip_range_vf, config.entropy_coef, config.value_coef),
            math.inf if config.max_grad_norm is None else config.max_grad_norm,
            *(rates["actor"], rates["critic"], *optimizer.betas, optimizer.eps, step),
        )
        moments = array_of(slots["exp_avg"]), array_of(slots["exp_avg_sq"])
        return (self._flat, self._flat_gradient, *moments), step


def _layers_in(values: Tensor, *networks: nn.Module) -> tuple[Array, Array]:
    """The layers of networks of equal depth, of which `values` has all parameters.

    Returns:
        `[networks, L + 1]`, the numbers between layers; and `[networks, L, 2]`, where weights and biases begin.
    """
    layers = [linears(network) for network in networks]
    sizes = [[own[0].in_features, *(layer.out_features for layer in own)] for own in layers]
    places = [[[place_of(layer.weight, values), place_of(layer.bias, values)] for layer in own] for own in layers]
    return _as_int64(sizes), _as_int64(places)


def _arrays_of(epoch: Batch) -> tuple[Array, ...]:
    """Observations, actions and columns, as the loops take them."""
    actions = array_of(epoch.actions).reshape(len(epoch), -1)
    columns = (epoch.log_probs, epoch.values, epoch.advantages, epoch.returns)
    arrays = array_of(epoch.observations), actions, *map(array_of, columns)
    return tuple(np.ascontiguousarray(array, np.float32) for array in arrays)


def _sees_the_first_numbers(network: nn.Module) -> bool:
    """Whether a network sees all numbers of a row, or the first ones."""
    seen = mlp_twin(network).columns
    return isinstance(seen, slice) or np.array_equal(seen, np.arange(len(seen)))


def _actions_of(distribution: Any) -> tuple[Array, Array]:
    """The size and the action column of each choice, `[C, 2]`, and the action columns that are numbers, `[d]`."""
    choices: list[tuple[int, int]] = []
    numbers: list[int] = []
    for factor in JointDistribution([distribution], list).factors:
        columns, leaf = range(factor.actions.start, factor.actions.stop), factor.distribution
        if isinstance(leaf, Categorical):
            choices += zip(leaf.sizes, columns, strict=True)
        else:  # of numbers, as `supports` has checked
            numbers += columns
    return _as_int64(choices).reshape(-1, 2), _as_int64(numbers)


def _as_int64(numbers: Any) -> Array:
    """Integers of the type that the loops are compiled for."""
    return np.array(numbers, np.int64)


def _scratch(sizes: Array) -> tuple[Array, Array, Array]:
    """Scratch memory for the loops, see `loops.take_steps`."""
    num_layers, widest = sizes.shape[1] - 1, perceptrons.up_to_whole(int(sizes.max()))
    # Rows of a power of two would use few places of a cache.
    stride = widest + 16
    rows = max(32, BLOCK_BYTES // (4 * stride * (num_layers + 1)))
    rows -= rows % perceptrons.MOST_ROWS
    return (
        np.zeros((num_layers + 4, rows, stride), np.float32),
        np.zeros((3 * num_layers, stride, stride), np.float32),
        np.zeros((2 * num_layers + 1, 1, stride), np.float32),
    )
