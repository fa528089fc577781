"""From measured seconds to a choice: how long an iteration takes under every placement, and which to take.

    predictions = [predict(work, figures, candidate) for candidate in candidates(work, figures)]
    decision = decide(predictions, work, max_lag=0, torch_threads=1)

Pure functions of numbers: no torch, no clock. `calibration.py` measures what goes in, `decision.py` decides, and
`auto.py` acts on what comes out.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from hybridppo.auto.figures import Figures, FormFigures, Name, Work


@dataclass(frozen=True)
class Candidate:
    """A placement with its number of worker processes and torch threads."""

    name: Name
    sampling: str = "cpu"
    learning: str = "cpu"
    num_workers: int = 0
    torch_threads: int = 1

    @property
    def max_lag(self) -> int:
        """How many updates the parameters that sample may be behind."""
        return int(self.name == "overlap")

    @property
    def label(self) -> str:
        """What it is called in a line of text."""
        parts = [self.name if self.name != "overlap" or self.learning == "cpu" else f"overlap on {self.learning}"]
        if self.num_workers:
            parts.append(f"{self.num_workers} worker{'s' if self.num_workers > 1 else ''}")
        if self.torch_threads > 1:
            parts.append(f"{self.torch_threads} threads")
        return ", ".join(parts)


@dataclass(frozen=True)
class Prediction:
    """Seconds of an iteration; the first three add up to it."""

    candidate: Candidate
    sampling: float
    """Spent waiting for the sampler."""
    learning: float
    copying: float
    overlapped: float
    """What else the sampler spends, while the agent learns."""
    start: float
    """Once, before the first iteration."""
    is_assumed: bool
    """Whether a figure that matters here was assumed."""

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        return self.sampling + self.learning + self.copying

    def run(self, iterations: int) -> float:
        """Seconds of a whole run."""
        return self.start + iterations * self.iteration

    def to_json(self) -> dict[str, Any]:
        """The prediction, as JSON can hold it."""
        values = asdict(self)
        return {**values.pop("candidate"), "label": self.candidate.label, "iteration": self.iteration, **values}


def seconds_per_step(figures: Figures, num_envs: int, of: int) -> float:
    """One step of `num_envs` of the `of` environments: the figure, or a line through what was measured.

    With one figure only, actions cost as much for a part as for all, and everything else is in proportion.
    """
    if num_envs in figures.step:
        return figures.step[num_envs]
    sizes = sorted(figures.step)
    if len(sizes) == 1:
        fixed, slope = figures.action, (figures.step[of] - figures.action) / of
    else:
        first, last = sizes[0], sizes[-1]
        slope = max(0.0, figures.step[last] - figures.step[first]) / (last - first)
        fixed = max(0.0, figures.step[last] - slope * last)
    return fixed + slope * num_envs


def candidates(work: Work, figures: Figures) -> list[Candidate]:
    """Everything that could be run, the simplest first."""
    found = []
    for threads in sorted(figures.update, key=lambda count: (count != work.torch_threads, count)):
        if figures.update[threads] > figures.update[work.torch_threads]:  # shown, but not worth combining
            found.append(Candidate("cpu", num_workers=work.num_workers or 0, torch_threads=threads))
            continue
        found += [Candidate("cpu", num_workers=n, torch_threads=threads) for n in _worker_counts(work, 0, work.cores)]
        found += [
            Candidate("overlap", num_workers=n, torch_threads=threads)
            for n in _worker_counts(work, 1, work.cores - threads)
        ]
    if figures.accelerator is not None:
        device, threads = figures.accelerator.device, work.torch_threads
        if not work.num_workers and not work.draws_on_device:
            found.append(Candidate("cuda", device, device, torch_threads=threads))
        for name in ("hybrid", "migrate"):
            counts = _worker_counts(work, 0, work.cores)
            found += [Candidate(name, "cpu", device, n, threads) for n in counts]
        counts = _worker_counts(work, 1, work.cores - 1)
        found += [Candidate("overlap", "cpu", device, n, threads) for n in counts]
    return found


def _worker_counts(work: Work, least: int, most: int) -> list[int]:
    """Numbers of worker processes worth predicting: 0 or 1 first, then powers of two, and as many as there is room."""
    if work.num_workers is not None:
        return [work.num_workers]
    if least == 1 and (most < 1 or not work.has_workers):
        return []
    room = min(most, work.num_envs) if work.splits and work.has_workers else least
    powers = [2**i for i in range(1, room.bit_length()) if 2**i <= room]
    return [least, *sorted({*powers, room} - {0, 1})]


def predict(work: Work, figures: Figures, candidate: Candidate) -> Prediction:
    """How long an iteration takes under a candidate."""
    accelerator, workers = figures.accelerator, candidate.num_workers
    share = -(-work.num_envs // workers) if workers else work.num_envs
    filling = work.num_steps * seconds_per_step(figures, share, work.num_envs)
    learning = figures.update.get(candidate.torch_threads, 0.0)
    copying = 0.0
    if candidate.learning != "cpu":
        assert accelerator is not None  # `candidates` proposes no device that has no figures
        learning = accelerator.update
        if candidate.name == "cuda":
            crossing = work.num_steps * accelerator.crossing
            filling += work.num_steps * (accelerator.action - figures.action) - crossing
            copying = crossing + accelerator.remainder
        else:
            copying = accelerator.transfer + (accelerator.move if candidate.name == "migrate" else accelerator.publish)
    elif candidate.name == "overlap":
        copying = figures.publish

    sampling, overlapped = figures.rollout, 0.0
    if workers:
        sampling += figures.message
        if workers > 1 or candidate.max_lag:
            filling *= figures.slowdown
        filling *= math.ceil(workers / work.cores)
    if not candidate.max_lag:
        sampling += filling
    elif not workers:
        # In a thread: the interpreter's lock lets one of them work at a time.
        sampling += filling
    else:
        learner_threads = candidate.torch_threads if candidate.learning == "cpu" else 1
        if candidate.learning == "cpu":
            learning *= figures.slowdown
        if workers + learner_threads <= work.cores:
            overlapped = min(filling, learning)
            sampling += filling - overlapped
        else:  # some core has a worker and the learner to carry
            sampling += filling
    needed = {"message", "worker_start", "slowdown"} if workers else set()
    return Prediction(
        candidate=candidate,
        sampling=sampling,
        learning=learning,
        copying=copying,
        overlapped=overlapped,
        start=math.ceil(workers / work.cores) * figures.worker_start,
        is_assumed=bool(needed & set(figures.assumed)),
    )


def predict_with(form: FormFigures, work: Work, figures: Figures, candidate: Candidate) -> Prediction:
    """The same, where the CPU learns by another form of the update."""
    candidate = replace(candidate, torch_threads=form.threads)
    found = predict(work, replace(figures, update={form.threads: form.update}), candidate)
    return replace(found, start=found.start + form.start)
