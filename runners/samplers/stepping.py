"""The inner loop of sampling: writes `T` steps of environments into arrays. Workers use this file without torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.state_dependent import exploration_of
from hybridppo.environments.base import Environments, EnvState
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import EpisodeMemory, MemoryLayout
from hybridppo.runners.samplers.fused import Fused, fused
from hybridppo.spaces.arrays import Array

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor


Flag = bytearray | memoryview
"""One byte: 1 to stop. It is in shared memory if another process sets it."""
NEVER: Flag = bytearray(1)
StepperState = tuple[list[EnvState], Array, Array]
"""The environments' states; the observations of the next actions, `[N, obs]`; and the actor's state, as
`EpisodeMemory.arrays`, or `[N, 0]`."""


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
        self._observation = environments.reset(seed)
        self._memory = EpisodeMemory.of(environments, memory)
        self._has_begun = False
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
        if not self._has_begun:
            self._begin()
        nothing = np.zeros((self._environments.num_envs, 0), np.float32)
        remembered = nothing if self._memory is None else self._memory.arrays
        return self._environments.state(), self._observation, remembered

    def load_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """Restore the result of `state`."""
        if not self._has_begun:
            self._begin()
        self._environments.load_state(states)
        self._observation = observation
        if self._memory is not None:
            self._memory.arrays = remembered

    def _begin(self) -> None:
        self._has_begun = True
        self._environments.remember_the_start()

    def fill(
        self,
        buffer: RolloutBuffer,
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
        environments = self._environments
        self._has_begun = True
        start = time.perf_counter()
        end = len(buffer.rewards) if end is None else end
        buffer.write_first(first, self._observation, environments.encode.frames)
        for array in (buffer.restarted, buffer.absent, buffer.waiting):
            array[first:end] = 0
        compiled = fused(environments, self._distribution, actor) if self._memory is None else None
        if compiled is not None:
            filled, finals = self._fill_slices(compiled, buffer, stop, first, end)
        else:
            filled, finals = self._fill_rows(buffer, actor, stop, first, end, num_episodes)
        if environments.encode.frames is None:
            self._observation = buffer.observations[filled].copy()
        self.seconds = time.perf_counter() - start
        return filled, finals

    def _fill_slices(
        self, compiled: Fused, buffer: RolloutBuffer, stop: Flag, first: int, end: int
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
        self, buffer: RolloutBuffer, actor: SamplingActor, stop: Flag, first: int, end: int, num_episodes: int | None
    ) -> tuple[int, FinalObservations]:
        """As `fill`, row by row."""
        environments = self._environments
        sample, to_env, step = self._distribution.sample, self._distribution.to_env, environments.step
        finals: FinalObservations = []
        memory, starts, states = self._memory, buffer.starts, buffer.states
        exploration = exploration_of(self._distribution, buffer.noise.__getitem__)
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
            if exploration is not None:
                exploration.before(t, actor)
            outputs = actor(seen[t] if frames is None else rows)
            actions = sample(outputs, noise[t] if exploration is None else exploration.of(actor))
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
