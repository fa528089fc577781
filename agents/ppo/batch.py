"""From a rollout to minibatches: normalised observations and rewards, rows or sequences, and the shuffled epochs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybridppo._lazy import showing_fields
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.errors import ConfigurationError
from hybridppo.networks.actors import Moments, NormalizedNetwork, ObservationNormalizer, RunningMoments, moments_of
from hybridppo.networks.numpy_actors import EPSILON, LIMIT
from hybridppo.networks.recurrent import Segments
from hybridppo.rollouts.advantages import advantage_sums, discounted_sums, explained_variance, normalize
from hybridppo.rollouts.rollout import Columns, MemoryLayout, Rollout
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.system.devices import sent

STATES = ("actor_states", "critic_states")
"""Columns without an axis of time."""
FLAGS = ("starts", "valid")
"""Arrays on the host, by which sequences are cut."""


@showing_fields
class Batch(Columns):
    """The steps of one or more rollouts, `[B, ...]`: columns by name, and more that a subclass of PPO adds.

    For recurrent networks, columns have an axis of time: they are `S` sequences of `L` consecutive steps, `[L, S,
    ...]`. Minibatches then have sequences in place of rows. The last sequences of a rollout may be shorter. For the
    NumPy backend, minibatches have arrays in place of tensors.
    """

    observations: Any
    """`[B, *row]`."""
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Any = None
    """With a pool or a decoupled correction of lag, `[B]`: the probability of each action before the update, divided by
    its probability when it was taken; at most 1 without a pool."""
    shares: Any = None
    """With a pool, `[B]`: by what the clip range is multiplied in this update; the same in every row."""
    old_outputs: Tensor | None = None
    """For a custom loss, `[B, outputs]`: the actor's outputs before the update."""
    raw_observations: Tensor | None = None
    """For a custom loss, `[B, *row]`: the observations before they were normalised, if they are."""
    counted: Tensor | None = None
    """In a padded minibatch, `[B]` bool: which rows count."""
    actor_states: Any = None
    """With an axis of time, `[S, state]`: the actor's states before the sequences."""
    critic_states: Any = None
    """The critic's, `[S, state]`."""
    starts: Any = None
    """With an axis of time, `[L, S]` on the host: whether an observation is the first of its episode."""
    valid: Any = None
    """With an axis of time, `[L, S]` on the host: which rows are steps."""

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    @classmethod
    def joined(cls, parts: "Sequence[Batch]") -> "Batch":
        """The rows of several batches in one."""
        of_each = [part.columns() for part in parts]
        return cls(**{name: torch.cat([columns[name] for columns in of_each]) for name in of_each[0]})

    def columns(self) -> dict[str, Any]:
        """The columns by name, without the arrays on the host."""
        return {name: column for name, column in super().columns().items() if name not in FLAGS}

    def __len__(self) -> int:
        return int(self.log_probs.shape[-1])

    @property
    def device(self) -> torch.device:
        """The device of all columns."""
        return self.log_probs.device

    def axis_of(self, name: str) -> int:
        """The axis of a column along which minibatches are cut."""
        return 0 if self.valid is None or name in STATES else 1

    def most_minibatches(self, normalizes: bool) -> int:
        """The largest number of minibatches: a single row has no standard deviation to normalise by."""
        return min(len(self), max(1, len(self) // 2)) if normalizes and self.valid is None else len(self)

    def outputs(self, network: Any, states: Any) -> Tensor:
        """The outputs of a network, `[B, outputs]`, or `[L, S, outputs]`; gradients reach back to the states."""
        if self.valid is None:
            return network(self.observations)
        return network.of_sequences(self.observations, states, self._segments)

    def clip_range(self, clip_range: Any) -> Any:
        """The clip range of the rows: a number, or `[B]` with a pool."""
        return clip_range if self.shares is None else clip_range * self.shares / self.weights

    def steps(self) -> "Batch":
        """The rows that are steps, `[B, ...]`."""
        if self.valid is None:
            return self
        columns = {name: column for name, column in self.columns().items() if name not in STATES}
        return Batch(**{name: self.only_steps(column) for name, column in columns.items()})

    def only_steps(self, tensor: Tensor) -> Tensor:
        """The rows of a column that are steps, `[B, ...]`."""
        if self.valid is None:
            return tensor
        flat = tensor.flatten(0, 1)
        return flat if self.valid.all() else flat.index_select(0, self._places_of_steps)

    @cached_property
    def _places_of_steps(self) -> Tensor:
        return sent(np.flatnonzero(self.valid), self.device)

    @cached_property
    def _valid_there(self) -> Tensor:
        """`valid` on the device of all columns."""
        return sent(self.valid, self.device)

    @cached_property
    def _segments(self) -> Segments:
        """The sequences cut at episode starts."""
        return Segments(self.starts, self.device)

    def explained_variance(self) -> Tensor:
        """The explained variance of the returns by the values."""
        return explained_variance(values=self.only_steps(self.values), returns=self.only_steps(self.returns))

    def gather(self, order: Tensor) -> "Batch":
        """The rows, or sequences, at indices `[M]`, copied."""
        taken = {name: column.index_select(self.axis_of(name), order) for name, column in self.columns().items()}
        if self.valid is not None:
            on_host = order.tolist()  # waits for the device
            taken |= {name: getattr(self, name)[:, on_host] for name in FLAGS}
        return self.with_columns(**taken)

    def split(self, sizes: Sequence[int]) -> "Iterator[Batch]":
        """Parts of these sizes, as views."""
        parts = {name: column.split(list(sizes), self.axis_of(name)) for name, column in self.columns().items()}
        if self.valid is not None:
            parts |= {name: np.split(getattr(self, name), np.cumsum(sizes)[:-1], 1) for name in FLAGS}
        cut = zip(*parts.values(), strict=True)
        return (Batch(**dict(zip(parts, part, strict=True))) for part in cut)

    def some(self, least: int) -> "Batch":
        """A batch of `least` rows, or sequences, which repeat."""
        return self.gather(torch.arange(least, device=self.device) % len(self))

    def padded(self, size: int) -> "Batch":
        """A batch of `size` rows, of which only those of this one count."""
        return self.some(size).with_columns(counted=torch.arange(size, device=self.device) < len(self))

    def orders(self, generator: np.random.Generator, epochs: int) -> Tensor:
        """A shuffle of the rows, or sequences, for each epoch, `[E, B]`, copied to the device without a wait."""
        return sent(np.stack([generator.permutation(len(self)) for _ in range(epochs)]), self.device)

    def sums(self, orders: Tensor, sizes: Sequence[int]) -> Tensor:
        """`advantage_sums` of every minibatch, `[E, M, 4]`; arguments as of `epochs`."""
        if len(self._at_once(orders)) > 1:
            return torch.cat([self.sums(some, sizes) for some in self._at_once(orders)])
        columns: dict[int, Tensor] = {}
        for numbers, advantages in self._advantages(orders, sizes):
            parts = advantage_sums(**advantages)
            like = parts[1].squeeze(-1)
            found = [part.squeeze(-1) if isinstance(part, Tensor) else torch.full_like(like, part) for part in parts]
            columns |= dict(zip(numbers, torch.stack(found, -1).unbind(1), strict=True))
        return torch.stack([columns[number] for number in range(len(sizes))], 1)

    def _at_once(self, orders: Tensor) -> Sequence[Tensor]:
        """The epochs that are normalised at once: of sequences each alone, because sums over time round differently."""
        return [orders] if self.valid is None else torch.split(orders, 1)

    def epochs(
        self, orders: Tensor, sizes: Sequence[int], normalizes: bool, sums: Tensor | None = None
    ) -> "Iterator[Batch]":
        """For each epoch, the batch in its order, with the advantages to learn from.

        Args:
            orders: order of the rows, or sequences, in each epoch, `[E, B]`.
            sizes: sizes of the minibatches.
            normalizes: whether advantages are normalised within each minibatch.
            sums: `sums` of whole minibatches, if these are shards of them.
        """
        weighed = self.advantages if self.weights is None else self.weights * self.advantages
        if not normalizes:
            yield from (self.with_columns(advantages=weighed).gather(order) for order in orders)
            return
        others = self.with_columns(advantages=None)
        parts = self._at_once(orders)
        for some, of_some in zip(parts, repeat(None) if sums is None else sums.chunk(len(parts)), strict=False):
            for order, advantages in zip(some, self._normalized(some, sizes, of_some), strict=True):
                yield others.gather(order).with_columns(advantages=advantages)

    def _normalized(self, orders: Tensor, sizes: Sequence[int], sums: Tensor | None) -> Tensor:
        """The advantages in these orders, normalised within each minibatch, `[E, B]`; with time, `[E, L, S]`."""
        parts: dict[int, Tensor] = {}
        for numbers, advantages in self._advantages(orders, sizes):
            whole = None if sums is None else torch.stack([sums[:, number] for number in numbers], 1)
            found = normalize(**advantages, sums=None if whole is None else whole.unsqueeze(-2).unbind(-1))
            if self.valid is not None:
                found = found.view(*found.shape[:2], len(self.valid), -1)  # [E, M, L * b] -> [E, M, L, b]
            parts |= dict(zip(numbers, found.unbind(1), strict=True))
        return torch.cat([parts[number] for number in range(len(sizes))], -1)

    def _advantages(self, orders: Tensor, sizes: Sequence[int]) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
        """For each size of minibatches, their numbers (`M`), and the arguments of `normalize`, `[E, M, b]` each."""
        columns = {
            "advantages": self.advantages,
            "weights": self.weights,
            "counted": None if self.valid is None else self._valid_there,
        }
        for numbers, rows in _minibatches_of(orders, sizes):
            yield numbers, {name: self._in_minibatches(column, rows) for name, column in columns.items()}

    def _in_minibatches(self, column: Tensor | None, rows: Tensor) -> Tensor | None:
        """A column, if there is one, at indices `[E, M, b]`; with an axis of time, `[E, M, L * b]`."""
        if column is None or self.valid is None:
            return None if column is None else column[rows]
        return column[:, rows].movedim(0, -2).flatten(-2)


def _minibatches_of(orders: Tensor, sizes: Sequence[int]) -> Iterator[tuple[Sequence[int], Tensor]]:
    """For each size of minibatches, their numbers (`M`), and the indices of their rows `[E, M, b]`."""
    if len(set(sizes)) == 1:
        yield range(len(sizes)), orders.view(len(orders), len(sizes), -1)
        return
    parts = torch.split(orders, list(sizes), -1)
    for size in sorted(set(sizes)):
        numbers = [number for number, each in enumerate(sizes) if each == size]
        yield numbers, torch.stack([parts[number] for number in numbers], -2)


class CriticMemory(nn.Module):
    """The state of a recurrent critic, which is kept between rollouts.

    Before each sequence of a batch, the actor's state is the one that acted. The critic's is from its pass over the
    rollout, which begins where the pass over the last rollout ended.
    """

    critic_state: Tensor

    def __init__(self, memory: MemoryLayout) -> None:
        super().__init__()
        self._length, self._memory = memory.sequence_length, memory
        # A buffer, so that it is moved and saved.
        self.register_buffer("critic_state", torch.zeros(0, memory.state_size))
        self._critic_states = self._next = self.critic_state

    def fit(self, num_columns: int) -> None:
        """Make room for the states of `N` columns, if there is none yet."""
        if len(self.critic_state) != num_columns:
            self.critic_state = self.critic_state.new_zeros((num_columns, self._memory.state_size))
        self._next = self.critic_state.clone()

    @torch.no_grad()
    def values(self, critic: Any, observations: Tensor, finals: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values `[T + 1, N]` and `[K]`, sequence by sequence in the order of time; call `sequences` next.

        Args:
            critic: the recurrent critic.
            observations: `[T + 1, N, *row]`.
            finals: `[K, *row]`, the final observations.
            rollout: the rollout.
        """
        columns, starts = rollout.place, rollout.starts
        num_rows, state = len(observations), self.critic_state[columns]
        # The last observation is seen with the state after the last step; if it begins an episode, its value is not
        # used. If agents take turns, it may have been acted on.
        ended = (rollout.terminated | rollout.truncated)[-1:]
        starts = torch.cat((starts, torch.zeros_like(ended) if rollout.turns is None else ended))
        values, after, firsts = [], [], []
        for first in range(0, num_rows, self._length):
            part = slice(first, first + self._length)
            firsts.append(state)
            of_part, states = critic(observations[part], state, starts[part])  # [T, B, 1] and [T, B, state]
            values.append(of_part.squeeze(-1))
            after.append(states)
            state = states[-1]
        states = torch.cat(after)
        self._critic_states = torch.cat(firsts[: self._memory.num_sequences(num_rows - 1)])
        if rollout.turns is None:
            self._next[columns] = states[num_rows - 2]
        else:  # after the last turn of each column
            last = (rollout.turns - 1).clamp(min=0)[..., None].expand(1, *states.shape[1:])
            after_turns = states.gather(0, last)[0]
            self._next[columns] = torch.where(rollout.turns[0, :, None] > 0, after_turns, self.critic_state[columns])
        if not len(finals):
            return torch.cat(values), finals.new_zeros(0, dtype=torch.float32)
        before = states.flatten(0, 1).index_select(0, rollout.final_rows)
        goes_on = torch.zeros((1, len(finals)), dtype=torch.bool, device=finals.device)
        return torch.cat(values), critic(finals.unsqueeze(0), before, goes_on)[0][0, :, 0]

    def sequences(self, steps: Batch, rollout: Rollout) -> Batch:
        """Every column of the rollout cut into sequences; those without steps are left out."""
        missing = -len(rollout.rewards) % self._length

        def cut(column: Tensor) -> Tensor:
            """`[T, N, ...] -> [L, S, ...]` with `S = T / L * N`."""
            if missing:
                column = torch.cat((column, column.new_zeros((missing, *column.shape[1:]))))
            # A view, whose order in memory gradients depend on.
            return column.view(-1, self._length, *column.shape[1:]).transpose(0, 1).flatten(1, 2)

        flags = torch.stack((rollout.starts, rollout.are_steps))
        # Waits for the device, so that minibatches need not.
        starts, valid = (cut(flags).numpy() for flags in torch.tensor(flags.tolist()))
        states = {"actor_states": rollout.states.flatten(0, 1), "critic_states": self._critic_states}
        sequences = steps.map(cut).with_columns(**states, starts=starts, valid=valid)
        # A minibatch without steps would have no mean.
        with_steps = np.flatnonzero(valid.any(0))
        if len(with_steps) == len(sequences):
            return sequences
        return sequences.gather(sent(with_steps, sequences.device))

    def learned(self) -> None:
        """Let the next rollout continue where this one ended."""
        self.critic_state.copy_(self._next)


def require_free_names(names: Sequence[str]) -> None:
    """Refuse names of `step_infos` that rollouts or batches have for something else.

    Raises:
        ConfigurationError: naming the first of them.
    """
    taken = {*Batch.__annotations__, *Rollout.__dataclass_fields__, *dir(Batch)}
    for name in names:
        if name in taken or "." in name or name[0] == "_":
            raise ConfigurationError(
                f"step_infos: {name!r} cannot name a column of rollouts, which have something else of that name, or no "
                "name with a dot or _ at its beginning: let the environment, or a wrapper, write it under another name"
            )


def numbers_of_frames(rollout: Rollout, num_frames: int) -> Tensor:
    """The numbers `[T + 1, N, K]` of the frames of each stack: each frame with those before it in its episode.

    Frames are numbered `[K - 1 + T + 1, N]`, those of the rollout's history first. An episode begins in the row after
    an end, and its first frame stands for those before it.
    """
    num_rows, num_envs = rollout.observations.shape[:2]
    before, device = num_frames - 1, rollout.observations.device
    rows = torch.arange(num_rows, device=device).unsqueeze(-1)
    # The row in which the episode of each row begins; -(K - 1), the start of the history, if it began earlier.
    begins = torch.full((num_rows, num_envs), -before, device=device)
    begins[1:] = torch.where(rollout.terminated | rollout.truncated, rows[1:], -before)
    begins = begins.cummax(0).values
    offsets = torch.arange(-before, 1, device=device)
    # [T + 1, N, K]: the frame of that age, or the first of the episode.
    steps = torch.maximum((rows + offsets).unsqueeze(1), begins.unsqueeze(-1))
    return (steps + before) * num_envs + torch.arange(num_envs, device=device).unsqueeze(-1)


def require_rows(config: PPOConfig, encode: ObservationEncoder) -> None:
    """Refuse hyperparameters that cannot learn from stacks of frames.

    Raises:
        ConfigurationError: with the name of the option.
    """
    for field, plain in (("recurrent", None), ("pool_size", 1)):
        value = getattr(config, field)
        if encode.frames is not None and value != plain:
            raise ConfigurationError(
                f"{field}={value!r} does not work with stacks of frames (frame_stack={encode.frames.num_frames}): "
                "leave one of the two out"
            )


Together = Callable[[str, Sequence[Moments]], Moments]
"""Combines the moments of several parts, as `Exchange.moments`."""


class Normalization(nn.Module):
    """The moments of observations and of rewards, as configured; they change once per update.

    Args:
        config: the hyperparameters.
        encode: encoder of the observations.
    """

    def __init__(self, config: PPOConfig, encode: ObservationEncoder) -> None:
        super().__init__()
        # Images are not normalised.
        normalizes = config.normalize_observations and encode.measured.any()
        self._frames = encode.frames
        # The moments of stacks are those of a frame.
        measured = encode.measured if encode.frames is None else encode.measured[: encode.frames.size]
        self.observations = ObservationNormalizer(encode.layout, measured) if normalizes else None
        self.rewards = RewardNormalizer() if config.normalize_rewards else None

    def before(self, network: nn.Module) -> nn.Module:
        """The network with normalised observations."""
        return network if self.observations is None else NormalizedNetwork(self.observations, network)

    def fit(self, num_columns: int) -> None:
        """Make room for the state that the columns of a rollout carry on."""
        if self.rewards is not None:
            self.rewards.fit(num_columns)

    def of_observations(self, rollout: Rollout, *, raw: bool = False) -> tuple[Tensor, Tensor]:
        """Observations `[T + 1, N, *row]` and final observations `[K, *row]`, normalised unless `raw`."""
        normalize: nn.Module = nn.Identity() if raw or self.observations is None else self.observations
        observations, finals = normalize(rollout.observations), normalize(rollout.final_observations)
        if self._frames is None:
            return observations, finals
        numbers = numbers_of_frames(rollout, self._frames.num_frames)
        frames = torch.cat((normalize(rollout.history), observations)).flatten(0, 1)
        frames = frames.index_select(0, numbers.flatten()).view(-1, numbers.shape[-1], *frames.shape[1:])
        stacks: Tensor = self._frames.stacked(frames)
        return stacks.view(*numbers.shape[:2], *stacks.shape[1:]), finals

    def seen(self, rollout: Rollout) -> Rollout:
        """The rollout with observations as the networks take them; `raw` is the rollout itself."""
        observations, finals = self.of_observations(rollout)
        return replace(rollout, observations=observations, final_observations=finals, raw=rollout)

    def rewarded(self, parts: Sequence[Rollout], gamma: float, together: Together | None) -> Sequence[Rollout]:
        """The parts of a rollout with rewards to learn from.

        Args:
            parts: the parts.
            gamma: discount per step.
            together: combines their moments if the rollout is new, so that its rewards count from now on; else None.
        """
        if self.rewards is None:
            return parts
        rewards: Sequence[Tensor] = [part.rewards for part in parts]
        if together is not None:
            rewards, found = zip(*(self.rewards.gathered(part, gamma) for part in parts), strict=True)
            self.rewards.merge(*together("rewards", found))
        return [replace(part, rewards=self.rewards.scaled(own)) for part, own in zip(parts, rewards, strict=True)]

    @torch.no_grad()
    def learned(self, parts: Sequence[Rollout], together: Together) -> None:
        """Update the moments of observations. Only after an update: actions were drawn with the moments before."""
        if self.observations is None:
            return
        found = [self.observations.moments_of(part.steps(part.observations[:-1])) for part in parts]
        self.observations.merge(*together("observations", found))

    @property
    def parts(self) -> "dict[str, ObservationNormalizer | RewardNormalizer]":
        """The normalisers that are configured, by name, each with `moments` and `merge`."""
        parts = {"observations": self.observations, "rewards": self.rewards}
        return {name: part for name, part in parts.items() if part is not None}

    def largest_variance(self, like: Tensor) -> Tensor:
        """The largest of all variances, `[1]`; not finite if a moment is too large, 0 if nothing is normalised."""
        variances = [part.moments.variance.reshape(-1) for part in self.parts.values()]
        return torch.cat(variances).amax(0, keepdim=True) if variances else like.new_zeros(1)


class RewardNormalizer(nn.Module):
    """Divides rewards by the deviation of the discounted return so far, and clips them to 10.

    The return is the discounted sum of the rewards of an episode up to a step, as in gymnasium's `NormalizeReward` and
    OpenAI's baselines ("37 details", details for continuous actions, 8).
    """

    returns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments()
        self.register_buffer("returns", torch.zeros(0))

    def fit(self, num_columns: int) -> None:
        """Make room for the returns so far of `N` columns, if there is none yet."""
        if len(self.returns) != num_columns:
            self.returns = self.returns.new_zeros(num_columns)

    def merge(self, mean: Tensor, variance: Tensor, number: Any) -> None:
        """Add returns with these moments."""
        self.moments.merge(mean, variance, number)

    @torch.no_grad()
    def gathered(self, rollout: Rollout, gamma: float) -> tuple[Tensor, Moments]:
        """The rewards with 0 for rows that are not steps, and the moments of the returns so far."""
        rewards = torch.where(rollout.are_steps, rollout.rewards, 0.0)  # rows that are not steps may have any value
        if rollout.returns_so_far is not None:
            return rewards, moments_of(rollout.steps(rollout.returns_so_far))
        goes_on = gamma * (~(rollout.terminated | rollout.truncated)).to(rewards.dtype)
        # return[t] = reward[t] + goes_on[t - 1] * return[t - 1], computed backwards in reversed time.
        terms, decay = rewards.clone(), torch.zeros_like(rewards)
        terms[0] += self.returns[rollout.place]
        decay[1:] = goes_on[:-1]
        returns = discounted_sums(terms=terms.flip(0), decay=decay.flip(0)).flip(0)
        self.returns[rollout.place] = goes_on[-1] * returns[-1]
        return rewards, moments_of(rollout.steps(returns))

    def scaled(self, rewards: Tensor) -> Tensor:
        """The rewards, normalised by the present moments."""
        return (rewards * (self.moments.variance + EPSILON).rsqrt()).clamp_(-LIMIT, LIMIT)
