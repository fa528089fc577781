"""How long an iteration takes under every distribution policy, from measured seconds; and whether spreading pays.

    predictions = [predict_policy(work, figures, crossings, policy, resources) for policy in policies(work, resources)]
    print(verdict(local, predictions, work))

Pure functions of numbers, as `hybridppo/auto/prediction.py`: no torch, no clock. `measuring.py` measures
what policies add to the figures of a calibration.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hybridppo.auto.decision import MARGIN, MARGIN_WHERE_ASSUMED
from hybridppo.auto.figures import Figures, Work
from hybridppo.auto.prediction import Candidate, Prediction, predict, seconds_per_step
from hybridppo.runs.distribution_policies import (
    Central,
    Distribution,
    Environments,
    MultiLearner,
    SingleLearnerCoarse,
    SingleLearnerFine,
)
from hybridppo.system.figures import shown_seconds

OverRay = SingleLearnerCoarse | SingleLearnerFine | Environments


@dataclass(frozen=True)
class Resources:
    """What there is to spread a training over."""

    cores: int
    """Of this machine."""
    ray_cpus: int = 0
    """CPUs that Ray may start workers on, here or elsewhere; 0 where there is no Ray."""
    has_more_machines: bool = False
    """Whether those are beside this machine's cores, so that the learner keeps one to itself."""


@dataclass(frozen=True)
class Crossings:
    """Seconds of what policies add, measured with real processes; defaults are what was found on two cores."""

    learner_update: dict[str, float] = field(default_factory=dict)
    """By the policy's text: an update of one of its learners, all that it does but wait for the others."""
    optimizer_step: float = 2e-4
    """The server's, of one gradient: copy it, clip it, step, copy the parameters."""
    exchange: float = 3e-5
    """To meet, when a minibatch's gradients are written where all learners of a machine read them."""
    gather: float = 2e-3
    """A learner's part of a rollout to all the others, and theirs to it."""
    served: float = 1e-4
    """A message to the server of parameters, and its answer."""
    learner_start: float = 4.0
    """Until another learner is there."""
    call: float = 1.1e-3
    """A call of one of Ray's actors, and its answer."""
    another_call: float = 4e-4
    """What each further actor that is called at the same time adds."""
    byte: float = 1e-9
    """Of a large array, from one of Ray's actors to here."""
    ray_start: float = 10.0
    """Ray itself, where it is not there already."""
    actor_start: float = 2.0
    """Until an actor has its environments; they start at the same time."""
    assumed: tuple[str, ...] = (
        "optimizer_step", "exchange", "gather", "served", "learner_start", "call", "another_call", "byte", "ray_start",
        "actor_start",
    )  # fmt: skip
    """The fields above that nobody measured."""

    def measured(self, **seconds: Any) -> "Crossings":
        """With what was measured in place of what was assumed."""
        return replace(self, assumed=tuple(name for name in self.assumed if name not in seconds), **seconds)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True)
class Sizes:
    """What crosses, and how often."""

    minibatches: int
    """Of all epochs of an update."""
    exchanges_of_values: int
    """For the critic's values, which learners divide, before each update."""
    bytes_of_rollout: int
    bytes_of_parameters: int
    """The actor's."""


@dataclass(frozen=True)
class PolicyPrediction:
    """Seconds of an iteration, of as many environment steps under every policy; the first three add up to it."""

    policy: str
    sampling: float
    learning: float
    crossing: float
    """What goes from one fragment to another, and waiting for it."""
    start: float
    """Once, before the first iteration."""
    is_assumed: bool
    """Whether a figure that matters here was assumed."""
    measured: float | None = None
    """Seconds of an iteration of a real training under the policy, if there was one."""

    @property
    def iteration(self) -> float:
        """Seconds of an iteration: those that were measured, or else those that are predicted."""
        return self.sampling + self.learning + self.crossing if self.measured is None else self.measured

    def run(self, iterations: int) -> float:
        """Seconds of a whole run."""
        return self.start + iterations * self.iteration

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**asdict(self), "iteration": self.iteration}


def powers(most: int) -> list[int]:
    """2, 4, 8, and so on, to `most`; and that."""
    found = [2**i for i in range(1, most.bit_length()) if 2**i <= most]
    return sorted({*found, most} - {0, 1})


def policies(work: Work, resources: Resources) -> list[Distribution]:
    """Those worth predicting here: at least one of two fragments each, so that a reader sees what it would cost."""
    learners = [n for n in powers(max(2, resources.cores)) if work.num_envs % n == 0]
    found: list[Distribution] = [MultiLearner(n) for n in learners]
    found += [Central(n) for n in learners]
    if resources.ray_cpus:
        workers = [n for n in powers(max(2, min(resources.ray_cpus, work.num_envs))) if n <= work.num_envs]
        if work.has_workers:
            found += [SingleLearnerCoarse(n) for n in workers]
        found += [SingleLearnerFine(n) for n in workers]
    return found


def predict_policy(
    work: Work, figures: Figures, crossings: Crossings, sizes: Sizes, policy: Distribution, resources: Resources
) -> PolicyPrediction:
    """How long an iteration takes under a policy, with placement `cpu` in each fragment."""
    if isinstance(policy, MultiLearner):
        return _several_learners(work, figures, crossings, sizes, policy, resources)
    if isinstance(policy, Central):
        return _central(work, figures, crossings, sizes, policy, resources)
    assert isinstance(policy, OverRay)
    found = predict_over_ray(work, figures, crossings, sizes, policy, resources, Candidate("cpu"))
    # Assumed figures of a calibration that matter here are those of worker processes.
    needed = {"call", "another_call", "byte"} & set(crossings.assumed) | {"slowdown"} & set(figures.assumed)
    parts = found.sampling, found.learning, found.copying
    return PolicyPrediction(str(policy), *parts, crossings.ray_start + found.start, bool(needed))


def predict_over_ray(
    work: Work,
    figures: Figures,
    crossings: Crossings,
    sizes: Sizes,
    policy: OverRay,
    resources: Resources,
    candidate: Candidate,
) -> Prediction:
    """How long an iteration takes under a placement within a policy whose environments are elsewhere.

    What crosses between fragments is in `copying`, with what the placement copies.
    """
    count = policy.samplers if isinstance(policy, SingleLearnerCoarse) else _workers_of(policy)
    share = -(-work.num_envs // count)
    cpus = max(1, resources.ray_cpus or resources.cores)
    crowd = math.ceil(count / cpus)
    # What the placement itself makes of learning and copying, with all environments here.
    here = predict(replace(work, num_workers=0), figures, replace(candidate, num_workers=0))
    learning, copying = here.learning, here.copying
    if isinstance(policy, SingleLearnerCoarse):
        filling = work.num_steps * seconds_per_step(figures, share, work.num_envs) * crowd
        calls = crossings.call + (count - 1) * crossings.another_call
        crossing = calls + crossings.byte * (sizes.bytes_of_rollout + count * sizes.bytes_of_parameters)
    else:
        on_device = figures.accelerator.action if candidate.name == "cuda" and figures.accelerator else figures.action
        of_envs = (figures.step[work.num_envs] - figures.action) * share / work.num_envs
        calls = crossings.call + (count - 1) * crossings.another_call
        crossing = work.num_steps * calls
        filling = work.num_steps * (on_device + of_envs * crowd)
        if candidate.name == "cuda" and figures.accelerator is not None:
            copying = figures.accelerator.remainder  # the other copies are in the action's seconds
    company = count > 1 or candidate.max_lag
    if company and not resources.has_more_machines:
        filling *= figures.slowdown
    overlapped = 0.0
    if candidate.max_lag:
        has_room = resources.has_more_machines or count + candidate.torch_threads <= resources.cores
        # Whoever acts here holds the interpreter's lock; who waits for answers does not.
        idle = filling if isinstance(policy, SingleLearnerCoarse) else filling - work.num_steps * figures.action
        overlapped = min(max(0.0, idle), learning) if has_room else 0.0
    return Prediction(
        candidate=candidate,
        sampling=figures.rollout + filling - overlapped,
        learning=learning,
        copying=copying + crossing,
        overlapped=overlapped,
        start=crossings.actor_start * crowd,
        is_assumed=bool({"slowdown"} & set(figures.assumed)),
    )


def _workers_of(policy: SingleLearnerFine | Environments) -> int:
    return policy.env_workers if isinstance(policy, SingleLearnerFine) else policy.workers


def _several_learners(
    work: Work, figures: Figures, crossings: Crossings, sizes: Sizes, policy: MultiLearner, resources: Resources
) -> PolicyPrediction:
    learners = policy.learners
    assert learners is not None
    crowd = math.ceil(learners / resources.cores) * (figures.slowdown if learners > 1 else 1.0)
    filling = work.num_steps * seconds_per_step(figures, work.num_envs // learners, work.num_envs)
    meetings = sizes.minibatches + sizes.exchanges_of_values
    return PolicyPrediction(
        policy=str(policy),
        sampling=figures.rollout + filling * crowd,
        learning=crossings.learner_update[str(policy)] * crowd,
        crossing=crossings.gather + meetings * crossings.exchange,
        start=crossings.learner_start * math.ceil((learners - 1) / resources.cores),
        is_assumed=bool({"exchange", "gather"} & set(crossings.assumed) | {"slowdown"} & set(figures.assumed)),
    )


def _central(
    work: Work, figures: Figures, crossings: Crossings, sizes: Sizes, policy: Central, resources: Resources
) -> PolicyPrediction:
    """An iteration here is a rollout of every learner: as many steps as one of all environments.

    Three things bound it: a learner's own way, with the server's step after each of its gradients; the server, which
    steps for all, one after the other; and the cores that all of them share.
    """
    learners = policy.learners
    filling = work.num_steps * seconds_per_step(figures, work.num_envs // learners, work.num_envs)
    slow = figures.slowdown if learners > 1 else 1.0
    sampling, learning = (figures.rollout / learners + filling) * slow, crossings.learner_update[str(policy)] * slow
    served = crossings.served + crossings.optimizer_step
    way = sampling + learning + sizes.minibatches / learners * served
    server = sizes.minibatches * crossings.optimizer_step
    cores = (learners * (sampling + learning) + server) / resources.cores
    return PolicyPrediction(
        policy=str(policy),
        sampling=sampling,
        learning=learning,
        crossing=max(way, server, cores) - sampling - learning,
        start=crossings.learner_start * math.ceil(learners / resources.cores),
        is_assumed=bool({"served", "optimizer_step"} & set(crossings.assumed) | {"slowdown"} & set(figures.assumed)),
    )


def fastest(predictions: Iterable[PolicyPrediction], work: Work) -> PolicyPrediction | None:
    """The one that is through first, with its start; None of none."""
    return min(predictions, key=lambda prediction: prediction.run(work.iterations), default=None)


def pays(prediction: PolicyPrediction, local: PolicyPrediction, work: Work) -> bool:
    """Whether the whole run is shorter than in one place, by more than a margin."""
    margin = MARGIN_WHERE_ASSUMED if prediction.is_assumed or local.is_assumed else MARGIN
    return prediction.run(work.iterations) * (1.0 + margin) < local.run(work.iterations)


def verdict(local: PolicyPrediction, predictions: Sequence[PolicyPrediction], work: Work) -> str:
    """Whether spreading pays, in a line, and why not where it does not.

    Args:
        local: the fastest way without spreading.
        predictions: of the policies.
        work: for the number of iterations.
    """
    best = fastest(predictions, work)
    if best is None:
        return f"there is nothing to compare {local.policy} with"
    run, alone = best.run(work.iterations), local.run(work.iterations)
    times = (
        f"{best.policy} {shown_seconds(best.iteration)} an iteration, {local.policy} {shown_seconds(local.iteration)}"
    )
    if best.measured is not None:
        times += ", measured"
    if pays(best, local, work):
        return f"{best.policy} pays: {alone / run:.2f} times as fast as {local.policy} over the run ({times})"
    if best.iteration < local.iteration and best.start > local.start:
        gained = local.iteration - best.iteration
        needed = math.ceil((best.start - local.start) / gained)
        if needed > work.iterations:
            return (
                f"spreading does not pay: the start of {best.policy} takes {best.start:.2g} s, which {needed:,} "
                f"iterations would bring in, and there are {work.iterations:,} ({times})"
            )
    if best.measured is not None:
        why = f"no policy is faster by more than {MARGIN:.0%}"
    elif best.crossing > 0.2 * best.iteration:
        why = (
            f"what crosses takes {shown_seconds(best.crossing)} of {best.policy}'s iteration: the networks are small "
            "for it, or the environments fast"
        )
    else:
        why = "what cannot be divided takes most of the time"
    return f"spreading does not pay: take {local.policy}; {why} ({times})"
