"""Learners that train together, each a process with a share of the environments (`MultiLearner`).

All hold the same agent, and do the same with it: what one alone could know (its share of a rollout, its shards'
gradients, whether it was asked to stop, the first's clock) goes to all before anything depends on it.
"""

import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.ppo.exchanges import MinibatchShards, SummedShards, num_columns
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distribution import exchange
from hybridppo.distribution.choosing import choose_for_learners
from hybridppo.distribution.dividing import as_copies, placement_on_cpus, require_divisible
from hybridppo.distribution.launching import (
    SECONDS_TO_CLOSE,
    Launched,
    is_joining,
    master_of_torchrun,
    store_of_this_machine,
    store_of_torchrun,
)
from hybridppo.distribution.link import Link, text_of
from hybridppo.distribution.local import LocalTeam
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments, to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import pack
from hybridppo.errors import ConfigurationError, DistributionError, LearnerLostError
from hybridppo.interfaces import Agent
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.shared import SharedSampler
from hybridppo.runners.shared import SharedRunner
from hybridppo.runners.workers.losses import LOSSES_IN_A_ROW
from hybridppo.runs.distribution_policies import MultiLearner, distribution_of
from hybridppo.runs.job import Job
from hybridppo.runs.loading import fitting, rewind_to, tensors_of_agent
from hybridppo.runs.options import RunOptions
from hybridppo.system.interruption import Interruption

logger = logging.getLogger(__name__)

SECONDS_TO_START = 120.0
"""How long learners may at least take to start, load what they need, and make their environments."""
_OF_THE_FIRST: dict[str, Any] = {"evaluation_episodes": 0, "evaluate_every": 0, "target_return": None}
"""Options of what the first does alone, as the others have them."""
_HEADER = struct.Struct("<?dIq")


def start_timeout(timeout: float) -> float:
    """Within how many seconds all must have come."""
    return min(max(timeout, SECONDS_TO_START), 10.0**6)


class Team(LocalTeam):
    """One of the learners. While it is entered, those that it started are there.

    Args:
        rank: which it is.
        size: how many there are.
        shards: into how many parts a minibatch is cut.
        timeout: seconds after which one that does not answer is lost.
        joins: whether torchrun has started all of them.
    """

    def __init__(self, rank: int, size: int, shards: int, timeout: float, *, joins: bool = False) -> None:
        self.rank, self.size, self.shards = rank, size, shards
        self.link: Link | None = None
        """To the others, where there are any, as soon as they are there."""
        self._timeout, self._joins = timeout, joins
        self._launched: Launched | None = None
        self._agreed = Interruption()
        self._put_back: Callable[[], object] = bool
        self._seconds = 0.0
        self._fingerprint = (-1, 0)
        self._exchange: exchange.Exchange | None = None
        self._losses = Losses()
        # torchrun says how many of its processes are on this machine; those that are started here are all.
        self._are_neighbours = not joins or os.environ.get("LOCAL_WORLD_SIZE") == str(size)

    @classmethod
    def of(cls, policy: MultiLearner, timeout: float) -> "Team":
        """The learner that this process is: the first, or the one that torchrun says.

        Raises:
            ConfigurationError: where it is not known how many there are.
        """
        if is_joining():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            if policy.learners not in (None, size):
                raise ConfigurationError(
                    f"distribution {policy} has {policy.learners} learners, torchrun started {size}"
                )
            return cls(rank, size, policy.shards or size, timeout, joins=True)
        if policy.learners is None:
            raise ConfigurationError(
                "distribution multi without a number joins what torchrun has started, and this process was not: say "
                "how many learners to start (multi:2)"
            )
        return cls(0, policy.learners, policy.shards or policy.learners, timeout)

    def __enter__(self) -> "Team":
        if self._joins:
            seconds = start_timeout(self._timeout)
            store, store_at = store_of_torchrun(self.rank, seconds), master_of_torchrun()
            self.link = Link(
                store, self.rank, self.size, timeout=self._timeout, start_timeout=seconds,
                store_at=None if self._are_neighbours else store_at,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self.link is not None and not isinstance(error, DistributionError):
            self.link.report(text_of(error))
        self._let_go(SECONDS_TO_CLOSE if error is None else 0.0)

    def _let_go(self, seconds: float) -> None:
        """Of the others, who have so long to end by themselves."""
        self._put_back()
        if self._exchange is not None:
            self._exchange.close()
        if self._launched is not None:
            self._launched.close(seconds)
        if self.link is not None:
            self.link.close()

    def settled(self, run: RunOptions) -> RunOptions:
        """With the first's seed, and all numbers of the distribution, also those that followed from others."""
        seed = int(self._from_first(str(run.seed).encode()))
        return replace(run, seed=seed, distribution=str(MultiLearner(self.size, self.shards)))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        config = require_divisible(config, run, self.size, f"with {self.size} learners")
        units, most = "samples" if config.memory is None else "sequences", config.units // config.minibatches
        if most < self.shards:
            raise ConfigurationError(
                f"shards must be at most the {units} of a minibatch, {most}, got {self.shards}: take fewer, or lower "
                "num_minibatches"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:  # noqa: D102 - as in the base
        return as_copies(source, options, "learners", tells=self.rank == 0)

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """On CPUs."""
        return placement_on_cpus(meant)

    def choose(
        self, auto: Auto, source: EnvSource, environments: Environments, config: AnyConfig, *, agent: AnyAgent,
        total_steps: int, **options: Any,
    ) -> Choice:  # fmt: skip
        """The first measures, for as long as it takes; those that are there already take what it has found."""
        assert isinstance(config, PPOConfig)  # `check` has seen to it
        if self.rank > 0:
            assert self.link is not None
            return Choice(SingleDevice("cpu"), 0, int(self.link.hear()), {})
        policy = MultiLearner(self.size, self.shards)
        choice = choose_for_learners(
            policy, source, environments, config, options["options"], agent, total_steps=total_steps
        )
        if self.link is not None:
            self.link.tell(str(choice.torch_threads))
        return choice

    def environments(self, source: EnvSource, num_envs: int, options: EnvironmentOptions) -> Environments:
        """Copies, each seeded by its number: an environment's own vectorised form is seeded as a whole."""
        share = num_envs // self.size
        return make_environments(source, share, options, first=self.rank * share)

    def begin(self, job: Job) -> Job:
        """Start the others, where that is not done; all then hold what the first does."""
        agent, settings = job.agent, job.settings
        assert isinstance(agent, PPO)  # `check` has seen to it
        self._agent, self._own = agent, job.interruption
        self._put_back = partial(agent.share, None)
        agent.share(self._shards)
        if self.link is None and self.size > 1:
            self._launch(job)
        if self.link is not None:
            self.link.should_stop = lambda: job.interruption.requested
        tensors, state = agent.state()
        told: dict[str, Any] = {
            "settings": settings.to_json(),
            "saves": job.directory is not None,
            "agent": state,
            "checkpoint": None,
        }
        everything = {f"agent/{name}": tensor for name, tensor in tensors.items()}
        if job.checkpoint is not None:
            told["checkpoint"] = job.checkpoint.state
            everything |= {f"checkpoint/{name}": tensor for name, tensor in job.checkpoint.tensors.items()}
        tensors, told = _unpacked(self._from_first(_packed(everything, told) if self.rank == 0 else b""))
        if self.rank == 0:
            return job
        _require_same(told["settings"], settings.to_json(), self.rank)
        agent.load_state(_of("agent", tensors), told["agent"])
        checkpoint = None
        if told["checkpoint"] is not None:
            checkpoint = Checkpoint(_of("checkpoint", tensors), told["checkpoint"])
        return replace(
            job,
            settings=replace(settings, run=replace(settings.run, **_OF_THE_FIRST)),
            directory=Elsewhere({}) if told["saves"] else None,
            checkpoint=checkpoint,
            profile=False,
            reporting=replace(job.reporting, progress=False, callbacks=()),
        )

    def _launch(self, job: Job) -> None:
        """Start the others on this machine, and wait until they are there."""
        store = store_of_this_machine()
        source, own = job.env, job.agent.own
        setup = {
            "source": to_send(source),
            "settings": job.settings,
            "shards": self.shards,
            "team": type(self),
            "kind": type(job.agent),
            "own": {name: value for name, value in own.items() if name != "agent"},
        }
        self._launched = launched = Launched(self.size, store.port, pack(setup))
        self.link = Link(
            store, 0, self.size, timeout=self._timeout, start_timeout=start_timeout(self._timeout),
            how_it_ended=launched.how_it_ended,
        )  # fmt: skip

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """Each steps its share."""
        return SharedSampler(
            environments,
            agent.distribution,
            rank=self.rank,
            num_processes=self.size,
            num_steps=options["num_steps"],
            env_seed=options["env_seed"],
            noise=options["noise"],
            gather=self.gather,
            memory=agent.memory,
        )

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """One that stops, and saves, when all do."""
        options |= {"interruption": self._agreed, "clock": lambda: self._seconds}
        commands = self.link if self.link is not None else NobodyElse()
        return SharedRunner(agent, sampler, placement, is_first=self.rank == 0, commands=commands, **options)

    def regrouped(self, job: Job, lost: LearnerLostError) -> Job:
        """All but the first are ended, and others started; they take over the last checkpoint with it."""
        job = self._losses.next(job, lost, may=self.rank == 0 and not self._joins)
        self._let_go(0.0)
        self.link = self._launched = self._exchange = None
        self._fingerprint = (-1, 0)
        environments = self.environments(job.env, job.settings.config.num_envs, job.settings.environment)
        return replace(job, environments=environments)

    def end(self) -> None:
        """Let go of each other."""
        if self._joins:
            self.gather(b"")

    def gather(self, data: bytes) -> list[bytes]:
        """What each learner has to say. With it, all learn whether one was asked to stop, and the first's clock.

        Raises:
            DistributionError: where one is lost, or does not hold the same parameters.
        """
        version = self._agent.version
        if self._fingerprint[0] != version:
            values = self._agent.parameters.values.detach()
            on_host = torch.empty(values.shape).copy_(values)  # wherever they are
            self._fingerprint = version, zlib.crc32(on_host.numpy().tobytes())
        header = _HEADER.pack(self._own.requested, time.monotonic(), self._fingerprint[1], version)
        parts = [header + data] if self.link is None else self.link.gather(header + data)
        stops, clocks, fingerprints, versions = zip(*(_HEADER.unpack_from(part) for part in parts), strict=True)
        self._agreed.requested |= any(stops)
        self._seconds = clocks[0]
        held = list(zip(fingerprints, versions, strict=True))
        for rank in range(len(held)):
            if held[rank] != held[0]:
                raise DistributionError(
                    f"after {version} updates learner {rank} does not hold the parameters that learner 0 does: their "
                    "processors or libraries round differently. Use machines alike, or learners of one machine"
                )
        return [part[_HEADER.size :] for part in parts]

    def _shards(self) -> SummedShards:
        """What learners exchange of an update; all make it at once."""
        parameters = self._agent.parameters
        each, columns = self.shards // self.size, num_columns(parameters)
        if self._exchange is not None:
            self._exchange.close()
        if self.link is None:
            self._exchange = exchange.NoExchange(each, columns)
        else:
            way = exchange.InSharedMemory if self._are_neighbours else exchange.OverGloo
            self._exchange = way(self.link, each, columns)
        mine = slice(self.rank * each, (self.rank + 1) * each)
        agreeing = exchange.Agreeing(self._exchange, self._own, self._agreed)
        return MinibatchShards(parameters, agreeing, num_shards=self.shards, mine=mine)

    def _from_first(self, data: bytes) -> bytes:
        return data if self.link is None else self.link.from_first(data)


class Losses:
    """Counts the losses of a training, as far as no checkpoint lies between them."""

    def __init__(self) -> None:
        self._in_a_row, self._at = 0, -1

    def next(self, job: Job, lost: LearnerLostError, *, may: bool) -> Job:
        """The training as of its last checkpoint, agent included: what came after is given up, and done again.

        Args:
            job: of the training.
            lost: what happened.
            may: whether learners can be started from here at all.

        Raises:
            LearnerLostError: the same, where nobody asked for restarts, where there is no checkpoint to go on from, or
                where this has happened too often without another one between.
        """
        directory = job.directory
        if not (may and job.settings.environment.restarts) or directory is None or job.interruption.requested:
            raise lost
        if directory.is_untouched:
            raise lost
        checkpoint = directory.load_checkpoint(to_go_on=True)
        steps = rewind_to(directory, checkpoint)
        with fitting("this run"):  # it may have been lost in the midst of an update, which has changed the agent
            job.agent.load_state(tensors_of_agent(checkpoint), checkpoint.state["agent"])
        self._in_a_row = self._in_a_row + 1 if steps == self._at else 1
        self._at = steps
        if self._in_a_row > LOSSES_IN_A_ROW:
            raise LearnerLostError(f"{self._in_a_row} times in a row without a checkpoint between: {lost}") from lost
        logger.warning(
            "%s\nOthers are started in place of all but the first, and go on from the checkpoint of %s steps.",
            lost, f"{steps:,}",
        )  # fmt: skip
        return replace(job, checkpoint=checkpoint)


class NobodyElse:
    """The others of a learner that is alone."""

    def tell(self, what: str) -> None:
        """Nobody hears it."""

    def hear(self) -> str:
        """Nobody but the first hears, and it is that."""
        raise AssertionError("the first learner says what is next")


def run_directory_of_first(run_dir: str | Path, distribution: object) -> RunDirectory:
    """As `teams.run_directory_of`, for learners that torchrun has started."""
    with Team.of(MultiLearner(), EnvironmentOptions().worker_timeout) as team:
        if team.rank > 0:
            return Elsewhere(json.loads(team._from_first(b"")))
        config = RunDirectory.open(run_dir).config
        own = config.get("distribution", "local") if distribution is None else distribution
        if not isinstance(distribution_of(own), MultiLearner):
            raise ConfigurationError(
                f"torchrun has started {team.size} learners, and the run's distribution is {own}: give "
                f"distribution='multi', or resume it without torchrun"
            )
        directory = RunDirectory.open_to_train(run_dir)
        team._from_first(json.dumps(directory.config, allow_nan=False).encode())
        return directory


class Elsewhere(RunDirectory):
    """The run directory of learners that write nothing: the first does.

    Args:
        config: what the first's `config.json` says.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(Path(os.devnull), config)

    def update_config(self, config: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        return

    def log(self, metrics: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        return

    def save_checkpoint(self, *arguments: Any, **options: Any) -> bool:  # noqa: D102 - as in the base
        return True

    def write_result(self, result: dict[str, Any]) -> bool:  # noqa: D102 - as in the base
        return True


def _packed(tensors: dict[str, Tensor], state: dict[str, Any]) -> bytes:
    text = json.dumps(state, allow_nan=True).encode()  # to a process of this release
    host = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    return len(text).to_bytes(8, "little") + text + safetensors.torch.save(host)


def _unpacked(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    end = 8 + int.from_bytes(data[:8], "little")
    return safetensors.torch.load(data[end:]), json.loads(data[8:end])


def _of(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}/"): t for name, t in tensors.items() if name.startswith(f"{part}/")}


def _require_same(first: dict[str, Any], mine: dict[str, Any], rank: int) -> None:
    mine = json.loads(json.dumps(mine, allow_nan=True))  # as the first was sent
    for name in first.keys() | mine.keys():
        if first.get(name) != mine.get(name):
            raise ConfigurationError(
                f"learner {rank} was started otherwise than the first: {name} is {mine.get(name)!r}, and there "
                f"{first.get(name)!r}. Start all with the same command, and the same versions"
            )
