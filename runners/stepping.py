"""The inner loop of sampling: `T` steps of some environments, written into arrays. Free of torch, for workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.distributions import Distribution
from hybridppo.envs import Environments, EnvState
from hybridppo.observations import ObservationEncoder

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor

Array = NDArray[Any]

Finals = list[tuple[int, int, Array]]
"""Step, environment and observation `[obs]` of truncated episodes whose final observation is not the step's next."""

Flag = bytearray | memoryview
"""One byte: whether to stop. Shared memory where another process sets it."""

NEVER: Flag = bytearray(1)


@dataclass(frozen=True)
class Block:
    """The arrays of one rollout, time-major."""

    observations: Array
    """`[T + 1, N, *obs]`, as `ObservationEncoder` gives them."""
    outputs: Array
    """`[T, N, outputs]`, of the actor."""
    actions: Array
    """`[T, N, *action]`, as drawn."""
    rewards: Array
    """`[T, N]`, like the three below."""
    terminated: Array
    truncated: Array
    remade: Array
    """`[T, N]`: how often the environment was made anew in the step, see `Environments.remade`."""
    noise: Array
    """`[T, N, noise]`, drawn beforehand."""

    @staticmethod
    def layout(
        num_steps: int, num_envs: int, encode: ObservationEncoder, distribution: Distribution
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every array, by name."""
        leading, float32 = (num_steps, num_envs), "float32"
        return {
            "observations": ((num_steps + 1, num_envs, *encode.shape), encode.dtype.name),
            "outputs": ((*leading, distribution.output_size), float32),
            "actions": ((*leading, *distribution.action_shape), np.dtype(distribution.action_dtype).name),
            "rewards": (leading, float32),
            "terminated": (leading, "bool"),
            "truncated": (leading, "bool"),
            "remade": (leading, "int32"),
            "noise": ((*leading, distribution.noise_size), float32),
        }

    def of(self, envs: slice) -> Block:
        """The part of some environments, a view."""
        return Block(**{field.name: getattr(self, field.name)[:, envs] for field in fields(self)})

    def first(self, num_steps: int) -> Block:
        """The first steps, a view."""
        parts = {field.name: getattr(self, field.name)[:num_steps] for field in fields(self)}
        return Block(**{**parts, "observations": self.observations[: num_steps + 1]})

    def copy_from(self, shorter: Block) -> None:
        """Take over the first rows from a block of fewer steps."""
        for field in fields(self):
            rows = getattr(shorter, field.name)
            getattr(self, field.name)[: len(rows)] = rows


class Stepper:
    """Steps environments from where they were left.

    Args:
        environments: the `N` environments.
        distribution: of the action space.
        seed: the `i`-th environment starts from `seed + i`.
    """

    def __init__(self, environments: Environments, distribution: Distribution, seed: int) -> None:
        self._environments = environments
        self._distribution = distribution
        self._observation = environments.reset(seed)
        self._has_begun = False
        self.seconds = 0.0
        """How long the last `fill` took."""
        self.beat: Any = [0]
        """Its only number is how many rows are filled, for whoever wants to know whether it goes on."""

    def restart(self, seed: int) -> None:
        """Start every environment anew."""
        self._observation = self._environments.reset(seed)

    def state(self) -> tuple[list[EnvState], Array]:
        """Where the environments are, as `Environments.state`, and the observations to act on next, `[N, obs]`."""
        if not self._has_begun:
            self._begin()
        return self._environments.state(), self._observation

    def load_state(self, states: list[EnvState], observation: Array) -> None:
        """Go on from what `state` gave."""
        if not self._has_begun:
            self._begin()
        self._environments.load_state(states)
        self._observation = observation

    def _begin(self) -> None:
        self._has_begun = True
        self._environments.remember_the_start()

    def fill(
        self, block: Block, actor: SamplingActor, stop: Flag = NEVER, first: int = 0, end: int | None = None
    ) -> tuple[int, Finals]:
        """The next steps of every environment.

        Args:
            block: where to write them.
            actor: chooses actions.
            stop: looked at before each step; where it is set, the rest is left for another call.
            first: the row to begin with: 0, or where the last call has stopped.
            end: the row to end before; None fills the block.

        Returns:
            How many rows of the block are filled, and the final observations that these steps have brought.
        """
        environments = self._environments
        sample, to_env, step = self._distribution.sample, self._distribution.to_env, environments.step
        finals: Finals = []
        beat = self.beat
        self._has_begun = True
        start = time.perf_counter()
        block.observations[first] = self._observation
        block.remade[first:] = 0
        filled = len(block.rewards) if end is None else end
        for t in range(first, filled):
            if stop[0]:
                filled = t
                break
            outputs = actor(block.observations[t])
            actions = sample(outputs, block.noise[t])
            observations, rewards, terminated, truncated, final_envs, final_observations = step(to_env(actions))
            block.outputs[t] = outputs
            block.actions[t] = actions
            block.observations[t + 1] = observations
            block.rewards[t] = rewards
            block.terminated[t] = terminated
            block.truncated[t] = truncated
            beat[0] = t + 1
            if environments.remade:
                block.remade[t, list(environments.remade)] = list(environments.remade.values())
            if final_envs:
                pairs = zip(final_envs, final_observations, strict=True)
                finals += [(t, env, observation) for env, observation in pairs]
        environments.check_rewards(block.rewards[first:filled])
        self._observation = block.observations[filled].copy()
        self.seconds = time.perf_counter() - start
        return filled, finals
