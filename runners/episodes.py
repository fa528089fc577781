"""Evaluation: whole episodes with a fixed actor. Processes that evaluate use this file without torch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridppo.distributions.base import Distribution, Drawing
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.infos import metrics_of
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import source_here
from hybridppo.errors import ConfigurationError, EnvError
from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.runners.filling import EpisodeMemory, process_kept
from hybridppo.runners.processes import Answer, SharedArrays, answer_trainer
from hybridppo.spaces.arrays import Array
from hybridppo.system.messages import shown_number, shown_returns
from hybridppo.system.seeds import global_draws_warned_of, seed_globals
from hybridppo.system.signals import Stopped

if TYPE_CHECKING:
    from hybridppo.interfaces import SamplingActor

logger = logging.getLogger(__name__)

MOST_SIDE_BY_SIDE = 32
"""Environments that an evaluation steps together."""
SECONDS_OF_AN_EPISODE = 60.0
"""If no episode ends for this long, a warning says that episodes may be endless."""


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of episodes, in no particular order; for several agents, of each agent."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    agents: tuple[str, ...] = ()
    """The agent of each return, if environments have several agents."""
    infos: Mapping[str, float] = field(default_factory=dict)
    """With `info_metrics`, their means over steps and over episodes, by metric name."""

    def of_agents(self, names: Collection[str]) -> Evaluation:
        """The returns and lengths of these agents; none if they missed all episodes."""
        own = [name in names for name in self.agents]
        returns, lengths = tuple(compress(self.returns, own)), tuple(compress(self.lengths, own))
        return Evaluation(returns, lengths, tuple(compress(self.agents, own)))

    @property
    def return_mean(self) -> float:
        """Mean return; nan if there is none."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def return_std(self) -> float:
        """Standard deviation of the returns; nan if there is none."""
        return float(np.std(self.returns)) if self.returns else math.nan

    def __str__(self) -> str:
        """The returns and the mean length; with several agents, a line for each."""
        names = dict.fromkeys(self.agents)
        if names:
            return "\n".join(f"{name}: {replace(self.of_agents({name}), agents=())}" for name in names)
        length = f", length {shown_number(float(np.mean(self.lengths)))}" if self.lengths else ""
        return shown_returns(self.return_mean, self.return_std, len(self.returns)) + length


@np.errstate(under="ignore")  # as in a training
@global_draws_warned_of()
@process_kept()
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
    is_over: Callable[[], bool] = lambda: False,
    memory: MemoryLayout | None = None,
    warns_of_bounds: bool = True,
) -> Evaluation:
    """Run `episodes` episodes from freshly reset environments.

    The number of episodes of each environment is fixed beforehand, because taking the first to finish would favour
    short episodes. Infos of other episodes do not count. With several agents, an episode ends when the last agent has
    left, and each agent's return counts.

    Args:
        actor: the policy.
        distribution: distribution of its actions.
        environments: `N` environments, which are reset here; the caller closes them.
        episodes: number of episodes in all.
        seed: seed of the environments and, if not deterministic, of the actions.
        deterministic: take deterministic actions instead of random ones.
        on_episode: called after each episode.
        should_stop: called before each step.
        is_over: called before each step; if it returns True, the evaluation has the episodes that ended before.
        memory: layout of the state of a recurrent actor.
        warns_of_bounds: whether to look for numbers out of bounds in the first and the last observations.

    Raises:
        Stopped: if `should_stop` returns True.
    """
    if environments.info_names:  # nothing of an evaluation before this one
        environments.measure_infos(environments.info_names)
    tally = _Tally(environments, episodes, on_episode)
    drawing = Drawing(distribution, np.random.default_rng(seed), environments.num_envs)
    observations = first = environments.reset(seed)
    remembered = EpisodeMemory.of(environments, memory)
    if remembered is not None:
        remembered.begin(actor)
    while tally.episodes_left and not is_over():
        if should_stop():
            raise Stopped
        if remembered is not None:
            remembered.forget(actor)
        actions = distribution.mode(actor(observations)) if deterministic else drawing.actions(actor, observations)
        observations, rewards, terminated, truncated, _, _ = environments.step(distribution.to_env(actions))
        environments.check_rewards(rewards[None])
        ends = terminated | truncated
        if remembered is not None:
            remembered.after(actor, ends, environments.restarted, environments.waiting)
        tally.add(rewards, ends)
    if warns_of_bounds:
        nobody = np.zeros(environments.num_envs, np.bool_)
        absent = nobody if environments.absent is None else environments.absent
        environments.encode.warned_of_bounds(np.stack((first, observations)), np.stack((absent, absent)))
    infos = metrics_of([environments.take_infos()]) if environments.info_names else {}
    return Evaluation(tuple(tally.returns), tuple(tally.lengths), tuple(tally.agents), infos)


def made_for(
    agent: Any, source: EnvSource, num_envs: int, options: EnvironmentOptions, *, own_number: bool = False
) -> Environments:
    """New environments for an agent, or for an object with its `observation_space` and `action_space`.

    Raises:
        EnvError: if they cannot be made, or have other spaces.
    """
    environments = make_environments(source, num_envs, options, own_number=own_number)
    try:
        require_spaces_of(agent, environments)
    except (EnvError, ConfigurationError):
        environments.close()
        raise
    return environments


@dataclass(frozen=True)
class Episodes:
    """The episodes of every evaluation during a training."""

    source: EnvSource
    """Makes the environments."""
    options: EnvironmentOptions
    spaces: Any
    """An object with the required `observation_space` and `action_space`."""
    distribution: Distribution
    episodes: int
    seed: int
    memory: MemoryLayout | None
    """Layout of the state of a recurrent actor."""

    @property
    def num_envs(self) -> int:
        """The number of environments; a function may make a vector of another number."""
        return min(self.episodes, MOST_SIDE_BY_SIDE)

    def make(self) -> Environments:
        """New environments."""
        return made_for(self.spaces, self.source, self.num_envs, self.options, own_number=True)

    def run(self, actor: SamplingActor, environments: Environments, should_stop: Callable[[], bool]) -> Evaluation:
        """As `evaluate`."""
        return evaluate(
            actor, self.distribution, environments,
            episodes=self.episodes, seed=self.seed, should_stop=should_stop, memory=self.memory,
            warns_of_bounds=False,  # the training does so
        )  # fmt: skip


class _Tally:
    """The returns of unfinished episodes, and of the ended episodes that count.

    Args:
        environments: the environments.
        episodes: number of episodes that count.
        on_episode: called after each of them.
    """

    def __init__(self, environments: Environments, episodes: int, on_episode: Callable[[], object]) -> None:
        self._environments, self._on_episode = environments, on_episode
        columns, self._num_agents = environments.num_envs, environments.num_agents
        num_envs = columns // self._num_agents
        self.remaining = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
        """For each environment, the number of episodes still to finish."""
        for env in np.flatnonzero(self.remaining == 0).tolist():
            environments.leave_out_infos(env)
        self.episodes_left = episodes
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.agents: list[str] = []
        self._return, self._length = np.zeros(columns), np.zeros(columns, dtype=np.int64)
        self._have_left: list[list[tuple[float, int, int]]] = [[] for _ in range(num_envs)]
        """The return, length and number of the agents that have left each environment's episode."""
        self._warns_at: float = time.monotonic() + SECONDS_OF_AN_EPISODE
        self._resetting: Array | None = None
        """Columns whose next row begins an episode and is not a step; None if there are none."""

    def add(self, rewards: Array, ends: Array) -> None:
        """Count one step of all environments: rewards and episode ends, `[N]`."""
        if time.monotonic() > self._warns_at:
            logger.warning(
                "no episode of the evaluation has ended for %.0f seconds, and it waits for %d: if they may be endless, "
                "limit them, as by gymnasium.wrappers.TimeLimit(env, max_episode_steps=1000)",
                SECONDS_OF_AN_EPISODE, self.episodes_left,
            )  # fmt: skip
            self._warns_at = math.inf
        environments = self._environments
        ended, no_steps, absent = ends, self._resetting, environments.absent
        if absent is not None:
            ended = ends & ~absent
            no_steps = absent if no_steps is None else no_steps | absent
        if no_steps is None:  # most rows are steps of all columns; for a small policy, every array operation costs time
            self._return += rewards
            self._length += 1
        else:
            self._return += np.where(no_steps, 0.0, rewards)
            self._length += ~no_steps
        for restarted in environments.restarted:
            env = restarted // self._num_agents
            if not ended[env * self._num_agents : (env + 1) * self._num_agents].any():  # it broke off an episode
                self._return[restarted], self._length[restarted] = 0.0, 0
                self._have_left[env].clear()
        self._resetting = None
        if not ended.any():
            return
        for column in np.flatnonzero(ended).tolist():
            env, agent = divmod(column, self._num_agents)
            self._have_left[env].append((float(self._return[column]), int(self._length[column]), agent))
            self._return[column], self._length[column] = 0.0, 0
        self._count_environments(ended, ended if no_steps is None else ended | no_steps)
        if environments.skips_row_after_end:
            self._resetting = ended

    def _count_environments(self, ended: Array, gone: Array) -> None:
        """Count environments whose last agent has ended its episode."""
        by_env = (len(self.remaining), self._num_agents)
        is_over = gone.reshape(by_env).all(1) & ended.reshape(by_env).any(1)
        for env in np.flatnonzero(is_over).tolist():
            have_left, self._have_left[env] = self._have_left[env], []
            if not self.remaining[env]:
                continue
            for episode_return, length, agent in have_left:
                self.returns.append(episode_return)
                self.lengths.append(length)
                self.agents += self._environments.agents[agent : agent + 1]
            self.remaining[env] -= 1
            if not self.remaining[env]:
                self._environments.leave_out_infos(env)
            self.episodes_left -= 1
            if self._warns_at < math.inf:  # it has not warned yet
                self._warns_at = time.monotonic() + SECONDS_OF_AN_EPISODE
            self._on_episode()


@contextmanager
def serving(setup: dict[str, Any], envs: slice, seed: int, arrays: SharedArrays, heartbeat: Array) -> Iterator[Answer]:
    """A context with environments; the function evaluates parameters. Counted steps show that it does not hang."""
    episodes = replace(setup["episodes"], source=source_here(setup["source"], setup["options"].imports))
    seed_globals(seed, "making environments")
    environments, stop = episodes.make(), arrays["stop"]
    seed_globals(seed, "stepping environments")

    def should_stop() -> bool:
        heartbeat[0] += 1
        return bool(stop[0])

    def answer(kind: str, parameters: Any) -> tuple[Any, float]:
        try:
            return episodes.run(setup["form"].actor(parameters), environments, should_stop), 0.0
        except Stopped:
            return None, 0.0

    try:
        yield answer
    finally:
        environments.close()


def main() -> None:
    """Evaluate in a process that `Evaluator` has started."""
    answer_trainer(serving)
