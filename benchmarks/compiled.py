"""Steps per second of compiled environments: the fused rollout, against the sampler with gymnasium's own.

    python benchmarks/compiled.py
    python benchmarks/compiled.py --env Pendulum-v1 --num-envs 8,256,2048 --rounds 9

Forms: `sampler`, as `vectorization="auto"` chooses; `unfused`, compiled environments with the actor in NumPy; `fused`,
on one thread; `two threads`, the same divided. All sample rollouts with one actor of two layers of 64, without any
learning. A round times each once, in turn, and the first does not count; figures are medians. `two threads`
needs a machine with two idle cores, and the others one.
"""

import argparse
import statistics
import time
from typing import Any

import machine
import numpy as np
from settings import cleanrl
from turns import by_turns

from hybridppo import PPO, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.runners.samplers import stepping
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.system.threads import limit_threads

FORMS: dict[str, dict[str, Any]] = {
    "sampler": {"vectorization": "auto"},
    "unfused": {"vectorization": "compiled"},
    "fused": {"vectorization": "compiled"},
    "two threads": {"vectorization": "compiled", "env_threads": 2},
}
NUM_STEPS = 128
STEPS_OF_A_TURN = 2**16
"""At least; a rollout of many environments has more."""


class Contestant:
    """One form, ready to sample."""

    def __init__(self, form: str, env_id: str, num_envs: int) -> None:
        self.form = form
        environments = make_environments(env_id, num_envs, **FORMS[form])
        self._placement = SingleDevice("cpu")
        config = cleanrl(num_envs=num_envs, num_steps=NUM_STEPS, hidden_sizes=(64, 64))
        self._agent = PPO(environments.observation_space, environments.action_space, config, seed=0)
        self._placement.prepare(self._agent)
        noise = np.random.default_rng(0)
        self._sampler = Sampler(environments, self._agent.distribution, num_steps=NUM_STEPS, env_seed=0, noise=noise)
        self._rollouts = max(1, STEPS_OF_A_TURN // (num_envs * NUM_STEPS))

    def steps_per_second(self) -> float:
        """Steps per second in one turn."""
        fused = stepping.fused
        if self.form == "unfused":
            stepping.fused = lambda *_: None  # type: ignore[assignment]
        try:
            before, start = self._sampler.env_steps, time.perf_counter()
            for _ in range(self._rollouts):
                with self._placement.sampling(self._agent) as actor:
                    self._sampler.collect(actor)
            return (self._sampler.env_steps - before) / (time.perf_counter() - start)
        finally:
            stepping.fused = fused

    def close(self) -> None:
        """Release the environments."""
        self._sampler.close()


def measure(env_id: str, num_envs: int, rounds: int) -> dict[str, Any]:
    """Steps per second of every form, and their ratios to the sampler's."""
    contestants = {form: Contestant(form, env_id, num_envs) for form in FORMS}
    try:
        medians, turns = by_turns({form: one.steps_per_second for form, one in contestants.items()}, rounds)
    finally:
        for contestant in contestants.values():
            contestant.close()
    times = {form: statistics.median(turn[form] / turn["sampler"] for turn in turns) for form in FORMS}
    return {"steps_per_second": medians, "times": times, "rounds": turns}


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = ["| environments | form | steps/s | times the sampler |", "|---:|---|---:|---:|"]
    for num_envs, row in result["environments"].items():
        speeds, times = row["steps_per_second"], row["times"]
        lines += [f"| {num_envs} | {form} | {speeds[form]:,.0f} | {times[form]:.1f} |" for form in FORMS]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="an id with a compiled form (default %(default)s)")
    parser.add_argument("--num-envs", default="8,256,2048", help="numbers of environments (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each form (default %(default)s)")
    parser.add_argument("--no-file", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    with limit_threads(1):
        sizes = [int(size) for size in arguments.num_envs.split(",")]
        environments = {str(size): measure(arguments.env, size, arguments.rounds) for size in sizes}
    payload = {"arguments": vars(arguments), "environments": environments}
    machine.report("compiled", payload, as_markdown(payload), keeps=not arguments.no_file)


if __name__ == "__main__":
    main()
