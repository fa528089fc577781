"""Makes the sampler for a placement."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hybridppo.agents.ddpg import DDPG
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Agent, agents_of, has_policies
from hybridppo.networks.actors import twin_of
from hybridppo.placements.crossing import available_device
from hybridppo.placements.placement import Placement
from hybridppo.runners.lagging_sampler import LaggingSampler
from hybridppo.runners.processes import close_probe
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

    Batched environments are sampled on their device, and so are compiled ones if there are kernels for it. All
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
    thread = (thread or ThreadPoolExecutor(1, thread_name_prefix="hybridppo-sampler")) if placement.max_lag else None
    num_envs = num_envs if num_envs is not None else environments.num_envs // environments.num_agents
    plan = RolloutPlan(
        agent.exploration if isinstance(agent, DDPG) else agent.distribution, noise, env_seed,
        num_steps=num_steps, num_episodes=num_episodes, memory=agent.memory,
        pin_for=placement.pin_for,
        discounts=_discounts(agent, environments, placement, num_envs),
    )  # fmt: skip
    if environments.device is not None:
        from hybridppo.runners.device_sampler import TensorSampler

        _require_turns_there(environments, agent, placement, plan, num_workers)
        placement.act_on_tensors()
        sampler: Sampler = TensorSampler(cast("TensorEnvironments", environments), plan)
    elif not num_workers and (on_device := _on_device(environments, agent, placement, plan)) is not None:
        sampler = on_device
    elif num_workers := _num_workers(environments, agent, placement, plan, num_envs, num_workers, shards, transport):
        close_probe(environments)
        options_of_workers: dict[str, Any] = {
            "source": source, "template": environments, "network": agent.actor, "plan": plan, "num_envs": num_envs,
            "num_workers": num_workers, "options": options, "transport": transport,
        }  # fmt: skip
        acts = twin_of(agent.actor) is None or placement.sampling_device.type != "cpu"
        if placement.max_lag > 1:
            drops = not isinstance(agent, DDPG)
            sampler = LaggingSampler(max_lag=placement.max_lag, drops=drops, **options_of_workers)
        else:
            sampler = Sampler(Workers(**options_of_workers, acts=acts), plan, thread=thread if acts else None)
    else:
        may_choose = num_episodes is not None and options.vectorization == "auto"
        if may_choose and not isinstance(environments, SubEnvironments):
            # A vectorised form does not give its environment out.
            environments = make_environments(source, environments.num_envs, options, vectorization="sync")
        # With a thread, one buffer is filled while the agent learns from the other.
        sampler = Sampler(LocalFiller(environments, plan, num_buffers=2 if thread else 1), plan, thread=thread)
    if has_policies(agent):
        sampler.counts.count_by_policy(agent.columns)
    return sampler


def _num_workers(
    environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan, num_envs: int,
    num_workers: int | None, shards: int, transport: Callable[[Work], Transport],
) -> int:  # fmt: skip
    """The number of worker processes for environments of the host; 0 for none.

    Raises:
        ConfigurationError: for what cannot be combined.
    """
    lag, takes_turns, of_episodes = placement.max_lag, environments.waiting is not None, plan.num_episodes is not None
    samples_on_cpu, has_memory = placement.sampling_device.type == "cpu", agent.memory is not None
    asked = num_workers
    if num_workers is None and lag > 1:
        num_workers = next(each for each in range(min(num_envs, cpu_cores()), 0, -1) if num_envs % each == 0)
    elif num_workers is None:
        may_act = samples_on_cpu and not environments.is_asynchronous and twin_of(agent.actor) is not None
        num_workers = int(lag > 0 and not of_episodes and may_act)
    pools = [getattr(one.config, "pool_size", 1) for one in agents_of(agent)]
    in_one = "does not work with rollouts of whole episodes, which are sampled in one process"
    what, or_else = (f"max_lag={lag}", "") if lag > 1 else (f"num_workers={num_workers}", ", or num_workers=0")
    _refuse({
        "pool_size above 1 does not work with agents that take turns and several learners or shards, whose rollouts "
        "differ in length: use pool_size=1, or one learner": takes_turns and shards > 1 and max(pools) > 1,
        "recurrent does not work with agents that take turns if samplers are on Ray, which send rows and not turns: "
        "leave `distributed` out, and use num_workers": takes_turns and transport is not Processes and has_memory,
        f"max_lag={lag} {in_one}: use max_lag=1, or leave episodes_per_rollout out": of_episodes and lag > 1,
        f"num_workers={num_workers} {in_one}: leave it out, or leave episodes_per_rollout out": of_episodes
        and num_workers,
        f"num_workers=0 does not work with max_lag={lag}, which needs worker processes": lag > 1 and asked == 0,
        f"{what} does not work with asynchronous environments (batch_size), which step in their own threads: leave "
        "one of the two out": num_workers and environments.is_asynchronous,
        f"{what} needs a placement that samples on the CPU: name one{or_else}": (lag > 1 or transport is not Processes)
        and num_workers and not samples_on_cpu,
        f"num_envs={num_envs} must be a multiple of num_workers={num_workers} with max_lag={lag}, so that each worker "
        "has as many environments: choose another number": lag > 1 and num_workers and num_envs % num_workers,
        f"recurrent does not work with max_lag={lag}, because the columns of its rollouts change their environments: "
        "leave it out, or use max_lag=1": lag > 1 and has_memory,
    })  # fmt: skip
    return num_workers


def _refuse(refused: dict[str, object]) -> None:
    """Raise the first message that holds as a ConfigurationError."""
    for message, holds in refused.items():
        if holds:
            raise ConfigurationError(message)


def _discounts(
    agent: Agent, environments: Environments, placement: Placement, num_envs: int
) -> Callable[[], "np.ndarray[Any, Any]"] | None:
    """Returns the present discount of each column, which may have a schedule.

    None if normalisation can follow rewards itself: they are apart if a lag changes columns, or turns change rows.
    """
    normalizes = any(getattr(one.config, "normalize_rewards", False) for one in agents_of(agent))
    if placement.max_lag < 2 and (environments.waiting is None or not normalizes):
        return None
    num_agents = environments.num_agents

    def discounts() -> "np.ndarray[Any, Any]":
        found = np.zeros(num_agents, np.float32)
        columns = agent.columns.values() if has_policies(agent) else [range(num_agents)]
        for one, own in zip(agents_of(agent), columns, strict=True):
            found[list(own)] = getattr(one, "current", one.config).gamma  # handmade agents have no schedules
        return np.tile(found, num_envs)

    return discounts


def _require_turns_there(
    environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan, num_workers: int | None
) -> None:
    """Refuse to sample batched environments on another device, or in another way than by turns."""
    device, name = str(environments.device), cast("TensorEnvironments", environments).name
    is_elsewhere = available_device(placement.sampling_device) != available_device(environments.device)
    against = {
        f"max_lag={placement.max_lag}": (placement.max_lag, "sampling and learning take turns on their device"),
        f"num_workers={num_workers}": (num_workers, "they step themselves, all at once"),
        f"episodes_per_rollout={plan.num_episodes}": (plan.num_episodes, "rollouts are num_steps of all of them"),
        f"a {type(agent).__name__}": (isinstance(agent, DDPG), "only PPO learns in them (PPOConfig)"),
    }
    _refuse({
        f"batched environments ({name}) on {device} are sampled where they are, and {placement} samples on "
        f"{placement.sampling_device}: use placement=SingleDevice({device!r}), or Mirrored({device!r}, ...) to learn "
        "elsewhere": is_elsewhere,
        **{
            f"{what} does not work with batched environments ({name}): {why}, leave it out": holds
            for what, (holds, why) in against.items()
        },
    })  # fmt: skip


def _on_device(environments: Environments, agent: Agent, placement: Placement, plan: RolloutPlan) -> Sampler | None:
    """The sampler of compiled environments on the actor's device; None if no kernels can sample them there.

    If the device has kernels that cannot be used, a warning says why, because that costs much speed.
    """
    device = placement.sampling_device
    if not environments.is_compiled or device.type == "cpu":
        return None
    from hybridppo.compiled.kernels import is_drawn
    from hybridppo.environments.on_device import EnvironmentsOnDevice, has_launcher
    from hybridppo.runners.device_sampler import DeviceSampler

    if not has_launcher(device):
        return None
    reasons = {
        "the actor is recurrent": agent.memory is not None,
        "sampling and learning overlap": placement.max_lag > 0,
        "rollouts are whole episodes": plan.num_episodes is not None,
        "the agent learns from a replay buffer": isinstance(agent, DDPG),
        "actions are squashed, explore by the state, or of one's own kind": not is_drawn(agent.distribution),
    }
    if any(reasons.values()):
        why = " and ".join(reason for reason, holds in reasons.items() if holds)
        what = "compiled environments are stepped on the CPU, with copies to %s and back in each step, because %s"
        logger.warning(what, device, why)
        return None
    accelerator, compiled = accelerator_of(device), cast("CompiledEnvironments", environments)
    record = GraphRecorder(accelerator) if agent.records_graphs and accelerator.is_asynchronous else None
    distribution = cast("FusedDistribution", agent.distribution)
    on_device = EnvironmentsOnDevice(compiled, distribution, device, num_steps=plan.num_steps)
    return DeviceSampler(on_device, plan, record)
