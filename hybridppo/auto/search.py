"""Finds the fastest placement: tries a few candidates, each only if it could be faster than the best so far."""

import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hybridppo.auto.trials import PARTS, Candidate, Training, Trial
from hybridppo.errors import HybridPPOError
from hybridppo.system.devices import is_cuda_awake
from hybridppo.system.messages import shown_seconds
from hybridppo.system.signals import Stopped

logger = logging.getLogger(__name__)

MARGIN = 0.03
"""The share by which a candidate must be faster than a simpler one; else the simpler one is chosen."""
MAX_SECONDS, MAX_SHARE = 5.0, 0.05
"""The longest that all trials together may take: in seconds, and as a share of the run."""
PLANNED = 0.8
"""The share of this time that is planned; a trial may take longer than expected."""
FEWEST_STEPS = 600
"""A run with fewer optimizer steps is over before trials have paid for themselves."""
ITERATIONS = 4
"""Iterations of a trial: a warm-up, and three for the median."""
MAX_SECONDS_OF_A_TRIAL = 0.4
SECONDS_TO_WAKE_AN_ACCELERATOR = 1.5
"""How long the first update on a GPU takes in a process that has not used it before."""
SECONDS_TO_START_A_WORKER = 0.2
"""The estimate for starting worker processes before any was started."""
SECONDS_WORTH_THREADS = 2e-3
"""An optimizer step shorter than this gains nothing from a second thread."""


@dataclass(frozen=True)
class Limits:
    """What the search may choose."""

    total_steps: int
    """Environment steps of the run, over which the time to start is spread."""
    cores: int
    """CPU cores that the training may use."""
    num_workers: int | None = None
    """The user's number; None leaves it open."""
    splits: bool = False
    """Whether the environments may be divided among processes without changing the result."""
    has_workers: bool = True
    """Whether the actor can sample in another process at all."""
    draws_on_device: bool = False
    """Whether sampling on an accelerator draws other noise than the CPU, so that it gives another result."""
    max_lag: int = 0
    any_threads: bool = False
    """Whether every number of torch threads may be taken, each of which rounds differently."""
    torch_threads: int = 1
    """The configured number."""
    accelerator: str | None = None
    """A device besides the CPU. In tests, the name of the CPU stands in for it."""
    seconds_to_make: float = 0.0
    """Seconds to make the environments."""


@dataclass
class Search:
    """Tries candidates within its time, and keeps the fastest."""

    training: Training
    limits: Limits
    trials: dict[str, Trial] = field(default_factory=dict)
    """Trials by the labels of their candidates, in their order."""
    left_out: list[str] = field(default_factory=list)
    """Candidates that were not tried, with the reason."""

    def __post_init__(self) -> None:
        limits = self.limits
        self.baseline = Candidate("cpu", num_workers=limits.num_workers or 0, torch_threads=limits.torch_threads)
        self._start, self._budget, self._share = time.perf_counter(), PLANNED * MAX_SECONDS, 1.0
        self._is_awake = is_cuda_awake()

    @property
    def iterations(self) -> int:
        """Iterations of the run."""
        return max(1, round(self.limits.total_steps / self.best.steps))

    def run(self) -> Candidate:
        """The candidate to take."""
        limits = self.limits
        if (reason := self._why_not()) is not None:
            self.left_out.append(f"all: {reason}")
            return self.baseline
        first = self._try_simplest()
        if first is None:
            return self.baseline
        self.best = first
        self._climb("num_workers", limits.cores, "sampling")
        steps = self.training.optimizer_steps(self.best.steps, learns=True)
        if limits.any_threads and self.best.learning >= SECONDS_WORTH_THREADS * steps:
            self._climb("torch_threads", limits.cores, "learning")
        if (device := limits.accelerator) is not None:
            workers, threads = self.best.candidate.num_workers, limits.torch_threads
            if self._improves(Candidate("hybrid", "cpu", device, workers, threads)):
                self._climb("num_workers", limits.cores, "sampling")
            if not limits.num_workers and not limits.draws_on_device:
                self._improves(Candidate("cuda", device, device, 0, threads))
        for learning in ("cpu", limits.accelerator) if limits.max_lag else ():
            if learning is not None:
                self._overlap(learning)
        return self.best.candidate

    def _why_not(self) -> str | None:
        """The reason to try nothing, if there is one."""
        limits = self.limits
        if self.training.config.episodes_per_rollout is not None:
            return "rollouts of whole episodes have no length to go by"
        if MAX_SHARE > 1.0:
            return None
        steps = self.training.optimizer_steps(limits.total_steps)
        if steps < FEWEST_STEPS:
            return f"a run of {steps} optimizer steps is too short to measure"
        if limits.seconds_to_make > PLANNED * MAX_SECONDS:
            return f"to make the environments once more would take {limits.seconds_to_make:.2g} s"
        return None

    def _try_simplest(self) -> Trial | None:
        """Try the simplest candidate. Its first iteration, as short as possible, shows how long the run will take."""
        smallest = self.training.smallest_share
        quick = self._try(self.baseline, 0.0, smallest)
        if quick is None:
            return None
        self.best = quick
        run = self.iterations * quick.iteration
        self._budget = min(PLANNED * MAX_SECONDS, PLANNED * MAX_SHARE * run)
        spent, seconds = time.perf_counter() - self._start, ITERATIONS * smallest * quick.iteration
        if self._budget < max(seconds, min(spent, 0.1)) and MAX_SHARE <= 1.0:
            self.left_out.append(f"all others: a run of about {run:.2g} s is too short")
            return None
        self._start = time.perf_counter()  # the time so far does not count: training would have loaded the same modules
        self._slot = min(MAX_SECONDS_OF_A_TRIAL, self._budget / 6)
        self._share = min(1.0, max(smallest, self._slot / (ITERATIONS * quick.iteration)))
        if self._share <= smallest:
            return quick  # a second trial would be as short, and the others need the time
        del self.trials[self.baseline.label]
        return self._try(self.baseline, self._slot, self._share) or quick

    def _try(self, candidate: Candidate, seconds: float, share: float, deadline: float = math.inf) -> Trial | None:
        try:
            found = self.training.try_out(candidate, seconds, share, deadline)
        except Stopped:
            self.left_out.append(f"{candidate.label}: it took all the time that was left")
            return None
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            # Training goes on under another candidate; an error of all candidates comes again there.
            self.left_out.append(f"{candidate.label}: {type(error).__name__}: {error}")
            logger.warning("placement auto: left out %s", self.left_out[-1])
            return None
        self.trials[candidate.label] = found
        return found

    def _improves(self, candidate: Candidate) -> bool:
        """Try a candidate if there is time, and take it if the run is faster with it, by more than the margin."""
        limits = self.limits
        if candidate.label in self.trials:
            return False
        needed = limits.seconds_to_make + self._slot
        if candidate.num_workers:
            started = [trial.start for trial in self.trials.values() if trial.candidate.num_workers]
            needed += started[-1] if started else SECONDS_TO_START_A_WORKER + limits.seconds_to_make
        if candidate.learning != "cpu" and not self._is_awake:
            needed += SECONDS_TO_WAKE_AN_ACCELERATOR
        left = self._budget - (time.perf_counter() - self._start)
        if needed > left:
            self.left_out.append(f"{candidate.label}: it would take about {needed:.2g} s, too much for this run")
            return False
        trial = self._try(candidate, self._slot, self._share, time.perf_counter() + left)
        self._is_awake = self._is_awake or candidate.learning != "cpu"
        iterations = self.iterations
        if trial is None or trial.run(iterations) * (1.0 + MARGIN) >= self.best.run(iterations):
            return False
        self.best = trial
        return True

    def _climb(self, what: Literal["num_workers", "torch_threads"], cores: int, part: str) -> None:
        """Double a number while that makes the run faster, and the part that it divides is long enough."""
        most = cores
        if what == "num_workers":
            may_divide = self.limits.num_workers is None and self.limits.splits and self.limits.has_workers
            most = min(cores, self.training.config.num_envs) if may_divide else 1
        for count in doubled(most):
            now = getattr(self.best.candidate, what) or 1
            if count <= now:
                continue
            could_save = getattr(self.best, part) * (1.0 - now / count)
            changed: dict[str, Any] = {what: count}
            if could_save <= MARGIN * self.best.iteration or not self._improves(
                replace(self.best.candidate, **changed)
            ):
                return

    def _overlap(self, learning: str) -> None:
        """Try overlap with this learning device, if there is a core for a worker beside the learner's threads."""
        limits, threads, workers = self.limits, self.best.candidate.torch_threads, self.best.candidate.num_workers
        if learning == "cpu" and limits.any_threads:
            threads = max(1, min(threads, limits.cores - 1))
        room = limits.cores - (threads if learning == "cpu" else 1)
        if room < 1 or (limits.num_workers is None and not limits.has_workers):
            return
        workers = min(workers or 1, room) if limits.num_workers is None else limits.num_workers
        if self._improves(Candidate("overlap", "cpu", learning, workers, threads)):
            self._climb("num_workers", room, "sampling")
            if limits.max_lag > 1 and self.best.candidate.num_workers > 1:
                self._improves(replace(self.best.candidate, lag=limits.max_lag))

    def line(self) -> str:
        """The choice and its figures in one line."""
        if self.baseline.label not in self.trials:
            return f"{self.baseline.label}; not measured ({self.left_out[0]})"
        times = {part: shown_seconds(getattr(self.best, part)) for part in ("iteration", *PARTS)}
        parts = ", ".join(f"{part} {times[part]}" for part in PARTS)
        chosen = f"{self.best.candidate.label}, {times['iteration']} an iteration ({parts})"
        others = [trial for trial in self.trials.values() if trial is not self.best]
        slower = [f"{trial.candidate.label} {shown_seconds(trial.iteration)}" for trial in others]
        return "; ".join([chosen, *slower, *(self.left_out[:1] if not others else [])])

    def table(self, chosen: Candidate) -> dict[str, Any]:
        """The contents of `placements.json`."""
        return {
            "seconds": time.perf_counter() - self._start,
            "left_out": self.left_out,
            "chosen": chosen.label,
            "line": self.line(),
            "trials": [trial.to_json() for trial in self.trials.values()],
        }


def doubled(most: int) -> list[int]:
    """2, 4, 8 and so on up to `most`, and `most` itself."""
    powers = [2**i for i in range(1, most.bit_length()) if 2**i <= most]
    return sorted({*powers, most} - {0, 1})
