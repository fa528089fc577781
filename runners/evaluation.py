"""Evaluation: whole episodes with a fixed actor. Free of torch, for processes that evaluate beside a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments
from hybridppo.interruption import Stopped
from hybridppo.rollouts.memory import EpisodeMemory, MemoryLayout
from hybridppo.spaces.distributions import Distribution
from hybridppo.spaces.state_dependent import Drawing

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of the episodes, in no particular order; where there are agents, of each."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    agents: tuple[str, ...] = ()
    """Whose each of them was, where environments have several agents."""

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
    memory: MemoryLayout | None = None,
) -> Evaluation:
    """Run `episodes` episodes from freshly reset environments.

    How many each environment contributes is fixed beforehand: taking the first to finish would favour
    short episodes. Where environments have several agents, an episode is one of the environment: it is over when the
    last agent has left, and each agent's return counts.

    Args:
        actor: the policy.
        distribution: of its actions.
        environments: `N` of them, reset here; the caller closes them.
        episodes: how many in all.
        seed: of the environments and, where not deterministic, of the actions.
        deterministic: take the most probable action instead of a random one.
        on_episode: called after each episode.
        should_stop: asked before each step.
        memory: the actor's, where it has one.

    Raises:
        Stopped: where `should_stop` says so.
    """
    num_agents, columns = environments.num_agents, environments.num_envs
    num_envs = columns // num_agents
    remaining = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    episodes_left = episodes
    running_return, running_length = np.zeros(columns), np.zeros(columns, dtype=np.int64)
    resetting: NDArray[np.bool_] | None = None
    drawing = Drawing(distribution, np.random.default_rng(seed), columns)
    returns: list[float] = []
    lengths: list[int] = []
    agents: list[str] = []
    observations = environments.reset(seed)
    remembered: EpisodeMemory | None = None
    if memory is not None:
        remembered = EpisodeMemory(num_envs, memory, environments.skips_row_after_end)
        remembered.begin(actor)
    while episodes_left:
        if should_stop():
            raise Stopped
        if remembered is not None:
            remembered.forget(actor)
        actions = distribution.mode(actor(observations)) if deterministic else drawing.actions(actor, observations)
        observations, rewards, terminated, truncated, _, _ = environments.step(distribution.to_env(actions))
        ended = terminated | truncated
        if remembered is not None:
            remembered.after(ended, environments.restarted)
        no_steps, absent = resetting, environments.absent
        if absent is not None:
            ended = ended & ~absent
            no_steps = absent if no_steps is None else no_steps | absent
        if no_steps is None:  # most steps are of everybody, and of a small policy every operation on arrays counts
            running_return += rewards
            running_length += 1
        else:
            running_return += np.where(no_steps, 0.0, rewards)
            running_length += ~no_steps
        for restarted in environments.restarted:
            if not ended[restarted]:  # its episode was broken off
                running_return[restarted], running_length[restarted] = 0.0, 0
        resetting = None
        if not ended.any():
            continue
        for column in np.flatnonzero(ended).tolist():
            if remaining[column // num_agents]:
                returns.append(float(running_return[column]))
                lengths.append(int(running_length[column]))
                agents += environments.agents[column % num_agents : column % num_agents + 1]
            running_return[column], running_length[column] = 0.0, 0
        gone = ended if no_steps is None else ended | no_steps
        is_over = gone.reshape(num_envs, num_agents).all(1) & ended.reshape(num_envs, num_agents).any(1)
        for env in np.flatnonzero(is_over & (remaining > 0)):
            remaining[env] -= 1
            episodes_left -= 1
            on_episode()
        if environments.skips_row_after_end:
            resetting = ended
    return Evaluation(tuple(returns), tuple(lengths), tuple(agents))
