"""Placements side by side, on a user's own environment and configuration: predicted, and trained under for real."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from hybridppo.agents import PPO, PPOConfig
from hybridppo.auto.auto import Auto, work_of
from hybridppo.auto.calibration import available_accelerator, calibrate
from hybridppo.auto.decision import describe
from hybridppo.auto.of_candidate import placement_of
from hybridppo.auto.prediction import Candidate
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError
from hybridppo.interfaces import Metrics
from hybridppo.networks.precision import float32_products
from hybridppo.placements.base import Placement
from hybridppo.placements.by_name import make_placement
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.system.accelerator import num_cuda_devices
from hybridppo.system.threads import limit_threads

Row = dict[str, Any]

PARTS = ("sampling", "learning", "copying")


def candidates() -> dict[str, Placement]:
    """The placements that this machine can run, by name. Without a GPU, overlap is of two CPU cores."""
    if num_cuda_devices():
        return {name: make_placement(name) for name in ("cpu", "cuda", "migrate", "hybrid", "overlap")}
    return {"cpu": SingleDevice("cpu"), "overlap": Mirrored("cpu", "cpu", max_lag=1)}


def measure_placements(env: EnvSource, config: PPOConfig, *, seconds: float = 3.0, progress: bool = True) -> list[Row]:
    """One row per placement: median seconds an iteration samples, learns and copies, and steps per second.

    Each trains a fresh agent from the same seed, one iteration uncounted, then for `seconds`.
    """
    make_environments(env, config.num_envs).close()  # what cannot be made is told before a bar is drawn
    with limit_threads(config.torch_threads or 1):
        placements = tqdm(candidates().items(), desc="placements", disable=not progress, leave=False)
        return [
            {
                "placement": name,
                **_measure(env, config, placement, seconds, num_workers=None, options=EnvironmentOptions()),
            }
            for name, placement in placements
        ]


def measure_candidate(
    env: EnvSource,
    config: PPOConfig,
    candidate: Candidate,
    *,
    seconds: float,
    options: EnvironmentOptions | None = None,
) -> Row:
    """Train under one candidate, two iterations uncounted, then for `seconds`; medians of an iteration's seconds."""
    with limit_threads(candidate.torch_threads):
        placement = placement_of(candidate)
        return _measure(
            env,
            config,
            placement,
            seconds,
            num_workers=candidate.num_workers,
            options=options or EnvironmentOptions(),
            warmup=2,
        )


def _measure(
    env: EnvSource,
    config: PPOConfig,
    placement: Placement,
    seconds: float,
    *,
    num_workers: int | None,
    options: EnvironmentOptions | None,
    warmup: int = 1,
) -> Row:
    with contextlib.ExitStack() as stack:
        devices = placement.sampling_device, placement.learning_device
        stack.enter_context(float32_products(config.precision, *devices))
        environments = make_environments(env, config.num_envs, options)
        stack.callback(environments.close)
        agent = PPO(environments.observation_space, environments.action_space, config)
        placement.prepare(agent)
        sampler = make_sampler(
            env,
            environments,
            agent,
            placement,
            num_steps=config.num_steps,
            num_episodes=config.episodes_per_rollout,
            num_workers=num_workers,
            options=options or EnvironmentOptions(),
            env_seed=0,
            noise=np.random.default_rng(0),
        )
        stack.callback(sampler.close)
        runner = make_runner(agent, sampler, placement, total_steps=2**62, progress=False)
        for _ in range(warmup):
            runner.iterate()
        iterations: list[Metrics] = []
        deadline = time.perf_counter() + seconds
        while not iterations or time.perf_counter() < deadline:
            iterations.append(runner.iterate())

    def median(key: str) -> float:
        return float(np.median([metrics[key] for metrics in iterations]))

    wholes = [sum(metrics[f"seconds_{part}"] for part in PARTS) for metrics in iterations]
    parts = {f"seconds_{part}": median(f"seconds_{part}") for part in PARTS}
    return {
        "iterations": len(iterations),
        "steps_per_second": median("steps_per_second"),
        "seconds": float(np.median(wholes)),
        **parts,
    }


def as_markdown(rows: list[Row]) -> str:
    """The rows as a table, the fastest marked, and a line on what could not be measured here."""
    fastest = max(rows, key=lambda row: float(row["steps_per_second"]))
    lines = [
        "| placement | steps/s | sampling ms | learning ms | copying ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = f"**{row['placement']}**" if row is fastest else row["placement"]
        parts = " | ".join(f"{1e3 * row[f'seconds_{part}']:.2f}" for part in PARTS)
        lines.append(f"| {name} | {row['steps_per_second']:,.0f} | {parts} |")
    lines.append("")
    lines.append("Milliseconds per iteration, medians; sampling is the time spent waiting for it.")
    if not num_cuda_devices():
        lines.append(_LEFT_OUT)
    return "\n".join(lines)


_LEFT_OUT = "Left out: cuda, migrate and hybrid (no CUDA device here); overlap is of two CPU cores."


def compare_placements(
    env: EnvSource,
    config: PPOConfig,
    *,
    total_steps: int = 500_000,
    max_lag: int = 0,
    num_workers: int | None = None,
    measured_seconds: float = 0.0,
    options: EnvironmentOptions | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """What placement auto would choose for a run, and every candidate as predicted and, where asked, as measured.

    Args:
        env: as for `hybridppo.train`.
        config: of PPO.
        total_steps: of the run; what starts once is spread over it.
        max_lag: what auto is allowed.
        num_workers: as for `hybridppo.train`.
        measured_seconds: how long to train under each candidate for real; 0 only predicts.
        options: how the environments are made and stepped.
        progress: whether to show a progress bar.
    """
    environments = make_environments(env, config.num_envs, options)
    try:
        work = work_of(environments, config, total_steps=total_steps, num_workers=num_workers)
        calibration = calibrate(
            env,
            work,
            config,
            max_lag=1,  # a person wants to see what overlap costs
            any_threads=config.torch_threads is None,
            accelerator=available_accelerator(),
            options=options,
            max_share=float("inf"),
        )
    finally:
        environments.close()
    if calibration.figures is None:
        raise ConfigurationError(f"nothing could be measured: {calibration.left_out[0]}")
    auto = Auto(max_lag)
    predictions, decision = auto.predictions(work, config, calibration)
    rows: list[Row] = []
    for prediction in tqdm(predictions, desc="placements", disable=not (progress and measured_seconds), leave=False):
        row = {**prediction.to_json(), "is_chosen": prediction is decision.chosen}
        if measured_seconds:
            candidate = prediction.candidate
            row["measured"] = measure_candidate(env, config, candidate, seconds=measured_seconds, options=options)
        rows.append(row)
    return {
        "chosen": decision.chosen.candidate.label,
        "line": describe(decision, work, calibration.figures),
        "seconds_calibrating": calibration.seconds,
        "figures": calibration.figures.to_json(),
        "left_out": calibration.left_out,
        "candidates": rows,
    }


def comparison_as_markdown(comparison: dict[str, Any]) -> str:
    """The candidates as a table, the choice marked, predictions beside measurements."""
    rows = comparison["candidates"]
    is_measured = "measured" in rows[0]
    heads = ["placement", "iteration ms", *(f"{part} ms" for part in PARTS)]
    heads += ["measured ms", *(f"{part} ms" for part in PARTS), "predicted / measured"] if is_measured else []
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        name = f"**{row['label']}**" if row["is_chosen"] else row["label"]
        cells = [name, *(f"{1e3 * row[part]:.2f}" for part in ("iteration", *PARTS))]
        if is_measured:
            measured = row["measured"]
            cells += [f"{1e3 * measured[key]:.2f}" for key in ("seconds", *(f"seconds_{part}" for part in PARTS))]
            cells.append(f"{row['iteration'] / measured['seconds']:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"auto: {comparison['line']}", ""]
    lines.append("Milliseconds per iteration; sampling is the time spent waiting for it.")
    lines += [f"Not measured: {reason}." for reason in comparison["left_out"]]
    if not num_cuda_devices():
        lines.append(_LEFT_OUT)
    return "\n".join(lines)


def rows_of(comparison: dict[str, Any]) -> Sequence[tuple[str, dict[str, float]]]:
    """The bars of a picture: a label and the seconds of each part, predictions before measurements."""
    bars: list[tuple[str, dict[str, float]]] = []
    for row in comparison["candidates"]:
        bars.append((row["label"], {part: row[part] for part in PARTS}))
        if "measured" in row:
            bars.append((f"{row['label']} (measured)", {part: row["measured"][f"seconds_{part}"] for part in PARTS}))
    return bars
