"""Compares the speed of short trainings under every placement, or under every way to distribute, that can run here.

comparison = hybridppo.compare_placements("CartPole-v1", hybridppo.PPOConfig(num_envs=8))
comparison["chosen"]              # the fastest
"""

import math
import time
from contextlib import closing
from itertools import pairwise
from statistics import median
from typing import Any

from tqdm.auto import tqdm

from hybridppo.agents import PPOConfig
from hybridppo.auto.auto import MARGIN, Auto, Limits, doubled, limits_of
from hybridppo.auto.trials import PARTS, Candidate, Training
from hybridppo.distributed_policies import Central, MultiLearner, SingleLearnerCoarse, SingleLearnerFine
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, HybridPPOError
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.system.messages import markdown_table
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_bools, require_seconds, require_whole
from hybridppo.training import train

UNCOUNTED_ITERATIONS = 2
Cases = dict[str, dict[str, Any]]
"""Arguments of `train`, by a label."""


def compare_placements(
    env: EnvSource,
    config: PPOConfig | None = None,
    *,
    seconds: float = 1.0,
    total_steps: int = 500_000,
    max_lag: int = 0,
    num_workers: int | None = None,
    distributed: bool = False,
    address: str | None = None,
    options: EnvironmentOptions | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train for some seconds under each placement that this machine can run, and find the fastest.

    Args:
        env: as for `hybridppo.train`.
        config: PPO's settings.
        seconds: seconds of each training, after its start and its first iterations.
        total_steps: steps of the planned run, over which the time to start is spread.
        max_lag: 1 allows overlap to be chosen.
        num_workers: as for `hybridppo.train`; None for every number that may pay off.
        distributed: compare the ways to distribute instead. They have the placement `cpu`; without one (`local`),
            placement `auto` chooses.
        address: address of a running Ray cluster, for `distributed`; None starts Ray on this machine, if it is
            installed.
        options: how the environments are made and stepped.
        progress: whether to show a progress bar.

    Returns:
        `rows`, a dict for each training: `label`, `steps_per_second`, the seconds `iteration`, `sampling` (the time
        spent waiting for it), `learning`, `copying` and `start` (until the first iteration was done), and `is_chosen`;
        `chosen`, the label of the fastest over the planned run, or of a simpler one that is at most 3 % slower; and
        `left_out`, those that could not run, with the reason.

    Raises:
        ConfigurationError: if no training works, or an argument is invalid.
    """
    require_bools(progress=progress, distributed=distributed)
    require_seconds("seconds", seconds)
    total_steps = require_whole("total_steps", total_steps)
    config = config if config is not None else PPOConfig()
    options = options if options is not None else EnvironmentOptions()
    if distributed:
        cases = _distributed(config, max_lag, address)
    else:
        training = Training(env, config, options)
        with closing(make_environments(env, config.num_envs, options)) as environments:  # an error is raised at once
            limits = limits_of(
                training, environments, total_steps=total_steps, num_workers=num_workers, max_lag=max_lag
            )
        cases = {each.label: _arguments(each) for each in candidates(limits, config.num_envs)}
    settings = {name: getattr(options, name) for name in options.__dataclass_fields__}
    settings |= {"config": config, "total_steps": 2**40, "seed": 0, "progress": False}
    rows, left_out = list[dict[str, Any]](), list[str]()
    for label, arguments in tqdm(cases.items(), desc="placements", disable=not progress, leave=False):
        watch = _Stopwatch(seconds)
        try:
            train(env, callbacks=watch, **{**settings, **arguments})
            rows.append({"label": label, **watch.row()})
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            left_out.append(f"{label}: {type(error).__name__}: {error}")
    if not rows:
        raise ConfigurationError(f"nothing could be measured: {left_out[0]}")
    fastest: dict[str, Any] = {}
    for row in rows:
        run = row["start"] + total_steps / row["steps_per_second"]
        is_allowed = distributed or max_lag or not row["label"].startswith("overlap")
        if is_allowed and (not fastest or run * (1.0 + MARGIN) < fastest["run"]):
            fastest = {"label": row["label"], "run": run}
    chosen = fastest.get("label", rows[0]["label"])
    rows = [{**row, "is_chosen": row["label"] == chosen} for row in rows]
    return {"chosen": chosen, "left_out": left_out, "rows": rows}


def candidates(limits: Limits, num_envs: int) -> list[Candidate]:
    """The placements that this machine can run, the simplest first."""
    more = limits.worker_counts(num_envs)
    workers = [limits.num_workers or 0, *more]
    overlapping = [1 if limits.num_workers is None else limits.num_workers, *(n for n in more if n < limits.cores)]
    can_overlap = limits.has_workers or limits.num_workers == 0
    found = [Candidate("cpu", num_workers=n) for n in workers]
    if limits.cores > 1 and can_overlap:
        found += [Candidate("overlap", num_workers=n, max_lag=1) for n in overlapping]
    if (device := limits.accelerator) is not None:
        found += [Candidate("hybrid", device, n) for n in workers]
        found += [Candidate("migrate", device, n) for n in workers]
        found += [Candidate("overlap", device, n, max_lag=1) for n in overlapping if can_overlap]
        if not limits.num_workers and not limits.draws_on_device:
            found.append(Candidate("cuda", device))
    return found


def _arguments(candidate: Candidate) -> dict[str, Any]:
    return {"placement": candidate.placement, "num_workers": candidate.num_workers}


def _distributed(config: PPOConfig, max_lag: int, address: str | None) -> Cases:
    """The ways to distribute: none, learners on the cores of this machine, and learners and samplers on Ray."""
    learners = [n for n in doubled(max(2, cpu_cores())) if config.num_envs % n == 0]
    workers = doubled(max(2, min(cpu_cores(), config.num_envs)))
    policies = [MultiLearner(n) for n in learners]
    over_ray: list[Any] = [Central(n) for n in learners]
    over_ray += [kind(n) for kind in (SingleLearnerCoarse, SingleLearnerFine) for n in workers]
    cases: Cases = {"local": {"placement": Auto(max_lag)}}
    cases |= {str(policy): {"placement": "cpu", "distributed": policy} for policy in policies}
    return cases | {str(p): {"placement": "cpu", "distributed": p, "address": address} for p in over_ray}


class _Stopwatch(Callback):
    """Measures a training's iterations, and ends it some seconds after the first ones."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._made, self._deadline = seconds, time.perf_counter(), math.inf
        self._metrics: list[Metrics] = []
        self._start = 0.0

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Stop the training when it was measured for long enough."""
        now = time.perf_counter()
        self._metrics.append(metrics)
        if len(self._metrics) == 1:
            self._start = now - self._made
        if len(self._metrics) == UNCOUNTED_ITERATIONS:
            self._deadline = now + self._seconds
        if len(self._metrics) > UNCOUNTED_ITERATIONS + 1 and now >= self._deadline:
            run.stop("it was measured for long enough")

    def row(self) -> dict[str, float]:
        """The medians over the counted iterations."""
        pairs = list(pairwise(self._metrics[UNCOUNTED_ITERATIONS - 1 :]))
        steps = median(after["env_steps"] - before["env_steps"] for before, after in pairs)
        iteration = median(after["seconds"] - before["seconds"] for before, after in pairs)
        parts = {part: median(after[f"seconds_{part}"] for _, after in pairs) for part in PARTS}
        return {"steps_per_second": steps / iteration, "iteration": iteration, **parts, "start": self._start}


def as_markdown(comparison: dict[str, Any]) -> str:
    """The rows as a table, the chosen one in bold, and what was left out."""
    heads = ["placement", "steps/s", "iteration ms", *(f"{part} ms" for part in PARTS), "start s"]
    rows = []
    for row in comparison["rows"]:
        name = f"**{row['label']}**" if row["is_chosen"] else row["label"]
        times = [f"{1e3 * row[part]:.2f}" for part in ("iteration", *PARTS)]
        rows.append([name, f"{row['steps_per_second']:,.0f}", *times, f"{row['start']:.2f}"])
    lines = [markdown_table(heads, rows), "", f"fastest: {comparison['chosen']}", ""]
    lines.append("Measured. Milliseconds of an iteration; sampling is the time spent waiting for it.")
    lines += [f"Left out: {reason}." for reason in comparison["left_out"]]
    return "\n".join(lines)
