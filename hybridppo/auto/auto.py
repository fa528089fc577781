"""`Auto`: the placement that is chosen by measuring.

    result = hybridppo.train("CartPole-v1", total_steps=1_000_000, placement=Auto(max_lag=1))

It tries a few candidates briefly, each in the way in which training would run under it (`trials.py`), and each only if
it could be faster than the best so far. The training then runs under the chosen placement, and logs the reason in one
line.
"""

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.auto.trials import PARTS, Candidate, Training, Trial, shortened
from hybridppo.environments.base import Environments
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.errors import ConfigurationError, DeviceError, HybridPPOError, add_advice, shown, shown_error
from hybridppo.networks.actors import twin_of
from hybridppo.networks.modes import HOST, linears, supports_bf16
from hybridppo.placements.placement import KINDS, Placement, SingleDevice, placement_from_settings, require_devices
from hybridppo.system.devices import is_cuda_awake, num_cuda_devices
from hybridppo.system.messages import shown_seconds
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_whole

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


LAGS = "it learns from rollouts that are one update old; max_lag=1 (--max-lag 1) allows that"
ROUNDS = (
    "the main process would act for other numbers of rows, which rounds differently; torch_threads=None "
    "(--torch-threads None) allows that, and num_workers=K (--num-workers K) asks for it"
)
BF16 = (
    "products in bfloat16 may shorten learning here, and round so coarsely that a seed gives another result; "
    "precision='bf16' of PPOConfig (--precision bf16) asks for it"
)
LARGE_IMAGE, LARGE_LAYER = 2**14, 2**20
"""The bytes of an image, and the weights of a layer, from which on bfloat16 was faster on a CPU: those of Atari and
CarRacing (docs/performance.md), and layers of 1024. With images of 36 x 36 and layers of 512, it gained nothing."""
TOO_LITTLE = f"its iterations are shorter, but with its start, the run is less than {MARGIN:.0%} faster"
"""Why a candidate was not chosen."""


@dataclass(frozen=True)
class Choice:
    """The chosen placement, workers and threads, and the table of all trials."""

    placement: Placement
    num_workers: int | None
    """None leaves it to the placement."""
    torch_threads: int
    table: dict[str, Any]
    """The contents of `placements.json`."""


def not_measured(device: Any, num_workers: int, torch_threads: int, line: str) -> Choice:
    """The only choice that there is: one device, with the reason."""
    placement = SingleDevice(device)
    placement.reason = line
    table = {"seconds": 0.0, "left_out": [], "chosen": str(device), "line": line}
    return Choice(placement, num_workers, torch_threads, table)


@dataclass(frozen=True)
class Auto:
    """Tries placements briefly on the user's own work, and takes the fastest.

    It chooses only placements that do not change the result of a seed. Overlap and division of environments that share
    a generator must be allowed explicitly; `torch_threads=None` in the configuration allows all numbers of torch
    threads, and workers that only step, which round differently.

    Args:
        max_lag: 1 allows sampling and learning to overlap, with rollouts by parameters that are one update old. Above
            1, workers do not wait for each other, and parameters are at most `max_lag` updates old.
    """

    max_lag: int = 0

    def __post_init__(self) -> None:
        require_whole("max_lag", self.max_lag, 0)

    def choose(
        self,
        training: Training,
        environments: Environments,
        *,
        total_steps: int,
        num_workers: int | None = None,
        seconds_to_make: float = 0.0,
    ) -> Choice:
        """Try candidates, and choose.

        Args:
            training: the training, which trials imitate.
            environments: the environments of the training, or some of them; not stepped.
            total_steps: environment steps of the run.
            num_workers: the user's number; None to choose one.
            seconds_to_make: how long it took to make `environments`.
        """
        config = training.config
        if environments.device is not None:
            line = f"{environments.device}, where the environments' tensors are"
            return not_measured(environments.device, num_workers or 0, config.torch_threads or 1, line)
        search = Search(
            training,
            limits_of(
                training,
                environments,
                total_steps=total_steps,
                num_workers=num_workers,
                max_lag=self.max_lag,
                seconds_to_make=seconds_to_make * config.num_envs * environments.num_agents / environments.num_envs,
            ),
        )
        try:
            chosen = search.run()
        except Exception as error:
            # Training under the baseline is better than an error here; the same error would come again there.
            logger.warning("placement auto: not measured, because of %s", first_line(shown_error(error)))
            search.trials.clear()
            search.left_out.insert(0, f"all: {shown_error(error)}")
            chosen = search.baseline
        table = search.table(chosen)
        spent = f" (measured in {table['seconds']:.2g} s)" if search.trials else ""
        placement = chosen.placement
        placement.reason = f"{table['line']}{spent}"
        return Choice(placement, chosen.num_workers, chosen.torch_threads, table)


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
    """Whether workers can act themselves on the CPU; else they only step, and round differently."""
    draws_on_device: bool = False
    """Whether sampling on an accelerator draws other noise than the CPU, so that it gives another result."""
    max_lag: int = 0
    any_threads: bool = False
    """Whether results may round differently, as by every number of torch threads, and by workers that only step."""
    could_round: bool = False
    """Whether products in bfloat16 may pay on the CPU, and were not asked for."""
    torch_threads: int = 1
    """The configured number."""
    accelerator: str | None = None
    """A device besides the CPU. In tests, the name of the CPU stands in for it."""
    seconds_to_make: float = 0.0
    """Seconds to make the environments."""

    def worker_counts(self, most: int, *, on_device: bool = False) -> list[int]:
        """The numbers of workers above 1 that may be chosen, at most so many; `on_device` if the actor is on a GPU."""
        divides = self.splits and (self.any_threads or (self.has_workers and not on_device))
        return doubled(min(self.cores, most)) if divides and self.num_workers is None else []


def limits_of(training: Training, environments: Environments, **of_run: Any) -> Limits:
    """The limits that follow from the training and this machine; `of_run` are the fields that do not."""
    config = training.config
    actor: Any = None if training.agent is None else training.agent.actor
    is_large = any(image.num_bytes >= LARGE_IMAGE for image in environments.encode.layout.images) or any(
        layer.weight.numel() >= LARGE_LAYER for layer in (() if actor is None else linears(actor))
    )
    return Limits(
        cores=cpu_cores(),
        # Single copies are seeded one by one; an environment's own vectorised form has one generator for all.
        splits=isinstance(environments, SubEnvironments),
        has_workers=actor is None or twin_of(actor) is not None,
        draws_on_device=environments.is_compiled,
        any_threads=config.torch_threads is None,
        could_round=is_large and isinstance(config, PPOConfig) and config.precision == "fp32" and supports_bf16(HOST),
        torch_threads=config.torch_threads or 1,
        accelerator="cuda" if num_cuda_devices() else None,
        **of_run,
    )


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
        self.baseline = Candidate("cpu", "cpu", self.limits.num_workers or 0, self.limits.torch_threads)
        self._began = self._start = time.perf_counter()
        self._budget, self._share = PLANNED * MAX_SECONDS, 1.0
        self._is_awake = is_cuda_awake()

    def run(self) -> Candidate:
        """The candidate to take."""
        limits = self.limits
        if (reason := self._why_not()) is not None:
            self.left_out.append(f"all: {reason}")
            return self.baseline
        if not self._try_simplest():
            return self.baseline
        self._double("num_workers", limits.cores)
        steps = self.training.optimizer_steps(self.best.steps, learns=True)
        if limits.any_threads and self.best.learning >= SECONDS_WORTH_THREADS * steps:
            self._double("torch_threads", limits.cores)
        if limits.accelerator is not None:
            workers = self.best.candidate.num_workers
            if self._improves(Candidate("hybrid", limits.accelerator, workers, limits.torch_threads)):
                self._double("num_workers", limits.cores)
            asked = limits.num_workers or 0
            if (asked or not limits.draws_on_device) and self._improves(
                Candidate("cuda", limits.accelerator, asked, limits.torch_threads)
            ):
                self._double("num_workers", limits.cores)
        for device in ("cpu", limits.accelerator) if limits.max_lag else ():
            if device is not None:
                self._overlap(device)
        return self.best.candidate

    def _why_not(self) -> str | None:
        """The reason to try nothing, if there is one."""
        steps = self.training.optimizer_steps(self.limits.total_steps)
        if self.training.config.episodes_per_rollout is not None:
            return "rollouts of whole episodes have no length to go by"
        if steps < FEWEST_STEPS:
            return f"a run of {steps} optimizer steps is too short to measure"
        if self.limits.seconds_to_make > PLANNED * MAX_SECONDS:
            return f"to make the environments once more would take {self.limits.seconds_to_make:.2g} s"
        return None

    def _try_simplest(self) -> bool:
        """Try the simplest candidate; whether there is time for others.

        Its first iteration, as short as possible, shows how long the run will take.
        """
        smallest = 1.0 / shortened(self.training.config, 0.0)[1]  # the smallest share of an iteration that can be tried
        quick = self._try(self.baseline, 0.0, smallest)
        if quick is None:
            return False
        self.best = quick
        run = quick.seconds_of_run(self.limits.total_steps)
        self._budget = PLANNED * min(MAX_SECONDS, MAX_SHARE * run)
        spent = time.perf_counter() - self._start
        if self._budget < max(ITERATIONS * smallest * quick.iteration, min(spent, 0.1)):
            self.left_out.append(f"all others: a run of about {run:.2g} s is too short")
            return False
        self._start = time.perf_counter()  # the time so far does not count: training would have loaded the same modules
        self._slot = min(MAX_SECONDS_OF_A_TRIAL, self._budget / 6)
        self._share = min(1.0, max(smallest, self._slot / (ITERATIONS * quick.iteration)))
        if self._share > smallest:  # else a second trial would be as short, and the others need the time
            self.best = self._try(self.baseline, self._slot, self._share) or quick
        return True

    def _try(self, candidate: Candidate, seconds: float, share: float, deadline: float = math.inf) -> Trial | None:
        try:
            found = self.training.try_out(candidate, seconds, share, deadline)
        except Stopped:
            self.left_out.append(f"{candidate.label}: it took all the time that was left")
            return None
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            # Training goes on under another candidate; an error of all candidates comes again there.
            self.left_out.append(f"{candidate.label}: {shown_error(error)}")
            if self.trials:  # else `line` has it
                logger.warning("placement auto: left out %s", first_line(self.left_out[-1]))
            return None
        self.trials[candidate.label] = found
        return found

    def _improves(self, candidate: Candidate) -> bool:
        """Try a candidate if there is time, and take it if the run is faster with it, by more than the margin."""
        if candidate.label in self.trials:
            return False
        needed = self.limits.seconds_to_make + self._slot
        if candidate.num_workers:
            started = [trial.start for trial in self.trials.values() if trial.candidate.num_workers]
            needed += started[-1] if started else SECONDS_TO_START_A_WORKER + self.limits.seconds_to_make
        if candidate.device != "cpu" and not self._is_awake:
            needed += SECONDS_TO_WAKE_AN_ACCELERATOR
        left = self._budget - (time.perf_counter() - self._start)
        if needed > left:
            self.left_out.append(f"{candidate.label}: it would take about {needed:.2g} s, too much for this run")
            return False
        trial = self._try(candidate, self._slot, self._share, time.perf_counter() + left)
        self._is_awake = self._is_awake or candidate.device != "cpu"
        steps = self.limits.total_steps
        if trial is None or trial.seconds_of_run(steps) * (1.0 + MARGIN) >= self.best.seconds_of_run(steps):
            return False
        self.best = trial
        return True

    def _double(self, what: Literal["num_workers", "torch_threads"], most: int) -> None:
        """Double a number while that makes the run faster, and the part that it divides is long enough."""
        part, counts = "learning", doubled(most)
        if what == "num_workers":
            part, counts = "sampling", self._worker_counts(most)
        for count in counts:
            now = getattr(self.best.candidate, what) or 1
            could_save = getattr(self.best, part) * (1.0 - now / count)
            more: dict[str, Any] = {what: count}
            if count > now and (
                could_save <= MARGIN * self.best.iteration or not self._improves(replace(self.best.candidate, **more))
            ):
                return

    def _worker_counts(self, most: int) -> list[int]:
        most = min(most, self.training.config.num_envs)
        return self.limits.worker_counts(most, on_device=self.best.candidate.name == "cuda")

    def _overlap(self, device: str) -> None:
        """Try overlap with this learning device, if there is a core for a worker beside the learner's threads."""
        limits, threads, workers = self.limits, self.best.candidate.torch_threads, self.best.candidate.num_workers
        if device == "cpu" and limits.any_threads:
            threads = max(1, min(threads, limits.cores - 1))
        room = limits.cores - (threads if device == "cpu" else 1)
        if room < 1:
            return
        # Without workers, a thread samples.
        least = int(limits.has_workers)
        workers = min(workers or least, room) if limits.num_workers is None else limits.num_workers
        if self._improves(Candidate("overlap", device, workers, threads, max_lag=1)):
            self._double("num_workers", room)
            if limits.max_lag > 1 and self.best.candidate.num_workers > 1:
                self._improves(replace(self.best.candidate, max_lag=limits.max_lag))

    def _could_step_only(self) -> bool:
        """Whether workers that only step might be faster, and must be allowed."""
        left_open = replace(self.limits, any_threads=True)
        most, saves = self.training.config.num_envs, self.best.sampling > MARGIN * self.best.iteration
        return saves and not self._worker_counts(most) and bool(left_open.worker_counts(most))

    def _could_round(self) -> bool:
        """Whether bfloat16 might make learning on the CPU faster, and must be asked for."""
        is_on_cpu, saves = self.best.candidate.device == "cpu", self.best.learning > MARGIN * self.best.iteration
        return self.limits.could_round and is_on_cpu and saves

    def line(self) -> str:
        """The choice and its figures in one line."""
        if self.baseline.label not in self.trials:
            return f"{self.baseline.label}; not measured ({first_line(self.left_out[0])})"
        best = self.best
        parts = ", ".join(f"{part} {shown_seconds(getattr(best, part))}" for part in PARTS)
        others = [f"{label} {shown_seconds(trial.iteration)}" for label, trial in self.trials.items() if trial != best]
        chosen = f"{best.candidate.label}, {shown_seconds(best.iteration)} an iteration ({parts})"
        return "; ".join([chosen, *(others or map(first_line, self.left_out[:1]))])

    def table(self, chosen: Candidate) -> dict[str, Any]:
        """The contents of `placements.json`."""
        others = reasons_against(self.trials.values(), self.best, self.limits.max_lag) if self.trials else []
        if self.trials and self.limits.cores > 1 and not self.limits.max_lag:
            others.append(f"overlap: {LAGS}")
        if self.trials and self._could_step_only():
            others.append(f"workers: {ROUNDS}")
        if self.trials and self._could_round():
            others.append(f"bf16: {BF16}")
        return {
            "seconds": time.perf_counter() - self._began,
            "left_out": [*self.left_out, *others],
            "chosen": chosen.label,
            "line": self.line(),
            "trials": [trial.to_json() for trial in self.trials.values()],
        }


def reasons_against(trials: Iterable[Trial], chosen: Trial, max_lag: int) -> list[str]:
    """Why trials with shorter iterations than the chosen one's were not chosen."""
    return [
        f"{trial.candidate.label}: {LAGS if trial.candidate.max_lag > max_lag else TOO_LITTLE}"
        for trial in trials
        if trial.iteration < chosen.iteration
    ]


def first_line(text: str) -> str:
    """The first line of an error, which names it; training raises it again with its traceback."""
    return text.partition("\n")[0]


def doubled(most: int) -> list[int]:
    """2, 4, 8 and so on up to `most`, and `most` itself."""
    powers = [2**i for i in range(1, most.bit_length()) if 2**i <= most]
    return sorted({*powers, most} - {0, 1})


PlacementName = Literal["cpu", "cuda", "migrate", "hybrid", "overlap", "auto"]
PlacementChoice = str | Placement | Auto


@dataclass(frozen=True)
class PlacementOptions:
    """The placement, as the command line names it."""

    placement: PlacementName = "auto"
    """Where to sample and where to learn: docs/placements.md compares them."""
    sampling_device: str | None = None
    """Where migrate, hybrid and overlap sample; None for cpu."""
    learning_device: str | None = None
    """Where migrate, hybrid and overlap learn; None for cuda."""
    max_lag: int | None = None
    """How many updates old the parameters that sample may be: for overlap 1 or more (None for 1), for hybrid 0 or more
    (None for 0). For auto, the largest value that it may choose (None for 0). Above 1, workers do not wait for each
    other, and a seed does not give the same result again."""

    def resolve(self) -> Placement | Auto:
        """The placement that the options name; `Auto` still has to choose one.

        Raises:
            ConfigurationError: for an unknown name, and for an option that the placement does not take.
            DeviceError: if a device is missing.
        """
        name, lag = self.placement, self.max_lag
        if name not in get_args(PlacementName):
            raise ConfigurationError(
                f"unknown placement {name!r}: use one of {', '.join(get_args(PlacementName))}; in Python, a placement "
                "has other devices, as hybridppo.SingleDevice('cuda:1')"
            )
        require_devices(name, sampling_device=self.sampling_device, learning_device=self.learning_device)
        if name == "auto":
            return Auto(lag or 0)
        least = {"hybrid": 0, "overlap": 1}.get(name)
        if lag is not None and (least is None or lag < least):
            raise ConfigurationError(
                f"max_lag={lag} cannot be used with placement {name}: leave it out, or use placement overlap with 1 or "
                "more, hybrid with 0 or more, or auto"
            )
        devices = self.sampling_device or "cpu", self.learning_device or "cuda"
        if name in ("cpu", "cuda"):
            return SingleDevice(name)
        kind: Any = KINDS[name]
        try:
            return cast(Placement, kind(*devices, **({} if least is None else {"max_lag": lag or least})))
        except DeviceError as error:
            if name == "overlap":
                how = "--learning-device cpu (Mirrored('cpu', 'cpu', max_lag=1))"
                add_advice(error, f"or let two CPU cores overlap: {how}")
            raise


def options_of(settings: dict[str, Any]) -> PlacementOptions:
    """The options of the placement with these `settings()`.

    Raises:
        ConfigurationError: if the command line cannot name the placement, such as one with `publish_every`.
        DeviceError: if a device is missing.
    """
    meant = placement_from_settings(settings).settings()
    options = PlacementOptions(meant["name"], meant.get("sampling"), meant.get("learning"), meant.get("max_lag"))
    placement = options.resolve()
    if isinstance(placement, Auto) or placement.settings() != meant:
        raise ConfigurationError(f"the command line has no placement {shown(settings)}: name another (--placement)")
    return options


def resolve_placement(placement: PlacementChoice) -> Placement | Auto:
    """The placement of a name, or the placement itself; `Auto` still has to choose one."""
    if isinstance(placement, str):
        return PlacementOptions(cast(Any, placement)).resolve()
    if not isinstance(placement, (Placement, Auto)):
        raise ConfigurationError(f"placement must be a name or a placement, got {shown(placement)}")
    return placement
