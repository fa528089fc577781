"""Measure placements on a user's own environment and configuration, by training under each for some seconds."""

import contextlib
import time
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from hybridppo.agents import PPO, PPOConfig
from hybridppo.envs import EnvSource, make_environments
from hybridppo.interfaces import Metrics
from hybridppo.placement import Mirrored, Placement, SingleDevice, make_placement
from hybridppo.runners.assembly import make_runner, make_sampler
from hybridppo.threads import limit_threads

Row = dict[str, Any]


def candidates() -> dict[str, Placement]:
    """The placements that this machine can run, by name. Without a GPU, overlap is of two CPU cores."""
    if torch.cuda.is_available():
        return {name: make_placement(name) for name in ("cpu", "cuda", "migrate", "hybrid", "overlap")}
    return {"cpu": SingleDevice("cpu"), "overlap": Mirrored("cpu", "cpu", max_lag=1)}


def measure_placements(env: EnvSource, config: PPOConfig, *, seconds: float = 3.0, progress: bool = True) -> list[Row]:
    """One row per placement: median seconds an iteration samples, learns and copies, and steps per second.

    Each trains a fresh agent from the same seed, one iteration uncounted, then for `seconds`.
    """
    make_environments(env, config.num_envs).close()  # what cannot be made is told before a bar is drawn
    with limit_threads(config.torch_threads):
        placements = tqdm(candidates().items(), desc="placements", disable=not progress, leave=False)
        return [_measure(env, config, name, placement, seconds) for name, placement in placements]


def _measure(env: EnvSource, config: PPOConfig, name: str, placement: Placement, seconds: float) -> Row:
    with contextlib.ExitStack() as stack:
        environments = make_environments(env, config.num_envs)
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
            num_workers=None,
            options={},
            env_seed=0,
            noise=np.random.default_rng(0),
        )
        stack.callback(sampler.close)
        runner = make_runner(agent, sampler, placement, total_steps=2**62, progress=False)
        runner.iterate()
        iterations: list[Metrics] = []
        deadline = time.perf_counter() + seconds
        while not iterations or time.perf_counter() < deadline:
            iterations.append(runner.iterate())

    def median(key: str) -> float:
        return float(np.median([metrics[key] for metrics in iterations]))

    keys = ("steps_per_second", "seconds_sampling", "seconds_learning", "seconds_copying")
    return {"placement": name, "iterations": len(iterations), **{key: median(key) for key in keys}}


def as_markdown(rows: list[Row]) -> str:
    """The rows as a table, the fastest marked, and a line on what could not be measured here."""
    fastest = max(rows, key=lambda row: float(row["steps_per_second"]))
    lines = [
        "| placement | steps/s | sampling ms | learning ms | copying ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = f"**{row['placement']}**" if row is fastest else row["placement"]
        parts = " | ".join(f"{1e3 * row[f'seconds_{part}']:.2f}" for part in ("sampling", "learning", "copying"))
        lines.append(f"| {name} | {row['steps_per_second']:,.0f} | {parts} |")
    lines.append("")
    lines.append("Milliseconds per iteration, medians; sampling is the time spent waiting for it.")
    if not torch.cuda.is_available():
        lines.append("Left out: cuda, migrate and hybrid (no CUDA device here); overlap is of two CPU cores.")
    return "\n".join(lines)
