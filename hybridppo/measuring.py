"""Measure placements on a user's own environment and configuration, by training under each for some seconds."""

import time
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from hybridppo.agents import PPO, PPOConfig
from hybridppo.envs import EnvSource, make_environments
from hybridppo.interfaces import Metrics
from hybridppo.placement import Placement, make_placement
from hybridppo.runners import Runner, Sampler
from hybridppo.training import torch_threads

Row = dict[str, Any]


def candidates() -> list[str]:
    """The placements that this machine can run."""
    return ["cpu", "cuda", "migrate", "hybrid"] if torch.cuda.is_available() else ["cpu"]


def measure_placements(env: EnvSource, config: PPOConfig, *, seconds: float = 3.0, progress: bool = True) -> list[Row]:
    """One row per placement: median seconds an iteration samples, learns and copies, and steps per second.

    Each trains a fresh agent from the same seed, one iteration uncounted, then for `seconds`.
    """
    with torch_threads(config.torch_threads):
        names = tqdm(candidates(), desc="placements", disable=not progress, leave=False)
        return [_measure(env, config, name, make_placement(name), seconds) for name in names]


def _measure(env: EnvSource, config: PPOConfig, name: str, placement: Placement, seconds: float) -> Row:
    environments = make_environments(env, config.num_envs)
    try:
        agent = PPO(environments.observation_space, environments.action_space, config)
        placement.prepare(agent)
        sampler = Sampler(
            environments,
            agent.distribution,
            num_steps=config.num_steps,
            env_seed=0,
            noise=np.random.default_rng(0),
            pin_memory=placement.pins_rollouts,
        )
        runner = Runner(agent, sampler, placement, total_steps=2**62, progress=False)
        runner.iterate()
        iterations: list[Metrics] = []
        deadline = time.perf_counter() + seconds
        while not iterations or time.perf_counter() < deadline:
            iterations.append(runner.iterate())
    finally:
        environments.close()

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
    lines.append("Milliseconds per iteration, medians.")
    if not torch.cuda.is_available():
        lines.append("Left out: cuda, migrate, hybrid (no CUDA device on this machine).")
    return "\n".join(lines)
