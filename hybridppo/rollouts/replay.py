"""The replay buffer: flat arrays of transitions; new ones replace the oldest.

    replay = Replay(capacity, num_envs, observation=(3,), action=(1,), device=device)
    replay.add(rollout, rollout)
    transitions = replay.gather(replay.draw(generator, 256), noise, n_steps=1, gamma=0.99)

A time row is one step of all `N` environments, and the rows form a ring. A written row never changes, so that its file
is only appended to. Episode ends are those of the rollout: a truncated step is followed by its true final observation.
Rows that are not steps (resets, or steps of an episode that was broken off) stay in their place, but are never drawn.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo._lazy import showing_fields
from hybridppo.rollouts.rollout import Columns, Rollout
from hybridppo.spaces.arrays import Array
from hybridppo.system.devices import sent
from hybridppo.system.validation import whole


@showing_fields
@dataclass(frozen=True)
class Transitions(Columns):
    """Minibatches of transitions, `[..., B]`, over one or several steps."""

    observations: Tensor
    """`[..., B, obs]`."""
    actions: Tensor
    """`[..., B, *action]`."""
    returns: Tensor
    """`[..., B]`: the discounted rewards of the steps."""
    discounts: Tensor
    """`[..., B]`: the factor of the value of `next_observations`; 0 if the episode was terminated."""
    next_observations: Tensor
    """`[..., B, obs]`: the observations after the last step."""
    noise: Tensor
    """`[..., B, *action]`: noise for the actions of targets."""

    def __len__(self) -> int:
        return len(self.returns)

    def unbind(self) -> "Iterator[Transitions]":
        """The minibatches one after the other, as views."""
        columns = (column.unbind() for column in vars(self).values())
        return (Transitions(*column) for column in zip(*columns, strict=True))


class Replay:
    """A ring of `capacity` time rows of `N` environments each.

    Args:
        capacity: time rows.
        num_envs: `N`.
        observation: shape of an observation's row.
        action: shape of an action's row.
        action_dtype: name of the type of actions.
        device: device of the buffer.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        *,
        observation: Sequence[int],
        action: Sequence[int],
        action_dtype: str = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity, self.num_envs = capacity, num_envs
        leading = (capacity, num_envs)

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty((*leading, *shape), dtype=dtype, device=device)

        self.arrays: dict[str, Tensor] = {
            "observations": empty(*observation),
            "actions": empty(*action, dtype=getattr(torch, action_dtype)),
            "rewards": empty(),
            "next_observations": empty(*observation),
            "terminated": empty(dtype=torch.bool),
            "begins": empty(dtype=torch.bool),
        }
        """`[capacity, N, ...]`. `begins`: whether a step does not continue the time row before."""
        # On the host, because rows are drawn there.
        self._valid = np.zeros(leading, np.bool_)
        self.total = 0
        """Time rows added so far."""
        self._num_valid = np.zeros(num_envs, np.int64)
        self._must_begin = np.ones(num_envs, np.bool_)

    @property
    def num_valid(self) -> int:
        """Transitions that can be drawn."""
        return int(self._num_valid.sum())

    @property
    def device(self) -> torch.device:
        """Device of the buffer."""
        return self.arrays["rewards"].device

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a time row."""
        return sum(array[0].nbytes for array in self.arrays.values()) + self.num_envs

    @property
    def size(self) -> int:
        """Time rows in the buffer."""
        return min(self.total, self.capacity)

    def cut(self) -> None:
        """Let no later row continue the present ones, because environments were reset."""
        self._must_begin[:] = True

    def add(self, rollout: Rollout, sampled: Rollout) -> None:
        """Add the steps of a rollout; only its `valid_rows` can be drawn. Its tensors are copied.

        Args:
            rollout: the rollout on the device of the buffer.
            sampled: the rollout on the host; the same object if the buffer is there.
        """
        valid = np.zeros(tuple(sampled.rewards.shape), np.bool_)
        valid.reshape(-1)[sampled.valid_rows.numpy()] = True
        ended = sampled.terminated.numpy() | sampled.truncated.numpy()
        begins = ~valid
        begins[0] |= self._must_begin
        begins[1:] |= ended[:-1] | ~valid[:-1]
        following = rollout.next_observations if len(rollout.final_rows) else rollout.observations[1:]
        rows = {
            "observations": rollout.observations[:-1],
            "actions": rollout.actions,
            "rewards": rollout.rewards,
            "next_observations": following,
            "terminated": rollout.terminated,
            "begins": sent(begins, rollout.rewards.device),
        }
        self._write(rows, valid)
        self._must_begin = ended[-1] | ~valid[-1]

    def _write(self, rows: dict[str, Tensor], valid: Array) -> None:
        num_steps = len(valid)
        if num_steps > self.capacity:
            raise ValueError(f"{num_steps} rows do not fit into a replay buffer of {self.capacity}")
        at = np.arange(self.total, self.total + num_steps) % self.capacity
        self._num_valid += valid.sum(0) - self._valid[at].sum(0)
        self._valid[at] = valid
        index = sent(at, self.device)
        for name, array in self.arrays.items():
            array.index_copy_(0, index, rows[name])
        self.total += num_steps

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw transitions uniformly with replacement: flat rows `t * N + n` of this `shape`, on the host."""
        if not self.num_valid:
            raise ValueError("the replay buffer holds no transition yet")
        valid, size = self._valid.reshape(-1), self.size * self.num_envs
        drawn: Array = generator.integers(size, size=shape)
        # Rows that are not steps are drawn again.
        while (wrong := ~valid[drawn]).any():
            drawn[wrong] = generator.integers(size, size=int(wrong.sum()))
        return drawn

    def gather(self, rows: Array, noise: Array, *, n_steps: int, gamma: float) -> Transitions:
        """The transitions that begin at flat rows `[..., B]`, over up to `n_steps` steps, with their noise.

        They have fewer steps if the episode ends or the newest step is reached. Their last step is bootstrapped, unless
        it terminated the episode.
        """
        flat = {name: array.flatten(0, 1) for name, array in self.arrays.items()}
        device, shape = flat["rewards"].device, rows.shape
        first = sent(rows.reshape(-1), device)

        def take(name: str, at: Tensor) -> Tensor:
            taken = flat[name].index_select(0, at)
            return taken.view(*shape, *taken.shape[1:])

        returns, last = take("rewards", first), first
        discounts = torch.full_like(returns, gamma)
        if n_steps > 1:
            # Which of the following rows belong to the same episode, in the order of writing.
            goes_on = torch.ones_like(first, dtype=torch.bool)
            num_rows, newest = self.capacity * self.num_envs, (self.total - 1) % self.capacity
            for step in range(1, n_steps):
                following = (last + self.num_envs) % num_rows
                is_newest = torch.div(last, self.num_envs, rounding_mode="floor") == newest
                goes_on = goes_on & ~is_newest & ~flat["begins"].index_select(0, following)
                last = torch.where(goes_on, following, last)
                there = goes_on.view(shape)
                returns = returns + torch.where(there, gamma**step * take("rewards", last), 0.0)
                discounts = torch.where(there, gamma ** (step + 1), discounts)
        return Transitions(
            observations=take("observations", first),
            actions=take("actions", first),
            returns=returns,
            discounts=discounts.masked_fill(take("terminated", last), 0.0),
            next_observations=take("next_observations", last),
            noise=sent(noise, device),
        )

    def rows(self, start: int, end: int) -> dict[str, Tensor]:
        """Copies of the time rows from `start` to `end`, counted from the first row ever added."""
        if not max(0, self.total - self.capacity) <= start <= end <= self.total:
            raise ValueError(f"rows {start} to {end} are not among the newest {self.size} of {self.total}")
        at = np.arange(start, end) % self.capacity
        index = torch.as_tensor(at, device=self.arrays["rewards"].device)
        found = {name: array.index_select(0, index) for name, array in self.arrays.items()}
        return {**found, "valid": torch.from_numpy(self._valid[at])}

    def state(self) -> dict[str, Any]:
        """The state for `load_state` without the rows, as JSON."""
        return {"total": self.total, "must_begin": self._must_begin.tolist()}

    def load_state(self, state: dict[str, Any], pieces: Iterable[tuple[int, dict[str, Tensor]]]) -> None:
        """Restore the state and the rows from files; each piece has the number of its first row.

        Raises:
            ValueError: if pieces do not fit, or rows are missing.
        """
        total, must_begin = whole(state, "total"), state["must_begin"]
        if len(must_begin) != self.num_envs or not all(type(value) is bool for value in must_begin):
            raise ValueError(f"must_begin is not a list of {self.num_envs} booleans")
        oldest = max(0, total - self.capacity)
        self._valid[:], self._num_valid[:], self.total = False, 0, oldest
        for first, rows in pieces:
            skipped = max(0, oldest - first)
            if skipped >= len(rows["valid"]):
                continue
            if first + skipped != self.total:
                raise ValueError(f"the replay buffer's files go on with row {first}, not {self.total}")
            kept = {name: tensor[skipped:] for name, tensor in rows.items()}
            self._write({name: sent(kept[name].numpy(), self.device) for name in self.arrays}, kept["valid"].numpy())
        if self.total != total:
            raise ValueError(f"the replay buffer's files end with row {self.total}, and {total} were added")
        self._must_begin = np.array(must_begin, np.bool_)
