"""Compares the speed of short trainings under every placement that can run here.

comparison = hybridppo.compare_placements("CartPole-v1", hybridppo.PPOConfig(num_envs=8))
comparison["chosen"]              # the fastest
"""

from contextlib import closing
from typing import Any

from tqdm.auto import tqdm

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import agent_class
from hybridppo.auto.auto import MARGIN, Limits, limits_of, reasons_against
from hybridppo.auto.trials import PARTS, Candidate, Training, Trial
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, HybridPPOError, shown, shown_error
from hybridppo.system.messages import markdown_table
from hybridppo.system.validation import is_number, require_bools, require_whole


def compare_placements(
    env: EnvSource,
    config: PPOConfig | None = None,
    *,
    seconds: float = 1.0,
    total_steps: int = 500_000,
    max_lag: int = 0,
    num_workers: int | None = None,
    options: EnvironmentOptions | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train for some seconds under each placement that this machine can run, and find the fastest.

    Args:
        env: as for `hybridppo.train`.
        config: PPO's settings. A `target_kl` skips no epochs here, because their number is not known beforehand.
        seconds: seconds of each training, after its start and a warm-up.
        total_steps: steps of the planned run, over which the time to start is spread.
        max_lag: 1 allows overlap to be chosen.
        num_workers: as for `hybridppo.train`; None for every number that may pay off.
        options: how the environments are made and stepped.
        progress: whether to show a progress bar.

    Returns:
        `rows`, a dict for each training: `label`, `steps_per_second`, the seconds `iteration`, `sampling` (the time
        spent waiting for it), `learning`, `copying` and `start` (of worker processes), and `is_chosen`; `chosen`, the
        label of the fastest over the planned run, or of a simpler one that is at most 3 % slower; `left_out`, those
        that could not run, and `not_chosen`, those that are faster and were not chosen, with the reason.

    Raises:
        ConfigurationError: if no training works, or an argument is invalid.
    """
    require_bools(progress=progress)
    if not (is_number(seconds) and seconds >= 0.0):  # an infinite number would never end
        raise ConfigurationError(f"seconds must be a finite number of at least 0, got {shown(seconds)}")
    total_steps = require_whole("total_steps", total_steps)
    num_workers = None if num_workers is None else require_whole("num_workers", num_workers, 0)
    config = config if config is not None else PPOConfig()
    agent_class(config)  # refuses what is no configuration
    training = Training(env, config, options if options is not None else EnvironmentOptions())
    with closing(make_environments(env, config.num_envs, training.options)) as environments:  # an error is raised now
        limits = limits_of(training, environments, total_steps=total_steps, num_workers=num_workers)
    trials, left_out = list[Trial](), list[str]()
    for candidate in tqdm(candidates(limits, config.num_envs), desc="placements", disable=not progress, leave=False):
        try:
            trials.append(training.try_out(candidate, seconds))
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            left_out.append(f"{candidate.label}: {shown_error(error)}")
    if not trials:
        raise ConfigurationError(f"nothing could be measured: {left_out[0]}")
    chosen, *others = [each for each in trials if max_lag or each.candidate.name != "overlap"] or trials[:1]
    for trial in others:
        if trial.seconds_of_run(total_steps) * (1.0 + MARGIN) < chosen.seconds_of_run(total_steps):
            chosen = trial
    rows = [{**trial.to_json(), "is_chosen": trial is chosen} for trial in trials]
    reasons = reasons_against(trials, chosen, max_lag)
    return {"chosen": chosen.candidate.label, "left_out": left_out, "not_chosen": reasons, "rows": rows}


def candidates(limits: Limits, num_envs: int) -> list[Candidate]:
    """The placements that this machine can run, the simplest first."""
    threads, more = limits.torch_threads, limits.worker_counts(num_envs)
    workers = [limits.num_workers or 0, *more]
    least = int(limits.has_workers) if limits.num_workers is None else limits.num_workers
    overlapping = [least, *(n for n in more if n < limits.cores)]
    found = [Candidate("cpu", "cpu", n, threads) for n in workers]
    if limits.cores > 1:
        found += [Candidate("overlap", "cpu", n, threads, max_lag=1) for n in overlapping]
    if (device := limits.accelerator) is not None:
        found += [Candidate("hybrid", device, n, threads) for n in workers]
        found += [Candidate("migrate", device, n, threads) for n in workers]
        found += [Candidate("overlap", device, n, threads, max_lag=1) for n in overlapping]
        acting = [limits.num_workers or 0, *limits.worker_counts(num_envs, on_device=True)]
        found += [Candidate("cuda", device, n, threads) for n in acting if n or not limits.draws_on_device]
    return found


def as_markdown(comparison: dict[str, Any]) -> str:
    """The rows as a table, the chosen one in bold, and what was left out."""
    heads = ["placement", "steps/s", "iteration ms", *(f"{part} ms" for part in PARTS), "start s"]
    rows = []
    for row in comparison["rows"]:
        name = f"**{row['label']}**" if row["is_chosen"] else row["label"]
        times = [f"{1e3 * row[part]:.2f}" for part in ("iteration", *PARTS)]
        rows.append([name, f"{row['steps_per_second']:,.0f}", *times, f"{row['start']:.2f}"])
    lines = [markdown_table(heads, rows), "", f"chosen: {comparison['chosen']}", ""]
    lines.append("Measured. Milliseconds of an iteration; sampling is the time spent waiting for it.")
    lines += [f"Not chosen: {reason}." for reason in (*comparison["left_out"], *comparison["not_chosen"])]
    return "\n".join(lines)
