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
from hybridppo.auto.decision import MARGIN
from hybridppo.auto.of_candidate import placement_of
from hybridppo.auto.prediction import Candidate
from hybridppo.auto.timing import generators_untouched
from hybridppo.compiled.modules import has_numba
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import HybridPPOError
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.system.threads import limit_threads

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
    trials = _Trials(source, options, agent, seconds_to_make)
    threads = config.torch_threads or 1
    found = candidates(accelerator, cores=cores, max_lag=max_lag, num_workers=num_workers, torch_threads=threads)
    first = found[0]
    turns = max(0, total_steps - config.learning_starts) // (config.num_envs * config.train_frequency)
    is_short = turns < FEWEST_TURNS_OF_A_RUN
    forms = {} if is_short else forms_of(config, agent, {threads, cores})
    if len(found) == 1 and not forms:
        reason = "the only candidate here" if max_lag or cores == 1 else "the only candidate here without max_lag=1"
        return first, trials.table(first, f"{first.label}, {reason}")
    if is_short:
        return first, trials.table(first, f"{first.label}; not measured (a run of {turns} updates)")
    chosen = trials.fastest(found, config, total_steps, has_more=bool(forms))
    if not trials.speeds:
        return chosen, trials.table(chosen, f"{chosen.label}; not measured ({trials.left_out[0]})")
    said = ", ".join(f"{label} {speed:,.0f} steps/s" for label, speed in trials.speeds.items())
    line = f"{chosen.label}; tried: {said}"
    if chosen.learning == "cpu":
        line += trials.told_of(forms, config, chosen)
    return chosen, trials.table(chosen, line)


class _Trials:
    """What was tried, and the time that is left to try more."""

    def __init__(
        self,
        source: EnvSource,
        options: EnvironmentOptions | None,
        agent: AnyAgent | None,
        seconds_to_make: float,
    ) -> None:
        self._source, self._options, self._agent, self._seconds_to_make = source, options, agent, seconds_to_make
        self._start, self._budget = time.perf_counter(), MAX_SECONDS
        self.speeds: dict[str, float] = {}
        """Environment steps a second, of what could be tried."""
        self.left_out: list[str] = []
        """What could not be, and why."""

    def fastest(self, found: list[Candidate], config: DDPGConfig, total_steps: int, *, has_more: bool) -> Candidate:
        """Try all of them; the first, but where another is faster by a margin.

        Args:
            found: the simplest first.
            config: of the agent.
            total_steps: of the run.
            has_more: whether something is tried after them, and needs as much time as one of them.
        """
        first, tried = found[0], 0
        for candidate in found:
            if not self._has_time(candidate.label, 0.0):
                continue
            share = self._left() / (len(found) - tried + has_more)
            seconds = share if tried else min(MAX_SECONDS_OF_THE_FIRST, self._left())
            self._attempt(candidate.label, config, candidate, seconds)
            tried += 1
            if candidate is first and first.label in self.speeds:
                # It says how long the run is, if it is all as fast, and with it how long all may take.
                self._budget = min(MAX_SECONDS, MAX_SHARE * total_steps / self.speeds[first.label])
        chosen = first
        for candidate in found[1:]:
            if self.speeds.get(candidate.label, 0.0) > (1 + MARGIN) * self.speeds.get(chosen.label, 0.0):
                chosen = candidate
        return chosen

    def told_of(self, forms: dict[str, dict[str, Any]], config: DDPGConfig, chosen: Candidate) -> str:
        """Try other forms of learning under a candidate; what to say of those that are faster."""
        line = ""
        for label, changes in forms.items():
            if not self._has_time(label, SECONDS_TO_LOAD):
                continue
            learner = replace(chosen, torch_threads=changes["torch_threads"])
            seconds = min(self._left(), SECONDS_TO_LOAD + SECONDS_OF_A_FORM)
            self._attempt(label, replace(config, **changes), learner, seconds)
            if (speed := self.speeds.get(label, 0.0)) > (1 + MARGIN) * self.speeds.get(chosen.label, math.inf):
                line += f"; with {label} it would make {speed:,.0f} steps/s, and a seed give other bits"
        return line

    def table(self, chosen: Candidate, line: str) -> dict[str, Any]:
        """As `placements.json` has it."""
        return {
            "seconds": time.perf_counter() - self._start,
            "left_out": self.left_out,
            "chosen": chosen.label,
            "line": line,
            "steps_per_second": self.speeds,
        }

    def _left(self) -> float:
        return self._budget - (time.perf_counter() - self._start)

    def _has_time(self, label: str, seconds: float) -> bool:
        if self._left() < self._seconds_to_make * 2 + seconds:
            self.left_out.append(f"{label}: no time was left to try it")
            return False
        return True

    def _attempt(self, label: str, config: DDPGConfig, candidate: Candidate, seconds: float) -> None:
        try:
            speed = _trial(self._source, config, candidate, seconds, self._options, self._agent)
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            # Training under another is better than none, and what is wrong with all will say so itself.
            self.left_out.append(f"{label}: {type(error).__name__}: {error}")
            logger.warning("placement auto: left out %s", self.left_out[-1])
            return
        if speed is None:
            self.left_out.append(f"{label}: too slow to say anything within {seconds:.2g} s")
        else:
            self.speeds[label] = speed


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
