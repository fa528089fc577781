"""What checks cost a training: those of what environments return, and that of losses, gradients and parameters.

    python benchmarks/checks.py
    python benchmarks/checks.py --iterations 50        # to see that it works

The small case of `fixed_work.py`, with gymnasium's vector environment and with single environments. It is trained twice
side by side from one seed: as the library does it, and without the checks, which subclasses take out by overriding the
methods that make them. The two alternate at every iteration and in who goes first, and the figures are medians of what
was measured at the same moment. They must end with equal parameters, or nothing is reported.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import torch
from cases import CASES
from numpy.typing import NDArray
from settings import cleanrl

from hybridppo import PPO, SingleDevice
from hybridppo.environments.base import Environments, Step
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.environments.vector import NextStepEnvironments
from hybridppo.runners.runner import Runner
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.system.threads import limit_threads

Array = NDArray[Any]

CASE = CASES["small"]


class UncheckedVector(NextStepEnvironments):
    """Takes whatever the vector environment returns."""

    def step(self, actions: Array) -> Step:
        """Step, and encode."""
        observations, rewards, terminated, truncated, _ = self.vector.step(actions)
        return self.encode(observations), rewards, terminated, truncated, [], []

    def check_rewards(self, rewards: Array) -> None:
        """Take them as they are."""


class UncheckedInTurn(SyncEnvironments):
    """Takes whatever the environments return."""

    def step(self, actions: Array) -> Step:
        """As in the base class, but without the checks and the handling of errors."""
        rows, rewards, terminated, truncated = self._rows, self._rewards, self._terminated, self._truncated
        self._num_steps += 1
        for i, (sub_env, action) in enumerate(zip(self.sub_environments, actions, strict=True)):
            rows[i], rewards[i], terminated[i], truncated[i], _ = sub_env.env.step(action)
        finals_of: list[int] = []
        finals: list[Array] = []
        if terminated.any() or truncated.any():
            for i in np.flatnonzero(terminated | truncated).tolist():
                if not terminated[i]:
                    finals_of.append(i)
                    finals.append(self.encode(rows[i : i + 1])[0].copy())
                self._reset(i)
        return self.encode(rows), rewards, terminated, truncated, finals_of, finals


class UncheckedPPO(PPO):
    """Does not look at its parameters after an update."""

    _nothing = torch.zeros(1)

    def _squared_norm(self) -> torch.Tensor:
        return self._nothing


def environments(form: str, checked: bool) -> Environments:
    """The case's environments, in one of the two forms."""
    if form == "vectorised":
        vector = gym.make_vec(CASE.env_id, num_envs=CASE.num_envs)
        return (NextStepEnvironments if checked else UncheckedVector)(vector)
    kind = SyncEnvironments if checked else UncheckedInTurn
    return kind(lambda: gym.make(CASE.env_id), CASE.num_envs)


def make_runner(form: str, checked: bool) -> Runner:
    """A training, ready to iterate."""
    config = cleanrl(
        num_envs=CASE.num_envs,
        num_steps=CASE.num_steps,
        num_epochs=CASE.num_epochs,
        num_minibatches=CASE.num_minibatches,
        hidden_sizes=CASE.hidden_sizes,
    )
    made = environments(form, checked)
    agent = (PPO if checked else UncheckedPPO)(made.observation_space, made.action_space, config, seed=0)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    noise = np.random.default_rng(0)
    sampler = Sampler(made, agent.distribution, num_steps=config.num_steps, env_seed=0, noise=noise)
    return Runner(agent, sampler, placement, total_steps=2**62, progress=False)


def measure(form: str, iterations: int) -> dict[str, Any]:
    """Milliseconds of an iteration with the checks and without, and the share that the checks take."""
    runners = {checked: make_runner(form, checked) for checked in (True, False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for iteration in range(iterations + CASE.warmup):
        for checked in (True, False) if iteration % 2 else (False, True):
            start = time.perf_counter()
            runners[checked].iterate()
            if iteration >= CASE.warmup:
                seconds[checked].append(time.perf_counter() - start)
    with_checks, without = (runners[checked].agent.parameters.values.detach() for checked in (True, False))
    if not torch.equal(with_checks, without):
        raise SystemExit(f"{form}: the two trainings were not the same work")
    for runner in runners.values():
        runner.sampler.close()
    ratios = [a / b for a, b in zip(seconds[True], seconds[False], strict=True)]
    return {
        "iterations": iterations,
        "ms_with": 1e3 * statistics.median(seconds[True]),
        "ms_without": 1e3 * statistics.median(seconds[False]),
        "share_of_checks": 1.0 - 1.0 / statistics.median(ratios),
    }


def as_markdown(rows: dict[str, dict[str, Any]]) -> str:
    """A row per form."""
    lines = ["| environments | with checks, ms | without, ms | share of the checks |", "|---|---:|---:|---:|"]
    for form, row in rows.items():
        lines.append(f"| {form} | {row['ms_with']:.3f} | {row['ms_without']:.3f} | {row['share_of_checks']:.2%} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print and save the results; 1 if the checks cost 2 % or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000, help="counted iterations of each (default %(default)s)")
    arguments = parser.parse_args()
    with limit_threads(1):
        rows = {form: measure(form, arguments.iterations) for form in ("vectorised", "in turn")}
    print(f"{CASE.in_words()}\n\n{as_markdown(rows)}")
    machine.save("checks", {"case": CASE.in_words(), "rows": rows})
    return int(any(row["share_of_checks"] >= 0.02 for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
