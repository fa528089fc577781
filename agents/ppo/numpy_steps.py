"""The optimizer steps of PPO written out by hand in NumPy, for MLPs on a CPU: equal to `AutogradSteps` up to rounding.

For small networks most of torch's time is overhead; for large ones, this form keeps a minibatch's activations in the
cache closest to a core. The gradient itself is in `numpy_passes.py`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.minibatch_order import Order
from hybridppo.agents.ppo.numpy_exploring_head import is_known
from hybridppo.agents.ppo.numpy_heads import array_of, has_gradient
from hybridppo.agents.ppo.numpy_passes import Passes
from hybridppo.agents.ppo.optimizer_steps import STATISTICS
from hybridppo.networks.forms import is_on_cpu, linears, numpy_form
from hybridppo.networks.trunks import shared_trunk_of
from hybridppo.system.interruption import Stopped
from hybridppo.system.threads import one_blas_thread, one_torch_thread

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO


Array = NDArray[Any]


class NumpySteps:
    """Forward and backward passes in NumPy, actor and critic in one.

    Views the parameters' memory as it is when made: make another after parameters have moved.
    """

    written_in: str | None = "agents/ppo/numpy_passes.py"

    def __init__(self, agent: "PPO") -> None:
        self._agent, self._optimizer, self._config = agent, agent.optimizer, agent.config
        actor, _ = self._layers_of(agent)
        self._gradient = array_of(agent.parameters.gradient)
        self._passes = [Passes(agent, *self._layers_of(agent), self._gradient)]
        # Rows that pass forward and backward while they lie in the cache closest to a core: activations of a megabyte.
        widest = max(layer.weight.shape[0] for layer in linears(actor)[:-1])
        self._block_size = max(32, 2**20 // (4 * 2 * widest))
        self._num_threads = 1
        self._pool: ThreadPoolExecutor | None = None

    @staticmethod
    def _layers_of(agent: "PPO") -> tuple[nn.Module, nn.Module]:
        """Actor and critic, whose layers these are."""
        return agent.actor_network, agent.critic_network

    @staticmethod
    def supports(agent: "PPO") -> bool:
        """Whether this form knows loss, distribution and networks: MLPs of equal hidden layers, on the CPU."""
        return knows(agent, agent.actor_network, agent.critic_network)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """NumPy's; torch, which has the optimizer, the advantages and products in bfloat16, keeps to one.

        Of a minibatch of several blocks each thread takes some, and its products are made on it alone.
        """
        count = torch.get_num_threads()
        is_divided = self._config.minibatch_size > self._block_size
        with ExitStack() as stack:
            stack.enter_context(one_torch_thread())
            if count > 1 and is_divided:
                self._begin_threads(count)
                stack.enter_context(one_blas_thread())
                self._num_threads = count
            try:
                yield
            finally:
                self._num_threads = 1
                self._packed = None  # it holds the rollout

    def _begin_threads(self, count: int) -> None:
        if len(self._passes) < count:
            layers = self._layers_of(self._agent)
            more = (np.zeros_like(self._gradient) for _ in range(count - 1))
            self._passes[1:] = [Passes(self._agent, *layers, gradient) for gradient in more]
            self._pool = ThreadPoolExecutor(count - 1, thread_name_prefix="hybridppo-update")

    def _side_by_side(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each gives: the first in this thread, the others in theirs."""
        if len(work) == 1:
            return [work[0]()]
        assert self._pool is not None

        def quietly(one: Callable[[], Any]) -> Any:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # as in `PPO.update`, for this thread
                return one()

        others = [self._pool.submit(quietly, one) for one in work[1:]]
        try:
            first = work[0]()
        finally:
            wait(others)  # none may write any more when this is over
        return [first, *(other.result() for other in others)]

    def values(self, observations: Tensor) -> Tensor:
        """The critic's values."""
        rows = array_of(observations)
        values = np.empty(len(rows), np.float32)
        blocks = [slice(start, start + self._block_size) for start in range(0, len(rows), self._block_size)]

        def some_of(number: int) -> None:
            for block in blocks[number :: self._num_threads]:
                self._passes[number].values(rows[block], values[block])

        self._side_by_side([partial(some_of, number) for number in range(self._num_threads)])
        return torch.from_numpy(values)

    @torch.no_grad()
    def log_probs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """As `AutogradSteps.log_probs`: once or twice an update, where torch is as quick."""
        return self._agent.distribution.log_prob(self._agent.actor_network(observations), actions)

    def log_probs_of(self, batch: Any, sizes: Sequence[int]) -> Tensor:
        """As `AutogradSteps.log_probs_of`, in the blocks of the gradient."""
        rows = batch.packed()
        found = np.empty(len(rows.returns), np.float32)
        for start, end in pairwise(accumulate(sizes, initial=0)):
            for first in range(start, end, self._block_size):
                block = np.arange(first, min(first + self._block_size, end))
                found[block] = self._passes[0].log_probs(rows.gather(block))
        return torch.from_numpy(found)

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def epoch(self, batch: Any, order: Order, sizes: Sequence[int], clip_range: float) -> Tensor:
        """Two gathers for the epoch; minibatches are views."""
        shuffled = batch.packed().gather(np.asarray(order))
        statistics = np.empty((len(sizes), len(STATISTICS)), np.float32)
        start = 0
        for row, size in zip(statistics, sizes, strict=True):
            if self._agent.should_stop():
                raise Stopped
            self._step(shuffled.rows(start, start + size), clip_range, out=row)
            start += size
        return torch.from_numpy(statistics)

    def _step(self, minibatch: Any, clip_range: float, out: Array) -> None:
        """Gradient, clipping, step; `STATISTICS` into `out`."""
        self._fill_gradient(minibatch, clip_range, out)
        out[-1] = self._descend()

    def descend(self) -> Tensor:
        """As `AutogradSteps.descend`."""
        return torch.tensor([self._descend()], dtype=torch.float32)

    def _descend(self) -> float:
        limit = self._config.max_grad_norm
        norm = math.sqrt(np.dot(self._gradient, self._gradient))
        if norm + 1e-6 > limit:
            self._gradient *= np.float32(limit / (norm + 1e-6))
        self._optimizer.step()
        return norm

    def gradient(self, batch: Any, clip_range: float) -> Tensor:
        """Fill the parameters' gradient over a minibatch; `STATISTICS` but the last."""
        statistics = np.zeros(len(STATISTICS), np.float32)
        self._fill_gradient(batch.made().packed(), clip_range, statistics)
        return torch.from_numpy(statistics[:-1])

    def _fill_gradient(self, minibatch: Any, clip_range: float, out: Array) -> None:
        """Forward, the loss's gradient by hand, backward; `STATISTICS` but the last into `out`."""
        size = len(minibatch.returns)
        if size <= self._block_size:
            out[:-1] = self._passes[0].block(minibatch, clip_range, size)
        else:
            gradient = np.zeros_like(self._gradient)
            out[:] = 0.0
            starts = range(0, size, self._block_size)
            for first in range(0, len(starts), self._num_threads):
                passes = self._passes[: min(self._num_threads, len(starts) - first)]
                blocks = (minibatch.rows(start, start + self._block_size) for start in starts[first:])
                work = [partial(one.block, block, clip_range, size) for one, block in zip(passes, blocks, strict=False)]
                # In their order: the sums are those of one thread.
                for one, sums in zip(passes, self._side_by_side(work), strict=True):
                    out[:-1] += sums
                    gradient += one.gradient
            self._gradient[:] = gradient
        out /= size


def knows(agent: "PPO", actor: nn.Module, critic: nn.Module) -> bool:
    """Whether loss, distribution and these layers are known: MLPs of equal hidden layers, on the CPU."""
    forms = numpy_form(actor), numpy_form(critic)
    return (
        not agent.has_own_loss
        and shared_trunk_of(actor) is None
        and forms[0] is not None
        and forms[1] is not None
        and forms[0].layout is forms[1].layout is None
        and forms[0].activation == forms[1].activation
        and is_on_cpu(actor)
        and (has_gradient(agent.distribution) or is_known(agent.distribution))
        and [layer.weight.shape for layer in linears(actor)[:-1]]
        == [layer.weight.shape for layer in linears(critic)[:-1]]
    )
