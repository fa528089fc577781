"""Samplers: environments, an actor, and the rollouts that they make.

A sampler's work is started and finished: a runner may learn in between, where the sampler works elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.distributions import Distribution
from hybridppo.envs import Environments
from hybridppo.episodes import EpisodeStatistics, rows_broken_off
from hybridppo.errors import EnvError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollout import Rollout
from hybridppo.runners.stepping import Block, Finals, Stepper
from hybridppo.saved_values import whole

Array = NDArray[Any]


ROLLOUTS_LOST_IN_A_ROW = 3
"""How many rollouts in a row may be lost to environments that were made anew."""


class BaseSampler(ABC):
    """What samplers share: from the arrays of a rollout to the rollout, its statistics and its noise.

    Args:
        blocks: the arrays that rollouts are written to, in turn; a rollout is good until its arrays' next turn.
        distribution: of the action space.
        skips_row_after_end: whether environments spend the row after an episode's end on their reset.
        noise: owner of the actions' randomness; one `[T, N]` block is drawn from it per rollout.
    """

    def __init__(
        self,
        blocks: list[Block],
        distribution: Distribution,
        *,
        skips_row_after_end: bool,
        noise: np.random.Generator,
    ) -> None:
        self._blocks, self._turn = blocks, 0
        self.num_steps, self.num_envs = blocks[0].rewards.shape
        self.statistics = EpisodeStatistics(self.num_envs)
        self.env_steps = 0
        self.env_restarts = 0
        """How often an environment was made anew."""
        self._lost = 0
        self._distribution = distribution
        self._noise = noise
        self._skips_row_after_end = skips_row_after_end
        self._resetting = np.zeros(self.num_envs, dtype=np.bool_)
        self._started: tuple[Block, SamplingActor] | None = None

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment."""
        self.start(actor)
        return self.finish()

    def start(self, actor: SamplingActor) -> None:
        """Begin the next rollout. The actor's parameters must stay as they are until `finish`."""
        assert self._started is None, "a rollout is under way: finish it first"
        block = self._blocks[self._turn]
        self._turn = (self._turn + 1) % len(self._blocks)
        self._draw_noise(block)
        self._begin(block, actor)
        self._started = block, actor

    def finish(self) -> Rollout:
        """Wait for the rollout that was begun."""
        assert self._started is not None, "no rollout is under way: start one first"
        (block, actor), self._started = self._started, None
        version = actor.version
        finals = self._end()
        block = self._filled(block)
        ended = block.terminated | block.truncated
        valid = self._valid_rows(ended)
        broken_off = self._break_off(block, ended, valid)
        self.statistics.add(block.rewards, ended & valid, valid, broken_off)
        self.env_steps += int(valid.sum())
        # From a single step that restarts have left, nothing can be learned.
        self._lost = self._lost + 1 if broken_off is not None and valid.sum() < 2 else 0
        if self._lost > ROLLOUTS_LOST_IN_A_ROW:
            raise EnvError(f"in {self._lost} rollouts in a row, every episode was broken off by a restart")
        if self._lost:
            return self.collect(actor)
        return self._rollout(block, valid, finals, version)

    @property
    def is_under_way(self) -> bool:
        """Whether a rollout was started and not finished."""
        return self._started is not None

    @property
    @abstractmethod
    def seconds_filling(self) -> float:
        """How long the last rollout took its sampler, waited for or not."""

    def _draw_noise(self, block: Block) -> None:
        """Draw what the actions of a rollout take."""
        block.noise[:] = self._distribution.draw_noise(self._noise, (self.num_steps, self.num_envs))

    def _filled(self, block: Block) -> Block:
        """The part of the block that was filled; what is asked for once the rollout has ended."""
        return block

    @abstractmethod
    def _begin(self, block: Block, actor: SamplingActor) -> None:
        """Begin to fill the block."""

    @abstractmethod
    def _end(self) -> Finals:
        """Wait until it is filled; the final observations that it does not hold."""

    @abstractmethod
    def restart(self, env_seed: int) -> None:
        """Start every environment anew, the `i`-th from `env_seed + i`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing."""

    def _valid_rows(self, ended: Array) -> Array:
        """Which rows are steps, `[T, N]`: all, or all but those that environments spend on their reset."""
        valid = np.ones_like(ended)
        if self._skips_row_after_end:
            valid[0] = ~self._resetting
            valid[1:] = ~ended[:-1]
            self._resetting = ended[-1].copy()
        return valid

    def _break_off(self, block: Block, ended: Array, valid: Array) -> Array | None:
        """Where environments were made anew before their episode had ended, `[T, N]`, with no such row left valid."""
        if not block.remade.any():
            return None
        self.env_restarts += int(block.remade.sum())
        broken_off: Array = (block.remade > 0) & ~ended
        valid &= ~rows_broken_off(ended, broken_off)
        np.logical_or(block.terminated, broken_off, out=block.terminated)  # nothing of what followed belongs to it
        return broken_off

    def _rollout(self, block: Block, valid: Array, finals: Finals, version: int) -> Rollout:
        actions = torch.from_numpy(block.actions)
        # The behaviour log-probabilities, from the very outputs that the actions were drawn from.
        log_probs, _ = self._distribution.log_prob_and_entropy(torch.from_numpy(block.outputs), actions)
        observations = [observation for _, _, observation in finals]
        return Rollout(
            observations=torch.from_numpy(block.observations),
            actions=actions,
            log_probs=log_probs,
            rewards=torch.from_numpy(block.rewards),
            terminated=torch.from_numpy(block.terminated),
            truncated=torch.from_numpy(block.truncated),
            valid_rows=torch.from_numpy(np.flatnonzero(valid)),
            final_rows=torch.tensor([step * self.num_envs + env for step, env, _ in finals], dtype=torch.int64),
            final_observations=torch.from_numpy(np.stack(observations) if finals else block.observations[:0, 0]),
            version=version,
        )

    def state(self) -> dict[str, Any]:
        """What `load_state` takes, as JSON can hold it. The environments' own state is not in it."""
        return {
            "env_steps": self.env_steps,
            "env_restarts": self.env_restarts,
            "noise": self._noise.bit_generator.state,
            "statistics": self.statistics.state(),
        }

    def load_state(self, state: dict[str, Any], *, env_seed: int) -> None:
        """Go on from a saved state, in environments that start anew from `env_seed`."""
        self.env_steps = whole(state, "env_steps")
        # which earlier releases did not write
        self.env_restarts = whole({"env_restarts": 0, **state}, "env_restarts")
        self._noise.bit_generator.state = state["noise"]
        self.statistics.load_state(state["statistics"])
        self.statistics.drop_running()
        self._resetting[:] = False
        self.restart(env_seed)


class Sampler(BaseSampler):
    """Steps environments in this process: when the rollout is waited for, or in a thread.

    Args:
        environments: the `N` environments; closed with the sampler.
        distribution: of the action space.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        pin_memory: keep rollouts in page-locked memory, for fast copies to a GPU.
        in_thread: begin at once, in a thread. It gains where learning leaves Python alone meanwhile, as on a GPU.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        pin_memory: bool = False,
        in_thread: bool = False,
    ) -> None:
        # With a thread, one to fill while the other is learned from.
        blocks = [allocate(environments, distribution, num_steps, pin_memory) for _ in range(1 + in_thread)]
        super().__init__(blocks, distribution, skips_row_after_end=environments.skips_row_after_end, noise=noise)
        self._environments = environments
        self._stepper = Stepper(environments, distribution, env_seed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler") if in_thread else None

    def _begin(self, block: Block, actor: SamplingActor) -> None:
        if self._thread is None:
            self._wait: Callable[[], Finals] = partial(self._stepper.fill, block, actor)
        else:
            self._wait = self._thread.submit(self._stepper.fill, block, actor).result

    def _end(self) -> Finals:
        return self._wait()

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._stepper.seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._stepper.restart(env_seed)

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._environments.close()


def allocate(environments: Environments, distribution: Distribution, num_steps: int, pin_memory: bool) -> Block:
    """Arrays for one rollout."""
    layout = Block.layout(num_steps, environments.num_envs, environments.encode.size, distribution)

    def empty(shape: tuple[int, ...], dtype: str) -> Array:
        array = torch.from_numpy(np.empty(shape, dtype))
        return (array.pin_memory() if pin_memory else array).numpy()

    return Block(**{name: empty(shape, dtype) for name, (shape, dtype) in layout.items()})
