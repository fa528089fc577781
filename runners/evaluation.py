"""Evaluation: whole episodes with a fixed actor. Free of torch, for processes that evaluate beside a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridppo.environments.base import Environments
from hybridppo.interruption import Stopped
from hybridppo.spaces.distributions import Distribution

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of the episodes, in no particular order."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))


def evaluate(
    actor: SamplingActor,
    distribution: Distribution,
    environments: Environments,
    *,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    on_episode: Callable[[], object] = lambda: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Run `episodes` episodes from freshly reset environments.

    How many each environment contributes is fixed beforehand: taking the first to finish would favour
    short episodes.

    Args:
        actor: the policy.
        distribution: of its actions.
        environments: `N` of them, reset here; the caller closes them.
        episodes: how many in all.
        seed: of the environments and, where not deterministic, of the actions.
        deterministic: take the most probable action instead of a random one.
        on_episode: called after each episode.
        should_stop: asked before each step.

    Raises:
        Stopped: where `should_stop` says so.
    """
    num_envs = environments.num_envs
    remaining = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    running_return, running_length = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)
    resetting = np.zeros(num_envs, dtype=np.bool_)
    noise = np.random.default_rng(seed)
    returns: list[float] = []
    lengths: list[int] = []
    observations = environments.reset(seed)
    while remaining.any():
        if should_stop():
            raise Stopped
        outputs = actor(observations)
        if deterministic:
            actions = distribution.mode(outputs)
        else:
            actions = distribution.sample(outputs, distribution.draw_noise(noise, (num_envs,)))
        observations, rewards, terminated, truncated, _, _ = environments.step(distribution.to_env(actions))
        running_return += np.where(resetting, 0.0, rewards)
        running_length += ~resetting
        ended = terminated | truncated
        for restarted in environments.restarted:
            if not ended[restarted]:  # its episode was broken off
                running_return[restarted], running_length[restarted] = 0.0, 0
        for env in np.flatnonzero(ended):
            if remaining[env]:
                remaining[env] -= 1
                returns.append(float(running_return[env]))
                lengths.append(int(running_length[env]))
                on_episode()
            running_return[env], running_length[env] = 0.0, 0
        if environments.skips_row_after_end:
            resetting = ended
    return Evaluation(tuple(returns), tuple(lengths))
