"""Sampling for several policies in the same environments: a sampler for each, whose rollouts are filled together.

    together = Together(environments, distribution, env_seed, stop)
    samplers = [PolicySampler(together, kind, ...) for kind in range(together.num_kinds)]

Each sampler is one as any runner has it: started and finished, paused, saved and put back. The environments are stepped
when the first of them is waited for, and then for all.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import EnvState
from hybridppo.environments.compiled_agents import CompiledAgents
from hybridppo.errors import EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.fused_agents import fused_agents
from hybridppo.runners.samplers.stepping import Flag, StepperState
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]


class Together:
    """Steps environments for all policies from where they were left.

    Args:
        environments: with kinds of agents, a policy each.
        distribution: of the action space, which all agents have.
        seed: the `i`-th environment starts from `seed + i`.
        stop: set to break off between two steps.
    """

    def __init__(self, environments: CompiledAgents, distribution: Distribution, seed: int, stop: Flag) -> None:
        self.environments, self.distribution, self.stop = environments, distribution, stop
        self.columns = environments.columns_of_kinds
        """Of each policy, its columns among those of the environments."""
        self._place = np.empty(environments.num_envs, np.int64)  # of a column, its place among those of its policy
        self._policy_of = np.empty(environments.num_envs, np.int64)
        for kind, columns in enumerate(self.columns):
            self._place[columns], self._policy_of[columns] = np.arange(len(columns)), kind
        self._observations = self._parts(environments.reset(seed))
        self._begun: dict[int, tuple[RolloutBuffer, SamplingActor, int]] = {}
        self._done: dict[int, tuple[int, FinalObservations]] = {}
        self.problem: str | None = None
        """Why the environments could not go on from a saved state."""
        self.seconds = 0.0
        """How long the last filling took."""

    @property
    def num_kinds(self) -> int:
        """How many policies there are."""
        return len(self.columns)

    def begin(self, kind: int, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        """Have a policy's rollout filled from row `first` on."""
        self._begun[kind] = buffer, actor, first

    def end(self, kind: int) -> tuple[int, FinalObservations]:
        """Fill the rollouts of all policies, unless that is done; how many rows of this one's are, and its finals."""
        if kind not in self._done:
            assert len(self._begun) == self.num_kinds, "a policy has not begun its rollout"
            self._fill()
        return self._done.pop(kind)

    def restart(self, seed: int) -> None:
        """Start every environment anew."""
        self._observations = self._parts(self.environments.reset(seed))

    def state(self, kind: int) -> tuple[list[EnvState], Array]:
        """The environments' states, with the first policy, and what a policy is to act on next."""
        return self.environments.state() if kind == 0 else [], self._observations[kind]

    def load_state(self, kind: int, states: list[EnvState], observations: Array) -> None:
        """Go on from what `state` gave, the first policy first."""
        if kind == 0:
            self.problem = None
            try:
                self.environments.load_state(states)
            except EnvStateError as error:
                self.problem = str(error)
        if self.problem is not None:
            raise EnvStateError(self.problem)
        self._observations[kind] = observations

    def _parts(self, observations: Array) -> list[Array]:
        return [observations[columns] for columns in self.columns]

    def _fill(self) -> None:
        start = time.perf_counter()
        begun = [self._begun.pop(kind) for kind in range(self.num_kinds)]
        buffers, actors = [buffer for buffer, _, _ in begun], [actor for _, actor, _ in begun]
        [first] = {row for _, _, row in begun}
        for buffer, observations in zip(buffers, self._observations, strict=True):
            buffer.observations[first] = observations
            buffer.restarted[first:] = 0
            buffer.absent[first:] = False
        compiled = fused_agents(self.environments, self.distribution, actors)
        finals: list[FinalObservations] = [[] for _ in buffers]
        filled = first
        while filled < len(buffers[0].rewards) and not self.stop[0]:
            if compiled is not None:
                last = min(filled + compiled.num_rows, len(buffers[0].rewards))
                more = compiled.fill(buffers, filled, last)
            else:
                last, more = filled + 1, self._step(buffers, actors, filled)
            for of_policy, new in zip(finals, more, strict=True):
                of_policy += new
            filled = last
        self._observations = [buffer.observations[filled].copy() for buffer in buffers]
        self._done = {kind: (filled, of_policy) for kind, of_policy in enumerate(finals)}
        self.seconds = time.perf_counter() - start

    def _step(self, buffers: list[RolloutBuffer], actors: list[SamplingActor], t: int) -> list[FinalObservations]:
        """One row of all."""
        environments, distribution = self.environments, self.distribution
        shape, dtype = distribution.action_shape, distribution.action_dtype
        actions = np.empty((environments.num_envs, *shape), dtype)
        for buffer, actor, columns in zip(buffers, actors, self.columns, strict=True):
            buffer.outputs[t] = actor(buffer.observations[t])
            buffer.actions[t] = distribution.sample(buffer.outputs[t], buffer.noise[t])
            actions[columns] = buffer.actions[t]
        observations, rewards, terminated, truncated, finals_of, of_finals = environments.step(
            distribution.to_env(actions)
        )
        for buffer, columns in zip(buffers, self.columns, strict=True):
            buffer.observations[t + 1] = observations[columns]
            buffer.rewards[t], buffer.terminated[t] = rewards[columns], terminated[columns]
            buffer.truncated[t], buffer.absent[t] = truncated[columns], environments.absent[columns]
        finals: list[FinalObservations] = [[] for _ in buffers]
        for column, final in zip(finals_of, of_finals, strict=True):
            finals[int(self._policy_of[column])].append((t, int(self._place[column]), final))
        return finals


class PolicySampler(BaseSampler):
    """What one policy samples, filled together with what the others do.

    Args:
        together: steps the environments; closed with any of its samplers.
        kind: the number of the policy.
        num_steps: `T`.
        noise: owner of the actions' randomness.
    """

    def __init__(self, together: Together, kind: int, *, num_steps: int, noise: np.random.Generator) -> None:
        self._together, self._kind = together, kind
        encode, distribution = together.environments.encode, together.distribution
        layout = RolloutBuffer.layout(num_steps, len(together.columns[kind]), encode, distribution)
        arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in layout.items()}
        super().__init__(
            together.stop, [RolloutBuffer(**arrays)], distribution, encode, skips_row_after_end=False, noise=noise
        )

    def _begin(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._together.begin(self._kind, buffer, actor, first)

    def _end(self) -> tuple[int, FinalObservations]:
        return self._together.end(self._kind)

    def _stepper_state(self) -> StepperState:
        states, observations = self._together.state(self._kind)
        return states, observations, np.zeros((self.num_envs, 0), np.float32)

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        self._together.load_state(self._kind, states, observation)

    @property
    def rows_filled(self) -> int:
        """Of the rollout under way; 0 where none is."""
        return self._under_way.filled if self._under_way is not None else 0

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._together.seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._together.restart(env_seed)

    def close(self) -> None:  # noqa: D102 - as in the base
        self.request_stop()
        self._together.environments.close()
