"""The in-process sampler: steps environments with an actor and fills a rollout."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridppo.distributions import Distribution
from hybridppo.envs import Environments
from hybridppo.episodes import EpisodeStatistics
from hybridppo.interfaces import SamplingActor
from hybridppo.rollout import Rollout

Array = NDArray[Any]


class Sampler:
    """Steps `N` environments `T` times per rollout, where the last rollout left them.

    Args:
        environments: the `N` environments.
        distribution: of the action space.
        num_steps: `T`.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness; one `[T, N]` block is drawn from it per rollout.
        pin_memory: keep rollouts in page-locked memory, for fast copies to a GPU.
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
    ) -> None:
        self.environments = environments
        self.statistics = EpisodeStatistics(environments.num_envs)
        self.env_steps = 0
        self._distribution = distribution
        self._noise = noise
        self._allocate(num_steps, pin_memory)
        self._observation = environments.reset(env_seed)
        # Environments about to spend a row on their reset; only where that is how they reset.
        self._resetting = np.zeros(environments.num_envs, dtype=np.bool_)

    def _allocate(self, num_steps: int, pin_memory: bool) -> None:
        leading = (num_steps, self.environments.num_envs)
        distribution = self._distribution

        def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
            array = torch.from_numpy(np.empty(shape, dtype=dtype))
            return (array.pin_memory() if pin_memory else array).numpy()

        self._observations = empty((num_steps + 1, leading[1], self.environments.encode.size))
        self._outputs = empty((*leading, distribution.output_size))
        self._actions = empty((*leading, *distribution.action_shape), distribution.action_dtype)
        self._rewards = empty(leading)
        self._terminated = empty(leading, np.bool_)
        self._truncated = empty(leading, np.bool_)

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment. The rollout's arrays are reused by the next call."""
        num_steps, num_envs = self._rewards.shape
        distribution, step = self._distribution, self.environments.step
        noise = distribution.draw_noise(self._noise, (num_steps, num_envs))
        final_rows: list[int] = []
        final_observations: list[Array] = []
        self._observations[0] = self._observation
        for t in range(num_steps):
            self._outputs[t] = actor(self._observations[t])
            self._actions[t] = distribution.sample(self._outputs[t], noise[t])
            (
                self._observations[t + 1],
                self._rewards[t],
                self._terminated[t],
                self._truncated[t],
                final_envs,
                finals,
            ) = step(distribution.to_env(self._actions[t]))
            if final_envs:
                final_rows += [t * num_envs + env for env in final_envs]
                final_observations += finals
        self._observation = self._observations[-1].copy()

        ended = self._terminated | self._truncated
        valid = self._valid_rows(ended)
        self.statistics.add(self._rewards, ended & valid, valid)
        self.env_steps += int(valid.sum())
        return self._rollout(valid, final_rows, final_observations, actor.version)

    def _valid_rows(self, ended: Array) -> Array:
        """Which rows are steps, `[T, N]`: all, or all but those that environments spend on their reset."""
        valid = np.ones_like(ended)
        if self.environments.skips_row_after_end:
            valid[0] = ~self._resetting
            valid[1:] = ~ended[:-1]
            self._resetting = ended[-1].copy()
        return valid

    def _rollout(self, valid: Array, final_rows: list[int], final_observations: list[Array], version: int) -> Rollout:
        actions = torch.from_numpy(self._actions)
        # The behaviour log-probabilities, from the very outputs that the actions were drawn from.
        log_probs, _ = self._distribution.log_prob_and_entropy(torch.from_numpy(self._outputs), actions)
        finals = np.stack(final_observations) if final_observations else self._observations[:0, 0]
        return Rollout(
            observations=torch.from_numpy(self._observations),
            actions=actions,
            log_probs=log_probs,
            rewards=torch.from_numpy(self._rewards),
            terminated=torch.from_numpy(self._terminated),
            truncated=torch.from_numpy(self._truncated),
            valid_rows=torch.from_numpy(np.flatnonzero(valid)),
            final_rows=torch.tensor(final_rows, dtype=torch.int64),
            final_observations=torch.from_numpy(finals),
            version=version,
        )

    def close(self) -> None:
        """Release the environments; a second call does nothing."""
        self.environments.close()

    def state(self) -> dict[str, Any]:
        """What `load_state` takes, as JSON can hold it. The environments' own state is not in it."""
        return {
            "env_steps": self.env_steps,
            "noise": self._noise.bit_generator.state,
            "statistics": self.statistics.state(),
        }

    def load_state(self, state: dict[str, Any], *, env_seed: int) -> None:
        """Go on from a saved state, in environments that start anew from `env_seed`."""
        self.env_steps = state["env_steps"]
        self._noise.bit_generator.state = state["noise"]
        self.statistics.load_state(state["statistics"])
        self.statistics.drop_running()
        self._observation = self.environments.reset(env_seed)
        self._resetting[:] = False
