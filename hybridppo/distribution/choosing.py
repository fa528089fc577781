"""Placement `auto` within a policy: what is measured, predicted and taken where a training is spread.

Only the learner that speaks measures, once; what it takes is in `config.json`, so that a run that goes on keeps it.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.auto import Choice
from hybridppo.auto.calibration import MAX_SHARE
from hybridppo.auto.decision import MARGIN
from hybridppo.auto.figures import Figures, Work
from hybridppo.auto.prediction import Candidate, Prediction, candidates, predict, seconds_per_step
from hybridppo.auto.timing import generators_untouched
from hybridppo.distribution.one_learner import OneLearner
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runs.distribution_policies import (
    Central,
    Environments,
    MultiLearner,
    SingleLearnerCoarse,
    SingleLearnerFine,
)
from hybridppo.system.figures import shown_seconds
from hybridppo.system.threads import cpu_cores

logger = logging.getLogger(__name__)

MAX_SECONDS = 5.0
"""What measuring a learner may take."""
FEWEST_UPDATES = 2
"""To measure a number of threads by: the first is not counted."""
SECONDS_OF_A_CALL, SECONDS_OF_ANOTHER_CALL = 1.1e-3, 4e-4
"""Assumed for a call of one of Ray's actors, and for each further one that is called at the same time."""
OverRay = SingleLearnerCoarse | SingleLearnerFine | Environments


@dataclass(frozen=True)
class Resources:
    """CPUs for the workers of a distribution over Ray."""

    cores: int
    """Of this machine."""
    ray_cpus: int
    """That Ray may start workers on, here or elsewhere."""
    has_more_machines: bool
    """Whether those are beside this machine's cores, so that the learner keeps one to itself."""


class WithinOverRay:
    """What `Auto` asks where environments are elsewhere, and a learner is here.

    Args:
        policy: who runs where.
        names: of the placements that may be taken within it.
        resources: what there is.
    """

    def __init__(self, policy: OverRay, names: Sequence[str], resources: Resources) -> None:
        self.label = str(policy)
        self._policy, self._names, self._resources = policy, names, resources

    def work(self, work: Work) -> Work:
        """As it is measured here: as many workers as there are samplers, or none where actions are chosen here."""
        workers = self._policy.samplers if isinstance(self._policy, SingleLearnerCoarse) else 0
        return replace(work, num_workers=workers)

    def predictions(self, work: Work, figures: Figures) -> list[Prediction]:
        """Of all that may be taken, the simplest first. What crosses is the same under each, and assumed."""
        found = [replace(each, num_workers=0) for each in _all(work, figures) if each.name in self._names]
        return [_prediction(work, figures, self._policy, self._resources, each) for each in found]


def _prediction(
    work: Work, figures: Figures, policy: OverRay, resources: Resources, candidate: Candidate
) -> Prediction:
    """How long an iteration takes under a placement; what crosses once an iteration is the same under all."""
    if isinstance(policy, SingleLearnerCoarse):
        count = policy.samplers
    else:
        count = policy.env_workers if isinstance(policy, SingleLearnerFine) else policy.workers
    share, crowd = -(-work.num_envs // count), math.ceil(count / max(1, resources.ray_cpus or resources.cores))
    # What the placement itself makes of learning and copying, with all environments here.
    here = predict(replace(work, num_workers=0), figures, replace(candidate, num_workers=0))
    calls, copying = SECONDS_OF_A_CALL + (count - 1) * SECONDS_OF_ANOTHER_CALL, here.copying
    acting = 0.0
    if isinstance(policy, SingleLearnerCoarse):
        filling = work.num_steps * seconds_per_step(figures, share, work.num_envs) * crowd
    else:
        acting, on_device = work.num_steps * figures.action, figures.action
        if candidate.name == "cuda" and figures.accelerator is not None:
            on_device = figures.accelerator.action
            copying = figures.accelerator.remainder  # the other copies are in the action's seconds
        of_envs = (figures.step[work.num_envs] - figures.action) * share / work.num_envs
        filling, calls = work.num_steps * (on_device + of_envs * crowd), work.num_steps * calls
    if (count > 1 or candidate.max_lag) and not resources.has_more_machines:
        filling *= figures.slowdown
    overlapped = 0.0
    if candidate.max_lag and (resources.has_more_machines or count + candidate.torch_threads <= resources.cores):
        # Whoever acts here holds the interpreter's lock; who waits for answers does not.
        overlapped = min(max(0.0, filling - acting), here.learning)
    return Prediction(
        candidate=candidate,
        sampling=figures.rollout + filling - overlapped,
        learning=here.learning,
        copying=copying + calls,
        overlapped=overlapped,
        start=0.0,
        is_assumed="slowdown" in figures.assumed,
    )


def _all(work: Work, figures: Figures) -> list[Candidate]:
    """Every placement, by as many threads as there are figures for, without workers of its own."""
    return list(dict.fromkeys(candidates(replace(work, num_workers=0), figures)))


def on_cpu(config: AnyConfig, line: str) -> Choice:
    """The CPU alone, with the threads configured, and why."""
    logger.info("placement auto: %s", line)
    table = {"seconds": 0.0, "left_out": [], "chosen": "cpu", "line": line}
    return Choice(SingleDevice("cpu"), 0, config.torch_threads or 1, table)


def choose_for_learners(
    policy: MultiLearner | Central,
    source: EnvSource,
    config: PPOConfig,
    options: EnvironmentOptions,
    agent: AnyAgent,
    *,
    iterations: int,
) -> Choice:
    """The number of torch threads of each learner: they sample and learn by turns on CPUs, and nothing else is open.

    Each has its part of the cores. Another number is another rounding: it is looked at only where `torch_threads` is
    None.

    Args:
        policy: with the number of learners.
        source: of the environments.
        config: of the training.
        options: of the environments.
        agent: what is to be trained, to make others like it.
        iterations: of the run, of whose time measuring takes 5 % at most.
    """
    assert policy.learners is not None
    most = max(1, cpu_cores() // policy.learners)
    counts = [2**i for i in range(most.bit_length()) if 2**i <= most]
    if config.torch_threads is not None:
        return on_cpu(config, f"cpu within {policy}, the only candidate with torch_threads={config.torch_threads}")
    if len(counts) == 1:
        return on_cpu(config, f"cpu within {policy}, the only candidate: a learner has one of {cpu_cores()} cores")
    assert isinstance(agent, PPO)  # as its configuration is
    start = time.perf_counter()
    seconds, left_out = _seconds_by_threads(policy, source, config, options, agent, counts, iterations)
    chosen = 1
    for threads, update in seconds.items():
        if update * (1.0 + MARGIN) < seconds[chosen]:
            chosen = threads
    label = "cpu" if chosen == 1 else f"cpu, {chosen} threads"
    said = ", ".join(f"{shown_seconds(update)} with {threads} of torch" for threads, update in seconds.items())
    line = f"{label} within {policy}; a learner's update takes {said or 'too long for this run to measure it'}"
    spent = time.perf_counter() - start
    logger.info("placement auto: %s (measured in %.2g s)", line, spent)
    table: dict[str, Any] = {"seconds": spent, "left_out": left_out, "chosen": label, "line": line}
    table["update_by_threads"] = {str(threads): update for threads, update in seconds.items()}
    return Choice(SingleDevice("cpu"), 0, chosen, table)


def _seconds_by_threads(
    policy: MultiLearner | Central,
    source: EnvSource,
    config: PPOConfig,
    options: EnvironmentOptions,
    agent: PPO,
    counts: Sequence[int],
    iterations: int,
) -> tuple[dict[int, float], list[str]]:
    """A learner's update by number of threads, as far as there is time; and what was left out."""
    found: dict[int, float] = {}
    left_out: list[str] = []
    begun = time.perf_counter()
    with generators_untouched():
        one = OneLearner(source, config, options, policy, make_agent=agent.like)
        first = one.update()
        # The run is at least so long, since an update is a part of each of its iterations.
        allowed = min(MAX_SECONDS, MAX_SHARE * iterations * first)
        for count in counts:
            left = allowed - (time.perf_counter() - begun)
            if left < FEWEST_UPDATES * first:
                left_out.append(f"{count} torch threads: an update takes about {first:.2g} s, too much for this run")
                break
            found[count] = one.seconds(left / (2 * len(counts)), count)
    return (found if 1 in found else {}), left_out
