"""Makes the sampler for a placement."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hybridppo.agents.ddpg.ddpg import DDPG
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent, agents_of, has_policies
from hybridppo.networks.mlp import twin_of
from hybridppo.placements.placement import Placement, available_device
from hybridppo.runners.lagging_sampler import LaggingSampler
from hybridppo.runners.sampler import LocalFiller, RolloutPlan, Sampler
from hybridppo.runners.workers import Processes, Transport, Work, Workers
from hybridppo.system.devices import GraphRecorder, accelerator_of
from hybridppo.system.threads import cpu_cores

if TYPE_CHECKING:
    from hybridppo.compiled.kernels import FusedDistribution
    from hybridppo.environments.compiled import CompiledEnvironments
    from hybridppo.environments.tensors import TensorEnvironments

logger = logging.getLogger(__name__)


def make_sampler(
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
    shards: int = 1,
) -> Sampler:
    """The sampler for an agent and a placement.

    Environments of tensors are sampled on their device, and so are compiled ones if there are kernels for it. All
    others are stepped by worker processes if asked for, or if `max_lag` is above 1; else in this process.

    Args:
        source: makes the environments; workers make their own from it.
        environments: the environments of this process. If workers step the environments, these are closed, and may be
            fewer.
        agent: the agent, prepared by the placement.
        placement: the placement.
        num_steps: steps of each environment per rollout.
        num_envs: number of environments, if `environments` are not all of them.
        num_episodes: whole episodes per rollout instead, which are always sampled in this process.
        num_workers: number of worker processes. None for one if sampling and learning overlap and NumPy can act, else
            0; with a `max_lag` above 1, for one per core, or fewer to divide the environments evenly.
        options: how the environments are made and stepped.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the actions' randomness.
        transport: starts the workers.
        thread: the thread to sample in if sampling and learning overlap in this process; None for a new one.
        shards: number of equal parts of the training's environments; this sampler has one of them.

    Raises:
        ConfigurationError: for what cannot be combined.
    """
    columns = num_envs if num_envs is not None else environments.num_envs // environments.num_agents
    plan = RolloutPlan(
        agent.exploration.share(shards) if isinstance(agent, DDPG) else agent.distribution, noise, env_seed,
        num_steps=num_steps, num_episodes=num_episodes, memory=agent.memory,
        pin_for=placement.learning_device if placement.pins_rollouts else None,
        discounts=_discounts(agent, environments, placement, columns),
    )  # fmt: skip
    if environments.device is not None:
        _require_turns_there(environments, agent, placement, plan, num_workers)
        sampler = _on_tensors(environments, placement, plan)
    elif not num_workers and _fits_device(environments, agent, placement, plan):
        sampler = _on_device(environments, agent, placement, plan)
    else:
        over_ray = transport is not Processes
        _require_possible(environments, agent, placement, plan, num_workers, shards=shards, over_ray=over_ray)
        num_workers = _num_workers(agent, placement, plan, columns, num_workers)
        if num_workers:
            environments.close()
            of_workers: dict[str, Any] = {"num_envs": columns, "num_workers": num_workers, "options": options}
            of_workers |= {"source": source, "template": environments, "network": agent.actor, "transport": transport}
            sampler = _in_workers(plan, placement.max_lag, drops=not isinstance(agent, DDPG), **of_workers)
        else:
            may_choose = num_episodes is not None and options.vectorization == "auto"
            if may_choose and not isinstance(environments, SubEnvironments):
                # A vectorised form does not give its environment out.
                environments = make_environments(source, environments.num_envs, options, vectorization="sync")
            sampler = Sampler(LocalFiller(environments, plan, in_thread=placement.max_lag > 0, thread=thread), plan)
    if has_policies(agent):
        sampler.counts.count_by_policy(agent.columns)
    return sampler


def _in_workers(plan: RolloutPlan, max_lag: int, *, drops: bool, **options: Any) -> Sampler:
    if max_lag > 1:
        return LaggingSampler(plan, max_lag=max_lag, drops=drops, **options)
    return Sampler(Workers(plan=plan, **options), plan)


def _require_possible(
    environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan, num_workers: int | None,
    *, shards: int, over_ray: bool,
) -> None:  # fmt: skip
    """Refuse what cannot be combined on the host, with a ConfigurationError."""
    lag, takes_turns, of_episodes = placement.max_lag, environments.waiting is not None, plan.num_episodes is not None
    pools = [getattr(cast(Any, one).config, "pool_size", 1) for one in agents_of(agent)]
    in_one = "does not work with rollouts of whole episodes, which are sampled in one process"
    refused = {
        "pool_size above 1 does not work with agents that take turns and several learners or shards, whose rollouts "
        "differ in length: use pool_size=1, or one learner": takes_turns and shards > 1 and max(pools) > 1,
        "recurrent does not work with agents that take turns if samplers are on Ray, which send rows and not turns: "
        "leave `distributed` out, and use num_workers": takes_turns and over_ray and agent.memory is not None,
        f"max_lag={lag} {in_one}: use max_lag=1, or leave episodes_per_rollout out": of_episodes and lag > 1,
        f"num_workers={num_workers} {in_one}: leave it out, or leave episodes_per_rollout out": of_episodes
        and bool(num_workers),
        f"num_workers=0 does not work with max_lag={lag}, which needs worker processes": lag > 1 and num_workers == 0,
    }
    for message, is_asked_for in refused.items():
        if is_asked_for:
            raise ConfigurationError(message)


def _num_workers(agent: Agent, placement: Placement, plan: RolloutPlan, num_envs: int, num_workers: int | None) -> int:
    """The number of worker processes for environments of the host; 0 for none.

    Raises:
        ConfigurationError: if they cannot sample under this placement.
    """
    lag, samples_on_cpu = placement.max_lag, placement.sampling_device.type == "cpu"
    if plan.num_episodes is not None:
        return 0
    if lag > 1 and num_workers is None:
        num_workers = workers_for(num_envs)
    if num_workers is None:
        num_workers = int(lag > 0 and samples_on_cpu and twin_of(agent.actor) is not None)
    if num_workers and not samples_on_cpu:
        what, or_else = f"max_lag={lag}", ""
        if lag < 2:
            what, or_else = f"num_workers={num_workers}", ", or num_workers=0"
        raise ConfigurationError(f"{what} needs a placement that samples on the CPU: name one{or_else}")
    return num_workers


def _discounts(
    agent: Agent, environments: Environments, placement: Placement, num_envs: int
) -> Callable[[], "np.ndarray[Any, Any]"] | None:
    """Returns the present discount of each column, which may have a schedule.

    None if normalisation can follow rewards itself: they are apart if a lag changes columns, or turns change rows.
    """
    normalizes = any(getattr(cast(Any, one).config, "normalize_rewards", False) for one in agents_of(agent))
    if placement.max_lag < 2 and (environments.waiting is None or not normalizes):
        return None
    num_agents = environments.num_agents

    def discounts() -> "np.ndarray[Any, Any]":
        found = np.zeros(num_agents, np.float32)
        columns = agent.columns.values() if has_policies(agent) else [range(num_agents)]
        for one, own in zip(agents_of(agent), columns, strict=True):
            found[list(own)] = getattr(one, "current", cast(Any, one).config).gamma  # handmade agents have no schedules
        return np.tile(found, num_envs)

    return discounts


def workers_for(num_envs: int) -> int:
    """The default number of worker processes with a `max_lag` above 1: at most one per core."""
    return next(count for count in range(min(num_envs, cpu_cores()), 0, -1) if num_envs % count == 0)


def _on_tensors(environments: Environments, placement: Placement, plan: RolloutPlan) -> Sampler:
    from hybridppo.runners.device_sampler import TensorSampler

    placement.act_on_tensors()
    return TensorSampler(cast("TensorEnvironments", environments), plan)


def _require_turns_there(
    environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan, num_workers: int | None
) -> None:
    """Refuse to sample environments of tensors on another device, or in another way than by turns.

    Raises:
        ConfigurationError: with the remedy.
    """
    num_episodes = plan.num_episodes
    device, name = str(environments.device), cast("TensorEnvironments", environments).name
    if available_device(placement.sampling_device) != available_device(environments.device):
        raise ConfigurationError(
            f"environments of tensors ({name}) on {device} are sampled where they are, and {placement} "
            f"samples on {placement.sampling_device}: use placement=SingleDevice({device!r}), or Mirrored({device!r}, "
            "...) to learn elsewhere"
        )
    refused = {
        f"max_lag={placement.max_lag}": (placement.max_lag > 0, "sampling and learning take turns on their device"),
        f"num_workers={num_workers}": (bool(num_workers), "they step themselves, all at once"),
        f"episodes_per_rollout={num_episodes}": (num_episodes is not None, "rollouts are num_steps of all of them"),
        f"a {type(agent).__name__}": (isinstance(agent, DDPG), "only PPO learns in them (PPOConfig)"),
    }
    for what, (is_asked_for, why) in refused.items():
        if is_asked_for:
            raise ConfigurationError(f"{what} does not work with environments of tensors ({name}): {why}, leave it out")


def _on_device(environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan) -> Sampler:
    from hybridppo.environments.on_device import EnvironmentsOnDevice
    from hybridppo.runners.device_sampler import DeviceSampler

    accelerator, compiled = accelerator_of(placement.sampling_device), cast("CompiledEnvironments", environments)
    record = GraphRecorder(accelerator) if agent.records_graphs and accelerator.is_asynchronous else None
    distribution = cast("FusedDistribution", agent.distribution)
    on_device = EnvironmentsOnDevice(compiled, distribution, placement.sampling_device, num_steps=plan.num_steps)
    return DeviceSampler(on_device, plan, record)


def _fits_device(environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan) -> bool:
    """Whether kernels can sample the environments on the actor's device.

    If the device has kernels that cannot be used, a warning says why, because that costs much speed.
    """
    if not environments.is_compiled or placement.sampling_device.type == "cpu":
        return False
    from hybridppo.compiled.kernels import is_drawn
    from hybridppo.environments.on_device import has_launcher

    if not has_launcher(placement.sampling_device):
        return False
    reasons = {
        "the actor has a memory": agent.memory is not None,
        "sampling and learning overlap": placement.max_lag > 0,
        "rollouts are whole episodes": plan.num_episodes is not None,
        "the agent learns from a replay buffer": isinstance(agent, DDPG),
        "actions are squashed, or explore by the state": not is_drawn(agent.distribution),
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if against:
        logger.warning(
            "compiled environments are stepped on the CPU, with copies to %s and back in each step, because %s",
            placement.sampling_device,
            " and ".join(against),
        )
    return not against
