"""Compares the speed of short trainings distributed in every way that can run here.

comparison = hybridppo.compare_distributions("CartPole-v1", hybridppo.PPOConfig())
print(comparison["line"])         # the fastest way
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.auto.auto import Auto
from hybridppo.auto.search import MARGIN, doubled
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import HybridPPOError
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.runs.distributed_policies import (
    Central,
    Distributed,
    Local,
    MultiLearner,
    SingleLearnerCoarse,
    SingleLearnerFine,
)
from hybridppo.system.messages import markdown_table
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_seconds
from hybridppo.training.train import train

UNCOUNTED_ITERATIONS = 2


def compare_distributions(
    env: EnvSource,
    config: PPOConfig | None = None,
    *,
    max_lag: int = 0,
    seconds: float = 3.0,
    address: str | None = None,
    options: EnvironmentOptions | None = None,
) -> dict[str, Any]:
    """Train for some seconds distributed in each way, and compare steps per second.

    Every way has the placement `cpu`; without one (`local`), placement `auto` chooses.

    Args:
        env: as for `hybridppo.train`.
        config: PPO's settings.
        max_lag: the `max_lag` of placement `auto` in the training in one process.
        seconds: seconds of each training after its start and its first iterations.
        address: address of a running Ray cluster, whose CPUs are then used; None starts Ray on this machine, if it is
            installed.
        options: how the environments are made and stepped.

    Returns:
        `rows`, a dict for each policy: `policy`, `steps_per_second`, `against_local` (the factor of its speed to
        that of `local`), `start` (the seconds until the first iteration was done) and `iterations` (the number that
        were counted); `chosen`, the fastest policy; `line`, the same as a sentence; and `left_out`, the policies that
        could not be run, with the reason.

    Raises:
        HybridPPOError: if training in one process fails, or no cluster answers at the address.
    """
    require_seconds("seconds", seconds)
    config = config if config is not None else PPOConfig()
    options = options if options is not None else EnvironmentOptions()
    settings = {name: getattr(options, name) for name in options.__dataclass_fields__}
    settings |= {"config": config, "total_steps": 2**40, "seed": 0, "progress": False}
    local = _Watch(seconds)
    train(env, placement=Auto(max_lag), callbacks=local, **settings)
    watches, left_out = {str(Local()): local}, list[str]()

    def try_out(policies: Sequence[Distributed]) -> None:
        for policy in policies:
            watch = _Watch(seconds)
            try:
                train(env, placement="cpu", distributed=policy, callbacks=watch, **settings)
                watches[str(policy)] = watch
            except HybridPPOError as error:
                left_out.append(f"{policy}: {error}")

    learners = [n for n in doubled(max(2, cpu_cores())) if config.num_envs % n == 0]
    try_out([kind(n) for kind in (MultiLearner, Central) for n in learners])
    with _ray(address, left_out) as cpus:  # after the learners, which its processes would slow down
        workers = doubled(max(2, min(cpus, config.num_envs))) if cpus else []
        try_out([kind(n) for kind in (SingleLearnerCoarse, SingleLearnerFine) for n in workers])
    speeds = {policy: watch.steps_per_second for policy, watch in watches.items()}
    rows = [
        {
            "policy": policy,
            "steps_per_second": speeds[policy],
            "against_local": speeds[policy] / local.steps_per_second,
            "start": watch.start,
            "iterations": watch.iterations,
        }
        for policy, watch in watches.items()
    ]
    chosen = max(speeds, key=lambda policy: speeds[policy])
    if speeds[chosen] <= (1.0 + MARGIN) * local.steps_per_second:
        chosen, line = str(Local()), f"no way is faster than local by more than {MARGIN:.0%}"
    else:
        line = f"{chosen} is the fastest: {speeds[chosen] / local.steps_per_second:.2f} times as fast as local"
    return {"line": line, "chosen": chosen, "rows": rows, "left_out": left_out}


class _Watch(Callback):
    """Measures a training's iterations, and ends it some seconds after the first ones."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._made, self._deadline = seconds, time.perf_counter(), math.inf
        self._ends: list[tuple[float, float]] = []
        """Environment steps and seconds at the end of each iteration."""
        self.start = 0.0

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Stop the training when it was measured for long enough."""
        now = time.perf_counter()
        self._ends.append((metrics["env_steps"], metrics["seconds"]))
        if len(self._ends) == 1:
            self.start = now - self._made
        if len(self._ends) == UNCOUNTED_ITERATIONS:
            self._deadline = now + self._seconds
        if len(self._ends) > UNCOUNTED_ITERATIONS + 1 and now >= self._deadline:
            run.stop("it was measured for long enough")

    @property
    def iterations(self) -> int:
        """How many were counted."""
        return len(self._ends) - UNCOUNTED_ITERATIONS

    @property
    def steps_per_second(self) -> float:
        """The median over the counted iterations."""
        counted = self._ends[UNCOUNTED_ITERATIONS - 1 :]
        return 1.0 / median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(counted))


@contextlib.contextmanager
def _ray(address: str | None, left_out: list[str]) -> Iterator[int]:
    """Start one Ray for all trainings; its number of CPUs, 0 if there is none."""
    from hybridppo.distributed.cluster import Cluster

    try:
        cluster = Cluster("coarse", address, max(2, cpu_cores()))
    except HybridPPOError as error:
        if address is not None:
            raise
        left_out.append(f"coarse, fine and environments: {error}")
        yield 0
        return
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield int(ray.cluster_resources().get("CPU", 0))
    finally:
        cluster.close()


def distributions_as_markdown(comparison: dict[str, Any]) -> str:
    """The measured speeds as a table, with the fastest in bold, and what was left out."""
    rows = []
    for row in comparison["rows"]:
        name = f"**{row['policy']}**" if row["policy"] == comparison["chosen"] else row["policy"]
        rows.append([name, f"{row['steps_per_second']:,.0f}", f"{row['against_local']:.2f}", f"{row['start']:.1f}"])
    lines = [markdown_table(("distributed", "steps/s", "times local", "start s"), rows)]
    lines += ["", comparison["line"][0].upper() + comparison["line"][1:] + ".", ""]
    lines.append("Measured in short trainings; environments:K is about as fast as fine:K.")
    lines += [f"Left out: {reason}." for reason in comparison["left_out"]]
    return "\n".join(lines)
