"""Cases of what comes out: every placement, form and precision against the CPU."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hybridppo.agents import PPOConfig
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice
from hybridppo.system.accelerator import num_cuda_devices
from hybridppo.tools.diagnosis.acceptance.case import SMALL, TOLERANCES, Bench, Case, NotPossibleHere, distance, require

IMAGES = replace(SMALL, hidden_sizes=(32,), activation="relu", num_steps=16)
WIDE = replace(SMALL, hidden_sizes=(256, 256))
WIDE_IMAGES = replace(IMAGES, hidden_sizes=(256,))
EPISODES = replace(SMALL, num_envs=1, episodes_per_rollout=2)

PLACEMENTS = ("single", "migrate", "hybrid", "overlap", "overlap on one device")
SIMPLE = ("single", "migrate", "hybrid")


def placement_on(name: str, bench: Bench, sampling: str = "cpu") -> Placement:
    """The placement of that name which learns on the bench's device, and copies even where that is the CPU."""
    device = bench.device
    forced = not bench.is_gpu
    if name == "single":
        return SingleDevice(device)
    if name == "migrate":
        return Migrating(sampling, device, force_copy=forced)
    if name == "hybrid":
        return Mirrored(sampling, device, verify=True, force_copy=forced)
    if name == "overlap":
        return Mirrored(sampling, device, max_lag=1)
    return Mirrored(device, device, max_lag=1)


def on_the_cpu(name: str) -> Placement:
    """What a placement's result is compared with: the same without a device, and with the same lag."""
    return Mirrored("cpu", "cpu", max_lag=1) if name.startswith("overlap") else SingleDevice("cpu")


def agrees(
    bench: Bench, name: str, config: PPOConfig, env: str = "CartPole-v1", *, updates: int = 4, num_workers: int = 0
) -> str:
    """Train under the placement and on the CPU, and compare where both end."""
    precision = config.precision
    if precision != "fp32":
        bench.needs_precision(precision)
    if config.cuda_graphs:
        bench.needs_gpu("recording a CUDA graph")
    placement = placement_on(name, bench)
    found, history = bench.train(placement, config, env=env, updates=updates, num_workers=num_workers)
    reference = replace(config, precision="fp32", cuda_graphs=False, fast_updates=True)
    expected, _ = bench.train(on_the_cpu(name), reference, env=env, updates=updates)
    apart = distance(found.agent, expected.agent, bench.begun(reference, env=env))
    tolerance = TOLERANCES[precision]
    said = f"ends {apart:.2g} of the way from the CPU's end (allowed: {tolerance})"
    require(apart <= tolerance, said)
    require(found.agent.parameters.values.device == bench.device, f"the agent is not on {bench.device}")
    if config.cuda_graphs:
        replays = sum(metrics["graph_replays"] for metrics in history)
        recordings = sum(metrics["graph_recordings"] for metrics in history)
        eager = sum(metrics["graph_eager_steps"] for metrics in history)
        # Of whole episodes, sizes need not come back.
        require(replays > 0 or config.episodes_per_rollout is not None, "no step was replayed")
        said += f"; {recordings:.0f} recordings, {replays:.0f} replays, {eager:.0f} eager steps"
    return said


def on_second_gpu(bench: Bench, name: str, config: PPOConfig) -> str:
    """The same with another GPU than the current one as the learner."""
    return agrees(_second(bench), name, config)


def between_gpus(bench: Bench, name: str, config: PPOConfig) -> str:
    """Sampling on the first GPU, learning on the second."""
    second = _second(bench)
    found, _ = second.train(placement_on(name, second, sampling="cuda:0"), config)
    expected, _ = second.train(on_the_cpu(name), replace(config, cuda_graphs=False))
    apart = distance(found.agent, expected.agent, second.begun(config))
    require(apart <= TOLERANCES["fp32"], f"ends {apart:.2g} of the way from the CPU's end")
    return f"ends {apart:.2g} of the way from the CPU's end"


def _second(bench: Bench) -> Bench:
    bench.needs_gpu("a second CUDA device")
    if num_cuda_devices() < 2:
        raise NotPossibleHere("this machine has one CUDA device")
    return replace(bench, device_name="cuda:1")


def _forms(config: PPOConfig) -> Iterator[tuple[str, PPOConfig]]:
    yield "eager", replace(config, fast_updates=False)
    yield "recorded", replace(config, cuda_graphs=True)


def result_cases() -> Iterator[Case]:
    """All of them."""
    for form, config in _forms(SMALL):
        for name in PLACEMENTS:
            for env, kind in (("CartPole-v1", "discrete"), ("Pendulum-v1", "continuous")):
                what = f"{name}, an MLP, {kind} actions, {form} steps: as on the CPU"
                yield Case(f"result/{name}/{kind}/{form}", what, partial(agrees, name=name, config=config, env=env))
    for form, config in _forms(IMAGES):
        for name in PLACEMENTS:
            what = f"{name}, convolutions in float32, {form} steps: as on the CPU"
            yield Case(f"result/{name}/images/{form}", what, partial(agrees, name=name, config=config, env="Colours"))
    for precision in ("tf32", "bf16"):
        for env, base, kind in (("CartPole-v1", WIDE, "mlp"), ("Colours", WIDE_IMAGES, "images")):
            for form, config in _forms(replace(base, precision=precision)):
                what = f"hybrid in {precision}, {kind}, {form} steps: near the CPU's float32"
                case = partial(agrees, name="hybrid", config=config, env=env)
                yield Case(f"precision/{precision}/{kind}/{form}", what, case)
    for form, config in _forms(SMALL):
        for name in PLACEMENTS:
            case = partial(on_second_gpu, name=name, config=config)
            yield Case(f"cuda:1/{name}/{form}", f"{name} with cuda:1, {form} steps: as on the CPU", case)
        for name in ("migrate", "hybrid", "overlap"):
            case = partial(between_gpus, name=name, config=config)
            what = f"{name}, sampling on cuda:0 and learning on cuda:1, {form} steps: as on the CPU"
            yield Case(f"between/{name}/{form}", what, case)
        for workers in (1, 2):
            case = partial(agrees, name="overlap", config=config, num_workers=workers)
            what = f"overlap with {workers} worker process(es), {form} steps: as on the CPU"
            yield Case(f"overlap/workers {workers}/{form}", what, case)
        episodes = replace(EPISODES, cuda_graphs=config.cuda_graphs, fast_updates=config.fast_updates)
        for name in ("hybrid", "overlap", "overlap on one device"):
            case = partial(agrees, name=name, config=episodes, env="Lengths", updates=12)
            what = f"{name}, rollouts of whole episodes, {form} steps: as on the CPU"
            yield Case(f"episodes/{name}/{form}", what, case)
