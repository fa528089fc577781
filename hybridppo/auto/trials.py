"""A trial: trains briefly under a placement, as the training itself would, with its own environments and agent."""

import contextlib
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from hybridppo.agents.ddpg import DDPGConfig
from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig, agent_class, make_agent, replaced
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.interfaces import Metrics
from hybridppo.networks.modes import float32_products
from hybridppo.placements.placement import Migrating, Mirrored, Placement, SingleDevice
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.runner import Runner
from hybridppo.system.devices import accelerator_of
from hybridppo.system.seeds import generators_untouched
from hybridppo.system.threads import limit_threads

Name = Literal["cpu", "cuda", "migrate", "hybrid", "overlap"]
PARTS = ("sampling", "learning", "copying")
WARMUP_TURNS = 3
"""Warm-up turns of an agent with a replay buffer: the first turns load and allocate."""
FEWEST_TURNS = 10
"""The fewest turns of such an agent, since they are short."""
TURNS_BEFORE_REPLAYS = 2
"""Further warm-up turns if a device records optimizer steps: one meets the sizes of minibatches, one records them."""
NOT_REPLAYED = ("graph_recordings", "graph_eager_steps")
"""Metrics of optimizer steps that were not replayed by a device that records them."""
BUFFER = 10_000
"""Transitions in the replay buffer of a trial."""


@dataclass(frozen=True)
class Candidate:
    """A placement with its number of worker processes and torch threads."""

    name: Name
    device: str = "cpu"
    """Where it learns; with "cuda", it also samples there."""
    num_workers: int = 0
    torch_threads: int = 1
    max_lag: int = 0
    """By how many updates the parameters that sample may be behind, if sampling and learning overlap."""

    @property
    def label(self) -> str:
        """The candidate in a few words."""
        parts = [f"overlap on {self.device}" if self.name == "overlap" and self.device != "cpu" else self.name]
        if self.num_workers:
            parts.append(f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}")
        if self.torch_threads > 1:
            parts.append(f"{self.torch_threads} threads")
        if self.max_lag > 1:
            parts.append(f"max_lag={self.max_lag}")
        return ", ".join(parts)

    @property
    def placement(self) -> Placement:
        """The placement. Between equal devices it makes real copies: else it would be the same as `cpu`."""
        if self.name in ("cpu", "cuda"):
            return SingleDevice(self.device)
        if self.name == "overlap":
            return Mirrored("cpu", self.device, max_lag=self.max_lag)
        kind = Mirrored if self.name == "hybrid" else Migrating
        return kind("cpu", self.device, force_copy=self.device == "cpu")


@dataclass(frozen=True)
class Trial:
    """Seconds of an iteration under a candidate: the first three fields add up to it."""

    candidate: Candidate
    sampling: float
    """Spent waiting for the sampler."""
    learning: float
    copying: float
    start: float
    """How long the worker processes take to start, once."""
    steps: int
    """Environment steps of an iteration."""

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        return self.sampling + self.learning + self.copying

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second."""
        return self.steps / self.iteration

    def seconds_of_run(self, env_steps: int) -> float:
        """Seconds of a run of so many environment steps, with the start of the worker processes."""
        return self.start + max(1, round(env_steps / self.steps)) * self.iteration

    def to_json(self) -> dict[str, Any]:
        """The trial, as JSON can hold it."""
        values = asdict(self)
        more = {"label": self.candidate.label, "iteration": self.iteration, "steps_per_second": self.steps_per_second}
        return {**values.pop("candidate"), **more, **values}


@dataclass(frozen=True)
class Training:
    """The training that trials imitate, each with its own environments and agent."""

    source: EnvSource
    config: AnyConfig
    options: EnvironmentOptions
    agent: AnyAgent | None = None
    """The agent to imitate; None for one made from the configuration."""

    def optimizer_steps(self, env_steps: int, *, learns: bool = False) -> int:
        """Optimizer steps in a run of so many environment steps; with `learns`, from the start of learning on."""
        config = self.config
        if isinstance(config, PPOConfig | PoliciesConfig):
            return sum(
                -(-env_steps // each.batch_size) * each.num_epochs * each.minibatches_of(each.batch_size)
                for name, each in config.policies.items()
                if name not in config.played
            )
        left = env_steps if learns else max(0, env_steps - config.learning_starts)
        return left // (config.train_frequency * config.num_envs) * config.steps_per_update

    def try_out(self, candidate: Candidate, seconds: float, share: float = 1.0, deadline: float = math.inf) -> Trial:
        """Train under a candidate for so many seconds after a warm-up, and at least for an iteration.

        Args:
            candidate: what to try.
            seconds: how long to train.
            share: the share of an iteration to try: PPO's rollouts are shortened to it, with fewer minibatches.
            deadline: when to break off an update, as `time.perf_counter` counts. An iteration may take many times as
                long as expected, as with more threads than free cores.

        Raises:
            Stopped: if an update was broken off.
            HybridPPOError, RuntimeError, MemoryError: as training under the candidate would.
        """
        config = replaced(self.config, torch_threads=candidate.torch_threads)
        small, times = shortened(config, share)
        warmup, fewest = _iterations(small)
        placement = candidate.placement
        # Environments may draw from the global generators.
        with generators_untouched(), torch.random.fork_rng([]), contextlib.ExitStack() as stack:
            stack.enter_context(limit_threads(candidate.torch_threads))
            devices = placement.sampling_device, placement.learning_device
            stack.enter_context(float32_products(small.precision, *devices))
            stack.enter_context(np.errstate(under="ignore"))  # as in a training
            copies = 1 if candidate.num_workers else None
            environments = make_environments(self.source, small.num_envs, self.options, copies=copies)
            stack.callback(environments.close)
            spaces = environments.observation_space, environments.action_space
            like: Any = None if self.agent is None else self.agent.like
            agent: AnyAgent = make_agent(agent_class(small), *spaces, small, seed=0) if like is None else like(small)
            agent.should_stop = lambda: time.perf_counter() > deadline
            placement.prepare(agent)
            if agent.records_graphs and accelerator_of(placement.learning_device).is_asynchronous:
                warmup += TURNS_BEFORE_REPLAYS
            begun = time.perf_counter()
            sampler = make_sampler(
                self.source,
                environments,
                agent,
                placement,
                num_envs=small.num_envs,
                num_steps=small.num_steps,
                num_episodes=small.episodes_per_rollout,
                num_workers=candidate.num_workers,
                options=self.options,
                env_seed=0,
                noise=np.random.default_rng(0),
            )
            stack.callback(sampler.close)
            start = time.perf_counter() - begun
            runner = Runner(agent, sampler, placement, total_steps=2**62)
            for _ in range(warmup):
                runner.iterate()
            rows: list[Metrics] = []
            steps, end = sampler.counts.env_steps, time.perf_counter() + seconds
            while len(rows) < fewest or time.perf_counter() < end:
                rows.append(runner.iterate())
            steps = (sampler.counts.env_steps - steps) // len(rows)
        # Soon in a training, the sizes of all minibatches are recorded.
        not_replayed = [sum(row.get(name, 0) for name in NOT_REPLAYED) for row in rows]
        rows = [row for row, count in zip(rows, not_replayed, strict=True) if count == min(not_replayed)]
        found = {part: times * statistics.median(row[f"seconds_{part}"] for row in rows) for part in PARTS}
        return Trial(candidate, **found, start=start, steps=round(times * steps))


def _iterations(config: AnyConfig) -> tuple[int, int]:
    """How many iterations of a trial are not counted, and how many are at least."""
    if isinstance(config, DDPGConfig):
        return WARMUP_TURNS, FEWEST_TURNS
    # With a pool, an update takes its usual time once the pool is full.
    return max(each.pool_size for each in config.policies.values()), 1


def shortened(config: AnyConfig, share: float) -> tuple[AnyConfig, float]:
    """A configuration with shorter iterations, and how many of them make one configured iteration.

    PPO's minibatches keep their size. An agent with a replay buffer learns from its first turn on, and each turn is an
    iteration. With several policies, iterations keep their length.
    """
    if isinstance(config, PoliciesConfig):
        return config, 1.0
    if isinstance(config, PPOConfig):
        whole = config.minibatches_of(config.batch_size)
        unit = config.sequence_length if config.recurrent is not None else 1
        num_steps, minibatches = config.num_steps, config.num_minibatches
        for count in range(max(1, math.ceil(share * whole)), whole):
            steps, rest = divmod(config.num_steps * count, whole)
            if rest == 0 and steps % unit == 0:
                num_steps, minibatches = steps, count
                break
        # It is not known how many epochs target_kl would skip, so none is skipped.
        size = None if minibatches else config.minibatch_size
        small = replace(config, num_steps=num_steps, num_minibatches=minibatches, minibatch_size=size, target_kl=None)
        return small, config.num_steps / num_steps
    turn = config.num_envs * config.train_frequency
    room = max(BUFFER, turn, config.n_steps * config.num_envs)
    size = min(config.buffer_size, room)
    turns = max(1.0, config.steps_per_iteration / turn)
    return replace(config, learning_starts=0, steps_per_iteration=turn, buffer_size=size), turns
