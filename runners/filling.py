"""The inner loop of sampling: writes `T` steps of environments into arrays. Workers use this file without torch."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from hybridppo.compiled.kernels import FusedDistribution, bounds_of, is_drawn
from hybridppo.compiled.perceptrons import MOST_ROWS as ROWS_AT_ONCE
from hybridppo.compiled.perceptrons import up_to_whole
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.infos import Sums
from hybridppo.environments.state import ActionHistory
from hybridppo.environments.vector import AsynchronousEnvironments
from hybridppo.networks.numpy_actors import NumpyActor, NumpyNormalizer, NumpyPoliciesActor
from hybridppo.rollouts.rollout import FinalObservations, MemoryLayout, Rollout
from hybridppo.runners.asynchronous import fill_as_ready
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import global_draws_warned_of

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor

logger = logging.getLogger(__name__)

_WARNED_OF: set[str] = set()
"""What environments have set in this process."""


def compiled_actor(actor: NumpyActor, distribution: FusedDistribution) -> tuple[Any, ...]:
    """The arrays of an actor for a compiled loop, see `kernels.rollout`; its parameters must not change meanwhile.

    Returns:
        Moments, weights, biases, the sizes of the layers, whether hidden layers use tanh, log standard deviations, and
            their exponentials.
    """
    moments: Array = np.zeros((2, 0), np.float32)
    for step in actor.before:
        moments = step.moments if isinstance(step, NumpyNormalizer) else moments[:, step.numbers]
    is_gaussian = isinstance(distribution, DiagonalGaussian)
    parameters = actor.own
    log_std = np.ascontiguousarray(parameters[0] if is_gaussian else np.zeros(0), np.float32)
    weights, biases = parameters[is_gaussian::2], parameters[is_gaussian + 1 :: 2]
    sizes = np.array([weights[0].shape[1], *(len(bias) for bias in biases)], np.int64)
    widest = up_to_whole(int(sizes.max()))
    up, starts = np.zeros((len(weights), widest, widest), np.float32), np.zeros((len(weights), 1, widest), np.float32)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        up[layer, : weight.shape[1], : len(bias)] = weight.T
        starts[layer, 0, : len(bias)] = bias
    is_tanh = actor.activation == "tanh"
    return np.ascontiguousarray(moments), up, starts, sizes, is_tanh, log_std, np.exp(log_std)


def can_be_fused(actor: Any) -> TypeGuard[NumpyActor]:
    """Whether an actor is a plain MLP in NumPy, of one part of normalised observations or others."""
    if type(actor) is not NumpyActor or actor.has_mask:
        return False
    return all(isinstance(step, NumpyNormalizer) or step.numbers is not None for step in actor.before)


MOST_ROWS, STEPS_AT_ONCE = 64, 4096
"""The size of a slice: so many steps, within bounds of its rows."""
FEWEST_ROWS, FEWEST_ROWS_OF_AGENTS = 16, 4


class Fused:
    """Fills rows of compiled environments.

    Args:
        environments: compiled environments.
        distribution: distribution of the actions, which all agents have.
        actors: the actor of each kind of agents; their parameters must not change until the rollout is filled.
    """

    def __init__(
        self, environments: CompiledEnvironments, distribution: FusedDistribution, actors: Sequence[NumpyActor]
    ) -> None:
        self._environments = environments
        compiled = {id(actor): compiled_actor(actor, distribution) for actor in actors}
        of_kinds = zip(*(compiled[id(actor)] for actor in actors), strict=True)
        *parameters, sizes, is_tanh, log_std, scale = of_kinds
        self._actors = environments.kinds, *parameters, sizes, np.array(is_tanh), log_std, scale
        self._bounds = bounds_of(distribution)
        self._blocks = max(map(len, sizes)), ROWS_AT_ONCE, max(up.shape[2] for up in parameters[1])
        columns = environments.num_envs
        fewest = FEWEST_ROWS_OF_AGENTS if environments.agents else FEWEST_ROWS
        self.num_rows = min(max(STEPS_AT_ONCE // columns, fewest), MOST_ROWS)
        """The rows of a slice."""
        self._finals = np.empty((self.num_rows, columns, environments.written.size), np.float32)

    def fill(self, buffer: Rollout, first: int, end: int) -> FinalObservations:
        """Fill rows `first` to `end` of a rollout whose row `first` has observations; return final observations.

        Raises:
            EnvError: if an environment fails, or returns numbers that are not finite.
        """
        environments = self._environments
        rows = slice(first, end)
        observations, actions = self._written(buffer.observations[first : end + 1]), buffer.actions[rows]
        acted = buffer.outputs[rows], actions.reshape(*actions.shape[:2], -1), buffer.noise[rows]
        results = (
            observations, buffer.rewards[rows], buffer.terminated[rows], buffer.truncated[rows], buffer.absent[rows],
            self._finals,
        )  # fmt: skip
        num_agents = environments.num_agents
        at_once = max(1, ROWS_AT_ONCE // num_agents) * num_agents

        def fill_rows(one: int, other: int) -> None:
            for_env, blocks = np.zeros((at_once, acted[1].shape[2]), actions.dtype), np.zeros(self._blocks, np.float32)
            scratch = for_env, blocks, np.empty(ROWS_AT_ONCE, np.int64), environments.row()
            environments.kernels.rollout(
                environments.world, one, other, results, acted, self._actors, self._bounds, scratch
            )

        when = f"in the steps of rows {first} to {end - 1}"
        environments.on_threads(fill_rows, when)
        environments.require_finite(observations, buffer.rewards[rows], when)
        if environments.whole is not None:
            are_there = ~np.concatenate((buffer.absent[first + 1 : end], ~environments.present.reshape(1, -1)))
            buffer.observations[first + 1 : end + 1] = environments.seen(observations[1:], are_there)
        if not buffer.truncated[rows].any():
            return []
        are_final = buffer.truncated[rows] & ~buffer.terminated[rows]
        finals = environments.finals_of(self._finals[: end - first], are_final, when)
        return [
            (first + t, env, final) for (t, env), final in zip(np.argwhere(are_final).tolist(), finals, strict=True)
        ]

    def _written(self, observations: Array) -> Array:
        """The rows `[T + 1, N, written]` that the loop writes, of which the first is given."""
        whole = self._environments.whole
        if whole is None:
            return observations
        rows = np.empty((*observations.shape[:2], self._finals.shape[2]), np.float32)
        rows[0] = whole.written(observations[0])
        return rows


def fused(environments: Environments, distribution: Distribution, actor: Any) -> Fused | None:
    """The compiled loop; None if there is none for these environments, so that they are stepped one by one."""
    if not isinstance(environments, CompiledEnvironments) or not is_drawn(distribution):
        return None
    actors = actors_of_kinds(environments, actor)
    return Fused(environments, distribution, actors) if actors is not None else None


def actors_of_kinds(environments: CompiledEnvironments, actor: Any) -> list[NumpyActor] | None:
    """The actor of each kind of agents; None if one of them is not compiled, or a kind has several policies."""
    kinds = list(pairwise(environments.kinds.tolist()))
    if can_be_fused(actor):
        return [actor] * len(kinds)
    if not isinstance(actor, NumpyPoliciesActor):
        return None
    found: list[NumpyActor] = []
    for first, end in kinds:
        kind, policies = {*range(first, end)}, zip(actor.actors, actor.agents, strict=True)
        own = [of_policy for of_policy, agents in policies if kind <= {*agents}]
        if not own or not can_be_fused(own[0]):
            return None
        found.append(own[0])
    return found


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Take back a default type of torch that environments set; warn once of it, and of another working directory."""
    torch = sys.modules.get("torch")
    directory, dtype = _working_directory(), None if torch is None else torch.get_default_dtype()
    try:
        yield
    finally:
        now = _working_directory()
        changes = {"working directory": (directory, now, "relative paths begin there now")}
        if torch is not None and (found := torch.get_default_dtype()) != dtype:
            torch.set_default_dtype(dtype)
            changes["default type of torch"] = dtype, found, "it was taken back"
        for what, (was, found, then) in changes.items():
            if found != was and what not in _WARNED_OF:
                _WARNED_OF.add(what)
                text = "the environment set the %s from %s to %s: %s; let the environment leave it as it is"
                logger.warning(text, what, was, found, then)


def _working_directory() -> str | None:
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        return os.getcwd()
    return None


Flag = bytearray | memoryview
"""One byte: 1 to stop. It is in shared memory if another process sets it."""
NEVER: Flag = bytearray(1)
StepperState = tuple[list[EnvState], Array, Array]
"""The environments' states; the observations of the next actions, `[N, obs]`; and the actor's state, as
`EpisodeMemory.arrays`, or `[N, 0]`."""


class Filled(NamedTuple):
    """A worker's answer when it has filled rows."""

    rows: int
    """The number of filled rows."""
    finals: FinalObservations
    """The final observations of the new rows."""
    version: int
    """The version of the parameters that acted."""
    infos: Sums | None
    """Sums of entries of infos, if they are measured."""


Filling = Generator[None, None, tuple[int, FinalObservations]]
"""Fills rows, and pauses whenever the actor has asked for outputs; it returns what `Stepper.fill` returns."""


def in_turn(fillings: Sequence[Generator[None, None, Any]], begin: Callable[[], object] = bool) -> list[Any]:
    """Run generators in turn, each until it pauses; return their results. `begin` is called before each round."""
    results: dict[int, Any] = {}
    while len(results) < len(fillings):
        begin()
        for number, filling in enumerate(fillings):
            if number not in results:
                try:
                    next(filling)
                except StopIteration as end:
                    results[number] = end.value
    return [results[number] for number in range(len(fillings))]


class EpisodeMemory:
    """The actor's state in each environment, and the starts of episodes.

    A recurrent actor has a `state`, `[N, state_size]`, which each call advances and which can be set, and a method
    `forget`, which sets the state of some environments, `[N]` bool, to zero.

    The state comes from the parameters that acted. It is carried from rollout to rollout, and is zero at the start of
    an episode. If agents take turns, a column's state changes in its own turns only, and its sequences are of these.

    Args:
        num_envs: `N`.
        layout: the layout of the state.
        skips_row_after_end: whether the row after an episode's end is a reset instead of a step.
        in_turns: whether agents take turns.
    """

    def __init__(self, num_envs: int, layout: MemoryLayout, skips_row_after_end: bool, in_turns: bool = False) -> None:
        self._layout, self._skips_row_after_end = layout, skips_row_after_end
        self._num_envs, self._in_turns = num_envs, in_turns
        self._acted = np.zeros(num_envs, np.int64)
        """How often each column has acted in this rollout; counted if agents take turns."""
        self.restart()

    @classmethod
    def of(cls, environments: Any, layout: MemoryLayout | None) -> EpisodeMemory | None:
        """The memory of an actor in these environments; None without a layout."""
        if layout is None:
            return None
        return cls(environments.num_envs, layout, environments.skips_row_after_end, environments.waiting is not None)

    def restart(self) -> None:
        """Start an episode in every environment."""
        self._state = np.zeros((self._num_envs, self._layout.state_size), np.float32)
        self._starts = np.ones(self._num_envs, np.bool_)
        self._resetting = np.zeros(self._num_envs, np.bool_)

    def begin(self, actor: Any, waited: Array | None = None) -> None:
        """Give the state to the actor.

        Args:
            actor: the actor.
            waited: `[t, N]`, which columns have waited or were absent in the rollout so far, if agents take turns.
        """
        actor.state = self._state
        if waited is not None:
            self._acted = (~waited).sum(0)

    def end(self, actor: Any) -> None:
        """Take the state from the actor."""
        self._state = actor.state

    def before(self, step: int, actor: Any, starts: Array, states: Array) -> None:
        """Called before a step: forget ended episodes, write `starts[step]`, and write a state if due."""
        starts[step] = self._starts
        self.forget(actor)
        if step % self._layout.sequence_length == 0 and not self._in_turns:
            states[step // self._layout.sequence_length] = actor.state

    def forget(self, actor: Any) -> None:
        """Called before the actor acts: forget ended episodes."""
        if self._starts.any():
            actor.forget(self._starts)
        if self._in_turns:
            self._before = np.array(actor.state)

    def act(self, actor: Any, observations: Array, at: tuple[Array, Array], starts: Array, states: Array) -> Any:
        """Let the actor act for some environments, which are each at a row of their own; return its outputs.

        Args:
            actor: the actor.
            observations: `[n, *row]`.
            at: the rows and the environments, `[n]` each.
            starts: of the whole rollout, to be written.
            states: of the whole rollout, to be written.
        """
        rows, envs = at
        starts[at] = self._starts[envs]
        actor.state = before = np.where(self._starts[envs][:, None], np.float32(0.0), self._state[envs])
        sequence, step = np.divmod(rows, self._layout.sequence_length)
        states[sequence[step == 0], envs[step == 0]] = before[step == 0]
        outputs = actor(observations)
        self._state[envs] = actor.state
        return outputs

    def note_ends(self, envs: Array | slice, ended: Array) -> None:
        """Note which episodes of some environments, `[n]`, have ended in their last step."""
        if self._skips_row_after_end:  # the next row has the final observation and still belongs to the episode
            self._starts[envs], self._resetting[envs] = self._resetting[envs], ended
        else:
            self._starts[envs] = ended

    def after(
        self,
        actor: Any,
        ended: Array,
        restarted: dict[int, int],
        waiting: Array | None = None,
        states: Array | None = None,
    ) -> None:
        """Called after the environments' step.

        Args:
            actor: the actor.
            ended: `[N]`, whether an episode ended.
            restarted: environments that begin another episode.
            waiting: `[N]`, which columns did not act, if agents take turns.
            states: the states of a rollout's sequences, which are written if due.
        """
        if waiting is not None:
            actor.state = np.where(waiting[:, None], self._before, actor.state)
            sequence, step = np.divmod(self._acted, self._layout.sequence_length)
            if states is not None:
                begins = ~waiting & (step == 0)
                states[sequence[begins], begins] = self._before[begins]
            self._acted += ~waiting
            self._starts = ended | (self._starts & waiting)
        else:
            self.note_ends(slice(None), ended)
        for env in restarted:
            self._starts[env], self._resetting[env] = True, False

    @property
    def arrays(self) -> Array:
        """The whole state, `[N, state_size + 2]`, for a checkpoint."""
        flags = np.stack((self._starts, self._resetting), axis=1)
        return np.concatenate((self._state, flags.astype(np.float32)), axis=1)

    @arrays.setter
    def arrays(self, saved: Array) -> None:
        self._state = saved[:, :-2].copy()
        self._starts, self._resetting = saved[:, -2] != 0.0, saved[:, -1] != 0.0


class Stepper:
    """Steps environments; each call continues where the last one ended.

    Args:
        environments: the `N` environments.
        distribution: distribution of the actions.
        seed: the `i`-th environment starts from `seed + i`.
        memory: layout of the state of a recurrent actor.
    """

    def __init__(
        self, environments: Environments, distribution: Distribution, seed: int, memory: MemoryLayout | None = None
    ) -> None:
        self._environments = environments
        self._distribution = distribution
        with global_draws_warned_of(), process_kept():
            self._observation = environments.reset(seed)
        self._is_new = True
        """Whether no row was filled yet."""
        self._memory = EpisodeMemory.of(environments, memory)
        self._history = ActionHistory()
        self.seconds = 0.0
        """The seconds of the last `fill`."""
        self.heartbeat: Any = [0]
        """Its first element is the number of filled rows, which shows that the loop does not hang."""

    def restart(self, seed: int) -> None:
        """Reset every environment."""
        self._observation = self._environments.reset(seed)
        if self._memory is not None:
            self._memory.restart()

    def state(self) -> StepperState:
        """The state for `load_state`."""
        nothing = np.zeros((self._environments.num_envs, 0), np.float32)
        remembered = nothing if self._memory is None else self._memory.arrays
        states = self._environments.state()
        self._history.put_into(states)
        return states, self._observation, remembered

    def load_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """Restore the result of `state`."""
        shape = self._environments.num_envs, *self._distribution.action_shape
        row = np.zeros(shape, self._distribution.action_dtype)
        actions = self._history.take_from(states, row) if self._environments.replays else ()
        self._environments.load_state(states, observation, [self._distribution.to_env(batch) for batch in actions])
        self._observation = observation
        if self._memory is not None:
            self._memory.arrays = remembered

    def fill(
        self,
        buffer: Rollout,
        actor: SamplingActor,
        stop: Flag = NEVER,
        first: int = 0,
        end: int | None = None,
        num_episodes: int | None = None,
    ) -> tuple[int, FinalObservations]:
        """Step every environment from row `first` of a buffer on.

        Args:
            buffer: the rows to write.
            actor: chooses actions.
            stop: read before each step, or before each slice of compiled environments. If it is set, the remaining rows
                are left for another call.
            first: 0, or the number of rows that the last call has filled.
            end: the number of rows to fill; None for all rows of the buffer.
            num_episodes: stop after so many episodes of a single environment; None for no limit.

        Returns:
            How many rows of the buffer are filled, and the final observations of the new ones.
        """
        return in_turn([self.filling(buffer, actor, stop, first, end, num_episodes)])[0]

    def filling(
        self, buffer: Rollout, actor: Any, stop: Flag, first: int, end: int | None,
        num_episodes: int | None = None, pauses: bool = False,
    ) -> Filling:  # fmt: skip
        """As `fill`; with `pauses`, it pauses after each call of the actor, an `AskingActor`, and then waits for it."""
        watched = global_draws_warned_of() if self._is_new else contextlib.nullcontext()
        self._is_new = False
        environments = self._environments
        start = time.perf_counter()
        end = len(buffer.rewards) if end is None else end
        buffer.write_first(first, self._observation, environments.encode.frames)
        for array in (buffer.restarted, buffer.absent, buffer.waiting, *buffer.infos.values()):
            array[first:end] = 0
        if buffer.infos:
            environments.write_infos(buffer.infos, first)
        compiled = fused(environments, self._distribution, actor) if self._memory is None else None
        with process_kept(), watched:
            if compiled is not None:
                filled, finals = self._fill_slices(compiled, buffer, stop, first, end)
            elif isinstance(environments, AsynchronousEnvironments):
                how = self._distribution, self._memory, buffer, actor, stop, first, end, self.heartbeat
                filled, finals = fill_as_ready(environments, *how)
            else:
                filled, finals = yield from self._fill_rows(buffer, actor, stop, first, end, num_episodes, pauses)
        if environments.encode.frames is None:
            self._observation = buffer.observations[filled].copy()
        self.seconds = time.perf_counter() - start
        if environments.replays:
            self._history.add(buffer.actions[first:filled], self.seconds, environments.longest_episode)
        return filled, finals

    def _fill_slices(
        self, compiled: Fused, buffer: Rollout, stop: Flag, first: int, end: int
    ) -> tuple[int, FinalObservations]:
        """As `fill`, with one compiled call for several rows."""
        finals: FinalObservations = []
        for t in range(first, end, compiled.num_rows):
            if stop[0]:
                return t, finals
            last = min(t + compiled.num_rows, end)
            finals += compiled.fill(buffer, t, last)
            self.heartbeat[0] = last
        return end, finals

    def _fill_rows(
        self, buffer: Rollout, actor: Any, stop: Flag, first: int, end: int, num_episodes: int | None, pauses: bool
    ) -> Filling:
        """As `filling`, row by row."""
        environments = self._environments
        sample, to_env, step = self._distribution.sample, self._distribution.to_env, environments.step
        finals: FinalObservations = []
        memory, starts, states = self._memory, buffer.starts, buffer.states
        explores, noise_row, matrix = self._distribution.explores, self._distribution.noise_row, -1
        if memory is not None:
            memory.begin(actor, buffer.waiting[:first] | buffer.absent[:first])
        heartbeat = self.heartbeat
        frames, rows = environments.encode.frames, self._observation
        # Looked up once: eight lookups in each step cost half a percent.
        seen, noise, kept_outputs, kept_actions = buffer.observations, buffer.noise, buffer.outputs, buffer.actions
        kept_rewards, kept_terminated, kept_truncated = buffer.rewards, buffer.terminated, buffer.truncated
        filled = end
        for t in range(first, end):
            if stop[0]:
                filled = t
                break
            if memory is not None:
                memory.before(t, actor, starts, states)
            if explores and noise_row(t) != matrix:
                matrix = noise_row(t)
                actor.explore(noise[matrix])
            outputs = actor(seen[t] if frames is None else rows)
            if pauses:
                yield
                actor.wait()
            actions = sample(outputs, actor.perturbation if explores else noise[t])
            # Stored before the environments get them: these may be views, which they may write to.
            kept_outputs[t] = outputs
            kept_actions[t] = actions
            rows, rewards, terminated, truncated, final_envs, final_observations = step(to_env(actions))
            seen[t + 1] = rows if frames is None else frames.newest(rows)
            kept_rewards[t] = rewards
            kept_terminated[t] = terminated
            kept_truncated[t] = truncated
            heartbeat[0] = t + 1
            if memory is not None:
                ended, waiting = terminated | truncated, environments.waiting
                memory.after(actor, ended, environments.restarted, waiting, states)
            if environments.restarted:
                buffer.restarted[t, list(environments.restarted)] = list(environments.restarted.values())
            if environments.absent is not None:
                buffer.absent[t] = environments.absent
            if environments.waiting is not None:
                buffer.waiting[t] = environments.waiting
            if final_envs:
                pairs = zip(final_envs, final_observations, strict=True)
                finals += [(t, env, observation) for env, observation in pairs]
            if num_episodes is not None and (terminated[0] or truncated[0]):
                num_episodes -= 1
                if not num_episodes:
                    filled = t + 1
                    break
        if frames is not None:
            self._observation = rows.copy()
        if memory is not None:
            memory.end(actor)
        environments.check_rewards(buffer.rewards[first:filled])
        return filled, finals
