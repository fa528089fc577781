"""Cases of kinds of learning: memories, pools, normalization, kinds of spaces and of exploration, DDPG.

Each is compared with the CPU as `results.py` does it, and its updates' waits are counted as in `behaviour.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_cases.behaviour import breaking_off, waits_once
from gpu_cases.case import (
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    agrees,
    distance,
    on_the_cpu,
    placement_on,
    require,
    values_of,
    waits_of,
)
from gpu_cases.environments import Colours, Parts
from gpu_cases.results import IMAGES
from torch import Tensor

from hybridppo.agents import PPOConfig
from hybridppo.agents.ddpg import DDPG, DDPGConfig, TD3Config
from hybridppo.placements.placement import Placement
from hybridppo.running import TrainResult
from hybridppo.training import resume, train

NORMALISED = replace(SMALL, normalize_observations=True, normalize_rewards=True)
MEMORY = replace(SMALL, recurrent="lstm", recurrent_size=16, sequence_length=8)

KINDS: dict[str, tuple[Any, PPOConfig]] = {
    "normalised": ("Pendulum-v1", NORMALISED),
    "pool": ("CartPole-v1", replace(NORMALISED, pool_size=3)),
    "squashed": ("Pendulum-v1", replace(SMALL, squash_actions=True)),
    "noise of the state": ("Pendulum-v1", replace(SMALL, use_sde=True, sde_sample_freq=4, log_std_init=-1.0)),
    "parts": (Parts, replace(IMAGES, encoder_sizes={"arm": (8,)}, normalize_observations=True)),
    "shared trunk": (Colours, replace(IMAGES, shared_trunk=True)),
    "lstm": ("CartPole-v1", MEMORY),
    "gru": (Parts, replace(MEMORY, recurrent="gru", num_steps=16)),
    "memory, ragged": ("CartPole-v1", replace(MEMORY, sequence_length=5, normalize_rewards=True)),
}
"""For each name, the environment and the configuration."""
SAMPLED = ("single", "hybrid", "overlap on one device")

OFF_POLICY: dict[str, Any] = {
    "num_envs": 4, "train_frequency": 2, "batch_size": 32, "buffer_size": 2000, "learning_starts": 64,
    "steps_per_iteration": 80, "n_steps": 3, "hidden_sizes": (32, 32),
}  # fmt: skip
OFF_POLICY_CONFIGS = {
    "ddpg": DDPGConfig(**OFF_POLICY, fast_updates=False),
    "td3": TD3Config(**OFF_POLICY, fast_updates=False),
    "td3, on the host": TD3Config(**OFF_POLICY, fast_updates=False, buffer_on="host"),
    "td3, recorded": TD3Config(**OFF_POLICY),
}
STEPS = 320


def _off_policy(placement: Placement, config: DDPGConfig, **options: Any) -> TrainResult:
    arguments: dict[str, Any] = {"total_steps": STEPS, "seed": 0, "vectorization": "sync", "num_workers": 0, **options}
    return train("Pendulum-v1", placement=placement, config=config, progress=False, **arguments)


def _begun(config: DDPGConfig) -> Tensor:
    """Initial parameters of trainings: those after a training that learns almost nothing."""
    unmoved = replace(config, learning_rate=1e-30, critic_learning_rate=None)
    return values_of(_off_policy(on_the_cpu("single"), unmoved).agent)


def off_policy_agrees(bench: Bench, name: str, config: DDPGConfig) -> str:
    """Train with a replay buffer under the placement and on the CPU, and compare the final parameters."""
    found = _off_policy(placement_on(name, bench), config)
    expected = _off_policy(on_the_cpu(name), config)
    apart = distance(found.agent, expected.agent, _begun(config))
    said = f"ends {apart:.2g} of the way from the CPU's end (allowed: {TOLERANCES['fp32']})"
    require(apart <= TOLERANCES["fp32"], said)
    require(found.agent.parameters.values.device == bench.device, f"the agent is not on {bench.device}")
    return said


def off_policy_resumes(bench: Bench, config: DDPGConfig) -> str:
    """A run that is stopped and resumed ends like one that was never stopped, replay buffer included."""
    whole, run_dir = _off_policy(placement_on("hybrid", bench), config), bench.folder / "run"
    with breaking_off() as break_off:
        _off_policy(
            placement_on("hybrid", bench), config, run_dir=run_dir, checkpoint_seconds=0.0, on_iteration=break_off
        )
    resumed = resume(run_dir, progress=False)
    if torch.equal(values_of(resumed.agent), values_of(whole.agent)):
        return "bit for bit"
    apart = distance(resumed.agent, whole.agent, _begun(config))
    require(apart <= TOLERANCES["fp32"], f"ends {apart:.2g} of the way from the whole run's end")
    return f"ends {apart:.2g} of the way from the whole run's end"


def updates_without_waits(bench: Bench, config: DDPGConfig) -> str:
    """If the replay buffer is on the learner's device, nothing in an update waits."""
    bench.needs_gpu("counting waits")
    counts: list[int] = []
    update = DDPG.update

    def counted(agent: DDPG, minibatches: Any) -> Any:
        metrics: list[Any] = []
        counts.append(waits_of(lambda: metrics.append(update(agent, minibatches)), bench.device))
        return metrics[0]

    DDPG.update = counted  # type: ignore[method-assign]
    try:
        _off_policy(placement_on("hybrid", bench), config)
    finally:
        DDPG.update = update  # type: ignore[method-assign]
    said = f"waits of the last four of {len(counts)} updates: {', '.join(map(str, counts[-4:]))} (expected: 0)"
    require(counts[1:] == [0] * (len(counts) - 1), said)
    return said


def _forms(config: PPOConfig) -> Iterator[tuple[str, PPOConfig]]:
    yield "eager", replace(config, fast_updates=False)
    if config.recurrent is None:  # steps on sequences are not recorded
        yield "recorded", replace(config, cuda_graphs=True)


def kind_cases() -> Iterator[Case]:
    """All cases of this file."""
    for kind, (env, base) in KINDS.items():
        for form, config in _forms(base):
            for name in SAMPLED if form == "eager" else ("hybrid",):
                what = f"{kind}: {name}, {form} steps: as on the CPU"
                # Of a pool, sizes come back only once it is full.
                case = partial(agrees, name=name, config=config, env=env, updates=6 if config.pool_size > 1 else 4)
                yield Case(f"kind/{kind}/{name}/{form}", what, case)
    for kind in ("normalised", "squashed"):
        env, config = KINDS[kind]
        case = partial(waits_once, config=replace(config, fast_updates=False), env=env)
        yield Case(f"waits/{kind}", f"an update waits once: {kind}", case)
    for kind in ("lstm", "memory, ragged"):
        env, config = KINDS[kind]
        case = partial(waits_once, config=replace(config, fast_updates=False), env=env, each_pass=True)
        yield Case(f"waits/{kind}", "with a memory, it waits once more, and once a pass besides", case)
    for kind, settings in OFF_POLICY_CONFIGS.items():
        for name in SAMPLED:
            case = partial(off_policy_agrees, name=name, config=settings)
            yield Case(f"off policy/{kind}/{name}", f"{kind}: {name}: as on the CPU", case)
    td3 = OFF_POLICY_CONFIGS["td3"]
    yield Case("off policy/resume", "td3: resumed as if never stopped", partial(off_policy_resumes, config=td3))
    yield Case("off policy/waits", "td3: an update waits for nothing", partial(updates_without_waits, config=td3))
    td3 = OFF_POLICY_CONFIGS["td3, recorded"]
    yield Case("off policy/resume, recorded", "td3 recorded: resumed likewise", partial(off_policy_resumes, config=td3))
