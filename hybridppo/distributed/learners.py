"""Learners that train together, each a process with shards of the environments (`MultiLearner`, `GPUOnly`).

All have the same agent, each on its own device. A learner samples its shards and learns from their part of every
minibatch; gradients are summed over all learners. A request to stop, and the time of the first learner's clock, reach
all learners before a decision depends on them.
"""

import inspect
import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from hybridppo.agents import PPOConfig
from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.agents.policies import PoliciesConfig
from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto, Choice
from hybridppo.distributed.choosing import choose_for_learners
from hybridppo.distributed.cluster import Cluster
from hybridppo.distributed.columns import joined_columns, own_columns
from hybridppo.distributed.dividing import require_shareable
from hybridppo.distributed.launching import (
    SECONDS_TO_CLOSE,
    Launched,
    is_joining,
    master_of_torchrun,
    store_of_this_machine,
    store_of_torchrun,
)
from hybridppo.distributed.link import Link, host_copy, text_of
from hybridppo.distributed.reduce import ShardedUpdate
from hybridppo.distributed.strategy import Strategy
from hybridppo.distributed.wires import Collective, InSharedMemory, Wire
from hybridppo.distributed_policies import GPUOnly, MultiLearner, distributed_from
from hybridppo.environments.base import Environments
from hybridppo.environments.in_shards import EnvironmentShards
from hybridppo.environments.making import is_tensor_env, make_environments, to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.pickling import ALONE, pack
from hybridppo.environments.registration import source_of
from hybridppo.errors import ConfigurationError, DeviceError, DistributedError, LearnerLostError
from hybridppo.interfaces import Agent, agents_of, has_policies, learns_from_replay
from hybridppo.job import Job
from hybridppo.loading import fitting, rewind_to, tensors_of_agent
from hybridppo.options import RunOptions
from hybridppo.placements.by_name import placement_from_settings
from hybridppo.placements.placement import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.run_directory.checkpoints import Checkpoint
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.process_group import ProcessGroup, SingleProcess
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import BaseSampler
from hybridppo.runners.sharded_sampler import ShardsSampler
from hybridppo.runners.workers import LOSSES_IN_A_ROW
from hybridppo.system.devices import accelerator_of, num_cuda_devices
from hybridppo.system.seeds import seed_of
from hybridppo.system.signals import Interruption
from hybridppo.system.validation import part_of

logger = logging.getLogger(__name__)

SECONDS_TO_START = 120.0
"""The least number of seconds that learners may take to start and make their environments."""
UPDATES_BETWEEN_CHECKS = 100
"""Updates from a replay buffer between checks that all learners have the same parameters. A check of layers of 256
takes a third of a millisecond, which is much for such a small update. Updates from rollouts are checked each time."""
_OF_THE_FIRST: dict[str, Any] = {"evaluation_episodes": 0, "evaluate_every": 0, "target_return": None}
"""Options of the other learners, for work that the first does alone."""
_NOT_SHARED = {"episodes_per_rollout": None, "cuda_graphs": False}
"""Fields of the configuration that learners need at these values."""
_HEADER = struct.Struct("<?dIq")


def start_timeout(timeout: float) -> float:
    """Seconds within which all must have started."""
    return min(max(timeout, SECONDS_TO_START), 10.0**6)


class MultiLearnerStrategy(Strategy):
    """One of the learners. As a context, it ends the learners that it has started.

    Args:
        policy: the policy, with the numbers of learners and shards.
        rank: number of this learner.
        timeout: seconds after which a learner that does not answer is lost.
        address: address of a running Ray cluster, whose workers sample; None for workers of this machine.
        joins: whether torchrun has started all learners.
    """

    def __init__(
        self, policy: MultiLearner, rank: int, timeout: float, address: str | None = None, *, joins: bool = False
    ) -> None:
        assert policy.learners is not None
        super().__init__(None if address is None else lambda: Cluster(str(policy), address, 0))
        self.policy, self.rank, self.size = policy, rank, policy.learners
        self.shards = policy.num_shards
        each = self.shards // self.size
        self._mine = range(rank * each, (rank + 1) * each)
        self.link: Link | None = None
        """The link to the other learners, when they have started; None without others."""
        self._timeout, self._joins = timeout, joins
        self._launched: Launched | None = None
        self._agreed = Interruption()
        self._put_back: Callable[[], object] = bool
        self._seconds = 0.0
        self._fingerprint = (-1, 0)
        self._wires: dict[int, Wire] = {}
        self._losses = Losses()
        self._device = torch.device("cpu")
        # Torchrun says how many of its processes are on this machine.
        self._are_neighbours = not joins or os.environ.get("LOCAL_WORLD_SIZE") == str(self.size)

    @classmethod
    def of(cls, policy: MultiLearner, timeout: float, address: str | None = None) -> "MultiLearnerStrategy":
        """The learner of this process: the first, or the one that torchrun says.

        Raises:
            ConfigurationError: if the number of learners is not known.
        """
        if is_joining():
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            if policy.learners not in (None, size):
                raise ConfigurationError(
                    f"distributed={policy} has {policy.learners} learners, torchrun started {size}"
                )
            return cls(replace(policy, learners=size), rank, timeout, address, joins=True)
        if policy.learners is None:
            raise ConfigurationError(
                f"distributed={policy} without a number joins the learners of torchrun, which has not started this "
                f"process: give a number of learners to start ({policy.name}:2)"
            )
        return cls(policy, 0, timeout, address)

    def __enter__(self) -> "MultiLearnerStrategy":
        super().__enter__()
        if self._joins:
            seconds = start_timeout(self._timeout)
            store, store_at = store_of_torchrun(self.rank, seconds), master_of_torchrun()
            self.link = Link(
                store, self.rank, self.size, timeout=self._timeout, start_timeout=seconds,
                store_at=None if self._are_neighbours else store_at,
            )  # fmt: skip
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self.link is not None and not isinstance(error, DistributedError):
            self.link.report(text_of(error))
        self._let_go(SECONDS_TO_CLOSE if error is None else 0.0)
        super().__exit__(kind, error, traceback)

    def _let_go(self, seconds: float) -> None:
        """Release the other learners, which must end within this number of seconds."""
        self._put_back()
        for wire in self._wires.values():
            wire.close()
        self._wires = {}
        if self._launched is not None:
            self._launched.close(seconds)
        if self.link is not None:
            self.link.close()

    def settled(self, run: RunOptions) -> RunOptions:
        """The options, with the seed of the first learner and all numbers of the policy."""
        seed = int(self._from_first(str(run.seed).encode()))
        return replace(run, seed=seed, distributed=str(replace(self.policy, shards=self.shards)))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        whom = f"with distributed={self.policy}"
        for each in config.policies.values() if isinstance(config, PoliciesConfig) else [config]:
            self._check(each, whom)
        if config.num_envs % self.shards:
            raise ConfigurationError(f"num_envs must be a multiple of the {self.shards} shards, got {config.num_envs}")
        if run.num_workers and run.num_workers % self.shards:
            raise ConfigurationError(
                f"num_workers must be a multiple of the {self.shards} shards, each of which has as many, got "
                f"{run.num_workers}"
            )
        if run.address is not None and (not run.num_workers or run.address == "local"):
            raise ConfigurationError(
                f"{whom} an address is that of a Ray cluster which is there, whose workers sample: give num_workers, "
                f"and auto or HOST:PORT, got num_workers={run.num_workers} and address={run.address!r}"
            )

    def _check(self, config: PPOConfig | DDPGConfig, whom: str) -> None:
        for name, value in _NOT_SHARED.items():
            if (found := getattr(config, name)) != value:
                raise ConfigurationError(
                    f"{name}={found!r} does not work {whom}: use distributed='local', or leave it out"
                )
        if isinstance(config, DDPGConfig):
            if config.batch_size < self.shards:
                raise ConfigurationError(
                    f"batch_size must be at least the number of shards, {self.shards}, {whom}, got {config.batch_size}"
                )
            return
        units, most = "rows" if config.memory is None else "sequences", config.units // self.shards
        if self.shards > 1 and config.minibatches > most:
            raise ConfigurationError(
                f"num_minibatches must be at most the {units} of a shard, {most}, {whom}, got {config.minibatches}: "
                "each shard has a part of every minibatch"
            )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
        """The same options: each shard has its own environments, which are seeded by their number."""
        if is_tensor_env(source):
            raise ConfigurationError(
                f"environments of tensors ({type(source).__name__}) that are there already cannot be divided among "
                "learners: pass a function with parameters num_envs and device, see docs/tensors.md"
            )
        if _takes_device(source) and "device" in (options.env_kwargs or {}):
            raise ConfigurationError("env_kwargs has a device, and each learner has its own: leave it out there")
        return options

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The placement, with the learner's own CUDA device in place of any other."""
        is_gpu_only = isinstance(self.policy, GPUOnly)
        if isinstance(meant, Auto):
            if not is_gpu_only:
                return meant
            meant = SingleDevice(self._own_cuda)
        if is_gpu_only and not isinstance(meant, SingleDevice):
            raise ConfigurationError(
                f"with distributed={self.policy} each learner samples and learns on its own device, got {meant}: use "
                "placement='cuda' or 'cpu', or distributed='multi'"
            )
        settings = meant.settings()
        own = {name: self._own_cuda for name in ("device", "sampling", "learning") if "cuda" in settings.get(name, "")}
        found = placement_from_settings({**settings, **own}) if own else meant
        self._device = found.sampling_device
        return found

    @property
    def _own_cuda(self) -> str:
        """The name of this learner's CUDA device."""
        number = int(os.environ.get("LOCAL_RANK", self.rank)) if self._joins else self.rank
        needed = int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) if self._joins else self.size
        if num_cuda_devices() < needed:
            raise DeviceError(
                f"distributed={self.policy} needs {needed} CUDA devices, and torch {torch.__version__} sees "
                f"{num_cuda_devices()}: take as many learners, or placement='cpu' to try it"
            )
        return f"cuda:{number}"

    def choose(self, auto: Auto, **training: Any) -> Choice:
        """The first learner measures; learners that torchrun has started wait for its choice."""
        config, num_workers = training["config"], training["num_workers"]
        if not isinstance(config, PPOConfig):
            return Choice(SingleDevice("cpu"), num_workers, config.torch_threads or 1, {})
        if self.rank > 0:
            assert self.link is not None
            return Choice(SingleDevice("cpu"), num_workers, int(self.link.hear()), {})
        choice = choose_for_learners(self.policy, **training)
        if self.link is not None:
            self.link.tell(str(choice.torch_threads))
        return replace(choice, num_workers=num_workers)

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """The environments of this learner's shards, made shard by shard; with worker processes, one for each shard."""
        self._made_again = partial(self._made, source, num_envs, options, copies=1 if num_workers else None)
        return self._made_again()

    def _made(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, copies: int | None
    ) -> EnvironmentShards:
        share, source = num_envs // self.shards, self._on_device(source)
        parts: list[Environments] = []
        try:
            for shard in self._mine:
                with accelerator_of(self._device).selected():  # simulators use the current device
                    parts.append(make_environments(source, share, options, first=shard * share, copies=copies))
                self._require_there(parts[-1])
        except BaseException:
            for part in parts:
                part.close()
            raise
        return EnvironmentShards(parts)

    def _require_there(self, made: Environments) -> None:
        if isinstance(self.policy, GPUOnly) and made.device is None and not made.is_compiled:
            raise ConfigurationError(
                f"distributed={self.policy} steps environments of tensors, or compiled ones, and these are others "
                f"({type(made).__name__}): use distributed='multi:{self.size}' for those"
            )
        if made.device is not None and made.device != torch.empty(0, device=self._device).device:
            raise ConfigurationError(
                f"the environments are on {made.device}, and this learner samples on {self._device}: let the function "
                "take device, and make them there"
            )

    def _on_device(self, source: Any) -> Any:
        """A function that takes a device, with this learner's device as argument; others unchanged."""
        return partial(source_of(source), device=str(self._device)) if _takes_device(source) else source

    def begin(self, job: Job) -> Job:
        """Start the other learners if necessary, and let all take over the state of the first."""
        agent, settings = job.agent, job.settings
        if settings.run.self_play is not None and job.directory is None and self.rank == 0 and self.size > 1:
            raise ConfigurationError(
                "self_play with several learners needs a run directory, in which all find the snapshots: give run_dir"
            )
        self._agent, self._own, self._seed = agent, job.interruption, settings.seed
        if self.shards > 1:
            self._share_updates(agent)
        if self.link is None and self.size > 1:
            self._launch(job)
        if self.link is not None:
            self.link.should_stop = lambda: job.interruption.requested
        job = replace(job, env=self._on_device(job.env))
        tensors, state = agent.state()
        told: dict[str, Any] = {
            "settings": settings.to_json(),
            "saves_in": None if job.directory is None else str(job.directory.path),
            "agent": state,
            "checkpoint": None,
        }
        everything = {f"agent/{name}": tensor for name, tensor in tensors.items()}
        if job.checkpoint is not None:
            told["checkpoint"] = job.checkpoint.state
            everything |= {f"checkpoint/{name}": tensor for name, tensor in job.checkpoint.tensors.items()}
        tensors, told = _unpacked(self._from_first(_packed(everything, told) if self.rank == 0 else b""))
        agent.load_state(own_columns(part_of(tensors, "agent/"), self.rank, self.size), told["agent"])
        if self.rank == 0:
            return job
        _require_same(told["settings"], settings.to_json(), self.rank)
        checkpoint = None
        if told["checkpoint"] is not None:
            checkpoint = Checkpoint(part_of(tensors, "checkpoint/"), told["checkpoint"])
        return replace(
            job,
            settings=replace(settings, run=replace(settings.run, **_OF_THE_FIRST)),
            directory=None if told["saves_in"] is None else Elsewhere({}, Path(told["saves_in"])),
            checkpoint=checkpoint,
            profile=False,
            reporting=replace(job.reporting, progress=False, callbacks=()),
        )

    def _share_updates(self, agent: Any) -> None:
        """Let all learners make the agent's updates together."""
        require_shareable(agent)
        own: list[Any] = [*agents_of(agent)]
        for each in own:
            each.share(partial(self._update_of, each))
        self._put_back = lambda: [each.share(None) for each in own]

    def _update_of(self, agent: Any) -> ShardedUpdate:
        """The exchange of an agent's updates; called again after its parameters have moved."""
        if id(agent) in self._wires:
            self._wires[id(agent)].close()
        self._wires[id(agent)] = wire = self._wire(agent.parameters.values.device)
        return ShardedUpdate(agent.parameters, wire, self._mine.start)

    def _wire(self, device: torch.device) -> Wire:
        arguments = len(self._mine), self._own, self._agreed
        if self.link is None:
            return Wire(*arguments)
        in_order = self.policy.reduce == "shards"
        if in_order and self._are_neighbours and device.type == "cpu":
            return InSharedMemory(self.link, *arguments)
        return Collective(self.link, *arguments, in_order=in_order)

    def _launch(self, job: Job) -> None:
        """Start the other learners on this machine, and wait until they have connected."""
        store = store_of_this_machine()
        setup = {
            "source": to_send(job.env),
            "settings": job.settings,
            "strategy": type(self),
            "policy": self.policy,
            "kind": type(job.agent),
            "own": {name: value for name, value in job.agent.own.items() if name != "agent"},
        }
        self._launched = launched = Launched(self.size, store.port, pack(setup, ALONE))
        self.link = Link(
            store, 0, self.size, timeout=self._timeout, start_timeout=start_timeout(self._timeout),
            how_it_ended=launched.how_it_ended,
        )  # fmt: skip

    def sampler(
        self, source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
    ) -> BaseSampler:
        """A sampler of this learner's shards."""
        assert isinstance(environments, EnvironmentShards)  # from `environments`
        share, env_seed, noise = options["num_envs"] // self.shards, options["env_seed"], options["noise"]
        workers = options["num_workers"] and options["num_workers"] // self.shards
        # The same actor samples one shard after the other.
        thread = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")
        if self._cluster is not None:
            from hybridppo.distributed.ray_samplers import RaySamplers  # which loads Ray

            options["transport"] = RaySamplers
        samplers: list[BaseSampler] = []
        try:
            for shard, part in zip(self._mine, environments.parts, strict=True):
                of_shard = {"num_envs": share, "env_seed": env_seed + shard * share, "thread": thread}
                of_shard |= {"num_workers": workers, "shards": self.shards}
                if shard:  # the first shard draws as a training in one process does
                    of_shard["noise"] = np.random.default_rng(seed_of(self._seed, f"noise of shard {shard}"))
                samplers.append(make_sampler(source, part, agent, placement, **{**options, **of_shard}))
            sampler = ShardsSampler(
                samplers,
                environments,
                first=self._mine.start,
                num_shards=self.shards,
                envs_per_shard=share,
                gather=self.gather,
                gather_tensors=self.gather_tensors,
                noise=noise,
                exploration=agent.exploration if learns_from_replay(agent) else None,
            )
        except BaseException:
            for each in samplers:
                each.close()
            raise
        if has_policies(agent):
            sampler.count_by_policy(agent.columns)
        return sampler

    def runner(self, agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
        """A loop that stops and saves together with all learners."""
        group = SingleProcess()
        if self.link is not None:
            group = ProcessGroup(self.rank, self.link, self._gathered, self._from_first)
        options |= {"interruption": self._agreed, "group": group}
        return Runner(agent, sampler, placement, **options)

    def _gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of an agent or a rollout with the columns of all learners."""
        if self.link is None:
            return tensors
        own = {f"{self.rank}/{name}": tensor for name, tensor in tensors.items()}
        everything = self.gather_tensors(own)
        return joined_columns([part_of(everything, f"{rank}/") for rank in range(self.size)])

    def regrouped(self, job: Job, lost: LearnerLostError) -> Job:
        """End all learners but the first, and start others; all continue from the last checkpoint."""
        job = self._losses.next(job, lost, may=self.rank == 0 and not self._joins)
        self._let_go(0.0)
        self.link = self._launched = None
        self._fingerprint = (-1, 0)
        return replace(job, environments=self._made_again())

    def end(self) -> None:
        """Give the first learner's agent the tensors of all environments."""
        if self.size > 1:
            tensors, state = self._agent.state()
            self._agent.load_state(self._gathered(tensors), state)

    def gather(self, data: bytes) -> list[bytes]:
        """The data of each learner. All also receive requests to stop, and the first learner's clock.

        Raises:
            DistributedError: if a learner is lost, or has other parameters.
        """
        version, checked = self._agent.version, self._fingerprint[0]
        most = UPDATES_BETWEEN_CHECKS if learns_from_replay(self._agent) else 1
        if checked < 0 or not checked <= version < checked + most:
            found = 0
            for each in agents_of(self._agent):
                found = zlib.crc32(host_copy(each.parameters.values.detach()).numpy().tobytes(), found)
            self._fingerprint = version, found
            checked = version
        header = _HEADER.pack(self._own.requested, time.monotonic(), self._fingerprint[1], checked)
        parts = [header + data] if self.link is None else self.link.gather(header + data)
        stops, clocks, fingerprints, versions = zip(*(_HEADER.unpack_from(part) for part in parts), strict=True)
        self._agreed.requested |= any(stops)
        self._seconds = clocks[0]
        held = list(zip(fingerprints, versions, strict=True))
        for rank in range(len(held)):
            if held[rank] != held[0]:
                raise DistributedError(
                    f"after {checked} updates learner {rank} does not hold the parameters of learner 0: their "
                    "processors or libraries round differently. Use machines of one kind, or learners of one machine"
                )
        return [part[_HEADER.size :] for part in parts]

    def _from_first(self, data: bytes) -> bytes:
        return data if self.link is None else self.link.from_first(data)

    def gather_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gather tensors of all learners, which have different names, on the host."""
        on_host = {name: host_copy(tensor) for name, tensor in tensors.items()}
        if self.link is None:
            return on_host
        parts = self.gather(safetensors.torch.save(on_host))
        return {name: tensor for part in parts for name, tensor in safetensors.torch.load(part).items()}


def _takes_device(source: Any) -> bool:
    """Whether a function that makes environments has a parameter `device`."""
    source = source_of(source)
    if isinstance(source, str) or not callable(source):
        return False
    try:
        return "device" in inspect.signature(source).parameters
    except (TypeError, ValueError):  # Python cannot inspect it
        return False


class Losses:
    """Counts the losses of learners without a checkpoint in between."""

    def __init__(self) -> None:
        self._in_a_row, self._at = 0, -1

    def next(self, job: Job, lost: LearnerLostError, *, may: bool) -> Job:
        """Go back to the last checkpoint, also with the agent; later work is done again.

        Args:
            job: the job of the training.
            lost: the error of the loss.
            may: whether this process can start learners.

        Raises:
            LearnerLostError: the same error, if restarts are not allowed, if there is no checkpoint, or after too many
                losses without a checkpoint in between.
        """
        directory = job.directory
        if not (may and job.settings.environment.restarts) or directory is None or job.interruption.requested:
            raise lost
        if directory.is_untouched:
            raise lost
        checkpoint = directory.load_checkpoint(to_go_on=True)
        steps = rewind_to(directory, checkpoint)
        with fitting("this run"):  # the update that was broken off has changed the agent
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


def run_directory_of_first(run_dir: str | Path, distributed: object) -> RunDirectory:
    """As `teams.run_directory_of`, for learners of torchrun."""
    with MultiLearnerStrategy.of(MultiLearner(), EnvironmentOptions().worker_timeout) as strategy:
        if strategy.rank > 0:
            return Elsewhere(json.loads(strategy._from_first(b"")))
        config = RunDirectory.open(run_dir).config
        own = config.get("distributed", "local") if distributed is None else distributed
        if not isinstance(distributed_from(own), MultiLearner):
            raise ConfigurationError(
                f"torchrun has started {strategy.size} learners, and the run has distributed= {own}: give "
                f"distributed='multi', or resume it without torchrun"
            )
        directory = RunDirectory.open_to_train(run_dir)
        strategy._from_first(json.dumps(directory.config, allow_nan=False).encode())
        return directory


class Elsewhere(RunDirectory):
    """The run directory of the other learners, which write nothing.

    Args:
        config: the `config.json` of the first learner.
        path: the path of the first learner's run directory.
    """

    def __init__(self, config: dict[str, Any], path: Path = Path(os.devnull)) -> None:
        super().__init__(path, config)

    def update_config(self, config: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        return

    def log(self, metrics: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        return

    def save_checkpoint(self, *arguments: Any, **options: Any) -> bool:  # noqa: D102 - as in the base
        return True

    def write(self, name: str, value: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        return


def _packed(tensors: dict[str, Tensor], state: dict[str, Any]) -> bytes:
    text = json.dumps(state, allow_nan=True).encode()  # for a process of this release
    host = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    return len(text).to_bytes(8, "little") + text + safetensors.torch.save(host)


def _unpacked(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    end = 8 + int.from_bytes(data[:8], "little")
    return safetensors.torch.load(data[end:]), json.loads(data[8:end])


def _require_same(first: dict[str, Any], mine: dict[str, Any], rank: int) -> None:
    mine = json.loads(json.dumps(mine, allow_nan=True))  # as the first learner's settings were sent
    for name in (first.keys() | mine.keys()) - {"placement"}:  # each has its own device
        if first.get(name) != mine.get(name):
            raise ConfigurationError(
                f"learner {rank} was started with other settings than the first: {name} is {mine.get(name)!r}, and "
                f"{first.get(name)!r} there. Start all with the same command and the same versions"
            )
