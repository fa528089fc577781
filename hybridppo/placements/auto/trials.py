"""The choice for agents that learn every few steps: each candidate trains for some moments, and the fastest is taken.

What `prediction.py` puts together is an iteration of one rollout and one update. Where hundreds of turns make an
iteration, of which each crosses and waits by itself, the sum of the parts says little; and a turn is so short that a
second holds enough of them to measure the whole.
"""

import contextlib
import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np

from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.agents.registry import AnyAgent, agent_class, make_agent
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import HybridPPOError
from hybridppo.placements.auto.decision import MARGIN
from hybridppo.placements.auto.of_candidate import placement_of
from hybridppo.placements.auto.prediction import Candidate
from hybridppo.placements.auto.timing import generators_untouched
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.threads import limit_threads

logger = logging.getLogger(__name__)

MAX_SECONDS, MAX_SHARE = 5.0, 0.05
"""What all trials together may take, and of the run that they are for."""
WARMUP_TURNS = 3
"""Turns that are not counted: the first load and allocate."""
MAX_SECONDS_OF_THE_FIRST = 1.0
"""Of these, for the first: nobody knows yet how long the run is."""
FEWEST_TURNS_OF_A_RUN = 1_000
"""A run of fewer is over before trials have paid for themselves."""
FEWEST_TURNS = 10
"""With fewer in a trial, it says nothing."""
BUFFER = 10_000
"""Transitions in the replay buffer of a trial."""


def candidates(
    accelerator: str | None, *, cores: int, max_lag: int, num_workers: int | None, torch_threads: int
) -> list[Candidate]:
    """All that may be taken, the simplest first: overlap where lag is allowed, another device where there is one."""
    workers = num_workers or 0
    found = [Candidate("cpu", num_workers=workers, torch_threads=torch_threads)]
    ahead = num_workers if num_workers is not None else 1
    if max_lag and cores > 1:
        found.append(Candidate("overlap", num_workers=ahead, torch_threads=torch_threads))
    if accelerator is not None:
        found.append(Candidate("hybrid", "cpu", accelerator, workers, torch_threads))
        if not workers:
            found.append(Candidate("cuda", accelerator, accelerator, 0, torch_threads))
        if max_lag:
            found.append(Candidate("overlap", "cpu", accelerator, ahead, torch_threads))
    return found


def choose_by_trials(
    source: EnvSource,
    config: DDPGConfig,
    *,
    accelerator: str | None,
    cores: int,
    max_lag: int,
    total_steps: int,
    num_workers: int | None,
    options: EnvironmentOptions | None,
    agent: AnyAgent | None,
    seconds_to_make: float = 0.0,
) -> tuple[Candidate, dict[str, Any]]:
    """The candidate to take, and what `placements.json` says of it.

    Args:
        source: what the environments are made from; trials make their own.
        config: of the agent.
        accelerator: a device beside the CPU, where there is one.
        cores: of the CPU.
        max_lag: 1 allows overlap.
        total_steps: of the run.
        num_workers: as asked for by the user; None leaves it open.
        options: how the environments are made and stepped.
        agent: what is to be trained, for trials to make others like it.
        seconds_to_make: what it took to make the environments.
    """
    start = time.perf_counter()
    threads = config.torch_threads or 1
    found = candidates(accelerator, cores=cores, max_lag=max_lag, num_workers=num_workers, torch_threads=threads)
    first, left_out, speeds = found[0], list[str](), dict[str, float]()
    if len(found) == 1:
        reason = "the only candidate here" if max_lag or cores == 1 else "the only candidate here without max_lag=1"
        return first, _table(first, f"{first.label}, {reason}", speeds, left_out, start)
    turns = max(0, total_steps - config.learning_starts) // (config.num_envs * config.train_frequency)
    if turns < FEWEST_TURNS_OF_A_RUN:
        return first, _table(first, f"{first.label}; not measured (a run of {turns} updates)", speeds, left_out, start)
    # The first says how long the run is, if it is all as fast, and with it how long all may take.
    budget, with_trials = MAX_SECONDS, list[Candidate]()
    for candidate in found:
        left = budget - (time.perf_counter() - start)
        if left < seconds_to_make * 2:
            left_out.append(f"{candidate.label}: no time was left to try it")
            continue
        try:
            share = (
                min(MAX_SECONDS_OF_THE_FIRST, left) if candidate is first else left / (len(found) - len(with_trials))
            )
            speed = _trial(source, config, candidate, share, options, agent)
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            # Training under another is better than none, and what is wrong with all will say so itself.
            left_out.append(f"{candidate.label}: {type(error).__name__}: {error}")
            logger.warning("placement auto: left out %s", left_out[-1])
            continue
        with_trials.append(candidate)
        if speed is None:
            left_out.append(f"{candidate.label}: too slow to say anything within {share:.2g} s")
            continue
        speeds[candidate.label] = speed
        if candidate is first:
            budget = min(MAX_SECONDS, MAX_SHARE * total_steps / speed)
    chosen = first
    for candidate in found[1:]:
        if speeds.get(candidate.label, 0.0) > (1 + MARGIN) * speeds.get(chosen.label, 0.0):
            chosen = candidate
    said = ", ".join(f"{label} {speed:,.0f} steps/s" for label, speed in speeds.items())
    line = f"{chosen.label}; tried: {said}" if said else f"{chosen.label}; not measured ({left_out[0]})"
    return chosen, _table(chosen, line, speeds, left_out, start)


def _table(chosen: Candidate, line: str, speeds: dict[str, float], left_out: list[str], start: float) -> dict[str, Any]:
    return {
        "seconds": time.perf_counter() - start,
        "left_out": left_out,
        "chosen": chosen.label,
        "line": line,
        "steps_per_second": speeds,
    }


def _trial(
    source: EnvSource,
    config: DDPGConfig,
    candidate: Candidate,
    seconds: float,
    options: EnvironmentOptions | None,
    agent: AnyAgent | None,
) -> float | None:
    """Environment steps a second, learning at every turn; None where there was not time for enough turns."""
    options = options if options is not None else EnvironmentOptions()
    turn = config.num_envs * config.train_frequency
    room = max(BUFFER, turn, config.n_steps * config.num_envs)
    small = replace(config, learning_starts=0, steps_per_iteration=turn, buffer_size=min(config.buffer_size, room))
    begun = time.perf_counter()
    with generators_untouched(), limit_threads(candidate.torch_threads), contextlib.ExitStack() as stack:
        environments = make_environments(source, config.num_envs, options)
        stack.callback(environments.close)
        spaces = environments.observation_space, environments.action_space
        kind = type(agent) if agent is not None else agent_class(config)
        trained, placement = make_agent(kind, *spaces, small, seed=0), placement_of(candidate)
        placement.prepare(trained)
        sampler = make_sampler(
            source,
            environments,
            trained,
            placement,
            num_steps=small.num_steps,
            num_workers=candidate.num_workers,
            options=options,
            env_seed=0,
            noise=np.random.default_rng(0),
        )
        stack.callback(sampler.close)
        runner = make_runner(trained, sampler, placement, total_steps=2**62, progress=False)
        for _ in range(WARMUP_TURNS):
            runner.iterate()
        start, steps, turns = time.perf_counter(), sampler.env_steps, 0
        while time.perf_counter() < begun + seconds:
            runner.iterate()
            turns += 1
        return (sampler.env_steps - steps) / (time.perf_counter() - start) if turns >= FEWEST_TURNS else None
