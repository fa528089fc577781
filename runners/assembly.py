"""Which sampler and which loop a placement calls for."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent, has_policies, learns_from_replay
from hybridppo.networks.forms import actor_form
from hybridppo.placements.base import Placement
from hybridppo.placements.crossing import available_device
from hybridppo.runners.off_policy import OffPolicyRunner
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.episodes import EpisodeSampler
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.workers.lagging import LaggingSampler
from hybridppo.runners.workers.processes import Processes
from hybridppo.runners.workers.sampler import WorkerSampler
from hybridppo.runners.workers.transport import Transport, Work
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import GraphRecorder
from hybridppo.system.threads import cpu_cores

if TYPE_CHECKING:
    from hybridppo.compiled.drawing import FusedDistribution
    from hybridppo.environments.compiled import CompiledEnvironments
    from hybridppo.environments.tensors import TensorEnvironments

logger = logging.getLogger(__name__)


def make_sampler(
    source: EnvSource, environments: Environments, agent: Agent, placement: Placement, **options: Any
) -> BaseSampler:
    """What samples for an agent, as `_make_sampler`, which counts what each policy does if there are several."""
    sampler = _make_sampler(source, environments, agent, placement, **options)
    if has_policies(agent):
        sampler.count_by_policy(agent.columns)
    return sampler


def _make_sampler(
    source: EnvSource,
    environments: Environments,
    agent: Agent,
    placement: Placement,
    *,
    num_steps: int,
    num_envs: int | None = None,
    num_episodes: int | None = None,
    num_workers: int | None,
    options: EnvironmentOptions,
    env_seed: int,
    noise: np.random.Generator,
    transport: Callable[[Work], Transport] = Processes,
    thread: ThreadPoolExecutor | None = None,
) -> BaseSampler:
    """What samples: this process, where nothing overlaps; workers, where they are asked for; else one, or a thread.

    With a `max_lag` above 1, always workers. Compiled environments are sampled where the actor is, if there are
    kernels for its device.

    Args:
        source: what the environments were made from, for workers to make theirs.
        environments: as made in this process. Where worker processes have others, they are looked at and closed, and
            need not be all.
        agent: prepared by the placement.
        placement: says whether sampling and learning overlap.
        num_steps: of each environment per rollout.
        num_envs: how many environments there are, if `environments` are not all of them.
        num_episodes: whole episodes per rollout instead; always sampled in this process.
        num_workers: processes; 0 for none; None for one where sampling overlaps and the actor can sample in another
            process, and else none. With a `max_lag` above 1, None for as many as cores, or fewer if those do not divide
            the environments.
        options: how the environments are made and stepped.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: owner of the actions' randomness.
        transport: where workers are.
        thread: to sample in, if sampling overlaps in this process; None for one of its own.
    """
    if environments.device is not None:
        of_tensors = cast("TensorEnvironments", environments)
        _require_turns_there(of_tensors, agent, placement, num_episodes=num_episodes, num_workers=num_workers)
        return _on_tensors(of_tensors, agent, placement, num_steps, env_seed, noise)
    overlaps, samples_on_cpu = placement.max_lag > 0, placement.sampling_device.type == "cpu"
    may_be_on_device = environments.is_compiled and not samples_on_cpu and not num_workers
    if may_be_on_device and _fits_device(agent, placement, num_episodes):
        compiled = cast("CompiledEnvironments", environments)
        return _on_device(compiled, agent, placement, num_steps, env_seed, noise)
    if environments.waiting is not None and agent.memory is not None:
        raise ConfigurationError(
            "recurrent does not work with agents that take turns, whose steps are of different lengths: leave it out"
        )
    distribution = agent.exploration if learns_from_replay(agent) else agent.distribution
    pin_for = placement.learning_device if placement.pins_rollouts else None
    if num_episodes is not None:
        if placement.max_lag > 1:
            raise ConfigurationError(
                f"max_lag={placement.max_lag} does not work with rollouts of whole episodes, which are sampled in one "
                "process: use max_lag=1, or leave episodes_per_rollout out"
            )
        if num_workers:
            raise ConfigurationError(
                f"num_workers={num_workers} does not work with rollouts of whole episodes, which are sampled in one "
                "process: leave it out, or episodes_per_rollout"
            )
        return EpisodeSampler(
            _one_by_itself(source, environments, options),
            distribution,
            num_episodes=num_episodes,
            env_seed=env_seed,
            noise=noise,
            pin_for=pin_for,
            in_thread=overlaps,
            memory=agent.memory,
        )
    lag = placement.max_lag
    if lag > 1:
        count = num_envs if num_envs is not None else environments.num_envs // environments.num_agents
        num_workers = num_workers if num_workers is not None else workers_for(count)
        if not num_workers:
            raise ConfigurationError(f"num_workers=0 does not work with max_lag={lag}, which needs worker processes")
    if num_workers is None:
        num_workers = int(overlaps and samples_on_cpu and actor_form(agent.actor) is not None)
    if num_workers > 0:
        if not samples_on_cpu:
            what = f"num_workers={num_workers}" if lag < 2 else f"max_lag={lag}"
            raise ConfigurationError(f"{what} needs a placement that samples on the CPU")
        environments.close()
        of_workers: dict[str, Any] = {
            "num_envs": num_envs,
            "num_workers": num_workers,
            "num_steps": num_steps,
            "env_seed": env_seed,
            "noise": noise,
            "options": options,
            "pin_for": pin_for,
            "memory": agent.memory,
            "transport": transport,
        }
        if lag > 1:
            of_workers |= {"max_lag": lag, "drops": not learns_from_replay(agent)}
        kind = WorkerSampler if lag < 2 else LaggingSampler
        return kind(source, environments, distribution, agent.actor, **of_workers)
    return Sampler(
        environments,
        distribution,
        num_steps=num_steps,
        env_seed=env_seed,
        noise=noise,
        pin_for=pin_for,
        in_thread=overlaps,
        thread=thread,
        memory=agent.memory,
    )


def workers_for(num_envs: int) -> int:
    """How many worker processes sample without waiting for each other, if nobody has said: at most one a core."""
    return next(count for count in range(min(num_envs, cpu_cores()), 0, -1) if num_envs % count == 0)


def _on_tensors(
    environments: "TensorEnvironments",
    agent: Agent,
    placement: Placement,
    num_steps: int,
    env_seed: int,
    noise: np.random.Generator,
) -> BaseSampler:
    from hybridppo.runners.samplers.on_tensors import TensorSampler

    placement.act_on_tensors()
    return TensorSampler(
        environments, agent.distribution, num_steps=num_steps, env_seed=env_seed, noise=noise, memory=agent.memory
    )


def _require_turns_there(
    environments: "TensorEnvironments",
    agent: Agent,
    placement: Placement,
    *,
    num_episodes: int | None,
    num_workers: int | None,
) -> None:
    """Refuse to sample in environments of tensors otherwise than by turns, and on their device.

    Raises:
        ConfigurationError: with what to do.
    """
    device = str(environments.device)
    if available_device(placement.sampling_device) != available_device(environments.device):
        raise ConfigurationError(
            f"environments of tensors ({environments.name}) on {device} are sampled where they are, and {placement} "
            f"samples on {placement.sampling_device}: use placement=SingleDevice({device!r}), or Mirrored({device!r}, "
            "...) to learn elsewhere"
        )
    refused = {
        f"max_lag={placement.max_lag}": (placement.max_lag > 0, "sampling and learning take turns on their device"),
        f"num_workers={num_workers}": (bool(num_workers), "they step themselves, all at once"),
        f"episodes_per_rollout={num_episodes}": (num_episodes is not None, "rollouts are num_steps of all of them"),
        f"a {type(agent).__name__}": (learns_from_replay(agent), "only PPO learns in them (PPOConfig)"),
    }
    for what, (is_asked_for, why) in refused.items():
        if is_asked_for:
            raise ConfigurationError(
                f"{what} does not work with environments of tensors ({environments.name}): {why}, leave it out"
            )


def _on_device(
    environments: "CompiledEnvironments",
    agent: Agent,
    placement: Placement,
    num_steps: int,
    env_seed: int,
    noise: np.random.Generator,
) -> BaseSampler:
    from hybridppo.environments.on_device import EnvironmentsOnDevice
    from hybridppo.runners.samplers.on_device import DeviceSampler

    accelerator = accelerator_of(placement.sampling_device)
    distribution = cast("FusedDistribution", agent.distribution)
    record = GraphRecorder(accelerator) if agent.records_graphs and accelerator.is_asynchronous else None
    on_device = EnvironmentsOnDevice(environments, distribution, placement.sampling_device, num_steps=num_steps)
    return DeviceSampler(on_device, env_seed=env_seed, noise=noise, record=record)


def _fits_device(agent: Agent, placement: Placement, num_episodes: int | None) -> bool:
    """Whether compiled environments can be sampled where the actor is, by kernels.

    Where there are kernels for its device, and they cannot be used, a warning says why: that costs much speed.
    """
    from hybridppo.compiled.drawing import is_drawn
    from hybridppo.environments.on_device import has_launcher

    if not has_launcher(placement.sampling_device):
        return False
    reasons = {
        "the actor has a memory": agent.memory is not None,
        "sampling and learning overlap": placement.max_lag > 0,
        "rollouts are whole episodes": num_episodes is not None,
        "the agent learns from a replay buffer": learns_from_replay(agent),
        "actions are squashed, or explore by the state": not is_drawn(agent.distribution),
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if against:
        logger.warning(
            "compiled environments are stepped on the CPU, and cross to %s and back in each step, since %s",
            placement.sampling_device,
            " and ".join(against),
        )
    return not against


def _one_by_itself(source: EnvSource, environments: Environments, options: EnvironmentOptions) -> Environments:
    """The environments as given, or made again where they are a vectorised form, which would not give its one out."""
    if environments.envs is not None or options.vectorization != "auto":
        return environments
    return make_environments(source, environments.num_envs, options, vectorization="sync")


def make_runner(agent: Agent, sampler: BaseSampler, placement: Placement, **options: Any) -> Runner:
    """The loop for the agent, with a replay buffer or without. `options` as for `Runner`."""
    if learns_from_replay(agent):
        return OffPolicyRunner(agent, sampler, placement, **options)
    return Runner(agent, sampler, placement, **options)
