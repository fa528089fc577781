"""Measure what a placement's speed depends on: on the user's own environment, networks and configuration.

    calibration = calibrate("CartPole-v1", work, PPOConfig())
    calibration.figures         # for hybridppo.prediction

Everything is measured through the parts that training is made of, on environments, an agent and generators of its
own, so that training finds nothing changed. The cheapest and most decisive comes first: a step, then an update; what
they say of the run's length sets how much time the rest may take.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial

from hybridppo.agents import PPO, PPOConfig
from hybridppo.auto.bench import PLANNED_SECONDS, Bench
from hybridppo.auto.figures import Calibration, Work
from hybridppo.auto.timing import generators_untouched
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.system.accelerator import num_cuda_devices
from hybridppo.system.threads import limit_threads

MAX_SHARE = 0.05
"""Of the run that it is for."""
MIN_MINIBATCHES = 60
"""A run with fewer in all its rollouts is over before a calibration has paid for itself: that goes over three."""


def available_accelerator() -> str | None:
    """The CUDA device, where there is one."""
    return "cuda" if num_cuda_devices() else None


def calibrate(
    source: EnvSource,
    work: Work,
    config: PPOConfig,
    *,
    max_lag: int = 0,
    any_threads: bool = False,
    accelerator: str | None = None,
    options: EnvironmentOptions | None = None,
    make_agent: Callable[..., PPO] | None = None,
    max_share: float = MAX_SHARE,
    seconds_to_make: float = 0.0,
) -> Calibration:
    """Measure, within `MAX_SECONDS` and `max_share` of the expected run.

    Args:
        source: what the environments are made from.
        work: what is to be done.
        config: of PPO.
        max_lag: what is allowed, so that no time goes to what is not.
        any_threads: whether every number of torch threads may be taken; else only one more is looked at.
        accelerator: the device that might learn, besides the CPU. The CPU's own name stands in for one in tests.
        options: how the environments are made and stepped.
        make_agent: makes an agent from a configuration, such as `PPO.like`; None makes PPO as it comes.
        max_share: infinite where somebody asked for the figures themselves.
        seconds_to_make: what it took to make the environments, if that is known: they are made again.
    """
    calibration = Calibration()
    if config.episodes_per_rollout is not None:
        calibration.left_out.append("all: rollouts of whole episodes have no length to go by")
        return calibration
    if work.iterations * config.minibatches_of(config.batch_size) < MIN_MINIBATCHES and max_share <= 1.0:
        calibration.left_out.append(f"all: a run of {work.iterations} iterations is too short to measure")
        return calibration
    if seconds_to_make > PLANNED_SECONDS:
        calibration.left_out.append(f"all: to make the environments once more would take {seconds_to_make:.2g} s")
        return calibration
    start = time.perf_counter()
    with generators_untouched(), limit_threads(work.torch_threads), contextlib.ExitStack() as stack:
        bench = Bench(source, work, config, options, make_agent, max_share, calibration, stack)
        torch_threads = None if any_threads else work.torch_threads
        threads = {"threads": partial(bench.measure_threads, any_threads)}
        stages: dict[str, Callable[[], None]] = {
            "steps": bench.measure_steps,
            "updates": bench.measure_updates,
            "publishing": bench.measure_publishing,
            **(threads if any_threads else {}),  # else only for a hint, in time that is left
            "part": bench.measure_part,
            "accelerator": partial(bench.measure_accelerator, accelerator),
            "workers": partial(bench.measure_workers, max_lag, torch_threads),
            **threads,
            "forms": bench.measure_forms,
        }
        calibration.stages["making"] = time.perf_counter() - start
        for name, measure in stages.items():
            if not calibration.is_over:
                calibration.stages[name] = bench.time(measure)
        calibration.figures = bench.figures
    calibration.seconds = time.perf_counter() - start
    return calibration
