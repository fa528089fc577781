"""Samplers: environments, an actor, and the rollouts that they make.

A sampler's work is started and finished: a runner may learn in between, where the sampler works elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.distributions import Distribution
from hybridppo.envs import Environments, EnvState
from hybridppo.episodes import EpisodeStatistics, rows_broken_off
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.interruption import Stopped
from hybridppo.rollout import Rollout
from hybridppo.runners.stepping import Block, Finals, Flag, Stepper
from hybridppo.saved_values import whole

Array = NDArray[Any]


ROLLOUTS_LOST_IN_A_ROW = 3
"""How many rollouts in a row may be lost to environments that were made anew."""


class BaseSampler(ABC):
    """What samplers share: from the arrays of a rollout to the rollout, its statistics and its noise.

    Args:
        stop: set to break off between two steps.
        blocks: the arrays that rollouts are written to, in turn; a rollout is good until its arrays' next turn.
        distribution: of the action space.
        skips_row_after_end: whether environments spend the row after an episode's end on their reset.
        noise: owner of the actions' randomness; one `[T, N]` block is drawn from it per rollout.
    """

    def __init__(
        self,
        stop: Flag,
        blocks: list[Block],
        distribution: Distribution,
        *,
        skips_row_after_end: bool,
        noise: np.random.Generator,
    ) -> None:
        self._stop = stop
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
        self._under_way: UnderWay | None = None

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment, or what is left of them where they are under way."""
        if self.is_under_way:
            self.go_on(actor)
        else:
            self.start(actor)
        return self.finish()

    def start(self, actor: SamplingActor) -> None:
        """Begin the next rollout. The actor's parameters must stay as they are until `finish`."""
        assert not self.is_under_way, "a rollout is under way: finish it first"
        block = self._next_block()
        self._draw_noise(block)
        self._under_way = UnderWay(block, actor.version)
        self.go_on(actor)

    def go_on(self, actor: SamplingActor) -> None:
        """Go on with the rollout under way where it is paused, with an actor of the same parameters."""
        under_way = self._rollout_under_way()
        under_way.actor = actor
        if self.is_paused and not self._is_complete(under_way.filled):
            self._begin(under_way.block, actor, under_way.filled)
            under_way.is_running = True

    def request_stop(self) -> None:
        """Break off before the next step, and any work that begins from now on. May be called in a signal's handler."""
        self._stop[0] = 1

    def pause(self) -> None:
        """Break off a rollout that is under way: at the next step, or where it is anyway."""
        if self._under_way is not None and self._under_way.is_running:
            self._stop[0] = 1
            try:
                self._wait_for(self._under_way)
            finally:
                self._stop[0] = 0

    def finish(self) -> Rollout:
        """Wait for the rollout that was begun.

        Raises:
            Stopped: where it was broken off; it stays under way.
        """
        under_way = self._rollout_under_way()
        self._wait_for(under_way)
        if not self._is_complete(under_way.filled):
            raise Stopped
        self._under_way = None
        block = self._filled(under_way.block)
        ended = block.terminated | block.truncated
        valid = self._valid_rows(ended)
        if self._skips_row_after_end:
            self._resetting = ended[-1].copy()
        broken_off = self._break_off(block, ended, valid)
        self.statistics.add(block.rewards, ended & valid, valid, broken_off)
        self.env_steps += int(valid.sum())
        # From a single step that restarts have left, nothing can be learned.
        self._lost = self._lost + 1 if broken_off is not None and valid.sum() < 2 else 0
        if self._lost > ROLLOUTS_LOST_IN_A_ROW:
            raise EnvError(f"in {self._lost} rollouts in a row, every episode was broken off by a restart")
        if self._lost:
            assert under_way.actor is not None  # whoever finishes a rollout has let it go on
            return self.collect(under_way.actor)
        return self._rollout(block, valid, under_way.finals, under_way.version)

    @property
    def is_under_way(self) -> bool:
        """Whether a rollout was started and not finished."""
        return self._under_way is not None

    @property
    def is_paused(self) -> bool:
        """Whether a rollout is under way that nobody works on."""
        return self._under_way is not None and not self._under_way.is_running

    @property
    def steps_sampled(self) -> int:
        """Like `env_steps`, with the steps of a paused rollout, which that does not count before it is finished."""
        if self._under_way is None:
            return self.env_steps
        block, filled = self._under_way.block, self._under_way.filled
        ended = (block.terminated | block.truncated)[:filled]
        return self.env_steps + int(self._valid_rows(ended).sum())

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

    def _is_complete(self, filled: int) -> bool:
        """Whether a rollout of which nobody fills any more rows has all of them."""
        return filled == len(self._blocks[0].rewards)

    @abstractmethod
    def _begin(self, block: Block, actor: SamplingActor, first: int) -> None:
        """Begin to fill the block from row `first` on."""

    @abstractmethod
    def _end(self) -> tuple[int, Finals]:
        """Wait until it is filled, or the flag was seen: how many rows are, and final observations of the new ones."""

    @abstractmethod
    def restart(self, env_seed: int) -> None:
        """Start every environment anew, the `i`-th from `env_seed + i`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing."""

    @abstractmethod
    def _stepper_state(self) -> tuple[list[EnvState], Array]:
        """The environments' state, as `Stepper.state`; raises `EnvStateError`."""

    @abstractmethod
    def _load_stepper_state(self, states: list[EnvState], observation: Array) -> None:
        """Put it back, or raise `EnvStateError`."""

    def _next_block(self) -> Block:
        block = self._blocks[self._turn]
        self._turn = (self._turn + 1) % len(self._blocks)
        return block

    def _rollout_under_way(self) -> "UnderWay":
        assert self._under_way is not None, "no rollout is under way: start one first"
        return self._under_way

    def _wait_for(self, under_way: "UnderWay") -> None:
        if under_way.is_running:
            under_way.is_running = False
            under_way.filled, finals = self._end()
            under_way.finals += finals

    def _valid_rows(self, ended: Array) -> Array:
        """Which rows of a rollout are steps, `[T, N]`: all, or all but those that environments spend on their reset."""
        valid = np.ones_like(ended)
        if self._skips_row_after_end:
            valid[:1] = ~self._resetting
            valid[1:] = ~ended[:-1]
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

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `load_state` takes: tensors by name, and what JSON can hold. A rollout under way must be paused."""
        state = {
            "env_steps": self.env_steps,
            "env_restarts": self.env_restarts,
            "rollouts_lost": self._lost,
            "noise": self._noise.bit_generator.state,
            "statistics": self.statistics.state(),
            "resetting": self._resetting.tolist(),
        }
        try:
            states, observation = self._stepper_state()
        except EnvStateError as error:  # a rollout that is under way is lost with them: nothing could go on with it
            return {}, {**state, "environments": {"not_saved": str(error)}}
        tensors, under_way = self._state_under_way()
        tensors["observation"] = torch.from_numpy(observation)
        return tensors, {**state, "environments": {"states": states}, "under_way": under_way}

    def _state_under_way(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        under_way = self._under_way
        if under_way is None:
            return {}, None
        assert not under_way.is_running, "a rollout is being sampled: pause it first"
        arrays = {name: array[rows] for name, (array, rows) in _rows_of(under_way.block, under_way.filled).items()}
        tensors = {f"block.{name}": torch.from_numpy(array) for name, array in arrays.items()}
        finals = under_way.finals
        if finals:
            tensors["final_observations"] = torch.from_numpy(np.stack([observation for _, _, observation in finals]))
        final_rows = [[step, env] for step, env, _ in finals]
        return tensors, {"version": under_way.version, "filled": under_way.filled, "final_rows": final_rows}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Go on from a saved state.

        Returns:
            Why the environments could not, and start anew from `env_seed`; None where they go on exactly.
        """
        state = {"env_restarts": 0, "rollouts_lost": 0, **state}  # which earlier releases did not write
        self.env_steps, self.env_restarts = whole(state, "env_steps"), whole(state, "env_restarts")
        self._lost = whole(state, "rollouts_lost")
        self._noise.bit_generator.state = state["noise"]
        self.statistics.load_state(state["statistics"])
        reason = self._load_environments(tensors, state)
        if reason is None:
            resetting = state["resetting"]
            if len(resetting) != self.num_envs or not all(type(value) is bool for value in resetting):
                raise ValueError(f"resetting is no list of {self.num_envs} truths")
            self._resetting = np.array(resetting, dtype=np.bool_)
            if state["under_way"] is not None:
                self._load_under_way(tensors, state["under_way"])
            return None
        self.statistics.drop_running()
        self._resetting[:] = False
        self.restart(env_seed)
        return reason

    def _load_environments(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> str | None:
        environments = state.get("environments")
        if environments is None:
            return "this checkpoint was written by a version that did not save them"
        if "not_saved" in environments:
            return str(environments["not_saved"])
        observation = tensors["observation"].numpy()
        expected = self._blocks[0].observations[0]
        _require_like("observation", tensors["observation"], expected)
        if not np.isfinite(observation).all():
            raise ValueError("the saved observations are no finite numbers")
        try:
            self._load_stepper_state(environments["states"], observation)
        except EnvStateError as error:
            return str(error)
        return None

    def _load_under_way(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        block, filled = self._next_block(), whole(state, "filled")
        if filled > self.num_steps:
            raise ValueError(f"of {self.num_steps} rows, {filled} are said to be filled")
        for name, (array, rows) in _rows_of(block, filled).items():
            _require_like(f"block.{name}", tensors[f"block.{name}"], array[rows])
            array[rows] = tensors[f"block.{name}"].numpy()
        finals: Finals = []
        for i, (step, env) in enumerate(state["final_rows"]):
            final = tensors["final_observations"][i]
            _require_like("a final observation", final, block.observations[0, 0])
            if not (type(step) is type(env) is int and 0 <= step < filled and 0 <= env < self.num_envs):
                raise ValueError(f"there is no step {step} of environment {env}")
            finals.append((step, env, final.numpy()))
        self._under_way = UnderWay(block, whole(state, "version"), filled, finals)

    def check(self, rollout: Rollout) -> None:
        """Refuse a rollout out of a file that is none of this sampler's.

        Raises:
            ValueError: where a tensor is of another shape or type, or a row is none.
        """
        block, num_rows = self._blocks[0], rollout.rewards.numel()
        for name in ("observations", "actions", "rewards", "terminated", "truncated"):
            num_steps = len(rollout.rewards) + (name == "observations")
            like = getattr(block, name)
            _require_like(name, getattr(rollout, name), np.broadcast_to(like[:1], (num_steps, *like.shape[1:])))
        _require_like("log_probs", rollout.log_probs, rollout.rewards.numpy())
        observations = block.observations[0, :1].repeat(len(rollout.final_rows), axis=0)
        _require_like("final_observations", rollout.final_observations, observations)
        for name in ("valid_rows", "final_rows"):
            rows = getattr(rollout, name)
            _require_like(name, rows, np.empty(len(rows), np.int64))
            if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
                raise ValueError(f"{name} are not all of {num_rows} rows")


@dataclass
class UnderWay:
    """A rollout that was started and not finished."""

    block: Block
    version: int
    """Of the parameters that act."""
    filled: int = 0
    """How many rows it has, when nobody works on it."""
    finals: Finals = field(default_factory=list)
    actor: SamplingActor | None = None
    """What it was last let go on with."""
    is_running: bool = False
    """Whether somebody works on it."""


def _rows_of(block: Block, filled: int) -> dict[str, tuple[Array, slice]]:
    """The arrays of a block with the rows that matter where `filled` are: those, and the noise of the others."""
    rows = {"observations": slice(filled + 1), "noise": slice(filled, None)}
    return {name: (array, rows.get(name, slice(filled))) for name, array in vars(block).items()}


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
        skips_row_after_end = environments.skips_row_after_end
        super().__init__(bytearray(1), blocks, distribution, skips_row_after_end=skips_row_after_end, noise=noise)
        self._environments = environments
        self._stepper = Stepper(environments, distribution, env_seed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler") if in_thread else None

    def _begin(self, block: Block, actor: SamplingActor, first: int) -> None:
        fill = partial(self._stepper.fill, block, actor, self._stop, first)
        if self._thread is None:
            self._wait: Callable[[], tuple[int, Finals]] = fill
        else:
            self._wait = self._thread.submit(fill).result

    def _end(self) -> tuple[int, Finals]:
        return self._wait()

    def _stepper_state(self) -> tuple[list[EnvState], Array]:
        return self._stepper.state()

    def _load_stepper_state(self, states: list[EnvState], observation: Array) -> None:
        self._stepper.load_state(states, observation)

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._stepper.seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._stepper.restart(env_seed)

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._environments.close()


def _require_like(name: str, tensor: Tensor, array: Array) -> None:
    if tuple(tensor.shape) != array.shape or tensor.numpy().dtype != array.dtype:
        message = f"{name} is of shape {list(tensor.shape)} and type {tensor.dtype}"
        raise ValueError(f"{message}, not {list(array.shape)} and {array.dtype}")


def allocate(environments: Environments, distribution: Distribution, num_steps: int, pin_memory: bool) -> Block:
    """Arrays for one rollout."""
    layout = Block.layout(num_steps, environments.num_envs, environments.encode, distribution)

    def empty(shape: tuple[int, ...], dtype: str) -> Array:
        array = torch.from_numpy(np.empty(shape, dtype))
        return (array.pin_memory() if pin_memory else array).numpy()

    return Block(**{name: empty(shape, dtype) for name, (shape, dtype) in layout.items()})
