"""Cases of sampling on the device by kernels, of learners on devices, and of evaluations beside a training."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_cases.case import (
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    NotPossibleHere,
    distance,
    placement_on,
    require,
    values_of,
    waits_of,
)
from gpu_cases.tensors import EAGER, LENGTH

from hybridppo.agents import PPO
from hybridppo.environments.compiled import CompiledEnvironments
from hybridppo.environments.making import make_environments
from hybridppo.environments.on_device import EnvironmentsOnDevice, has_launcher
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.errors import DeviceError
from hybridppo.placements.placement import SingleDevice
from hybridppo.runners.device_sampler import DeviceSampler
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.running import TrainResult
from hybridppo.settings import GPUOnly
from hybridppo.system.devices import GraphRecorder, accelerator_of, num_cuda_devices
from hybridppo.training import train

NUM_ENVS, NUM_STEPS = 64, 50
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}
"""Tolerances of 50 environment steps with the same actions on device and CPU, and of log-probabilities."""
COMPILED = replace(SMALL, num_envs=16, fast_updates=False)


def _environments(env: str) -> CompiledEnvironments:
    made = make_environments(env, NUM_ENVS, vectorization="compiled")
    assert isinstance(made, CompiledEnvironments)
    return made


def _sampler(bench: Bench, env: str, *, records: bool = False) -> tuple[DeviceSampler, PPO, SingleDevice]:
    """A sampler on the device; closed with its environments.

    Raises:
        NotPossibleHere: where there is nothing to compile or launch kernels with.
    """
    if not has_launcher(bench.device):
        raise NotPossibleHere(f"kernels are launched on a CUDA device, and {bench.device} stands in for one")
    environments = _environments(env)
    agent = PPO(environments.observation_space, environments.action_space, SMALL, seed=0)
    placement = SingleDevice(bench.device)
    placement.prepare(agent)
    placement.act_on_tensors()
    distribution: Any = agent.distribution
    try:
        on_device = EnvironmentsOnDevice(environments, distribution, bench.device, num_steps=NUM_STEPS)
    except DeviceError as error:
        environments.close()
        raise NotPossibleHere(str(error)) from error
    record = GraphRecorder(accelerator_of(bench.device)) if records else None
    plan = RolloutPlan(on_device.distribution, np.random.default_rng(0), env_seed=5, num_steps=on_device.num_steps)
    return DeviceSampler(on_device, plan, record), agent, placement


def steps_as_on_the_cpu(bench: Bench, env: str) -> str:
    """A rollout on the device equals the CPU's loops with its actions, and has the actor's own log-probabilities."""
    sampler, agent, placement = _sampler(bench, env)
    environments = _environments(env)
    try:
        with placement.sampling(agent) as actor:
            rollout = sampler.collect(actor)
        found = {name: torch.empty(t.shape, dtype=t.dtype).copy_(t) for name, t in rollout.columns().items()}
        seen, ended = [environments.reset(5)], 0
        for t in range(NUM_STEPS):
            actions = agent.distribution.to_env(found["actions"][t].numpy())
            observations, rewards, terminated, truncated, _, _ = environments.step(actions)
            seen.append(observations.copy())
            np.testing.assert_allclose(found["rewards"][t], rewards, **CLOSE, err_msg=f"rewards of step {t}")
            np.testing.assert_array_equal(found["terminated"][t], terminated, err_msg=f"ends of step {t}")
            np.testing.assert_array_equal(found["truncated"][t], truncated, err_msg=f"truncations of step {t}")
            ended += int((terminated | truncated).sum())
        np.testing.assert_allclose(found["observations"], np.stack(seen), **CLOSE, err_msg="observations")
    finally:
        sampler.close()
        environments.close()
    SingleDevice("cpu").prepare(agent)
    with torch.no_grad():
        outputs = agent.actor(found["observations"][:-1])
        log_probs = agent.distribution.log_prob(outputs, found["actions"])
    torch.testing.assert_close(found["log_probs"], log_probs, **CLOSE)
    return f"{NUM_STEPS} steps of {NUM_ENVS} environments, {ended} episodes ended"


def fills_without_waits(bench: Bench) -> str:
    """A rollout of compiled environments waits only for the noise's seed and at its end."""
    sampler, agent, placement = _sampler(bench, "CartPole-v1")
    bench.needs_gpu("counting waits")
    counts = []
    with placement.sampling(agent) as actor:
        for _ in range(3):
            sampler.sample_async(actor)
            counts.append(waits_of(lambda: sampler.wait(), bench.device))
            sampler.sample_wait()
    sampler.close()
    said = f"waits while {NUM_STEPS} steps are filled, three times: {', '.join(map(str, counts))} (expected: 2)"
    require(counts[1:] == [2, 2], said)
    return said


def recorded_rows_agree(bench: Bench, env: str) -> str:
    """Replaying recorded rows gives the same results as queueing them one by one."""
    _sampler(bench, env)[0].close()
    bench.needs_gpu("recording graphs")
    found = []
    for records in (False, True):
        sampler, agent, placement = _sampler(bench, env, records=records)
        with placement.sampling(agent) as actor:
            for _ in range(2):
                rollout = sampler.collect(actor)
        found.append({name: tensor.clone() for name, tensor in rollout.columns().items()})
        sampler.close()
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, **CLOSE, msg=f"{name} differs")
    return f"the second rollout of {NUM_STEPS} rows, recorded and one by one"


def trains_compiled(bench: Bench, env: str) -> str:
    """Whole trainings sampled by kernels: a repetition ends with the same parameters."""
    _sampler(bench, env)[0].close()
    ends = []
    for _ in range(2):
        result, _ = bench.train(SingleDevice(bench.device), COMPILED, env=env, vectorization="compiled")
        ends.append(values_of(result.agent))
    require(bool(ends[0].isfinite().all()), "parameters are not finite")
    require(result.metrics["bytes_copied"] == 0, f"{result.metrics['bytes_copied']:.0f} bytes have crossed")
    require(torch.allclose(ends[0], ends[1], rtol=1e-4, atol=1e-6), "the same training twice ends in two places")
    return "twice alike, bit for bit" if torch.equal(*ends) else "twice alike, but for rounding"


def _cartpole(num_envs: int, device: str) -> TorchCartPole:
    return TorchCartPole(num_envs, device, episode_length=LENGTH)


def _spread(placement: SingleDevice, learners: int, shards: int, **fields: Any) -> TrainResult:
    config = replace(EAGER, **fields)
    arguments: dict[str, Any] = {"total_steps": 4 * config.batch_size, "seed": 0, "progress": False}
    policy = GPUOnly(learners, shards=shards)
    return train(_cartpole, distributed=policy, placement=placement, config=config, **arguments)


def learner_agrees(bench: Bench) -> str:
    """One learner with two shards on the device ends like the CPU."""
    found, expected = (_spread(SingleDevice(device), 1, 2) for device in (bench.device, "cpu"))
    begun = values_of(_spread(SingleDevice("cpu"), 1, 2, learning_rate=1e-30).agent)
    apart = distance(found.agent, expected.agent, begun)
    said = f"ends {apart:.2g} of the way from the CPU's end (allowed: {TOLERANCES['fp32']})"
    require(apart <= TOLERANCES["fp32"], said)
    return said


def learners_agree(bench: Bench) -> str:
    """Two learners with a device each, by NCCL, end like one."""
    if bench.is_gpu and num_cuda_devices() < 2:
        raise NotPossibleHere("this machine has one CUDA device")
    two, one = (_spread(SingleDevice(bench.device), learners, 2) for learners in (2, 1))
    require(torch.equal(values_of(two.agent), values_of(one.agent)), "they end in two places")
    return "bit for bit"


def gathers(bench: Bench) -> str:
    """A group of one process gathers tensors where they are: by NCCL on a CUDA device, and by gloo on the host."""
    import torch.distributed as dist

    from hybridppo.runners.process_group import ProcessGroup

    if bench.is_gpu and not (dist.is_available() and dist.is_nccl_available()):
        raise NotPossibleHere("this build of torch has no NCCL")
    store = dist.HashStore()  # type: ignore[attr-defined]
    group = ProcessGroup(store, 0, 1, timeout=60.0, start_timeout=60.0, is_local=True)
    try:
        for shape in ((2, 1000), (3, 2, 5)):
            own = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
            there = torch.empty(shape, device=bench.device).copy_(own)
            found = group.gather_rows(there)
            require(found.device == bench.device, f"what was gathered is on {found.device}")
            require(torch.equal(torch.empty(1, *shape).copy_(found)[0], own), "what was gathered is something else")
        require(group.gather("a word") == ["a word"], "words were lost beside it")
    finally:
        group.close()
    return "tensors and words"


def evaluations_change_nothing(bench: Bench, name: str) -> str:
    """A training with evaluations beside it ends like one without, and has the results of each evaluation."""
    config = replace(SMALL, fast_updates=False)
    evaluated, _ = bench.train(
        placement_on(name, bench), config, evaluate_every=2 * config.batch_size, evaluation_episodes=4,
        run_dir=bench.folder / "run", checkpoint_seconds=1e9,
    )  # fmt: skip
    plain, _ = bench.train(placement_on(name, bench), config)
    lines = (bench.folder / "run" / "evaluations.jsonl").read_text().splitlines()
    require(len(lines) == 2, f"there are {len(lines)} evaluations, not 2")
    ends = values_of(evaluated.agent), values_of(plain.agent)
    require(torch.allclose(*ends, rtol=1e-5, atol=1e-7), "it ends elsewhere")
    return (
        "ends bit for bit where it does alone" if torch.equal(*ends) else "ends where it does alone, but for rounding"
    )


def device_cases() -> Iterator[Case]:
    """All cases of this file."""
    for env in ("CartPole-v1", "Pendulum-v1"):
        case = partial(steps_as_on_the_cpu, env=env)
        yield Case(f"compiled/steps/{env}", f"{env}, compiled: rollouts on the device as the CPU's loops", case)
        case = partial(recorded_rows_agree, env=env)
        yield Case(f"compiled/recorded/{env}", f"{env}, compiled: rows recorded and one by one", case)
        case = partial(trains_compiled, env=env)
        yield Case(f"compiled/training/{env}", f"{env}, compiled: trained without a crossing, twice alike", case)
    yield Case("compiled/waits", "compiled environments: rollouts without a wait", fills_without_waits)
    yield Case("learners/one", "one learner of batched environments, two shards: as on the CPU", learner_agrees)
    yield Case("learners/two", "two learners with a GPU each: bit for bit as one", learners_agree)
    yield Case("learners/gather", "tensors are gathered where they are", gathers)
    for name in ("single", "hybrid", "overlap"):
        case = partial(evaluations_change_nothing, name=name)
        yield Case(f"evaluated/{name}", f"{name}: evaluations meanwhile change nothing", case)
