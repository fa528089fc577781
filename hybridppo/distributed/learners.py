"""Learners that train together, each a process with shards of the environments (`MultiLearner`, `GPUOnly`).

All have the same agent, each on its own device. A learner samples its shards and learns from their part of every
minibatch; gradients are summed over all learners. The first learner starts the others on this machine, or torchrun has
started all, and starts them again after a loss (`--max-restarts`).
"""

import contextlib
import inspect
import itertools
import os
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hybridppo.agents.registry import AnyConfig
from hybridppo.auto.auto import Auto
from hybridppo.distributed.reduce import ShardedUpdate
from hybridppo.distributed.strategy import Strategy, is_joining, ppo_of_policies, require_multiples, require_shareable
from hybridppo.environments.base import Environments
from hybridppo.environments.making import is_tensor_env, make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.packages import source_of, to_send
from hybridppo.environments.pickling import ALONE, pack
from hybridppo.errors import ConfigurationError, DeviceError, DistributedError, HybridPPOError
from hybridppo.interfaces import Agent, agents_of, has_policies
from hybridppo.placements.placement import Placement, SingleDevice, placement_from_settings
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.process_group import (
    ProcessGroup,
    SingleProcess,
    host_copy,
    joined_columns,
    on_host,
    own_columns,
    report,
)
from hybridppo.runners.processes import command_of, signals_blocked, wait_for_ends
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import Sampler
from hybridppo.runners.sharded_sampler import EnvironmentShards, ShardsSampler
from hybridppo.settings import GPUOnly, MultiLearner, Plan, RunOptions, distributed_from
from hybridppo.system.devices import accelerator_of, num_cuda_devices
from hybridppo.system.seeds import seed_of
from hybridppo.system.signals import SECONDS_TO_COME
from hybridppo.system.validation import require_whole

SECONDS_TO_START = 120.0
"""The least number of seconds that learners may take to start and make their environments."""
SECONDS_TO_CLOSE = 10.0
"""Seconds that learners may take to end before they are killed."""
HOST = "127.0.0.1"
"""The address for learners of one machine; no other machine reaches it."""
_STORE: dict[str, Any] = {"wait_for_workers": False, "use_libuv": sys.platform != "win32"}  # Windows' torch has none
_OF_THE_FIRST: dict[str, Any] = {"evaluation_episodes": 0, "evaluate_every": 0, "target_return": None}
"""Options of the other learners, for work that the first does alone."""
_trainings = itertools.count()


class MultiLearnerStrategy(Strategy):
    """One of the learners. As a context, it ends the learners that it has started.

    Args:
        policy: the policy.
        timeout: seconds after which a learner that does not answer is lost.
        rank: number of this learner, if the first has started it; None for the first, or for the one that torchrun
            says.

    Raises:
        ConfigurationError: if the number of learners is not known, or torchrun has started another number.
    """

    needs: ClassVar[dict[str, Any]] = {"episodes_per_rollout": None, "cuda_graphs": False, "address": None}

    def __init__(self, policy: MultiLearner, timeout: float, rank: int | None = None) -> None:
        self._joins = rank is None and is_joining()
        size = _number_of_torchrun("WORLD_SIZE", 1, 2**16) if self._joins else policy.learners
        if size is None:
            raise ConfigurationError(
                f"distributed={policy} without a number joins the learners of torchrun, which has not started this "
                f"process: give a number of learners to start ({policy.name}:2)"
            )
        if policy.learners not in (None, size):
            raise ConfigurationError(f"distributed={policy} has {policy.learners} learners, torchrun started {size}")
        policy = replace(policy, learners=size)
        super().__init__(policy)
        self.rank, self.size = _number_of_torchrun("RANK", 0, size) if self._joins else rank or 0, size
        self.shards, each = policy.num_shards, policy.num_shards // size
        self._mine = range(self.rank * each, (self.rank + 1) * each)
        self.group = SingleProcess()
        """The learners, once they have started."""
        self._timeout = timeout
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._agents: list[Any] = []
        """The agents that learn together with those of other learners."""
        self._device = torch.device("cpu")

    def __enter__(self) -> "MultiLearnerStrategy":
        if self._joins and self.size > 1:
            Strategy.has_joined = True
            # Torchrun says how many of its processes are on this machine.
            is_local = os.environ.get("LOCAL_WORLD_SIZE") == str(self.size)
            self.connect(_store_of_torchrun(self.rank, self._start_timeout), is_local=is_local)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for agent in self._agents:
            agent.share(None)
        if isinstance(self.group, ProcessGroup):
            if error is not None and not isinstance(error, DistributedError):
                self.group.report(error)
            wait_for_ends(self._processes.values(), SECONDS_TO_CLOSE if error is None else 0.0)
            self.group.close()

    def connect(self, store: Store, *, is_local: bool = True) -> None:
        """Connect with the other learners, which do the same."""
        try:
            self.group = ProcessGroup(
                store, self.rank, self.size, timeout=self._timeout, start_timeout=self._start_timeout,
                is_local=is_local,
                has_ended=lambda rank: rank in self._processes and self._processes[rank].poll() is not None,
            )  # fmt: skip
        except BaseException as error:
            report(store, self.rank, error)
            raise

    @property
    def _start_timeout(self) -> float:
        return min(max(self._timeout, SECONDS_TO_START), 10.0**6)

    def settled(self, run: RunOptions) -> RunOptions:  # noqa: D102 - as in the base
        policy = replace(self.policy, shards=self.shards)
        return replace(run, seed=self.group.broadcast(run.seed), distributed=str(policy))

    def check(self, config: AnyConfig, options: EnvironmentOptions, run: RunOptions) -> None:  # noqa: D102 - as in the base
        configs = ppo_of_policies(config)
        super().check(config, options, run)
        require_multiples(self.shards, "shards", num_envs=config.num_envs, num_workers=run.num_workers)
        for each in configs:
            units, most = "rows" if each.memory is None else "sequences", each.units // self.shards
            if self.shards > 1 and each.minibatches > most:
                raise ConfigurationError(
                    f"num_minibatches must be at most the {units} of a shard, {most}, with "
                    f"distributed={self.policy}, got {each.minibatches}: each shard has a part of every minibatch"
                )

    def dividing(self, source: EnvSource, options: EnvironmentOptions) -> EnvironmentOptions:
        """The same options: each shard has its own environments, which are seeded by their number."""
        if is_tensor_env(source):
            raise ConfigurationError(
                f"batched environments ({type(source).__name__}) that are there already cannot be divided among "
                "learners: pass a function with parameters num_envs and device, see docs/tensors.md"
            )
        if _takes_device(source) and "device" in (options.env_kwargs or {}):
            raise ConfigurationError("env_kwargs has a device, and each learner has its own: leave it out there")
        return options

    def placement(self, meant: Placement | Auto) -> Placement | Auto:
        """The placement, with the learner's own CUDA device in place of any other."""
        meant, is_gpu_only = super().placement(meant), isinstance(self.policy, GPUOnly)
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

    def environments(
        self, source: EnvSource, num_envs: int, options: EnvironmentOptions, num_workers: int | None = None
    ) -> Environments:
        """The environments of this learner's shards, made shard by shard; with worker processes, one for each shard."""
        share, source, copies = num_envs // self.shards, self._on_device(source), 1 if num_workers else None
        parts: list[Environments] = []
        with ExitStack() as if_it_fails:
            for shard in self._mine:
                with accelerator_of(self._device).selected():  # simulators use the current device
                    parts.append(make_environments(source, share, options, first=shard * share, copies=copies))
                if_it_fails.callback(parts[-1].close)
                self._require_there(parts[-1])
            if_it_fails.pop_all()
        return EnvironmentShards(parts)

    def _require_there(self, made: Environments) -> None:
        if isinstance(self.policy, GPUOnly) and made.device is None and not made.is_compiled:
            raise ConfigurationError(
                f"distributed={self.policy} steps batched environments, or compiled ones, and these are others "
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

    def begin(self, plan: Plan) -> Plan:
        """Start the other learners if necessary, and let all take over the state of the first."""
        agent, settings = plan.agent, plan.settings
        if settings.run.self_play is not None and plan.directory is None and self.rank == 0 and self.size > 1:
            raise ConfigurationError(
                "self_play with several learners needs a run directory, in which all find the snapshots: give run_dir"
            )
        if self.group.size < self.size:
            self._launch(plan)
        self.group.own = plan.interruption
        if self.shards > 1:
            require_shareable(agent)
            self._agents = [*agents_of(agent)]
            for each in self._agents:
                each.share(partial(self._update_of, each))
        tensors, state = agent.state()
        directory = None if plan.directory is None else (plan.directory.path, plan.directory.config)
        mine = on_host(tensors), state, plan.checkpoint, directory, settings.to_json()
        tensors, state, checkpoint, directory, of_first = self.group.broadcast(mine)
        agent.load_state(own_columns(tensors, self.rank, self.size), state)
        plan = replace(plan, env=self._on_device(plan.env))
        if self.rank == 0:
            return plan
        _require_same(of_first, settings.to_json(), self.rank)
        return replace(
            plan,
            settings=replace(settings, run=replace(settings.run, **_OF_THE_FIRST)),
            directory=None if directory is None else RunDirectory(*directory),
            checkpoint=checkpoint,
            profile=False,
            progress=False,
            callbacks=(),
        )

    def _update_of(self, agent: Any) -> ShardedUpdate:
        """The exchange of an agent's updates; called again after its parameters have moved."""
        in_order = self.policy.reduce == "shards"
        return ShardedUpdate(agent.parameters, self.group, first=self._mine.start, in_order=in_order)

    def _launch(self, plan: Plan) -> None:
        """Start the other learners on this machine, and connect with them."""
        own = {name: value for name, value in plan.agent.own.items() if name != "agent"}
        setup = {"source": to_send(plan.env), "settings": plan.settings, "policy": self.policy, "own": own}
        store = _store_of_this_machine()
        packed = pack({**setup, "kind": type(plan.agent)}, ALONE)
        store.set("setup", packed)  # type: ignore[arg-type]  # the stub takes only text
        try:
            for rank in range(1, self.size):
                command = command_of("hybridppo.learner_process", str(store.port), str(rank))
                with signals_blocked():
                    self._processes[rank] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self.connect(store)
        except BaseException:
            wait_for_ends(self._processes.values(), 0.0)
            raise

    def sampler(self, plan: Plan, **options: Any) -> Sampler:
        """A sampler of this learner's shards."""
        environments, agent, seed = plan.environments, plan.agent, plan.settings.seed
        assert isinstance(environments, EnvironmentShards)  # from `environments`
        share, workers = options["num_envs"] // self.shards, options["num_workers"]
        # The same actor samples one shard after the other.
        options |= {"num_envs": share, "shards": self.shards, "num_workers": workers and workers // self.shards}
        options["thread"] = ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")
        samplers: list[Sampler] = []
        with ExitStack() as if_it_fails:
            for shard, part in zip(self._mine, environments.parts, strict=True):
                of_shard = {**options, "env_seed": options["env_seed"] + shard * share}
                if shard:  # the first shard draws as a training in one process does
                    of_shard["noise"] = np.random.default_rng(seed_of(seed, f"noise of shard {shard}"))
                samplers.append(make_sampler(plan.env, part, agent, plan.placement, **of_shard))
                if_it_fails.callback(samplers[-1].close)
            if_it_fails.pop_all()
        sampler = ShardsSampler(samplers, environments, self._mine.start, self.shards, self.group)
        if has_policies(agent):
            sampler.counts.count_by_policy(agent.columns)
        return sampler

    def runner(self, agent: Agent, sampler: Sampler, placement: Placement, **options: Any) -> Runner:
        """A loop that stops and saves together with all learners."""
        options["group"] = group = self.group
        if isinstance(group, ProcessGroup):
            options["interruption"] = group.agreed
        runner = Runner(agent, sampler, placement, **options)
        if getattr(placement, "verify", False):
            runner.callbacks.all.append(VerifyLearners(group))
        return runner

    def end(self, agent: Any) -> None:
        """Give the first learner's agent the tensors of all environments."""
        if self.size > 1:
            tensors, state = agent.state()
            agent.load_state(joined_columns(self.group.gather(on_host(tensors))), state)


class VerifyLearners(Callback):
    """Compares the parameters of all learners after each rollout."""

    is_of_library = True

    def __init__(self, group: SingleProcess) -> None:
        self._group = group

    def on_rollout(self, run: TrainingRun) -> None:  # noqa: D102 - as in the base
        agents: list[Any] = agents_of(run.agent)
        own = [zlib.crc32(host_copy(agent.parameters.values.detach()).numpy().tobytes()) for agent in agents]
        found = self._group.gather(own)
        for rank, each in enumerate(found):
            if each != found[0]:
                raise DistributedError(
                    f"learner {rank} does not hold the parameters of learner 0: their processors or libraries round "
                    "differently. Use machines of one kind, or learners of one machine"
                )


def _takes_device(source: Any) -> bool:
    """Whether a function that makes environments has a parameter `device`."""
    source = source_of(source)
    if isinstance(source, str) or not callable(source):
        return False
    try:
        return "device" in inspect.signature(source).parameters
    except (TypeError, ValueError):  # Python cannot inspect it
        return False


def run_directory_of_first(run_dir: str | Path, distributed: object) -> RunDirectory:
    """As `run_directory_of`, for learners of torchrun."""
    with MultiLearnerStrategy(MultiLearner(), EnvironmentOptions().worker_timeout) as strategy:
        Strategy.has_joined = False  # they join again for the training
        if strategy.rank > 0:
            return RunDirectory(Path(os.devnull), strategy.group.broadcast(None))
        config = RunDirectory.open(run_dir).config
        own = config.get("distributed", "local") if distributed is None else distributed
        if not isinstance(distributed_from(own), MultiLearner):
            raise ConfigurationError(
                f"torchrun has started {strategy.size} learners, and the run has distributed={own}: give "
                "distributed='multi', or resume it without torchrun"
            )
        directory = RunDirectory.open_to_train(run_dir)
        strategy.group.broadcast(directory.config)
        return directory


def tell_others(error: BaseException) -> None:
    """Tell learners of torchrun that wait for this process why it does not join them."""
    with contextlib.suppress(HybridPPOError, RuntimeError):  # the variables are wrong, or no other process is there
        size = _number_of_torchrun("WORLD_SIZE", 2, 2**16)
        rank = _number_of_torchrun("RANK", 0, size)
        store = _store_of_torchrun(rank, SECONDS_TO_COME)
        report(store, rank, error)
        if rank == 0:  # the store may end with this process
            store.wait([f"ended/{other}" for other in range(1, size)], timedelta(seconds=SECONDS_TO_COME))


def _store_of_this_machine() -> TCPStore:
    """A store that only processes of this machine reach. By default, TCPStore listens on every interface."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port = bound.getsockname()[1]
        return TCPStore(HOST, port, is_master=True, master_listen_fd=bound.detach(), **_STORE)


def join_store(port: int) -> TCPStore:
    """The store of another process of this machine."""
    return TCPStore(HOST, port, is_master=False, **_STORE)


def _number_of_torchrun(name: str, minimum: int, below: int) -> int:
    """A number in a variable that torchrun sets."""
    text = os.environ[name]
    number = int(text) if text.isascii() and text.isdigit() else text
    return require_whole(f"the variable {name}", number, minimum, below=below)


def _store_of_torchrun(rank: int, seconds: float) -> Store:
    """Torchrun's store, or one that the first learner makes."""
    host, port = os.environ["MASTER_ADDR"], _number_of_torchrun("MASTER_PORT", 1, 2**16)
    is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(
            host, port, is_master=is_master, multi_tenant=True, timeout=timedelta(seconds=seconds), **_STORE
        )
    except RuntimeError as error:
        what = "cannot listen" if is_master else "does not reach the first"
        remedy = ": is the port taken? Choose another" if is_master else ""
        raise DistributedError(
            f"learner {rank} {what} at {host}:{port} (MASTER_ADDR, MASTER_PORT): {str(error).splitlines()[0]}{remedy}"
        ) from error
    # The store may exist longer than a training, and with --max-restarts longer than its processes.
    return PrefixStore(f"hybridppo/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_trainings)}", store)


def _require_same(first: dict[str, Any], mine: dict[str, Any], rank: int) -> None:
    for name in (first.keys() | mine.keys()) - {"placement"}:  # each has its own device
        if first.get(name) != mine.get(name):
            raise ConfigurationError(
                f"learner {rank} was started with other settings than the first: {name} is {mine.get(name)!r}, and "
                f"{first.get(name)!r} there. Start all with the same command and the same versions"
            )
