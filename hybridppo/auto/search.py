"""Finds the fastest placement: tries a few candidates, each only if it could be faster than the best so far."""

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.auto.trials import Candidate, Name, Training, Trial
from hybridppo.compiled.modules import has_numba
from hybridppo.errors import HybridPPOError
from hybridppo.networks.precision import supports_bf16
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
SECONDS_TO_ACT_ON_AN_ACCELERATOR = 1e-4
"""The least that a step of the environments takes with an actor on a GPU: kernels are launched, and actions copied."""
SECONDS_TO_START_A_WORKER = 0.2
"""The estimate for starting worker processes before any was started."""
SECONDS_TO_LOAD = 1.5
"""The estimate for the first compiled update."""
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
    names: Sequence[Name] | None = None
    """The placements that may be taken; None for all."""
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
    hints: list[str] = field(default_factory=list)
    """What the line of the choice ends with: faster candidates that are not allowed, or why no other was measured."""

    def __post_init__(self) -> None:
        limits = self.limits
        workers = limits.num_workers or 0
        self.baseline = Candidate("cpu", num_workers=workers, torch_threads=limits.torch_threads)
        self._start, self._budget, self._share = time.perf_counter(), PLANNED * MAX_SECONDS, 1.0
        self._is_awake = is_cuda_awake()

    @property
    def iterations(self) -> int:
        """Iterations of the run."""
        return max(1, round(self.limits.total_steps / self.best.steps))

    def run(self) -> Candidate:
        """The candidate to take."""
        if (reason := self._why_not()) is not None:
            self.left_out.append(reason)
            return self.baseline
        first = self._try_simplest()
        if first is None:
            return self.baseline
        self.best = first
        limits = self.limits
        workers = doubled(min(limits.cores, self.training.config.num_envs) if self._may_divide else 1)
        if self._may_take("cpu"):
            self._climb("num_workers", workers, "sampling")
        if limits.any_threads and self._step() >= SECONDS_WORTH_THREADS:
            self._climb("torch_threads", doubled(limits.cores), "learning")
        by_turns = [self.best]
        if limits.accelerator is not None and (hybrid := self._hybrid(limits.accelerator, workers)) is not None:
            by_turns.append(hybrid)
        if limits.max_lag:
            for trial in sorted(by_turns, key=lambda trial: trial.overlapped):
                self._overlap(trial)
        if limits.accelerator is not None:
            self._on_accelerator(limits.accelerator, by_turns[-1])
        self._hints()
        return self.best.candidate

    @property
    def _may_divide(self) -> bool:
        return self.limits.num_workers is None and self.limits.splits and self.limits.has_workers

    def _may_take(self, name: Name) -> bool:
        return self.limits.names is None or name in self.limits.names

    def _why_not(self) -> str | None:
        """The reason to try nothing, if there is one."""
        config, limits = self.training.config, self.limits
        if config.episodes_per_rollout is not None:
            return "all: rollouts of whole episodes have no length to go by"
        if MAX_SHARE > 1.0:
            return None
        steps = self.training.optimizer_steps(limits.total_steps)
        if steps < FEWEST_STEPS:
            return f"all: a run of {steps} optimizer steps is too short to measure"
        if limits.seconds_to_make > PLANNED * MAX_SECONDS:
            return f"all: to make the environments once more would take {limits.seconds_to_make:.2g} s"
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
            reason = f"a run of about {run:.2g} s is too short"
            self.left_out.append(f"all: {reason}")
            self.hints.append(f"no other was measured: {reason}")
            return None
        self._start = time.perf_counter()  # the time so far does not count: training would have loaded the same modules
        self._slot = min(MAX_SECONDS_OF_A_TRIAL, self._budget / 6)
        self._share = min(1.0, max(smallest, self._slot / (ITERATIONS * quick.iteration)))
        if self._share <= smallest:
            return quick  # a second trial would be as short, and the others need the time
        del self.trials[self.baseline.label]
        return self._try(self.baseline, self._slot, self._share) or quick

    def _left(self) -> float:
        return self._budget - (time.perf_counter() - self._start)

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

    def _attempt(self, candidate: Candidate, seconds_to_begin: float = 0.0) -> Trial | None:
        """Try it if there is time."""
        if candidate.label in self.trials:
            return self.trials[candidate.label]
        limits, workers = self.limits, candidate.num_workers
        if workers:
            started = [trial.start for trial in self.trials.values() if trial.candidate.num_workers]
            seconds_to_begin += started[-1] if started else SECONDS_TO_START_A_WORKER + limits.seconds_to_make
        if candidate.learning != "cpu" and not self._is_awake:
            seconds_to_begin += SECONDS_TO_WAKE_AN_ACCELERATOR
        needed = seconds_to_begin + limits.seconds_to_make + self._slot
        if needed > self._left():
            self.left_out.append(f"{candidate.label}: it would take about {needed:.2g} s, too much for this run")
            return None
        found = self._try(candidate, self._slot, self._share, time.perf_counter() + self._left())
        self._is_awake = self._is_awake or candidate.learning != "cpu"
        return found

    def _gains(self, trial: Trial | None) -> bool:
        """Whether it is faster than the best over the whole run, by more than the margin."""
        iterations = self.iterations
        return trial is not None and trial.run(iterations) * (1.0 + MARGIN) < self.best.run(iterations)

    def _improves(self, candidate: Candidate) -> bool:
        """Try a candidate, and take it if it is faster than the best."""
        trial = self._attempt(candidate)
        if not self._gains(trial):
            return False
        assert trial is not None
        self.best = trial
        return True

    def _climb(self, what: str, counts: Iterable[int], part: Literal["sampling", "learning"]) -> None:
        """Raise a number while that makes the run faster, and the part that it divides is long enough."""
        for count in counts:
            now = getattr(self.best.candidate, what) or 1
            if count <= now:
                continue
            could_save = getattr(self.best, part) * (1.0 - now / count)
            if could_save <= MARGIN * self.best.iteration:
                return
            changed: dict[str, Any] = {what: count}
            if not self._improves(replace(self.best.candidate, **changed)):
                return

    def _step(self) -> float:
        """Seconds of an optimizer step under the best."""
        return self.best.learning / max(1, self.training.optimizer_steps(self.best.steps, learns=True))

    def _overlapping(self, by_turns: Candidate) -> Candidate | None:
        """Overlap with the workers of a candidate, if there is a core for one beside the learner's threads."""
        limits, learning, threads = self.limits, by_turns.learning, by_turns.torch_threads
        if learning == "cpu" and limits.any_threads:
            threads = max(1, min(threads, limits.cores - 1))
        room = limits.cores - (threads if learning == "cpu" else 1)
        if room < 1 or not self._may_take("overlap"):
            return None
        if limits.num_workers is None and not limits.has_workers:
            return None
        workers = by_turns.num_workers if limits.num_workers is not None else min(by_turns.num_workers or 1, room)
        return Candidate("overlap", "cpu", learning, workers, threads)

    def _overlap(self, by_turns: Trial) -> None:
        """Try overlap of what a trial did by turns, if it could be faster than the best."""
        candidate, learning = self._overlapping(by_turns.candidate), by_turns.candidate.learning
        if candidate is None or by_turns.overlapped * (1.0 + MARGIN) >= self.best.iteration:
            return
        if self._improves(candidate) and self._may_divide:
            room = self.limits.cores - (candidate.torch_threads if learning == "cpu" else 1)
            self._climb("num_workers", doubled(min(room, self.training.config.num_envs)), "sampling")
        best = self.best.candidate
        if self.limits.max_lag > 1 and best.name == "overlap" and best.num_workers > 1:
            self._improves(replace(best, lag=self.limits.max_lag))

    def _hybrid(self, device: str, workers: Sequence[int]) -> Trial | None:
        """Try sampling on the CPU, at first with the best's workers, and learning on the device."""
        candidate = Candidate("hybrid", "cpu", device, self.best.candidate.num_workers, self.limits.torch_threads)
        if not self._may_take("hybrid"):
            return None
        if self._improves(candidate):
            self._climb("num_workers", workers, "sampling")
            return self.best
        return self.trials.get(candidate.label)

    def _on_accelerator(self, device: str, by_turns: Trial) -> None:
        """Try sampling and learning on the device, if that could be faster than the best."""
        limits = self.limits
        if not self._may_take("cuda") or limits.num_workers or limits.draws_on_device:
            return
        least = SECONDS_TO_ACT_ON_AN_ACCELERATOR * by_turns.steps / self.training.config.num_envs
        if by_turns.candidate.learning == device:
            least += by_turns.learning
        if least * (1.0 + MARGIN) < self.best.iteration:
            self._improves(Candidate("cuda", device, device, 0, limits.torch_threads))

    def _hints(self) -> None:
        """If there is time left, try candidates that are not allowed, and note those that would be faster."""
        limits, best = self.limits, self.best.candidate
        others: list[tuple[Candidate, float, str]] = []
        overlapping = self._overlapping(best) if not limits.max_lag else None
        if overlapping is not None and self.best.overlapped * (1.0 + MARGIN) < self.best.iteration:
            others.append((overlapping, 0.0, "allow it with max_lag=1"))
        has_more_threads = not limits.any_threads and limits.cores > limits.torch_threads
        if has_more_threads and best.learning == "cpu" and self._step() >= SECONDS_WORTH_THREADS:
            others.append((replace(best, torch_threads=limits.cores), 0.0, "see torch_threads"))
        if best.learning == "cpu" and limits.names is None:
            for changes in arithmetics(self.training):
                load = SECONDS_TO_LOAD if changes[0][0] == "compiled_updates" else 0.0
                others.append((replace(best, changes=changes), load, "a seed gives other bits then"))
        for candidate, seconds, how in others:
            trial = self._attempt(candidate, seconds)
            if self._gains(trial):
                assert trial is not None
                self.hints.append(f"{candidate.label} would take {shown_seconds(trial.iteration)}: {how}")

    def line(self) -> str:
        """The choice and its figures in one line."""
        if self.baseline.label not in self.trials:
            return f"{self.baseline.label}; not measured ({self.left_out[0]})"
        best, first = self.best, self.trials[self.baseline.label]
        times = {part: shown_seconds(getattr(best, part)) for part in ("iteration", "sampling", "learning", "copying")}
        parts = [
            f"{best.candidate.label}, {times['iteration']} an iteration "
            f"(sampling {times['sampling']}, learning {times['learning']}, copying {times['copying']})"
        ]
        others = [trial for trial in self.trials.values() if trial is not best and not trial.candidate.changes]
        allowed = [trial for trial in others if trial is first or trial.candidate.max_lag <= self.limits.max_lag]
        parts += [f"{trial.candidate.label} {shown_seconds(trial.iteration)}" for trial in allowed]
        return "; ".join([*parts, *self.hints])

    def table(self, chosen: Candidate) -> dict[str, Any]:
        """The contents of `placements.json`."""
        return {
            "seconds": time.perf_counter() - self._start,
            "left_out": self.left_out,
            "chosen": chosen.label,
            "line": self.line(),
            "trials": [trial.to_json() for trial in self.trials.values()],
        }


def arithmetics(training: Training) -> list[tuple[tuple[str, Any], ...]]:
    """Changes of the configuration that use another arithmetic, if this machine's CPU supports it.

    Compiled updates are among them only if this machine has compiled them before, since that takes half a minute.
    """
    config, found = training.config, list[tuple[tuple[str, Any], ...]]()
    if not isinstance(config, PPOConfig):  # of several policies, each has its own
        return found
    is_plain = config.fast_updates and not config.compiled_updates and config.precision == "fp32"
    if is_plain and has_numba() and _is_compiled(training):
        found.append((("compiled_updates", True),))
    if config.precision == "fp32" and supports_bf16(torch.device("cpu")):
        found.append((("precision", "bf16"),))
    return found


def _is_compiled(training: Training) -> bool:
    agent = training.agent
    from hybridppo.agents.ppo import by_numba as of_ppo

    fits = not isinstance(agent, PPO) or (agent.memory is None and of_ppo.CompiledBackend.supports(agent.objective))
    return of_ppo.MODULE.is_kept() and fits


def doubled(most: int) -> list[int]:
    """2, 4, 8 and so on up to `most`, and `most` itself."""
    powers = [2**i for i in range(1, most.bit_length()) if 2**i <= most]
    return sorted({*powers, most} - {0, 1})
