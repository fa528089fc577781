"""The choice for agents that learn every few steps: each candidate trains for some moments, and the fastest is taken.

What `prediction.py` puts together is an iteration of one rollout and one update. Where hundreds of turns make an
iteration, of which each crosses and waits by itself, the sum of the parts says little; and a turn is so short that a
second holds enough of them to measure the whole.
"""

import contextlib
import logging
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.agents.ddpg.ddpg import DDPG
from hybridppo.agents.registry import AnyAgent, agent_class, make_agent
from hybridppo.compiled.modules import has_numba
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
SECONDS_TO_LOAD = 1.5
"""What to set aside until compiled updates have made the first."""
SECONDS_OF_A_FORM = 0.5
"""What a trial of one may take beside that."""
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
    turns = max(0, total_steps - config.learning_starts) // (config.num_envs * config.train_frequency)
    is_short = turns < FEWEST_TURNS_OF_A_RUN
    forms = {} if is_short else forms_of(config, agent, {threads, cores})
    if len(found) == 1 and not forms:
        reason = "the only candidate here" if max_lag or cores == 1 else "the only candidate here without max_lag=1"
        return first, _table(first, f"{first.label}, {reason}", speeds, left_out, start)
    if is_short:
        return first, _table(first, f"{first.label}; not measured (a run of {turns} updates)", speeds, left_out, start)
    # The first says how long the run is, if it is all as fast, and with it how long all may take.
    budget, tried = MAX_SECONDS, 0

    def attempt(label: str, config: DDPGConfig, candidate: Candidate, share: float) -> None:
        try:
            speed = _trial(source, config, candidate, share, options, agent)
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            # Training under another is better than none, and what is wrong with all will say so itself.
            left_out.append(f"{label}: {type(error).__name__}: {error}")
            logger.warning("placement auto: left out %s", left_out[-1])
            return
        if speed is None:
            left_out.append(f"{label}: too slow to say anything within {share:.2g} s")
        else:
            speeds[label] = speed

    for candidate in found:
        left = budget - (time.perf_counter() - start)
        if left < seconds_to_make * 2:
            left_out.append(f"{candidate.label}: no time was left to try it")
            continue
        share = left / (len(found) - tried + bool(forms))
        attempt(candidate.label, config, candidate, min(MAX_SECONDS_OF_THE_FIRST, left) if not tried else share)
        tried += 1
        if candidate is first and first.label in speeds:
            budget = min(MAX_SECONDS, MAX_SHARE * total_steps / speeds[first.label])
    chosen = first
    for candidate in found[1:]:
        if speeds.get(candidate.label, 0.0) > (1 + MARGIN) * speeds.get(chosen.label, 0.0):
            chosen = candidate
    said = ", ".join(f"{label} {speed:,.0f} steps/s" for label, speed in speeds.items())
    line = f"{chosen.label}; tried: {said}" if said else f"{chosen.label}; not measured ({left_out[0]})"
    for label, changes in forms.items() if chosen.learning == "cpu" and said else ():
        left = budget - (time.perf_counter() - start)
        if left < seconds_to_make * 2 + SECONDS_TO_LOAD:
            left_out.append(f"{label}: no time was left to try it")
            continue
        learner, share = replace(chosen, torch_threads=changes["torch_threads"]), SECONDS_TO_LOAD + SECONDS_OF_A_FORM
        attempt(label, replace(config, **changes), learner, min(left, share))
        if (speed := speeds.get(label, 0.0)) > (1 + MARGIN) * speeds.get(chosen.label, math.inf):
            line += f"; with {label} it would make {speed:,.0f} steps/s, and a seed give other bits"
    return chosen, _table(chosen, line, speeds, left_out, start)


def forms_of(config: DDPGConfig, agent: AnyAgent | None, threads: set[int]) -> dict[str, dict[str, Any]]:
    """What to set to learn in another arithmetic: told of and never taken, for a seed would give other bits.

    Compiled updates where they were compiled on this machine before, which takes half a minute.
    """
    if not config.fast_updates or config.compiled_updates or not has_numba():
        return {}
    from hybridppo.agents.ddpg.compiled_steps import MODULE, CompiledSteps

    if not MODULE.is_kept() or (isinstance(agent, DDPG) and not CompiledSteps.supports(agent)):
        return {}
    configured = config.torch_threads or 1
    return {
        "compiled_updates=True" + (f" and torch_threads={number}" if number != configured else ""): {
            "compiled_updates": True,
            "torch_threads": number,
        }
        for number in sorted(threads)
    }


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
