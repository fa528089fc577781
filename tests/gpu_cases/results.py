"""Cases that compare results: every placement, form and precision against the CPU."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from gpu_cases.case import (
    PLACEMENTS,
    SMALL,
    TOLERANCES,
    Bench,
    Case,
    NotPossibleHere,
    agrees,
    distance,
    on_the_cpu,
    placement_on,
    require,
)
from gpu_cases.environments import Colours, Lengths

from hybridppo.agents import PPOConfig
from hybridppo.system.devices import num_cuda_devices

IMAGES = replace(SMALL, hidden_sizes=(32,), activation="relu", num_steps=16)
WIDE = replace(SMALL, hidden_sizes=(256, 256))
WIDE_IMAGES = replace(IMAGES, hidden_sizes=(256,))
EPISODES = replace(SMALL, num_envs=1, episodes_per_rollout=2)


def on_second_gpu(bench: Bench, name: str, config: PPOConfig) -> str:
    """The same, with a learner on a GPU other than the current one."""
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
    """All cases of this file."""
    for form, config in _forms(SMALL):
        for name in PLACEMENTS:
            for env, kind in (("CartPole-v1", "discrete"), ("Pendulum-v1", "continuous")):
                what = f"{name}, an MLP, {kind} actions, {form} steps: as on the CPU"
                yield Case(f"result/{name}/{kind}/{form}", what, partial(agrees, name=name, config=config, env=env))
    for form, config in _forms(IMAGES):
        for name in PLACEMENTS:
            what = f"{name}, convolutions in float32, {form} steps: as on the CPU"
            yield Case(f"result/{name}/images/{form}", what, partial(agrees, name=name, config=config, env=Colours))
    for precision in ("tf32", "bf16"):
        for env, base, kind in (("CartPole-v1", WIDE, "mlp"), (Colours, WIDE_IMAGES, "images")):
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
            case = partial(agrees, name=name, config=episodes, env=Lengths, updates=12)
            what = f"{name}, rollouts of whole episodes, {form} steps: as on the CPU"
            yield Case(f"episodes/{name}/{form}", what, case)
