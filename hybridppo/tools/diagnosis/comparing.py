"""Distribution policies side by side, on a user's own environment and configuration: predicted, and trained under.

comparison = hybridppo.compare_distributions("CartPole-v1", hybridppo.PPOConfig())
print(comparison["line"])         # whether spreading pays here
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.auto.auto import Auto, work_of
from hybridppo.auto.calibration import available_accelerator, calibrate
from hybridppo.auto.figures import Calibration
from hybridppo.distribution.copies import as_copies
from hybridppo.distribution.measuring import measure_learners, measure_ray
from hybridppo.distribution.one_learner import OneLearner, sizes_of
from hybridppo.distribution.prediction import (
    Crossings,
    PolicyPrediction,
    Resources,
    Sizes,
    fastest,
    pays,
    policies,
    predict_policy,
    verdict,
)
from hybridppo.distribution.teams import team_of
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import ConfigurationError, HybridPPOError
from hybridppo.interfaces import Metrics
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.runs.distribution_policies import Central, Distribution, MultiLearner
from hybridppo.runs.options import RunOptions
from hybridppo.system.threads import cpu_cores

PARTS = ("sampling", "learning", "crossing")
SECONDS_FOR_AN_UPDATE = 0.5
"""For the median of a learner's update, of each policy."""
UNCOUNTED_ITERATIONS = 2


def compare_distributions(
    env: EnvSource,
    config: PPOConfig | None = None,
    *,
    total_steps: int = 500_000,
    max_lag: int = 0,
    measured_seconds: float = 0.0,
    address: str | None = None,
    options: EnvironmentOptions | None = None,
) -> dict[str, Any]:
    """What each distribution policy would give, predicted from measured pieces, and whether spreading pays.

    An iteration is as many environment steps under all of them. Policies over Ray are looked at where it is installed.

    Args:
        env: as for `hybridppo.train`.
        config: of PPO.
        total_steps: of the run, over which a policy's start is spread.
        max_lag: 1 lets the training in one place overlap, as placement auto may then.
        measured_seconds: how long to train under each for real, after its start; 0 only predicts.
        address: of a Ray cluster that is there already, for its CPUs; without it, this machine's.
        options: how the environments are made and stepped.

    Returns:
        `line` (whether spreading pays, and why), `rows` (a dict for each: `policy`, `iteration`, `sampling`, `learning`
        and `crossing`, in seconds, as predicted; `start`; `measured`, or None; `steps_per_second`; `against_local`,
        how many times as fast), `pieces` (what was measured), and `left_out` (with reasons). `line`, `chosen`,
        `steps_per_second` and `against_local` go by what was measured, or else by what is predicted.

    Raises:
        ConfigurationError: where nothing can be measured, or no cluster is at the address.
    """
    config = config if config is not None else PPOConfig()
    options = options if options is not None else EnvironmentOptions()
    comparison = _Comparison(env, config, options, total_steps, max_lag)
    resources = comparison.resources(address)
    found = comparison.predicted(resources)
    judged, measured = found, list[Any]([None] * len(found))
    if measured_seconds:
        with _ray_for_all(found[1:], address):
            measured = [comparison.measured(prediction, measured_seconds) for prediction in found]
        # What was measured takes the place of what was predicted: it decides.
        judged = [
            replace(prediction, measured=row["seconds"], is_assumed=False)
            for prediction, row in zip(found, measured, strict=True)
        ]
    local, spread = judged[0], judged[1:]
    rows = [
        {
            **prediction.to_json(),
            "measured": row,
            "steps_per_second": comparison.steps / each.iteration,
            "against_local": local.iteration / each.iteration,
            "pays": each is not local and pays(each, local, comparison.work),
        }
        for prediction, row, each in zip(found, measured, judged, strict=True)
    ]
    best = fastest(spread, comparison.work)
    return {
        "line": verdict(local, spread, comparison.work),
        "chosen": best.policy if best is not None and pays(best, local, comparison.work) else "local",
        "rows": rows,
        "pieces": comparison.pieces(),
        "left_out": comparison.left_out,
    }


class _Comparison:
    """What is measured, and what follows from it."""

    def __init__(
        self, env: EnvSource, config: PPOConfig, options: EnvironmentOptions, total_steps: int, max_lag: int
    ) -> None:
        self._env, self._config, self._total_steps, self._max_lag = env, config, total_steps, max_lag
        self._options, self.left_out = options, list[str]()
        self._run = RunOptions(total_steps=total_steps)
        # An environment's own vectorised form cannot be divided, and may well be what is fastest in one place.
        self._copies = as_copies(env, options, "fragments", tells=False)
        environments = make_environments(env, config.num_envs, self._copies)
        try:
            self.work = work_of(environments, config, total_steps=total_steps, num_workers=None)
            self.steps = config.batch_size * environments.num_agents
        finally:
            environments.close()
        self._figures_of = self._calibrated(self._copies)
        self.crossings = Crossings()

    def _calibrated(self, options: EnvironmentOptions) -> Calibration:
        config = self._config
        calibration = calibrate(
            self._env,
            self.work,
            config,
            max_lag=self._max_lag,
            any_threads=config.torch_threads is None,
            accelerator=available_accelerator(),
            options=options,
            max_share=float("inf"),
        )
        if calibration.figures is None:
            raise ConfigurationError(f"nothing could be measured: {calibration.left_out[0]}")
        self.left_out += calibration.left_out
        return calibration

    def resources(self, address: str | None) -> Resources:
        """What there is here, and on the cluster; what crosses over Ray is measured with it."""
        cores = cpu_cores()
        try:
            self.crossings, cpus, has_more = measure_ray(self.crossings, address, cores)
        except HybridPPOError as error:
            if address is not None:
                raise
            self.left_out.append(f"coarse, fine and environments: {error}")
            return Resources(cores)
        return Resources(cores, cpus, has_more)

    def predicted(self, resources: Resources) -> list[PolicyPrediction]:
        """Of the fastest way in one place, and then of all policies that this training can have."""
        figures = self._figures_of.figures
        assert figures is not None
        allowed = [policy for policy in policies(self.work, resources) if self._can_have(policy)]
        sizes = self._measured_learners(allowed)
        spread = [predict_policy(self.work, figures, self.crossings, sizes, policy, resources) for policy in allowed]
        return [self._local(), *spread]

    def _local(self) -> PolicyPrediction:
        """What `auto` would take without spreading."""
        _, decision = Auto(self._max_lag).predictions(self.work, self._config, self._figures_of)
        chosen = decision.chosen
        self._chosen = chosen.candidate
        return PolicyPrediction(
            f"local ({chosen.candidate.label})", chosen.sampling, chosen.learning, chosen.copying, chosen.start,
            chosen.is_assumed,
        )  # fmt: skip

    def _can_have(self, policy: Distribution) -> bool:
        run = replace(self._run, distribution=str(policy))
        try:
            team_of(run, self._options.worker_timeout).check(self._config, self._copies, run)
        except ConfigurationError as error:
            self.left_out.append(f"{policy}: {error}")
            return False
        return True

    def _measured_learners(self, allowed: Sequence[Distribution]) -> Sizes:
        """What learners do by themselves, and what crosses between two of them."""
        learners = [policy for policy in allowed if isinstance(policy, (MultiLearner, Central))]
        updates: dict[str, float] = {}
        threads = self._config.torch_threads or 1
        any_one = OneLearner(self._env, self._config, self._copies, MultiLearner(1))
        for policy in learners:
            one = OneLearner(self._env, self._config, self._copies, policy)
            updates[str(policy)] = one.seconds(SECONDS_FOR_AN_UPDATE, threads)
        sizes = sizes_of(any_one, self._config, 2)
        if learners:
            columns = len(any_one.agent.parameters.gradient) + 8
            self.crossings = measure_learners(self.crossings, columns, sizes.bytes_of_rollout // 2)
            step = any_one.seconds_of_a_step(SECONDS_FOR_AN_UPDATE / 5)
            self.crossings = self.crossings.measured(learner_update=updates, optimizer_step=step)
        return sizes

    def measured(self, prediction: PolicyPrediction, seconds: float) -> dict[str, Any]:
        """Train for real, so many seconds after the first iterations: medians of an iteration."""
        from hybridppo.auto.of_candidate import placement_of
        from hybridppo.training.train import train

        watch = _Watch(seconds, self.steps)
        is_local = prediction.policy.startswith("local")
        spread: dict[str, Any] = {"distribution": prediction.policy, "placement": "cpu"}  # in the Ray that was joined
        config = replace(self._config, torch_threads=self._config.torch_threads or 1)
        if is_local:
            candidate = self._chosen
            spread = {"num_workers": candidate.num_workers, "placement": placement_of(candidate)}
            config = replace(config, torch_threads=candidate.torch_threads)
        given = {name: getattr(self._copies, name) for name in self._copies.__dataclass_fields__}
        train(self._env, total_steps=2**40, seed=0, config=config, progress=False, callbacks=watch, **given, **spread)
        return watch.row()

    def pieces(self) -> dict[str, Any]:
        """What was measured."""
        assert self._figures_of.figures is not None
        return {"figures": self._figures_of.figures.to_json(), "crossings": self.crossings.to_json()}


class _Watch(Callback):
    """Ends a training some seconds after its first iterations, and tells what an iteration took."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds, self._steps, self._deadline = seconds, steps, math.inf
        self._lines: list[tuple[float, float]] = []

    def on_iteration(self, run: TrainingRun, metrics: Metrics) -> None:
        """Stop when that is enough."""
        self._lines.append((metrics["env_steps"], metrics["seconds"]))
        if len(self._lines) == UNCOUNTED_ITERATIONS:
            self._deadline = time.perf_counter() + self._seconds
        if len(self._lines) > UNCOUNTED_ITERATIONS + 1 and time.perf_counter() >= self._deadline:
            run.stop("it was measured for long enough")

    def row(self) -> dict[str, Any]:
        """Seconds of as many steps as an iteration has, of all learners: those of `Central` have their own."""
        counted = self._lines[UNCOUNTED_ITERATIONS - 1 :]
        each = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(counted)]
        return {"iterations": len(each), "seconds": self._steps * median(each)}


@contextmanager
def _ray_for_all(spread: Sequence[PolicyPrediction], address: str | None) -> Iterator[None]:
    """One Ray, where several policies are trained under that need it."""
    names = ("coarse", "fine", "environments")
    if not any(prediction.policy.startswith(names) for prediction in spread):
        yield
        return
    from hybridppo.distribution.cluster import Cluster

    cluster = Cluster("coarse", address, max(2, cpu_cores()))
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        yield
    finally:
        cluster.close()


def distributions_as_markdown(comparison: dict[str, Any]) -> str:
    """The policies as a table, what pays in bold, and whether spreading does."""
    rows = comparison["rows"]
    is_measured = rows[0]["measured"] is not None
    heads = ["distribution", "iteration ms", *(f"{part} ms" for part in PARTS), "steps/s", "times local", "start s"]
    heads += ["measured ms", "predicted / measured"] if is_measured else []
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        name = f"**{row['policy']}**" if row["pays"] else row["policy"]
        cells = [name, *(f"{1e3 * row[part]:.2f}" for part in ("iteration", *PARTS))]
        cells += [f"{row['steps_per_second']:,.0f}", f"{row['against_local']:.2f}", f"{row['start']:.1f}"]
        if is_measured:
            measured = row["measured"]["seconds"]
            cells += [f"{1e3 * measured:.2f}", f"{row['iteration'] / measured:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", comparison["line"][0].upper() + comparison["line"][1:] + ".", ""]
    if is_measured:
        lines.append(
            "Steps/s, times local and what pays are of the measured milliseconds, the other columns predicted."
        )
    lines.append("Predicted from measured pieces. Milliseconds for as many steps under each as one process makes in an")
    lines.append("iteration; crossing is what goes between fragments, and waiting for it. environments:K is as fine:K.")
    lines += [f"Left out: {reason}." for reason in comparison["left_out"]]
    return "\n".join(lines)
