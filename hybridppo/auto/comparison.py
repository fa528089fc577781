"""Trains briefly under every placement, on a user's own environment and configuration, for a table."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from tqdm.auto import tqdm

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.auto.auto import Auto
from hybridppo.auto.search import MARGIN, Limits, doubled
from hybridppo.auto.trials import PARTS, Candidate, Training, Trial
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, HybridPPOError
from hybridppo.system.devices import num_cuda_devices
from hybridppo.system.messages import markdown_table
from hybridppo.system.validation import require_bools, require_seconds, require_whole

LEFT_OUT = "Left out: cuda, migrate and hybrid (no CUDA device here); overlap is of two CPU cores."


def candidates(limits: Limits, num_envs: int) -> list[Candidate]:
    """All candidates that this machine can run, the simplest first."""
    threads, found = limits.torch_threads, list[Candidate]()

    def workers(least: int, most: int) -> list[int]:
        if limits.num_workers is not None:
            return [limits.num_workers]
        if least and (most < 1 or not limits.has_workers):
            return []
        room = min(most, num_envs) if limits.splits and limits.has_workers else least
        return [least, *(count for count in doubled(room) if count > least)]

    for count in sorted({threads, *(doubled(limits.cores) if limits.any_threads else ())}):
        found += [Candidate("cpu", num_workers=n, torch_threads=count) for n in workers(0, limits.cores)]
        found += [Candidate("overlap", num_workers=n, torch_threads=count) for n in workers(1, limits.cores - count)]
    if (device := limits.accelerator) is not None:
        if not limits.num_workers and not limits.draws_on_device:
            found.append(Candidate("cuda", device, device, torch_threads=threads))
        found += [Candidate("hybrid", "cpu", device, n, threads) for n in workers(0, limits.cores)]
        found += [Candidate("migrate", "cpu", device, n, threads) for n in workers(0, limits.cores)]
        found += [Candidate("overlap", "cpu", device, n, threads) for n in workers(1, limits.cores - 1)]
    return found


def compare_placements(
    env: EnvSource,
    config: PPOConfig,
    *,
    seconds: float = 1.0,
    total_steps: int = 500_000,
    max_lag: int = 0,
    num_workers: int | None = None,
    options: EnvironmentOptions | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train under every placement that this machine can run, and say which is the fastest for a run.

    Args:
        env: as for `hybridppo.train`.
        config: PPO's settings.
        seconds: how long to train under each placement, after a warm-up.
        total_steps: steps of the planned run, over which the time to start is spread.
        max_lag: 1 allows overlap to be chosen.
        num_workers: as for `hybridppo.train`.
        options: how the environments are made and stepped.
        progress: whether to show a progress bar.

    Returns:
        `chosen` (a label), `candidates` (a dict for each, as `Trial.to_json`, with `is_chosen`) and `left_out`.

    Raises:
        ConfigurationError: if training works under no placement, or an argument is invalid.
    """
    require_bools(progress=progress)
    require_seconds("seconds", seconds)
    total_steps = require_whole("total_steps", total_steps)
    options = options if options is not None else EnvironmentOptions()
    training, auto = Training(env, config, options), Auto(max_lag)
    # An error of making them is raised at once.
    with closing(make_environments(env, config.num_envs, options)) as environments:
        limits = auto.limits(training, environments, total_steps=total_steps, num_workers=num_workers)
    trials, left_out = list[Trial](), list[str]()
    for candidate in tqdm(candidates(limits, config.num_envs), desc="placements", disable=not progress, leave=False):
        try:
            trials.append(training.try_out(candidate, seconds))
        except (HybridPPOError, RuntimeError, MemoryError) as error:
            left_out.append(f"{candidate.label}: {type(error).__name__}: {error}")
    if not trials:
        raise ConfigurationError(f"nothing could be measured: {left_out[0]}")
    allowed = [trial for trial in trials if trial.candidate.max_lag <= max_lag]
    chosen = fastest(allowed or trials, total_steps)
    rows = [{**trial.to_json(), "is_chosen": trial is chosen} for trial in trials]
    return {"chosen": chosen.candidate.label, "left_out": left_out, "candidates": rows}


def fastest(trials: Sequence[Trial], total_steps: int) -> Trial:
    """The trial whose run would end first; an earlier, simpler trial wins if it is at most a margin slower."""
    best = trials[0]
    for trial in trials[1:]:
        iterations = max(1, round(total_steps / trial.steps))
        if trial.run(iterations) * (1.0 + MARGIN) < best.run(iterations):
            best = trial
    return best


def as_markdown(comparison: dict[str, Any]) -> str:
    """The candidates as a table, the choice in bold."""
    heads = ["placement", "steps/s", "iteration ms", *(f"{part} ms" for part in PARTS), "start s"]
    rows = []
    for row in comparison["candidates"]:
        name = f"**{row['label']}**" if row["is_chosen"] else row["label"]
        times = [f"{1e3 * row[part]:.2f}" for part in ("iteration", *PARTS)]
        rows.append([name, f"{row['steps_per_second']:,.0f}", *times, f"{row['start']:.2f}"])
    lines = [markdown_table(heads, rows), "", f"auto: {comparison['chosen']}", ""]
    lines.append("Measured. Milliseconds of an iteration; sampling is the time spent waiting for it.")
    lines += [f"Not measured: {reason}." for reason in comparison["left_out"]]
    if not num_cuda_devices():
        lines.append(LEFT_OUT)
    return "\n".join(lines)
